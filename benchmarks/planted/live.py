"""What is planted on a real machine, in real time, and what a verdict must say of it.

Sizes of plants are shares of what the machine's own loader gives, so that each of them binds on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wellfed.pipeline.training.simulated import Preset

from .causes import names
from .wrappers import Burns

STRAGGLERS_EVERY, STRAGGLERS_TIMES = 100, 50.0

_SHM_BYTES = 24 << 20
# Of which the tuner lets a loader have 40%: one worker process at batch 16 with prefetch 2 takes 7.2 MB, two 14.5 MB.

_GIL_TIMES = 8.0  # a transform in Python, over decoding


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A real pipeline with something planted.

    Attributes:
        device: "simulated" or "cuda".
        samples_per_second: of ResNet-50 on the simulated device.
        launch_seconds, memory_bytes: of it; see `training.simulated.Preset`.
        storage_rate: samples/s that the storage gives to all readers together; None for the files as they are.
        transform_seconds, transform_burns: of a transform of each sample; 0 for none.
        copy_rate: samples/s to the device; None for its own.
        cores: that the process may use; None for all.
        request: arguments of `TuneRequest`.
    """

    device: str = "simulated"
    samples_per_second: float = 600.0
    launch_seconds: float = 0.010
    memory_bytes: int = 24 << 30
    storage_rate: float | None = None
    transform_seconds: float = 0.0
    transform_burns: Burns = "core"
    copy_rate: float | None = None
    cores: int | None = None
    request: Mapping[str, Any] = field(default_factory=dict)

    @property
    def preset(self) -> Preset:
        """The simulated device."""
        return Preset(
            name="planted",
            label="planted",
            samples_per_second=self.samples_per_second,
            memory_bytes=self.memory_bytes,
            launch_seconds=self.launch_seconds,
        )


@dataclass(frozen=True, kw_only=True)
class LiveCause:
    """A bottleneck in real time.

    Attributes:
        name: of the cause.
        how: what makes it.
        setup: from the loader's samples/s on all cores, and their number.
        verdict, binds, words: as in `causes.Cause`.
        device: "simulated" or "cuda": where it runs.
        shm_bytes: of a file system of its own at /dev/shm; None for the machine's.
        stragglers: a few photos are large pictures.
        least_cores: that the machine must have.
    """

    name: str
    how: str
    setup: Callable[[float, int], Setup]
    verdict: str
    binds: str | None
    words: str
    device: str = "simulated"
    shm_bytes: int | None = None
    stragglers: bool = False
    least_cores: int = 1

    def named_by(self, verdict: Mapping[str, Any]) -> bool:
        """Whether a report's `verdict` names this cause."""
        return names(verdict, self.verdict, self.binds, self.words)


def _gil_bound(rate: float, cores: int) -> Setup:
    """Python that only processes run side by side, and a step that they would feed."""
    decode = cores / rate
    seconds = _GIL_TIMES * decode
    return Setup(
        samples_per_second=0.85 * cores / (seconds + decode), transform_seconds=seconds, transform_burns="interpreter"
    )


