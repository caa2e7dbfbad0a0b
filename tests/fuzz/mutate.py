"""Changes to bytes, and repairs that let them get past checksums."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any

LONGEST = 1 << 17

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1)
_DIGITS = (b"0", b"-1", b"1", b"8", b"777", b"99999", b"4294967296", b"9223372036854775808", b"1e999", b"NaN")


def mutated(rng: random.Random, data: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """The bytes with one to four changes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        _change(rng, changed, others, words)
    return bytes(changed[:LONGEST])


def _change(rng: random.Random, data: bytearray, others: Sequence[bytes], words: Sequence[bytes]) -> None:
    place = rng.randrange(len(data) + 1)
    length = rng.choice((1, 2, 3, 4, 8, 16, 64, 512))
    match rng.randrange(11 if words else 10):
        case 0 if data:
            data[min(place, len(data) - 1)] ^= 1 << rng.randrange(8)
        case 1:
            data[place : place + 1] = rng.randbytes(1)
        case 2:
            width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
            number = rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)
            data[place : place + width] = number.to_bytes(width, order)  # type: ignore[arg-type]
        case 3:
            stop = place
            while stop < len(data) and data[stop : stop + 1].isdigit():
                stop += 1
            data[place:stop] = rng.choice(_DIGITS)
        case 4:
            data[place:place] = rng.randbytes(rng.randrange(1, 9))
        case 5:
            data[place:place] = data[max(0, place - length) : place]
        case 6:
            del data[place : place + length]
        case 7:
            del data[place:]
        case 8:
            data[place : place + length] = bytes(length)
        case 9 if others:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            data[place : place + rng.choice((0, length, len(data)))] = other[start : start + 4 * length]
        case 10:
            data[place : place + rng.choice((0, 0, length))] = rng.choice(words)


def sum_tar(data: bytes) -> bytes:
    """Every header's checksum made right."""
    blocks = bytearray(data)
    for start in range(0, len(data) - 511, 512):
        block = blocks[start : start + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            blocks[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(blocks)


def place_zip_directory(data: bytes) -> bytes:
    """The end record says where the directory is, and how long."""
    start, end = data.find(b"PK\1\2"), data.rfind(b"PK\5\6")
    if start < 0 or end < start or end + 22 > len(data):
        return data
    count = data.count(b"PK\1\2", start, end) & 0xFFFF
    return data[: end + 8] + struct.pack("<2H2L", count, count, end - start, start) + data[end + 20 :]


def sum_png(data: bytes) -> bytes:
    """Every chunk's CRC made right."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    changed, place = bytearray(data), 8
    while place + 12 <= len(changed):
        length = int.from_bytes(changed[place : place + 4], "big")
        end = place + 8 + length
        if end + 4 > len(changed):
            break
        changed[end : end + 4] = zlib.crc32(changed[place + 4 : end]).to_bytes(4, "big")
        place = end + 4
    return bytes(changed)


_VALUES: tuple[Any, ...] = (None, True, 0, -1, 1 << 63, 1 << 70, 0.5, "", "..", "a/b", "\ud800", [], {}, [[]], "a")


def mutate_json(rng: random.Random, text: bytes) -> bytes:
    """One node of the document replaced, removed, doubled or renamed; other bytes are returned as they are."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    nodes: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            nodes.append((node, key))
            walk(node[key])

    walk(document)
    if not nodes:
        return json.dumps(rng.choice(_VALUES)).encode()
    node, key = rng.choice(nodes)
    match rng.randrange(5):
        case 0:
            del node[key]
        case 1 if isinstance(node, list):
            node.insert(key, node[key])
        case 1:
            node[str(key) + "x"] = node.pop(key)
        case 2:
            other, place = rng.choice(nodes)
            node[key] = (
                json.loads(json.dumps(other[place])) if place in (other if isinstance(other, dict) else ()) else 7
            )
        case _:
            node[key] = rng.choice(_VALUES)
    return json.dumps(document, indent=rng.choice((None, 1))).encode()
