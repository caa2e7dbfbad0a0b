"""What the tuner may do to the world: the contract between its decisions and the machine it measures.

Everything that takes time, needs a device or starts a process is behind `Rig`, so that every decision is tested on a
fake with a virtual clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..config import LoaderSettings
from ..training.step_facts import StepFacts
from ..training.variants import Variant
from .measure.evidence import ResizeGain
from .model.prediction import Prediction

Role = Literal["candidate", "current", "stock"]
Order = Literal["random", "sequential"]
Cache = Literal["warm", "cold"]
Supply = Literal["bytes", "files", "storage"]
"""Where a loader finds encoded samples: in its own memory, in files in the page cache, or on the storage behind it."""


class OutOfDeviceMemoryError(Exception):
    """A step did not fit into the device's memory; the tuner takes a smaller batch, so no user sees this."""


class UnmeasuredError(Exception):
    """Something cannot be measured here, with the reason; the report says it, so that no user sees this."""


class Window(Protocol):
    """The part of `training.loop.Window` that decisions rest on."""

    @property
    def batch_size(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def wall_seconds(self) -> float: ...
    @property
    def wait_seconds(self) -> Sequence[float]: ...
    @property
    def step_seconds(self) -> Sequence[float]: ...
    @property
    def util_percent(self) -> float | None: ...
    @property
    def util_reason(self) -> str | None: ...
    @property
    def peak_bytes(self) -> int | None: ...
    @property
    def host_rss_bytes(self) -> Sequence[int]: ...
    @property
    def host_rss_seconds(self) -> Sequence[float]: ...

    def to_dict(self) -> dict[str, Any]: ...


class Probe(Protocol):
    """The part of `training.probe.MemoryProbe` that decisions rest on."""

    @property
    def batch_size(self) -> int: ...
    @property
    def peak_bytes(self) -> int | None: ...
    @property
    def out_of_memory(self) -> bool: ...
    @property
    def error(self) -> str | None: ...
    @property
    def facts(self) -> StepFacts | None: ...


@dataclass(frozen=True)
class Trial:
    """One thing to measure against the step.

    Attributes:
        id: unique within a report.
        label: for people.
        role: a candidate of the search, the user's present settings, or stock torch.
        settings: None for stock torch.
        batch_size: samples a step.
        prediction: by the model; None where it has none.
    """

    id: str
    label: str
    role: Role
    settings: LoaderSettings | None
    batch_size: int
    prediction: Prediction | None = None

    @property
    def predicted(self) -> float | None:
        """Predicted samples/s."""
        return None if self.prediction is None else self.prediction.samples_per_second


class HeldRun(Protocol):
    """A run of one loader whose windows follow each other, across epochs."""

    @property
    def epochs_crossed(self) -> int: ...

    def resume(self) -> None:
        """Use up what the loader made ready while other things ran, so that the next window is the loader's pace."""
        ...

    def feed(self, seconds: float) -> Window: ...

    def worker_bytes(self) -> Mapping[int, int]:
        """Memory of each worker process by its id, as it was in the last window; empty where there are none."""
        ...


class Rig(Protocol):
    """A machine with a dataset, a step and a device. One thread drives it; the driver closes it."""

    def clock(self) -> float:
        """Monotonic seconds."""
        ...

    def compiling_seconds(self) -> float:
        """What compiling the step took so far (`CompilingTime`), in probes too."""
        ...

    def probe(self, batch_size: int, settings: LoaderSettings | None = None) -> Probe:
        """Peak device memory of the step at this batch size, in a child process; with the loader of settings given.

        Raises StepError where the step raised, hung or ended the process.
        """
        ...

    def probe_variant(self, batch_size: int, variant: Variant) -> Probe:
        """The same with the forward of the step's model changed; its error says why that was not possible."""
        ...

    def ceiling(self, batch_size: int, seconds: float) -> Window:
        """The step on device-resident batches. Raises OutOfDeviceMemoryError."""
        ...

    def fed(self, trial: Trial, seconds: float) -> Window:
        """The step fed by the trial's loader, which stays open until `drop`. Raises OutOfDeviceMemoryError."""
        ...

    def drop(self, trial: Trial) -> None:
        """Close a trial's loader."""
        ...

    def release_device(self) -> None:
        """Close every loader and step, so that the next peak of memory is the next run's own."""
        ...

    def loader_alone(self, settings: LoaderSettings, seconds: float) -> float:
        """Samples/s of the loader with nothing behind it."""
        ...

    def stock_alone(self, batch_size: int, seconds: float) -> float:
        """Samples/s of stock torch's loader with nothing behind it."""
        ...

    def beside(self, settings: LoaderSettings, every: int, seconds: float) -> Window:
        """The step on cached batches while the loader decodes one batch for every so many steps, thrown away.

        Raises OutOfDeviceMemoryError.
        """
        ...

    def supplied(self, settings: LoaderSettings, supply: Supply, seconds: float) -> Window:
        """The step fed from the same samples, wherever they are taken from.

        Raises OutOfDeviceMemoryError, UnmeasuredError.
        """
        ...

    def read_rate(self, seconds: float) -> float:
        """Samples/s of reading encoded samples in one thread, without decoding."""
        ...

    def parallel_read_rate(self, readers: int, seconds: float) -> float:
        """Samples/s of reading encoded samples in so many threads at once."""
        ...

    def sample_seconds(self, seconds: float) -> Sequence[float]:
        """Time to read and decode each of some samples, one after the other."""
        ...

    def resize_gain(self, settings: LoaderSettings, seconds: float) -> ResizeGain | None:
        """What smaller images would bring the loader; None where none is larger, or nothing was measured."""
        ...

    def reads(self, order: Order, cache: Cache, seconds: float) -> float:
        """As `read_rate`, in this order, from the page cache or the storage behind it. Raises UnmeasuredError."""
        ...

    def copy_rate(self, batch_size: int, seconds: float, *, pinned: bool) -> float:
        """Samples/s of copying host batches, in page-locked memory or not, to the device."""
        ...

    def boundary_seconds(self, settings: LoaderSettings) -> float:
        """Time from the last batch of an epoch to the first of the next."""
        ...

    def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> AbstractContextManager[HeldRun]:
        """Open a loader so that its epoch ends after about this many samples."""
        ...

    def epoch_samples(self, batch_size: int) -> int:
        """Samples an epoch of a trial's loader has, repeats included."""
        ...


def rate(window: Window) -> float:
    """Samples/s of a window; 0 where no step ended."""
    return window.samples / window.wall_seconds if window.wall_seconds > 0 else 0.0


def wait_share(window: Window) -> float:
    """Share of the window's wall time spent waiting for data."""
    return sum(window.wait_seconds) / window.wall_seconds if window.wall_seconds > 0 else 0.0
