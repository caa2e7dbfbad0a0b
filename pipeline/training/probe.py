"""How much device memory a step takes at a batch size: tried in a child process, so that nothing of it stays."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass

from ..errors import WellfedError, words_of
from .accelerator import Accelerator, open_accelerator
from .cached import CachedBatches
from .loop import measure
from .simulated import SimulatedAccelerator
from .steps import REFERENCE_STEPS, StepSpec, build_step

__all__ = ["MemoryProbe", "probe_memory"]

STEPS = 4
# The optimizer's state appears in the first step and the largest workspaces by the second.

BATCHES_ON_DEVICE = 3
# The one in use and those a loader holds ready.

ERROR_LENGTH = 2000


@dataclass(frozen=True, kw_only=True)
class MemoryProbe:
    """What one batch size takes.

    Attributes:
        batch_size: samples in a batch.
        peak_bytes: the most device memory in use, less other processes'; None where it was not measured or ran out.
        out_of_memory: the batch does not fit.
        error: why there is no peak; None where there is one, or where memory ran out.
    """

    batch_size: int
    peak_bytes: int | None
    out_of_memory: bool
    error: str | None


def probe_memory(spec: StepSpec, device: str, batch_size: int, *, timeout_seconds: float) -> MemoryProbe:
    """Build the step in a child process, run a few optimizer steps, and report the peak.

    A reference step on the simulated device has nothing to isolate or to wait for, and is tried in this process.
    The child ends with this process, and is killed with all it started when the time is over.

    Args:
        spec: the step.
        device: as for `open_accelerator`.
        batch_size: samples.
        timeout_seconds: for the child, its imports included.

    Returns:
        The probe; a step that fails for another reason than memory is an `error` of the probe, not an exception.
    """
    if device.partition(":")[0] == "simulated" and spec.name in REFERENCE_STEPS:
        moment = [0.0]

        def sleep(seconds: float) -> None:
            moment[0] += seconds

        accelerator = SimulatedAccelerator(device, clock=lambda: moment[0], sleep=sleep)
        return _probe(spec, accelerator, batch_size)
    return _probe_in_child(spec, device, batch_size, timeout_seconds)


def _probe(spec: StepSpec, accelerator: Accelerator, batch_size: int) -> MemoryProbe:
    try:
        step = build_step(spec, accelerator, batch_size)
        batches = CachedBatches(
            accelerator, batch_size, spec.image_size, BATCHES_ON_DEVICE, num_classes=spec.num_classes
        )
        window = measure(step, batches, accelerator, seconds=math.inf, max_steps=STEPS)
    except Exception as error:
        if accelerator.is_out_of_memory(error):
            return MemoryProbe(batch_size=batch_size, peak_bytes=None, out_of_memory=True, error=None)
        text = str(error) if isinstance(error, WellfedError) else words_of(error)
        return MemoryProbe(batch_size=batch_size, peak_bytes=None, out_of_memory=False, error=text[:ERROR_LENGTH])
    return MemoryProbe(
        batch_size=batch_size, peak_bytes=window.peak_bytes, out_of_memory=False, error=window.memory_reason
    )


def _probe_in_child(spec: StepSpec, device: str, batch_size: int, timeout_seconds: float) -> MemoryProbe:
    result_read, result_write = os.pipe()
    lifeline_read, lifeline_write = os.pipe()
    request = {"spec": asdict(spec), "device": device, "batch_size": batch_size, "arguments": sys.argv}
    # A new process that imports us by name, not multiprocessing: that would import the user's main module again.
    command = [sys.executable, "-c", f"from {__name__} import _child_main; _child_main()"]
    command += [json.dumps(request), str(result_write), str(lifeline_read)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    with tempfile.TemporaryFile() as stderr, os.fdopen(result_read, "rb") as results:
        child = None
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
            error = _wait(child, timeout_seconds)
        finally:
            for descriptor in (result_write, lifeline_read, lifeline_write):
                if descriptor >= 0:
                    os.close(descriptor)
            if child is not None:
                _kill_group(child)
        if error is None:
            answer = results.read()
            if answer:
                return MemoryProbe(**json.loads(answer))
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - ERROR_LENGTH))
            tail = stderr.read().decode(errors="replace").strip().splitlines()
            error = f"the probing process ended with code {child.returncode}: {tail[-1] if tail else 'no message'}"
    return MemoryProbe(batch_size=batch_size, peak_bytes=None, out_of_memory=False, error=error)


def _wait(child: subprocess.Popen[bytes], timeout_seconds: float) -> str | None:
    try:
        child.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return f"the probing process did not end within {timeout_seconds:g} s"
    return None


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    # The group, also after a normal end: the user's step may have started processes of its own.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _child_main() -> None:
    request, result, lifeline = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

    def end_with_parent() -> None:
        # The pipe ends when the parent does, however it does.
        os.read(lifeline, 1)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=end_with_parent, daemon=True).start()
    # A script that holds its step may look at its arguments while it is imported.
    sys.argv = request["arguments"]
    accelerator = open_accelerator(request["device"])
    probe = _probe(StepSpec(**request["spec"]), accelerator, request["batch_size"])
    with os.fdopen(result, "wb") as results:
        results.write(json.dumps(asdict(probe)).encode())
