"""ImageLoader: epochs, position and delivery over a stored dataset; decoding itself is a backend's."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..config import LoaderConfig
from ..errors import ConfigError, UsageError
from ..formats.base import Source
from ..sampling import BatchPlan, EpochRows, Sampling, cut_batches, steps_left
from .backend import Backend, BatchStream, open_backend, worker_pids
from .batch import BatchDecoder, BatchTask, Decoded, HostBatch, Side
from .crops import drawn_ahead
from .device import check_device, deliver
from .finish import finished_bytes, make_finish
from .memory import check_host_memory, host_memory_available
from .placement import place_workers
from .ranks import check_ranks
from .readahead import announced, prepare
from .samples import make_samples
from .selection import make_sampling
from .torch_names import TorchNames
from .transform import BatchTransform
from .values import opened

__all__ = ["ImageLoader"]

Batch = Any
"""(images, labels), a dictionary by field, or what the user's transform of batches makes of either."""


@dataclass(frozen=True)
class _Place:
    """An epoch, and how many of its samples are consumed over all ranks."""

    epoch: int
    position: int = 0


class ImageLoader(TorchNames):
    """Loads batches of a stored dataset, in an order, with crops and flips that depend on seed and epoch alone.

    Each iteration is the next epoch, also after one that was left early, unless `load_state_dict` says otherwise; one
    that no batch was taken from does not count.
    A batch is `(images, labels)`: uint8 of shape (b, 3, S, S) in channels-last memory and int64 of shape (b,), on the
    configured device; or, with `fields`, a dictionary of: `image` and `class` as above, `index` (row number, int64),
    `key` (int64), `box` (x, y, width, height in the EXIF-oriented picture; int32, shape (b, 4)), `flip` (bool),
    `valid` (bool; False for repeats that pad the last batch, and for places filled instead of a corrupt sample), and
    the fields that the dataset has itself, collated as `values.collated` says.
    A batch belongs to its receiver: it is never written again.

    With `device_augment`, `dtype` and `normalize` images come augmented, normalized and of that dtype; see
    `augment.output.ImageOutput`.

    With persistent workers the next epoch's first batches are decoded while the last ones of this epoch are used.

    Args:
        source: the dataset; the loader closes it only when told to by `owns_source`.
        config: everything else.
        owns_source: close the source together with the loader.
        follows_ranks: refuse to iterate where torch.distributed was set up after the loader and says other ranks.
        subset: keys (whole numbers) or a mask (bool, shape (len(source),)) of the samples that are used.
        weights: how often each row is drawn relative to the others, shape (len(source),); an epoch has as many samples
            as are used.
        transform, batch_transform: the user's functions of samples and of batches, see `DataLoader`.

    Raises:
        UsageError: an empty dataset, or with tail "drop" one that is smaller than a batch over all ranks; arguments
            that do not go together.
        ConfigError: a subset, weights or fields that do not fit the dataset; a transform that is no function.
        DeviceError: the device cannot be used.
        ResourceError: memory does not hold two batches.
    """

    def __init__(
        self,
        source: Source,
        config: LoaderConfig,
        *,
        owns_source: bool = False,
        follows_ranks: bool = False,
        subset: Any = None,
        weights: Any = None,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[..., Any] | None = None,
    ) -> None:
        self._sampling = make_sampling(source, config, subset=subset, weights=weights)
        prepare(source, config)
        self.dataset = source
        self.config = config
        self._follows_ranks = follows_ranks
        self.skipped = 0
        """Corrupt samples whose places were filled, in the batches handed over so far (on_error="skip")."""
        self.decoded: dict[Side, Decoded] = {"cpu": Decoded(), "gpu": Decoded()}
        """What the CPU path, and what DALI or nvJPEG decoded, in the batches handed over so far."""
        self._device = check_device(config.device)
        self._finish = make_finish(config)
        self._fields = make_samples(source, config, transform)
        self._batch_transform = None
        if batch_transform is not None:
            self._batch_transform = BatchTransform.of(batch_transform, config, self._device)
        self._samples = self._sampling.samples
        if config.tail == "drop" and self._steps(0, 0) == 0:
            # Says that the dataset is too small now and not in the first epoch.
            next(_cut(self._sampling.epoch(0), 0, config, self._sampling))
        placement = place_workers(config, self._device)
        self.worker_cores = placement.words
        """Which cores decoding keeps to, and why, in words."""
        decoder = BatchDecoder(
            source=source,
            seed=config.seed,
            augment=config.augment,
            decode_mode=config.decode,
            image_size=config.image_size,
            on_error=config.on_error,
            pin_memory=config.settings.pin_memory and torch.cuda.is_available(),
            samples=self._fields,
            cores=placement.cores,
        )
        self._draw_crops = decoder.draw_crops
        batch_size = config.settings.batch_size
        if config.tail != "pad":
            batch_size = min(batch_size, self._samples)
        check_host_memory(
            batch_size=batch_size,
            batch_bytes=decoder.batch_bytes(batch_size) + finished_bytes(config, batch_size),
            available_bytes=host_memory_available(),
        )
        self._backend: Backend = open_backend(decoder, config)
        self._place = _Place(0)
        self._begun = False
        self._stream: BatchStream | None = None
        self._stream_place: _Place | None = None
        self._iteration: object | None = None
        # Also runs at the end of the program, while workers can still be told to end.
        self._closing = weakref.finalize(self, _close, self._backend, source if owns_source else None)

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self._steps(0, self.config.rank)

    @property
    def samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self._samples

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or that the next iteration begins."""
        return self._place.epoch

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the decoding processes; empty before they start and where decoding is in this process."""
        return worker_pids(self._backend)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of this epoch, from its start.

        A position that `load_state_dict` set in the same epoch is kept, so that the usual loop over epochs that calls
        this at the top of each resumes in the middle.

        Raises:
            ConfigError: not a whole number of at least 0.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ConfigError("an epoch is a whole number from 0 on", got=epoch, remedy="Count epochs from 0.")
        if self._begun or epoch != self._place.epoch:
            self._iteration = None
            self._place = _Place(epoch)
            self._begun = False

    def skip(self, batches: int) -> None:
        """Leave out the first batches of the next iteration's epoch, without reading them.

        Raises:
            ConfigError: not a whole number from 0 to len(self).
        """
        if isinstance(batches, bool) or not isinstance(batches, int) or not 0 <= batches <= len(self):
            raise ConfigError(
                f"the batches to skip are a whole number from 0 to {len(self)}, those of an epoch",
                got=batches,
                remedy="Take the rest of the steps done, divided by len(loader).",
            )
        step = self.config.settings.batch_size * self.config.world_size
        self._iteration = None
        self._place = _Place(self._place.epoch + self._begun, min(batches * step, self._samples))
        self._begun = False

    def __iter__(self) -> Iterator[Batch]:
        if not self._closing.alive:
            raise UsageError("a closed loader cannot be iterated", remedy="Make a new one.")
        if self._follows_ranks:
            check_ranks(self.config.rank, self.config.world_size)
        if self._begun:
            self._place = _Place(self._place.epoch + 1)
            self._begun = False
        self._iteration = token = object()
        if self._stream is None or self._stream_place != self._place:
            self._discard_stream()
            self._stream_place = self._place
            tasks = _tasks(self._sampling, self._place, self.config)
            if self._fields.with_image:
                tasks = drawn_ahead(tasks, self.dataset, self._draw_crops)
            self._stream = self._backend.run(announced(tasks, self.dataset, self.config))
        return self._iterate(self._place, self._stream, token)

    def _iterate(self, place: _Place, stream: BatchStream, token: object) -> Iterator[Batch]:
        steps = self._steps(place.position, self.config.rank)
        delivered = deliver(_Limited(stream, steps), self._device, self._fields.select, self._finish)
        ended = False
        try:
            for _ in range(steps):
                if self._iteration is not token:
                    raise UsageError(
                        "a loader is iterated by one loop at a time, and since this one began another did, or "
                        "set_epoch, load_state_dict or close was called",
                        remedy="Make a second loader for a second loop.",
                    )
                # Not in __iter__: Lightning calls that once more than there are epochs.
                self._begun = True
                batch, tensors = next(delivered)
                self._advance(place.epoch, batch)
                yield self._present(batch, tensors)
            ended = True
        finally:
            if self._iteration is token:
                self._end_iteration(place.epoch, ended)

    def _advance(self, epoch: int, batch: HostBatch) -> None:
        self.skipped += batch.skipped
        self.decoded[batch.side].add(batch)
        after = batch.task.position_after
        # Rank 0 has a batch wherever any rank has one, so this is the end of the epoch for all of them.
        if self._steps(after, 0) == 0:
            self._move(_Place(epoch + 1))
        else:
            self._place = _Place(epoch, after)
            # The stream stands where no iteration can begin until the epoch is through.
            self._stream_place = None

    def _end_iteration(self, epoch: int, ended: bool) -> None:
        self._iteration = None
        if ended:
            self._move(_Place(epoch + 1))
        else:
            self._discard_stream()
        if not self.config.settings.persistent_workers:
            self._discard_stream()
            self._backend.close()

    def _move(self, place: _Place) -> None:
        self._place = self._stream_place = place
        self._begun = False

    def _discard_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = self._stream_place = None

    def _steps(self, position: int, rank: int) -> int:
        return _steps(self._samples, position, rank, self.config)

    def _present(self, batch: HostBatch, values: dict[str, Any]) -> Batch:
        values = opened(values)
        given = values if self.config.fields else (values["image"], values["class"])
        return given if self._batch_transform is None else self._batch_transform(given, batch.task)

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch comes from, in JSON's types.

        The position counts samples of the epoch over all ranks, up to the last batch handed over, so a state loads
        with any batch size, number of workers, backend and number of ranks; ranks hold the same after equal steps.
        After the last batch of an epoch it is the start of the next.
        """
        return {
            "seed": self.config.seed,
            "shuffle": self.config.shuffle,
            "sampling": self._sampling.identity,
            "epoch": self._place.epoch,
            "position": self._place.position,
            "fingerprint": self.dataset.fingerprint,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration begin where the state was taken.

        Raises:
            ConfigError: not such a state, or one of another dataset, seed, shuffle, order, subset or weights.
        """
        known = self.state_dict()
        if not isinstance(state, Mapping) or set(state) != set(known):
            raise ConfigError(
                f"a loader's state holds exactly {', '.join(known)}",
                got=sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__,
                remedy="Give what state_dict() returned.",
            )
        for name, what in (
            ("fingerprint", "dataset"),
            ("seed", "seed"),
            ("shuffle", "shuffle"),
            ("sampling", "order, subset and weights"),
        ):
            if state[name] != known[name]:
                raise ConfigError(
                    f"a state can only be loaded with the {what} it was taken with ({name} here: {known[name]!r})",
                    got=state[name],
                    remedy=f"Make the loader with the same {what}, or start without the state.",
                )
        for name, high in (("epoch", None), ("position", self._samples)):
            value = state[name]
            if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (high and value > high):
                raise ConfigError(
                    f"{name} of a state must be a whole number from 0" + (f" to {high}" if high else ""),
                    got=value,
                    remedy="Give what state_dict() returned.",
                )
        self._iteration = None
        self._begun = False
        self._place = _Place(state["epoch"], state["position"])

    def close(self) -> None:
        """End all workers; nothing can be iterated afterwards. May be called more than once."""
        self._iteration = None
        self._stream = self._stream_place = None
        self._closing()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError(
            "a loader has workers and cannot be copied or pickled",
            got=f"a loader over {self.dataset.location}",
            remedy="Make it in the process that uses it; state_dict() carries its place over.",
        )

    def __enter__(self) -> ImageLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Limited:
    """The next batches of a stream that goes on through the following epochs."""

    def __init__(self, stream: BatchStream, batches: int) -> None:
        self._stream = stream
        self._left = batches

    def __iter__(self) -> Iterator[HostBatch]:
        return self

    def __next__(self) -> HostBatch:
        if self._left == 0:
            raise StopIteration
        self._left -= 1
        return next(self._stream)

    def ready(self) -> bool:
        return self._left > 0 and self._stream.ready()

    def close(self) -> None:
        self._stream.close()


