"""Scaling over GPUs, told apart: what communication takes of the step, and what the loader takes of what is left."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..common.ratios import ratio
from ..common.windows import median_of, no_result, rates

WANTED_FED = 0.95
WANTED_UTIL = 70.0


def summarize(many: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Of W ranks beside one, with the same settings of each rank.

    `communication` is the ceiling of one of W ranks over the ceiling of one rank alone: what all-reduces, and ranks
    that share a host, leave of a step without a loader. `loader` is the fed ratio of W ranks, paired by round.
    `scaling`, fed samples/s over W times the ceiling of one, is their product but for the medians.
    """
    ceiling, alone = statistics.median(rates(many["ceiling"])), statistics.median(rates(one["ceiling"]))
    loader = ratio(rates(many["fed"]), rates(many["ceiling"]))
    fed = statistics.median(rates(many["fed"]))
    utils = [
        median_of([window["ranks"][rank]["util_percent"] for window in many["fed"]])
        for rank in range(many["world_size"])
    ]
    summary: dict[str, Any] = {
        "world_size": many["world_size"],
        "batch_size": many["settings"]["batch_size"],
        "samples_per_second": round(fed * many["world_size"], 1),
        "ceiling_of_one": round(alone, 1),
        "ceiling_of_each": round(ceiling, 1),
        "communication": round(ceiling / alone, 4),
        "loader": loader,
        "scaling": round(fed / alone, 4),
        "util_percent": utils,
    }
    missed = _missed(loader["median"], utils)  # type: ignore[arg-type]
    summary["verdict"] = "missed" if missed else "reached"
    if missed:
        summary["missed"] = missed
    rounds = min(len(many["fed"]), len(one["ceiling"]))
    if why := no_result(simulated=many["device"]["simulated"], rounds=rounds):
        summary |= {"verdict": "not a result", "why": why}
    return summary


def _missed(fed: float, utils: Sequence[float | None]) -> list[str]:
    """What of the aims was not reached."""
    missed = [] if fed >= WANTED_FED else [f"fed ratio {fed:.3f} below {WANTED_FED:g}"]
    for rank, util in enumerate(utils):
        if util is None or util <= WANTED_UTIL:
            missed.append(f"utilization of rank {rank} {'not measured' if util is None else f'{util:g}%'}")
    return missed


def table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """For people, as Markdown."""
    lines = ["| GPUs | batch of each | samples/s | communication | loader (95%) | scaling | utilization | |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for one in summaries:
        loader = one["loader"]
        utils = ", ".join("not measured" if util is None else f"{util:g}%" for util in one["util_percent"])
        lines.append(
            f"| {one['world_size']} | {one['batch_size']} | {one['samples_per_second']:,.0f} "
            f"| {one['communication']:.3f} "
            f"| {loader['median']:.3f} ({loader['low']:.3f} to {loader['high']:.3f}) | {one['scaling']:.3f} | {utils} "
            f"| {one.get('why') or ', '.join(one.get('missed', [])) or one['verdict']} |"
        )
    return "\n".join(lines)
