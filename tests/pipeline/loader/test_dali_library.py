"""DALI absent, broken, or of the wrong CUDA: what is said, and what the tuner may choose from."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from wellfed.pipeline.errors import MissingDependencyError
from wellfed.pipeline.loader import dali_library, usable
from wellfed.pipeline.loader.dali_library import dali_state, require_dali
from wellfed.pipeline.loader.usable import usable_backends


@pytest.fixture
def dali(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a DALI in place that was built for this CUDA, under a driver of that one; None is neither."""

    def install(built_for: int | None, driver: int | None) -> None:
        monkeypatch.setattr(dali_library, "driver_cuda_major", lambda: driver)
        package = types.ModuleType("nvidia.dali")
        if built_for is None:
            monkeypatch.setitem(sys.modules, "nvidia.dali", None)
            return
        package.backend = types.SimpleNamespace(__cuda_version__=built_for * 1000 + 90)  # type: ignore[attr-defined]
        package.__version__ = "2.4.0"  # type: ignore[attr-defined]
        parent = types.ModuleType("nvidia")
        parent.dali = package  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "nvidia", parent)
        monkeypatch.setitem(sys.modules, "nvidia.dali", package)

    return install


@pytest.mark.parametrize(("driver", "extra"), [(12, "dali"), (13, "dali-cuda13"), (14, "dali-cuda13")])
def test_a_dali_that_is_not_installed_is_said_with_the_pip_line(dali: Any, driver: int, extra: str) -> None:
    dali(None, driver)
    with pytest.raises(MissingDependencyError) as caught:
        require_dali("cpu")
    assert f"pip install 'wellfed[{extra}]'" in str(caught.value)


def test_a_loader_with_a_backend_that_lacks_dali_is_refused_at_once(open_loader: Any, dali: Any) -> None:
    dali(None, None)
    for backend in ("dali", "hybrid"):
        with pytest.raises(MissingDependencyError, match="needs NVIDIA DALI"):
            open_loader(backend=backend, num_workers=1)


def test_a_dali_for_a_newer_cuda_than_the_drivers_is_refused_with_the_pip_line(dali: Any) -> None:
    dali(13, 12)
    with pytest.raises(MissingDependencyError, match="DALI for CUDA 13") as caught:
        require_dali("cuda")
    assert caught.value.remedy == ("pip uninstall -y nvidia-dali-cuda130 && pip install 'nvidia-dali-cuda120>=1.50'")
    # On the CPU any will do.
    require_dali("cpu")


@pytest.mark.parametrize(("built_for", "driver"), [(12, 12), (12, 13), (13, 13), (13, None)])
def test_a_driver_runs_its_own_and_older_cudas(dali: Any, built_for: int, driver: int | None) -> None:
    dali(built_for, driver)
    require_dali("cuda")


def test_doctor_says_whether_dali_fits(dali: Any) -> None:
    dali(12, 13)
    assert dali_state() == "2.4.0 for CUDA 12, fits the driver's CUDA 13"
    dali(13, None)
    assert dali_state() == "2.4.0 for CUDA 13, no driver here, so on the CPU only"
    dali(13, 12)
    assert dali_state().startswith("not usable (DALI must be built for a CUDA that the driver runs, here CUDA 12")


def test_the_real_dali_says_what_it_was_built_for() -> None:
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI (pip install 'wellfed[dali]')")
    assert " for CUDA 1" in dali_state()


@pytest.mark.parametrize(
    ("built_for", "nvjpeg", "expected"),
    [
        (12, True, {"dali", "nvjpeg", "hybrid"}),
        (None, True, {"nvjpeg", "hybrid"}),
        (12, False, {"dali", "hybrid"}),
        (None, False, set()),
    ],
)
def test_on_cuda_the_backends_whose_library_is_there_are_usable(
    dali: Any, monkeypatch: pytest.MonkeyPatch, built_for: int | None, nvjpeg: bool, expected: set[str]
) -> None:
    dali(built_for, 12)
    monkeypatch.setattr(usable, "has_nvjpeg", lambda: nvjpeg)

    assert set(usable_backends("cuda:0")) == {"threads", "processes", *expected}
    assert set(usable_backends("cpu")) == {"threads", "processes"}


def test_importing_the_backends_loads_no_dali(repository: Path) -> None:
    program = (
        "import sys, wellfed.pipeline.loader.hybrid, wellfed.pipeline.loader.usable\n"
        "assert 'nvidia.dali' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(repository / ".typing")})
