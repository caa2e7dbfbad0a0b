"""The same JPEGs as a folder and in each peer's own format, and a set whose images tell which sample they are.

    python -m benchmarks.cpu_loader.data FORMAT FOLDER OUT

writes one format in a process of its own; each peer's own writer packs the files' bytes as they are (FFCV encodes
anew, it has no other way).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from wellfed.pipeline.formats import open_source

from ..common.photos import make_folder
from ..common.process import environment, run_child

CHECK_CLASSES = 12
CHECK_LEVELS = (12, 8, 8)
CHECK_SAMPLES = 768
"""12 batches of 64, so that 2, 3, 4 or 6 workers have equally many each, and a colour for each sample."""
_CHECK_SIZE = (300, 260)
_WDS_SHARDS = 12
_CHUNK_BYTES = 1 << 26


def listing(folder: Path) -> list[tuple[str, int]]:
    """Path and label of each file, sorted as torchvision's ImageFolder does."""
    classes = sorted(os.listdir(folder))
    return [
        (f"{folder}/{name}/{file}", label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(folder / name))
    ]


def check_colour(sample: int) -> tuple[int, int, int]:
    """The colour that sample 0 .. CHECK_SAMPLES - 1 is filled with; neighbours lie at least 20 apart."""
    red, green, blue = CHECK_LEVELS
    digits = (sample % red, sample // red % green, sample // red // green % blue)
    first, second, third = (
        15 + round(digit * 220 / (levels - 1)) for digit, levels in zip(digits, CHECK_LEVELS, strict=True)
    )
    return first, second, third


def sample_of(colour: np.ndarray) -> np.ndarray:
    """Samples whose colour is nearest: (..., 3) RGB in, int (...) out."""
    table = np.array([check_colour(sample) for sample in range(CHECK_SAMPLES)], dtype=np.int64)
    return np.abs(colour[..., None, :] - table).sum(-1).argmin(-1)


def make_check_folder(folder: Path) -> None:
    """CHECK_SAMPLES one-coloured JPEGs; the label of sample s is s % CHECK_CLASSES."""
    for number in range(CHECK_CLASSES):
        (folder / f"class{number:03d}").mkdir(parents=True)
    for sample in range(CHECK_SAMPLES):
        path = folder / f"class{sample % CHECK_CLASSES:03d}" / f"photo{sample:07d}.jpg"
        Image.new("RGB", _CHECK_SIZE, check_colour(sample)).save(path, quality=95)


def resized(photos: list[Path], work: Path) -> list[Path]:
    """The photos after `wellfed convert --image resize:256`, as files again."""
    unique = work / "unique"
    make_folder(unique, photos, images=len(photos))
    convert(unique, work / "unique-resized", "--image", "resize:256")
    folder = work / "small"
    folder.mkdir()
    source = open_source(work / "unique-resized")
    files = []
    for row in range(len(source)):
        files.append(folder / f"{row:06d}.jpg")
        files[-1].write_bytes(source.read(row))
    source.close()
    for name in ("unique", "unique-resized"):
        shutil.rmtree(work / name)
    return files


def convert(folder: Path, out: Path, *options: str) -> None:
    """`wellfed convert` to WebDataset shards."""
    command = [sys.executable, "-m", "wellfed.pipeline", "convert", str(folder), str(out), "--format", "webdataset"]
    subprocess.run(
        [*command, "--workers", "2", "--json", *options], env=environment(), check=True, stdout=subprocess.DEVNULL
    )


def write_format(name: str, folder: Path, out: Path, *, timeout: float = 900) -> None:
    """Write one of FORMATS in a process of its own.

    Raises:
        RuntimeError: the peer's writer failed.
    """
    run_child(
        [sys.executable, "-m", "benchmarks.cpu_loader.data", name, str(folder), str(out)],
        timeout=timeout,
        env=environment(),
    )


def warm(folder: Path) -> int:
    """Read every file once; bytes."""
    size = 0
    for path in folder.rglob("*"):
        if path.is_file():
            size += len(path.read_bytes())
    return size


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _wellfed(folder: Path, out: Path) -> None:
    convert(folder, out)


def _webdataset(folder: Path, out: Path) -> None:
    import webdataset

    out.mkdir()
    rows = listing(folder)
    # Shuffled once: a stream of shards sorted by class would give batches of one class.
    order = np.random.default_rng(0).permutation(len(rows))
    per_shard = -(-len(rows) // _WDS_SHARDS)
    with webdataset.ShardWriter(str(out / "data-%05d.tar"), maxcount=per_shard, verbose=0) as writer:
        for key, row in enumerate(order):
            path, label = rows[row]
            writer.write({"__key__": f"{key:010d}", "jpg": _read(path), "cls": label})


def _litdata_sample(row: tuple[str, int]) -> dict[str, Any]:
    return {"image": _read(row[0]), "label": row[1]}


def _litdata(folder: Path, out: Path) -> None:
    from litdata import optimize

    rows = listing(folder)
    # Chunks of one size that all workers can share equally.
    size = CHECK_SAMPLES // 12 if len(rows) == CHECK_SAMPLES else max(1, len(rows) // 24)
    optimize(fn=_litdata_sample, inputs=rows, output_dir=str(out), chunk_size=size, num_workers=2, verbose=False)


def _mds(folder: Path, out: Path) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=str(out), columns=columns, compression=None, size_limit=_CHUNK_BYTES) as writer:
        for path, label in listing(folder):
            writer.write({"image": _read(path), "label": label})


def _parquet(folder: Path, out: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema([("image", image), ("label", pyarrow.int64())])
    out.mkdir()
    rows = listing(folder)
    with pyarrow.parquet.ParquetWriter(out / "data.parquet", schema, compression="none", use_dictionary=False) as file:
        for start in range(0, len(rows), 100):
            part = rows[start : start + 100]
            columns = {
                "image": [{"bytes": _read(path), "path": None} for path, _ in part],
                "label": [label for _, label in part],
            }
            file.write_table(pyarrow.table(columns, schema=schema))


class _FfcvRows:
    def __init__(self, folder: Path) -> None:
        self._rows = listing(folder)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        path, label = self._rows[row]
        return Image.open(path).convert("RGB"), label


def _ffcv(folder: Path, out: Path) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    out.mkdir()
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=95), "label": IntField()}
    DatasetWriter(str(out / "data.beton"), fields, num_workers=2).from_indexed_dataset(_FfcvRows(folder), chunksize=50)


FORMATS = {
    "wellfed": _wellfed,
    "webdataset": _webdataset,
    "litdata": _litdata,
    "mds": _mds,
    "parquet": _parquet,
    "ffcv": _ffcv,
}


if __name__ == "__main__":
    FORMATS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
