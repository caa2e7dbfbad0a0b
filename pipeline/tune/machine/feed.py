"""What a measurement takes its batches from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["Feed", "paced"]


class Feed:
    """Batches of a loader without end, epoch after epoch."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.epochs_crossed = 0
        self._iterator: Iterator[Any] = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self.epochs_crossed += 1
            self._iterator = iter(self.loader)
            return next(self._iterator)

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        close = getattr(self.loader, "close", None)
        if close is not None:
            close()


def paced(batches: Iterator[Any], feed: Feed, every: int) -> Iterator[Any]:
    """The batches, with one taken from the feed and thrown away before every so many."""
    for number, batch in enumerate(batches):
        if number % every == 0:
            next(feed)
        yield batch
