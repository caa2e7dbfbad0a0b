"""The photos that benchmarks work on: hard links or copies of a few hundred real ones, in class folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

CLASSES = 100
_MADE = 250


def originals(given: Path | None, work: Path) -> list[Path]:
    """Files to link to: those of a folder, copied next to the links; made by the demo's generator without one."""
    folder = work / "originals"
    folder.mkdir()
    if given is None:
        from wellfed.pipeline.demo.photolike import make_photolike

        make_photolike(folder, count=_MADE)
        return sorted(folder.rglob("*.jpg"))
    found = sorted(path for path in given.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    # Hard links need one file system, which the given folder need not be on.
    return [Path(shutil.copyfile(path, folder / f"{number:06d}.jpg")) for number, path in enumerate(found)]


def make_folder(
    root: Path, files: list[Path], *, images: int, how: Literal["links", "copies"] = "links"
) -> tuple[int, int]:
    """Write `root/classNNN/photoNNNNNNN.jpg`; returns the number of images and their bytes.

    Args:
        files: used over and over.
        images: how many.
        how: "links" take no disk space and stay in the page cache; "copies" are read from the disk when cold.
    """
    size = 0
    classes = min(CLASSES, images)
    for number in range(classes):
        (root / f"class{number:03d}").mkdir(parents=True)
    for number in range(images):
        file = files[number % len(files)]
        path = root / f"class{number % classes:03d}" / f"photo{number:07d}.jpg"
        if how == "links":
            os.link(file, path)
        else:
            shutil.copyfile(file, path)
        size += file.stat().st_size
    return images, size


def images_of(files: list[Path], gigabytes: float) -> int:
    """How many images make this many GB (1e9 bytes)."""
    mean = sum(file.stat().st_size for file in files) / len(files)
    return max(1, round(gigabytes * 1e9 / mean))


def drop_from_cache(root: Path) -> None:
    """Make the next read of each file below come from the disk."""
    os.sync()  # pages that are still to be written are not dropped
    for path in root.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
    if os.geteuid() == 0:
        # Names and inodes as well; where the machine forbids it (containers), only file contents are cold.
        try:
            Path("/proc/sys/vm/drop_caches").write_text("3")
        except OSError as error:
            print(f"only the files' pages were dropped: {error}")
