"""What the chosen batch size means for training: accumulation and learning rate, as numbers and as lines to paste.

Advice only: nothing here is applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...config import TuneRequest
from ...training.learning_rate import LearningRateAdvice, advise_learning_rate

__all__ = ["BatchAdvice", "OptimizerFacts", "advise_batch", "optimizer_facts"]


@dataclass(frozen=True)
class OptimizerFacts:
    """What a step's own optimizer says: "sgd" or "adam" and its learning rate; None where it does not."""

    kind: str | None = None
    learning_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class BatchAdvice:
    """Accumulation and learning rate.

    Attributes:
        batch_size: of one rank.
        world_size: ranks.
        accumulation: batches of a rank in one step of the optimizer.
        global_batch: samples in a step of the optimizer with them.
        learning_rate: None where no base was given.
        words: sentences.
        lines: of Python, with `loss`, `optimizer` and `number` (of the batch, from 1) as the training loop's names.
    """

    batch_size: int
    world_size: int
    accumulation: int
    global_batch: int
    learning_rate: LearningRateAdvice | None
    words: tuple[str, ...]
    lines: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report's `batch_advice`."""
        return {
            "batch_size": self.batch_size,
            "world_size": self.world_size,
            "accumulation": self.accumulation,
            "global_batch": self.global_batch,
            "learning_rate": None if self.learning_rate is None else self.learning_rate.to_dict(),
            "words": list(self.words),
            "lines": list(self.lines),
        }


def optimizer_facts(optimizer: Any) -> OptimizerFacts:
    """Kind and learning rate of a torch optimizer; of its first group, where groups differ nothing is said."""
    names = {kind.__name__.lower() for kind in type(optimizer).__mro__}
    kind = "sgd" if "sgd" in names else "adam" if any(name.startswith("adam") for name in names) else None
    rates = {float(group["lr"]) for group in getattr(optimizer, "param_groups", ()) if "lr" in group}
    return OptimizerFacts(kind, rates.pop() if len(rates) == 1 else None)


def advise_batch(
    request: TuneRequest, batch_size: int, *, world_size: int, samples: int, own: OptimizerFacts
) -> BatchAdvice | None:
    """Advice for the chosen batch size; None where neither a global batch nor a base was given.

    Args:
        request: its global_batch, base_lr, base_batch and optimizer.
        samples: of the dataset, for the length of the warm-up.
        own: of the step, where the request leaves something out.
    """
    kind, base_rate = request.optimizer or own.kind, request.base_lr or own.learning_rate
    if request.global_batch is None and request.base_batch is None:
        return None
    words: list[str] = []
    lines: list[str] = []
    together = batch_size * world_size
    accumulation = 1
    if request.global_batch is not None:
        accumulation = max(1, round(request.global_batch / together))
        words.append(_accumulation_words(request.global_batch, batch_size, world_size, accumulation))
    if accumulation > 1:
        lines += [
            f"(loss / {accumulation}).backward()",
            f"if number % {accumulation} == 0:",
            "    optimizer.step()",
            "    optimizer.zero_grad(set_to_none=True)",
        ]
    reached = accumulation * together
    rate = None
    if request.base_batch is not None and (kind is None or base_rate is None):
        missing = [name for name, value in (("--optimizer", kind), ("--base-lr", base_rate)) if value is None]
        words.append(f"For advice on the learning rate give {' and '.join(missing)}: the step does not show it.")
    elif request.base_batch is not None and kind is not None and base_rate is not None:
        rate = advise_learning_rate(
            optimizer=kind, batch_size=reached, base_batch=request.base_batch, base_learning_rate=base_rate
        )
        steps = max(1, samples // reached)
        words.append(_rate_words(rate))
        lines += ["for group in optimizer.param_groups:", f'    group["lr"] = {rate.learning_rate:.6g}']
        if rate.warmup_epochs is not None:
            lines += [
                "warmup = torch.optim.lr_scheduler.LinearLR(",
                f"    optimizer, start_factor={1 / rate.factor:.6g}, total_iters={rate.warmup_epochs[0] * steps}",
                ")  # warmup.step() after each optimizer.step()",
            ]
    return BatchAdvice(
        batch_size=batch_size,
        world_size=world_size,
        accumulation=accumulation,
        global_batch=reached,
        learning_rate=rate,
        words=tuple(words),
        lines=tuple(lines),
    )


def _accumulation_words(wanted: int, batch_size: int, world_size: int, accumulation: int) -> str:
    together = batch_size * world_size
    reached = accumulation * together
    ranks = "" if world_size == 1 else f" on {world_size} ranks"
    if reached == wanted:
        many = "no accumulation" if accumulation == 1 else f"accumulate {accumulation} batches"
        return f"Global batch {wanted}: {many} of {batch_size}{ranks}."
    exact = max((b for b in range(1, batch_size + 1) if wanted % (b * world_size) == 0), default=None)
    instead = (
        f"no batch size divides it by {world_size} ranks"
        if exact is None
        else f"batch {exact} with {wanted // (exact * world_size)} accumulated would keep it exactly"
    )
    return (
        f"Global batch {wanted} is not a multiple of {together}: {accumulation} x {batch_size}{ranks} makes {reached}; "
        f"{instead}."
    )


def _rate_words(rate: LearningRateAdvice) -> str:
    warm = ""
    if rate.warmup_epochs is not None:
        least, most = rate.warmup_epochs
        warm = f", rising to it from {rate.base_learning_rate:g} over the first {least} to {most} epochs"
    return (
        f"Learning rate {rate.learning_rate:.4g} for a global batch of {rate.batch_size} "
        f"({rate.rule} rule from {rate.base_learning_rate:g} at {rate.base_batch}, {rate.optimizer}; "
        f"{rate.source}){warm}; {rate.warning}."
    )
