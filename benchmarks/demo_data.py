"""Does the demo's made data decode at the rate of real photographs? Prints one JSON document.

    python benchmarks/demo_data.py REAL_FOLDER [--count 250] [--rounds 7]

Both sets are held in memory and decoded in one thread, in interleaved rounds, by torchvision and by Pillow. `ratio` is
the median over rounds of made over real images/s; it should lie within 0.75..1.25.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from wellfed.pipeline.decode.header import read_header
from wellfed.pipeline.demo.photolike import make_photolike


def _by_torchvision(data: bytes) -> None:
    decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)


def _by_pillow(data: bytes) -> None:
    Image.open(io.BytesIO(data)).convert("RGB")


def _rate(decode: Callable[[bytes], None], images: list[bytes]) -> float:
    start = time.perf_counter()
    for data in images:
        decode(data)
    return len(images) / (time.perf_counter() - start)


def _facts(images: list[bytes]) -> dict[str, float]:
    headers = [read_header(data) for data in images]
    sizes = [len(data) for data in images]
    return {
        "images": len(images),
        "mean_bytes": round(statistics.mean(sizes)),
        "min_bytes": min(sizes),
        "max_bytes": max(sizes),
        "mean_width": round(statistics.mean(h.width for h in headers), 1),
        "mean_height": round(statistics.mean(h.height for h in headers), 1),
        "grayscale": sum("grayscale" in h.notes for h in headers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", type=Path, help="folder of real JPEGs, searched through")
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DeprecationWarning)  # torchvision's decoder says at every call that it will go
    real = [p.read_bytes() for p in sorted(arguments.real.rglob("*")) if p.suffix.lower() in (".jpg", ".jpeg")]
    if not real:
        parser.error(f"no JPEG under {arguments.real}")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        make_photolike(Path(folder), count=arguments.count)
        making_seconds = time.perf_counter() - start
        made = [p.read_bytes() for p in sorted(Path(folder).rglob("*.jpg"))]
    report: dict[str, object] = {
        "benchmark": "demo_data",
        "making_seconds": round(making_seconds, 2),
        "made": _facts(made),
        "real": _facts(real),
    }
    for name, decode in (("torchvision", _by_torchvision), ("pillow", _by_pillow)):
        raw: dict[str, list[float]] = {"made": [], "real": []}
        _rate(decode, real[:20])
        for _ in range(arguments.rounds):
            raw["made"].append(_rate(decode, made))
            raw["real"].append(_rate(decode, real))
        ratios = [m / r for m, r in zip(raw["made"], raw["real"], strict=True)]
        report[name] = {
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(r, 3) for r in ratios],
            "images_per_second": {key: [round(v, 1) for v in values] for key, values in raw.items()},
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
