"""Frozen configurations: validated once when made, JSON in and out, unknown fields refused.

After construction the rest of the code trusts them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from .augmentations import Augmentation, DtypeName, Normalization, as_augmentations, as_dtype, as_normalization
from .duration import parse_duration
from .errors import ConfigError, SchemaVersionError

__all__ = [
    "Augment",
    "BackendName",
    "Balance",
    "DecodeMode",
    "LoaderConfig",
    "LoaderSettings",
    "OnError",
    "Order",
    "Tail",
    "TuneRequest",
    "TunedConfig",
    "WorkerCores",
    "parse_duration",
]

BackendName = Literal["processes", "threads", "dali", "nvjpeg", "hybrid"]
HybridSchedule = Literal["fixed", "greedy"]
Augment = Literal["train", "eval"]
DecodeMode = Literal["fast", "exact"]
Tail = Literal["drop", "pad", "partial"]
OnError = Literal["raise", "skip"]
Order = Literal["global", "sharded"]
Balance = Literal["class"]
WorkerCores = Literal["near", "any"]

SCHEMA_VERSION = 1


def _check_int(name: str, value: Any, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number", got=value, remedy=f"Give {name} as an integer.")
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ConfigError(f"{name} must be {limits}", got=value, remedy=f"Choose a value {limits}.")


def _check_number(name: str, value: Any, low: float, high: float, *, unit: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ConfigError(
            f"{name} must be a number", got=value, remedy=f"Give {name} as a number{unit and ' in'}{unit}."
        )
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low:g} and {high:g}{unit}", got=value, remedy="Choose within them.")


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ConfigError(f"{name} must be one of {listed}", got=value, remedy="Choose one of those.")


def _check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false", got=value, remedy="Give a boolean.")


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a non-empty text", got=value, remedy=f"Give {name}.")


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{name} must be a list", got=value, remedy=f"Give {name} as a list.")
    return tuple(value)


@dataclass(frozen=True, kw_only=True)
class _Json:
    """JSON for a frozen dataclass: `schema` and `schema_version` first, then every field."""

    _schema: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, with the schema's name and version."""
        return {"schema": self._schema, "schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}

    def to_json(self) -> str:
        """The JSON text of this configuration, ending with a newline."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str = "the configuration") -> Self:
        """Build from parsed JSON.

        Raises:
            SchemaVersionError: written by a newer schema.
            ConfigError: another schema, unknown or missing fields, or a value out of range.
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where} must be a JSON object", got=type(data).__name__, remedy="Give a JSON object.")
        values = dict(data)
        schema = values.pop("schema", cls._schema)
        if schema != cls._schema:
            raise ConfigError(f"{where} must be of schema {cls._schema!r}", got=schema, remedy="Give the right file.")
        version = values.pop("schema_version", SCHEMA_VERSION)
        _check_int(f"{where}: schema_version", version, 1)
        if version > SCHEMA_VERSION:
            raise SchemaVersionError(
                f"{where} has a schema this wellfed does not know (it knows up to {SCHEMA_VERSION})",
                got=version,
                remedy="Upgrade wellfed, or write the file again with this version.",
            )
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        if unknown:
            raise ConfigError(
                f"{where} has fields that {cls.__name__} does not know",
                got=", ".join(unknown),
                remedy=f"Remove them; known fields: {', '.join(fields)}.",
            )
        needed = [
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
        missing = [name for name in needed if name not in values]
        if missing:
            raise ConfigError(f"{where} lacks required fields", got=", ".join(missing), remedy="Add them.")
        try:
            return cls(**values)
        except ConfigError as error:
            # A value out of range is as wrong as an unknown field, and as hard to find without its file.
            raise type(error)(f"{where}: {error.rule}", got=error.got, remedy=error.remedy) from error

    @classmethod
    def from_json(cls, text: str, *, where: str = "the configuration") -> Self:
        """Build from JSON text; see `from_dict`."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} must be valid JSON", got=str(error), remedy="Mend the file.") from error
        return cls.from_dict(data, where=where)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a JSON file; see `from_dict`."""
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the file {str(path)!r} must be readable as UTF-8", got=str(error), remedy="Check the path."
            ) from error
        return cls.from_json(text, where=str(path))


