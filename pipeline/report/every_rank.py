"""What each rank did where a tune ran on several: the same rows for HTML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from . import facts, words
from .markup import note, section, table

__all__ = ["RANK_HEADS", "every_rank", "rank_rows", "rank_words"]

RANK_HEADS = ("Rank", "#Samples/s", "#Waiting for data", "#GPU utilization", "#Peak memory")

_NOT_MEASURED = "no window was measured on every rank"


def _windows(report: Mapping[str, Any]) -> list[Sequence[Mapping[str, Any]]]:
    """Of the held run, or else of the chosen settings' rounds: each rank's figures, by rank."""
    trial = facts.subject(report)
    rounds = [] if trial is None else trial["rounds"]
    windows = report["hold"]["windows"] if report["hold"] else [each["window"] for each in rounds]
    return [window["ranks"] for window in windows if window.get("ranks")]


def rank_words(report: Mapping[str, Any]) -> str:
    """What the rows are of."""
    ranks = report["ranks"]
    together = words.rate(ranks["samples_per_second"], _NOT_MEASURED)
    run = "the held run" if report["hold"] else "the chosen settings' rounds"
    return (
        f"{words.plural(ranks['world_size'], 'rank')} measured together, global batch {ranks['global_batch']}, "
        f"{together}. Each rank over {run}: median samples/s, and of steps with collectives all ranks have the pace of "
        "the slowest, so it is their waits that differ."
    )


def rank_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row for each rank; none where the tune ran on one."""
    if report.get("ranks") is None:
        return []
    windows = _windows(report)
    return [
        [f"rank {rank}" + (f", {device}" if device else ""), *_figures([each[rank] for each in windows])]
        for rank, device in enumerate(report["ranks"]["devices"])
    ]


def _figures(windows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not windows:
        return [words.not_measured(_NOT_MEASURED), "", "", ""]
    utils = [window["util_percent"] for window in windows if window["util_percent"] is not None]
    peaks = [window["peak_bytes"] for window in windows if window["peak_bytes"] is not None]
    whole = len(utils) == len(windows)
    return [
        words.rate(median(window["samples_per_second"] for window in windows)),
        words.share(median(window["wait_share"] for window in windows)),
        words.percent(sum(utils) / len(utils) if whole else None, words.reason_of(windows, "util_reason")),
        words.bytes_text(max(peaks) if len(peaks) == len(windows) else None, words.reason_of(windows, "memory_reason")),
    ]


def every_rank(report: Mapping[str, Any]) -> str:
    """The section of the page; nothing for one rank."""
    rows = rank_rows(report)
    if not rows:
        return ""
    return section("Every rank", note(rank_words(report)) + table(RANK_HEADS, [list(row) for row in rows]), "ranks")
