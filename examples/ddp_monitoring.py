"""Train ResNet-18 with DistributedDataParallel, and report which ranks straggle and where scaling is lost.

torchrun --nproc-per-node 8 ddp_monitoring.py DATASET --directory runs/ranks
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import resnet18

from wellfed.pipeline import DataLoader
from wellfed.pipeline.monitor import RankMonitor
from wellfed.pipeline.report import rank_lines, write_ranks_report


def step_of(model: torch.nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A training step of this model; returns its loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the step, train, and write the report on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--directory", type=Path, default=Path("runs/ranks"), help="of the report")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of one process")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=50, help="behind each rate on cached batches")
    options = parser.parse_args(arguments)

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    # Every rank loads its own part of each epoch, and all have the same number of steps.
    with (
        DataLoader(
            options.dataset,
            batch_size=options.batch_size,
            shuffle=True,
            tail="pad",
            augment="train",
            image_size=options.image_size,
            dtype="float32",
            normalize="imagenet",
            device=str(device),
            seed=0,
        ) as loader,
        RankMonitor(str(device)) as monitor,
    ):

        def new_model() -> torch.nn.Module:
            torch.manual_seed(0)
            return resnet18(num_classes=len(loader.dataset.class_names)).to(device, memory_format=torch.channels_last)

        # What the loaders cannot slow down: the step on batches that are there, by itself and with its exchange. The
        # models are thrown away, since ranks that train by themselves drift apart.
        cached = list(itertools.islice(loader, 3))
        step = step_of(new_model())
        for _ in range(3):
            for images, labels in monitor.watch(itertools.cycle(cached), "own", steps=options.steps):
                step(images, labels)
        step = step_of(DistributedDataParallel(new_model()))
        for images, labels in monitor.watch(itertools.cycle(cached), "ceiling", steps=options.steps):
            step(images, labels)

        step = step_of(DistributedDataParallel(new_model()))
        loader.set_epoch(0)
        for _ in range(options.epochs):
            for images, labels in monitor.watch(loader):
                step(images, labels)

        report = monitor.report()
        if report is not None:
            print(*rank_lines(report), sep="\n")
            print(f"report: {write_ranks_report(report, options.directory)['html']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
