"""Ten epochs with each backend: every sample once in each, and nothing that grows or stays behind."""

from __future__ import annotations

import importlib.util
import os
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from wellfed.converters.run import convert
from wellfed.pipeline.demo.photolike import make_photolike
from wellfed.pipeline.formats import RepeatedSource, open_source
from wellfed.pipeline.loader import DataLoader
from wellfed.pipeline.tune.statistics import slope

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:This DataLoader will create")]

DALI = pytest.mark.skipif(importlib.util.find_spec("nvidia.dali") is None, reason="DALI is not installed")
EPOCHS, SETTLED, COPIES = 10, 3, 40
MIB = 1 << 20


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """96 photo-like JPEGs of 2 classes, converted both ways."""
    root = tmp_path_factory.mktemp("soak")
    make_photolike(root / "photos", count=48, classes=2)
    for output in ("webdataset", "lmdb"):
        convert(root / "photos", root / output, output=output, workers=2)
    return {output: root / output for output in ("webdataset", "lmdb")}


def held() -> tuple[int, int, int, int]:
    """Of this process and its children: anonymous and shared bytes, open files, threads, and how many they are."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    size = 0
    for process in family:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                size += int(line.split()[1]) * 1024
    return size, sum(each.num_fds() for each in family), sum(each.num_threads() for each in family), len(family)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("stored", ["webdataset", "lmdb"])
@pytest.mark.parametrize(
    "backend", ["threads", "processes", pytest.param("dali", marks=DALI), pytest.param("hybrid", marks=DALI)]
)
def test_ten_epochs_give_every_sample_once_each_and_grow_nothing(
    photos: dict[str, Path], backend: str, stored: str, record_property: Any
) -> None:
    # given thousands of samples by index, one of whose batches is of 2.4 MB
    source = RepeatedSource(open_source(photos[stored]), COPIES)
    options: dict[str, Any] = {"gpu_share": 0.5} if backend == "hybrid" else {}
    before = set(psutil.Process().children(recursive=True))
    sizes, rest = [], []
    with DataLoader(
        source, batch_size=16, shuffle=True, seed=1, backend=backend, num_workers=2, fields=("image", "key"), **options
    ) as loader:
        for epoch in range(EPOCHS):
            # when each is gone through
            keys = []
            for number, batch in enumerate(loader):
                keys += batch["key"].tolist()
                if number % 50 == 49:
                    size, *others = held()
                    sizes.append((epoch + number / len(loader), size / MIB))
                    rest.append((epoch, others))
            # then each sample comes once
            assert sorted(keys) == source.index["key"].tolist()
    settled = [pair for pair in sizes if pair[0] >= SETTLED]
    growth = slope(*zip(*settled, strict=True))
    assert growth is not None
    record_property("mib_per_epoch", f"{growth.value:.2f} ({growth.low:.2f} to {growth.high:.2f})")
    print(f"\n{backend} {stored}: {growth.value:.2f} MiB an epoch ({growth.low:.2f} to {growth.high:.2f})")
    # One batch kept for each epoch would be 2.3 MiB; what allocators keep for later comes and goes.
    assert growth.low < 2
    for kind, what in enumerate(("open files", "threads", "processes")):
        first, later = (
            max(others[kind] for epoch, others in rest if (epoch >= SETTLED) == late) for late in (False, True)
        )
        # Sockets and threads that hand a batch over come and go; one kept for each epoch would be seven.
        assert later <= first + 4, what
    # and nothing is left behind
    assert set(psutil.Process().children(recursive=True)) <= before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wellfed")]
    assert not [name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name]
