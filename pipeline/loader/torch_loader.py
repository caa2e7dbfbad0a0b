"""A loader over a stored dataset as a torch `DataLoader`, for libraries that rebuild the loader they are given.

The Trainer of transformers resumes by `accelerate.skip_first_batches`, which makes a new torch DataLoader of the
dataset and the batch sampler of the old one. Here these two are the numbers of an epoch's batches and what gives the
batch of a number, so that what is left out is never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Dataset, Sampler

from ..errors import UsageError

if TYPE_CHECKING:
    from .images import ImageLoader

__all__ = ["TorchLoader", "as_torch_loader"]


def as_torch_loader(loader: ImageLoader) -> TorchLoader:
    """The same loader as a `torch.utils.data.DataLoader`, for libraries that accept nothing else.

    It gives the same batches of the same epochs, and `len()`, `set_epoch`, `state_dict` and `load_state_dict` are those
    of the loader. `accelerate.skip_first_batches`, and with it the Trainer of transformers, goes on in the middle of an
    epoch without reading what it skips. The loader has its ranks already: a library must not divide it once more
    (Lightning: `use_distributed_sampler=False`; Accelerate on several processes: leave it out of `prepare`).

    Args:
        loader: stays the caller's, who closes it; iterate one of the two at a time.
    """
    return TorchLoader(loader)


class TorchLoader(DataLoader[Any]):
    """See `as_torch_loader`."""

    def __init__(self, loader: ImageLoader) -> None:
        batches = _Batches(loader)
        super().__init__(batches, batch_sampler=_Numbers(loader, batches), collate_fn=_only)
        self.loader = loader

    def set_epoch(self, epoch: int) -> None:
        """As `ImageLoader.set_epoch`."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """As `ImageLoader.state_dict`."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As `ImageLoader.load_state_dict`."""
        self.loader.load_state_dict(state)


class _Batches(Dataset[Any]):
    """The batches of an epoch by their numbers, which must go up by one from wherever they start."""

    def __init__(self, loader: ImageLoader) -> None:
        self.loader = loader
        self._batches: Iterator[Any] | None = None
        self._next = 0

    def __len__(self) -> int:
        """Samples of an epoch over all ranks, as of the dataset of any DataLoader."""
        return self.loader.samples

    def begin(self) -> None:
        self._batches = None

    def __getitem__(self, number: int) -> Any:
        if self._batches is None:
            if number:
                self.loader.skip(number)
            self._batches = iter(self.loader)
            self._next = number
        if number != self._next:
            raise UsageError(
                "a loader divides its batches over the ranks by itself, so they are read one after the other, and "
                f"number {self._next} is next",
                got=f"number {number}",
                remedy="Keep it from being divided once more: with Accelerate leave it out of prepare(), with "
                "Lightning set use_distributed_sampler=False.",
            )
        self._next += 1
        return next(self._batches)


class _Numbers(Sampler[list[int]]):
    """The numbers of an epoch's batches, one at a time."""

    def __init__(self, loader: ImageLoader, batches: _Batches) -> None:
        self._loader = loader
        self._batches = batches
        self.batch_size = loader.batch_size
        self.drop_last = loader.drop_last

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        self._batches.begin()
        for number in range(len(self._loader)):
            yield [number]


def _only(batches: list[Any]) -> Any:
    return batches[0]
