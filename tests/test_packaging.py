"""What pip installs: from the wheel in an empty folder, from the sdist, editable, and from a bare checkout."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
VERSION = PROJECT["project"]["version"]
PACKAGE_DIR = {"wellfed.pipeline": "pipeline", "wellfed.converters": "converters"}
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so", "*.egg-info")


def run(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    """Standard output of a command that must succeed, in an environment without PYTHONPATH."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def module_files() -> set[str]:
    """Names in the wheel of all files below the two packages, by what is on disk."""
    names = set()
    for folder in PACKAGE_DIR.values():
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".pyc"):
                names.add(f"wellfed/{path.relative_to(REPOSITORY).as_posix()}")
    return names


def environment_without_wellfed(folder: Path) -> Path:
    """A virtual environment with this one's libraries, less the editable install; returns its python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    here = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    # A line in a .pth file extends sys.path without reading the .pth files there, so the editable finder stays out.
    Path(here, "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def pip_install(python: Path, *arguments: str | Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-qq", "--no-deps", "--no-index")
    run(*pip, *arguments, cwd=python.parent)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout without build leftovers, which would otherwise find their way into the wheel."""
    copy = tmp_path_factory.mktemp("tree") / "wellfed"
    copy.mkdir()
    for name in [*PACKAGE_DIR.values(), "tests", "docs"]:
        shutil.copytree(REPOSITORY / name, copy / name, ignore=LEFT_OUT)
    for path in REPOSITORY.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy2(path, copy / path.name)
    return copy


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from that sdist."""
    output = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", output, tree, cwd=output)
    return output


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment where the wheel is installed."""
    python = environment_without_wellfed(tmp_path_factory.mktemp("wheel"))
    pip_install(python, wheel)
    return python


def test_every_package_on_disk_is_listed() -> None:
    on_disk = {
        ".".join(("wellfed", *path.parent.relative_to(REPOSITORY).parts))
        for folder in PACKAGE_DIR.values()
        for path in (REPOSITORY / folder).rglob("__init__.py")
    }
    assert PROJECT["tool"]["setuptools"]["packages"] == sorted(on_disk)
    assert PROJECT["tool"]["setuptools"]["package-dir"] == PACKAGE_DIR


