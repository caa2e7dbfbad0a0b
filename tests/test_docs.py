"""Every command in the documentation is run, in a folder of its own with small data.

A page's ```sh and ```python fences run in order, in one folder with `photos`, a folder of class folders. Each sees
nothing of the others' variables. A comment right above a fence says what is special about it:

    <!-- not run: REASON -->     needs a GPU, a cluster, the network, or is a piece of something
    <!-- long -->                takes minutes: run by `make test-long`, with the fences that follow it
    <!-- exit 3 -->              the exit code that it ends with
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from wellfed.pipeline.training.simulated import PRESETS

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])
FENCE = re.compile(r"(?:<!--\s*(?P<mark>[^>]*?)\s*-->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)")
REASONS = ("needs a GPU", "needs a cluster", "needs the network", "needs Docker", "a piece", "make")


@dataclass(frozen=True)
class Fence:
    line: int
    language: str
    mark: str
    text: str

    @property
    def exit_code(self) -> int:
        return int(self.mark.split()[1]) if self.mark.startswith("exit ") else 0


def fences(page: Path) -> list[Fence]:
    text = page.read_text("utf-8")
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Fence(line, match["language"], match["mark"] or "", match["text"]))
    return found


def runnable(page: Path) -> list[Fence]:
    return [
        fence for fence in fences(page) if fence.language in ("sh", "python") and not fence.mark.startswith("not run")
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with `photos`: two classes of 12 gradients each, about 1.5 KB."""
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            gradient = Image.linear_gradient("L").resize((96 + 4 * number, 80)).rotate(15 * number)
            image = Image.merge("RGB", (gradient, gradient.rotate(90), gradient.rotate(180 * label)))
            image.save(tmp_path / "photos" / name / f"{number:02}.jpg", quality=85)
    return tmp_path


# Python fences that follow each other share a process, since importing torch takes seconds, but no names.
RUN_PYTHON = """
import sys
for position in range(1, len(sys.argv), 2):
    where, text = sys.argv[position : position + 2]
    exec(compile(text, where, "exec"), {"__name__": "__main__"})
"""


def run_all(page: Path, selected: list[Fence], folder: Path) -> None:
    for language, group in itertools.groupby(selected, key=lambda fence: fence.language):
        listed = list(group)
        if language == "python":
            pieces = [piece for fence in listed for piece in (f"{page.name}:{fence.line}", fence.text)]
            run([sys.executable, "-c", RUN_PYTHON, *pieces], 0, page, listed[0], folder)
            continue
        for fence in listed:
            run(["bash", "-eu", "-c", fence.text], fence.exit_code, page, fence, folder)


def run(command: list[str], exit_code: int, page: Path, fence: Fence, folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY / ".typing"),
        },
    )
    where = f"{page.relative_to(REPOSITORY)}:{fence.line}"
    assert done.returncode == exit_code, f"{where}\n{fence.text}\n{done.stdout}\n{done.stderr}"


def pages(*, long: bool) -> list[Path]:
    return [page for page in PAGES if page.is_file() and long == any(f.mark == "long" for f in runnable(page))]


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", [page for page in PAGES if page.is_file() and runnable(page)], ids=name_of)
def test_the_commands_of_a_page_work(page: Path, folder: Path) -> None:
    run_all(page, list(itertools.takewhile(lambda fence: fence.mark != "long", runnable(page))), folder)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", pages(long=True), ids=name_of)
def test_all_commands_of_a_long_page_work(page: Path, folder: Path) -> None:
    run_all(page, runnable(page), folder)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_marks_and_languages_are_known(page: Path) -> None:
    # A mark with a typing error would run, or leave out, what it should not.
    for fence in fences(page):
        where = f"{page.name}:{fence.line}"
        assert fence.language in ("sh", "python", "text", "json", "toml"), where
        kind, _, reason = fence.mark.partition(": ")
        assert kind in ("", "long", "not run") or re.fullmatch(r"exit \d+", kind), where
        assert kind != "not run" or reason.startswith(REASONS), where


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_makefile_targets_named_anywhere_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.M))
    for page in [*PAGES, REPOSITORY / "CONTRIBUTING.md"]:
        named = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text("utf-8"), re.M))
        assert named <= targets, page.name


def test_the_simulated_presets_are_those_documented() -> None:
    page = (REPOSITORY / "docs" / "simulated-accelerator.md").read_text("utf-8")
    for name, preset in PRESETS.items():
        shown = "simulated" if name == "simulated" else f"simulated:{name}"
        row = f"| `{shown}` | {preset.samples_per_second:,.0f} | {preset.launch_seconds * 1000:.0f} ms |"
        assert row in page
