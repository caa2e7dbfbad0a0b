"""How far a loader's pixels lie from Pillow's, of 255: crop, bilinear resize with antialias, at the same boxes.

    python benchmarks/pixel_difference.py DATASET [--sizes 224 112] [--epochs 2] [--backend threads] > result.json

The mean is over all images of these epochs; the worst is the image whose own mean is largest.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, get_args

import numpy as np
from PIL import Image

from wellfed.pipeline.config import Augment, BackendName, DecodeMode
from wellfed.pipeline.decode.chunk import native_state
from wellfed.pipeline.decode.reference import decode_rgb
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.loader import DataLoader


def differences(options: dict[str, Any], dataset: str, epochs: int) -> tuple[list[float], int]:
    """Of each image, and how many crops are at least twice the size in both directions."""
    found, large = [], 0
    size = options["image_size"]
    with DataLoader(
        dataset, shuffle=True, batch_size=32, fields=("image", "index", "box", "flip"), **options
    ) as loader:
        for _ in range(epochs):
            for batch in loader:
                images = batch["image"].permute(0, 2, 3, 1).cpu().numpy().astype(int)
                for place, row in enumerate(batch["index"].tolist()):
                    x, y, width, height = batch["box"][place].tolist()
                    whole = Image.fromarray(decode_rgb(loader.dataset.read(row)))
                    crop = whole.crop((x, y, x + width, y + height)).resize((size, size), Image.Resampling.BILINEAR)
                    expected = np.asarray(crop)[:, :: -1 if batch["flip"][place] else 1]
                    found.append(float(np.abs(images[place] - expected).mean()))
                    large += min(width, height) >= 2 * size
    return found, large


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 112, 64])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--backend", choices=get_args(BackendName), default="threads")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()

    source = open_source(given.dataset)
    dataset = {"kind": source.kind, "samples": len(source), "fingerprint": source.fingerprint}
    source.close()
    results = []
    for size in given.sizes:
        for augment in get_args(Augment):
            for decode in get_args(DecodeMode):
                options = {"image_size": size, "augment": augment, "decode": decode}
                options |= {"backend": given.backend, "device": given.device}
                found, large = differences(options, given.dataset, given.epochs if augment == "train" else 1)
                row = {**options, "images": len(found), "large_crops": large, "mean": round(float(np.mean(found)), 4)}
                results.append({**row, "worst": round(max(found), 3)})
                print(results[-1], file=sys.stderr)
    print(
        json.dumps({"benchmark": "pixel_difference", "dataset": dataset, "decoder": native_state(), "results": results})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
