"""How far a peer's pixels are from Pillow's (crop, bilinear resize that filters when it shrinks), of 255."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .data import listing
from .decoders import DECODERS, SIZE, Box, random_draw, reference
from .job import Job
from .rows import Peer

_IMAGES = 100
_ORIENTATION = 0x0112
MATCHED = "same boxes"
WHOLE = "whole images resized: its boxes cannot be given"


def photos(files: Path) -> list[str]:
    """Different ones, upright: not every peer turns pictures as their EXIF data say."""
    found: dict[int, str] = {}
    for path, _ in listing(files):
        inode = Path(path).stat().st_ino
        if inode not in found and len(found) < _IMAGES:
            with Image.open(path) as image:
                if image.getexif().get(_ORIENTATION, 1) == 1:
                    found[inode] = path
    return list(found.values())


def difference(peer: Peer, job: Job) -> dict[str, Any]:
    """Mean absolute difference over all images, and of the worst image; None where it cannot be told."""
    name = peer.function.partition(":")[2]
    if name == "ffcv":
        return {"mean": None, "worst": None, "how": "it encodes the JPEGs anew, so other pictures are compared"}
    if peer.own:
        return _summary(_wellfed(job, name.removeprefix("wellfed_")), f"{MATCHED}, from its own batches")
    data = [Path(path).read_bytes() for path in photos(job.files)]
    if name == "dali":
        return _summary(_dali(data), WHOLE)
    random.seed(0)
    boxes = []
    for encoded in data:
        with Image.open(io.BytesIO(encoded)) as image:
            boxes.append(random_draw(image.height, image.width))
    if name.startswith("tfdata"):
        return _summary(_tensorflow(data, boxes, antialias=name.endswith("antialiased")), MATCHED)
    # ImageFolder hands torchvision's transforms Pillow's picture, as the decoder of that name does.
    decode = DECODERS[job.decoder or "pillow"]()
    pairs = []
    for encoded, box in zip(data, boxes, strict=True):
        pairs.append((np.asarray(decode(encoded, lambda height, width, box=box: box)), reference(encoded, box)))
    return _summary(pairs, MATCHED)


Pairs = list[tuple[np.ndarray, np.ndarray]]


def _summary(pairs: Pairs, how: str) -> dict[str, Any]:
    errors = []
    for pixels, expected in pairs:
        last = pixels if pixels.shape[-1] == 3 else pixels.transpose(1, 2, 0)
        errors.append(float(np.abs(last.astype(np.int16) - expected).mean()))
    return {
        "mean": round(float(np.mean(errors)), 3),
        "worst": round(max(errors), 3),
        "images": len(errors),
        "how": how,
    }


def _wellfed(job: Job, backend: str) -> Pairs:
    from wellfed.pipeline import DataLoader

    pairs: Pairs = []
    with DataLoader(
        str(job.format("wellfed")),
        batch_size=job.batch_size,
        shuffle=True,
        drop_last=True,
        augment="train",
        image_size=SIZE,
        backend=backend,
        num_workers=job.workers,
        fields=("image", "box", "flip", "index"),
    ) as loader:
        for batch in loader:
            for image, box, flip, row in zip(
                batch["image"].numpy(),
                batch["box"].tolist(),
                batch["flip"].tolist(),
                batch["index"].tolist(),
                strict=True,
            ):
                left, top, width, height = box
                expected = reference(loader.dataset.read(row), (top, left, height, width, flip), oriented=True)
                pairs.append((image, expected))
                if len(pairs) == _IMAGES:
                    return pairs
    return pairs


def _dali(data: list[bytes]) -> Pairs:
    from nvidia.dali import fn, pipeline_def, types

    from .own_peers import dali_resize

    encoded = [np.frombuffer(one, np.uint8) for one in data]

    @pipeline_def(batch_size=len(data), num_threads=2, device_id=None)
    def define() -> Any:
        source = fn.external_source(source=lambda: encoded)
        return dali_resize(fn.decoders.image(source, device="cpu", output_type=types.RGB))

    pipeline = define()
    pipeline.build()
    (images,) = pipeline.run()
    pairs = []
    for number, one in enumerate(data):
        with Image.open(io.BytesIO(one)) as image:
            whole: Box = (0, 0, image.height, image.width, False)
        pairs.append((np.asarray(images.at(number)), reference(one, whole)))
    return pairs


def _tensorflow(data: list[bytes], boxes: list[Box], *, antialias: bool) -> Pairs:
    from .own_peers import tf_pixels

    pairs = []
    for encoded, box in zip(data, boxes, strict=True):
        pixels = tf_pixels(encoded, list(box[:4]), antialias).numpy()
        pairs.append((pixels[:, ::-1] if box[4] else pixels, reference(encoded, box)))
    return pairs
