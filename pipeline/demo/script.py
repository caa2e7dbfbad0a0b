"""The short training script that the demo leaves: complete, and it runs as it is."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["training_script"]

_TEMPLATE = '''"""One epoch on the demo's images with the tuned loader.

Run it in the folder where `wellfed demo` ran: python {path}
"""

import time

import torch
{first}


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # A small network, so that the script runs anywhere in seconds; yours goes here.
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, kernel_size=7, stride=4),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, {classes}),
    ).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    {second}
    started, seen = time.perf_counter(), 0
    {third}
        # Batches are uint8: the conversion to float runs on the device.
        inputs = images.to(device).float().div_(255).sub_(0.45).div_(0.225)
        loss = torch.nn.functional.cross_entropy(model(inputs), labels.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        seen += len(labels)
        print(f"{{seen}} images, loss {{loss.item():.3f}}, {{seen / (time.perf_counter() - started):.0f}} images/s")


if __name__ == "__main__":  # worker processes import this file
    main()
'''


def training_script(lines: Sequence[str], *, path: str, classes: int) -> str:
    """The script around the three lines of Python that use a tuned config.

    Args:
        lines: the import, the loader, the loop.
        path: of the script, for its first line.
        classes: of the dataset.
    """
    first, second, third = lines
    return _TEMPLATE.format(first=first, second=second, third=third.removesuffix(" ..."), path=path, classes=classes)
