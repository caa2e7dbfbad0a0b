"""Train ResNet-18 with Hugging Face Accelerate, going on in the middle of an epoch where an earlier run was stopped.

accelerate launch accelerate_training.py DATASET --directory runs/first
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from wellfed.pipeline import DataLoader

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the loss of each batch of this run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--directory", type=Path, default=Path("runs/accelerate"), help="of the checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of one process")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of one step of the optimizer")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--save-every", type=int, default=100, metavar="BATCHES")
    parser.add_argument("--stop-after", type=int, metavar="BATCHES", help="end early, as an interrupted run does")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args(arguments)

    accelerator = Accelerator(cpu=options.cpu, gradient_accumulation_steps=options.accumulate)
    set_seed(0)
    # Made after the Accelerator, which sets up the processes: the loader has its rank and its device from there.
    with DataLoader(
        options.dataset,
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        augment="train",
        image_size=options.image_size,
        device=str(accelerator.device),
        seed=0,
    ) as loader:
        model = resnet18(num_classes=len(loader.dataset.class_names)).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        # The loader divides the samples over the processes by itself, and gives batches on the device.
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.register_for_checkpointing(loader)
        finished = options.directory / "finished.json"
        if finished.exists():
            accelerator.load_state(options.directory)

        def save() -> None:
            accelerator.save_state(options.directory)
            if accelerator.is_main_process:
                finished.write_text(json.dumps({"batches": len(losses)}))

        mean, std = MEAN.to(accelerator.device), STD.to(accelerator.device)
        losses: list[float] = []
        while loader.epoch < options.epochs:
            for images, labels in loader:
                with accelerator.accumulate(model):
                    loss = cross_entropy(model((images.float() - mean) / std), labels)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
                stop = len(losses) == options.stop_after
                if stop or len(losses) % options.save_every == 0:
                    save()
                if stop:
                    accelerator.end_training()
                    return losses
        if losses:
            save()
    accelerator.end_training()
    return losses


if __name__ == "__main__":
    done = main()
    print(f"last loss: {done[-1]:.3f}" if done else "nothing left to train: more --epochs, or another --directory?")
