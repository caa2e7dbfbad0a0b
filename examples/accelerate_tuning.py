"""Tune once for a loop of Hugging Face Accelerate, then train with what was found.

accelerate launch accelerate_tuning.py DATASET --tuned tuned.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from wellfed.pipeline import DataLoader, tune

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def build_step(device: str, num_classes: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The step of Accelerate's loop; the Accelerator is made here, since other processes build the step too."""
    accelerator = Accelerator(cpu=device == "cpu")
    model = resnet18(num_classes=num_classes).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) * 255 for values in (MEAN, STD))

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with accelerator.autocast():
            loss = cross_entropy(model((images.float() - mean) / std), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step.model, step.optimizer = model, optimizer  # type: ignore[attr-defined]
    return step


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Tune where that was not done yet, train, and return the loss of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--tuned", type=Path, default=Path("tuned.json"))
    parser.add_argument("--device", default="auto", help="of the tuner: auto, cuda or simulated")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="that the tuner considers")
    parser.add_argument("--budget", default="3m")
    parser.add_argument("--hold", default="60s")
    options = parser.parse_args(arguments)

    if not options.tuned.exists():
        found = tune(
            options.dataset,
            step=build_step,
            device=options.device,
            batch_sizes=options.batch_sizes,
            image_size=options.image_size,
            budget_seconds=options.budget,
            hold_seconds=options.hold,
        )
        print(found.report["verdict"]["summary"])
        found.save(options.tuned)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    losses = []
    with DataLoader(
        options.dataset,
        tuned=options.tuned,
        shuffle=True,
        drop_last=True,
        augment="train",
        image_size=options.image_size,
        device=device,
    ) as loader:
        step = build_step(device, len(loader.dataset.class_names))
        while loader.epoch < options.epochs:
            losses += [step(images, labels).item() for images, labels in loader]
    return losses


if __name__ == "__main__":
    print(f"last loss: {main()[-1]:.3f}")
