"""The product's search over a recording."""

from __future__ import annotations

from dataclasses import dataclass

from wellfed.pipeline.config import LoaderSettings, TuneRequest
from wellfed.pipeline.tune.driver import Device, Driver
from wellfed.pipeline.tune.model.space import Limits
from wellfed.pipeline.tune.result import Result

from .grid import GRID, points_of
from .recording import Recording
from .rigs import PlaybackRig


@dataclass(frozen=True)
class Found:
    """A search, and the virtual seconds that it spent, by call."""

    result: Result
    spent: dict[str, float]

    @property
    def chosen(self) -> LoaderSettings:
        chosen = self.result.chosen
        if chosen is None or chosen.trial.settings is None:
            raise AssertionError("a search that ends has a choice")
        return chosen.trial.settings


def limits_of(recording: Recording) -> Limits:
    """What the recorded machine allowed."""
    kept = recording.head["limits"]
    return Limits(**{**kept, "backends": tuple(kept["backends"])})


def device_of(recording: Recording) -> Device:
    """What the driver must know of the recorded device."""
    return Device(**recording.head["driver_device"])


def points_of_recording(recording: Recording) -> list[LoaderSettings]:
    """The points of the grid that the recorded machine could run, as many as were asked for."""
    able, _ = points_of(GRID, limits_of(recording).backends, pin_memory=device_of(recording).pin_memory)
    return able[: recording.head["points"]]


def request_of(recording: Recording, seed: int = 0) -> TuneRequest:
    """A tune with everything at its default, among the batch sizes of the grid."""
    sizes = sorted({point.batch_size for point in points_of_recording(recording)} | {64})
    return TuneRequest(
        data="recorded",
        step=recording.head["step"],
        batch_sizes=tuple(sizes),
        image_size=recording.head["image_size"],
        seed=seed,
    )


def find(recording: Recording, seed: int) -> Found:
    """Run the search of one seed.

    Raises:
        MissingCallError: the search asks what is not recorded.
        RecordedError: it asks what failed when it was recorded.
        ResourceError: nothing can be chosen.
    """
    rig = PlaybackRig(recording, seed=seed)
    driver = Driver(
        rig,
        request_of(recording, seed),
        limits_of(recording),
        device_of(recording),
        points=points_of_recording(recording),
    )
    return Found(driver.find(), rig.spent)
