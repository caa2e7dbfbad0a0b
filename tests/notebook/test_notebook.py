"""A session in a notebook, in a real kernel: convert, load, interrupt, go on, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from wellfed.converters.notebook import NotebookBars, or_drawn
from wellfed.converters.progress import Progress
from wellfed.pipeline.hardware.notebook import in_notebook

CONVERT = """
import multiprocessing, os, threading
from wellfed.converters import convert, verify
from wellfed.pipeline import DataLoader

convert("photos", "wds", output="webdataset", workers=1)
assert verify("wds", deep=True, workers=1).ok
"""
TWO_EPOCHS = """
with DataLoader("wds", batch_size=4, image_size=32, shuffle=True, num_workers={workers}, backend="{backend}") as loader:
    epochs = [[labels.tolist() for images, labels in loader] for _ in range(2)]
    kinds = {{type(child).__name__ for child in multiprocessing.active_children()}}
assert [len(epoch) for epoch in epochs] == [3, 3]
assert kinds == {kinds}, kinds
"""
INTERRUPTED = """
loader = DataLoader(
    "wds", batch_size=4, image_size=32, shuffle=True, num_workers={workers}, backend="{backend}", fields=("key",)
)
while True:
    for batch in loader:
        with open("written", "w") as file:
            file.write(str(os.getpid()))
        os.replace("written", "going-{backend}")
"""
GO_ON = """
assert sorted(sum((batch["key"].tolist() for batch in loader), [])) == list(range(12))
loader.close()
assert not multiprocessing.active_children()
"""
NOTHING_LEFT = """
assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("wellfed")]
# The tracker is multiprocessing's own; it ends with the kernel.
import psutil
left = [child.cmdline() for child in psutil.Process().children(recursive=True)]
assert not [line for line in left if not any("resource_tracker" in part for part in line)], left
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """12 small JPEGs in 2 classes."""
    for number in range(12):
        path = tmp_path / "photos" / ("cat" if number % 2 else "dog") / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 50, 3), 20 * number, dtype=np.uint8)).save(path)
    return tmp_path


def interrupt_when_going(marker: Path, kernels: list[int]) -> None:
    """What the interrupt button does: SIGINT to the kernel and all of its children, until the cell's loop has ended.

    Python ignores one that strikes in the callback of a weak reference, as each batch has, and a person tries again.
    """
    while not going(marker, seconds=0.1):
        pass
    kernels.append(int(marker.read_text()))
    while True:
        os.killpg(kernels[-1], signal.SIGINT)
        time.sleep(2)
        marker.unlink(missing_ok=True)
        if not going(marker, seconds=2):
            return


def going(marker: Path, seconds: float) -> bool:
    time.sleep(seconds)
    return marker.exists()


def test_a_session_in_a_notebook(folder: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbclient (pip install 'wellfed[dev]')")
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient (pip install 'wellfed[dev]')")
    pytest.importorskip("ipykernel", reason="needs ipykernel (pip install 'wellfed[dev]')")
    monkeypatch.setenv("PYTHONPATH", str(repository / ".typing"))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    cell = nbformat.v4.new_code_cell
    stopped = {"metadata": {"tags": ["raises-exception"]}}
    cells = [cell(CONVERT)]
    # Each process imports torch, for seconds.
    for backend, workers, kinds in (("threads", 2, "set()"), ("processes", 1, "{'SpawnProcess'}")):
        cells += [
            cell(TWO_EPOCHS.format(backend=backend, workers=workers, kinds=kinds)),
            cell(INTERRUPTED.format(backend=backend, workers=workers), **stopped),
            cell(GO_ON),
            cell(NOTHING_LEFT),
        ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    before = set(os.listdir("/dev/shm"))
    kernels: list[int] = []
    waiting = [
        threading.Thread(target=interrupt_when_going, args=(folder / f"going-{backend}", kernels), daemon=True)
        for backend in ("threads", "processes")
    ]
    for thread in waiting:
        thread.start()

    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()

    # then both conversions drew where the cell's output is, each bar in one place
    drawn = [output["data"] for output in cells[0].outputs if output["output_type"] == "display_data"]
    assert [data["text/plain"] for data in drawn] == [
        "packing 12 / 12, 0 rejected",
        "writing 12 / 12, 0 rejected",
        "checking 12 / 12, 0 damaged",
    ]
    assert all("<progress" in data["text/html"] for data in drawn)
    # both endless loops ended by the interrupt and by nothing else
    for number in (2, 6):
        assert [output.get("ename") for output in cells[number].outputs if output["output_type"] == "error"] == [
            "KeyboardInterrupt"
        ]
    [kernel] = set(kernels)
    assert not psutil.pid_exists(kernel)
    assert not [name for name in set(os.listdir("/dev/shm")) - before if str(kernel) in name]


def test_outside_a_notebook_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    assert or_drawn(None) is None


def test_a_callback_of_the_callers_is_left_alone() -> None:
    told: list[Progress] = []
    assert or_drawn(told.append) == told.append


def test_bars_are_drawn_when_new_when_done_and_otherwise_four_times_a_second() -> None:
    times = iter([10.0, 10.1, 10.3, 10.4, 10.5])
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, data: dict[str, Any], *, raw: bool) -> None:
            shown.append(("update", data["text/plain"]))

    def display(data: dict[str, Any], *, raw: bool, display_id: bool) -> Handle:
        shown.append(("new", data["text/plain"]))
        return Handle()

    bars = NotebookBars(display, clock=lambda: next(times))
    for done, bad in ((0, 0), (1000, 0), (2000, 1), (3000, 2)):
        bars(Progress(stage="pack", done=done, total=3000, found_bad=bad))
    bars(Progress(stage="check", done=0, total=0, found_bad=0))
    assert shown == [
        ("new", "packing 0 / 3,000, 0 rejected"),
        ("update", "packing 2,000 / 3,000, 1 rejected"),
        ("update", "packing 3,000 / 3,000, 2 rejected"),
        ("new", "checking 0 / 0, 0 damaged"),
    ]
