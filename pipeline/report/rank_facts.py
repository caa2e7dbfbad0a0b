"""What the pages of several ranks say, worked out from their report's JSON: the lines of ranks, stragglers, scaling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..monitor import SCHEMA, SCHEMA_VERSION
from . import words
from .schema import check_fields, check_head

__all__ = [
    "HEADS",
    "NOT_RUN",
    "banner",
    "heading",
    "not_judged",
    "rank_figures",
    "rank_lines",
    "rank_name",
    "scaling_rows",
    "scaling_words",
    "straggler_lines",
    "validate_ranks",
]

_REMEDY = "Take the report again from RankMonitor.report; its JSON is not meant to be edited."
FED_TARGET = 0.90
"""The fed ratio that the tuner asks for, too."""

_TOP = {
    "created": "t",
    "tool_version": "t",
    "versions": "o",
    "world_size": "i",
    "machines": "i",
    "ranks": "l",
    "stragglers": "l",
    "not_judged": "o",
    "scaling": "o",
    "one_gpu_source": "t",
}
_RANK = {"rank": "i", "machine": "i", "device": "o", "fed": "o?", "ceiling": "o?", "own": "o?", "windows": "o"}
_DEVICE = {"id": "t", "name": "t", "simulated": "b", "memory_total_bytes": "n?"}
_FIGURES = {
    "samples_per_second": "n",
    "step_seconds": "n",
    "wait_share": "n",
    "util_percent": "n?",
    "util_reason": "t?",
    "peak_bytes": "n?",
    "memory_reason": "t?",
}
_STRAGGLER = {"rank": "i", "kind": "t", "excess_share": "n", "low_share": "n"}
_SCALING = {
    "world_size": "i",
    **dict.fromkeys(("one", "ceiling", "fed", "efficiency", "communication", "loader"), "n?"),
    "reason": "t?",
}
NOT_RUN = "training with the loader had no step after its warm-up"
HEADS = ("Rank", "#Samples/s", "#Step", "#Waiting", "#GPU utilization", "#Peak memory")


def validate_ranks(report: Any) -> None:
    """Check that this is a report of several ranks that this version can draw.

    Raises:
        SchemaVersionError: written by a newer wellfed.
        ConfigError: not such a report, or damaged; the message names the place.
    """
    check_head(report, SCHEMA, SCHEMA_VERSION, of=" of ranks", remedy=_REMEDY)
    check_fields("the top level", report, _TOP)
    check_fields("scaling", report["scaling"], _SCALING)
    for position, rank in enumerate(report["ranks"]):
        where = f"ranks[{position}]"
        check_fields(where, rank, _RANK)
        check_fields(f"{where}.device", rank["device"], _DEVICE)
        for part in ("fed", "ceiling", "own"):
            if rank[part] is not None:
                check_fields(f"{where}.{part}", rank[part], _FIGURES)
    for position, straggler in enumerate(report["stragglers"]):
        check_fields(f"stragglers[{position}]", straggler, _STRAGGLER)


def rank_name(rank: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """A rank with its device, and its machine where there are several."""
    where = f", machine {rank['machine']}" if report["machines"] > 1 else ""
    return f"rank {rank['rank']} on {rank['device']['id']}{where}"


def rank_figures(rank: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """Samples/s, step, waiting, utilization and memory of a rank that trained, in words."""
    fed = rank["fed"]
    if fed is None:
        return (words.not_measured(NOT_RUN), "", "", "", "")
    total = rank["device"]["memory_total_bytes"]
    memory = words.bytes_text(fed["peak_bytes"], fed["memory_reason"])
    if fed["peak_bytes"] is not None and total:
        memory += f", {100 * fed['peak_bytes'] / total:.0f}%"
    return (
        words.rate(fed["samples_per_second"]),
        f"{words.number(1000 * fed['step_seconds'])} ms",
        words.share(fed["wait_share"]),
        words.percent(fed["util_percent"], fed["util_reason"]),
        memory,
    )


def rank_lines(report: Mapping[str, Any]) -> list[str]:
    """A line of text for each rank, and one for each straggler, as for a log."""
    lines = []
    for rank in report["ranks"]:
        rate, step, waiting, util, memory = rank_figures(rank)
        rest = f", step {step}, waiting {waiting}, GPU {util}, memory {memory}" if rank["fed"] else ""
        lines.append(f"{rank_name(rank, report)}: {rate}{rest}")
    return [*lines, *straggler_lines(report)]


def straggler_lines(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each straggler."""
    ranks = {rank["rank"]: rank for rank in report["ranks"]}
    lines = []
    for one in report["stragglers"]:
        share, least = words.share(one["excess_share"]), words.share(one["low_share"])
        who = rank_name(ranks[one["rank"]], report)
        if one["kind"] == "loading":
            fed = ranks[one["rank"]]["fed"]
            late = words.number(1000 * one["excess_share"] * fed["step_seconds"])
            lines.append(
                f"{who} straggles in loading: it waits {late} ms, {share} of a step, longer for its batches than the "
                f"other ranks (at least {least}), and they wait for it. Look at its storage, its cores and who shares "
                "them."
            )
        else:
            lines.append(
                f"{who} straggles in its step: by itself it takes {share} longer than the other ranks' (at least "
                f"{least}), and they wait for it. Look at its clocks, its temperature and who shares the GPU."
            )
    return lines


