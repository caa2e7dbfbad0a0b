"""A simulated accelerator: stands in where there is no GPU, and behaves as one does.

A step returns after its launch time; its work queues up to a bounded depth, after which the launching thread waits;
`synchronize` waits for all of it; utilization is busy over wall time; memory has its own ledger and runs out.

Launching is slept, not computed: it takes no CPU and releases the GIL. A real launching thread holds the GIL for most
of that time and takes that share of one core (at the tuned batch sizes of the preset `simulated` 5 to 25% of a core),
so the simulation is a little kinder to a loader that shares the process. The copy to the device is free: on a real
card it runs on its own engine, beside the step.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..errors import DeviceError
from .accelerator import DeviceWindow, is_out_of_memory
from .sharing import Sharers

__all__ = ["MODELS", "PRESETS", "Preset", "SimulatedAccelerator", "SimulatedModel", "SimulatedStep"]

SAMPLE_PERIOD_SECONDS = 0.1
QUEUE_DEPTH = 2
# CUDA queues about 1,024 launches; ResNet-50's eager step makes about 500.


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One simulated card.

    Attributes:
        samples_per_second: of ResNet-50, bf16, 224 pixels, at batch sizes large enough not to be launch bound.
        memory_bytes: of the card.
        launch_seconds: what the launching thread needs for one eager ResNet-50 step, whatever its batch size.
    """

    name: str
    label: str
    samples_per_second: float
    memory_bytes: int
    launch_seconds: float


PRESETS: Mapping[str, Preset] = {
    # A small card, chosen so that two ordinary CPU cores can feed it original JPEGs.
    "simulated": Preset(
        name="simulated",
        label="simulated small card",
        samples_per_second=600.0,
        memory_bytes=8 * 2**30,
        launch_seconds=0.015,
    ),
    # One H200 with 16 slow cores, torch 2.11, eager: 4,677 img/s at batch 256; 28 to 30 ms for a step of batch 16 or
    # 64, where launches bind (531 and 2,234 img/s).
    "h200": Preset(
        name="h200",
        label="simulated H200",
        samples_per_second=4600.0,
        memory_bytes=141 * 10**9,
        launch_seconds=0.029,
    ),
}


@dataclass(frozen=True, kw_only=True)
class SimulatedModel:
    """A reference model relative to ResNet-50, at 224 pixels.

    Attributes:
        speed: samples/s over ResNet-50's.
        launches: launch time over ResNet-50's.
        parameters: of the model with 1,000 classes.
        sample_bytes: activations kept for the backward pass, bf16, for one sample.
    """

    speed: float
    launches: float
    parameters: int
    sample_bytes: int


# Measured on the same H200 at batch 256, and launch time at batch 16: 4,677, 12,870 and 2,283 img/s; 30.3, 10.8 and
# 39.9 ms. Bytes of a sample are the slope of torch's peak reserved memory over the batch size (16 or 64 to 256).
MODELS: Mapping[str, SimulatedModel] = {
    "resnet50": SimulatedModel(speed=1.0, launches=1.0, parameters=25_557_032, sample_bytes=48 * 2**20),
    "resnet18": SimulatedModel(speed=12.7 / 4.65, launches=0.36, parameters=11_689_512, sample_bytes=15 * 2**20),
    "vit_b_16": SimulatedModel(speed=0.49, launches=1.32, parameters=86_567_656, sample_bytes=68 * 2**20),
}

CLOCK_RESOLUTION_SECONDS = 1e-9

CONTEXT_BYTES = 769 * 2**20
# What a process holds on that H200 beside torch's reserved memory: CUDA context, cuBLAS and cuDNN.

BYTES_PER_PARAMETER = 12
# fp32 weights, gradients and SGD's momentum.


