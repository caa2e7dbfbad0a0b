"""Verify: does a stored dataset hold, to the byte, what was written? Imports nothing heavy before it is called."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .notebook import or_drawn
from .progress import ProgressCallback


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        file: in the dataset's folder.
        key: of the sample it concerns; None where it concerns none or many.
        what: the finding.
    """

    file: str
    key: int | None
    what: str

    def __str__(self) -> str:
        where = self.file if self.key is None else f"{self.file}, sample {self.key:010d}"
        return f"{where}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What a verification found.

    Attributes:
        dataset: folder, as given.
        kind: "webdataset" or "lmdb"; "unknown" where the manifest is unreadable.
        samples: that the manifest promises.
        checked: samples whose stored bytes were compared.
        deep: each image was decoded too.
        problems: empty for a dataset that is as it was written.
        seconds: wall time.
    """

    dataset: str
    kind: str
    samples: int
    checked: int
    deep: bool
    problems: tuple[Problem, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Nothing was found."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """JSON types, with `ok`."""
        return {**asdict(self), "problems": [asdict(problem) for problem in self.problems], "ok": self.ok}


def verify(
    dst: str | Path,
    *,
    deep: bool = False,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> VerifyReport:
    """Compare a stored dataset with its manifest and index, by readers that are not its writers.

    Every file's SHA-256, every field's XXH3, the tars' members by `tarfile` or the environment's entries by a plain
    LMDB cursor, the DALI and wids indexes, labels, original names, counts and rejects.

    Args:
        dst: the dataset's folder.
        deep: decode each image, too, and compare its header with the index.
        workers: processes; None for one on each usable core.
        progress: called in this thread, a few times a second; None draws a bar in a notebook, and nothing elsewhere.

    Raises:
        UsageError: the folder is missing or no dataset of wellfed's, or workers is below 1.
        SchemaVersionError: it was written by a newer wellfed.
    """
    from .checks import check_dataset

    return check_dataset(Path(dst), deep=deep, workers=workers, progress=or_drawn(progress))
