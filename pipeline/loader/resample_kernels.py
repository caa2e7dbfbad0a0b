"""The two GPU kernels of `resample`, in Triton: across, then down. Only imported where Triton is there.

Triton takes no annotations but its own in a kernel: it looks their names up as if the kernel used them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["launch"]

ROWS = 8
"""Rows of a crop that one program resizes across."""

LINES = 8
BYTES = 256
"""Lines of the output, and bytes of each, that one program resizes down."""


def launch(table: torch.Tensor, highest: int, scratch: torch.Tensor, out: torch.Tensor) -> None:
    """Resize the crops of the table into `out`.

    Args:
        table: int64, shape (m, 8), see `resample`.
        highest: height of the highest crop.
        scratch: uint8, 3 * S bytes for each row of each crop.
        out: uint8, shape (m, S, S, 3).
    """
    count, size = out.shape[:2]
    across[(triton.cdiv(highest, ROWS), count)](
        table, scratch, size, rows_at_once=ROWS, block=triton.next_power_of_2(size)
    )
    down[(triton.cdiv(size, LINES), count, triton.cdiv(3 * size, BYTES))](
        table, scratch, out, size, lines_at_once=LINES, block=BYTES
    )


@triton.jit
def window(places, scale, size):
    """The filter's middle and its first and last inputs (the last not included) for these outputs, as in Pillow."""
    reach = tl.maximum(scale, 1.0)
    middle = (places + 0.5) * scale
    low = tl.maximum((middle - reach + 0.5).to(tl.int32), 0)
    high = tl.minimum((middle + reach + 0.5).to(tl.int32), size)
    return reach, middle, low, high


@triton.jit
def triangle(at, middle, reach, high):
    """Weights of these inputs."""
    weight = tl.maximum(1.0 - tl.abs(at + 0.5 - middle) / reach, 0.0)
    return tl.where(at < high, weight, 0.0)


@triton.jit
def across(table, scratch, size, rows_at_once: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    entry = table + tl.program_id(1) * 8
    first = tl.program_id(0) * rows_at_once
    height = tl.load(entry + 2).to(tl.int32)
    if first < height:
        source = tl.load(entry).to(tl.pointer_type(tl.uint8))
        width = tl.load(entry + 1).to(tl.int32)
        row_stride = tl.load(entry + 3)
        column_stride = tl.load(entry + 4)
        channel_stride = tl.load(entry + 5)
        mirrored = tl.load(entry + 6) % 2
        columns = tl.arange(0, block)
        rows = first + tl.arange(0, rows_at_once)
        wanted = (rows < height)[:, None] & (columns < size)[None, :]
        scale = width.to(tl.float32) / size
        reach, middle, low, high = window(columns, scale, width)
        lines = source + rows.to(tl.int64)[:, None] * row_stride
        total = tl.zeros([block], tl.float32)
        red = tl.zeros([rows_at_once, block], tl.float32)
        green = tl.zeros([rows_at_once, block], tl.float32)
        blue = tl.zeros([rows_at_once, block], tl.float32)
        for tap in range((2 * reach).to(tl.int32) + 2):
            at = low + tap
            weight = triangle(at, middle, reach, high)
            total += weight
            pixels = lines + (at * column_stride)[None, :]
            there = wanted & (at < high)[None, :]
            red += weight[None, :] * tl.load(pixels, there, other=0).to(tl.float32)
            green += weight[None, :] * tl.load(pixels + channel_stride, there, other=0).to(tl.float32)
            blue += weight[None, :] * tl.load(pixels + 2 * channel_stride, there, other=0).to(tl.float32)
        share = 1.0 / tl.maximum(total, 1e-6)[None, :]
        targets = tl.where(mirrored == 1, size - 1 - columns, columns)
        line = (tl.load(entry + 7) + rows)[:, None] * (3 * size)
        target = scratch + line + (3 * targets)[None, :]
        tl.store(target, (red * share + 0.5).to(tl.uint8), wanted)
        tl.store(target + 1, (green * share + 0.5).to(tl.uint8), wanted)
        tl.store(target + 2, (blue * share + 0.5).to(tl.uint8), wanted)


@triton.jit
def down(table, scratch, out, size, lines_at_once: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    image = tl.program_id(1)
    entry = table + image * 8
    height = tl.load(entry + 2).to(tl.int32)
    upended = tl.load(entry + 6) // 2
    lines = tl.program_id(0) * lines_at_once + tl.arange(0, lines_at_once)
    places = tl.program_id(2) * block + tl.arange(0, block)
    width = 3 * size
    wanted = (lines < size)[:, None] & (places < width)[None, :]
    scale = height.to(tl.float32) / size
    reach, middle, low, high = window(lines, scale, height)
    source = scratch + tl.load(entry + 7) * width
    total = tl.zeros([lines_at_once], tl.float32)
    value = tl.zeros([lines_at_once, block], tl.float32)
    for tap in range((2 * reach).to(tl.int32) + 2):
        at = low + tap
        weight = triangle(at, middle, reach, high)
        total += weight
        there = wanted & (at < high)[:, None]
        value += weight[:, None] * tl.load(source + (at * width)[:, None] + places[None, :], there, other=0).to(
            tl.float32
        )
    share = 1.0 / tl.maximum(total, 1e-6)[:, None]
    targets = tl.where(upended == 1, size - 1 - lines, lines)
    target = out + image.to(tl.int64) * size * width + (targets * width)[:, None] + places[None, :]
    tl.store(target, (value * share + 0.5).to(tl.uint8), wanted)
