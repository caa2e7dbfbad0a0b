"""Tune once for a LightningModule, then train it with PyTorch Lightning on what was found.

python lightning_tuning.py DATASET --tuned tuned.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import lightning.pytorch as lightning
import torch
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from wellfed.pipeline import DataLoader, tune


class Classifier(lightning.LightningModule):
    """ResNet-18 that normalizes uint8 images on its own device."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.model = resnet18(num_classes=classes)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255, persistent=False)
        self.losses: list[float] = []

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self.model((images.float() - self.mean) / self.std), labels)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.loss(*batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def build_step(device: str, num_classes: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """What Lightning does for one batch, without what its Trainer adds around it."""
    module = Classifier(num_classes).to(device)
    optimizer = module.configure_optimizers()

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        loss = module.loss(images, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step.model, step.optimizer = module.model, optimizer  # type: ignore[attr-defined]
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

    trainer = lightning.Trainer(
        accelerator="auto", devices=1, max_epochs=options.epochs, logger=False, enable_checkpointing=False
    )
    with DataLoader(
        options.dataset,
        tuned=options.tuned,
        shuffle=True,
        drop_last=True,
        augment="train",
        image_size=options.image_size,
        device=str(trainer.strategy.root_device),
    ) as loader:
        model = Classifier(len(loader.dataset.class_names))
        trainer.fit(model, loader)
    return model.losses


if __name__ == "__main__":
    print(f"last loss: {main()[-1]:.3f}")
