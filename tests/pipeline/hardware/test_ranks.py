"""What one of several ranks of a machine gets of it: cores, memory, its GPU, and which cores are near that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wellfed.pipeline.errors import ConfigError
from wellfed.pipeline.hardware import Fact, local_rank, local_world_size, open_nvml, preflight, share_of_rank
from wellfed.pipeline.hardware.near import cpu_list, gpus_of_node, near_cores
from wellfed.pipeline.hardware.ranks import cuda_index_of_rank
from wellfed.pipeline.tune.preflight import limits_of


def test_ranks_are_those_that_torchrun_sets() -> None:
    assert (local_world_size({}), local_rank({})) == (1, None)
    assert local_world_size({"LOCAL_WORLD_SIZE": "4"}) == 4
    assert local_rank({"LOCAL_RANK": "3"}) == 3
    with pytest.raises(ConfigError, match=r"LOCAL_RANK must be a whole number.*LOCAL_RANK=-1"):
        local_rank({"LOCAL_RANK": "-1"})


def test_a_share_is_rounded_down_and_says_of_what() -> None:
    fact = Fact("usable cores", 7, "cores", "sched_getaffinity", "8 on the machine")

    assert share_of_rank(fact, 1) is fact
    share = share_of_rank(fact, 2)
    assert (share.value, share.source) == (3, "sched_getaffinity")
    assert share.note == "8 on the machine, one of 2 local ranks' share of 7"
    assert (share_of_rank(fact, 16).value, share_of_rank(fact, 16, least=1).value) == (0, 1)
    unknown = Fact("shared memory free", None, "bytes", "statvfs /dev/shm")
    assert share_of_rank(unknown, 4) is unknown


def test_the_limits_of_a_rank_are_its_share(tmp_path: Path, fake_nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a machine with 4096 kB of memory to have
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8192 kB\nMemAvailable: 4096 kB\n")
    (tmp_path / "dev/shm").mkdir(parents=True)
    alone = {fact.name: fact for fact in preflight(tmp_path, nvml=fake_nvml, ranks=1)}
    # when two ranks share it, as torchrun says
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    facts = {fact.name: fact for fact in preflight(tmp_path, nvml=fake_nvml)}

    # then each may count on half of what is free; what is not divided stands as it is
    assert facts["memory available"].value == 2048 * 1024
    assert facts["memory available"].note == f"one of 2 local ranks' share of {4096 * 1024}"
    assert facts["memory"].value == 8192 * 1024
    assert facts["shared memory free"].note == f"one of 2 local ranks' share of {alone['shared memory free'].value}"
    assert "local ranks" not in facts["shared memory"].note
    assert facts["usable cores"].value == max(1, alone["usable cores"].value // 2)
    # and the tuner's space is bounded by it: a quarter of the memory
    assert limits_of(list(facts.values())).memory_bytes == 512 * 1024
    assert limits_of(list(alone.values())).memory_bytes == 1024 * 1024


@pytest.mark.parametrize(
    ("rank", "devices", "current", "index"),
    [
        (None, 8, 0, 0),  # no torchrun: torch's current device
        (None, 8, 2, 2),
        (1, 8, 0, 1),  # torchrun, and no device chosen: the rank's own
        (0, 8, 0, 0),
        (1, 8, 5, 5),  # the program chose another
        (1, 1, 0, 0),  # the launcher shows each rank one device
        (3, 2, 0, 0),  # more ranks than devices
    ],
)
def test_a_ranks_device(rank: int | None, devices: int, current: int, index: int) -> None:
    assert cuda_index_of_rank(rank, devices=devices, current=current) == index


def test_the_kernels_lists_of_cores() -> None:
    assert cpu_list("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert cpu_list("\n") == frozenset()


def test_near_cores_from_nvml(fake_nvml: Any) -> None:
    # given a card near cores 1, 64 and 65: bit 1 of the first word, bits 0 and 1 of the second
    fake_nvml.near = [0b10, 0b11]
    nvml = open_nvml(fake_nvml).value

    found, source = near_cores(nvml.devices()[0], None)

    assert (found.value, source) == ({1, 64, 65}, "NVML")
    # both of two such cards are near them
    fake_nvml.count = 2
    assert gpus_of_node(nvml, found.value) == 2
    assert gpus_of_node(nvml, frozenset({7})) == 1


def test_near_cores_from_sysfs_where_nvml_does_not_tell(fake_nvml: Any, tmp_path: Path) -> None:
    device = open_nvml(fake_nvml).value.devices()[0]
    folder = tmp_path / "sys/bus/pci/devices/0000:ab:00.0"
    node = tmp_path / "sys/devices/system/node/node1"
    for path in (folder, node):
        path.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    (node / "cpulist").write_text("4-7\n")

    found, source = near_cores(device, "00000000:AB:00.0", tmp_path)
    assert (found.value, source) == ({4, 5, 6, 7}, "/sys/bus/pci/devices/0000:ab:00.0/numa_node")

    # A machine, or a virtual one, without nodes says -1.
    (folder / "numa_node").write_text("-1\n")
    found, _ = near_cores(device, "00000000:AB:00.0", tmp_path)
    assert found.value is None
    assert found.reason == (
        "nvmlDeviceGetCpuAffinity: Not Supported; "
        "/sys/bus/pci/devices/0000:ab:00.0/numa_node: the device has no NUMA node"
    )
    assert near_cores(None, None)[0].reason == "neither its NVML device nor its PCI address is known"