LIVE = (
    LiveCause(
        name="nothing",
        how="a step of 0.6 times the loader's rate",
        setup=lambda rate, cores: Setup(samples_per_second=0.6 * rate),
        verdict="passed",
        binds=None,
        words="every target is reached",
    ),
    LiveCause(
        name="slow storage",
        how="a source that gives half of the step's rate to all readers together",
        setup=lambda rate, cores: Setup(samples_per_second=0.6 * rate, storage_rate=0.3 * rate),
        verdict="data_limited",
        binds="storage",
        words=r"storage (1\.[5-9]|2\.\d) times as fast would do",
    ),
    LiveCause(
        name="slow transform",
        how="a transform that takes 2.3 times as long as decoding",
        setup=lambda rate, cores: Setup(samples_per_second=0.6 * rate, transform_seconds=(1 / 0.3 - 1) * cores / rate),
        verdict="data_limited",
        binds="decode",
        words=r"\d+ cores like these would reach the target.*`--image resize:256`",
    ),
    LiveCause(
        name="too few cores",
        how="affinity to half of the cores; all of them would do",
        setup=lambda rate, cores: Setup(samples_per_second=0.75 * rate, cores=cores // 2),
        verdict="data_limited",
        binds="decode",
        words=r"\d+ cores like these would reach the target.*`--image resize:256` gives [\d.]+x",
        least_cores=2,
    ),
    LiveCause(
        name="tiny /dev/shm",
        how=f"{_SHM_BYTES >> 20} MiB mounted there, and a transform in Python that only processes run side by side",
        setup=_gil_bound,
        verdict="data_limited",
        binds="memory",
        words="/dev/shm",
        shm_bytes=_SHM_BYTES,
        least_cores=2,
    ),
    LiveCause(
        name="tiny /dev/shm, harmless",
        how=f"{_SHM_BYTES >> 20} MiB mounted there, and decoding alone, which threads do as well",
        setup=lambda rate, cores: Setup(samples_per_second=0.6 * rate),
        verdict="passed",
        binds=None,
        words="every target is reached",
        shm_bytes=_SHM_BYTES,
    ),
    LiveCause(
        name="tiny memory cap",
        how="3 GiB of device memory, and a step that launches for 45 ms",
        setup=lambda rate, cores: Setup(samples_per_second=1000.0, launch_seconds=0.045, memory_bytes=3 << 30),
        verdict="step_limited",
        binds="memory",
        words="under the memory cap only 16 fits",
    ),
    LiveCause(
        name="launches",
        how="a step that launches for 100 ms at batch sizes 16 and 32",
        setup=lambda rate, cores: Setup(
            samples_per_second=1000.0, launch_seconds=0.100, request={"batch_sizes": (16, 32)}
        ),
        verdict="step_limited",
        binds="launches",
        words=r"launches too little work at batch 32.*torch\.compile",
    ),
    LiveCause(
        name="huge step",
        how="a step of 10 samples/s",
        setup=lambda rate, cores: Setup(samples_per_second=10.0),
        verdict="passed",
        binds=None,
        words=r"The step sets the pace: (9|10) samples/s",
    ),
    LiveCause(
        name="slow copy",
        how="copies that give half of the step's rate",
        setup=lambda rate, cores: Setup(samples_per_second=0.6 * rate, copy_rate=0.3 * rate),
        verdict="data_limited",
        binds="copy",
        words="The copy to the device binds",
    ),
    LiveCause(
        name="stragglers",
        how="one photo in 100 is a PNG that takes 50 times as long",
        setup=lambda rate, cores: Setup(samples_per_second=0.9 * rate),
        verdict="data_limited",
        binds="decode",
        words=r"Stragglers: [\d.]+% of \d+ samples take (3[5-9]|[4-6]\d) times the median",
        stragglers=True,
    ),
    LiveCause(
        name="tiny memory cap",
        how="a cap of 2.2 GiB of an H200, and ResNet-50 eager",
        setup=lambda rate, cores: Setup(device="cuda", request={"memory_cap": 0.0158}),
        verdict="step_limited",
        binds="memory",
        words=r"under the memory cap only \d+ fits",
        device="cuda",
    ),
    LiveCause(
        name="launches",
        how="ResNet-50 eager at batch sizes 8 and 16",
        setup=lambda rate, cores: Setup(device="cuda", request={"batch_sizes": (8, 16)}),
        verdict="step_limited",
        binds="launches",
        words=r"launches too little work at batch 16.*torch\.compile",
        device="cuda",
    ),
    LiveCause(
        name="slow copy",
        how="copies that give 1,500 samples/s, and ResNet-50 eager",
        setup=lambda rate, cores: Setup(device="cuda", copy_rate=1500.0),
        verdict="data_limited",
        binds="copy",
        words="The copy to the device binds",
        device="cuda",
    ),
)


def live_causes(device: str) -> dict[str, LiveCause]:
    """Those that run on this kind of device, by name."""
    return {cause.name: cause for cause in LIVE if cause.device == device}
