"""What is planted, and what a verdict must say of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wellfed.pipeline.config import BackendName

from .pipeline import Plant


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A bottleneck.

    Attributes:
        name: of the cause.
        plant: the machine with it.
        verdict, binds: what the verdict must be.
        words: a pattern that its summary or its advice must hold.
        shm_bytes: of /dev/shm for batches; None is plenty.
        backends: that the machine has.
        request: arguments of `TuneRequest`.
    """

    name: str
    plant: Plant
    verdict: str
    binds: str | None
    words: str
    shm_bytes: int | None = None
    backends: tuple[BackendName, ...] = ("threads", "processes")
    request: Mapping[str, Any] = field(default_factory=dict)

    def named_by(self, verdict: Mapping[str, Any]) -> bool:
        """Whether a report's `verdict` names this cause."""
        return names(verdict, self.verdict, self.binds, self.words)


def names(verdict: Mapping[str, Any], name: str, binds: str | None, words: str) -> bool:
    """Whether a report's `verdict` is this one, says what binds, and has a pattern in its summary or its advice."""
    text = " ".join((verdict["summary"], *verdict["advice"]))
    return (verdict["name"], verdict["binds"]) == (name, binds) and bool(re.search(words, text))


CAUSES = (
    Cause(name="nothing", plant=Plant(), verdict="passed", binds=None, words="every target is reached"),
    Cause(
        name="slow storage",
        plant=Plant(storage_rate=400.0),
        verdict="data_limited",
        binds="storage",
        words=r"storage [\d.]+ times as fast would do",
    ),
    Cause(
        name="slow transform",
        plant=Plant(decode_seconds=0.030, resize_times=1.06),
        verdict="data_limited",
        binds="decode",
        words=r"\d+ cores like these would reach.*(gives 1\.[01]x|would not help)",
    ),
    Cause(
        name="too few cores",
        plant=Plant(cores=2),
        verdict="data_limited",
        binds="decode",
        words=r"[45] cores like these would reach.*`--image resize:256` gives 1\.[789]x",
    ),
    Cause(
        name="tiny /dev/shm",
        plant=Plant(gil_share=0.8, decode_seconds=0.008),
        shm_bytes=30 << 20,
        verdict="data_limited",
        binds="memory",
        words="/dev/shm",
    ),
    Cause(
        name="tiny memory cap",
        plant=Plant(memory_bytes=3 << 30, launch_seconds=0.045),
        verdict="step_limited",
        binds="memory",
        words="under the memory cap only 16 fits",
    ),
    Cause(
        name="launches",
        plant=Plant(launch_seconds=0.100),
        request={"batch_sizes": (16, 32)},
        verdict="step_limited",
        binds="launches",
        words=r"launches too little work at batch 32.*torch\.compile",
    ),
    Cause(
        name="huge step",
        plant=Plant(samples_per_second=10.0),
        verdict="passed",
        binds=None,
        words=r"The step sets the pace: (9|10) samples/s",
    ),
    Cause(
        name="slow copy",
        plant=Plant(copy_rate=500.0),
        verdict="data_limited",
        binds="copy",
        words="The copy to the device binds",
    ),
    Cause(
        name="stragglers",
        plant=Plant(decode_seconds=0.0075, slow_share=0.01, slow_times=50.0),
        verdict="data_limited",
        binds="decode",
        words=r"Stragglers: [\d.]+% of \d+ samples take (4[5-9]|5[0-5]) times the median",
    ),
)
BY_NAME = {cause.name: cause for cause in CAUSES}
