"""Which samples a loader gives and in which order: the arguments about that, checked, as a `Sampling`."""

from __future__ import annotations

import hashlib
import warnings
from functools import partial
from typing import Any

import numpy as np

from ..config import LoaderConfig
from ..errors import ConfigError, UsageError
from ..formats.base import Source
from ..formats.mix import Mix
from ..sampling import SHARDED_WINDOW, MixSampling, Sampling, Shards, SingleSampling, class_weights, shares

__all__ = ["make_sampling"]


def make_sampling(source: Source, config: LoaderConfig, *, subset: Any = None, weights: Any = None) -> Sampling:
    """The sampling that the arguments of a loader ask for.

    Args:
        subset: the samples that are used: their keys (whole numbers) or a mask (bool, one for each row).
        weights: how often each row of the dataset is to be drawn, relative to the others; shape (len(source),).

    Raises:
        UsageError: an empty dataset, or arguments that do not go together.
        ConfigError: a subset or weights that do not fit the dataset.
    """
    if len(source) == 0:
        raise UsageError(
            "a dataset must hold at least one sample", got=source.location, remedy="Check the conversion's rejects."
        )
    if weights is not None and config.balance is not None:
        raise UsageError(
            "weights and balance both say how often samples are drawn, so only one can be given",
            got=f"weights and balance={config.balance!r}",
            remedy="Leave one out.",
        )
    drawn = "weights" if weights is not None else "balance" if config.balance is not None else None
    needs_shuffle = drawn or ("order='sharded'" if config.order == "sharded" else None)
    if needs_shuffle and not config.shuffle:
        raise UsageError(
            f"{needs_shuffle} draws a new order each epoch, so it needs shuffle=True",
            got="shuffle=False",
            remedy="Give shuffle=True, or leave it out.",
        )
    if isinstance(source, Mix):
        return _of_mix(source, config, [("subset", subset), (drawn, drawn)])
    rows = None if subset is None else _subset_rows(source, subset)
    values = None if weights is None else _checked_weights(source, weights, rows)
    if config.balance == "class":
        labels = source.index["label"]
        values = class_weights(labels if rows is None else labels[rows])
    shards = _shards(source, rows) if config.order == "sharded" else None
    said = [config.order if shards is None else f"sharded, {shards.streams} streams"]
    if rows is not None:
        said.append(f"a subset of {len(rows)}, {_digest(rows)}")
    if weights is not None and values is not None:
        said.append(f"weights {_digest(values)}")
    if config.balance is not None:
        said.append(f"balanced by {config.balance}")
    return SingleSampling(
        index=source.index,
        seed=config.seed,
        shuffle=config.shuffle,
        identity="; ".join(said),
        rows=rows,
        weights=values,
        by_class=config.balance == "class",
        shards=shards,
    )


def _of_mix(mix: Mix, config: LoaderConfig, others: list[tuple[str | None, Any]]) -> MixSampling:
    if config.order == "sharded":
        others = [*others, ("order='sharded'", True)]
    for name, given in others:
        if name is not None and given is not None:
            raise UsageError(
                f"{name} is about one dataset and cannot be given with a Mix",
                got=mix.location,
                remedy="Leave it out, and choose shares by the weights of the mix.",
            )
    weights = [weight for _, weight in mix.parts]
    for (source, weight), count in zip(mix.parts, shares(mix.samples, weights), strict=True):
        if count == 0:
            raise UsageError(
                f"each dataset of a mix must get a sample of an epoch's {mix.samples}",
                got=f"none for {source.location} with weight {weight:g} of {sum(weights):g}",
                remedy="Give it a larger weight, or the mix more samples=.",
            )
    return MixSampling(
        # A dataset's own keys: adding one to the end of the mix leaves the orders of the others as they were.
        keys=[partial(_keys, source) for source, _ in mix.parts],
        lengths=[len(source) for source, _ in mix.parts],
        weights=weights,
        samples=mix.samples,
        seed=config.seed,
        shuffle=config.shuffle,
        identity=f"a mix of {mix.samples} samples an epoch",
    )


def _keys(source: Source) -> np.ndarray:
    return source.index["key"]


