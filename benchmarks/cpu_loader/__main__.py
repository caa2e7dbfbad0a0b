"""wellfed's loader on the CPU beside its peers; prints tables, keeps every raw value as JSON.

    python -m benchmarks.cpu_loader --output result.json [--photos FOLDER] [--rounds 5] [--peers NAME ...]
                                    [--all-settings] [--work FOLDER]

Training-style loading (decode, RandomResizedCrop 224, flip, uint8 batches of 64) of the same JPEGs, warm, each peer in
the environment that runs this and in a process of its own for each value. Before anything is timed, each peer loads an
epoch of one-coloured images, by which samples, labels and repeats are checked; one that loads something else is listed
as absent. Rounds are interleaved over both sets: each runs every peer once, in a new random order.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellfed.pipeline.hardware import fingerprint

from ..common.photos import make_folder, originals
from ..common.process import environment, run_child, tree_pss
from ..common.versions import versions_of
from . import data, growth
from .job import BATCH_SIZE
from .rows import PEERS, SETS, Peer, Set, Setting
from .summary import summarize, tables

_CHECK = "check"
_TIMEOUT_SECONDS = 180.0
_SPARE_BATCHES = 16
"""What workers hold, and what a peer drops at the end of each shard or worker."""
_BATCHES_FACTOR = {"original": 1, "resized": 2}
"""Small images are decoded faster, so that a value takes as long."""
_LIBRARIES = (
    "torch",
    "torchvision",
    "torchdata",
    "numpy",
    "pillow",
    "opencv-python-headless",
    "simplejpeg",
    "webdataset",
    "litdata",
    "mosaicml-streaming",
    "ffcv",
    "spdl",
    "spdl-io",
    "grain",
    "datasets",
    "tensorflow-cpu",
    "tensorflow",
    "nvidia-dali-cuda120",
    "wellfed",
)


@dataclass(frozen=True)
class Entry:
    """A peer at a setting on a set of images: what a round runs once."""

    peer: Peer
    set: Set
    setting: Setting

    @property
    def label(self) -> str:
        """For progress."""
        return f"{self.peer.name} ({self.setting.label}) on {self.set}"


def arguments_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file for the raw values and their summary")
    parser.add_argument("--photos", type=Path, help="folder of JPEGs; made ones without it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="only these, as the result names them")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--all-settings", action="store_true", help="every setting of each peer, to find the best")
    parser.add_argument("--batches", type=int, default=48, help="behind each value on original files; twice on resized")
    parser.add_argument("--warm-batches", type=int, default=12, help="before the clock runs")
    parser.add_argument("--growth-samples", type=int, default=1_300_000, help="indexed, for the row of memory growth")
    parser.add_argument("--growth-batches", type=int, default=400, help="of each of its three epochs; 0 leaves it out")
    parser.add_argument("--work", type=Path, help="where the sets are made; a temporary folder in it is removed after")
    options = parser.parse_args(argv)
    unknown = set(options.peers or ()) - {peer.name for peer in PEERS}
    if unknown:
        parser.error(f"--peers must be among: {', '.join(peer.name for peer in PEERS)}; got {', '.join(unknown)}")
    if options.rounds < 1 or options.batches < 1 or options.warm_batches < 1:
        parser.error("--rounds, --batches and --warm-batches must be at least 1")
    return options


class Bench:
    """The sets, who takes part, and how one value is made."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options = options
        self.work = work
        # One thread for each worker: libraries that start their own would take each other's cores.
        self.environment = environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
        self.environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        self.absent: dict[str, str] = {}
        self.peers: list[Peer] = []
        for peer in PEERS:
            if options.peers and peer.name not in options.peers:
                self.absent[peer.name] = "left out by --peers"
            elif peer.absent:
                self.absent[peer.name] = peer.absent
            else:
                self.peers.append(peer)
        self.sets: dict[str, dict[str, Any]] = {}

    def make_sets(self) -> None:
        """The images and each peer's format of them; a peer whose writer fails is absent."""
        photos = originals(self.options.photos, self.work)
        data.make_check_folder(self.work / _CHECK / "files")
        for name in self.options.sets:
            files = data.resized(photos, self.work) if name == "resized" else photos
            batches = self.options.warm_batches + self.options.batches * _BATCHES_FACTOR[name] + _SPARE_BATCHES
            images, size = make_folder(self.work / name / "files", files, images=batches * BATCH_SIZE)
            self.sets[name] = {"images": images, "bytes": size, "mean_bytes": round(size / images)}
        for name in (_CHECK, *self.options.sets):
            for form in sorted({peer.format for peer in self.peers} - {"files"}):
                say(f"writing {name} as {form}")
                try:
                    data.write_format(form, self.work / name / "files", self.work / name / form)
                except RuntimeError as error:
                    self._drop([peer for peer in self.peers if peer.format == form], f"its writer failed: {error}")
            data.warm(self.work / name)

    def _drop(self, peers: list[Peer], why: str) -> None:
        for peer in peers:
            say(f"absent: {peer.name}: {why}")
            self.absent[peer.name] = why
            self.peers.remove(peer)

    def ask(self, entry: Entry, do: str, *, on: str | None = None, watch: Any = None) -> dict[str, Any]:
        """One answer of `benchmarks.cpu_loader.one`."""
        asked = {
            "do": do,
            "peer": entry.peer.name,
            "set_folder": str(self.work / (on or entry.set)),
            "decoder": entry.setting.decoder,
            "workers": entry.setting.workers,
            "warm_batches": self.options.warm_batches,
            "batches": self.options.batches * _BATCHES_FACTOR[entry.set],
        }
        out = run_child(
            [sys.executable, "-m", "benchmarks.cpu_loader.one", json.dumps(asked)],
            timeout=_TIMEOUT_SECONDS,
            env=self.environment,
            watch=watch,
        )
        answer: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
        return answer

    def check(self) -> dict[str, Any]:
        """Each peer's epoch over the checking set; those that fail are absent from here on."""
        passed = {}
        for peer in list(self.peers):
            say(f"checking {peer.name}")
            try:
                passed[peer.name] = self.ask(Entry(peer, "original", peer.settings[0]), "check", on=_CHECK)
            except RuntimeError as error:
                self._drop([peer], f"it does not load what was asked for: {str(error).splitlines()[-1]}")
        return passed

    def entries(self) -> list[Entry]:
        """What a round runs."""
        return [
            Entry(peer, name, setting)
            for name in self.options.sets
            for peer in self.peers
            for setting in (peer.settings if self.options.all_settings else [peer.setting_for(name)])
        ]

    def peak_pss(self, entry: Entry) -> dict[str, int]:
        """The most memory of the process tree, in a run of its own: reading it slows the workers down."""
        peaks: dict[str, int] = {}

        def watch(pid: int) -> None:
            for part, size in tree_pss(pid).items():
                peaks[part] = max(peaks.get(part, 0), size)

        self.ask(entry, "rate", watch=watch)
        return peaks


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Everything, as the JSON document holds it."""
    began = time.monotonic()
    bench = Bench(options, work)
    bench.make_sets()
    checks = bench.check()
    entries = bench.entries()
    values: list[dict[str, Any]] = [
        {
            "peer": entry.peer.name,
            "set": entry.set,
            "decoder": entry.setting.decoder,
            "workers": entry.setting.workers,
            "filters": entry.peer.filter_of(entry.setting),
            "values": [],
        }
        for entry in entries
    ]
    orders = random.Random(0)
    for number in range(options.rounds):
        for place in orders.sample(range(len(entries)), len(entries)):
            value = bench.ask(entries[place], "rate")
            values[place]["values"].append({**value, "load": os.getloadavg()[0]})
            say(f"round {number + 1}: {entries[place].label}: {value['images_per_second']:,.0f} img/s")
    for entry, row in zip(entries, values, strict=True):
        if entry.set == options.sets[0]:
            say(f"memory and pixels of {entry.label}")
            row["peak_bytes"] = bench.peak_pss(entry)
        row["pixels"] = bench.ask(entry, "pixels")
    document = {
        "benchmark": "cpu_loader",
        "rounds": options.rounds,
        "batch_size": BATCH_SIZE,
        "image_size": 224,
        "sets": bench.sets,
        "machine": fingerprint(),
        "versions": versions_of(_LIBRARIES),
        "absent": bench.absent,
        "checks": checks,
        "entries": values,
        "growth": growth.measure(options.growth_samples, options.growth_batches, work, bench.environment)
        if options.growth_batches
        else None,
        "seconds": round(time.monotonic() - began),
    }
    document["summary"] = summarize(document)
    return document


def main(argv: list[str] | None = None) -> int:
    options = arguments_of(argv)
    with tempfile.TemporaryDirectory(prefix="cpu-loader-", dir=options.work) as work:
        document = measure(options, Path(work))
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(tables(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
