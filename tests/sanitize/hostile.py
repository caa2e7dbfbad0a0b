"""In the process of the sanitizers: hostile JPEGs through every function of the extension.

Only what is needed is imported: under AddressSanitizer torch alone would take longer than a short run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import random
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from fuzz.mutate import mutated  # type: ignore[import-not-found]  # tests/ is on the path of this process alone
from PIL import Image

LONGEST = 1 << 17
LARGE_PIXELS = 2_000_000
"""A changed header may promise 178 million pixels, which take seconds: most of those are left out."""

WORDS = (
    *(
        bytes((0xFF, marker))
        for marker in (0xC0, 0xC1, 0xC2, 0xC4, 0xC9, 0xD0, 0xD5, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xE1)
    ),
    *(b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\2", b"\x11\x22\x14\x41\x44", b"\0\0", b"\xff\xff"),
)


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("wellfed.pipeline.decode._jpeg", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made() -> list[bytes]:
    """A small JPEG of each kind that Pillow writes."""
    rng = np.random.default_rng(3)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
    kinds: list[dict[str, Any]] = [
        {"mode": mode, "size": size, "quality": quality, **options}
        for mode in ("L", "RGB", "CMYK")
        for size, quality in (((1, 1), 75), ((17, 33), 30), ((130, 70), 90), ((300, 200), 95))
        for options in ({}, {"progressive": True}, {"restart_marker_blocks": 2}, {"optimize": True})
    ]
    kinds += [{"mode": "RGB", "size": (90, 61), "subsampling": name} for name in ("4:4:4", "4:2:2", "4:2:0")]
    files = []
    for kind in kinds:
        options = dict(kind)
        picture = coarse.resize(options.pop("size"), Image.Resampling.BICUBIC).convert(options.pop("mode"))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", **options)
        files.append(buffer.getvalue())
    return files


def given(folders: list[str]) -> list[bytes]:
    """The JPEGs of these folders, those of usual size."""
    found = []
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and path.stat().st_size <= LONGEST:
                data = path.read_bytes()
                if data[:2] == b"\xff\xd8":
                    found.append(data)
    return found


def reshaped(rng: random.Random, data: bytes) -> bytes:
    """With other numbers in the frame header: size, precision, components, sampling factors."""
    changed = bytearray(data)
    for place in range(2, min(len(data) - 20, 4096)):
        if data[place] == 0xFF and data[place + 1] in (0xC0, 0xC1, 0xC2):
            at = place + rng.choice((4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18))
            changed[at] = rng.choice((0, 1, 2, 3, 4, 8, 12, 0x11, 0x12, 0x21, 0x22, 0x41, 0x14, 0x44, 0xFF))
            break
    return bytes(changed)


def promised_pixels(data: bytes) -> int:
    """The largest size that any frame header in the file gives."""
    largest, place = 0, data.find(b"\xff")
    while 0 <= place < len(data) - 9:
        if data[place + 1] in (0xC0, 0xC1, 0xC2, 0xC9, 0xCA):
            height, width = data[place + 5] << 8 | data[place + 6], data[place + 7] << 8 | data[place + 8]
            largest = max(largest, width * height)
        place = data.find(b"\xff", place + 1)
    return largest


def box_of(rng: random.Random, width: int, height: int) -> tuple[int, ...]:
    """Mostly inside a picture of this size, sometimes anywhere."""
    if rng.random() < 0.1:
        return tuple(rng.choice((-(2**31), -1, 0, 1, 7, width, height, 2**31 - 1)) for _ in range(4))
    w, h = rng.randint(1, max(1, width)), rng.randint(1, max(1, height))
    return rng.randint(0, max(0, width - w)), rng.randint(0, max(0, height - h)), w, h


def size_in(data: bytes) -> tuple[int, int]:
    """Width and height of the first frame header, or a guess."""
    place = data.find(b"\xff", 2)
    while 0 <= place < len(data) - 9:
        if data[place + 1] in (0xC0, 0xC1, 0xC2):
            return data[place + 7] << 8 | data[place + 8], data[place + 5] << 8 | data[place + 6]
        place = data.find(b"\xff", place + 1)
    return 64, 48


def feed(native: ModuleType, rng: random.Random, data: bytes) -> int:
    """Through everything; how many calls made pixels."""
    width, height = size_in(data)
    count = rng.randint(1, 4)
    boxes = np.array([box_of(rng, width, height) for _ in range(count)], np.int64).astype(np.int32)
    orientations = np.array([rng.choice((1, 1, 1, *range(10), 255)) for _ in range(count)], np.uint8)
    if any(5 <= turn <= 8 for turn in orientations):
        boxes[(orientations >= 5) & (orientations <= 8)] = boxes[(orientations >= 5) & (orientations <= 8)][
            :, [1, 0, 3, 2]
        ]
    flips = np.array([rng.randrange(2) for _ in range(count)], np.uint8)
    side = rng.choice((1, 2, 3, 7, 16, 33, 64, 224))
    seen: list[tuple[bytes, list[int]]] = []
    reduce = rng.random() < 0.5
    for portable in (False, True):
        out, status = np.zeros((count, side, side, 3), np.uint8), np.zeros(count, np.int32)
        native.decode([data] * count, boxes, orientations, flips, out, side, reduce, portable, status)
        seen.append((out[status == 0].tobytes(), status.tolist()))
    assert seen[0] == seen[1], "the kernels differ"
    from_file(native, rng, data, (boxes, orientations, flips, side, reduce), seen[0])
    native.plain_header(data)
    ordinary = np.zeros(2, np.uint8)
    native.ordinary(
        [data, data[: rng.randrange(len(data) + 1)]], np.array([width] * 2), np.array([height] * 2), ordinary
    )
    native.check(data)
    native.baseline(data)
    native.resize(
        data,
        rng.randrange(10),
        rng.choice((1, 5, 40, 256)),
        rng.choice((1, 6, 41, 300)),
        rng.choice((0, 1, 3)),
        rng.randint(1, 100),
        rng.random() < 0.3,
    )
    return seen[0][1].count(0)


def from_file(
    native: ModuleType, rng: random.Random, data: bytes, how: tuple[Any, ...], seen: tuple[bytes, list[int]]
) -> None:
    """The same from a file: alike where the index is right, and nothing but an error where it is not."""
    boxes, orientations, flips, side, reduce = how
    count, before = len(boxes), rng.randrange(100)
    descriptor = os.memfd_create("hostile")
    try:
        os.write(descriptor, bytes(before) + data)
        descriptors = np.full(count, descriptor, np.int32)
        offsets, sizes = np.full(count, before, np.int64), np.full(count, len(data), np.int64)
        out, status = np.zeros((count, side, side, 3), np.uint8), np.zeros(count, np.int32)
        rest = (boxes, orientations, flips, out, side, reduce, False, status)
        native.decode_files(descriptors, offsets, sizes, *rest)
        assert (out[status == 0].tobytes(), status.tolist()) == seen, "reading the file makes a difference"
        memory = np.zeros(count * len(data), np.uint8)
        assert native.read_files(descriptors, offsets, sizes, memory) == count
        assert memory.tobytes() == data * count
        place = rng.randrange(count)
        for values, odd in (
            (descriptors, (-1, 1_000_000, -(2**31), 2**31 - 1)),
            (offsets, (-1, len(data), 2**40, -(2**63), 2**63 - 1)),
            (sizes, (-1, 0, len(data) + before + 1, -(2**63), 2**63 - 1, 2**62)),
        ):
            kept = values[place]
            values[place] = rng.choice(odd)
            native.decode_files(descriptors, offsets, sizes, *rest)
            assert status[place] != 0, "an image of nothing"
            if values is not sizes:
                whole = native.read_files(descriptors, offsets, sizes, memory)
                # Nothing can be read from anywhere.
                assert whole <= place or offsets[place] <= before or not data
            else:
                with contextlib.suppress(ValueError):
                    native.read_files(descriptors, offsets, sizes, memory)
            values[place] = kept
    finally:
        os.close(descriptor)


def main() -> int:
    extension, kept, seconds, seed, *folders = sys.argv[1:]
    native = load(extension)
    seeds, photos = made(), given(folders)
    end = time.monotonic() + float(seconds)
    number = decoded = 0
    while time.monotonic() < end:
        rng = random.Random(f"{seed}/{number}")
        number += 1
        data = rng.choice(photos if photos and rng.random() < 0.5 else seeds)
        change = rng.random()
        if change < 0.9:
            data = mutated(rng, data, seeds, WORDS)
        if change > 0.7:
            data = reshaped(rng, data)
        if promised_pixels(data) > LARGE_PIXELS and rng.random() < 0.98:
            continue
        # A report ends the process at once: what it was about must already be on disk.
        Path(kept).write_bytes(data)
        decoded += feed(native, rng, data)
    print(f"{number} inputs of {len(seeds)} made and {len(photos)} given files; {decoded} crops decoded", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
