"""A CUDA device as an `Accelerator`: torch runs the steps, NVML says what the device did."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any, Literal

import psutil
import torch

from ..errors import DeviceError
from ..hardware.nvml import NvmlDevice, Reading, nvml_keys, open_nvml
from .accelerator import DeviceWindow, is_out_of_memory
from .device_sampler import DeviceSampler
from .sharing import Sharers, find_sharers

__all__ = ["CudaAccelerator"]


def _own_pids() -> frozenset[int]:
    this = psutil.Process()
    return frozenset([this.pid, *(child.pid for child in this.children(recursive=True))])


class CudaAccelerator:
    """See `Accelerator`.

    Args:
        device: "cuda" (torch's current device) or "cuda:N", N as torch numbers them.
        nvml: pynvml or a fake; None imports it.

    Raises:
        DeviceError: torch sees no such device.
    """

    kind: Literal["cuda"] = "cuda"

    def __init__(self, device: str = "cuda", *, nvml: Any = None) -> None:
        _, _, number = device.partition(":")
        if (":" in device and not number.isdecimal()) or not device.startswith("cuda"):
            raise DeviceError("a CUDA device is cuda or cuda:N", got=device, remedy="Write for example cuda:0.")
        if not torch.cuda.is_available():
            raise DeviceError(
                "a CUDA device needs a GPU that torch can use",
                got=f"{device} with torch {torch.__version__} for CUDA {torch.version.cuda}, which sees none",
                remedy="Check nvidia-smi and the torch build, or use --device simulated.",
            )
        count = torch.cuda.device_count()
        # Whoever asks first must not make a context: memory in use before it is the baseline.
        fresh = not torch.cuda.is_initialized()
        index = int(number) if number else (0 if fresh else torch.cuda.current_device())
        if index >= count:
            raise DeviceError(
                f"torch sees {count} CUDA device{'s' if count != 1 else ''}",
                got=device,
                remedy=f"Use cuda:0 to cuda:{count - 1}, or check CUDA_VISIBLE_DEVICES.",
            )
        self.torch_device = f"cuda:{index}"
        self._index = index
        opened = open_nvml(nvml)
        self._nvml = opened.value
        # Whoever is there before this process has used any device is somebody else, whatever number NVML gives it.
        before = _state_of_all(self._nvml) if fresh and self._nvml is not None else {}
        self._properties = torch.cuda.get_device_properties(index)
        found = self._find(opened)
        self._device: NvmlDevice | None = found.value
        self._device_reason = found.reason
        uuid = None if self._device is None else self._device.uuid().value
        self._before = before.get(uuid) if uuid is not None else None
        baseline = None if self._before is None else self._before[0]
        own_reader = self._device is None or self._device.memory().value is None
        self._sampler = DeviceSampler(
            self._device,
            device_reason=found.reason,
            memory_used=self._driver_memory_used if own_reader else None,
            memory_source="cudaMemGetInfo at 25 Hz" if own_reader else "NVML used bytes at 25 Hz",
            own_pids=_own_pids,
            baseline_bytes=baseline,
        )

    def _find(self, opened: Reading) -> Reading:
        if opened.value is None:
            return opened
        uuid, address = nvml_keys(self._properties)
        found: Reading = opened.value.find(uuid=uuid, pci_bus_id=address)
        return found

    def _driver_memory_used(self) -> Reading:
        free, total = torch.cuda.mem_get_info(self._index)
        return Reading(total - free)

    @property
    def name(self) -> str:
        return self.torch_device

    @property
    def description(self) -> dict[str, Any]:
        return {
            "name": self._properties.name,
            "simulated": False,
            "preset": None,
            "memory_bytes": self.memory_total_bytes,
            "multiprocessors": self._properties.multi_processor_count,
            "compute_capability": f"{self._properties.major}.{self._properties.minor}",
            "cuda": torch.version.cuda,
            "nvml": self._device_reason or "available",
        }

    @property
    def memory_total_bytes(self) -> int:
        """Of the card (or MIG instance), as the driver counts it for programs."""
        return int(self._properties.total_memory)

    def sharers(self) -> Sharers:
        if self._before is not None:
            _, memory, processes = self._before
            return find_sharers(processes, memory, own_pids=frozenset(), own_bytes=0)
        if self._device is None:
            return Sharers(processes=None, reason=self._device_reason)
        return find_sharers(self._device.processes(), self._device.memory(), own_pids=_own_pids(), own_bytes=None)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._index)

    def copy(self, batch: Any) -> Any:
        if isinstance(batch, Mapping):
            return {name: self._to_device(value) for name, value in batch.items()}
        return tuple(self._to_device(value) for value in batch)

    def _to_device(self, value: Any) -> Any:
        return value.to(self.torch_device, non_blocking=True) if isinstance(value, torch.Tensor) else value

    def start_window(self) -> None:
        self._sampler.start()

    def end_window(self) -> DeviceWindow:
        return self._sampler.stop(torch_peak_reserved_bytes=torch.cuda.max_memory_reserved(self._index))

    def reset_peak(self) -> None:
        # What torch keeps for reuse would count as the next step's.
        gc.collect()
        torch.cuda.synchronize(self._index)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._index)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None


def _state_of_all(nvml: Any) -> dict[str, tuple[int, Reading, Reading]]:
    """By UUID: bytes in use, and what NVML said of memory and processes."""
    states: dict[str, tuple[int, Reading, Reading]] = {}
    for device in nvml.devices():
        uuid, memory = device.uuid().value, device.memory()
        if uuid is not None and memory.value is not None:
            states[uuid] = (memory.value[1], memory, device.processes())
    return states
