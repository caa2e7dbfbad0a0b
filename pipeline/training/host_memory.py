"""Memory of this process and its children, cheap enough to be read between training steps.

Resident pages less the shared ones (files mapped, batches in /dev/shm): those come and go with what is read, are
counted once in every process that maps them, and would drown a leak in noise.
"""

from __future__ import annotations

import psutil

__all__ = ["HostMemory"]

PERIOD_SECONDS = 0.5
CHILDREN_PERIOD_SECONDS = 10.0
# Finding children reads all of /proc, milliseconds on a busy machine; reading one process's memory takes 0.05 ms.


class HostMemory:
    """Samples at about 2 Hz, when asked; keeps bytes and the seconds since `start`."""

    def __init__(self) -> None:
        self.samples_bytes: list[int] = []
        self.samples_seconds: list[float] = []
        self._processes: list[psutil.Process] = []
        self._started = 0.0
        self._sampled_at = 0.0
        self._listed_at = 0.0

    def start(self, now: float) -> None:
        """Forget earlier samples and take the first."""
        self.samples_bytes.clear()
        self.samples_seconds.clear()
        self._started = now
        self._list_processes(now)
        self._take(now)

    def sample(self, now: float) -> None:
        """Take a sample where the last is old enough."""
        if now - self._sampled_at < PERIOD_SECONDS:
            return
        if now - self._listed_at >= CHILDREN_PERIOD_SECONDS:
            self._list_processes(now)
        self._take(now)

    def _list_processes(self, now: float) -> None:
        this = psutil.Process()
        self._processes = [this, *this.children(recursive=True)]
        self._listed_at = now

    def _take(self, now: float) -> None:
        total = 0
        for process in list(self._processes):
            try:
                memory = process.memory_info()
                total += memory.rss - memory.shared
            except psutil.NoSuchProcess:
                self._processes.remove(process)
        self.samples_bytes.append(total)
        self.samples_seconds.append(now - self._started)
        self._sampled_at = now
