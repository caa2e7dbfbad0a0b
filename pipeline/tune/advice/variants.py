"""Gradient checkpointing and autocast, tried where memory or speed binds, as advice with numbers; never applied."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

from ...training.variants import Variant
from ..measure.memory import Line, MemoryPlan
from ..rig import Probe, Rig
from ..search.search import Record

__all__ = ["PROBE_SECONDS", "try_variants", "variant_advice", "variants_worth_trying"]

PROBE_SECONDS = 20.0
"""What must be left of a budget for one more child process, or as long as the longest so far took."""

_WARM_CALLS = 3
_NAMES: dict[Variant, str] = {
    "checkpointing": "gradient checkpointing (torch.utils.checkpoint on the model's repeated blocks)",
    "autocast": "autocast to bfloat16 around the model's forward",
}


def variants_worth_trying(*, memory_binds: bool, step_binds: bool) -> tuple[Variant, ...]:
    """Checkpointing gives memory for time; autocast gives both, so it is worth a try whichever binds."""
    if memory_binds:
        return ("checkpointing", "autocast")
    return ("autocast",) if step_binds else ()


def try_variants(
    rig: Rig,
    memory: MemoryPlan,
    chosen: Record,
    *,
    fed_target: float,
    left: Callable[[], float],
    probe_seconds: float,
    say: Callable[[str], None],
) -> list[str]:
    """Checkpointing and autocast of the step's model, where they could help: its memory or its speed binds.

    Args:
        left: seconds of the budget that are left.
        probe_seconds: what must be left for one more child process.
        say: reports what is tried now.

    Returns:
        Notes for the report; none where the step shows no model.
    """
    size = chosen.trial.batch_size
    base = memory.probes.get(size)
    if base is None or base.facts is None or base.facts.parameters_on is None:
        return []
    fed = chosen.medians()["fed_ratio"]
    worth = variants_worth_trying(
        memory_binds=any(larger > size and not memory.likely(larger) for larger in memory.sizes),
        step_binds=fed is not None and fed >= fed_target,
    )
    notes: list[str] = []
    for variant in worth:
        if left() < probe_seconds:
            return [*notes, f"The budget left no time to try {variant} on the step."]
        say(f"the step with {variant}, in a child process")
        told = variant_advice(
            base, partial(rig.probe_variant, size), variant, cap_bytes=memory.cap_bytes, line=memory.line
        )
        notes += [] if told is None else [told]
    return notes


def variant_advice(
    base: Probe, probe: Callable[[Variant], Probe], variant: Variant, *, cap_bytes: int | None, line: Line | None
) -> str | None:
    """One sentence about a variant, from two probes of the same batch size.

    Args:
        base: the step as it is; it has facts and a peak.
        probe: tries a variant at the same batch size.
        variant: which.
        cap_bytes: the memory cap; None where it is not known.
        line: peaks of the step as it is over the batch size; None where it is not known.

    Returns:
        None where there is nothing to compare with.
    """
    if base.facts is None or base.peak_bytes is None or len(base.facts.call_seconds) <= _WARM_CALLS:
        return None
    found = probe(variant)
    size, name = base.batch_size, _NAMES[variant]
    if found.out_of_memory or found.facts is None or found.peak_bytes is None:
        return f"Not tried: {name}: {'out of memory' if found.out_of_memory else found.error or 'no reason was given'}."
    before, after = (median(p.call_seconds[_WARM_CALLS:]) for p in (base.facts, found.facts))
    saved = base.peak_bytes - found.peak_bytes
    words = [
        f"{_gib(base.peak_bytes)} to {_gib(found.peak_bytes)} at peak",
        f"{1000 * before:.1f} to {1000 * after:.1f} ms a step ({_change(before / after)} samples/s)",
    ]
    larger = _largest(line, saved / size, cap_bytes)
    if larger is not None and larger > size and saved > 0:
        words.append(f"batch {larger} would fit under the cap by the line through the peaks")
    # One process each: differences of some percent are between processes as well.
    return f"Tried on your step at batch {size}, not applied: {name}: {'; '.join(words)}. Watch the loss if you use it."


def _largest(line: Line | None, saved_a_sample: float, cap_bytes: int | None) -> int | None:
    """The largest power of two that would fit, if each sample took so much less."""
    if line is None or cap_bytes is None:
        return None
    slope = line.bytes_per_sample - saved_a_sample
    if slope <= 0:
        return None
    samples = int((cap_bytes - line.intercept_bytes) / slope)
    return None if samples < 1 else 1 << (samples.bit_length() - 1)


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f}%"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