class SimulatedAccelerator:
    """See the module; implements `Accelerator`.

    Args:
        preset: a name in `PRESETS` (either form: "h200" or "simulated:h200").
        clock: monotonic seconds.
        sleep: waits for that many seconds by the same clock.

    Raises:
        DeviceError: an unknown preset.
    """

    kind: Literal["simulated"] = "simulated"
    torch_device = "cpu"

    def __init__(
        self,
        preset: str | Preset = "simulated",
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if isinstance(preset, str):
            known = PRESETS.get(preset.removeprefix("simulated:"))
            if known is None:
                raise DeviceError(
                    f"a simulated device's preset is one of {', '.join(sorted(PRESETS))}",
                    got=preset,
                    remedy="Write simulated or simulated:h200.",
                )
            preset = known
        self.preset = preset
        self._clock = clock
        self._sleep = sleep
        self._pending: deque[float] = deque()
        self._busy_until = clock()
        self._intervals: deque[tuple[float, float]] = deque()
        self._used = CONTEXT_BYTES
        self._freed: deque[int] = deque()
        self._window_peak = self._used
        self._resident: dict[int, int] = {}
        self._window_start: float | None = None
        self._memory_samples: list[int] = []
        self._memory_sampled_at = 0.0

    @property
    def name(self) -> str:
        return "simulated" if self.preset.name == "simulated" else f"simulated:{self.preset.name}"

    @property
    def memory_total_bytes(self) -> int:
        return self.preset.memory_bytes

    @property
    def used_bytes(self) -> int:
        """What the ledger holds now."""
        # Tensors die in any thread, even inside the garbage collector: their bytes arrive by an atomic append.
        while self._freed:
            self._used -= self._freed.popleft()
        return self._used

    @property
    def description(self) -> dict[str, Any]:
        return {
            "name": self.preset.label,
            "simulated": True,
            "preset": self.preset.name,
            "resnet50_samples_per_second": self.preset.samples_per_second,
            "resnet50_launch_seconds": self.preset.launch_seconds,
            "memory_bytes": self.preset.memory_bytes,
            "bytes_per_sample": {name: model.sample_bytes for name, model in MODELS.items()},
            "queue_depth_steps": QUEUE_DEPTH,
        }

    def sharers(self) -> Sharers:
        return Sharers(processes=())

    def launch(self, seconds: float) -> None:
        """Spend a step's launch time on the launching thread."""
        if seconds > 0:
            self._wait_until(self._clock() + seconds)

    def enqueue(self, seconds: float) -> None:
        """Queue work of this length; waits while the queue is full."""
        self._retire()
        if len(self._pending) >= QUEUE_DEPTH:
            self._wait_until(self._pending[-QUEUE_DEPTH])
            self._retire()
        start = max(self._clock(), self._busy_until)
        self._busy_until = start + seconds
        self._pending.append(self._busy_until)
        if self._intervals and self._intervals[-1][1] == start:
            start = self._intervals.pop()[0]
        self._intervals.append((start, self._busy_until))

    def synchronize(self) -> None:
        self._wait_until(self._busy_until)
        self._retire()

    def allocate(self, size: int) -> None:
        """Take bytes from the ledger.

        Raises:
            torch.OutOfMemoryError: the card does not hold that much.
        """
        used = self.used_bytes
        if used + size > self.preset.memory_bytes:
            raise torch.OutOfMemoryError(
                f"{self.name} out of memory. Tried to allocate {size / 2**20:.0f} MiB; the card has "
                f"{self.preset.memory_bytes / 2**20:.0f} MiB, of which {used / 2**20:.0f} MiB are in use."
            )
        self._used = used + size
        self._window_peak = max(self._window_peak, self._used)

    def release(self, size: int) -> None:
        """Give bytes back to the ledger; may be called from any thread."""
        self._freed.append(size)

    def copy(self, batch: Any) -> Any:
        """The batch as views that the ledger counts for as long as they live."""
        if isinstance(batch, Mapping):
            return {name: self._resident_view(value) for name, value in batch.items()}
        return tuple(self._resident_view(value) for value in batch)

    def _resident_view(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) in self._resident:
            return value
        size = value.numel() * value.element_size()
        self.allocate(size)
        view = value.detach()
        self._resident[id(view)] = size
        weakref.finalize(view, self._forget, id(view)).atexit = False
        return view

    def _forget(self, identity: int) -> None:
        self.release(self._resident.pop(identity))

    def start_window(self) -> None:
        now = self._clock()
        self._window_start = now
        while self._intervals and self._intervals[0][1] <= now:
            self._intervals.popleft()
        self._window_peak = self.used_bytes
        self._memory_samples = [self._window_peak]
        self._memory_sampled_at = now

    def sample_memory(self) -> None:
        """Note the memory in use, at most once a sampling period; a step calls it at its peak."""
        now = self._clock()
        if self._window_start is not None and now - self._memory_sampled_at >= SAMPLE_PERIOD_SECONDS:
            self._memory_samples.append(self.used_bytes)
            self._memory_sampled_at = now

    def end_window(self) -> DeviceWindow:
        """Utilization is the share of the window in which work ran; samples are that share of each 0.1 s."""
        start = self._window_start
        if start is None:
            raise RuntimeError("end_window was called before start_window")
        end = self._clock()
        self._window_start = None
        peak = self._window_peak
        samples = [*self._memory_samples, peak]
        reason = None if end > start else "the window has no length"
        percent = self._busy_percent(start, end) if end > start else None
        return DeviceWindow(
            util_percent=percent,
            util_reason=reason,
            util_source=None if reason else "simulated: busy over wall time",
            util_samples=self._util_samples(start, end),
            peak_bytes=peak,
            memory_reason=None,
            memory_source="simulated: the device's ledger",
            memory_samples=tuple(samples),
            other_process_bytes=0,
        )

    def _busy_percent(self, start: float, end: float) -> float:
        busy = sum(max(0.0, min(b, end) - max(a, start)) for a, b in self._intervals if a < end and b > start)
        return 100.0 * busy / (end - start)

    def _util_samples(self, start: float, end: float) -> tuple[float, ...]:
        count = int((end - start) / SAMPLE_PERIOD_SECONDS + 1e-9)
        intervals = list(self._intervals)
        samples, first = [], 0
        for number in range(count):
            low = start + number * SAMPLE_PERIOD_SECONDS
            high = low + SAMPLE_PERIOD_SECONDS
            while first < len(intervals) and intervals[first][1] <= low:
                first += 1
            busy, at = 0.0, first
            while at < len(intervals) and intervals[at][0] < high:
                busy += min(intervals[at][1], high) - max(intervals[at][0], low)
                at += 1
            # NVML's samples are whole percentages.
            samples.append(float(round(100.0 * busy / SAMPLE_PERIOD_SECONDS)))
        return tuple(samples)

    def reset_peak(self) -> None:
        self._window_peak = self.used_bytes

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)

    def close(self) -> None:
        self._pending.clear()
        self._intervals.clear()

    def _retire(self) -> None:
        now = self._clock() + CLOCK_RESOLUTION_SECONDS
        while self._pending and self._pending[0] <= now:
            self._pending.popleft()
        if self._window_start is None:
            # Outside a window nobody asks for utilization, so old work need not be remembered.
            while self._intervals and self._intervals[0][1] <= now:
                self._intervals.popleft()

    def _wait_until(self, moment: float) -> None:
        while (left := moment - self._clock()) > CLOCK_RESOLUTION_SECONDS:
            self._sleep(left)


