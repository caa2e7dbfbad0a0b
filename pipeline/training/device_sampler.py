"""GPU-Util and memory over a window, from NVML, in a sampling thread; the NVML device comes in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..hardware.nvml import GpuProcess, NvmlDevice, Reading
from .accelerator import DeviceWindow

__all__ = ["DeviceSampler", "MemoryReader"]

PERIOD_SECONDS = 0.04
# 25 Hz: at least the 20 Hz that memory's peak is defined by.

DRAIN_PERIOD_SECONDS = 0.5
# The driver's utilization buffer holds about 70 to 120 samples; on an H200 one every 200 ms.

LOOK_BACK_US = 2_000_000

OWN_PROCESSES_PERIOD_SECONDS = 0.5

MemoryReader = Callable[[], Reading]
"""Bytes in use on the device by all processes."""


@dataclass
class _Collected:
    util: list[tuple[int, float]] = field(default_factory=list)
    util_drained: bool = False
    util_reason: str | None = None
    polled: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    memory_reason: str | None = None
    others: int | None = None
    others_now: int = 0
    others_counted: bool = False


class DeviceSampler:
    """Samples one device between `start` and `stop`.

    Utilization comes from the driver's sample buffer. A sample covers the time since the one before it, so one that
    began before the window is left out. Only where the driver has none is GPU-Util polled at 25 Hz, and
    the source then says so. An error in mid-window ends that reading with its reason; what was read before does not
    stand for the whole window, so the value is None.

    Memory is what NVML says is in use, less other processes'. Where NVML names no process of ours (containers and
    virtual machines hide them) or not their sizes, what was in use before this process took any is taken off instead.

    Args:
        device: the NVML device; None where there is none.
        device_reason: why there is none.
        memory_used: reads bytes in use; by default NVML's.
        memory_source: its name for the reader of a report.
        own_pids: this process and its children, as NVML would number them.
        baseline_bytes: in use before this process took device memory; None where it had already.
        now_us: microseconds since 1970, the clock of NVML's samples.
    """

    def __init__(
        self,
        device: NvmlDevice | None,
        *,
        device_reason: str | None = None,
        memory_used: MemoryReader | None = None,
        memory_source: str = "NVML used bytes at 25 Hz",
        own_pids: Callable[[], frozenset[int]],
        baseline_bytes: int | None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        self._device = device
        self._device_reason = device_reason or "there is no NVML device"
        self._memory_used = memory_used or self._nvml_memory_used
        self._memory_source = memory_source
        self._own_pids = own_pids
        self._baseline = baseline_bytes
        self._now_us = now_us
        self._period = period_seconds
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._data = _Collected()
        self._start_us = 0
        self._last_us = 0
        self._pids: frozenset[int] = frozenset()

    def start(self) -> None:
        """Begin a window."""
        self._stop.clear()
        self._data = _Collected()
        self._start_us = self._now_us()
        # The sample before the window tells when the first one in it began.
        self._last_us = self._start_us - LOOK_BACK_US
        self._pids = self._own_pids()
        self.sample(drain=True)
        self._thread = threading.Thread(target=self._run, name="wellfed-device-sampler", daemon=True)
        self._thread.start()

    def stop(self, *, torch_peak_reserved_bytes: int | None = None) -> DeviceWindow:
        """End the window and say what was seen in it."""
        end_us = self._now_us()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.sample(drain=True)
        return self._window(end_us, torch_peak_reserved_bytes)

    def _run(self) -> None:
        count = 0
        every = max(1, round(DRAIN_PERIOD_SECONDS / self._period))
        while not self._stop.wait(self._period):
            count += 1
            self.sample(drain=count % every == 0)

    def sample(self, *, drain: bool) -> None:
        """Take one sample of memory; `drain` also empties the utilization buffer and lists the processes."""
        data = self._data
        if self._device is not None:
            if drain:
                self._drain_util()
                self._count_others()
            if data.util_reason is not None:
                rate = self._device.util_rate()
                if rate.value is not None:
                    data.polled.append(rate.value)
        used = self._memory_used()
        if used.value is None:
            data.memory_reason = used.reason
        else:
            data.memory.append(max(0, used.value - self._taken_off()))

    def _drain_util(self) -> None:
        if self._device is None or self._data.util_reason is not None:
            return
        found = self._device.util_samples(self._last_us)
        if found.value is None:
            self._data.util_reason = found.reason
            return
        self._data.util_drained = True
        for sample in found.value:
            self._data.util.append((sample.timestamp_us, sample.percent))
            self._last_us = max(self._last_us, sample.timestamp_us)

    def _count_others(self) -> None:
        if self._device is None:
            return
        processes: list[GpuProcess] | None = self._device.processes().value
        data = self._data
        mine = [p for p in processes or [] if p.pid in self._pids]
        others = [p for p in processes or [] if p.pid not in self._pids]
        data.others_counted = (
            bool(mine) and mine[0].used_bytes is not None and all(p.used_bytes is not None for p in others)
        )
        if data.others_counted:
            data.others_now = sum(p.used_bytes or 0 for p in others)
            data.others = max(data.others or 0, data.others_now)

    def _taken_off(self) -> int:
        if self._data.others_counted:
            return self._data.others_now
        return self._baseline or 0

    def _nvml_memory_used(self) -> Reading:
        if self._device is None:
            return Reading(None, self._device_reason)
        found = self._device.memory()
        return found if found.value is None else Reading(found.value[1])

    def _window(self, end_us: int, torch_peak_reserved_bytes: int | None) -> DeviceWindow:
        data = self._data
        percent, reason, source, samples = self._util(end_us)
        peak = max(data.memory) if data.memory and data.memory_reason is None else None
        memory_reason = None if peak is not None else data.memory_reason or "no sample was taken"
        if data.others_counted:
            taken_off: str = "less other processes as NVML lists them"
        elif self._baseline is not None:
            taken_off = "less what was in use before this process took any (NVML does not list this process here)"
        else:
            taken_off = "of all processes (NVML does not list this process here, and it already held memory)"
        return DeviceWindow(
            util_percent=percent,
            util_reason=reason,
            util_source=source,
            util_samples=samples,
            peak_bytes=peak,
            memory_reason=memory_reason,
            memory_source=None if peak is None else f"{self._memory_source}, {taken_off}",
            memory_samples=tuple(data.memory),
            other_process_bytes=data.others if data.others_counted else self._baseline,
            torch_peak_reserved_bytes=torch_peak_reserved_bytes,
        )

    def _inside(self, end_us: int) -> list[float]:
        """Percentages whose time lies in the window; those that end in it where none lies in it whole."""
        samples = sorted(self._data.util)
        ends_inside: list[float] = []
        whole: list[float] = []
        before: int | None = None
        for at, percent in samples:
            if self._start_us < at <= end_us:
                ends_inside.append(percent)
                # A tenth of the period is forgiven: the driver's clock ticks unevenly.
                if before is None or before >= self._start_us - (at - before) / 10:
                    whole.append(percent)
            before = at
        return whole or ends_inside

    def _util(self, end_us: int) -> tuple[float | None, str | None, str | None, tuple[float, ...]]:
        data = self._data
        if self._device is None:
            return None, self._device_reason, None, ()
        inside = self._inside(end_us)
        if data.util_reason is None:
            if inside:
                return sum(inside) / len(inside), None, "NVML GPU-Util sample buffer", tuple(inside)
            return None, "the window is shorter than NVML's sampling period", None, ()
        if data.util_drained:
            return None, f"NVML failed in mid-window: {data.util_reason}", None, tuple(inside)
        if data.polled:
            mean = sum(data.polled) / len(data.polled)
            return mean, None, f"NVML GPU-Util polled at 25 Hz (no buffer: {data.util_reason})", tuple(data.polled)
        return None, data.util_reason, None, ()
