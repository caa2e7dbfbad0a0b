"""The measured training loop: samples/s, waits for data, device utilization and memory over one window."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import UsageError
from .accelerator import Accelerator, DeviceWindow, batch_parts
from .host_memory import HostMemory
from .steps import Step

__all__ = ["Window", "measure"]


@dataclass(frozen=True, kw_only=True)
class Window:
    """One measured run; raw values first, so that any statistic can be taken later.

    Attributes:
        batch_size: of the first batch.
        steps, samples: done in the window.
        wall_seconds: between the two synchronizations.
        wait_seconds: for each step, how long the loop waited for its batch (and its copy to be issued).
        step_seconds: for each step, how long the step's call took: launching, and waiting for a full queue.
        exhausted: the batches ended before the time did.
        host_rss_bytes, host_rss_seconds: resident unshared memory of this process and children, at about 2 Hz, and when
            in the window.
        The others are those of `DeviceWindow`.
    """

    batch_size: int
    steps: int
    samples: int
    wall_seconds: float
    wait_seconds: tuple[float, ...]
    step_seconds: tuple[float, ...]
    exhausted: bool
    util_percent: float | None
    util_reason: str | None
    util_source: str | None
    util_samples: tuple[float, ...]
    peak_bytes: int | None
    memory_reason: str | None
    memory_source: str | None
    memory_samples: tuple[int, ...]
    other_process_bytes: int | None
    torch_peak_reserved_bytes: int | None
    host_rss_bytes: tuple[int, ...]
    host_rss_seconds: tuple[float, ...]

    @property
    def samples_per_second(self) -> float:
        """Samples over wall time between the two synchronizations."""
        return self.samples / self.wall_seconds if self.wall_seconds > 0 else 0.0

    @property
    def wait_share(self) -> float:
        """Share of the wall time spent waiting for data, 0..1."""
        return min(1.0, sum(self.wait_seconds) / self.wall_seconds) if self.wall_seconds > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; times rounded to the microsecond."""
        result: dict[str, Any] = asdict(self)
        for name, value in result.items():
            if isinstance(value, tuple):
                result[name] = [round(v, 6) if isinstance(v, float) else v for v in value]
        result["samples_per_second"] = self.samples_per_second
        result["wait_share"] = self.wait_share
        return result


def measure(
    step: Step,
    batches: Iterator[Any],
    accelerator: Accelerator,
    *,
    seconds: float,
    max_steps: int | None = None,
    go_on: Callable[[int, float], bool] | None = None,
    clock: Callable[[], float] = time.perf_counter,
    on_step: Callable[[int, float], None] | None = None,
    host_memory: HostMemory | None = None,
) -> Window:
    """Train on batches for at least `seconds`, synchronized at both ends.

    Args:
        step: from `build_step`.
        batches: pairs or dictionaries; they are taken to the device where they are not on it yet. What it holds
            ready when the window starts counts as the window's: start it warm.
        accelerator: the device of the step.
        seconds: no step is begun after them; at least one step is run.
        max_steps: end after that many steps, if that comes first.
        go_on: instead of `seconds`, says after so many steps and seconds whether another step is begun.
        clock: monotonic seconds; the one the accelerator uses.
        on_step: called after each step with the number of steps done and the seconds since the start.
        host_memory: samples memory; None makes one of this process and its children.

    Raises:
        UsageError: there was no batch at all.
        StepError: the step raised. Running out of device memory passes through as torch raised it.
    """
    waits: list[float] = []
    calls: list[float] = []
    samples = batch_size = 0
    exhausted = False
    memory = HostMemory() if host_memory is None else host_memory
    accelerator.synchronize()
    accelerator.start_window()
    device: DeviceWindow | None = None
    try:
        started = now = clock()
        memory.start(started)
        while not calls or go_on is not None or now - started < seconds:
            if max_steps is not None and len(calls) >= max_steps:
                break
            if go_on is not None:
                if calls and not go_on(len(calls), now - started):
                    break
                now = clock()  # asking may have taken time, which is no waiting for data
            try:
                batch = next(batches)
            except StopIteration:
                exhausted = True
                break
            images, labels = batch_parts(accelerator.copy(batch))
            ready = clock()
            step(images, labels)
            done = clock()
            waits.append(ready - now)
            calls.append(done - ready)
            count = int(images.shape[0])
            batch_size = batch_size or count
            samples += count
            # Drop the batch before waiting for the next, as a training loop's own variables would.
            del batch, images, labels
            memory.sample(done)
            if on_step is not None:
                on_step(len(calls), done - started)
            now = clock() if on_step is not None else done
        accelerator.synchronize()
        finished = clock()
    finally:
        # Also on an error, or the sampling thread would outlive the window.
        device = accelerator.end_window()
    if not calls:
        raise UsageError(
            "a measurement needs at least one batch",
            got="an iterator without one" if exhausted else f"max_steps={max_steps}",
            remedy="Use more data or a smaller batch size.",
        )
    return Window(
        batch_size=batch_size,
        steps=len(calls),
        samples=samples,
        wall_seconds=finished - started,
        wait_seconds=tuple(waits),
        step_seconds=tuple(calls),
        exhausted=exhausted,
        util_percent=device.util_percent,
        util_reason=device.util_reason,
        util_source=device.util_source,
        util_samples=device.util_samples,
        peak_bytes=device.peak_bytes,
        memory_reason=device.memory_reason,
        memory_source=device.memory_source,
        memory_samples=device.memory_samples,
        other_process_bytes=device.other_process_bytes,
        torch_peak_reserved_bytes=device.torch_peak_reserved_bytes,
        host_rss_bytes=tuple(memory.samples_bytes),
        host_rss_seconds=tuple(memory.samples_seconds),
    )
