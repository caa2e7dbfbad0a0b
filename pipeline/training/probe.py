"""How much device memory a step takes at a batch size: tried in a child process, so that nothing of it stays."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..config import LoaderSettings
from .probe_child import ERROR_LENGTH, TRACE_LENGTH, run_step
from .process_group import ProbeGroup
from .simulated import SimulatedAccelerator
from .step_facts import StepFacts
from .steps import REFERENCE_STEPS, StepSpec
from .variants import Variant

__all__ = ["CANCELLED", "MemoryProbe", "ProbeLoader", "group_of_one", "probe_memory"]

CANCELLED = "another rank's probe of this batch size ended without a peak first"
"""The error of a probe that was given up, since its collectives wait for that one."""

STALL_SECONDS = 120.0
"""For one call after the first, which compiles."""

_POLL_SECONDS = 0.05
_LAST_WORDS_SECONDS = 1.0

_LEAVE_SECONDS = 5.0
"""For a child that has given its answer to end by itself: a thread that the step started may never let it."""


@dataclass(frozen=True, kw_only=True)
class ProbeLoader:
    """A loader that feeds a probe, so that its device memory counts.

    Attributes:
        data: path or URL of the dataset.
        settings: of the loader.
        seed: of order and augmentation.
        times: how often the dataset is repeated by index.
    """

    data: str
    settings: LoaderSettings
    seed: int = 0
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class MemoryProbe:
    """What one batch size takes.

    Attributes:
        batch_size: samples in a batch.
        peak_bytes: the most device memory in use, less other processes'; None where it was not measured or ran out.
        out_of_memory: the batch does not fit.
        error: why there is no peak; None where there is one, or where memory ran out.
        fault: what the step itself did wrong, so that it would do it anywhere: it raised, did not return in time, or
            ended its process; None where the step is not to blame.
        details: the traceback, or where each thread stood; None without a fault.
        remedy: of what the step raised, where it is known.
        facts: what the calls showed; None where they did not end, or where time is simulated.
    """

    batch_size: int
    peak_bytes: int | None
    out_of_memory: bool
    error: str | None
    fault: Literal["raised", "hung", "died"] | None = None
    details: str | None = None
    remedy: str | None = None
    facts: StepFacts | None = None


def probe_memory(
    spec: StepSpec,
    device: str,
    batch_size: int,
    *,
    timeout_seconds: float,
    stall_seconds: float = STALL_SECONDS,
    loader: ProbeLoader | None = None,
    variant: Variant | None = None,
    group: ProbeGroup | None = None,
) -> MemoryProbe:
    """Build the step in a child process, run a few optimizer steps, and report the peak.

    A reference step on the simulated device has nothing to isolate or to wait for, and is tried in this process.
    The child ends with this process, and is killed with all it started when the time is over. Under torchrun it is a
    group of one, so that a collective of the step has nobody to wait for, unless the children of all ranks meet.

    Args:
        spec: the step.
        device: as for `open_accelerator`.
        batch_size: samples.
        timeout_seconds: for the child's start and for each of: building the step, its first call.
        stall_seconds: for each later call.
        loader: feeds the step; None uses batches that lie on the device.
        variant: changes the model's forward; why that was not possible is the probe's error.
        group: where the children of all ranks meet; None makes this one a group of its own.

    Returns:
        The probe; a step that fails for another reason than memory is an `error` of the probe, not an exception.
    """
    if device.partition(":")[0] == "simulated" and spec.name in REFERENCE_STEPS and variant is None:
        moment = [0.0]

        def sleep(seconds: float) -> None:
            moment[0] += seconds

        accelerator = SimulatedAccelerator(device, clock=lambda: moment[0], sleep=sleep)
        return MemoryProbe(**run_step(spec, accelerator, batch_size, watch=False))
    request = {
        "spec": asdict(spec),
        "device": device,
        "batch_size": batch_size,
        "loader": None if loader is None else asdict(loader),
        "variant": variant,
        "arguments": sys.argv,
    }
    return _probe_in_child(request, timeout_seconds, stall_seconds, group)


def group_of_one(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a launched rank, as if it had been launched alone; any other is returned as it is.

    LOCAL_RANK stays, since it names the device. Port 0 lets torch's store take a free one.
    """
    found = dict(environment)
    if "WORLD_SIZE" not in found and "RANK" not in found:
        return found
    for name in list(found):
        # torchrun's agent keeps a store that the ranks join; a rank alone must make its own.
        if name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_")):
            del found[name]
    found |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return found