@dataclass(frozen=True, kw_only=True)
class LoaderSettings(_Json):
    """The knobs that change speed and memory, never the data (design section 4): what the tuner chooses.

    Attributes:
        backend: where decoding runs.
        num_workers: decoding processes or threads; 0 decodes in the calling thread.
        prefetch_factor: batches kept ready for each worker (torch's meaning); without workers it is unused.
        persistent_workers: keep workers between epochs.
        pin_memory: put host batches into page-locked memory before the copy to a CUDA device.
        batch_size: samples in a batch of one rank.
        hw_decoder_load: share of a batch that DALI gives to the GPU's JPEG engines, 0 to 1; of backends "dali" and
            "hybrid" on a CUDA device. 0.75 was the fastest on an H200; the best depends on image size and step.
        gpu_share: share of the batches that the GPU decodes, 0 to 1; of backend "hybrid" with the fixed schedule.
        hybrid_schedule: "fixed" settles by a batch's number which side decodes it; "greedy" gives it to whichever is
            free, so that pixels vary from run to run within the tolerance of backend "hybrid".
    """

    _schema: ClassVar[str] = "wellfed-loader-settings"

    backend: BackendName = "threads"
    num_workers: int = 2
    prefetch_factor: int = 2
    persistent_workers: bool = True
    pin_memory: bool = True
    batch_size: int = 64
    hw_decoder_load: float = 0.75
    gpu_share: float = 0.66
    hybrid_schedule: HybridSchedule = "fixed"

    def __post_init__(self) -> None:
        _check_choice("backend", self.backend, get_args(BackendName))
        _check_int("num_workers", self.num_workers, 0, 1024)
        _check_int("prefetch_factor", self.prefetch_factor, 1, 64)
        _check_bool("persistent_workers", self.persistent_workers)
        _check_bool("pin_memory", self.pin_memory)
        _check_int("batch_size", self.batch_size, 1, 1 << 20)
        _check_number("hw_decoder_load", self.hw_decoder_load, 0, 1)
        _check_number("gpu_share", self.gpu_share, 0, 1)
        _check_choice("hybrid_schedule", self.hybrid_schedule, get_args(HybridSchedule))


@dataclass(frozen=True, kw_only=True)
class LoaderConfig(_Json):
    """Everything a loader over a stored dataset needs, apart from the dataset.

    Attributes:
        settings: the knobs of speed.
        shuffle: a new order each epoch, from (seed, epoch); otherwise the order of the keys.
        seed: of order, crops and flips; 0 .. 2**63-1.
        order: "global" shuffles all samples; "sharded" reads shuffled shards in sequence and mixes within a window.
        balance: "class" draws every class equally often; None takes each sample once.
        tail: what happens to samples that fill no whole batch over all ranks.
        augment: "train" is RandomResizedCrop(0.08..1, 3/4..4/3) and a horizontal flip; "eval" resizes the shorter
            side to image_size * 256/224 and crops the centre.
        decode: "fast" lets libjpeg halve, quarter or eighth a JPEG while it decodes, where the crop stays at least as
            large as image_size in both directions; "exact" decodes every crop at full size. Crops are the same.
        image_size: height and width of the images in a batch, pixels.
        device_augment: augmentations of whole batches on the device, with parameters from (seed, epoch, key).
        dtype: of the images; floating-point ones are divided by 255.
        normalize: mean and standard deviation of the channels in units of 0 to 1, or "imagenet"; None for none.
        fields: None gives (images, labels) pairs, otherwise dictionaries of these fields; which there are depends on
            the dataset.
        on_error: raise on a corrupt sample, or fill its place from the same batch and count it.
        rank, world_size: which part of each global batch is this process's.
        device: where batches arrive ("cpu", "cuda", "cuda:0").
        multiprocessing_context: start method of worker processes; None chooses (spawn in a notebook,
            otherwise fork, torch's default on Linux).
        timeout: seconds to wait for a worker's batch before it is an error; 0 waits for ever.
        worker_cores: "near" keeps decoding on the cores near the device where several ranks share the machine and
            these cores suffice; "any" leaves it to the system.
    """

    _schema: ClassVar[str] = "wellfed-loader"

    settings: LoaderSettings
    shuffle: bool = False
    seed: int = 0
    order: Order = "global"
    balance: Balance | None = None
    tail: Tail = "partial"
    augment: Augment = "eval"
    decode: DecodeMode = "fast"
    image_size: int = 224
    device_augment: tuple[Augmentation, ...] = ()
    dtype: DtypeName = "uint8"
    normalize: Normalization | None = None
    fields: tuple[str, ...] | None = None
    on_error: OnError = "raise"
    rank: int = 0
    world_size: int = 1
    device: str = "cpu"
    multiprocessing_context: Literal["fork", "forkserver", "spawn"] | None = None
    timeout: float = 0.0
    worker_cores: WorkerCores = "near"

    def __post_init__(self) -> None:
        if isinstance(self.settings, Mapping):
            object.__setattr__(self, "settings", LoaderSettings.from_dict(self.settings, where="settings"))
        if not isinstance(self.settings, LoaderSettings):
            raise ConfigError("settings must be a LoaderSettings", got=self.settings, remedy="Give LoaderSettings.")
        _check_bool("shuffle", self.shuffle)
        _check_int("seed", self.seed, 0, (1 << 63) - 1)
        _check_choice("order", self.order, get_args(Order))
        _check_choice("balance", self.balance, (*get_args(Balance), None))
        _check_choice("tail", self.tail, get_args(Tail))
        _check_choice("augment", self.augment, get_args(Augment))
        _check_choice("decode", self.decode, get_args(DecodeMode))
        if self.decode == "exact" and self.settings.backend not in ("threads", "processes"):
            raise ConfigError(
                "decode='exact' is for the CPU path, backends 'threads' and 'processes'",
                got=f"backend={self.settings.backend!r}",
                remedy="Choose one of those backends, or leave decode out.",
            )
        _check_int("image_size", self.image_size, 1, 4096)
        object.__setattr__(self, "dtype", as_dtype(self.dtype))
        object.__setattr__(self, "device_augment", as_augmentations(self.device_augment, self.dtype))
        object.__setattr__(self, "normalize", as_normalization(self.normalize, self.dtype))
        if self.fields is not None:
            object.__setattr__(self, "fields", _as_tuple("fields", self.fields))
            if not self.fields:
                raise ConfigError("fields must name at least one field", remedy="Leave fields out for pairs.")
            for field in self.fields:
                _check_text("each of fields", field)
            if len(set(self.fields)) != len(self.fields):
                raise ConfigError("fields must differ", got=", ".join(self.fields), remedy="Name each once.")
        _check_choice("on_error", self.on_error, get_args(OnError))
        _check_int("world_size", self.world_size, 1)
        _check_int("rank", self.rank, 0, self.world_size - 1)
        _check_text("device", self.device)
        _check_choice("multiprocessing_context", self.multiprocessing_context, ("fork", "forkserver", "spawn", None))
        _check_number("timeout", self.timeout, 0, 86400, unit=" seconds")
        _check_choice("worker_cores", self.worker_cores, get_args(WorkerCores))


