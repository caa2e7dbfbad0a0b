"""Durations as people write them."""

from __future__ import annotations

import math

from .errors import ConfigError

__all__ = ["parse_duration"]


def parse_duration(text: str | float) -> float:
    """Seconds from "90", "90s", "3m", "1.5h" or a number of seconds.

    Raises:
        ConfigError: anything else, or a duration that is not positive and finite.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        if isinstance(text, str):
            body = text.strip().lower()
            scale = units.get(body[-1:], 0.0)
            seconds = float(body[:-1]) * scale if scale else float(body)
        else:
            seconds = float(text)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "a duration is a number with s, m or h after it", got=text, remedy="Write for example 90s or 3m."
        ) from error
    if not (0 < seconds < math.inf):
        raise ConfigError("a duration must be positive", got=text, remedy="Write for example 90s or 3m.")
    return seconds
