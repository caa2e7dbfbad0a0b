"""Fakes of hardware (an NVML of one card, a clock that moves only when slept on), and a report."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


class FakeNvml:
    """Stands for the module pynvml."""

    NVML_GPU_UTILIZATION_SAMPLES = 1
    NVML_VALUE_TYPE_DOUBLE = 0
    NVML_VALUE_TYPE_UNSIGNED_INT = 1
    NVML_VALUE_TYPE_UNSIGNED_LONG = 2
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
    nvmlMemory_v2 = 2  # noqa: N815 (pynvml's name)

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):  # noqa: N801, N818 (pynvml's name)
        pass

    def __init__(self) -> None:
        self.init_error: Exception | None = None
        self.count = 1
        self.mig = 0
        self.total, self.used = 8_000, 1_000
        self.memory_error: Exception | None = None
        self.rate = 55
        self.rate_error: Exception | None = None
        self.value_type = 1
        self.samples: list[tuple[int, float]] = []
        self.samples_error: Exception | None = None
        self.compute: list[tuple[int, int | None]] = []
        self.known = {"GPU-aa": "card", "00000000:65:00.0": "card"}
        self.near: list[int] | None = None
        self.shutdowns = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error:
            raise self.init_error

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shutdowns += 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.95.05"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return "card"

    def _known(self, key: str) -> str:
        if key not in self.known:
            raise self.NVMLError_NotFound("Not Found")
        return self.known[key]

    nvmlDeviceGetHandleByUUID = _known  # noqa: N815
    nvmlDeviceGetHandleByPciBusId = _known  # noqa: N815

    def nvmlDeviceGetName(self, handle: str) -> bytes:  # noqa: N802
        return b"NVIDIA Fake"

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return "GPU-aa"

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int]:  # noqa: N802
        return (self.mig, self.mig)

    def nvmlDeviceGetCpuAffinity(self, handle: str, words: int) -> list[int]:  # noqa: N802
        if self.near is None:
            raise self.NVMLError("Not Supported")
        return (self.near + [0] * words)[:words]

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:  # noqa: N802
        if self.memory_error:
            raise self.memory_error
        return SimpleNamespace(total=self.total, used=self.used, free=self.total - self.used)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        if self.rate_error:
            raise self.rate_error
        return SimpleNamespace(gpu=self.rate, memory=0)

    def nvmlDeviceGetSamples(self, handle: str, kind: int, since: int) -> Any:  # noqa: N802
        if self.samples_error:
            raise self.samples_error
        name = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal"}[self.value_type]
        newer = [s for s in self.samples if s[0] > since]
        if not newer:
            raise self.NVMLError_NotFound("Not Found")
        return self.value_type, [
            SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(**{name: value})) for at, value in newer
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return []


@pytest.fixture
def fake_nvml() -> FakeNvml:
    return FakeNvml()


class VirtualClock:
    """Seconds that pass only when something sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def virtual_clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def sample_report() -> dict[str, Any]:
    path = Path(__file__).parent / "report" / "sample.json"
    report: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return report
