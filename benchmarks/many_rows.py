"""Memory and rate of converting a manifest of very many rows, with tiny images.

    python -m benchmarks.many_rows --rows 1000000 --work FOLDER > result.json

A CSV of `--rows` rows points at 1,000 PNG images of 8 x 8 pixels in 100 classes; each 50th row names a file that is not
there, and is rejected. Memory is read each second: anonymous memory of wellfed's main process and of its workers (what
they hold; page cache left out), and the largest resident size of each. Flat means that it does not follow the rows.
FOLDER needs about 1.5 KB a row, and is left as it was.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .common.process import environment, tree

IMAGES, CLASSES, MISSING = 1000, 100, 50
REJECTS_EXIT = 3


def write_manifest(folder: Path, rows: int) -> Path:
    """The images, and the CSV that names them."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for number in range(IMAGES):
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    manifest = folder / "rows.csv"
    with manifest.open("w") as file:
        file.write("path,label\n")
        for row in range(rows):
            name = f"absent-{row}" if row % MISSING == MISSING - 1 else row % IMAGES
            file.write(f"{name}.png,{row % CLASSES}\n")
    return manifest


def memory(pid: int) -> dict[str, int]:
    """Bytes: anonymous memory, resident memory, and the largest resident memory so far."""
    found = {"RssAnon": 0, "VmRSS": 0, "VmHWM": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) * 1024
    return found


def watched(command: list[str]) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, what memory was each second, and stdout."""
    samples: list[dict[str, Any]] = []
    began = time.monotonic()
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            workers = [memory(pid) for pid in tree(process.pid)[1:]]
            samples.append(
                {
                    "seconds": round(time.monotonic() - began, 1),
                    "main": memory(process.pid),
                    "workers": {
                        name: max((each[name] for each in workers), default=0) for name in ("RssAnon", "VmRSS", "VmHWM")
                    },
                    "processes": 1 + len(workers),
                }
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        assert process.stdout is not None
        return process.returncode, samples, process.stdout.read()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path, help="a folder on the disk to use; left out, the system's")
    parser.add_argument("--workers", default="2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-rows-", dir=options.work) as name:
        folder = Path(name)
        manifest = write_manifest(folder, options.rows)
        command = [sys.executable, "-m", "wellfed.pipeline", "convert", str(manifest), str(folder / "out")]
        command += ["--format", "webdataset", "--workers", options.workers, "--json"]
        began = time.monotonic()
        code, samples, out = watched(command)
        seconds = time.monotonic() - began
        if code != REJECTS_EXIT:
            raise SystemExit(f"wellfed convert ended with {code} instead of {REJECTS_EXIT}: {out[-2000:]}")
        summary = {name: value for name, value in json.loads(out).items() if name != "destination"}
    half = samples[len(samples) // 2 :]
    document = {
        "benchmark": "many_rows",
        "rows": options.rows,
        "cores": len(os.sched_getaffinity(0)),
        "seconds": round(seconds, 1),
        "rows_per_second": round(options.rows / seconds, 1),
        "summary": summary,
        "main_peak_rss_bytes": max(each["main"]["VmHWM"] for each in samples),
        "worker_peak_rss_bytes": max(each["workers"]["VmHWM"] for each in samples),
        "main_anonymous_bytes": {
            "at_half_time": half[0]["main"]["RssAnon"],
            "largest": max(each["main"]["RssAnon"] for each in samples),
        },
        "samples": samples[:: max(1, len(samples) // 200)],
    }
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