class _Progress:
    """What a child said so far, read from a pipe that never blocks: what the step started may keep it open."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._text = b""
        self.stage: int | None = None
        self.answer: dict[str, Any] | None = None

    def read(self) -> bool:
        """Take in what came; whether anything did."""
        came = b""
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._descriptor, 65536):
                came += part
        *lines, self._text = (self._text + came).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.stage = message.get("stage", self.stage)
            self.answer = message.get("probe", self.answer)
        return bool(came)

    @property
    def where(self) -> str:
        if self.stage is None:
            return "before the step was imported"
        return f"in call {self.stage} of the step" if self.stage else "while the step was imported and built"


def _probe_in_child(
    request: dict[str, Any], timeout_seconds: float, stall_seconds: float, group: ProbeGroup | None
) -> MemoryProbe:
    result_read, result_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    # A new process that imports us by name, not multiprocessing: that would import the user's main module again.
    command = [sys.executable, "-c", f"from {__package__}.probe_child import main; main()"]
    command += [json.dumps(request), str(result_write), str(lifeline_read)]
    environment = group_of_one(os.environ) if group is None else group.environment(os.environ)
    cancelled = (lambda: False) if group is None else group.cancelled
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    progress = _Progress(result_read)
    with tempfile.TemporaryFile() as stderr:
        child, hung = None, None
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=(result_write, lifeline_read),
                start_new_session=True,
                env=environment,
            )
            os.close(result_write)
            result_write = -1
            hung = _wait(child, progress, timeout_seconds, stall_seconds, cancelled)
            progress.read()
        finally:
            if child is not None:
                _kill_group(child)
            for descriptor in (result_read, result_write, lifeline_read, lifeline_write):
                if descriptor >= 0:
                    os.close(descriptor)
        if hung == CANCELLED:
            return MemoryProbe(batch_size=request["batch_size"], peak_bytes=None, out_of_memory=False, error=hung)
        if progress.answer is not None and hung is None:
            facts = progress.answer.pop("facts", None)
            return MemoryProbe(**progress.answer, facts=None if facts is None else StepFacts(**facts))
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - TRACE_LENGTH))
        said = stderr.read().decode(errors="replace").strip()
    fault: Literal["hung", "died"] | None = "died" if hung is None else "hung"
    last = said.splitlines()[-1] if said and hung is None else "no message"
    error = hung or f"the probing process ended with {_code(child.returncode)} {progress.where}: {last}"
    return MemoryProbe(
        batch_size=request["batch_size"],
        peak_bytes=None,
        out_of_memory=False,
        error=error[:ERROR_LENGTH],
        # Before the step there is nothing that it could have done.
        fault=fault if progress.stage is not None else None,
        details=said or None,
    )


def _code(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    reason = ", as the kernel does where host memory runs out" if -code == signal.SIGKILL else ""
    return f"signal {signal.Signals(-code).name}{reason}"


def _wait(
    child: subprocess.Popen[bytes],
    progress: _Progress,
    timeout_seconds: float,
    stall_seconds: float,
    cancelled: Callable[[], bool],
) -> str | None:
    """Wait for the end of the child, or for one that does not come on; says where it stood then."""
    quiet = 0.0
    before = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
            return None
        if cancelled():
            return CANCELLED
        now = time.monotonic()
        # A machine that was suspended, child and all, has not waited.
        quiet = 0.0 if progress.read() else quiet + min(now - before, 10 * _POLL_SECONDS)
        before = now
        if progress.answer is not None:
            if quiet > _LEAVE_SECONDS:
                return None
            continue
        limit = stall_seconds if progress.stage is not None and progress.stage > 1 else timeout_seconds
        if quiet > limit:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGUSR1)
                time.sleep(_LAST_WORDS_SECONDS)
            return f"the probing process did not come on for {limit:g} s {progress.where}"


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    # The group, also after a normal end: the user's step may have started processes of its own.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
