"""`rejects.jsonl`: one line for each sample that was found and not stored, with the reason."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from wellfed.pipeline.errors import DamagedDatasetError, WellfedError

REJECTS_NAME = "rejects.jsonl"


class Reject(NamedTuple):
    """A sample that was not stored: its planned number, original relative path and the reason."""

    key: int
    name: bytes
    reason: str


def name_fields(name: bytes) -> dict[str, str]:
    """An original path for JSON: `path`, or `name_base64` where it is not UTF-8."""
    try:
        return {"path": name.decode("utf-8")}
    except UnicodeDecodeError:
        return {"name_base64": base64.b64encode(name).decode("ascii")}


def name_of(fields: dict[str, Any]) -> bytes:
    """The inverse of `name_fields`. Raises KeyError or ValueError where neither field is whole."""
    if "path" in fields:
        return str(fields["path"]).encode("utf-8")
    return base64.b64decode(fields["name_base64"], validate=True)


def reason_of(error: WellfedError) -> str:
    """An error as a reason that is the same in every run: without memory addresses."""
    text = f"{error.rule}; got {error.got}" if error.got is not None else error.rule
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def dump_rejects(rejects: Iterable[Reject]) -> bytes:
    """The text of the file, in order of the keys; empty for none."""
    lines = [
        json.dumps({"key": each.key, **name_fields(each.name), "reason": each.reason}) + "\n"
        for each in sorted(rejects)
    ]
    return "".join(lines).encode("ascii")


def load_rejects(path: Path) -> list[Reject]:
    """Read the file. Raises DamagedDatasetError naming the line that breaks it."""
    rejects = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            fields = json.loads(line)
            rejects.append(Reject(int(fields["key"]), name_of(fields), str(fields["reason"])))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedDatasetError(
                f"each line of {str(path)!r} must hold key, path and reason",
                got=f"line {number}: {error}",
                remedy="Convert the dataset again.",
            ) from error
    return rejects
