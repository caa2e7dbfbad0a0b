"""Every NVML reading is a value or None with its reason."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wellfed.pipeline.hardware import fingerprint, gpu_facts, open_nvml
from wellfed.pipeline.hardware.gpus import process_name
from wellfed.pipeline.hardware.nvml import GpuProcess, NvmlDevice, UtilSample


def device_of(nvml: Any) -> NvmlDevice:
    return open_nvml(nvml).value.devices()[0]


def test_without_a_driver_the_fact_is_none_with_the_reason(fake_nvml: Any) -> None:
    fake_nvml.init_error = fake_nvml.NVMLError("NVML Shared Library Not Found")

    facts = gpu_facts(fake_nvml)

    assert [(f.name, f.value) for f in facts] == [("gpus", None)]
    assert facts[0].note == "NVML cannot start: NVML Shared Library Not Found"
    assert fingerprint(nvml=fake_nvml)["gpus"] == []


def test_facts_of_a_card(fake_nvml: Any) -> None:
    fake_nvml.compute = [(os.getpid(), 10), (999_999_077, 20), (999_999_078, None)]

    facts = {f.name: f.value for f in gpu_facts(fake_nvml)}

    assert facts == {
        "gpus": 1,
        "gpu 0 name": "NVIDIA Fake",
        "gpu 0 memory": 8000,
        "gpu 0 memory free": 7000,
        "gpu 0 utilization": 55.0,
        "gpu 0 other processes": [
            {"pid": 999_999_077, "name": None, "used_bytes": 20},
            {"pid": 999_999_078, "name": None, "used_bytes": None},
        ],
        "gpu 0 MIG": "off",
    }
    assert fake_nvml.shutdowns == 1


def test_mig_has_no_utilization(fake_nvml: Any) -> None:
    fake_nvml.mig = 1
    device = device_of(fake_nvml)

    assert device.util_rate().value is None
    assert "MIG" in (device.util_rate().reason or "")
    assert device.util_samples(0).value is None
    assert "MIG" in (device.util_samples(0).reason or "")


@pytest.mark.parametrize("value_type", [0, 1, 2, 3])
def test_samples_of_every_value_type(fake_nvml: Any, value_type: int) -> None:
    fake_nvml.value_type = value_type
    fake_nvml.samples = [(100, 10), (200, 20), (300, 90)]

    assert device_of(fake_nvml).util_samples(100).value == [UtilSample(200, 20.0), UtilSample(300, 90.0)]


def test_an_empty_buffer_is_an_answer_and_an_error_is_a_reason(fake_nvml: Any) -> None:
    device = device_of(fake_nvml)
    assert device.util_samples(0).value == []

    fake_nvml.samples_error = fake_nvml.NVMLError("Not Supported")
    found = device.util_samples(0)
    assert (found.value, found.reason) == (None, "nvmlDeviceGetSamples: Not Supported")


def test_memory_where_the_driver_lacks_the_second_version(fake_nvml: Any) -> None:
    first = fake_nvml.nvmlDeviceGetMemoryInfo

    def only_first(handle: str, version: int | None = None) -> Any:
        if version is not None:
            raise fake_nvml.NVMLError("Function Not Found")
        return first(handle)

    fake_nvml.nvmlDeviceGetMemoryInfo = only_first

    assert device_of(fake_nvml).memory().value == (8000, 1000, 7000)


def test_a_device_is_found_by_uuid_then_by_address_never_by_number(fake_nvml: Any) -> None:
    nvml = open_nvml(fake_nvml).value

    assert nvml.find(uuid="GPU-aa", pci_bus_id=None).value is not None
    assert nvml.find(uuid="GPU-unknown", pci_bus_id="00000000:65:00.0").value is not None
    missing = nvml.find(uuid="GPU-unknown", pci_bus_id="00000000:01:00.0")
    assert missing.value is None
    assert "GPU-unknown" in missing.reason


def test_processes_once_each(fake_nvml: Any) -> None:
    fake_nvml.compute = [(5, None), (5, 30), (6, 1)]

    assert device_of(fake_nvml).processes().value == [GpuProcess(5, 30), GpuProcess(6, 1)]


def test_a_process_has_its_name_where_nvml_counts_as_this_machine_does(tmp_path: Path) -> None:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/77").mkdir()
    (tmp_path / "proc/77/comm").write_text("python\n")
    namespace = tmp_path / "proc/self/ns/pid"
    namespace.symlink_to("pid:[4026531836]")
    assert process_name(77, tmp_path) == "python"
    assert process_name(78, tmp_path) is None
    # In a container 77 is somebody else.
    namespace.unlink()
    namespace.symlink_to("pid:[4026532201]")
    assert process_name(77, tmp_path) is None


def test_a_process_that_only_draws_computes_nothing(fake_nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml.compute = [(5, 30)]
    drawing = [SimpleNamespace(pid=5, usedGpuMemory=10), SimpleNamespace(pid=6, usedGpuMemory=1)]
    monkeypatch.setattr(fake_nvml, "nvmlDeviceGetGraphicsRunningProcesses", lambda handle: drawing)
    found = device_of(fake_nvml).processes().value
    assert found == [GpuProcess(5, 30), GpuProcess(6, 1, computes=False)]
