"""Every form in which libraries say that the device's memory ran out."""

from __future__ import annotations

import re

import torch

__all__ = ["OUT_OF_MEMORY_TEXTS", "is_out_of_memory"]

OUT_OF_MEMORY_TEXTS: tuple[tuple[str, str], ...] = (
    # torch: c10/cuda/CUDACachingAllocator.cpp; its class is torch.OutOfMemoryError, but not after a trip as text.
    ("torch", r"cuda out of memory"),
    ("torch", r"would exceed allowed memory\. \(out of memory\)"),
    # c10/cuda/CUDAException.cpp (a failed runtime call) and C10_CUDA_DRIVER_CHECK (expandable segments, NVRTC).
    ("torch", r"cuda (driver |runtime )?error: out of memory"),
    ("torch", r"cuda ran out of memory outside pytorch's allocator"),
    ("CUDA", r"cudaerrormemoryallocation|cuda_error_out_of_memory"),
    # torch/_inductor and triton/backends/nvidia/driver.c.
    ("Triton", r"triton error \[cuda\]: out of memory"),
    # aten/src/ATen/cuda/Exceptions.cpp names the status of each library. A handle that cannot be made for want of
    # memory is NOT_INITIALIZED in cuBLAS (pytorch/pytorch issue 50467 and many like it).
    ("cuBLAS", r"cublas_status_alloc_failed"),
    ("cuBLAS", r"cublas_status_not_initialized when calling [`']cublascreate"),
    # cuDNN 8 has one status, cuDNN 9 (cudnn_graph) one for the device and one, not listed here, for the host.
    ("cuDNN", r"cudnn_status_alloc_failed"),
    ("cuDNN", r"cudnn_status_internal_error_device_allocation_failed"),
    # aten/src/ATen/native/cudnn/Conv_v7.cpp and Conv_v8.cpp: no algorithm's workspace fits.
    ("cuDNN", r"unable to find an engine to execute this computation"),
    ("cuDNN", r"unable to find a valid cudnn algorithm"),
    ("cuSOLVER", r"cusolver_status_alloc_failed"),
    ("cuSPARSE", r"cusparse_status_(alloc_failed|insufficient_resources)"),
    ("cuFFT", r"cufft_alloc_failed|cufft failed to allocate memory"),
    # NCCL's last error, which torch appends to "unhandled cuda error" (src/include/alloc.h, checks.h).
    ("NCCL", r"cuda failure (\d+ )?'out of memory'"),
    ("NCCL", r"failed to cuda calloc"),
    # DALI: include/dali/core/cuda_error.h (CUDABadAlloc) and core/mm; its nvJPEG decoder passes the status on
    # (NVIDIA/DALI issues 144, 1137, 1434, 2836).
    ("DALI", r"critical error in pipeline.*cuda allocation failed|^\s*cuda allocation failed"),
    ("DALI", r"can't allocate \d+ bytes on device"),
    ("nvJPEG", r"nvjpeg_status_allocator_failure"),
    # torchvision/csrc/io/image/cuda: "Failed to ...: STATUS", 5 being the allocator's (nvjpeg.h).
    ("nvJPEG", r"(failed to \w+ nvjpeg[\w ]*|nvjpeg\w+ failed): 5\b"),
)
"""(library, pattern of its lower-case message).

Not in it: `CUDNN_STATUS_NOT_SUPPORTED`, which other tools take for memory; it also says that a layout is not supported,
and a smaller batch would hide that. Nor anything about host memory, which a smaller batch frees little of.
"""

_PATTERN = re.compile("|".join(f"(?:{pattern})" for _, pattern in OUT_OF_MEMORY_TEXTS), re.DOTALL | re.MULTILINE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one it was raised from, says that the device's memory ran out."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, torch.OutOfMemoryError):
            return True
        # Libraries raise RuntimeError or classes of their own; what a user's code says of memory in a ValueError is not
        # the device's.
        if not isinstance(current, (ValueError, TypeError, MemoryError)) and _PATTERN.search(str(current).lower()):
            return True
        current = current.__cause__ or current.__context__
    return False
