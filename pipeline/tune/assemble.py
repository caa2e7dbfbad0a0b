"""The report and the tuned configuration from what was measured."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__
from ..config import TunedConfig
from ..formats import Source
from ..hardware import Fact, versions
from ..loader.step_source import step_source_sha256
from ..training import Accelerator, StepSpec
from .advice.batch import BatchAdvice
from .result import Result


def dataset_facts(source: Source, repeated_times: int) -> dict[str, Any]:
    """The report's `dataset`."""
    columns = source.index.dtype.names or ()
    column = next((c for c in ("size_image", "size") if c in columns), None)
    return {
        "name": Path(source.location).name or source.location,
        "kind": source.kind,
        "fingerprint": source.fingerprint,
        "samples": len(source),
        "classes": len(source.class_names),
        "mean_bytes": None if column is None else float(source.index[column].mean()),
        "repeated_times": repeated_times,
    }


def device_facts(accelerator: Accelerator) -> dict[str, Any]:
    """The report's `device`."""
    description = accelerator.description
    return {
        "kind": accelerator.kind,
        "name": str(description.get("name", accelerator.name)),
        "simulated": bool(description.get("simulated", False)),
        "preset": description.get("preset"),
        "memory_total_bytes": accelerator.memory_total_bytes,
        "description": description,
    }


def tuned_config(
    result: Result,
    source: Source,
    spec: StepSpec,
    accelerator: Accelerator,
    machine: Mapping[str, Any],
) -> TunedConfig:
    """The chosen settings with what they were found on.

    Raises:
        ValueError: nothing was chosen.
    """
    chosen, verdict = result.chosen, result.verdict
    if chosen is None or chosen.trial.settings is None or verdict is None:
        raise ValueError("a tuned configuration needs a choice and a verdict")
    medians, held = chosen.medians(), result.hold
    measured = (
        medians
        if held is None
        else {
            "samples_per_second": held.samples_per_second,
            "util_percent": None if held.util is None else held.util.value,
            "fed_ratio": None if held.fed is None else held.fed.value,
            "peak_bytes": held.peak_bytes,
        }
    )
    return TunedConfig(
        settings=chosen.trial.settings,
        verdict=verdict.name,
        dataset={
            "fingerprint": source.fingerprint,
            "samples": len(source),
            "location_name": Path(source.location).name,
        },
        machine=machine,
        step={
            "name": spec.name,
            "device": accelerator.name,
            "image_size": spec.image_size,
            "source_sha256": step_source_sha256(spec.name),
        },
        versions=versions(),
        measured={
            **{k: measured[k] for k in ("samples_per_second", "util_percent", "fed_ratio", "peak_bytes")},
            "probe_bytes": None if result.chosen_probe is None else result.chosen_probe.peak_bytes,
        },
    )


def report(
    kind: str,
    result: Result,
    *,
    request: Mapping[str, Any],
    dataset: Mapping[str, Any],
    device: Mapping[str, Any],
    machine: Mapping[str, Any],
    facts: list[Fact],
    tuned: TunedConfig | None,
    batch_advice: BatchAdvice | None = None,
) -> dict[str, Any]:
    """The report's JSON: plain types, raw values kept."""
    rates, verdict = result.rates, result.verdict
    if verdict is None:
        raise ValueError("a report needs a verdict")
    words = () if batch_advice is None else batch_advice.words
    advice = [*verdict.advice, *words, *result.notes]
    return {
        "schema": "wellfed-report",
        "schema_version": 1,
        "kind": kind,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "tool_version": __version__,
        "request": dict(request),
        "dataset": dict(dataset),
        "machine": dict(machine),
        "versions": versions(),
        "preflight": [fact.to_dict() for fact in facts],
        "device": dict(device),
        "ceilings": rates.ceilings_to_list(),
        "loader_rates": rates.loaders_to_list(),
        "parts": rates.parts_to_dict(),
        "differential": None if result.differential is None else result.differential.to_dict(),
        "memory": {**result.memory.to_dict(), "chosen_probed": result.chosen_probe is not None}
        if kind == "tune"
        else None,
        "trials": [record.to_dict() for record in result.records],
        "comparisons": [comparison.to_dict() for comparison in result.comparisons],
        "chosen": None if result.chosen is None else result.chosen.trial.id,
        "hold": None if result.hold is None else result.hold.to_dict(),
        "interrupted": result.interrupted,
        "batch_advice": None if batch_advice is None else batch_advice.to_dict(),
        "verdict": {**verdict.to_dict(), "advice": advice},
        "tuned": None if tuned is None else tuned.to_dict(),
        "seconds": {"preflight": 0.0, "rates": 0.0, "memory": 0.0, "search": 0.0, "hold": 0.0, **result.seconds},
    }
