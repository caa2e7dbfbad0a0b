"""Train a ResNet of transformers with its Trainer, going on in the middle of an epoch where an earlier run was stopped.

python transformers_training.py DATASET --directory runs/first
torchrun --nproc-per-node 8 transformers_training.py DATASET --directory runs/first
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from wellfed.pipeline import DataLoader, as_torch_loader

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255


class StoredImagesTrainer(Trainer):
    """A Trainer that is given loaders instead of datasets."""

    def __init__(self, *, train_loader: Any, eval_loader: Any, **options: Any) -> None:
        # What the labels are called tells evaluation that there are some.
        options["args"].label_names = ["class"]
        super().__init__(**options)
        # As torch DataLoaders, so that a resumed epoch leaves out the batches that are done without reading them.
        self.train_loader = as_torch_loader(train_loader)
        self.eval_loader = as_torch_loader(eval_loader)
        self.losses: list[float] = []

    def get_train_dataloader(self) -> Any:
        return self.train_loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self.eval_loader

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        images = inputs["image"]
        pixels = (images.float() - MEAN.to(images.device)) / STD.to(images.device)
        outputs = model(pixel_values=pixels, labels=inputs["class"])
        if model.training:
            self.losses.append(outputs.loss.item())
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the loss of each batch of this run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--directory", type=Path, default=Path("runs/transformers"), help="of the checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of one process")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of one step of the optimizer")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--stop-after", type=int, default=-1, metavar="STEPS", help="end at this step of all")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args(arguments)

    settings = TrainingArguments(
        str(options.directory),
        num_train_epochs=options.epochs,
        max_steps=options.stop_after,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=options.batch_size,
        gradient_accumulation_steps=options.accumulate,
        # A constant rate: a schedule would end at another step in a run that is stopped early.
        lr_scheduler_type="constant",
        learning_rate=1e-3,
        save_steps=options.save_every,
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=options.cpu,
    )
    common: dict[str, Any] = {
        "batch_size": options.batch_size,
        "image_size": options.image_size,
        "device": str(settings.device),
        "fields": ("image", "class"),
    }
    # Made after TrainingArguments has set up the processes.
    with (
        DataLoader(options.dataset, shuffle=True, drop_last=True, augment="train", seed=0, **common) as train_loader,
        DataLoader(options.dataset, augment="eval", **common) as eval_loader,
    ):
        config = ResNetConfig(
            embedding_size=16,
            hidden_sizes=[16, 32, 64, 128],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            num_labels=len(train_loader.dataset.class_names),
        )
        torch.manual_seed(0)
        trainer = StoredImagesTrainer(
            model=ResNetForImageClassification(config),
            args=settings,
            train_loader=train_loader,
            eval_loader=eval_loader,
        )
        trainer.train(
            resume_from_checkpoint=get_last_checkpoint(str(options.directory)) if options.directory.is_dir() else None
        )
        print(trainer.evaluate())
    return trainer.losses


if __name__ == "__main__":
    done = main()
    print(f"last loss: {done[-1]:.3f}" if done else "nothing left to train: more --epochs, or another --directory?")
