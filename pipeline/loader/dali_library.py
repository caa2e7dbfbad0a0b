"""Whether NVIDIA DALI is installed, and for a CUDA that this machine's driver runs."""

from __future__ import annotations

import ctypes

import torch

from ..errors import MissingDependencyError

__all__ = ["dali_state", "driver_cuda_major", "require_dali"]

_EXTRAS = {12: "dali", 13: "dali-cuda13"}
_WHEELS = {12: "nvidia-dali-cuda120", 13: "nvidia-dali-cuda130"}


def require_dali(device_type: str) -> None:
    """Refuse where DALI cannot decode for this kind of device.

    A driver runs libraries of its own CUDA major version and of older ones, so a DALI for a newer one is the wrong one.
    On the CPU any DALI will do.

    Raises:
        MissingDependencyError: not installed, not loadable, or of the wrong CUDA.
    """
    driver = driver_cuda_major()
    wanted = min(13, max(12, driver if driver is not None else _torch_cuda_major()))
    built_for = _dali_cuda_major(wanted)
    if device_type == "cuda" and driver is not None and built_for > driver:
        raise MissingDependencyError(
            f"DALI must be built for a CUDA that the driver runs, here CUDA {driver} or older",
            got=f"DALI for CUDA {built_for}",
            remedy=f"pip uninstall -y {_WHEELS.get(built_for, 'nvidia-dali')} && pip install '{_WHEELS[wanted]}>=1.50'",
        )


def dali_state() -> str:
    """What `doctor` says of DALI."""
    try:
        require_dali("cuda")
    except MissingDependencyError as error:
        return f"not usable ({error.rule}; got {error.got}): {error.remedy}"
    import nvidia.dali

    driver = driver_cuda_major()
    runs_on = "no driver here, so on the CPU only" if driver is None else f"fits the driver's CUDA {driver}"
    return f"{nvidia.dali.__version__} for CUDA {_dali_cuda_major(12)}, {runs_on}"


def driver_cuda_major() -> int | None:
    """The newest CUDA major version that the driver runs; None without one."""
    if not torch.cuda.is_available():
        return None
    # PyTorch loaded the driver already; cuDriverGetVersion needs no context (CUDA Driver API, version management).
    version = ctypes.c_int()
    failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return None if failed else version.value // 1000


def _torch_cuda_major() -> int:
    return int((torch.version.cuda or "12").split(".")[0])


def _dali_cuda_major(wanted: int) -> int:
    remedy = f"pip install 'wellfed[{_EXTRAS[wanted]}]'"
    try:
        from nvidia.dali import backend
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "backend='dali' needs NVIDIA DALI", got=f"no module {error.name}", remedy=remedy
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        # A library that it needs is missing, or there is no driver for its CUDA.
        raise MissingDependencyError(
            "backend='dali' needs an NVIDIA DALI that loads", got=str(error).splitlines()[0], remedy=remedy
        ) from error
    # 12986 is CUDA 12.9.86. GetCudaVersion() says 0 where there is no driver.
    return int(backend.__cuda_version__) // 1000  # type: ignore[attr-defined]
