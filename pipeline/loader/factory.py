"""`DataLoader`: the one name a training script imports, for torch Datasets and for stored datasets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, overload

from ..config import BackendName, LoaderConfig, LoaderSettings, TunedConfig
from ..errors import ConfigError, UsageError
from ..formats import Source, open_source
from .images import ImageLoader
from .passthrough import TORCH_POSITIONAL, stateful_loader, with_tuned
from .ranks import cores_of_rank, device_of_rank, found_ranks
from .transform import auto_backend
from .tuned import check_tuned, load_tuned

__all__ = ["DataLoader", "make_loader"]

AUTO_BACKEND: BackendName = "threads"
DEFAULTS = LoaderSettings()

_SHARED = (
    "batch_size",
    "shuffle",
    "drop_last",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "multiprocessing_context",
    "timeout",
)
_OURS = (
    "augment",
    "backend",
    "balance",
    "batch_transform",
    "cache_bytes",
    "cache_dir",
    "decode",
    "device",
    "device_augment",
    "dtype",
    "fields",
    "gpu_share",
    "hw_decoder_load",
    "hybrid_schedule",
    "image_size",
    "normalize",
    "on_error",
    "order",
    "rank",
    "seed",
    "subset",
    "tail",
    "transform",
    "weights",
    "worker_cores",
    "world_size",
)
_LEFT_OUT = object()
_OF_BACKENDS = {"gpu_share": ("hybrid",), "hw_decoder_load": ("dali", "hybrid"), "hybrid_schedule": ("hybrid",)}
"""Arguments that only these backends use."""
_TORCH_ONLY = {
    "sampler": "the order comes from shuffle= and seed=, and subset=, balance= and weights= choose samples",
    "batch_sampler": "the order comes from shuffle= and seed=",
    "collate_fn": "batches are whole arrays; choose with fields=, change with batch_transform=",
    "worker_init_fn": "workers hold no random state",
    "generator": "randomness comes from seed=",
    "pin_memory_device": "use device=",
    "in_order": "batches always come in order",
    "snapshot_every_n_steps": "state_dict() is exact at every step",
}


@overload
def DataLoader(source: str | Path | Source, *args: Any, **kwargs: Any) -> ImageLoader: ...


@overload
def DataLoader(source: Any = ..., *args: Any, **kwargs: Any) -> Any: ...


def DataLoader(source: Any = _LEFT_OUT, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 (torch's name, so that an import can be replaced)
    """Load a stored dataset fast, or any torch Dataset as torch does.

    **A torch `Dataset`** (map-style or iterable) takes every argument of `torch.utils.data.DataLoader`, by position
    too, and gives torchdata's `StatefulDataLoader`. With `tuned=`, num_workers, batch_size, pin_memory,
    persistent_workers and prefetch_factor come from there where they are left out; otherwise torch's defaults hold.

    **A stored dataset** (a path, or a `Source`) gives an `ImageLoader`. torch's names keep torch's meaning; the
    others are keyword-only.

    Args:
        source: dataset folder (converted, or class folders of images), URL of a converted WebDataset, `Source` (such
            as a `Mix` of several datasets), or torch `Dataset`; `dataset=`, torch's name, is the same.
        batch_size: samples of one rank's batch; left out, from `tuned`, else 1 as in torch.
        shuffle: a new order each epoch.
        order: "global" shuffles all samples; "sharded" reads the shards of a converted dataset in sequence, in a
            shuffled order and mixed within a window, for storage where random reads are slow.
        cache_dir, cache_bytes: of a URL, see `open_source`.
        subset: the samples that are used: an array of their keys, or a mask with a bool for each row.
        balance: "class" draws every class equally often; an epoch has as many samples as are used.
        weights: instead of balance, how often each row is drawn relative to the others.
        drop_last: True drops what fills no whole batch over all ranks; False keeps it: on one rank the last batch is
            shorter, on several it is padded with repeats, as DistributedSampler does.
        tail: "drop", "pad" or "partial", instead of drop_last.
        augment: "train" (RandomResizedCrop and flip) or "eval" (resize and centre crop).
        decode: "fast" (the default) lets libjpeg reduce JPEGs whose crop is at least twice image_size in both
            directions; "exact" never does. docs/loading.md has what each differs from Pillow.
        image_size: pixels.
        device_augment: augmentations of whole batches on the device, after crop and flip, such as
            `[ColorJitter(0.4, 0.4, 0.4, 0.1), RandAugment(), RandomErasing(0.25)]`, from wellfed.pipeline; drawn for
            each sample from (seed, epoch, key).
        dtype: "uint8", or "float32", "float16" or "bfloat16" (or torch's objects), of images that are divided by 255.
        normalize: "imagenet" or (mean, std), as torchvision's Normalize takes; with a floating-point dtype.
        fields: None gives (images, labels); otherwise dictionaries of these fields, see `ImageLoader`. Where none of
            them needs the image it is not read, and the dataset need not have any.
        transform: called with each sample on the CPU: its image (uint8, (3, S, S)), or with `fields` a dictionary. What
            it returns takes its place. docs/loading.md says how it gets its random numbers, and where it runs.
        batch_transform: called in the thread of the loop with each batch on `device`; the loop gets what it returns.
        on_error: "raise" on a corrupt sample, or "skip": fill its place from the batch and count it.
        rank, world_size: left out, from torch.distributed, else from RANK and WORLD_SIZE, else one rank.
        device: "cpu", "cuda" or "cuda:N"; "cuda" is torch's current device, and under torchrun that of LOCAL_RANK where
            the program has chosen none.
        seed: of order, crops and flips.
        backend: "threads", "processes", "dali", "nvjpeg", "hybrid", or "auto": that of `tuned`, otherwise threads
            (reasons below).
        num_workers: decoding threads or processes, with "dali" its host threads; 0 decodes on the CPU in the calling
            thread, whatever the backend. Left out, from `tuned`, else the usable cores, divided by LOCAL_WORLD_SIZE.
        hw_decoder_load: of "dali" and "hybrid": share of a batch for the GPU's JPEG engines; left out, 0.75.
        gpu_share, hybrid_schedule: of "hybrid": share of the batches that the GPU decodes, left out 0.66; "fixed", or
            "greedy", which gives a batch to whichever side is free.
        worker_cores: "near" keeps decoding threads and processes on the cores near the rank's GPU, where torchrun runs
            several ranks here and these cores suffice; "any" leaves them to the system. `loader.worker_cores` says
            which they are.
        prefetch_factor, persistent_workers, pin_memory, multiprocessing_context, timeout: as in torch. pin_memory left
            out is True for CUDA devices; persistent_workers left out is True.
        tuned: a tuned-config file or `TunedConfig`; refused where it was found on another dataset, image size or
            machine, with a warning where the step's source, a library or the driver has changed since. Explicit
            arguments override it.

    Raises:
        UsageError: arguments that do not go together or do not exist.
        ConfigError: a value out of range.
        TunedConfigMismatchError: `tuned` does not fit.
        DeviceError: the device cannot be used.
        MissingDependencyError: the backend's library is not installed, or not for this CUDA; with the pip line.
        ResourceError: from iterating, when shared memory is too small for the processes.
        TransformError: from iterating: the transform raised; names dataset, index and path of the sample.
        WorkerError: from iterating: a worker ended, or a batch was not there within the timeout.

    "auto" means threads, or processes for a transform that takes no generator. Threads: the decoders release the GIL,
    and threads start at once, need no shared memory and move no batch between processes.
    benchmarks/loader_backends.py compares both on your machine.
    """
    if "dataset" in kwargs:
        if source is not _LEFT_OUT:
            raise UsageError("source and dataset are two names of one argument", got="both", remedy="Give one of them.")
        source = kwargs.pop("dataset")
    if isinstance(source, (str, Path, Source)):
        return _stored(source, _by_name(args, kwargs))
    # A path in bytes has items too, and would load as numbers.
    if not isinstance(source, (bytes, bytearray)) and (hasattr(source, "__getitem__") or hasattr(source, "__iter__")):
        return _torch(source, _by_name(args, kwargs))
    raise UsageError(
        "a source is the path of a stored dataset, a Source or a torch Dataset",
        got="nothing" if source is _LEFT_OUT else type(source).__name__,
        remedy="Give one of those.",
    )


def make_loader(source: Source, config: LoaderConfig) -> ImageLoader:
    """The loader over an open source that a configuration describes; closing it leaves the source open."""
    return ImageLoader(source, config)


def _by_name(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(TORCH_POSITIONAL):
        raise UsageError(
            f"at most {len(TORCH_POSITIONAL)} arguments after the source can be given by position, as in torch",
            got=len(args),
            remedy="Give the others by name.",
        )
    placed = dict(zip(TORCH_POSITIONAL, args, strict=False))
    twice = sorted(set(placed) & set(kwargs))
    if twice:
        raise UsageError(
            "an argument can be given once", got=", ".join(twice), remedy="Give it by position or by name."
        )
    return {**placed, **kwargs}


def _refuse_unknown(arguments: Mapping[str, Any], known: tuple[str, ...], of: str) -> None:
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise UsageError(
            f"the arguments of a loader over {of} are {', '.join(sorted(known))}",
            got=", ".join(unknown),
            remedy="Remove it or mend the spelling." if len(unknown) == 1 else "Remove them or mend the spelling.",
        )


def _torch(dataset: Any, arguments: dict[str, Any]) -> Any:
    tuned = arguments.pop("tuned", None)
    ours = sorted(set(arguments) & set(_OURS))
    if ours:
        raise UsageError(
            f"{', '.join(_OURS)} are for stored datasets; a torch Dataset decodes and augments by itself",
            got=", ".join(ours),
            remedy="Leave them out, or convert the data (wellfed convert) and give its path.",
        )
    _refuse_unknown(arguments, (*_SHARED, *_TORCH_ONLY, "tuned"), "a torch Dataset")
    if tuned is not None:
        config = load_tuned(tuned)
        check_tuned(config, machine=_machine())
        arguments = with_tuned(arguments, config.settings)
    return stateful_loader(dataset, arguments)


def _stored(source: str | Path | Source, arguments: dict[str, Any]) -> ImageLoader:
    if "batch_size" in arguments and arguments["batch_size"] is None:
        raise UsageError(
            "batch_size=None turns batching off in torch; a stored dataset is loaded in batches",
            got="batch_size=None",
            remedy="Give a number, or leave it out for that of tuned=, else 1.",
        )
    # None stands for an argument that is left out, as it is torch's default of most.
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, instead in _TORCH_ONLY.items():
        if name in given:
            raise UsageError(
                f"{name} is for torch Datasets; with a stored dataset {instead}",
                got=f"{name}={given[name]!r}",
                remedy="Leave it out.",
            )
    _refuse_unknown(given, (*_SHARED, *_OURS, "tuned"), "a stored dataset")
    if callable(given.get("augment")):
        raise UsageError(
            "augment names how images are cropped and flipped, 'train' or 'eval'",
            got=f"augment={given['augment']!r}",
            remedy="Give a function as transform= (of each sample, on the CPU) or batch_transform= (on the device).",
        )
    opened = _opened(source, {name: given[name] for name in ("cache_dir", "cache_bytes") if name in given})
    try:
        config = _config(opened, given)
        return ImageLoader(
            opened,
            config,
            owns_source=opened is not source,
            follows_ranks=given.get("rank") is None,
            subset=given.get("subset"),
            weights=given.get("weights"),
            transform=given.get("transform"),
            batch_transform=given.get("batch_transform"),
        )
    except BaseException:
        if opened is not source:
            opened.close()
        raise


def _opened(source: str | Path | Source, cache: dict[str, Any]) -> Source:
    if not isinstance(source, Source):
        return open_source(source, **cache)
    if cache:
        raise UsageError(
            "cache_dir and cache_bytes are for a dataset that is given by its URL",
            got=f"{', '.join(cache)} with an open source",
            remedy="Give them to open_source.",
        )
    return source


def _config(source: Source, given: Mapping[str, Any]) -> LoaderConfig:
    tuned: TunedConfig | None = None
    image_size = given.get("image_size", 224)
    device = device_of_rank(str(given.get("device", "cpu")))
    if given.get("tuned") is not None:
        tuned = load_tuned(given["tuned"])
        check_tuned(
            tuned,
            machine=_machine(),
            source=source,
            image_size=image_size,
            device=device,
        )
    rank, world_size = found_ranks(given.get("rank"), given.get("world_size"))
    simple = (
        "shuffle",
        "seed",
        "order",
        "balance",
        "augment",
        "decode",
        "device_augment",
        "dtype",
        "normalize",
        "on_error",
        "multiprocessing_context",
        "timeout",
        "worker_cores",
    )
    return LoaderConfig(
        settings=_settings(given, tuned, device),
        tail=_tail(given, world_size),
        image_size=image_size,
        fields=_fields(given.get("fields")),
        rank=rank,
        world_size=world_size,
        device=device,
        **{name: given[name] for name in simple if given.get(name) is not None},
    )


def _settings(given: Mapping[str, Any], tuned: TunedConfig | None, device: str) -> LoaderSettings:
    def choose(name: str, otherwise: Any) -> Any:
        if given.get(name) is not None:
            return given[name]
        return getattr(tuned.settings, name) if tuned else otherwise

    backend: Any = given.get("backend") or "auto"
    if given.get("transform") is not None and backend == "auto" and tuned is None:
        backend = auto_backend(given["transform"], given.get("multiprocessing_context"), AUTO_BACKEND)
    if backend not in ("auto", *get_args(BackendName)):
        names = [repr(name) for name in get_args(BackendName)]
        raise ConfigError(
            f"backend is 'auto', {', '.join(names[:-1])} or {names[-1]}", got=backend, remedy="Choose one."
        )
    if backend == "auto":
        backend = tuned.settings.backend if tuned else AUTO_BACKEND
    for name, backends in _OF_BACKENDS.items():
        if given.get(name) is not None and backend not in backends:
            raise UsageError(
                f"{name} is for backend " + " and ".join(map(repr, backends)),
                got=f"{name}={given[name]!r} with backend {backend!r}",
                remedy="Leave it out, or name that backend.",
            )
    if given.get("gpu_share") is not None and choose("hybrid_schedule", DEFAULTS.hybrid_schedule) == "greedy":
        raise UsageError(
            "gpu_share is for the fixed schedule of backend 'hybrid'; the greedy one gives batches to whoever is free",
            got=f"gpu_share={given['gpu_share']!r} with hybrid_schedule='greedy'",
            remedy="Leave one of them out.",
        )
    num_workers = choose("num_workers", None)
    return LoaderSettings(
        backend=backend,
        num_workers=cores_of_rank(_usable_cores()) if num_workers is None else num_workers,
        prefetch_factor=choose("prefetch_factor", 2),
        persistent_workers=choose("persistent_workers", True),
        pin_memory=choose("pin_memory", device.startswith("cuda")),
        batch_size=choose("batch_size", 1),
        hw_decoder_load=choose("hw_decoder_load", DEFAULTS.hw_decoder_load),
        gpu_share=choose("gpu_share", DEFAULTS.gpu_share),
        hybrid_schedule=choose("hybrid_schedule", DEFAULTS.hybrid_schedule),
    )


def _tail(given: Mapping[str, Any], world_size: int) -> Any:
    drop_last, tail = given.get("drop_last"), given.get("tail")
    if drop_last is not None and tail is not None:
        raise UsageError(
            "drop_last and tail say the same thing, so only one can be given",
            got=f"drop_last={drop_last!r} and tail={tail!r}",
            remedy="Use tail='drop', 'pad' or 'partial', or drop_last as in torch.",
        )
    if tail is not None:
        return tail
    if drop_last not in (None, True, False):
        raise ConfigError("drop_last must be true or false", got=drop_last, remedy="Give a boolean.")
    if drop_last:
        return "drop"
    return "partial" if world_size == 1 else "pad"


def _fields(fields: Any) -> tuple[str, ...] | None:
    if fields is None:
        return None
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise ConfigError(
            "fields is a sequence of names", got=fields, remedy="Write fields=('image',) for the image alone."
        )
    return tuple(fields)


def _machine() -> dict[str, Any]:
    from ..hardware import fingerprint

    return fingerprint()


def _usable_cores() -> int:
    from ..hardware.cpu import usable_cores

    cores = usable_cores().value
    return max(1, int(cores)) if cores is not None else len(os.sched_getaffinity(0))
