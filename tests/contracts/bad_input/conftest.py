"""`wellfed convert` as a user runs it, and what lies in its destination, read with json and tarfile alone."""

from __future__ import annotations

import base64
import io
import json
import signal
import tarfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from wellfed.pipeline.cli.main import main


@dataclass(frozen=True)
class Converted:
    """How a conversion to WebDataset ended.

    Attributes:
        code, out, err: exit code and what was printed.
        folder: the destination.
    """

    code: int
    out: str
    err: str
    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "wellfed.json").read_bytes())
        return found

    @property
    def notes(self) -> dict[str, int]:
        notes: dict[str, int] = self.manifest["notes"]
        return notes

    @cached_property
    def rejects(self) -> dict[bytes, str]:
        """Original path to reason."""
        lines = [json.loads(line) for line in (self.folder / "rejects.jsonl").read_text("ascii").splitlines()]
        assert [set(line) - {"path", "name_base64"} for line in lines] == [{"key", "reason"}] * len(lines)
        return {original(line): line["reason"] for line in lines}

    @cached_property
    def samples(self) -> dict[str, dict[str, bytes]]:
        """Key to members by extension, as tarfile reads them."""
        found: dict[str, dict[str, bytes]] = {}
        for path in sorted(self.folder.glob("*.tar")):
            with tarfile.open(path) as tar:
                for member in tar:
                    key, _, extension = member.name.partition(".")
                    data = tar.extractfile(member)
                    assert data is not None
                    found.setdefault(key, {})[extension] = data.read()
        return found

    @cached_property
    def stored(self) -> list[tuple[bytes, str, str]]:
        """(original path, class, image extension) of each sample, in order."""
        described = []
        for members in self.samples.values():
            document = json.loads(members["json"])
            extension = next(iter(set(members) - {"json", "cls"}))
            described.append((original(document), document["class"], extension))
        return described

    @property
    def stored_names(self) -> list[bytes]:
        return [name for name, _, _ in self.stored]

    def assert_error(self, code: int, *words: str) -> None:
        """Stopped at once, in one paragraph, with nothing written."""
        assert (self.code, self.folder.exists()) == (code, False), self.err
        *progress, message = self.err.strip().splitlines()
        assert all(line.startswith("packing") for line in progress), self.err
        assert message.startswith("wellfed: ")
        for word in words:
            assert word in self.err

    def assert_counts(self, stored: int, rejected: int) -> None:
        """Exit code and counts agree with what lies there: stored + rejected = found."""
        assert self.code == (3 if rejected else 0), self.err
        assert (len(self.stored), len(self.rejects)) == (stored, rejected)
        source = self.manifest["source"]
        assert (self.manifest["samples"], source["rejected"], source["found"]) == (stored, rejected, stored + rejected)


def original(fields: dict[str, str]) -> bytes:
    return fields["path"].encode() if "path" in fields else base64.b64decode(fields["name_base64"])


def run_convert(source: object, folder: Path, *options: object) -> Converted:
    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGTERM)
    arguments = ["convert", source, folder, "--format", "webdataset", "--workers", 1, *options]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert isinstance(ended.value.code, int)
    return Converted(ended.value.code, out.getvalue(), err.getvalue(), folder)


@pytest.fixture(scope="session")
def convert_any() -> Callable[..., Converted]:
    """(source, destination, options...) to how `wellfed convert` ended."""
    return run_convert


@pytest.fixture
def bad_convert(tmp_path: Path) -> Callable[..., Converted]:
    """(source, options...) to how `wellfed convert` into `tmp_path/out` ended."""
    return lambda source, *options: run_convert(source, tmp_path / "out", *options)


def encoded(format: str = "JPEG", mode: str = "RGB", size: tuple[int, int] = (16, 12), **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 60).convert(mode).save(buffer, format, **options)
    return buffer.getvalue()


@pytest.fixture(scope="session")
def image() -> Callable[..., bytes]:
    """(format, mode, size, Pillow's options) to an encoded picture of noise."""
    return encoded


@pytest.fixture
def two_classes(tmp_path: Path) -> Path:
    """Two classes, "cat" and "dog", of two JPEGs each."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "photos" / name / f"{number}.jpg").write_bytes(encoded())
    return tmp_path / "photos"
