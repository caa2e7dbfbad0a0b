"""The checks of `verify` on the samples of a shard that was indexed in place: another tool's names and members."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import xxhash

from wellfed.pipeline.decode.check import check_image
from wellfed.pipeline.errors import SampleRejectedError
from wellfed.pipeline.formats import Manifest, mode_code
from wellfed.pipeline.formats.names import Names

from .reindex_task import IN_PLACE, dali_line
from .rejects import reason_of


def is_in_place(manifest: Manifest) -> bool:
    """The shards are another tool's, indexed where they lie."""
    return manifest.options.get(IN_PLACE) is True


def dali_lines(manifest: Manifest, names: Names, index: np.ndarray, shard: int) -> list[bytes]:
    """What the DALI index of a shard must hold, by lines."""
    chosen = np.flatnonzero(index["shard"] == shard).tolist()
    lines = [b"v1.2 %d" % len(chosen)]
    lines += [dali_line(names.bytes_at(row), index[row], manifest.members) or b"" for row in chosen]
    return [*lines, b""]


UNREADABLE_TAR = (tarfile.TarError, ValueError, OverflowError)
"""What `tarfile` raises over damaged tars: a size that no file can have fails in the file's seek, as a ValueError."""


def check_indexed_tar(
    manifest: Manifest, names: Names, path: Path, index: np.ndarray, *, start: int, stop: int, deep: bool
) -> Iterator[tuple[int, int | None, list[str]]]:
    """Compare rows with the members that `tarfile` finds; yields (rows done, key, what is wrong)."""
    try:
        with tarfile.open(path, "r:") as tar:
            # By place: a foreign tar may hold one name twice.
            found = {member.offset_data: (os.fsencode(member.name), member.size) for member in tar if member.isreg()}
    except UNREADABLE_TAR as error:
        yield 0, None, [f"it must be a tar; got {error}"]
        found = {}
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    length = os.fstat(descriptor).st_size
    try:
        for done, row_number in enumerate(range(start, stop), 1):
            row = index[row_number]
            name = names.bytes_at(row_number)
            wrong: list[str] = []
            values: dict[str, bytes] = {}
            for field, extension in manifest.members.items():
                offset, size = int(row[f"offset_{field}"]), int(row[f"size_{field}"])
                wanted = name if extension is None else _sibling(name, extension)
                if (member := found.get(offset)) is None or member[1] != size or not _same(member[0], wanted):
                    shown = wanted.decode("utf-8", "backslashreplace")
                    wrong.append(f"{shown} must be at offset {offset}, size {size}")
                if offset + size <= length:
                    values[field] = os.pread(descriptor, size, offset)
            wrong += _check_values(manifest, row, values, deep)
            yield done, int(row["key"]), wrong
    finally:
        os.close(descriptor)


def _sibling(name: bytes, extension: str) -> bytes:
    start = name.rfind(b"/") + 1
    dot = name.find(b".", start)
    return (name if dot < 0 else name[:dot]) + b"." + extension.encode("ascii")


def _same(found: bytes, wanted: bytes) -> bool:
    """Equal but for the letter case of the extension, which the index holds lower-cased."""
    dot = found.find(b".", found.rfind(b"/") + 1)
    return found == wanted or (dot >= 0 and found[:dot] + found[dot:].lower() == wanted)


def _check_values(manifest: Manifest, row: np.void, values: Mapping[str, bytes], deep: bool) -> Iterator[str]:
    for field, value in values.items():
        if xxhash.xxh3_64_intdigest(value) != int(row[f"xxh3_{field}"]) or len(value) != int(row[f"size_{field}"]):
            yield f"the bytes of its {field} are not those that were indexed"
        elif field == "class":
            label = int(row["label"])
            name = manifest.class_names[label] if 0 <= label < len(manifest.class_names) else None
            if not _means(value, label, name):
                yield f"its {manifest.members[field]} is {value[:100]!r}, its label in the index {label}"
        elif field == "image" and deep:
            try:
                head = check_image(value, "decode")
            except SampleRejectedError as error:
                yield f"its image does not decode: {reason_of(error)}"
                continue
            seen = (head.width, head.height, head.orientation, mode_code(head.mode))
            if seen != tuple(int(row[column]) for column in ("width", "height", "orientation", "mode")):
                yield f"its image has (width, height, orientation, mode) {seen}, the index says otherwise"


def _means(value: bytes, label: int, name: str | None) -> bool:
    text = value.decode("utf-8", "replace").strip()
    return text == name or (text.isdecimal() and int(text) == label)
