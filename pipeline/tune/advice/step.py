"""What is wrong with a step that runs: found in the calls of its memory probes, said in words, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from ...errors import StepError
from ...training import MemoryProbe
from ...training.step_facts import StepFacts
from ..rig import Probe

__all__ = ["leak_bytes", "refuse_fault", "step_notes"]

NOTED_LEAK_BYTES = 64 << 10
"""Growth a call that is worth a word; a loss that is kept without its graph is 512 bytes."""

NOTED_HOST_LEAK_BYTES = 512 << 10
"""Of host memory, whose reading wobbles by pages."""

CALLS_TO_LAST = 1000
"""A leak that fills memory within fewer calls ends a tune: it makes more of them than that."""

_WARM_CALLS = 3
_LEAST_CALLS = 6
_GROWING_SHARE = 0.8
_SAME_SECONDS = 1.1


def refuse_fault(step: str, probe: MemoryProbe) -> None:
    """Refuse a step that raised, hung or ended its process in a probe: it would do so here too.

    Raises:
        StepError: with the traceback of the child, or where its threads stood, as a note.
    """
    if probe.fault is None:
        return
    if probe.fault == "raised":
        # These words are a StepError's own already.
        remedy = probe.remedy or "Mend the step; --debug shows its traceback."
        error = StepError((probe.error or "").removesuffix("."), remedy=remedy)
    elif probe.fault == "hung":
        error = StepError(
            f"each call of the step {step} must return",
            got=probe.error,
            remedy="Look for a lock, a queue, or a collective that waits for another rank; --debug shows where each "
            "thread stood.",
        )
    else:
        error = StepError(
            f"the step {step} must leave its process alive",
            got=probe.error,
            remedy="Look for os._exit, a crash in a native library, or host memory that ran out; --debug shows what "
            "the process wrote last.",
        )
    if probe.details:
        error.add_note(f"In the probing process:\n{probe.details}")
    raise error


def leak_bytes(sizes: Sequence[int], least: int) -> float | None:
    """Bytes that stay after each call: the median step of a series that grows in nearly every one.

    Args:
        sizes: in use after each call; the first ones, in which caches fill, do not count.
        least: smaller growth is none.
    """
    late = sizes[_WARM_CALLS:]
    if len(late) < _LEAST_CALLS:
        return None
    steps = [after - before for before, after in pairwise(late)]
    middle = median(steps)
    growing = sum(step > 0 for step in steps) >= _GROWING_SHARE * len(steps)
    return float(middle) if growing and middle >= least else None


def step_notes(
    step: str, probes: Iterable[Probe], *, device_bytes: int | None, host_bytes: int | None, on_cuda: bool
) -> list[str]:
    """Notes on a step that runs and yet does not do what a training step does.

    Args:
        step: its name.
        probes: of at least one batch size.
        device_bytes: the memory cap; None where it is not known.
        host_bytes: available; None where it is not known.
        on_cuda: the device is a GPU.

    Raises:
        StepError: it keeps so much memory from call to call that a tune could not end.
    """
    known = sorted(((p.batch_size, p.facts) for p in probes if p.facts is not None), key=lambda pair: pair[0])
    if not known:
        return []
    notes = []
    size, facts = known[0]
    for where, sizes, room, least in (
        ("Device", facts.device_bytes, device_bytes, NOTED_LEAK_BYTES),
        ("Host", facts.host_bytes, host_bytes, NOTED_HOST_LEAK_BYTES),
    ):
        leak = None if sizes is None else leak_bytes(sizes, least)
        if leak is not None and sizes is not None:
            notes.append(_leak(step, where, leak, size, None if room is None else room - sizes[-1]))
    if facts.returned == "NoneType":
        notes.append(
            f"The step {step} returns nothing. That is enough to measure it; whether its loss stays finite could not "
            "be checked."
        )
    elif facts.loss_finite is False:
        notes.append(
            f"The step {step} returned a loss that is not finite after {len(facts.call_seconds)} calls on random "
            "images: speed and memory are measured all the same, but check its learning rate and precision."
        )
    if on_cuda and (reason := _on_cpu(facts)):
        notes.append(
            f"The step {step} seems to run on the CPU although its device is a GPU: {reason}. Put model and loss on "
            "the `device` that the function is called with."
        )
    if len(known) > 1 and _ignores_size(facts, known[-1][1], known[-1][0] / size):
        larger, more = known[-1]
        notes.append(
            f"The step {step} takes as long for {larger} samples ({1000 * _seconds(more):.1f} ms) as for {size} "
            f"({1000 * _seconds(facts):.1f} ms), and no more device memory: does it use the whole batch? If not, "
            "samples/s mean nothing, since they grow with the batch size by themselves."
        )
    return notes


def _leak(step: str, where: str, leak: float, batch_size: int, room: int | None) -> str:
    slope = f"{where} memory grows by {leak / 2**20:.2f} MiB a step at batch {batch_size}"
    remedy = "Keep numbers, not tensors: loss.item() or loss.detach().cpu(), and no list that is never emptied."
    calls = None if room is None else max(0, int(room / leak))
    if calls is not None and calls < CALLS_TO_LAST:
        raise StepError(
            f"the step {step} must not keep tensors alive from call to call",
            got=f"{slope}, so that it is full after {calls} more",
            remedy=remedy,
        )
    return f"Leak: {slope}: the step {step} keeps something alive from call to call. {remedy}"


def _on_cpu(facts: StepFacts) -> str | None:
    if facts.parameters_on == "cpu":
        return "its model's parameters lie there"
    if facts.device_work_bytes is not None and facts.device_work_bytes < facts.batch_bytes:
        # A captured graph allocates nothing in a call, but its memory is held from its capture on.
        return f"building and calling it took {facts.device_work_bytes} bytes on the GPU beside the batches"
    return None


def _seconds(facts: StepFacts) -> float:
    late = facts.call_seconds[_WARM_CALLS:] or facts.call_seconds
    return median(late)


def _ignores_size(small: StepFacts, large: StepFacts, times: float) -> bool:
    """Whether several times the samples take neither more time nor more memory.

    Time alone does not tell on a GPU: a step that launches bind takes as long for four times the samples.
    """
    if times < 2 or not small.call_seconds or not large.call_seconds:
        return False
    if small.device_work_bytes is not None and large.device_work_bytes is not None:
        grown = large.device_work_bytes - small.device_work_bytes
        if grown > large.batch_bytes - small.batch_bytes:
            return False
    return _seconds(large) < _SAME_SECONDS * _seconds(small)
