"""Build the C extension with AddressSanitizer and UndefinedBehaviorSanitizer and feed it hostile JPEGs.

    PYTHONPATH=tests python -m sanitize [--seconds 1800] [--seed N] [--images FOLDER ...]

Ends with 1 at any report of a sanitizer in the extension, any memory that it leaks and any crash; the input is kept.
libjpeg itself is the system's: what it does to its own memory is not watched, what it makes the extension do is.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g -fno-wrapv"
"""Python's own flags have -fwrapv, which would allow what must not overflow."""
REPORT = re.compile(r"ERROR: AddressSanitizer|runtime error:|Sanitizer:DEADLYSIGNAL")
OURS = re.compile(r"pipeline/decode/native|_jpeg\.abi3\.so|libjpeg")
"""Frames of a leak's stack that make it ours; Python and its libraries keep memory to their end."""


def build(folder: Path, checkout: Path = REPOSITORY) -> Path:
    """The sanitized extension of a checkout, in `folder`.

    Raises:
        RuntimeError: it was not built.
    """
    command = [sys.executable, "setup.py", "-q", "build_ext", "--force", "--build-lib", str(folder / "lib")]
    command += ["--build-temp", str(folder / "objects")]
    environment = {**os.environ, "WELLFED_NATIVE_FLAGS": FLAGS, "LDFLAGS": FLAGS}
    ended = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    built = list((folder / "lib").rglob("_jpeg.*so"))
    if ended.returncode or not built:
        # The extension is optional to setuptools: a failure is only a warning there.
        raise RuntimeError(f"the sanitized extension was not built\n{ended.stdout}{ended.stderr}")
    return built[0]


def runtime() -> str:
    """gcc's libasan, which must be loaded before Python."""
    found = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        raise RuntimeError("gcc has no libasan.so: install it (Debian: libgcc-12-dev has it)")
    return str(path.resolve())


def run(extension: Path, folder: Path, given: argparse.Namespace, seed: int) -> list[str]:
    """Feed it for the seconds given; the findings."""
    logs = folder / "report"
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime(),
        "PYTHONMALLOC": "malloc",  # so that each Python object has guarded memory of its own
        "ASAN_OPTIONS": f"log_path={logs}:detect_leaks=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "LSAN_OPTIONS": "exitcode=0",
        "PYTHONPATH": str(REPOSITORY / "tests"),
    }
    command = [sys.executable, "-m", "sanitize.hostile", str(extension), str(folder / "input"), str(given.seconds)]
    # UndefinedBehaviorSanitizer writes to standard error whatever its log_path says.
    with open(f"{logs}.stderr", "w") as stderr:
        ended = subprocess.run([*command, str(seed), *map(str, given.images)], env=environment, stderr=stderr)
    findings = [] if ended.returncode == 0 else [f"the process ended with {ended.returncode}"]
    for path in sorted(folder.glob("report.*")):
        text = path.read_text(errors="replace")
        if REPORT.search(text) or (ended.returncode and path.suffix == ".stderr" and text):
            findings.append(text)
        findings += [leak for leak in re.split(r"\n\n", text) if "leak of" in leak and OURS.search(leak)]
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="sanitize", description=__doc__.splitlines()[0])
    photos = REPOSITORY.parent / "shared" / "data"
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("WELLFED_SANITIZE_SECONDS") or 1800))
    parser.add_argument("--seed", type=int, help="repeats a run, as far as the seconds reach")
    parser.add_argument(
        "--images", type=Path, nargs="*", default=[photos] if photos.is_dir() else [], help="folders of JPEGs to change"
    )
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}; {given.seconds:g} s", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="wellfed-sanitize-"))
    findings = run(build(folder), folder, given, seed)
    for finding in findings:
        print(f"FINDING: {finding}", flush=True)
    if findings:
        print(f"the last input and the reports are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
