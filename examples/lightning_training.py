"""Train ResNet-18 with PyTorch Lightning, going on in the middle of an epoch where an earlier run was stopped.

python lightning_training.py DATASET --directory runs/first --devices 1
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from wellfed.pipeline import DataLoader, open_source


class StoredImages(lightning.LightningDataModule):
    """Loaders for training and validation over one stored dataset.

    The loaders are made in the hooks, where Lightning has set up its processes, so that each has its rank; and the
    place in the epoch is part of the data module's state, which Lightning restores from every checkpoint.
    """

    def __init__(self, dataset: str, *, batch_size: int, image_size: int) -> None:
        super().__init__()
        self.dataset = dataset
        self.batch_size = batch_size
        self.image_size = image_size
        self._train: Any = None
        self._validation: Any = None
        self._loaded: dict[str, Any] | None = None

    def _open(self, **options: Any) -> Any:
        assert self.trainer is not None
        return DataLoader(
            self.dataset,
            batch_size=self.batch_size,
            image_size=self.image_size,
            device=str(self.trainer.strategy.root_device),
            **options,
        )

    def train_dataloader(self) -> Any:
        if self._train is not None:  # reload_dataloaders_every_n_epochs
            self._train.close()
        self._train = self._open(shuffle=True, drop_last=True, augment="train", seed=0)
        if self._loaded is not None:
            self._train.load_state_dict(self._loaded)
            self._loaded = None
        elif self.trainer is not None:
            self._train.set_epoch(self.trainer.current_epoch)
        return self._train

    def val_dataloader(self) -> Any:
        # Every rank the same number of steps, as Lightning's collectives need.
        self._validation = self._open(augment="eval")
        return self._validation

    def state_dict(self) -> dict[str, Any]:
        return self._train.state_dict() if self._train is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict or None

    def teardown(self, stage: str) -> None:
        for loader in (self._train, self._validation):
            if loader is not None:
                loader.close()
        self._train = self._validation = None


class Classifier(lightning.LightningModule):
    """ResNet-18 that normalizes uint8 images on its own device."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.model = resnet18(num_classes=classes)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255, persistent=False)
        self.losses: list[float] = []

    def _loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return cross_entropy(self.model((images.float() - self.mean) / self.std), labels)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self._loss(batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch), batch_size=len(batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the loss of each step of this run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--directory", type=Path, default=Path("runs/lightning"), help="of the checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of one device")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--stop-after", type=int, default=-1, metavar="STEPS", help="end at this step of all")
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args(arguments)

    with closing(open_source(options.dataset)) as source:
        classes = len(source.class_names)
    lightning.seed_everything(0)
    model = Classifier(classes)
    trainer = lightning.Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        max_epochs=options.epochs,
        max_steps=options.stop_after,
        callbacks=[
            ModelCheckpoint(options.directory, save_last=True, save_top_k=0, every_n_train_steps=options.save_every)
        ],
        logger=False,
    )
    data = StoredImages(options.dataset, batch_size=options.batch_size, image_size=options.image_size)
    last = options.directory / "last.ckpt"
    trainer.fit(model, datamodule=data, ckpt_path=last if last.exists() else None)
    return model.losses


if __name__ == "__main__":
    done = main()
    print(f"last loss: {done[-1]:.3f}" if done else "nothing left to train: more --epochs, or another --directory?")
