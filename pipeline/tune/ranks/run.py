"""One tune on several ranks: each opens its device and its part of the data, rank 0 decides, all have the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from ...config import TuneRequest
from ...formats import Source
from ...hardware import fingerprint, preflight
from ...training.process_group import OwnGroup
from ..driver import Progress
from ..outcome import TuneOutcome
from ..run import Opened, find_settings, look_around, opened
from .agreement import Ranks
from .asked import arguments_of, check_same, opened_things
from .device import check_devices, device_identity, device_of_rank, joined_device, joined_limits
from .rig import RanksRig, follow
from .store import shared_store

__all__ = ["on_all_ranks", "run_on_ranks"]


@contextmanager
def on_all_ranks(
    data: str | Source, step: str, device: str, *, image_size: int, seed: int, clock: Callable[[], float]
) -> Iterator[tuple[Ranks, Opened]]:
    """What a measurement on every rank needs, open; rank 0 leads it with a `RanksRig`, the others `follow`.

    Args:
        device: "auto" and "cuda" are each rank's own GPU.

    Raises:
        UsageError: no such dataset, step or device, two ranks on one GPU, or ranks with different ones of these.
        ResourceError: a rank does not come, or does not answer any more.
    """
    with shared_store() as shared:
        ranks = Ranks(shared.store, shared.rank, shared.world_size, host=shared.host)
        try:
            with ExitStack() as stack:
                on: Opened = ranks.agreed(
                    lambda: stack.enter_context(
                        opened(
                            data,
                            step,
                            device_of_rank(device),
                            image_size=image_size,
                            seed=seed,
                            clock=clock,
                            together=ranks,
                        )
                    )
                )
                check_same(ranks.gather(lambda: opened_things(on.source, on.spec, on.accelerator, seed)))
                check_devices(ranks.gather(lambda: device_identity(on.accelerator.torch_device)))
                group = OwnGroup(shared.store, ranks.rank, ranks.world_size, on.accelerator.torch_device)
                ranks.agreed(lambda: stack.enter_context(group))
                ranks.use(group)
                # Steps hold the group's collectives, so they end before it.
                stack.callback(on.rig.close)
                yield ranks, on
        except BaseException as error:
            ranks.leave(error)
            raise
        finally:
            # The store ends with rank 0.
            ranks.part()


def run_on_ranks(
    request: TuneRequest, *, source: Source | None, say: Progress, clock: Callable[[], float]
) -> TuneOutcome:
    """See `run_tune`; called on every rank.

    Raises:
        as `run_tune`, the same on all ranks; UsageError where ranks ask for different things; ResourceError where a
        rank does not come, or does not answer any more.
    """
    started = clock()
    with on_all_ranks(
        request.data if source is None else source,
        request.step,
        request.device,
        image_size=request.image_size,
        seed=request.seed,
        clock=clock,
    ) as (ranks, on):
        outcome = _outcome(ranks, on, request, say=say, started=started)
    return outcome if source is None else replace(outcome, source=source)


def _outcome(ranks: Ranks, on: Opened, request: TuneRequest, *, say: Progress, started: float) -> TuneOutcome:
    check_same(ranks.gather(lambda: arguments_of(request)))
    if ranks.rank == 0:
        say(f"looking at the machine, on {ranks.world_size} ranks", 0.0)
    facts, machine = preflight(), fingerprint()
    identities = ranks.gather(lambda: device_identity(on.accelerator.torch_device))
    around = ranks.gather(lambda: look_around(on, facts, request))
    shares = ranks.gather(lambda: (around[ranks.rank][0], on.device))
    if ranks.rank > 0:
        told: TuneOutcome = follow(on.rig, ranks)
        return replace(told, device=on.accelerator.torch_device, rank=ranks.rank)
    rig = RanksRig(on.rig, ranks)
    try:
        outcome = find_settings(
            on,
            rig,
            request,
            joined_limits([limits for limits, _ in shares]),
            joined_device([device for _, device in shares]),
            say=say,
            started=started,
            notes=[f"Rank {number}: {note}" for number, (_, note) in enumerate(around) if note],
            machine=machine,
            facts=facts,
            world_size=ranks.world_size,
        )
        outcome = replace(outcome, report=_with_ranks(outcome.report, ranks.world_size, identities))
    except BaseException as error:
        rig.fail(error)
        raise
    rig.end(outcome)
    say("done", 1.0)
    return outcome


def _with_ranks(report: dict[str, Any], world_size: int, identities: list[str | None]) -> dict[str, Any]:
    """The report with what is said of all ranks together."""
    batch_size = report["tuned"]["settings"]["batch_size"]
    speed = report["tuned"]["measured"]["samples_per_second"]
    together = None if speed is None else speed * world_size
    words = (
        f"Measured on {world_size} ranks together. Batch size, samples/s, waits and memory are of one rank, the "
        f"slowest and the fullest: the global batch is {batch_size * world_size}"
        + (f", and together they train {together:.0f} samples/s." if together is not None else ".")
    )
    verdict = {**report["verdict"], "advice": [*report["verdict"]["advice"], words]}
    ranks = {
        "world_size": world_size,
        "global_batch": batch_size * world_size,
        "samples_per_second": together,
        "devices": identities,
    }
    return {**report, "verdict": verdict, "ranks": ranks}
