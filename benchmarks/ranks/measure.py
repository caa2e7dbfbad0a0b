"""What each rank runs: the step on cached batches and fed, in turn; rank 0 writes what all ranks saw.

    torchrun --standalone --nproc-per-node W -m benchmarks.ranks.measure \\
        DATA STEP DEVICE TUNED ROUNDS SECONDS SEED OUTPUT

Started without torchrun it is one process on one device, without a process group.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from wellfed.pipeline.config import TunedConfig
from wellfed.pipeline.hardware import fingerprint
from wellfed.pipeline.tune.assemble import device_facts
from wellfed.pipeline.tune.ranks.rig import RanksRig, follow
from wellfed.pipeline.tune.ranks.run import on_all_ranks
from wellfed.pipeline.tune.rig import Rig, Trial
from wellfed.pipeline.tune.run import Opened, opened

from ..common.windows import interleaved, kept


def measured(rig: Rig, tuned: TunedConfig, rounds: int, seconds: float, seed: int) -> dict[str, list[dict[str, Any]]]:
    """Windows of the ceiling and of the fed step by round, each with those of every rank."""
    settings = tuned.settings
    trial = Trial(
        id="fed", label="the tuned loader", role="candidate", settings=settings, batch_size=settings.batch_size
    )
    windows: dict[str, list[dict[str, Any]]] = {"ceiling": [], "fed": []}
    for _, name in interleaved(("ceiling", "fed"), rounds, seed=seed):
        window = rig.ceiling(settings.batch_size, seconds) if name == "ceiling" else rig.fed(trial, seconds)
        values = window.to_dict()
        windows[name].append({**kept(window), "ranks": values.get("ranks") or [{"rank": 0, **kept(window)}]})
    rig.drop(trial)
    return windows


def _record(rig: Rig, on: Opened, world_size: int, tuned: TunedConfig, options: list[str]) -> None:
    rounds, seconds, seed, output = int(options[0]), float(options[1]), int(options[2]), Path(options[3])
    found = {
        "world_size": world_size,
        "step": on.spec.name,
        "settings": tuned.settings.to_dict(),
        "device": device_facts(on.accelerator),
        "machine": fingerprint(),
        "seconds": seconds,
        **measured(rig, tuned, rounds, seconds, seed),
    }
    output.write_text(json.dumps(found) + "\n", "utf-8")


def main(argv: list[str]) -> None:
    data, step, device, path, *options = argv
    tuned = TunedConfig.from_dict(json.loads(Path(path).read_text("utf-8")), where=path)
    how: dict[str, Any] = {
        "image_size": int(tuned.step["image_size"]),
        "seed": int(options[2]),
        "clock": time.perf_counter,
    }
    if os.environ.get("WORLD_SIZE", "1") == "1":
        with opened(data, step, device, **how) as on:
            _record(on.rig, on, 1, tuned, options)
        return
    with on_all_ranks(data, step, device, **how) as (ranks, on):
        if ranks.rank > 0:
            follow(on.rig, ranks)
            return
        rig = RanksRig(on.rig, ranks)
        try:
            _record(rig, on, ranks.world_size, tuned, options)
        except BaseException as error:
            rig.fail(error)
            raise
        rig.end(None)


if __name__ == "__main__":
    main(sys.argv[1:])
