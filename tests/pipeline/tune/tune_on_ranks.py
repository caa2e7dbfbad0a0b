"""What each rank of test_ranks.py runs under torchrun; rank 0 writes what all ranks saw.

Arguments: folder of images, output file. The steps are also imported from here by the children that probe memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from wellfed.pipeline import tune
from wellfed.pipeline.training import MemoryProbe, process_group
from wellfed.pipeline.tune.machine import rig as machine

built: list[int] = []
"""Batch sizes, in this process."""


def _step(model: torch.nn.Module, before_backward: Callable[[int, int], None] = lambda call, size: None) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = 0

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        loss = torch.nn.functional.cross_entropy(model(images.float().mean((2, 3))), labels)
        before_backward(calls, len(labels))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step.model, step.optimizer = model, optimizer  # type: ignore[attr-defined]
    return step


def ddp(num_classes: int, batch_size: int) -> Any:
    built.append(batch_size)
    return _step(DistributedDataParallel(torch.nn.Linear(3, num_classes)))


def fsdp(num_classes: int) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, num_classes))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return _step(model)


def full_on_rank_1(num_classes: int, batch_size: int) -> Any:
    built.append(batch_size)

    def before_backward(call: int, size: int) -> None:
        if dist.get_rank() == 1 and size == 16 and call == 5:
            raise torch.OutOfMemoryError("CUDA out of memory: as this test has it")

    return _step(DistributedDataParallel(torch.nn.Linear(3, num_classes)), before_backward)


def wrong_on_rank_1(num_classes: int) -> Any:
    def before_backward(call: int, size: int) -> None:
        if dist.get_rank() == 1 and call == 5:
            raise ValueError("no good")

    return _step(DistributedDataParallel(torch.nn.Linear(3, num_classes)), before_backward)


def no_probe(spec: Any, device: str, batch_size: int, **rest: Any) -> MemoryProbe:
    """In the place of children, which take seconds to start."""
    return MemoryProbe(batch_size=batch_size, peak_bytes=batch_size << 20, out_of_memory=False, error=None)


def seen(folder: str, step: Callable[..., Any], *batch_sizes: int, budget: float = 2) -> dict[str, Any]:
    built.clear()
    try:
        found = tune(
            folder,
            step=step,
            device="simulated",
            budget_seconds=budget,
            hold_seconds=1,
            batch_sizes=batch_sizes,
            image_size=16,
            base_batch=8,
        )
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    found.save(f"{step.__name__}.json")
    with found.loader() as loader:
        shape = list(next(iter(loader))[0].shape)
    return {
        "rank": found.rank,
        "report": found.report,
        "tuned": found.tuned.to_dict(),
        "group": dist.is_initialized(),
        "built": list(built),
        "loads": shape,
    }


def main() -> None:
    folder, out = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    # gloo's collectives end by their time limit alone.
    process_group.GLOO_TIMEOUT_SECONDS = 2.0
    real, machine.probe_memory = machine.probe_memory, no_probe
    mine = {
        "ddp": seen(folder, ddp, 8),
        "full": seen(folder, full_on_rank_1, 8, 16, budget=8),
        "wrong": seen(folder, wrong_on_rank_1, 8),
    }
    machine.probe_memory = real
    # From here on with the program's own group, and with real children.
    dist.init_process_group("gloo")
    mine["fsdp"] = seen(folder, fsdp, 8)
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(ranks))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
