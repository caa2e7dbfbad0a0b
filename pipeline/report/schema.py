"""The shape of a report: what must be there, and of which type, before anything is drawn from it.

A report may hold more than is listed here; what is listed must be right. Values that were not measured are null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError, SchemaVersionError

__all__ = ["KINDS", "SCHEMA", "SCHEMA_VERSION", "VERDICTS", "check_fields", "check_head", "validate_report"]

SCHEMA = "wellfed-report"
SCHEMA_VERSION = 1
KINDS = ("tune", "bench")
VERDICTS = ("passed", "step_limited", "data_limited", "unmeasurable", "regressed")
ROLES = ("candidate", "current", "stock")
CONCLUSIONS = ("better", "worse", "no difference")

# One letter a type: t text, n number, i whole number, b true or false, o object, l list, * anything; "?" allows null.
_TOP = {
    "created": "t",
    "tool_version": "t",
    "request": "o",
    "dataset": "o",
    "machine": "o",
    "versions": "o",
    "preflight": "l",
    "device": "o",
    "ceilings": "l",
    "loader_rates": "l",
    "memory": "o?",
    "trials": "l",
    "comparisons": "l",
    "chosen": "*",
    "hold": "o?",
    "verdict": "o",
    "tuned": "o?",
    "seconds": "o",
}
_DATASET = {"name": "t", "kind": "t", "fingerprint": "t", "samples": "i", "classes": "i", "repeated_times": "i"}
_DEVICE = {"kind": "t", "name": "t", "simulated": "b", "memory_total_bytes": "n?"}
_FACT = {"name": "t", "value": "*", "source": "t"}
_CEILING = {"batch_size": "i", "samples_per_second": "l"}
_LOADER_RATE = {"backend": "t", "num_workers": "i", "batch_size": "i", "samples_per_second": "l"}
_MEMORY = {"cap_bytes": "n?", "cap_share": "n", "probes": "l", "fit": "o?", "largest_batch_size": "i?"}
_PROBE = {"batch_size": "i", "peak_bytes": "n?", "out_of_memory": "b"}
_FIT = {"intercept_bytes": "n", "bytes_per_sample": "n"}
_TRIAL = {"id": "*", "label": "t", "role": "t", "settings": "o?", "rounds": "l", "median": "o"}
_ROUND = {"samples_per_second": "n", "fed_ratio": "n?", "wait_share": "n?", "util_percent": "n?", "peak_bytes": "n?"}
_COMPARISON = {"a": "*", "b": "*", "ratio": "n", "low": "n", "high": "n", "rounds": "i", "conclusion": "t"}
_HOLD = {
    "seconds": "n",
    "epochs_crossed": "i",
    "samples_per_second": "n?",
    "util_percent": "n?",
    "util_low": "n?",
    "fed_ratio": "n?",
    "fed_low": "n?",
    "peak_bytes": "n?",
    "windows": "l",
}
_DIFFERENTIAL = {"settings": "o", "batch_size": "i", "rows": "l"}
_STAGE = {
    "stage": "t",
    "samples_per_second": "n?",
    "seconds_per_sample": "n?",
    "added_seconds_per_sample": "n?",
    "wait_share": "n?",
    "reason": "t?",
}
_PREDICTED = {
    "samples_per_second": "n",
    "util_percent": "n?",
    "host_bytes": "n",
    "device_bytes": "n?",
    "limit": "t",
}
_READING = {"order": "t", "cache": "t", "samples_per_second": "n?"}
_RANKS = {"world_size": "i", "global_batch": "i", "samples_per_second": "n?", "devices": "l"}
_RANK = {"samples_per_second": "n", "wait_share": "n", "util_percent": "n?", "peak_bytes": "n?"}
_VERDICT = {"name": "t", "summary": "t", "advice": "l"}

_TYPE_NAMES = {
    "t": "a text",
    "n": "a finite number",
    "i": "a whole number",
    "b": "true or false",
    "o": "an object",
    "l": "a list",
}


def _is(letter: str, value: Any) -> bool:
    if letter == "*":
        return True
    if letter == "t":
        return isinstance(value, str)
    if letter == "b":
        return isinstance(value, bool)
    if letter == "o":
        return isinstance(value, Mapping)
    if letter == "l":
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if isinstance(value, bool):
        return False
    if letter == "i":
        return isinstance(value, int)
    return isinstance(value, (int, float)) and math.isfinite(value)


def _check(where: str, value: Any, spec: Mapping[str, str]) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} of a report must be an object", got=type(value).__name__, remedy=_REMEDY)
    for name, kind in spec.items():
        letter, nullable = kind[0], kind.endswith("?")
        if name not in value:
            raise ConfigError(f"{where} of a report must have {name!r}", got=", ".join(map(str, value)), remedy=_REMEDY)
        item = value[name]
        if item is None and (nullable or letter == "*"):
            continue
        if not _is(letter, item):
            wanted = _TYPE_NAMES[letter] + (" or null" if nullable else "")
            raise ConfigError(f"{where}.{name} of a report must be {wanted}", got=item, remedy=_REMEDY)


def check_fields(where: str, value: Any, spec: Mapping[str, str]) -> None:
    """Check an object of any of our reports against letters of types as they stand above.

    Raises:
        ConfigError: a key is missing, or its value is of another type.
    """
    _check(where, value, spec)


def _check_choice(where: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(
            f"{where} of a report must be one of {', '.join(map(repr, choices))}", got=value, remedy=_REMEDY
        )


def _check_numbers(where: str, values: Any) -> None:
    for position, value in enumerate(values):
        if value is not None and not _is("n", value):
            raise ConfigError(f"{where}[{position}] of a report must be a finite number", got=value, remedy=_REMEDY)


_REMEDY = "Write the report again with `wellfed tune` or `wellfed bench`; its JSON is not meant to be edited."


def check_head(report: Any, schema: str, newest: int, *, of: str = "", remedy: str) -> None:
    """Check that this is a report of a schema, and of a version of it that is known here.

    Args:
        newest: version that is.
        of: what such reports are of, as " of ranks", for the words.
        remedy: where it is none.

    Raises:
        SchemaVersionError: written by a newer wellfed.
        ConfigError: not such a report.
    """
    if not isinstance(report, Mapping) or report.get("schema") != schema:
        got = report.get("schema") if isinstance(report, Mapping) else type(report).__name__
        raise ConfigError(f"a report{of} must be a JSON object of schema {schema!r}", got=got, remedy=remedy)
    version = report.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ConfigError("schema_version of a report must be a whole number from 1", got=version, remedy=remedy)
    if version > newest:
        raise SchemaVersionError(
            f"this wellfed reads reports{of} up to schema version {newest}",
            got=version,
            remedy="Upgrade wellfed to draw this report.",
        )


def validate_report(report: Any) -> None:
    """Check that `report` is a report this version can draw: required keys, types, known names, references.

    Raises:
        SchemaVersionError: written by a newer wellfed.
        ConfigError: not a report, or damaged; the message names the place, as `trials[2].median`.
    """
    check_head(report, SCHEMA, SCHEMA_VERSION, remedy=_REMEDY)
    _check_choice("kind", report.get("kind"), KINDS)
    _check("the top level", report, _TOP)
    _check("dataset", report["dataset"], _DATASET)
    _check("device", report["device"], _DEVICE)
    _check("verdict", report["verdict"], _VERDICT)
    _check_choice("verdict.name", report["verdict"]["name"], VERDICTS)
    for position, fact in enumerate(report["preflight"]):
        _check(f"preflight[{position}]", fact, _FACT)
    for name, spec in (("ceilings", _CEILING), ("loader_rates", _LOADER_RATE)):
        for position, entry in enumerate(report[name]):
            _check(f"{name}[{position}]", entry, spec)
            _check_numbers(f"{name}[{position}].samples_per_second", entry["samples_per_second"])
    if report["memory"] is not None:
        _check_memory(report["memory"])
    _check_trials(report)
    _check_parts(report)
    if report["hold"] is not None:
        _check("hold", report["hold"], _HOLD)
    if report.get("ranks") is not None:
        _check_ranks(report)


def _check_ranks(report: Mapping[str, Any]) -> None:
    """What only reports of several ranks hold."""
    _check("ranks", report["ranks"], _RANKS)
    world_size = report["ranks"]["world_size"]
    if len(report["ranks"]["devices"]) != world_size:
        raise ConfigError("ranks.devices of a report must name one for each rank", got=report["ranks"], remedy=_REMEDY)
    places = [
        (f"trials[{number}].rounds[{turn}].window", each.get("window") or {})
        for number, trial in enumerate(report["trials"])
        for turn, each in enumerate(trial["rounds"])
    ]
    places += [(f"hold.windows[{n}]", w) for n, w in enumerate(report["hold"]["windows"] if report["hold"] else [])]
    for where, window in places:
        ranks = window.get("ranks", [])
        if len(ranks) not in (0, world_size):
            raise ConfigError(f"{where}.ranks of a report must be of every rank", got=len(ranks), remedy=_REMEDY)
        for rank, figures in enumerate(ranks):
            _check(f"{where}.ranks[{rank}]", figures, _RANK)


def _check_memory(memory: Mapping[str, Any]) -> None:
    _check("memory", memory, _MEMORY)
    for position, probe in enumerate(memory["probes"]):
        _check(f"memory.probes[{position}]", probe, _PROBE)
    if memory["fit"] is not None:
        _check("memory.fit", memory["fit"], _FIT)


def _check_parts(report: Mapping[str, Any]) -> None:
    """What earlier reports of this version lack."""
    table = report.get("differential")
    if table is not None:
        _check("differential", table, _DIFFERENTIAL)
        for position, row in enumerate(table["rows"]):
            _check(f"differential.rows[{position}]", row, _STAGE)
    for position, trial in enumerate(report["trials"]):
        if trial.get("predicted") is not None:
            _check(f"trials[{position}].predicted", trial["predicted"], _PREDICTED)
    parts = report.get("parts") or {}
    for position, entry in enumerate(parts.get("reading") or []):
        _check(f"parts.reading[{position}]", entry, _READING)


def _check_trials(report: Mapping[str, Any]) -> None:
    known: list[Any] = []
    for position, trial in enumerate(report["trials"]):
        where = f"trials[{position}]"
        _check(where, trial, _TRIAL)
        _check_choice(f"{where}.role", trial["role"], ROLES)
        for number, round_ in enumerate(trial["rounds"]):
            _check(f"{where}.rounds[{number}]", round_, _ROUND)
        known.append(trial["id"])
    if report["chosen"] is not None and report["chosen"] not in known:
        raise ConfigError("chosen of a report must be the id of one of its trials", got=report["chosen"])
    for position, comparison in enumerate(report["comparisons"]):
        where = f"comparisons[{position}]"
        _check(where, comparison, _COMPARISON)
        _check_choice(f"{where}.conclusion", comparison["conclusion"], CONCLUSIONS)
        for side in ("a", "b"):
            if comparison[side] not in known:
                raise ConfigError(
                    f"{where}.{side} of a report must be the id of one of its trials", got=comparison[side]
                )
