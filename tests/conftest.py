"""What all tests share: where the repository is, what the `gpu` mark means, and tools that tests of several parts use.

A test marked `gpu` is skipped where no CUDA GPU is seen. With WELLFED_REQUIRE_GPU=1 a GPU is promised, so there a
skipped GPU test, or a file of them that skips itself, is a failure.

`make test` runs Hypothesis with the profile "steady": the same examples every time, so that a failure is the commit's
own. `make test-long` tries new ones.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from importlib import util
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def s3_server() -> Iterator[None]:
    """A threaded S3 server on the loopback, and an environment in which s3:// means it."""
    moto_server = pytest.importorskip("moto.server", reason="needs moto[server]")
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        yield
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(scope="session")
def wait_until_group_is_gone() -> Callable[[int], None]:
    """Of a process group, by its number: the test fails, and the group is ended, where it is there after 30 s."""

    def wait(group: int) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return
            time.sleep(0.01)
        os.killpg(group, signal.SIGKILL)
        pytest.fail("a worker outlived its conversion by 30 s")

    return wait


@pytest.fixture(scope="session")
def read_by_dali() -> Callable[[Path, Sequence[str]], list[tuple[bytes, ...]]]:
    """(tar, extensions of each component) to what DALI's CPU reader finds through the .idx beside it, for each sample.

    The number of samples is that of the .idx.
    """
    dali = pytest.importorskip("nvidia.dali", reason="DALI is installed with wellfed[dev]")

    def read(path: Path, extensions: Sequence[str]) -> list[tuple[bytes, ...]]:
        index = path.with_suffix(".idx")
        count = int(index.read_text().split()[1])

        @dali.pipeline_def(batch_size=count, num_threads=1, device_id=None)
        def pipeline() -> Any:
            return tuple(
                dali.fn.readers.webdataset(
                    paths=str(path),
                    index_paths=str(index),
                    ext=list(extensions),
                    missing_component_behavior="error",
                )
            )

        built = pipeline()
        built.build()
        columns = built.run()
        return [tuple(column.at(row).tobytes() for column in columns) for row in range(count)]

    return read


@pytest.fixture(scope="session")
def sum_tar() -> Callable[[bytes], bytes]:
    """Make the checksum of every ustar or GNU header right; see `fuzz.mutate`."""
    spec = util.spec_from_file_location("fuzz_mutate", REPOSITORY / "tests" / "fuzz" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    summed: Callable[[bytes], bytes] = module.sum_tar
    return summed


def pytest_sessionstart() -> None:
    """Children get Ctrl-C where a shell started the tests in the background, which leaves it ignored for all below."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
