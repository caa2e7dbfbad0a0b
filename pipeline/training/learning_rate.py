"""Advice on the learning rate for another batch size; never applied by us."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import UsageError

__all__ = ["OPTIMIZERS", "LearningRateAdvice", "advise_learning_rate"]

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True, kw_only=True)
class LearningRateAdvice:
    """What the rule of an optimizer says.

    Attributes:
        learning_rate: for the batch size asked about.
        factor: of the learning rate, over the base.
        warmup_epochs: (least, most) epochs in which to rise to it from the base rate; None where none is needed.
        rule, source: of the figure.
        warning: what no rule can promise.
    """

    optimizer: str
    batch_size: int
    base_batch: int
    base_learning_rate: float
    learning_rate: float
    factor: float
    warmup_epochs: tuple[int, int] | None
    rule: str
    source: str
    warning: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def advise_learning_rate(
    *, optimizer: str, batch_size: int, base_batch: int, base_learning_rate: float
) -> LearningRateAdvice:
    """Scale a learning rate that is known to work at one global batch size to another.

    SGD: linear, with 5 to 10 epochs of warm-up where the batch grows (Goyal et al. 2017, arXiv:1706.02677).
    Adam: square root (Malladi et al. 2022, arXiv:2205.10287).

    Args:
        optimizer: "sgd" (with momentum) or "adam" (also AdamW).
        batch_size, base_batch: samples in an optimizer step, over all ranks and accumulation.
        base_learning_rate: the one that works at `base_batch`.

    Raises:
        UsageError: an unknown optimizer, or a number that is not positive.
    """
    if optimizer not in OPTIMIZERS:
        raise UsageError("the optimizer is sgd or adam", got=optimizer, remedy="Use adam also for AdamW.")
    for name, value in (("batch size", batch_size), ("base batch", base_batch), ("base rate", base_learning_rate)):
        if not (0 < value < math.inf):
            raise UsageError(f"the {name} must be positive", got=value, remedy="Give the one in use.")
    ratio = batch_size / base_batch
    if optimizer == "sgd":
        factor, rule, source = ratio, "linear", "Goyal et al. 2017, arXiv:1706.02677"
        warmup = (5, 10) if ratio > 1 else None
    else:
        factor, rule, source = math.sqrt(ratio), "square root", "Malladi et al. 2022, arXiv:2205.10287"
        warmup = None
    if ratio > 1:
        warning = "a larger batch must be watched on validation data: past some size no rule keeps the accuracy"
    else:
        warning = "watch validation data after any change of the batch size"
    return LearningRateAdvice(
        optimizer=optimizer,
        batch_size=batch_size,
        base_batch=base_batch,
        base_learning_rate=base_learning_rate,
        learning_rate=base_learning_rate * factor,
        factor=factor,
        warmup_epochs=warmup,
        rule=rule,
        source=source,
        warning=warning,
    )
