"""Whether a tuned configuration fits where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import TunedConfig
from ..errors import ConfigError, TunedConfigMismatchError
from ..formats.base import Source

__all__ = ["check_tuned", "load_tuned"]


def load_tuned(tuned: str | Path | TunedConfig) -> TunedConfig:
    """The configuration itself, or read from its file.

    Raises:
        ConfigError, SchemaVersionError: not a tuned configuration that this version can read.
    """
    if isinstance(tuned, TunedConfig):
        return tuned
    if isinstance(tuned, (str, Path)):
        return TunedConfig.load(tuned)
    raise ConfigError(
        "tuned is the path of a tuned-config file or a TunedConfig", got=tuned, remedy="Give what wellfed tune wrote."
    )


def check_tuned(
    tuned: TunedConfig,
    *,
    machine: Mapping[str, Any],
    source: Source | None = None,
    image_size: int | None = None,
) -> None:
    """Refuse a configuration that was found on something else.

    Args:
        machine: `hardware.fingerprint()` of this machine.
        source, image_size: what will be loaded; left out where it isn't known.

    Raises:
        TunedConfigMismatchError: listing every difference.
    """
    differences: list[str] = []
    if source is not None and tuned.dataset.get("fingerprint") != source.fingerprint:
        differences.append(
            f"dataset fingerprint {_short(tuned.dataset.get('fingerprint'))} ({tuned.dataset.get('samples')} samples) "
            f"then, {_short(source.fingerprint)} ({len(source)} samples) now"
        )
    if image_size is not None and tuned.step.get("image_size", image_size) != image_size:
        differences.append(f"image_size {tuned.step['image_size']} then, {image_size} now")
    for fact in sorted({*tuned.machine, *machine}):
        then, now = tuned.machine.get(fact), machine.get(fact)
        if then != now:
            differences.append(f"{fact} {then!r} then, {now!r} now")
    if differences:
        raise TunedConfigMismatchError(
            "a tuned config is used on the dataset and machine it was found on",
            got="; ".join(differences),
            remedy="Run wellfed tune here, or leave tuned= out and give the settings yourself.",
        )


def _short(fingerprint: Any) -> str:
    return str(fingerprint)[:12]
