"""NVML, with every reading either a value or None with its reason. The pynvml module comes in, so tests use a fake."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["GpuProcess", "Nvml", "NvmlDevice", "Reading", "UtilSample", "as_text", "nvml_keys", "open_nvml"]


CORE_WORDS = 64
"""Of 64 bits, one a core: 4096 cores, more than machines with GPUs have."""


@dataclass(frozen=True)
class Reading:
    """A value, or None with the reason why it could not be read."""

    value: Any
    reason: str | None = None


@dataclass(frozen=True)
class UtilSample:
    """One sample of NVML's utilization buffer: the device's clock in microseconds, and percent."""

    timestamp_us: int
    percent: float


@dataclass(frozen=True)
class GpuProcess:
    """A process with memory on the GPU; `used_bytes` is None where the driver does not tell (containers, WDDM).

    `computes` is false for one that only draws, such as a desktop.
    """

    pid: int
    used_bytes: int | None
    computes: bool = True


def as_text(value: Any) -> str:
    """pynvml returns bytes in older releases."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class NvmlDevice:
    """One GPU. Methods never raise for what the driver does not support; they return a `Reading` with the reason."""

    def __init__(self, module: Any, handle: Any, index: int | None = None) -> None:
        self._nvml = module
        self._handle = handle
        self.index = index

    def _read(self, function: str, *arguments: Any) -> Reading:
        call = getattr(self._nvml, function, None)
        if call is None:
            return Reading(None, f"this pynvml has no {function}")
        try:
            return Reading(call(self._handle, *arguments))
        except self._nvml.NVMLError as error:
            return Reading(None, f"{function}: {error}")

    def name(self) -> Reading:
        """The product's name."""
        found = self._read("nvmlDeviceGetName")
        return found if found.value is None else Reading(as_text(found.value))

    def uuid(self) -> Reading:
        """ "GPU-..." or "MIG-..."."""
        found = self._read("nvmlDeviceGetUUID")
        return found if found.value is None else Reading(as_text(found.value))

    def mig(self) -> bool:
        """Whether the card is split into MIG instances; one that cannot be is not."""
        found = self._read("nvmlDeviceGetMigMode")
        return found.value is not None and int(found.value[0]) == 1

    def memory(self) -> Reading:
        """(total, used, free) in bytes; "used" leaves out what the driver reserves, where the driver tells."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        found = self._read("nvmlDeviceGetMemoryInfo", version) if version is not None else Reading(None)
        if found.value is None:
            found = self._read("nvmlDeviceGetMemoryInfo")
        if found.value is None:
            return found
        return Reading((int(found.value.total), int(found.value.used), int(found.value.free)))

    def util_rate(self) -> Reading:
        """GPU-Util now, percent."""
        if self.mig():
            return Reading(None, "MIG is on, and NVML has no GPU-Util for an instance")
        found = self._read("nvmlDeviceGetUtilizationRates")
        return found if found.value is None else Reading(float(found.value.gpu))

    def util_samples(self, since_us: int) -> Reading:
        """List of `UtilSample` newer than a timestamp, from the driver's buffer."""
        if self.mig():
            return Reading(None, "MIG is on, and NVML has no GPU-Util for an instance")
        kind = getattr(self._nvml, "NVML_GPU_UTILIZATION_SAMPLES", None)
        if kind is None:
            return Reading(None, "this pynvml has no utilization samples")
        try:
            value_type, samples = self._nvml.nvmlDeviceGetSamples(self._handle, kind, since_us)
        except self._nvml.NVMLError as error:
            if isinstance(error, getattr(self._nvml, "NVMLError_NotFound", ())):
                # No sample newer than that: an answer, not a failure.
                return Reading([])
            return Reading(None, f"nvmlDeviceGetSamples: {error}")
        # Not every driver keeps to "newer than".
        return Reading(
            [
                UtilSample(int(s.timeStamp), self._sample_value(value_type, s.sampleValue))
                for s in samples
                if int(s.timeStamp) > since_us
            ]
        )

    def _sample_value(self, value_type: int, value: Any) -> float:
        fields = {
            getattr(self._nvml, "NVML_VALUE_TYPE_DOUBLE", 0): "dVal",
            getattr(self._nvml, "NVML_VALUE_TYPE_UNSIGNED_INT", 1): "uiVal",
            getattr(self._nvml, "NVML_VALUE_TYPE_UNSIGNED_LONG", 2): "ulVal",
            getattr(self._nvml, "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG", 3): "ullVal",
            getattr(self._nvml, "NVML_VALUE_TYPE_SIGNED_LONG_LONG", 4): "sllVal",
            getattr(self._nvml, "NVML_VALUE_TYPE_SIGNED_INT", 5): "siVal",
            getattr(self._nvml, "NVML_VALUE_TYPE_UNSIGNED_SHORT", 6): "usVal",
        }
        return float(getattr(value, fields.get(value_type, "uiVal")))

    def near_cores(self) -> Reading:
        """The numbers of the cores near it, as a frozenset."""
        found = self._read("nvmlDeviceGetCpuAffinity", CORE_WORDS)
        if found.value is None:
            return found
        return Reading(
            frozenset(
                64 * place + bit for place, word in enumerate(found.value) for bit in range(64) if word >> bit & 1
            )
        )

    def processes(self) -> Reading:
        """List of `GpuProcess` computing or drawing on the GPU, each once."""
        found = self._read("nvmlDeviceGetComputeRunningProcesses")
        if found.value is None:
            return found
        graphics = self._read("nvmlDeviceGetGraphicsRunningProcesses").value or []
        return Reading(_unique(found.value, graphics))