@dataclass(frozen=True, kw_only=True)
class TuneRequest(_Json):
    """What the tuner is asked for.

    Attributes:
        data: path of the dataset (converted, or a folder of class folders).
        step: "resnet18", "resnet50", "vit_b_16" or "module:function".
        device: "auto", "cuda:N" or "simulated[:PRESET]".
        util_target: mean GPU utilization to exceed, percent.
        fed_target: least fed ratio: samples/s over the same step's on cached batches.
        memory_cap: largest share of the device's memory.
        budget_seconds: time for preflight, measuring and search; the hold comes after it.
        hold_seconds: how long the winner must hold.
        batch_sizes: the batch sizes to consider; None chooses powers of two from 16 to 1024.
        image_size: pixels.
        seed: of order and augmentation.
        current: the user's present settings, measured beside the rest.
        rounds: interleaved rounds behind each comparison; at least 5 (design section 6).
        optimizer: "sgd" or "adam" (also AdamW), for advice on the learning rate; None looks at the step's own.
        base_lr, base_batch: a learning rate that is known to work at a global batch (samples in an optimizer step, over
            all ranks); base_lr None looks at the step's own optimizer.
        global_batch: the global batch to keep, by accumulation; None lets it grow with the batch size.
        allow_shared_gpu: measure also where other programs compute on the device.
    """

    _schema: ClassVar[str] = "wellfed-tune-request"

    data: str
    step: str
    device: str = "auto"
    util_target: float = 70.0
    fed_target: float = 0.90
    memory_cap: float = 0.70
    budget_seconds: float = 180.0
    hold_seconds: float = 60.0
    batch_sizes: tuple[int, ...] | None = None
    image_size: int = 224
    seed: int = 0
    current: LoaderSettings | None = None
    rounds: int = 5
    optimizer: Literal["sgd", "adam"] | None = None
    base_lr: float | None = None
    base_batch: int | None = None
    global_batch: int | None = None
    allow_shared_gpu: bool = False

    def __post_init__(self) -> None:
        _check_bool("allow_shared_gpu", self.allow_shared_gpu)
        _check_text("data", self.data)
        _check_text("step", self.step)
        _check_text("device", self.device)
        _check_number("util_target", self.util_target, 0, 100, unit=" percent")
        _check_number("fed_target", self.fed_target, 0, 1)
        _check_number("memory_cap", self.memory_cap, 0.01, 1)
        _check_number("budget_seconds", self.budget_seconds, 1, 7 * 86400, unit=" seconds")
        _check_number("hold_seconds", self.hold_seconds, 1, 86400, unit=" seconds")
        if self.batch_sizes is not None:
            object.__setattr__(self, "batch_sizes", _as_tuple("batch_sizes", self.batch_sizes))
            if not self.batch_sizes:
                raise ConfigError("batch_sizes must hold at least one", remedy="Leave it out to let the tuner choose.")
            for size in self.batch_sizes:
                _check_int("each of batch_sizes", size, 1, 1 << 20)
        _check_int("image_size", self.image_size, 8, 4096)
        _check_int("seed", self.seed, 0, (1 << 63) - 1)
        _check_int("rounds", self.rounds, 5, 100)
        _check_choice("optimizer", self.optimizer, ("sgd", "adam", None))
        if self.base_lr is not None:
            _check_number("base_lr", self.base_lr, 1e-12, 1e6)
        for name in ("base_batch", "global_batch"):
            if (batch := getattr(self, name)) is not None:
                _check_int(name, batch, 1, 1 << 30)
        if self.base_lr is not None and self.base_batch is None:
            raise ConfigError(
                "base_lr needs the batch at which it works", got=self.base_lr, remedy="Give base_batch too."
            )
        if isinstance(self.current, Mapping):
            object.__setattr__(self, "current", LoaderSettings.from_dict(self.current, where="current"))
        if self.current is not None and not isinstance(self.current, LoaderSettings):
            raise ConfigError("current must be a LoaderSettings", got=self.current, remedy="Give LoaderSettings.")


