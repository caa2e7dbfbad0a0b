"""Whether a tuned configuration fits where it is used.

On another dataset, image size or machine (cores, memory, GPUs) its settings mean nothing, so it is refused. Where the
step was edited, a library or the driver is another version, or the batches go to another kind of device, they may
still be the best: that is a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import TunedConfig
from ..errors import ConfigError, TunedConfigMismatchError
from ..formats.base import Source
from ..hardware.versions import MATTERING, versions
from .step_source import step_source_sha256

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
    device: str | None = None,
) -> None:
    """Refuse a configuration that was found on something else; warn of what may have changed its worth.

    Args:
        machine: `hardware.fingerprint()` of this machine.
        source, image_size, device: what will be loaded, and to where; left out where it isn't known.

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
            differences.append(f"{fact} {_words(then)} then, {_words(now)} now")
    if differences:
        raise TunedConfigMismatchError(
            "a tuned config is used on the dataset and machine it was found on",
            got="; ".join(differences),
            remedy="Run wellfed tune here, or leave tuned= out and give the settings yourself.",
        )
    if doubts := _doubts(tuned, device):
        warnings.warn(
            f"a tuned config may no longer be the best: {'; '.join(doubts)}. Run wellfed tune again to know.",
            stacklevel=4,
        )


def _doubts(tuned: TunedConfig, device: str | None) -> list[str]:
    """What differs without making the settings wrong, in words."""
    doubts = []
    then, name = tuned.step.get("source_sha256"), str(tuned.step["name"])
    if then is not None and (now := step_source_sha256(name)) is not None and now != then:
        doubts.append(f"the source of the step {name} was {_short(then)} then, is {_short(now)} now")
    present = versions()
    for library in MATTERING:
        was = tuned.versions.get(library)
        if was is not None and present.get(library) != was:
            doubts.append(f"{library} {was} then, {present.get(library, 'not there')} now")
    measured_on = str(tuned.step["device"])
    if device is not None and device.startswith("cuda") and measured_on.startswith("simulated"):
        doubts.append(f"device {measured_on} then, {device} now")
    return doubts


def _words(fact: Any) -> str:
    """A fact of the machine as text: of the GPUs their names and memory."""
    if isinstance(fact, (list, tuple)) and all(isinstance(gpu, Mapping) for gpu in fact):
        return ", ".join(f"{gpu.get('name')} ({gpu.get('memory_gib')} GiB)" for gpu in fact) or "none"
    return repr(fact)


def _short(fingerprint: Any) -> str:
    return str(fingerprint)[:12]
