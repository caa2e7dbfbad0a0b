"""Random numbers for the callables of users: a function of (seed, epoch, sample) alone, as crops and flips are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch

from ..sampling import sample_words

__all__ = ["BATCH_DRAW", "TRANSFORM_DRAW", "GlobalRandomness", "batch_words", "generator_of", "transform_words"]

TRANSFORM_DRAW = 0xFFFFFFF9
BATCH_DRAW = 0xFFFFFFF8
"""Draw numbers of `sample_words` that nothing else has: those of crops count from 0, those of orders down from 2^32."""

Words = Sequence[int]
"""Four of 32 bits."""


def transform_words(seed: int, epoch: int, keys: np.ndarray) -> list[list[int]]:
    """What the random numbers of each sample's transform are made from.

    Args:
        keys: as `BatchTask.crop_keys` gives them, so that a sample drawn twice gets others the second time.
    """
    return sample_words(seed, epoch, keys, TRANSFORM_DRAW).tolist()


def batch_words(seed: int, epoch: int, position: int, rank: int) -> list[int]:
    """What the random numbers of a whole batch are made from.

    Args:
        position: samples of the epoch consumed, over all ranks, once the batch is handed over; below 2**40.
    """
    return sample_words(seed, epoch, np.array([rank << 40 | position], dtype=np.uint64), BATCH_DRAW)[0].tolist()


def generator_of(words: Words, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own."""
    return torch.Generator(device).manual_seed(words[0] << 32 | words[1])


class GlobalRandomness:
    """The generators that `random`, `numpy.random` and torch share in a process, lent for a while.

    A context manager: on leaving they go on as if nothing had been drawn. Only for one thread at a time, while the
    thread that trains draws nothing.

    Args:
        device: also torch's generator of this CUDA device.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._torch = [torch.default_generator]
        if device is not None and device.type == "cuda":
            torch.cuda.init()
            number = torch.cuda.current_device() if device.index is None else device.index
            self._torch.append(torch.cuda.default_generators[number])
        self._before: tuple[Any, Any, list[torch.Tensor]] | None = None

    def __enter__(self) -> GlobalRandomness:
        states = [generator.get_state() for generator in self._torch]
        self._before = random.getstate(), np.random.get_state(), states
        return self

    def seed(self, words: Words) -> None:
        """Start all of them anew from these words."""
        random.seed(words[0] << 96 | words[1] << 64 | words[2] << 32 | words[3])
        np.random.seed(words[2])
        for generator in self._torch:
            generator.manual_seed(words[0] << 32 | words[1])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._before is not None:
            of_random, of_numpy, of_torch = self._before
            random.setstate(of_random)
            np.random.set_state(of_numpy)
            for generator, state in zip(self._torch, of_torch, strict=True):
                generator.set_state(state)