def heading(report: Mapping[str, Any]) -> tuple[str, bool | None]:
    """The page's heading, and whether it is good."""
    count = len({one["rank"] for one in report["stragglers"]})
    if count:
        return f"{words.plural(count, 'rank')} of {report['world_size']} straggle{'s' if count == 1 else ''}", False
    loader = report["scaling"]["loader"]
    if loader is not None and loader < FED_TARGET:
        return f"The loaders feed the ranks {words.share(loader)} of what they could train on", False
    judged = [kind for kind, reason in report["not_judged"].items() if reason is None]
    if not judged:
        return f"{words.plural(report['world_size'], 'rank')}", None
    return f"No rank straggles in {' or '.join(_KINDS[kind] for kind in judged)}", True


_KINDS = {"loading": "loading", "step": "its step"}


def not_judged(report: Mapping[str, Any]) -> list[str]:
    """A sentence for each kind of straggling that nothing can be said about."""
    return [
        f"Whether a rank straggles in {_KINDS[kind]} is not known: {reason}."
        for kind, reason in report["not_judged"].items()
        if reason is not None
    ]


def scaling_rows(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What, samples/s, and what is left of the line above it."""
    found, world = report["scaling"], report["world_size"]
    ideal = None if found["one"] is None else world * found["one"]
    missing = "had no step after its warm-up"
    return [
        (f"{world} times one GPU by itself", words.rate(ideal, missing), ""),
        (
            "All ranks, cached batches",
            words.rate(found["ceiling"], missing),
            words.ratio(found["communication"], missing),
        ),
        ("All ranks, with their loaders", words.rate(found["fed"], missing), words.ratio(found["loader"], missing)),
    ]


def scaling_words(report: Mapping[str, Any]) -> str:
    """Scaling efficiency with its two parts, as sentences."""
    found = report["scaling"]
    if found["efficiency"] is None:
        return f"Scaling efficiency is {words.not_measured(found['reason'])}."
    text = f"{words.share(found['efficiency'])} of {report['world_size']} times one GPU"
    if found["communication"] is None or found["loader"] is None:
        return f"Scaling efficiency: {text}. Its parts are {words.not_measured(found['reason'])}."
    return (
        f"Scaling efficiency: {text}. Exchanging gradients and waiting for the slowest rank leave "
        f"{words.share(found['communication'])}, and of that the loaders leave {words.share(found['loader'])}."
    )


def banner(report: Mapping[str, Any]) -> str | None:
    """The words that stand above every page about devices that do not exist."""
    if not any(rank["device"]["simulated"] for rank in report["ranks"]):
        return None
    return "SIMULATED ACCELERATOR: no GPU was used; device utilization, memory and step time are a model's."