def test_every_folder_with_code_is_a_package() -> None:
    for folder in PACKAGE_DIR.values():
        for path in (REPOSITORY / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").is_file(), path


def test_the_links_for_type_checkers_lead_to_the_packages() -> None:
    for folder in PACKAGE_DIR.values():
        link = REPOSITORY / ".typing" / "wellfed" / folder
        assert link.is_symlink()
        assert link.resolve() == REPOSITORY / folder


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    about = f"wellfed-{VERSION}.dist-info/"
    code = {name for name in module_files() if "/native/" not in name}
    assert {name for name in names if not name.startswith(about)} == code | {"wellfed/pipeline/decode/_jpeg.abi3.so"}
    # One build serves every Python from 3.11 on.
    assert re.fullmatch(rf"wellfed-{VERSION}-cp311-abi3-\w+\.whl", wheel.name)
    assert {"wellfed/pipeline/py.typed", "wellfed/converters/py.typed", f"{about}licenses/LICENSE"} <= names
    assert "wellfed/__init__.py" not in names


def test_the_wheel_names_no_folder_of_this_machine(wheel: Path, tree: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            # The home folder may stand in an extension: python's own build options name where its library lies.
            for folder in (REPOSITORY, tree, *([] if name.endswith(".so") else [Path.home()])):
                assert f"{folder}/".encode() not in content, name


def test_the_wheel_declares_what_it_needs(installed: Path, tmp_path: Path) -> None:
    read = "from importlib import metadata as m; print(*m.metadata('wellfed').get_all({!r}), sep='\\n')"
    extras = run(installed, "-c", read.format("Provides-Extra"), cwd=tmp_path).split()
    assert extras == ["dali", "dali-cuda13", "ray", "s3", "parquet", "hf", "dev"]
    assert run(installed, "-c", read.format("Requires-Python"), cwd=tmp_path) == ">=3.11\n"
    assert run(installed, "-c", read.format("License-Expression"), cwd=tmp_path) == "Apache-2.0\n"


def test_the_installed_wheel_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    # given an empty folder, a wheel installed, and no checkout on the path
    program = (
        "import wellfed.pipeline as p, wellfed.converters as c\n"
        "[getattr(p, name) for name in p.__all__]\n"
        "print(p.__version__, p.__file__, c.__file__, sep='\\n')\n"
    )
    # when everything public is used, then it comes from the wheel, with the wheel's version
    version, *files = run(installed, "-c", program, cwd=tmp_path).splitlines()
    assert version == VERSION
    assert [Path(file).is_relative_to(installed.parent.parent) for file in files] == [True, True]
    # and the command is there
    command = installed.parent / "wellfed"
    assert run(command, "--version", cwd=tmp_path) == f"wellfed {VERSION}\n"
    assert "convert" in run(command, "--help", cwd=tmp_path)
    assert run(installed, "-m", "wellfed.pipeline", "--version", cwd=tmp_path) == f"wellfed {VERSION}\n"


def test_the_wheel_passes_the_check_that_release_builds_run(installed: Path, tmp_path: Path) -> None:
    assert "C extension: available" in run(installed, REPOSITORY / "tests" / "check_wheel.py", cwd=tmp_path)


def test_release_builds_are_one_wheel_for_each_machine() -> None:
    options = PROJECT["tool"]["cibuildwheel"]
    assert options["build"] == "cp311-manylinux_*"  # the limited API's first version, as in setup.py
    assert options["linux"]["archs"] == ["x86_64", "aarch64"]
    script = options["linux"]["before-all"]
    assert subprocess.run(["sh", "-n"], input=script, text=True).returncode == 0
    assert re.search(r"^echo \"[0-9a-f]{64}  \$name.tar.gz\" \| sha256sum -c$", script, re.M)
    assert (REPOSITORY / options["test-command"].removeprefix("python {project}/")).is_file()


def test_a_users_own_pipeline_module_shadows_nothing(installed: Path, tmp_path: Path) -> None:
    # given a training script's folder with modules of the names of our folders
    (tmp_path / "pipeline.py").write_text("NAME = 'the user'\n")
    (tmp_path / "converters.py").write_text("NAME = 'the user'\n")
    # when both are imported, then each is what it should be
    program = "import pipeline, converters, wellfed.pipeline; print(pipeline.NAME, wellfed.pipeline.__version__)"
    assert run(installed, "-c", program, cwd=tmp_path) == f"the user {VERSION}\n"


def test_the_sdist_holds_what_building_and_testing_need(built: Path) -> None:
    with tarfile.open(built / f"wellfed-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "tests/conftest.py"} <= names
    assert {name.removeprefix("wellfed/") for name in module_files()} <= names
    assert {"setup.py", "pipeline/decode/native/module.c", "pipeline/decode/native/jpegcodec.h"} <= names
    assert [name for name in names if "__pycache__" in name] == []


def test_an_editable_install_uses_the_checkout(tree: Path, tmp_path: Path) -> None:
    python = environment_without_wellfed(tmp_path / "editable")
    pip_install(python, "--no-build-isolation", "--editable", tree)
    program = "import wellfed.pipeline as p, wellfed.converters as c; print(p.__version__, p.__file__, c.__file__)"
    expected = f"{VERSION} {tree / 'pipeline' / '__init__.py'} {tree / 'converters' / '__init__.py'}\n"
    assert run(python, "-c", program, cwd=tmp_path) == expected


def test_a_bare_checkout_says_that_it_is_one(tmp_path: Path) -> None:
    # given no site-packages at all (-S), so no metadata of any install
    program = "import wellfed.pipeline; print(wellfed.pipeline.__version__)"
    links = str(REPOSITORY / ".typing")
    assert run(sys.executable, "-S", "-c", program, cwd=tmp_path, PYTHONPATH=links) == "0+checkout\n"


def test_what_the_code_imports_is_declared() -> None:
    # given the distributions declared, the extras' included
    needed = list(PROJECT["project"]["dependencies"])
    needed += [line for lines in PROJECT["project"]["optional-dependencies"].values() for line in lines]
    declared = {line.replace(">", "=").partition("=")[0].lower() for line in needed}
    providers = metadata.packages_distributions()
    later = {"compression"}  # in the standard library since Python 3.14 (PEP 784)
    # torch's own compiler, in its CUDA builds alone; where it is absent the kernels are, and `resample.why_not` says so
    of_torch = {"triton"}
    standard = set(sys.stdlib_module_names) | later | of_torch
    # when the top-level names that the packages import are looked up
    undeclared = {}
    for folder in PACKAGE_DIR.values():
        for path in (REPOSITORY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    names.append(node.module or "")
                for name in {name.partition(".")[0] for name in names} - standard - {"wellfed"}:
                    if not {provider.lower() for provider in providers.get(name, [])} & declared:
                        undeclared[f"{path.relative_to(REPOSITORY)}: {name}"] = providers.get(name)
    # then each comes with something declared, never by the luck of another library's needs
    assert undeclared == {}
