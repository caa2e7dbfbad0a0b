"""Cores, memory, shared memory and open files, read from a made-up /proc and /sys."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from wellfed.pipeline.hardware import (
    available_memory,
    cpu_model,
    fingerprint,
    locked_memory_limit,
    memory_total,
    open_file_limit,
    open_files,
    preflight,
    shared_memory,
    usable_cores,
)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:       8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n"


@pytest.mark.parametrize(
    ("files", "affinity", "cores", "source"),
    [
        ({}, 8, 8, "os.cpu_count"),
        ({}, 3, 3, "sched_getaffinity"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8, 8, "os.cpu_count"),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/cgroup.controllers": "cpu memory",
                "sys/fs/cgroup/job/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
            },
            8,
            2,
            "/sys/fs/cgroup/job/cpu.max",
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n",
                # The container sees its own group as the root.
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "350000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
            3,
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
            8,
            "os.cpu_count",
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 8, 1, "/sys/fs/cgroup/cpu.max"),
    ],
)
def test_usable_cores_are_the_least_of_affinity_quota_and_machine(
    tmp_path: Path, files: dict[str, str], affinity: int, cores: int, source: str
) -> None:
    fact = usable_cores(write(tmp_path, files), affinity=affinity, online=8)

    assert (fact.value, fact.unit, fact.source) == (cores, "cores", source)


def test_a_fractional_quota_is_noted(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "350000 100000\n"})

    fact = usable_cores(root, affinity=8, online=8)

    assert (fact.value, fact.note) == (3, "8 on the machine, the quota is 3.5")


def test_memory_total_and_limit_are_two_facts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "2147483648\n"},
    )

    total, limit = memory_total(root)

    assert (total.value, total.source) == (8 * 2**30, "/proc/meminfo MemTotal")
    assert (limit.value, limit.source) == (2 * 2**30, "/sys/fs/cgroup/memory.max")


def test_version_1_writes_no_limit_as_a_huge_number(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/a\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )

    _, limit = memory_total(root)

    assert (limit.value, limit.note) == (None, "no limit is set")


def test_available_memory_is_what_the_limit_leaves_where_that_is_less(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "2147483648\n",
            "sys/fs/cgroup/memory.current": "1610612736\n",
            # Page cache that can be dropped is not in the way.
            "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 536870912\n",
        },
    )

    fact = available_memory(root)

    assert (fact.value, fact.source) == (2**30, "/sys/fs/cgroup/memory.max")


def test_available_memory_without_a_limit(tmp_path: Path) -> None:
    fact = available_memory(write(tmp_path, {"proc/meminfo": MEMINFO}))

    assert (fact.value, fact.source) == (4 * 2**30, "/proc/meminfo MemAvailable")


def test_what_cannot_be_read_is_none_with_the_reason(tmp_path: Path) -> None:
    assert (cpu_model(tmp_path).value, bool(cpu_model(tmp_path).note)) == (None, True)
    assert (available_memory(tmp_path).value, available_memory(tmp_path).note) == (None, "not readable")
    size, _ = shared_memory(tmp_path / "shm")
    assert (size.value, size.note) == (None, "not there: No such file or directory")


def test_cpu_model(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\n"})

    assert cpu_model(root).value == "Some CPU @ 2GHz"


def test_small_shared_memory_comes_with_the_remedy() -> None:
    stat = SimpleNamespace(f_blocks=16384, f_bavail=1024, f_frsize=4096)

    size, free = shared_memory(statvfs=lambda path: stat)

    assert (size.value, free.value) == (64 * 2**20, 4 * 2**20)
    assert "--shm-size" in size.note


def test_open_file_limit() -> None:
    raisable = open_file_limit(getrlimit=lambda kind: (1024, 4096))
    assert (raisable.value, raisable.note) == (1024, "can be raised to 4096")
    assert open_file_limit(getrlimit=lambda kind: (4096, 4096)).note == ""
    unlimited = open_file_limit(getrlimit=lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert (unlimited.value, unlimited.note) == (None, "no limit is set")


def test_descriptors_held_now_are_counted_by_hand() -> None:
    before = open_files().value
    with open("/dev/null"), open("/dev/null"), open("/dev/null"):
        assert open_files().value == before + 3


def test_locked_memory_limit_says_what_it_is_not_for() -> None:
    fact = locked_memory_limit(getrlimit=lambda kind: (64 << 10, 64 << 10))
    assert (fact.value, fact.unit, fact.source) == (65536, "bytes", "RLIMIT_MEMLOCK")
    assert "host memory" in fact.note
    unlimited = locked_memory_limit(getrlimit=lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert (unlimited.value, unlimited.note) == (None, "no limit is set")


def test_preflight_and_fingerprint_on_this_machine() -> None:
    facts = {fact.name: fact for fact in preflight()}
    assert facts["usable cores"].value >= 1
    for fact in facts.values():
        assert fact.value is not None or fact.note or fact.source

    assert fingerprint() == fingerprint()
    assert set(fingerprint()) == {"machine", "cpu_model", "usable_cores", "memory_gib", "gpus"}
