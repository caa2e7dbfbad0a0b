"""What a batch holds of each sample beside its pixels: stored fields, and what a transform makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..config import LoaderConfig
from ..errors import ConfigError, UsageError
from ..formats.base import Source
from ..formats.fields import BadValue, mean_sizes, read_values, stored_fields
from .transform import Transform
from .values import as_tensor, collated

if TYPE_CHECKING:
    from .batch import HostBatch

__all__ = ["OWN_FIELDS", "SampleValues", "Samples", "make_samples"]

OWN_FIELDS = ("image", "class", "index", "key", "box", "flip", "valid")
"""What the loader itself knows of each sample; a stored field of one of these names is "stored:NAME"."""

STORED = "stored:"

_OF_IMAGES = ("image", "box", "flip")


@dataclass(kw_only=True)
class SampleValues:
    """Values of the places of a batch that is being made.

    Attributes:
        columns: of each stored field, by the name it is asked for: a value for each place.
        failed: places that hold no sample.
        filled: places that take another's sample, and whose.
        results: what the transform gave for each place.
    """

    columns: dict[str, list[Any]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    filled: dict[int, int] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What is asked for of each sample.

    Threads: `read` and `apply` may run in several threads on different places of one batch, unless the transform draws
    from global generators.
    Pickling: as the transform does.

    Attributes:
        fields: `LoaderConfig.fields`.
        stored: the stored field that each other name means.
        with_image: whether any of the fields needs the image to be read.
        transform: of each sample, or None.
        deferred: the transform is run by `CallerBackend`, not by the decoder.
        stored_bytes: that the stored fields take, a sample.
    """

    fields: tuple[str, ...] | None = None
    stored: Mapping[str, str] = field(default_factory=dict)
    with_image: bool = True
    transform: Transform | None = None
    deferred: bool = False
    stored_bytes: float = 0.0

    @property
    def hands_over_image(self) -> bool:
        """Whether the decoded pixels are part of the batch, not only what a transform makes of them."""
        return self.with_image and self.transform is None and (self.fields is None or "image" in self.fields)

    def begin(self, count: int) -> SampleValues:
        """Values still to be read, of n places."""
        return SampleValues(
            columns={name: [None] * count for name in self.stored},
            results=[None] * count if self.transform is not None else [],
        )

    def read(self, batch: HostBatch, source: Source, start: int, stop: int) -> dict[int, str]:
        """Read the stored fields of places start..stop-1.

        Returns:
            The places whose bytes are not what a field's type says, with the reason.

        Raises:
            DamagedDatasetError: a sample's bytes are missing.
        """
        broken: dict[int, str] = {}
        if not self.stored:
            return broken
        names = tuple(dict.fromkeys(self.stored.values()))
        found = read_values(source, batch.task.rows[start:stop], names)
        for given, name in self.stored.items():
            batch.values.columns[given][start:stop] = found[name]
            for place, value in enumerate(found[name], start):
                if isinstance(value, BadValue):
                    broken[place] = value.reason
        return broken

    def apply(self, batch: HostBatch, source: Source, start: int, stop: int) -> None:
        """Run the transform on places start..stop-1, but for those that failed.

        Raises:
            TransformError: it raised.
        """
        if self.transform is None:
            return
        places = [place for place in range(start, stop) if place not in batch.values.failed]
        samples = ((place, self._sample(batch, place)) for place in places)
        self.transform.run(batch, source, places, samples)

    def _sample(self, batch: HostBatch, place: int) -> Any:
        if self.fields is None:
            return batch.images[place]
        return {name: self._value(batch, name, place) for name in self.fields if name != "valid"}

    def _value(self, batch: HostBatch, name: str, place: int) -> Any:
        if name in self.stored:
            value = batch.values.columns[name][place]
            tensor = as_tensor(value) if isinstance(value, np.ndarray) else None
            return value if tensor is None else tensor
        value = _own(batch, name)[place]
        # A box of its own: what the transform writes into must not be the batch's.
        return value if name == "image" else value.clone() if value.dim() else value.item()

    def finish(self, batch: HostBatch, *, pin: bool) -> None:
        """Make the batch's values of those of its places.

        Raises:
            UsageError: the transform's dictionaries differ in their keys.
        """
        values = batch.values
        if self.transform is not None:
            results = [values.results[values.filled.get(place, place)] for place in range(len(batch.task.rows))]
            batch.given = self._collated_results(results, pin)
        else:
            batch.given = {
                name: collated([column[values.filled.get(place, place)] for place in range(len(column))], pin=pin)
                for name, column in values.columns.items()
            }
        batch.values = SampleValues()
        if not self.hands_over_image:
            # Not handed over, so not to be moved between processes either.
            batch.images = batch.images[:, :, :0, :0].clone()

    def _collated_results(self, results: Sequence[Any], pin: bool) -> dict[str, Any]:
        if self.fields is None and not isinstance(results[0], dict):
            return {"image": collated(results, pin=pin, channels_last=True)}
        names = list(results[0]) if isinstance(results[0], dict) else None
        for result in results:
            if not isinstance(result, dict) or names is None or set(result) != set(names):
                raise UsageError(
                    "a transform of samples that are dictionaries must give dictionaries with the same keys for all",
                    got=f"keys {sorted(map(str, result))}" if isinstance(result, dict) else type(result).__name__,
                    remedy="Return a dictionary with the same keys for every sample.",
                )
        columns = {
            name: collated([result[name] for result in results], pin=pin, channels_last=name == "image")
            for name in names or ()
        }
        return columns if self.fields is not None else {"image": columns}

    def select(self, batch: HostBatch) -> dict[str, Any]:
        """What the loop gets of a finished batch, by field."""
        if self.transform is not None:
            if self.fields is None:
                return {**batch.given, "class": batch.labels}
            return {**batch.given, "valid": batch.valid} if "valid" in self.fields else batch.given
        return {
            name: batch.given[name] if name in self.stored else _own(batch, name)
            for name in self.fields or ("image", "class")
        }


