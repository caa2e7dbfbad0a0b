"""One fact about the machine, with where it was read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Fact"]


@dataclass(frozen=True)
class Fact:
    """A fact about the machine.

    Attributes:
        name: what it says, in words.
        value: JSON-able; None where it was not measured, and then `note` says why.
        unit: of the value; "" where it has none.
        source: the file, call or library it was read from.
        note: what a reader should know beside it.
    """

    name: str
    value: Any
    unit: str = ""
    source: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)
