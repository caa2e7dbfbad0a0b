"""A whole tune on the virtual machine of a cause."""

from __future__ import annotations

from typing import Any

from wellfed.pipeline.config import TuneRequest
from wellfed.pipeline.tune.driver import Device, Driver
from wellfed.pipeline.tune.model.space import Limits

from .causes import Cause
from .rig import VirtualRig


def tune_simulated(cause: Cause, seed: int) -> dict[str, Any]:
    """The verdict of one seed, whether it names the cause, and what was chosen."""
    rig = VirtualRig(cause.plant, seed=seed)
    request = TuneRequest(data="planted", step="resnet50", device="simulated", seed=seed, **cause.request)
    limits = Limits(cores=cause.plant.cores, memory_bytes=None, shm_bytes=cause.shm_bytes, backends=cause.backends)
    device = Device(rig.accelerator.memory_total_bytes, pin_memory=False)
    result = Driver(rig, request, limits, device).run()
    if result.verdict is None or result.chosen is None or result.chosen.trial.settings is None:
        raise RuntimeError("a tune that ends has a verdict and a choice")
    verdict = result.verdict.to_dict()
    return {
        "cause": cause.name,
        "seed": seed,
        "named": cause.named_by(verdict),
        "verdict": verdict,
        "chosen": result.chosen.trial.settings.to_dict(),
        "seconds": result.seconds,
    }
