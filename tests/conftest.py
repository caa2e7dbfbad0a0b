"""What all tests share: where the repository is, and what the `gpu` mark means.

A test marked `gpu` is skipped where no CUDA GPU is seen. With WELLFED_REQUIRE_GPU=1 a GPU is promised, so there a
skipped GPU test, or a file of them that skips itself, is a failure.

`make test` runs Hypothesis with the profile "steady": the same examples every time, so that a failure is the commit's
own. `make test-long` tries new ones.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True)

REPOSITORY = Path(__file__).resolve().parent.parent


def gpu_is_required() -> bool:
    return os.environ.get("WELLFED_REQUIRE_GPU", "") not in ("", "0")


@functools.cache
def cuda_is_seen() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real images beside the checkout; the test is skipped where it is not."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real images at {folder}")
    return folder


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not cuda_is_seen():
        pytest.skip("needs a CUDA GPU, and torch sees none")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and gpu_is_required() and item.get_closest_marker("gpu"):
        _turn_into_failure(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and gpu_is_required():
        _turn_into_failure(report)
    return report


def _turn_into_failure(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"WELLFED_REQUIRE_GPU=1 promises a GPU, yet this was skipped: {reason}"
