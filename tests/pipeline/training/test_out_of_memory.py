"""Device memory that ran out is recognised in the words of every library, and nothing else is."""

from __future__ import annotations

import re

import pytest
import torch

from wellfed.pipeline.errors import StepError
from wellfed.pipeline.training import is_out_of_memory
from wellfed.pipeline.training.out_of_memory import OUT_OF_MEMORY_TEXTS

# Whole messages as users reported them, or as the libraries' sources put them together.
MESSAGES = [
    ("torch", "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 7.79 GiB of which 5 MiB"),
    (
        "torch",
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction "
        "limit. Requested size: 2.00 GiB",
    ),
    ("torch", "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated : 6.91 GiB"),
    (
        "torch",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    ),
    ("torch", "CUDA driver error: out of memory"),
    (
        "torch",
        "CUDA ran out of memory outside PyTorch's allocator. If this workload uses many dynamic shapes, cuDNN may",
    ),
    ("CUDA", "[/opt/dali/dali/core/device_guard.cc:33] CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of"),
    ("CUDA", "CUDA driver API error CUDA_ERROR_OUT_OF_MEMORY (2):\nout of memory"),
    ("Triton", "Triton Error [CUDA]: out of memory"),
    ("cuBLAS", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("cuBLAS", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    ("cuDNN", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ("cuDNN", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    ("cuDNN", "GET was unable to find an engine to execute this computation"),
    ("cuDNN", "Unable to find a valid cuDNN algorithm to run convolution"),
    ("cuSOLVER", "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    ("cuSPARSE", "CUDA error: CUSPARSE_STATUS_INSUFFICIENT_RESOURCES when calling `cusparseSpMM(...)`"),
    ("cuFFT", "cuFFT error: CUFFT_ALLOC_FAILED"),
    ("cuFFT", "cuFFT failed to allocate memory"),
    (
        "NCCL",
        "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 2 'out of memory'",
    ),
    ("NCCL", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'"),
    (
        "NCCL",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 2432 bytes",
    ),
    ("NCCL", "Last error:\nFailed to CUDA calloc 536870912 bytes"),
    (
        "DALI",
        "Critical error in pipeline:\nError when executing Mixed operator ImageDecoder encountered:\n"
        "CUDA allocation failed\nCurrent pipeline object is no longer valid.",
    ),
    ("DALI", "CUDA allocation failed"),
    (
        "DALI",
        "Critical error in pipeline:\nError in MIXED operator `nvidia.dali.fn.decoders.image`,\nCan't allocate "
        "129499136 bytes on device 0.\nCurrent pipeline object is no longer valid.",
    ),
    (
        "nvJPEG",
        'Error in thread 0: [/opt/dali/nvjpeg_decoder.h:355] NVJPEG error "5" : NVJPEG_STATUS_ALLOCATOR_FAILURE',
    ),
    ("nvJPEG", "Failed to create nvjpeg decoder state: 5"),
]


@pytest.mark.parametrize(("library", "message"), MESSAGES)
def test_the_words_of_every_library(library: str, message: str) -> None:
    assert is_out_of_memory(RuntimeError(message))
    mine = [pattern for name, pattern in OUT_OF_MEMORY_TEXTS if name == library]
    assert any(re.search(pattern, message.lower(), re.DOTALL | re.MULTILINE) for pattern in mine)


def test_every_entry_of_the_table_has_its_message() -> None:
    for name, pattern in OUT_OF_MEMORY_TEXTS:
        for part in pattern.split("|") if "(" not in pattern else [pattern]:
            seen = [m for _, m in MESSAGES if re.search(part, m.lower(), re.DOTALL | re.MULTILINE)]
            assert seen, f"{name}: {part}"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM"),
        RuntimeError(
            "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous"
        ),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtMatmul(...)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("Can't allocate 1000 bytes on host."),
        RuntimeError(
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 1 'invalid argument'"
        ),
        RuntimeError("Failed to create nvjpeg handle: 2"),
        MemoryError(),
        ValueError("CUDA out of memory"),
    ],
    ids=str,
)
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_behind_another_error_and_by_its_class() -> None:
    error = StepError("the step must run")
    error.__cause__ = torch.OutOfMemoryError("no words")
    assert is_out_of_memory(error)
    error.__cause__ = RuntimeError("Can't allocate 5 bytes on device 1.")
    assert is_out_of_memory(error)
    # An error that is its own cause ends the search.
    error.__cause__ = error
    assert not is_out_of_memory(error)