@dataclass(frozen=True, kw_only=True)
class TunedConfig(_Json):
    """The tuner's answer, with what it was found on, so that a loader can tell whether it still fits.

    Attributes:
        settings: the chosen knobs.
        verdict: "passed", "step_limited", "data_limited", "unmeasurable" or "regressed".
        dataset: {"fingerprint", "samples", "location_name"}; the fingerprint is Source.fingerprint.
        machine: the fingerprint of `hardware.fingerprint()`: the facts that must agree.
        step: {"name", "device", "image_size", "source_sha256"}; the last is of a user's step and may be null.
        versions: versions of wellfed, torch, the decoding libraries and the driver it was measured with.
        measured: figures of the held run (or of the rounds, where the tune was interrupted): samples_per_second,
            util_percent, fed_ratio, peak_bytes; and probe_bytes, the peak of the batch size in a process of its own.
            Each may be null: it was not measured.
    """

    _schema: ClassVar[str] = "wellfed-tuned-config"

    settings: LoaderSettings
    verdict: Literal["passed", "step_limited", "data_limited", "unmeasurable", "regressed"]
    dataset: Mapping[str, Any]
    machine: Mapping[str, Any]
    step: Mapping[str, Any]
    versions: Mapping[str, str]
    measured: Mapping[str, float | None]

    def __post_init__(self) -> None:
        if isinstance(self.settings, Mapping):
            object.__setattr__(self, "settings", LoaderSettings.from_dict(self.settings, where="settings"))
        if not isinstance(self.settings, LoaderSettings):
            raise ConfigError("settings must be a LoaderSettings", got=self.settings, remedy="Give LoaderSettings.")
        _check_choice("verdict", self.verdict, ("passed", "step_limited", "data_limited", "unmeasurable", "regressed"))
        for name in ("dataset", "machine", "step", "versions", "measured"):
            if not isinstance(getattr(self, name), Mapping):
                raise ConfigError(f"{name} must be a JSON object", got=getattr(self, name), remedy="Write it anew.")
        # Without these nothing would tell that the file is used on another dataset or with another step.
        for part, facts in (("dataset", ("fingerprint", "samples")), ("step", ("name", "device", "image_size"))):
            if missing := [fact for fact in facts if fact not in getattr(self, part)]:
                raise ConfigError(
                    f"{part} of a tuned config must hold {', '.join(facts)}",
                    got=f"no {', '.join(missing)}",
                    remedy="Give the file that wellfed tune wrote, or run it again.",
                )
        _check_text("dataset.fingerprint", self.dataset["fingerprint"])
        _check_int("dataset.samples", self.dataset["samples"], 1)
        _check_text("step.name", self.step["name"])
        _check_text("step.device", self.step["device"])
        _check_int("step.image_size", self.step["image_size"], 1, 4096)
        for figure, value in self.measured.items():
            if value is not None:
                _check_number(f"measured.{figure}", value, -sys.float_info.max, sys.float_info.max)
