"""How figures are written: units, digits, and what stands where nothing was measured."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "batch_lines",
    "bytes_text",
    "count",
    "device_label",
    "not_measured",
    "number",
    "percent",
    "plural",
    "python_lines",
    "rate",
    "ratio",
    "reason_of",
    "reproduce_command",
    "seconds",
    "settings_text",
    "verdict_title",
]

_VERDICT_TITLES = {
    "passed": "Passed: the device stays fed",
    "step_limited": "Limited by the training step",
    "data_limited": "Limited by the data",
    "unmeasurable": "Could not be measured",
    "regressed": "No better than the present settings",
}


def not_measured(reason: str | None = None) -> str:
    """The words for a value that is None; never a zero."""
    return f"not measured: {reason}" if reason else "not measured: no reason recorded"


def number(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant digits, thousands separated, without an exponent."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def count(value: int) -> str:
    """A whole number with separated thousands."""
    return f"{value:,}"


def rate(value: float | None, reason: str | None = None) -> str:
    """Samples a second."""
    return not_measured(reason) if value is None else f"{number(value)}/s"


def percent(value: float | None, reason: str | None = None) -> str:
    """A percentage given in percent, to one digit after the point."""
    return not_measured(reason) if value is None else f"{value:.1f}%"


def share(value: float | None, reason: str | None = None) -> str:
    """A share of 0..1 shown in percent."""
    return percent(None if value is None else 100 * value, reason)


def ratio(value: float | None, reason: str | None = None) -> str:
    """A ratio to three digits after the point."""
    return not_measured(reason) if value is None else f"{value:.3f}"


def bytes_text(value: float | None, reason: str | None = None) -> str:
    """Bytes in the binary unit that keeps the figure readable."""
    if value is None:
        return not_measured(reason)
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{number(size)} {unit}"
        size /= 1024
    return f"{number(size)} TiB"


def seconds(value: float | None, reason: str | None = None) -> str:
    """A duration in seconds, or minutes and seconds from two minutes on."""
    if value is None:
        return not_measured(reason)
    if value < 120:
        return f"{number(value)} s"
    return f"{int(value) // 60} min {int(value) % 60} s"


def verdict_title(name: str) -> str:
    """A verdict's name in words."""
    return _VERDICT_TITLES.get(name, name)


def settings_text(settings: Mapping[str, Any] | None) -> str:
    """Loader settings on one line."""
    if not settings:
        return "fixed by the peer: DataLoader(num_workers=0)"
    parts = [str(settings.get("backend", "")), plural(settings.get("num_workers"), "worker")]
    if settings.get("num_workers"):
        parts.append(f"prefetch {settings.get('prefetch_factor')}")
        if not settings.get("persistent_workers", True):
            parts.append("workers restart each epoch")
    decodes_there = settings.get("backend") in ("dali", "hybrid") and settings.get("num_workers")
    if decodes_there and settings.get("hw_decoder_load") is not None:
        parts.append(f"hardware share {settings.get('hw_decoder_load')}")
    if settings.get("backend") == "hybrid" and settings.get("num_workers"):
        greedy = settings.get("hybrid_schedule") == "greedy"
        parts.append("whichever side is free" if greedy else f"GPU share {settings.get('gpu_share')}")
    parts.append(f"batch {settings.get('batch_size')}")
    if settings.get("pin_memory"):
        parts.append("pinned")
    return ", ".join(part for part in parts if part)


def plural(value: Any, noun: str) -> str:
    """A number with its noun; nothing for None."""
    return "" if value is None else f"{value} {noun}" if value == 1 else f"{value} {noun}s"


def reason_of(rounds: Iterable[Mapping[str, Any]], *names: str) -> str | None:
    """The first recorded reason among `names`, in the rounds or in their windows."""
    for round_ in rounds:
        for holder in (round_, round_.get("window") or {}):
            for name in names:
                if holder.get(name):
                    return str(holder[name])
    return None


def device_label(report: Mapping[str, Any]) -> str:
    """The device's name, with its memory where that is known."""
    device = report["device"]
    memory = device["memory_total_bytes"]
    return device["name"] if memory is None else f"{device['name']}, {bytes_text(memory)}"


def python_lines(report: Mapping[str, Any]) -> tuple[str, str, str]:
    """The three lines of Python that use the tuned config."""
    tuned = report.get("output", {}).get("tuned") or "tuned.json"
    source = report["request"].get("data") or report["dataset"]["name"]
    # A simulated device has no memory to put batches in: they stay on the CPU, which is the loader's default.
    device = "" if report["device"]["simulated"] else ', device="cuda"'
    # The loader refuses a config that was found at another size than its own, which is 224 unless given.
    pixels = report["tuned"]["step"]["image_size"] if report.get("tuned") else 224
    size = "" if pixels == 224 else f", image_size={pixels}"
    return (
        "from wellfed.pipeline import DataLoader",
        f"loader = DataLoader({_literal(source)}, tuned={_literal(tuned)}, shuffle=True, drop_last=True, "
        f'augment="train"{size}{device})',
        "for images, labels in loader: ...",
    )


def batch_lines(report: Mapping[str, Any]) -> list[str]:
    """Lines of Python for accumulation and learning rate; none where no advice was asked for."""
    return list((report.get("batch_advice") or {}).get("lines", ()))


def _literal(text: str) -> str:
    plain = all(character.isprintable() and character not in '"\\' for character in text)
    return f'"{text}"' if plain else repr(text)


def reproduce_command(report: Mapping[str, Any]) -> str:
    """The command that makes such a report again."""
    request = report["request"]
    words = ["wellfed", report["kind"], str(request.get("data", "DATA")), "--step", str(request.get("step", "STEP"))]
    words += ["--device", str(request.get("device", "auto"))]
    if report["kind"] == "tune":
        options = (
            ("util_target", "--util-target", "{:g}"),
            ("fed_target", "--fed-target", "{:g}"),
            ("memory_cap", "--memory-cap", "{:g}"),
            ("budget_seconds", "--budget", "{:g}s"),
            ("hold_seconds", "--hold", "{:g}s"),
            ("image_size", "--image-size", "{}"),
            ("seed", "--seed", "{}"),
            ("optimizer", "--optimizer", "{}"),
            ("base_lr", "--base-lr", "{:g}"),
            ("base_batch", "--base-batch", "{}"),
            ("global_batch", "--global-batch", "{}"),
        )
        for name, option, form in options:
            if request.get(name) is not None:
                words += [option, form.format(request[name])]
        if request.get("batch_sizes"):
            words += ["--batch-sizes", ",".join(str(size) for size in request["batch_sizes"])]
        if request.get("current"):
            words += ["--current", "current.json"]
    else:
        if report.get("output", {}).get("config"):
            words += ["--config", str(report["output"]["config"])]
        if any(trial["role"] == "stock" for trial in report["trials"]):
            words += ["--against", "torch"]
    if request.get("allow_shared_gpu"):
        words.append("--allow-shared-gpu")
    return shlex.join(words)
