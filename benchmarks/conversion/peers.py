"""What the converter is compared with, each in a process of its own:

    python -m benchmarks.conversion.peers PEER SOURCE OUT

`lmdb` and `webdataset` write OUT. `decode` and `resize` only work on the first WORKING_SET files of SOURCE, held in
memory, in PROCESSES processes that start the clock together; they print {"images_per_second", "library"} of the
fastest library here. Only these two leave out their start-up.
"""

from __future__ import annotations

import importlib.util
import io
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROCESSES = 2
WORKING_SET = 250
SHORTER_SIDE, QUALITY = 256, 90
SHARD_BYTES = 256_000_000


def rows(source: Path) -> list[tuple[Path, int]]:
    """Each file with its label, sorted, as torchvision's ImageFolder lists them."""
    classes = sorted(os.listdir(source))
    return [
        (source / name / file, label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(source / name))
    ]


def write_lmdb(source: Path, out: Path) -> None:
    """Sorted puts of image and label, one transaction for 1,000 samples, synced once at the end as wellfed does."""
    import lmdb

    listed = rows(source)
    size = sum(path.stat().st_size for path, _ in listed)
    out.mkdir()
    environment = lmdb.open(str(out), map_size=2 * size + (64 << 20), sync=False, metasync=False, lock=False)
    for start in range(0, len(listed), 1000):
        with environment.begin(write=True) as transaction:
            for key, (path, label) in enumerate(listed[start : start + 1000], start):
                transaction.put(b"%010d.cls" % key, b"%d" % label)
                transaction.put(b"%010d.jpg" % key, path.read_bytes())
    environment.sync(True)
    environment.close()


def write_webdataset(source: Path, out: Path) -> None:
    """webdataset's own writer, with shards of the size that wellfed makes."""
    import webdataset

    out.mkdir()
    pattern = str(out / "data-%06d.tar")
    with webdataset.ShardWriter(pattern, maxsize=SHARD_BYTES, maxcount=1_000_000_000, verbose=0) as writer:
        for key, (path, label) in enumerate(rows(source)):
            writer.write({"__key__": f"{key:010d}", "jpg": path.read_bytes(), "cls": str(label)})
    for path in out.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _torchvision_decode(data: bytes) -> Any:
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    return decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)


def _torchvision_resize(data: bytes) -> None:
    from torchvision.io import encode_jpeg
    from torchvision.transforms.v2 import functional

    image = _torchvision_decode(data)
    if min(image.shape[1:]) > SHORTER_SIDE:
        image = functional.resize(image, [SHORTER_SIDE], antialias=True)
    encode_jpeg(image, quality=QUALITY)


def _pillow_decode(data: bytes) -> None:
    from PIL import Image

    Image.open(io.BytesIO(data)).convert("RGB")


def _pillow_resize(data: bytes) -> None:
    from PIL import Image

    image = Image.open(io.BytesIO(data)).convert("RGB")
    if (shorter := min(image.size)) > SHORTER_SIDE:
        size = tuple(round(side * SHORTER_SIDE / shorter) for side in image.size)
        image = image.resize(size, Image.Resampling.BILINEAR)
    image.save(io.BytesIO(), "JPEG", quality=QUALITY)


def _simplejpeg_decode(data: bytes) -> None:
    import simplejpeg

    simplejpeg.decode_jpeg(data, "RGB")


LIBRARIES: dict[str, dict[str, Callable[[bytes], None]]] = {
    "decode": {"torchvision": _torchvision_decode, "pillow": _pillow_decode, "simplejpeg": _simplejpeg_decode},
    "resize": {"torchvision": _torchvision_resize, "pillow": _pillow_resize},
}
MODULES = {"torchvision": "torchvision", "pillow": "PIL", "simplejpeg": "simplejpeg"}


def _work(work: Callable[[bytes], None], images: list[bytes], repeats: int, ready: Any, done: Any) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # torchvision's decoder says at every call that it will go
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)
    for data in images[:20]:
        work(data)
    ready.wait()
    start = time.monotonic()
    for _ in range(repeats):
        for data in images:
            work(data)
    done.put((start, time.monotonic()))


def alone(what: str, source: Path, repeats: int) -> dict[str, Any]:
    """Images/s of each installed library over PROCESSES processes, and the fastest."""
    images = [path.read_bytes() for path, _ in rows(source)[:WORKING_SET]]
    context = multiprocessing.get_context("spawn")
    rates: dict[str, float] = {}
    for library, work in LIBRARIES[what].items():
        if importlib.util.find_spec(MODULES[library]) is None:
            continue
        ready, done = context.Barrier(PROCESSES), context.Queue()
        team = [context.Process(target=_work, args=(work, images, repeats, ready, done)) for _ in range(PROCESSES)]
        for process in team:
            process.start()
        spans = [done.get(timeout=600) for _ in team]
        for process in team:
            process.join()
        seconds = max(stop for _, stop in spans) - min(start for start, _ in spans)
        rates[library] = PROCESSES * repeats * len(images) / seconds
    best = max(rates, key=lambda name: rates[name])
    return {"images_per_second": rates[best], "library": best, "all": rates}


def main(arguments: list[str]) -> None:
    peer, source, out = arguments
    if peer in LIBRARIES:
        print(json.dumps(alone(peer, Path(source), int(out))))
    else:
        {"lmdb": write_lmdb, "webdataset": write_webdataset}[peer](Path(source), Path(out))


if __name__ == "__main__":
    main(sys.argv[1:])
