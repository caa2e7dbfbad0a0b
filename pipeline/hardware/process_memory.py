"""Memory that a process has of its own, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["anonymous_bytes"]


def anonymous_bytes(pid: int, *, proc: Path = Path("/proc")) -> int | None:
    """Anonymous memory of a process, pages that several share divided among them (`Pss_Anon` of smaps_rollup).

    Mapped files and batches in shared memory are left out: they come and go with what is read. Pages inherited by fork
    count once the process or its parent has written to them, which is how a worker grows without allocating anything.
    Reading takes the kernel milliseconds for a process with torch loaded.

    Returns:
        Bytes; None where the process has ended or the kernel (before Linux 5.6, or not Linux) does not say.
    """
    try:
        lines = (proc / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    found = [line.split()[1] for line in lines if line.startswith("Pss_Anon:")]
    return int(found[0]) * 1024 if found else None
