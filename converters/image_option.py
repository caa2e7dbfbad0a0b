"""`--image`: what becomes of the images on their way into a dataset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from wellfed.pipeline.decode.check import CheckLevel, check_image
from wellfed.pipeline.decode.rewrite import Rewritten, can_rewrite_baseline, resize_encoder, to_baseline, to_resized
from wellfed.pipeline.errors import UsageError

DEFAULT_QUALITY = 90
SMALLEST_SIDE, LARGEST_SIDE = 16, 8192

_RESIZE = re.compile(r"resize:([0-9]{1,6})(?:@([0-9]{1,3}))?")
_ASPECT = 4 / 3
_BYTES_PER_PIXEL = ((90, 0.5), (95, 1.0), (100, 2.0))
"""(up to this quality, bytes) that a resized photo is planned with; at 90 and a shorter side of 256 it takes 0.3."""


@dataclass(frozen=True)
class ImageOption:
    """One way of storing images.

    Attributes:
        kind: "keep" stores the source's bytes; "baseline" and "resize" see `to_baseline` and `to_resized`.
        side: shorter side in pixels; 0 where nothing is resized.
        quality: of the JPEGs that are made, 1 to 100; 0 where none are.
    """

    kind: Literal["keep", "baseline", "resize"] = "keep"
    side: int = 0
    quality: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "keep", "baseline", "resize:N" or "resize:N@QUALITY".

        Raises:
            UsageError: anything else, or "baseline" without the C extension.
        """
        if text == "keep":
            return cls()
        if text == "baseline":
            if not can_rewrite_baseline():
                raise UsageError(
                    "only the C extension rewrites JPEGs as baseline without loss, and it is not built",
                    got=text,
                    remedy="wellfed doctor says how to build it; or use keep, or resize:N.",
                )
            return cls("baseline")
        match = _RESIZE.fullmatch(text)
        side, quality = (int(match[1]), int(match[2] or DEFAULT_QUALITY)) if match else (0, 0)
        if not SMALLEST_SIDE <= side <= LARGEST_SIDE or not 1 <= quality <= 100:
            raise UsageError(
                "the image option must be keep, baseline or resize:N@QUALITY, with a shorter side of "
                f"{SMALLEST_SIDE} to {LARGEST_SIDE} pixels and a quality of 1 to 100",
                got=text,
                remedy=f"Write for example resize:256, which means resize:256@{DEFAULT_QUALITY}.",
            )
        return cls("resize", side, quality)

    def __str__(self) -> str:
        return f"resize:{self.side}@{self.quality}" if self.kind == "resize" else self.kind

    def published(self) -> Mapping[str, str]:
        """What the manifest's options say; the encoder only where it decides the bytes."""
        return {"image": str(self), **({"image_encoder": resize_encoder()} if self.kind != "keep" else {})}

    def apply(self, data: bytes, check: CheckLevel) -> Rewritten:
        """The image as it is to be stored.

        Raises:
            SampleRejectedError: see `check_image`.
        """
        if self.kind == "baseline":
            return to_baseline(data, check)
        if self.kind == "resize":
            return to_resized(data, side=self.side, quality=self.quality, level=check)
        header = check_image(data, check)
        return Rewritten(data, header, header)

    def plan(self, sizes: np.ndarray) -> None:
        """From sources' sizes in bytes, i8, to those that images are planned with, in place: no more than they were.

        For "resize" it is an estimate from the option alone, so that planning reads no image: a busy or very long
        picture takes more.
        """
        if self.kind == "resize":
            per_pixel = next(each for most, each in _BYTES_PER_PIXEL if self.quality <= most)
            np.minimum(sizes, int(self.side * self.side * _ASPECT * per_pixel), out=sizes)


def done_to(
    data: bytes, rewritten: Rewritten, option: ImageOption, before: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """What the json member says of an image; None where nothing was ever done to it.

    Args:
        data: the bytes of its source.
        before: what the source, which is a converted dataset then, says itself.
    """
    if rewritten.data is data:
        return before
    source = rewritten.source
    facts: dict[str, Any] = {
        "ext": source.ext,
        "bytes": len(data),
        "width": source.width,
        "height": source.height,
        "orientation": source.orientation,
        "mode": source.mode,
    }
    return {"option": str(option), "source": {**facts, **({"image": before} if before else {})}}
