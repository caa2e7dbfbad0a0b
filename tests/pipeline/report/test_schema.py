"""Reports are refused with the place that is wrong, before anything is drawn."""

from __future__ import annotations

from typing import Any

import pytest

from wellfed.pipeline.errors import ConfigError, SchemaVersionError
from wellfed.pipeline.report import validate_report


def test_a_whole_report_is_valid(report: dict[str, Any]) -> None:
    validate_report(report)


def test_a_future_schema_version_says_to_upgrade(report: dict[str, Any]) -> None:
    report["schema_version"] = 2

    with pytest.raises(SchemaVersionError, match=r"up to schema version 1; got 2\. Upgrade wellfed"):
        validate_report(report)


@pytest.mark.parametrize("version", [0, -1, True, "1", None])
def test_a_version_that_is_no_version_is_refused(report: dict[str, Any], version: Any) -> None:
    report["schema_version"] = version

    with pytest.raises(ConfigError, match="schema_version"):
        validate_report(report)


@pytest.mark.parametrize("value", [None, [], "text", {"schema": "wellfed-tuned-config"}])
def test_something_else_is_not_a_report(value: Any) -> None:
    with pytest.raises(ConfigError, match="wellfed-report"):
        validate_report(value)


@pytest.mark.parametrize(
    "name",
    [
        "created",
        "request",
        "dataset",
        "machine",
        "versions",
        "preflight",
        "device",
        "ceilings",
        "loader_rates",
        "memory",
        "trials",
        "comparisons",
        "chosen",
        "hold",
        "verdict",
        "tuned",
        "seconds",
        "tool_version",
    ],
)
def test_every_key_is_required(report: dict[str, Any], name: str) -> None:
    del report[name]

    with pytest.raises(ConfigError, match=f"must have '{name}'"):
        validate_report(report)


@pytest.mark.parametrize("name", ["memory", "hold", "tuned", "chosen"])
def test_what_was_not_reached_may_be_null(report: dict[str, Any], name: str) -> None:
    report[name] = None

    validate_report(report)


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("kind",), "compare", "kind"),
        (("verdict", "name"), "great", r"verdict\.name"),
        (("device", "simulated"), 1, r"device\.simulated"),
        (("device", "memory_total_bytes"), float("nan"), r"device\.memory_total_bytes"),
        (("trials", 1, "role"), "rival", r"trials\[1\]\.role"),
        (("trials", 2, "median"), [], r"trials\[2\]\.median"),
        (("trials", 0, "rounds", 3, "fed_ratio"), "0.9", r"trials\[0\]\.rounds\[3\]\.fed_ratio"),
        (("ceilings", 0, "samples_per_second", 1), "fast", r"ceilings\[0\]\.samples_per_second\[1\]"),
        (("ceilings", 2, "batch_size"), 64.0, r"ceilings\[2\]\.batch_size"),
        (("memory", "probes", 4, "out_of_memory"), None, r"memory\.probes\[4\]\.out_of_memory"),
        (("hold", "seconds"), None, r"hold\.seconds"),
        (("hold", "windows"), "none", r"hold\.windows"),
        (("preflight", 0), "two cores", r"preflight\[0\]"),
        (("chosen",), "t9", "chosen"),
        (("comparisons", 0, "b"), "t9", r"comparisons\[0\]\.b"),
        (("comparisons", 1, "conclusion"), "much better", r"comparisons\[1\]\.conclusion"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(
    report: dict[str, Any], path: tuple[Any, ...], value: Any, place: str
) -> None:
    holder: Any = report
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value

    with pytest.raises(ConfigError, match=place):
        validate_report(report)
