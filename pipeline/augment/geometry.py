"""Shears, shifts and rotations of whole batches, with a matrix for each sample."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["move", "rotation", "shear_x", "shear_y", "translation"]

Matrix = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): the pixel at (x, y) is taken from (a x + b y + c, d x + e y + f); from the picture's centre."""


def shear_x(slope: float, height: int) -> Matrix:
    """Rows move sideways by `slope` for each row below the upper edge."""
    return (1.0, slope, slope * height / 2, 0.0, 1.0, 0.0)


def shear_y(slope: float, width: int) -> Matrix:
    """Columns move up and down by `slope` for each column right of the left edge."""
    return (1.0, 0.0, 0.0, slope, 1.0, slope * width / 2)


def translation(x: int, y: int) -> Matrix:
    """To the right and down, pixels."""
    return (1.0, 0.0, -float(x), 0.0, 1.0, -float(y))


def rotation(degrees: float) -> Matrix:
    """Counter-clockwise about the centre."""
    cosine, sine = float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))
    return (cosine, -sine, 0.0, sine, cosine, 0.0)


def move(pictures: torch.Tensor, matrices: torch.Tensor, *, interpolation: str, fill: torch.Tensor) -> None:
    """Move each picture by its matrix, in place.

    Args:
        pictures: float32, shape (n, 3, H, W), whole numbers from 0 to 255, as they are again afterwards.
        matrices: float32, shape (n, 6).
        interpolation: "nearest" or "bilinear".
        fill: what comes from outside, float32, shape (3,).
    """
    height, width = pictures.shape[-2:]
    x = torch.arange(width, dtype=torch.float32, device=pictures.device).sub_((width - 1) / 2)
    y = torch.arange(height, dtype=torch.float32, device=pictures.device).sub_((height - 1) / 2).unsqueeze_(1)
    a, b, c, d, e, f = matrices.view(-1, 6, 1, 1).unbind(1)
    # Products and sums by themselves: a matrix product's roundings would depend on how many there are.
    grid = torch.stack([(x * a + y * b).add_(c).mul_(2 / width), (x * d + y * e).add_(f).mul_(2 / height)], dim=-1)
    colour = fill.view(1, 3, 1, 1)
    # Outside counts as 0, so that it is the fill once the fill is added again.
    moved = torch.nn.functional.grid_sample(
        pictures - colour, grid, mode=interpolation, padding_mode="zeros", align_corners=False
    )
    pictures.copy_(moved.add_(colour).round_())
