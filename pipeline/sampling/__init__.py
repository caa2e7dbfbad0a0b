"""Pure functions of seed, epoch, key and position: no I/O, no threads, no state."""

from .draws import class_weights, shares, with_repeats
from .epochs import EpochRows, MixSampling, Sampling, Shards, SingleSampling
from .order import BatchPlan, cut_batches, epoch_order, steps_left
from .philox import philox4x32, sample_hash, sample_words, uniform
from .sharded import SHARDED_WINDOW, sharded_order

__all__ = [
    "SHARDED_WINDOW",
    "BatchPlan",
    "EpochRows",
    "MixSampling",
    "Sampling",
    "Shards",
    "SingleSampling",
    "class_weights",
    "cut_batches",
    "epoch_order",
    "philox4x32",
    "sample_hash",
    "sample_words",
    "sharded_order",
    "shares",
    "steps_left",
    "uniform",
    "with_repeats",
]
