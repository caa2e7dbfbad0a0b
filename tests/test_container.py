"""The Dockerfile without Docker: its COPY and RUN lines give an environment where wellfed works."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
TEXT = (REPOSITORY / "Dockerfile").read_text("utf-8")


def lines(instruction: str) -> list[str]:
    return re.findall(rf"^{instruction}\s+(.*)$", TEXT.replace("\\\n", ""), re.M)


def copy_as_docker_does(destination: Path) -> None:
    destination.mkdir()
    for line in lines("COPY"):
        *sources, target = shlex.split(line)
        for name in sources:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, destination / target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(source, destination / target)


def run(*command: str | Path, cwd: Path, path: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, "PATH": f"{path}{os.pathsep}{clean['PATH']}"},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_copied_is_not_ignored() -> None:
    allowed = {
        line.removeprefix("!")
        for line in (REPOSITORY / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    copied = {name for line in lines("COPY") for name in shlex.split(line)[:-1]}
    assert copied == allowed


def test_it_does_not_run_as_root_and_says_how_much_shared_memory_it_needs() -> None:
    assert lines("USER") == ["1000"]
    assert lines("USER")[-1] in next(line for line in lines("RUN") if line.startswith("useradd"))
    assert "--shm-size=" in TEXT


def test_what_is_copied_is_enough_to_install(tmp_path: Path) -> None:
    # given an environment that has this one's libraries, less wellfed
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    binaries = tmp_path / "env" / "bin"
    packages = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    copy_as_docker_does(tmp_path / "copy")
    # when what the Dockerfile copies is installed
    pip = (sys.executable, "-m", "pip", "--python", binaries / "python", "install", "-qq")
    run(*pip, "--no-deps", "--no-index", "--no-build-isolation", ".", cwd=tmp_path / "copy", path=binaries)
    # then the entry point and its command work
    (entry,) = re.findall(r'"([^"]+)"', lines("ENTRYPOINT")[0])
    (command,) = re.findall(r'"([^"]+)"', lines("CMD")[0])
    assert f"{entry} {command}" in run(binaries / entry, command, "--help", cwd=tmp_path, path=binaries)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_its_install_lines_work_in_an_empty_environment(tmp_path: Path) -> None:
    # given a virtual environment with nothing but pip
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    copy_as_docker_does(tmp_path / "copy")
    # when every RUN line that installs is run as it is written
    installs = [line for line in lines("RUN") if "pip install" in line]
    assert len(installs) == 1
    run("bash", "-euc", f"{installs[0]} >/dev/null", cwd=tmp_path / "copy", path=binaries)
    # then the program runs, its libraries loaded
    assert "This machine" in run(binaries / "wellfed", "doctor", cwd=tmp_path, path=binaries)
