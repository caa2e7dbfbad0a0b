"""Train ResNet-18 with a plain PyTorch loop, going on in the middle of an epoch where an earlier run was stopped.

python torch_training.py DATASET --directory runs/first
torchrun --nproc-per-node 8 torch_training.py DATASET --directory runs/first
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torchvision.models import resnet18

from wellfed.pipeline import DataLoader

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train, and return the loss of each step of this run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--directory", type=Path, default=Path("runs/torch"), help="of the checkpoint")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of one process")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="end early, as an interrupted run does")
    options = parser.parse_args(arguments)

    several = "RANK" in os.environ
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if several:
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")

    # Its ranks are those of the process group, so it is made after that.
    with DataLoader(
        options.dataset,
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        augment="train",
        image_size=options.image_size,
        device=str(device),
        seed=0,
    ) as loader:
        torch.manual_seed(0)
        model: torch.nn.Module = resnet18(num_classes=len(loader.dataset.class_names))
        model = model.to(device).to(memory_format=torch.channels_last)
        if several:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        checkpoint = options.directory / "checkpoint.pt"
        step = 0
        if checkpoint.exists():
            saved = torch.load(checkpoint, map_location=device, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]

        def save() -> None:
            # The place of the loader is the same on all ranks, so one checkpoint serves them all.
            if int(os.environ.get("RANK", 0)) == 0:
                options.directory.mkdir(parents=True, exist_ok=True)
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                    "step": step,
                }
                torch.save(saved, checkpoint)

        mean, std = MEAN.to(device), STD.to(device)
        losses: list[float] = []
        stop = False
        # The loader counts its epochs, also across checkpoints; set_epoch is not needed.
        while loader.epoch < options.epochs and not stop:
            for images, labels in loader:
                loss = cross_entropy(model((images.float() - mean) / std), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                step += 1
                stop = len(losses) == options.stop_after
                if stop or step % options.save_every == 0:
                    save()
                if stop:
                    break
        if losses and not stop:
            save()
    if several:
        torch.distributed.destroy_process_group()
    return losses


if __name__ == "__main__":
    done = main()
    print(f"last loss: {done[-1]:.3f}" if done else "nothing left to train: more --epochs, or another --directory?")
