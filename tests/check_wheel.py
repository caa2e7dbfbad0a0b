"""Run by cibuildwheel in an environment with the wheel alone: the C extension is in it, and decodes.

    python tests/check_wheel.py

It ends with an error where the package fell back to torchvision.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image

from wellfed.pipeline.decode.chunk import decode_chunk, native_state


def main() -> None:
    state = native_state()
    if not state.startswith("available"):
        raise SystemExit(state)
    ramp = np.linspace(0, 255, 96, dtype=np.uint8)
    picture = Image.fromarray(np.stack([np.tile(ramp, (64, 1))] * 3, axis=2))
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=95)
    out = torch.zeros(1, 3, 32, 32, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    box, upright, flip = np.array([[16, 0, 64, 64]]), np.array([1]), np.array([False])
    if failures := decode_chunk([encoded.getvalue()], box, upright, flip, out, "exact"):
        raise SystemExit(f"a JPEG does not decode: {failures}")
    decoded = Image.open(io.BytesIO(encoded.getvalue()))
    expected = np.asarray(decoded.crop((16, 0, 80, 64)).resize((32, 32), Image.Resampling.BILINEAR), dtype=int)
    difference = np.abs(out[0].permute(1, 2, 0).numpy() - expected).max()
    if difference > 2:
        raise SystemExit(f"a decoded picture is {difference} of 255 off Pillow's")
    print(f"C extension: {state}")


if __name__ == "__main__":
    main()
