"""`rejects.jsonl`: one line for each sample that was found and not stored, with the reason."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
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
    """An error as a reason of one line that is the same in every run: without memory addresses."""
    text = f"{error.rule}; got {error.got}" if error.got is not None else error.rule
    return re.sub(r"\s*[\r\n]\s*", " ", re.sub(r" at 0x[0-9a-fA-F]+", "", text))


def reject_line(reject: Reject) -> bytes:
    """Its line in the file; the file is in the order of the keys."""
    fields = {"key": reject.key, **name_fields(reject.name), "reason": reject.reason}
    return json.dumps(fields).encode("ascii") + b"\n"


def first_reject(path: Path) -> Reject:
    """The first of a file that has some."""
    with open(path, "rb") as file:
        return _parsed(file.readline())


def _parsed(line: bytes) -> Reject:
    fields = json.loads(line)
    key = fields["key"]
    if not isinstance(key, int) or not 0 <= key < 1 << 63:
        raise ValueError("the key is no planned number")
    return Reject(key, name_of(fields), str(fields["reason"]))


def iterate_rejects(path: Path) -> Iterator[Reject]:
    """Read the file, line by line. Raises DamagedDatasetError naming the line that breaks it."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                reject = _parsed(line)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise DamagedDatasetError(
                    f"each line of {str(path)!r} must hold key, path and reason",
                    got=f"line {number}: {error}",
                    remedy="Convert the dataset again.",
                ) from error
            yield reject


def load_rejects(path: Path) -> list[Reject]:
    """Read the whole file; see `iterate_rejects`."""
    return list(iterate_rejects(path))