def _subset_rows(source: Source, subset: Any) -> np.ndarray:
    """Ascending row numbers."""
    values = _array("subset", subset)
    keys = source.index["key"]
    if values.dtype == np.bool_:
        if len(values) != len(keys):
            raise ConfigError(
                f"a mask has one value for each of the {len(keys)} samples of {source.location}",
                got=f"{len(values)} values",
                remedy="Give a mask of that length, or the keys of the samples.",
            )
        rows = np.flatnonzero(values)
    elif values.dtype.kind in "iu":
        wanted = np.unique(values)
        if len(wanted) != len(values):
            raise ConfigError(
                "a subset names each key once",
                got=f"{len(values) - len(wanted)} repeats",
                remedy="Give weights= instead.",
            )
        if len(wanted) and wanted[0] < 0:
            raise ConfigError(
                "keys are whole numbers from 0 on", got=int(wanted[0]), remedy="Give keys of the dataset."
            )
        wanted = wanted.astype(np.uint64)
        rows = np.searchsorted(keys, wanted)
        absent = wanted[(rows == len(keys)) | (keys[np.minimum(rows, len(keys) - 1)] != wanted)]
        if len(absent):
            raise ConfigError(
                f"every key of a subset must be one of {source.location}",
                got=f"{len(absent)} that are not, such as {int(absent[0])}",
                remedy="Keys are source.index['key']; rejected samples leave gaps in them.",
            )
    else:
        raise ConfigError(
            "a subset is an array of keys (whole numbers) or a mask (bool)",
            got=f"an array of {values.dtype}",
            remedy="Give one of those.",
        )
    if not len(rows):
        raise ConfigError("a subset must hold at least one sample", got="none", remedy="Leave subset out for all.")
    return rows.astype(np.int64)


def _checked_weights(source: Source, weights: Any, rows: np.ndarray | None) -> np.ndarray:
    """float64 of the rows that are used."""
    values = _array("weights", weights)
    if values.dtype.kind not in "iuf" or len(values) != len(source):
        raise ConfigError(
            f"weights are numbers, one for each of the {len(source)} samples of {source.location}",
            got=f"{len(values)} of {values.dtype}",
            remedy="Give one for each row, also where subset= leaves rows out.",
        )
    values = values.astype(np.float64)
    if rows is not None:
        values = values[rows]
    if (
        not np.isfinite(values).all()
        or (values < 0).any()
        or not np.isfinite(total := float(values.sum()))
        or not total
    ):
        raise ConfigError(
            "weights are finite numbers of at least 0, and not all 0", got="others among them", remedy="Mend them."
        )
    return values


def _array(name: str, given: Any) -> np.ndarray:
    try:
        values = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} is an array of one dimension", got=type(given).__name__) from error
    if values.ndim != 1:
        raise ConfigError(
            f"{name} is an array of one dimension",
            got=type(given).__name__ if values.ndim == 0 else f"shape {values.shape}",
            remedy=f"Give {name} as a list or an array.",
        )
    # An empty list has no numbers that would say what it is of.
    return values if len(values) or values.dtype == np.bool_ else values.astype(np.int64)


def _shards(source: Source, rows: np.ndarray | None) -> Shards:
    stored = getattr(source, "shards", None)
    manifest = getattr(source, "manifest", None)
    if stored is None or manifest is None:
        raise UsageError(
            "order='sharded' reads the shards of a converted dataset",
            got=f"{source.location}, which is a {source.kind}",
            remedy="Convert it (wellfed convert), or use order='global'.",
        )
    labels = source.index["label"] if rows is None else source.index["label"][rows]
    mixed = manifest.streams * SHARDED_WINDOW
    if len(labels) > mixed and labels[0] != labels[-1] and bool(np.all(labels[1:] >= labels[:-1])):
        warnings.warn(
            f"order='sharded' mixes about {mixed} samples at a time, and {source.location!r} is stored class by class: "
            "batches will hold few classes. Convert it with --shuffle SEED, or use order='global'.",
            stacklevel=6,  # the call of DataLoader
        )
    return Shards(of_rows=stored, streams=manifest.streams)


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:16]