def _own(batch: HostBatch, name: str) -> torch.Tensor:
    tensors = {
        "image": batch.images,
        "class": batch.labels,
        "index": batch.rows,
        "key": batch.keys,
        "box": batch.boxes,
        "flip": batch.flips,
        "valid": batch.valid,
    }
    return tensors[name]


def make_samples(source: Source, config: LoaderConfig, transform: Callable[..., Any] | None = None) -> Samples:
    """What the arguments of a loader ask for of each sample.

    Raises:
        UsageError: a dataset without images or classes is to be loaded as pairs, or its image is asked for.
        ConfigError: a field that the dataset does not have.
    """
    there = stored_fields(source)
    if config.fields is None:
        for name in ("image", "class"):
            if name not in there:
                raise UsageError(
                    f"pairs of images and labels need a dataset with the fields image and class; {source.location} has "
                    f"no {name}",
                    got=f"its fields {', '.join(there)}",
                    remedy=f"Name those that you want: fields={tuple(there)!r}.",
                )
    fields = config.fields or ("image", "class")
    stored = {name: name.removeprefix(STORED) for name in fields if name not in OWN_FIELDS}
    for name in fields:
        needs = stored.get(name, "image" if name in _OF_IMAGES else "class" if name == "class" else None)
        if needs is not None and needs not in there:
            own = [each for each in OWN_FIELDS[2:] if each not in _OF_IMAGES or "image" in there]
            raise ConfigError(
                f"the fields of a batch are those of the dataset {source.location}, {', '.join(there)}, and the "
                f"loader's own, {', '.join(own)}",
                got=name,
                remedy="Name one of those.",
            )
    with_image = any(name in _OF_IMAGES for name in fields)
    chosen = None
    if transform is not None:
        chosen = Transform.of(transform, config)
    settings = config.settings
    aside = settings.num_workers > 0 and (settings.backend == "processes" or (chosen is not None and chosen.has_own))
    return Samples(
        fields=config.fields,
        stored=stored,
        with_image=with_image,
        transform=chosen,
        deferred=chosen is not None and not aside,
        stored_bytes=mean_sizes(source, tuple(stored.values())) if stored else 0.0,
    )