def _tasks(sampling: Sampling, place: _Place, config: LoaderConfig) -> Iterator[BatchTask]:
    """The tasks from this place on: to the end of the epoch, or through all epochs with persistent workers."""
    endless = config.settings.persistent_workers and _steps(sampling.samples, 0, config.rank, config) > 0
    while True:
        for plan in _cut(sampling.epoch(place.epoch), place.position, config, sampling):
            yield BatchTask(
                epoch=place.epoch,
                rows=plan.rows,
                valid=plan.valid,
                position_after=plan.position_after,
                repeats=plan.repeats,
            )
        if not endless:
            return
        place = _Place(place.epoch + 1)


def _cut(epoch: EpochRows, position: int, config: LoaderConfig, sampling: Sampling) -> Iterator[BatchPlan]:
    return cut_batches(
        epoch.rows,
        repeats=epoch.repeats,
        share=sampling.share,
        position=position,
        batch_size=config.settings.batch_size,
        rank=config.rank,
        world_size=config.world_size,
        tail=config.tail,
    )


def _steps(samples: int, position: int, rank: int, config: LoaderConfig) -> int:
    return steps_left(
        samples,
        position=position,
        batch_size=config.settings.batch_size,
        world_size=config.world_size,
        rank=rank,
        tail=config.tail,
    )


def _close(backend: Backend, source: Source | None) -> None:
    backend.close()
    if source is not None:
        source.close()
