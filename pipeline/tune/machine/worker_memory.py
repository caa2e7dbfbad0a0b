"""Memory of worker processes over a held run, told apart from the training process's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ...hardware.process_memory import anonymous_bytes
from ..statistics import Interval, slope

__all__ = ["NOT_READ", "WorkerMemory", "read_beside", "worker_memory"]


@dataclass(frozen=True)
class WorkerMemory:
    """What the worker processes of a held run kept.

    Attributes:
        slope: bytes/s of all of them together; None where it was not measured, for `reason`.
        processes: how many they were.
        seconds, total_bytes: raw, one value a window.
    """

    slope: Interval | None
    reason: str | None
    processes: int = 0
    seconds: tuple[float, ...] = ()
    total_bytes: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The report's `hold.worker_memory`."""
        line = self.slope
        return {
            "slope_bytes_per_second": None if line is None else line.value,
            "low": None if line is None else line.low,
            "high": None if line is None else line.high,
            "reason": self.reason,
            "processes": self.processes,
            "seconds": list(self.seconds),
            "total_bytes": list(self.total_bytes),
        }


NOT_READ = WorkerMemory(None, "there were no worker processes whose memory could be read")


def worker_memory(seconds: Sequence[float], readings: Sequence[Mapping[int, int]], *, first: int) -> WorkerMemory:
    """The growth of the workers that lived to the end.

    Args:
        seconds: when each reading was made.
        readings: bytes by process id.
        first: readings before this one are kept and left out of the slope, since first caches fill.
    """
    last = set(readings[-1]) if readings else set()
    if not last:
        return NOT_READ
    lived = [(at, sum(found.values())) for at, found in zip(seconds, readings, strict=True) if set(found) == last]
    times, sizes = tuple(at for at, _ in lived), tuple(size for _, size in lived)
    since = seconds[first:]
    late = [pair for pair in lived if since and pair[0] >= since[0]]
    line = slope([at for at, _ in late], [size for _, size in late])
    reason = None if line is not None else f"{len(late)} readings of the same workers are too few"
    return WorkerMemory(line, reason, len(last), times, sizes)


@contextmanager
def read_beside(pids: Iterable[int], found: Callable[[Mapping[int, int]], None]) -> Iterator[None]:
    """Read the processes' memory once in a thread while the block runs: the kernel takes milliseconds for each.

    Args:
        found: is given bytes by process id, without those that ended, when the block ends.
    """
    read: dict[int, int] = {}

    def take() -> None:
        for pid in pids:
            size = anonymous_bytes(pid)
            if size is not None:
                read[pid] = size

    thread = threading.Thread(target=take, name="wellfed-worker-memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        found(read)
