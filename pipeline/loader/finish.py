"""What happens to a batch on its device before it is handed over: augmentation, normalization."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..augment.output import ImageOutput
from ..config import LoaderConfig
from ..errors import UsageError, words_of
from .batch import HostBatch
from .blocks import Blocks
from .memory import does_not_fit

__all__ = ["Finish", "Tensors", "finished_bytes", "make_finish"]

Tensors = dict[str, Any]
Finish = Callable[[HostBatch, Tensors], Tensors]
"""From a batch and those of its tensors that the consumer gets, on their device, to what is handed over; on a CUDA
device everything runs on the current stream."""

SPARE_BATCHES = 4
"""Free batches of output that are kept: what a consumer drops comes back at once, so one or two are in use."""


def finished_bytes(config: LoaderConfig, batch_size: int) -> int:
    """Bytes of host memory of the images of a finished batch, beside those of the batch as it is decoded."""
    if torch.device(config.device).type != "cpu" or (config.dtype == "uint8" and not config.device_augment):
        return 0
    return batch_size * 3 * config.image_size**2 * getattr(torch, config.dtype).itemsize


def make_finish(config: LoaderConfig) -> Finish | None:
    """What the configuration asks for; None where batches stay as they are decoded.

    Raises:
        UsageError: augmentation or normalization of images that the batches do not hold.
    """
    pin_memory = torch.device(config.device).type == "cpu" and config.settings.pin_memory and torch.cuda.is_available()
    blocks = Blocks(spare=SPARE_BATCHES)

    def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        try:
            if pin_memory:
                # torch's caching allocator uses it again by itself.
                return torch.empty(shape, dtype=dtype, pin_memory=True)
            return blocks.uint8((*shape[:-1], shape[-1] * dtype.itemsize)).view(dtype)
        except (MemoryError, RuntimeError) as error:
            # torch has no class for want of host memory; an empty tensor fails for nothing else.
            raise does_not_fit(shape[0], math.prod(shape) * dtype.itemsize, words_of(error)) from error

    output = ImageOutput(
        dtype=config.dtype,
        normalize=config.normalize,
        augmentations=config.device_augment,
        seed=config.seed,
        image_size=config.image_size,
        allocate=allocate,
    )
    if output.changes_nothing:
        return None
    if config.fields is not None and "image" not in config.fields:
        raise UsageError(
            "device_augment, dtype and normalize are about images, so fields must hold 'image'",
            got=f"fields={config.fields!r}",
            remedy="Add it, or leave them out.",
        )

    def finish(batch: HostBatch, tensors: Tensors) -> Tensors:
        keys = batch.task.crop_keys(batch.keys.numpy().astype(np.uint64))
        return {**tensors, "image": output(tensors.get("image"), epoch=batch.task.epoch, keys=keys)}

    return finish
