"""What each rank of test_ranks_contract.py runs under torchrun; rank 0 writes what all ranks saw.

Arguments: task, folder with the datasets, output file, and of `resume` the file that holds the state to start from.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from wellfed.pipeline.errors import WellfedError
from wellfed.pipeline.loader import DataLoader

COUNTS = (100, 101, 1)
TAILS = ("drop", "pad", "partial")
BACKENDS = ("threads", "processes", *(("dali",) if find_spec("nvidia") and find_spec("nvidia.dali") else ()))
BATCH = 4
STEPS_BEFORE_SAVING = 3


def loader(folder: Path, **options: Any) -> Any:
    options = {"backend": "threads", "num_workers": 1, "batch_size": BATCH, "tail": "pad", **options}
    return DataLoader(
        folder, shuffle=True, augment="eval", image_size=8, seed=3, fields=("image", "index", "valid"), **options
    )


def seen(batch: Any) -> list[list[int]]:
    """[index, valid] of each sample of a batch."""
    return [list(pair) for pair in zip(batch["index"].tolist(), batch["valid"].int().tolist(), strict=True)]


def tails(root: Path) -> dict[str, Any]:
    """Two epochs of each dataset with each tail, and of one with every backend of the CPU."""
    found: dict[str, Any] = {}
    for count in COUNTS:
        for tail in TAILS:
            for backend in BACKENDS if (count, tail) == (101, "pad") else ("threads",):
                try:
                    with loader(root / str(count), tail=tail, backend=backend) as batches:
                        epochs = [[seen(batch) for batch in batches] for _ in range(2)]
                        found[f"{count} {tail} {backend}"] = {"len": len(batches), "epochs": epochs}
                except WellfedError as error:
                    found[f"{count} {tail} {backend}"] = {"error": type(error).__name__}
    return found


def resume(root: Path, start: Path) -> dict[str, Any]:
    """Some steps from a state, saved on every rank, then all that is left of the epoch."""
    with loader(root / "101", tail="partial") as batches:
        if start.exists():
            batches.load_state_dict(json.loads(start.read_text()))
        steps: list[Any] = []
        state = None
        for batch in batches:
            steps.append(seen(batch))
            if len(steps) == STEPS_BEFORE_SAVING:
                state = batches.state_dict()
    return {"steps": steps, "state": state}


def fail(root: Path) -> None:
    """Rank 1 raises between steps while the others wait for its gradients."""
    with loader(root / "101", backend="processes") as batches:
        for step, _ in enumerate(batches):
            if step == 1 and torch.distributed.get_rank() == 1:
                raise RuntimeError("rank 1 raises in its step")
            torch.distributed.all_reduce(torch.ones(1))


def main() -> None:
    task, root, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    if task == "fail":
        fail(root)
        raise AssertionError("rank 1 did not raise")
    mine = tails(root) if task == "tails" else resume(root, Path(sys.argv[4]))
    ranks: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, mine)
    if torch.distributed.get_rank() == 0:
        out.write_text(json.dumps(ranks))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
