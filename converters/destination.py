"""The destination folder: whose it is, who may write to it, and how a finished dataset appears in it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wellfed.pipeline.errors import DamagedDatasetError, ResourceError, UsageError
from wellfed.pipeline.formats.manifest import MANIFEST_NAME, Manifest

from .files import sync_folder, write_file

WORK_NAME = ".wellfed-work"


class Destination:
    """A destination folder and the work folder inside it.

    The work folder holds all that is unfinished: `plan.json`, the listed input, `tasks/` (staged shards), `final/`
    (small files), `scratch/`, and from the moment that everything is staged `publish.json`, which says how to end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / WORK_NAME
        self.tasks = self.work / "tasks"
        self.final = self.work / "final"
        self.scratch = self.work / "scratch"
        self.listing = self.work / "input"
        self._plan = self.work / "plan.json"
        self._publish = self.work / "publish.json"

    @property
    def has_dataset(self) -> bool:
        """A whole dataset lies here."""
        return (self.path / MANIFEST_NAME).is_file()

    @property
    def has_work(self) -> bool:
        """An earlier conversion did not end here."""
        return self.work.is_dir()

    def check_ours(self) -> None:
        """Raise UsageError where the folder holds anything that wellfed did not write."""
        if not self.path.exists():
            if self.path.is_symlink():
                raise UsageError("the destination must not be a broken link", got=str(self.path), remedy="Remove it.")
            return
        if not self.path.is_dir():
            raise UsageError("the destination must be a folder", got=str(self.path), remedy="Give another path.")
        known = {WORK_NAME, *self._published_names(), *self._planned_names()}
        foreign = sorted(set(os.listdir(self.path)) - known)
        if foreign:
            shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
            raise UsageError(
                "the destination must be empty or hold nothing but a dataset of wellfed's",
                got=f"{self.path}, which holds {shown}",
                remedy="Give another path, or move those files away.",
            )

    def _published_names(self) -> set[str]:
        if not self.has_dataset:
            return set()
        try:
            manifest = Manifest.load(self.path)
        except DamagedDatasetError as error:
            raise UsageError(
                "a destination with a dataset must have a readable manifest",
                got=str(error.got),
                remedy=f"Remove {str(self.path)!r} yourself if it is no longer needed.",
            ) from error
        return {MANIFEST_NAME, *manifest.files, *(shard.name for shard in manifest.shards)}

    def _planned_names(self) -> set[str]:
        publication = _read_json(self._publish)
        if publication is None:
            return set()
        return {*publication["remove"], *(name for _, name in publication["moves"])}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one conversion; made where missing.

        Raises:
            UsageError: another conversion holds it.
        """
        made = not self.path.exists()
        lock = self.work / "lock"
        while True:
            self.work.mkdir(parents=True, exist_ok=True)
            try:
                fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # the other run ended and removed its work folder
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(fd)
                raise UsageError(
                    "one conversion at a time may write to a destination",
                    got=f"{self.path}, which another is writing to",
                    remedy="Wait for it to end, or give another destination.",
                ) from error
            with suppress(FileNotFoundError):
                if os.stat(lock).st_ino == os.fstat(fd).st_ino:
                    break
            os.close(fd)  # the lock of a run that ended in between
        try:
            yield
        finally:
            if not any(entry.name != "lock" for entry in os.scandir(self.work)):
                lock.unlink()
                # Another run may be waiting at this very moment, and then keeps the folder.
                with suppress(OSError):
                    self.work.rmdir()
                    if made:
                        self.path.rmdir()
            os.close(fd)

    def read_plan(self) -> dict[str, Any] | None:
        """The plan of the unfinished conversion; None where there is none."""
        return _read_json(self._plan)

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Record a plan: from now on the conversion can be continued."""
        write_file(self._plan, json.dumps(plan).encode())

    @property
    def publishing(self) -> bool:
        """Everything is staged; only `publish` is left."""
        return self._publish.is_file()

    def begin(self) -> None:
        """Empty the work folder and make its parts; a publication that was cut short is ended first."""
        if self.publishing:
            self.publish()
        self._publish.unlink(missing_ok=True)
        self._plan.unlink(missing_ok=True)
        self.clean()
        for folder in (self.tasks, self.final, self.scratch, self.listing):
            folder.mkdir()

    def clean(self) -> None:
        """Remove everything from the work folder, in an order that a run which finds it half done understands.

        What is published ends with `publish.json`, which needs no plan: killed in between, a plan without its
        publication would be taken for a conversion whose shards are still to be packed. Before publishing, a plan
        without its listing and shards could not be continued, so it goes first.
        """
        if not self.publishing:
            self._plan.unlink(missing_ok=True)
        last = [self._plan, self._publish]
        for entry in sorted(self.work.iterdir()):
            if entry.name == "lock" or entry in last:
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        for path in last:
            path.unlink(missing_ok=True)

    def stage(self, moves: Sequence[tuple[Path, str]]) -> None:
        """Record what is to be published: staged files and their names; the manifest is the last of them."""
        names = {name for _, name in moves}
        publication = {
            "moves": [[str(path.relative_to(self.work)), name] for path, name in moves],
            "remove": sorted(self._published_names() - names),
        }
        write_file(self._publish, json.dumps(publication).encode())

    def staged(self) -> dict[str, Path]:
        """What `stage` recorded: final name to staged file."""
        publication = _read_json(self._publish)
        return {} if publication is None else {name: self.work / staged for staged, name in publication["moves"]}

    def publish(self) -> None:
        """Put the staged files into place, the manifest last; may be killed and called again at any point."""
        publication = _read_json(self._publish)
        if publication is None:
            raise DamagedDatasetError("only a staged conversion can be published", got=str(self.path))
        *moves, manifest = publication["moves"]
        if (self.work / manifest[0]).exists():
            # Without its manifest the old dataset counts as gone; half of each must never pass as one.
            (self.path / MANIFEST_NAME).unlink(missing_ok=True)
            sync_folder(self.path)
            for name in publication["remove"]:
                if name != MANIFEST_NAME:
                    (self.path / name).unlink(missing_ok=True)
            for staged, name in moves:
                if (self.work / staged).exists():
                    os.replace(self.work / staged, self.path / name)
            sync_folder(self.path)
            os.replace(self.work / manifest[0], self.path / manifest[1])
        sync_folder(self.path)

    def check_space(self, needed: int) -> None:
        """Raise ResourceError where the disk has less than this many bytes free beside what is staged already."""
        staged = sum(entry.stat().st_size for entry in os.scandir(self.tasks)) if self.tasks.is_dir() else 0
        existing = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if free < needed - staged:
            raise ResourceError(
                f"the disk of {str(self.path)!r} must have {_gigabytes(needed - staged)} free",
                got=f"{_gigabytes(free)} free",
                remedy="Make room, or give a destination on another disk.",
            )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
