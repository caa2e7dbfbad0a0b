"""Pure functions of seed, epoch, key and position: no I/O, no threads, no state."""

from .order import BatchPlan, cut_batches, epoch_order, steps_left
from .philox import philox4x32, sample_words, uniform

__all__ = ["BatchPlan", "cut_batches", "epoch_order", "philox4x32", "sample_words", "steps_left", "uniform"]