def _unique(computing: Iterable[Any], drawing: Iterable[Any]) -> list[GpuProcess]:
    found: dict[int, GpuProcess] = {}
    kinds = [*((process, True) for process in computing), *((process, False) for process in drawing)]
    for process, computes in kinds:
        used = getattr(process, "usedGpuMemory", None)
        pid = int(process.pid)
        computes = computes or (pid in found and found[pid].computes)
        known = GpuProcess(pid, None if used is None else int(used), computes)
        if known.pid not in found or found[known.pid].used_bytes is None:
            found[known.pid] = known
    return list(found.values())


class Nvml:
    """An initialised NVML; `close` ends it."""

    def __init__(self, module: Any) -> None:
        self._nvml = module
        self._open = True

    def devices(self) -> list[NvmlDevice]:
        """Every GPU the driver shows, whatever CUDA_VISIBLE_DEVICES says."""
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError:
            return []
        found = []
        for index in range(count):
            try:
                found.append(NvmlDevice(self._nvml, self._nvml.nvmlDeviceGetHandleByIndex(index), index))
            except self._nvml.NVMLError:
                # A GPU that fell off the bus keeps its number and has no handle.
                continue
        return found

    def driver_version(self) -> Reading:
        """The NVIDIA driver's version."""
        try:
            return Reading(as_text(self._nvml.nvmlSystemGetDriverVersion()))
        except self._nvml.NVMLError as error:
            return Reading(None, f"nvmlSystemGetDriverVersion: {error}")

    def find(self, *, uuid: str | None, pci_bus_id: str | None) -> Reading:
        """The device with this UUID ("GPU-..." or "MIG-...") or PCI address ("00000000:65:00.0")."""
        reasons = []
        for function, key in (
            ("nvmlDeviceGetHandleByUUID", uuid),
            ("nvmlDeviceGetHandleByPciBusId", pci_bus_id),
        ):
            if key is None:
                continue
            for argument in (key, key.encode()):
                try:
                    return Reading(NvmlDevice(self._nvml, getattr(self._nvml, function)(argument)))
                except self._nvml.NVMLError as error:
                    reasons.append(f"{function}({key}): {error}")
                    break
                except TypeError:
                    # Older pynvml wants bytes.
                    continue
        return Reading(None, "; ".join(reasons) or "neither UUID nor PCI address is known")

    def close(self) -> None:
        """End NVML once."""
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()


def nvml_keys(properties: Any) -> tuple[str | None, str | None]:
    """UUID and PCI address, as NVML writes them, of torch's device properties.

    NVML numbers every GPU of the machine and torch only those of CUDA_VISIBLE_DEVICES, so numbers must not be used.
    """
    raw = str(getattr(properties, "uuid", "") or "")
    uuid = raw if not raw or raw.startswith(("GPU-", "MIG-")) else f"GPU-{raw}"
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return uuid or None, None
    domain, device = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
    return uuid or None, f"{domain:08X}:{bus:02X}:{device:02X}.0"


def open_nvml(module: Any = None) -> Reading:
    """An `Nvml`, or None with the reason: no pynvml, no driver library, no driver.

    Args:
        module: pynvml or a fake of it; None imports pynvml.
    """
    if module is None:
        try:
            module = importlib.import_module("pynvml")
        except ImportError as error:
            return Reading(None, f"pynvml is not installed ({error})")
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        return Reading(None, f"NVML cannot start: {error}")
    except OSError as error:
        return Reading(None, f"NVML's library cannot be loaded: {error}")
    return Reading(Nvml(module))