class SimulatedStep:
    """A training step on the simulated device.

    Args:
        accelerator: the device.
        model: figures of the reference model whose launch and device time it takes.
        image_size: pixels; device time and activations grow with its square.
        work: a user's step, really run on the CPU; its time is the launch time. None: the model's launch time.

    Raises:
        torch.OutOfMemoryError: when made, if the weights do not fit; when called, if the activations do not.
    """

    def __init__(
        self,
        accelerator: SimulatedAccelerator,
        model: SimulatedModel,
        *,
        image_size: int = 224,
        work: Callable[[torch.Tensor, torch.Tensor], Any] | None = None,
    ) -> None:
        scale = (image_size / 224) ** 2
        self._accelerator = accelerator
        self._work = work
        self._sample_seconds = scale / (accelerator.preset.samples_per_second * model.speed)
        self._sample_bytes = int(model.sample_bytes * scale)
        self._launch_seconds = accelerator.preset.launch_seconds * model.launches
        weights = model.parameters * BYTES_PER_PARAMETER
        accelerator.allocate(weights)
        weakref.finalize(self, accelerator.release, weights).atexit = False
        self.model = getattr(work, "model", None)
        self.optimizer = getattr(work, "optimizer", None)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        samples = int(images.shape[0])
        activations = samples * self._sample_bytes
        self._accelerator.allocate(activations)
        try:
            self._accelerator.sample_memory()
            if self._work is None:
                self._accelerator.launch(self._launch_seconds)
                loss = None
            else:
                loss = self._work(images, labels)
            self._accelerator.enqueue(samples * self._sample_seconds)
        finally:
            self._accelerator.release(activations)
        return loss
