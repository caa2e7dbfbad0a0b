"""Pictures that colour operations can go wrong on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture(scope="session")
def pictures() -> torch.Tensor:
    """uint8, shape (12, 3, 61, 61), channels-last: smooth, noise, gray, a narrow range, few colours, black, white."""
    rng = np.random.default_rng(3)
    made = []
    for number in range(12):
        coarse = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        picture = np.asarray(Image.fromarray(coarse).resize((61, 61), Image.Resampling.BICUBIC)).astype(int)
        if number == 1:
            picture = rng.integers(0, 256, (61, 61, 3))
        elif number == 2:
            picture = np.repeat(picture[..., :1], 3, axis=2)
        elif number == 3:
            picture = 90 + picture // 10
        elif number == 4:
            picture = picture // 64 * 85
        elif number == 5:
            picture = np.zeros_like(picture)
        elif number == 6:
            picture = np.full_like(picture, 255)
        elif number == 7:
            # One channel is flat, which neither stretches nor equalizes.
            picture = picture.copy()
            picture[..., 1] = 77
        made.append(picture.astype(np.uint8))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)
