"""Conversion beside tar, LMDB and the image libraries; prints a table, keeps every raw value as JSON.

    python -m benchmarks.conversion --output result.json [--photos FOLDER] [--gigabytes 5] [--rounds 5]
                                    [--destination FOLDER] [--cold] [--rows NAME ...]

Rounds are interleaved: each runs every row once, in a new random order. A rate is images by wall time, from starting
the process to its end; `start_up_seconds` is the same command on a folder of two images. Both sides write real files
and sync them within their time.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from wellfed.pipeline.hardware import fingerprint

from ..common.command import run_command
from ..common.photos import drop_from_cache, images_of, make_folder, originals
from ..common.process import environment
from .rows import ROWS, Row, absent_peers
from .summary import summarize, table

START_UP_RUNS = 3


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file for the raw values and their summary")
    parser.add_argument("--photos", type=Path, help="folder of JPEGs; made ones without it")
    parser.add_argument("--gigabytes", type=float, default=5.0, help="of the rows that only copy")
    parser.add_argument("--pixel-images", type=int, default=10_000, help="images of the rows that decode")
    parser.add_argument("--images", type=int, help="images of every row, in place of both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, help="where the photos are linked; a temporary folder without it")
    parser.add_argument("--destination", type=Path, help="where results are written; the work folder without it")
    parser.add_argument("--cold", action="store_true", help="real copies, dropped from the page cache before each run")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these rows and their peers")
    options = parser.parse_args(argv)
    names = {row.name for row in ROWS}
    if options.rows and not set(options.rows) <= names:
        parser.error(f"--rows must be among: {', '.join(sorted(names))}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def chosen(names: list[str] | None) -> tuple[list[Row], dict[str, str]]:
    """The rows to run, and why others are left out."""
    wanted = {row.name for row in ROWS} if names is None else set(names)
    wanted |= {row.peer for row in ROWS if row.name in wanted and row.peer}
    absent = {row.name: row.absent for row in ROWS if row.name in wanted and row.absent}
    return [row for row in ROWS if row.name in wanted and row.name not in absent], absent


class Bench:
    """The folders, and how one row is run once."""

    def __init__(self, options: argparse.Namespace, work: Path, destination: Path) -> None:
        self.cold = options.cold
        self.out = destination / "out"
        self.environment = environment()
        files = originals(options.photos, work)
        counts = {
            "full": options.images or images_of(files, options.gigabytes),
            "pixels": options.images or options.pixel_images,
            "start": 2,
        }
        self.sources = {name: work / name for name in counts}
        self.made = {
            name: make_folder(self.sources[name], files, images=count, how="copies" if self.cold else "links")
            for name, count in counts.items()
        }

    def run(self, row: Row, set_name: str) -> dict[str, Any]:
        """One raw value."""
        source, (images, _) = self.sources[set_name], self.made[set_name]
        # Of a row that prints its rate, each of two processes goes over its working set this many times.
        repeats = max(1, images // 500)
        command = [part.format(source=source, out=self.out, repeats=repeats) for part in row.command]
        if self.cold:
            drop_from_cache(source)
        taken, printed = run_command(command, self.environment)
        self._remove()
        value: dict[str, Any] = taken.to_dict()
        if row.prints_rate:
            value |= json.loads(printed)
        else:
            value["images_per_second"] = images / taken.seconds
            value["images"] = images
        return value

    def _remove(self) -> None:
        if self.out.is_dir():
            shutil.rmtree(self.out)
        else:
            self.out.unlink(missing_ok=True)


def measure(options: argparse.Namespace, work: Path, destination: Path) -> dict[str, Any]:
    """Everything, as the JSON document holds it."""
    rows, absent = chosen(options.rows)
    bench = Bench(options, work, destination)
    results: dict[str, dict[str, Any]] = {
        row.name: {
            "peer": row.peer,
            "wanted": row.wanted,
            "set": row.set,
            "start_up": []
            if row.prints_rate
            else [bench.run(row, "start")["seconds"] for _ in range(min(START_UP_RUNS, options.rounds))],
            "values": [],
        }
        for row in rows
    }
    orders = random.Random(0)
    for number in range(options.rounds):
        for row in orders.sample(rows, len(rows)):
            value = bench.run(row, row.set)
            results[row.name]["values"].append(value)
            print(f"round {number + 1}: {row.name}: {value['images_per_second']:,.0f} img/s", file=sys.stderr)
    return {
        "benchmark": "conversion",
        "cold": options.cold,
        "rounds": options.rounds,
        "sets": {name: {"images": images, "bytes": size} for name, (images, size) in bench.made.items()},
        "sync": "each side syncs what it wrote within its time: wellfed each file, tar by `sync FILE`, LMDB by one "
        "sync at the end, webdataset's shards by fsync",
        "file_systems": {"source": _kind_of(work), "destination": _kind_of(destination)},
        "machine": fingerprint(),
        "absent": {**absent, **dict.fromkeys(absent_peers(), "not installed")},
        "rows": results,
        "summary": summarize(results),
    }


def _kind_of(path: Path) -> str:
    """File system type of a folder, from the mount table."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    parents = {str(path.resolve()), *map(str, path.resolve().parents)}
    return max((mount for mount in mounts if mount[0] in parents), key=lambda mount: len(mount[0]))[1]


def main(argv: list[str] | None = None) -> int:
    options = arguments_of(argv)
    with (
        tempfile.TemporaryDirectory(prefix="conversion-", dir=options.work) as work,
        tempfile.TemporaryDirectory(prefix="conversion-", dir=options.destination or options.work) as destination,
    ):
        document = measure(options, Path(work), Path(destination))
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document["summary"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
