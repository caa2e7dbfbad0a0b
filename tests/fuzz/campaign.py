"""One target fuzzed for some seconds, in a child process that may crash or hang.

The kernel watches the child: a timer of CPU seconds and one of wall seconds end it at an input that never ends, and a
crash ends it by itself. The input is written down before it is read, so the parent knows which one it was, and starts
the next child with the inputs that were worth keeping.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from wellfed.pipeline.errors import WellfedError

from .lines import Line, Tracer, countable
from .mutate import mutated
from .target import MEBIBYTE, Case, Target

WALL_PER_CPU = 12
"""Wall seconds after which an input never ends, for each second of CPU time that it may take."""
_MOST_DEATHS = 10
_ADDRESS_SPACE = 3 << 30


@dataclass
class Outcome:
    """What a campaign saw.

    Attributes:
        corpus: inputs that reached something new, the seeds first.
        covered, lines: of the parser's lines.
        missed: (file name, line) not reached.
        findings: a description of each, with the file that holds the input.
    """

    target: str
    executions: int = 0
    corpus: int = 0
    covered: int = 0
    lines: int = 0
    missed: list[Line] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    @property
    def percent(self) -> float:
        """Of the parser's lines that ran."""
        return 100 * self.covered / max(1, self.lines)


def pack(case: Case) -> bytes:
    """A case as the bytes of one file."""
    return case[0].encode() + b"\n" + case[1]


def unpack(data: bytes) -> Case:
    """What `pack` made."""
    slot, _, rest = data.partition(b"\n")
    return slot.decode(), rest


def fuzz(target: Target, seconds: float, seed: int, kept: Path, starts: list[Case]) -> Outcome:
    """Fuzz a target.

    Args:
        kept: a folder, made anew, for the inputs that reached new lines and for findings.
        starts: inputs that were worth keeping earlier.
    """
    shutil.rmtree(kept, ignore_errors=True)
    (kept / "corpus").mkdir(parents=True)
    cases = [*target.seeds(), *starts]
    for number, case in enumerate(cases):
        (kept / "corpus" / f"{number:06d}").write_bytes(pack(case))
    outcome = Outcome(target.name)
    wanted = countable(target)
    hit: set[Line] = set()
    end = time.monotonic() + seconds
    for attempt in range(_MOST_DEATHS):
        status = _in_child(target, max(0.0, end - time.monotonic()), f"{seed}-{attempt}", kept, first=attempt == 0)
        told = kept / "told.json"
        if told.exists():
            data = json.loads(told.read_bytes())
            outcome.executions += data["executions"]
            outcome.findings += data["findings"]
            hit |= {(path, line) for path, line in data["hit"]}
            told.unlink()
        if status == 0:
            break
        ended = os.waitstatus_to_exitcode(status)
        how = {-signal.SIGPROF: f"took more than {target.cpu} s of CPU time", -signal.SIGALRM: "never ended"}
        finding = kept / f"death-{attempt}"
        shutil.copy(kept / "input", finding)
        outcome.findings.append(f"{how.get(ended, f'ended the process: {ended}')} ({finding})")
        if time.monotonic() >= end:
            break
    outcome.corpus = len(list((kept / "corpus").iterdir()))
    outcome.lines, outcome.covered = len(wanted), len(wanted & hit)
    outcome.missed = sorted(wanted - hit)
    return outcome


def _in_child(target: Target, seconds: float, seed: str, kept: Path, *, first: bool) -> int:
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    # The libraries below write a line for much of the damage.
    os.dup2(os.open(kept / "stderr", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
    try:
        _Child(target, kept).run(seconds, random.Random(seed), first=first)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class _Child:
    def __init__(self, target: Target, kept: Path) -> None:
        self._target, self._kept = target, kept
        self._wanted = countable(target)
        self._tracer = Tracer([path for path, _ in self._wanted])
        self._executions = 0
        self._found: dict[str, str] = {}
        self._corpus: list[Case] = []

    def run(self, seconds: float, rng: random.Random, *, first: bool) -> None:
        for number in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESS_SPACE, resource.RLIM_INFINITY))
        scratch = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        # Nothing here must last, and a sync costs more than a parser does.
        tempfile.tempdir = str(scratch)
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
        files = scratch / "files"
        end = time.monotonic() + seconds
        told = time.monotonic()
        try:
            files.mkdir()
            self._corpus = [unpack(path.read_bytes()) for path in sorted((self._kept / "corpus").iterdir())]
            if first:
                for case in self._corpus:
                    # The first reading imports what the parser needs: its memory is not the input's.
                    self._one(case, files, memory=1 << 40)
            while time.monotonic() < end:
                case = self._next(rng)
                if self._one(case, files, memory=self._target.memory):
                    self._corpus.append(case)
                    (self._kept / "corpus" / f"{len(self._corpus):06d}").write_bytes(pack(case))
                if time.monotonic() - told > 2:
                    self._tell()
                    told = time.monotonic()
        finally:
            self._tell()
            shutil.rmtree(scratch, ignore_errors=True)

    def _next(self, rng: random.Random) -> Case:
        # What was found last leads further more often than what was found first.
        place = max(rng.randrange(len(self._corpus)), rng.randrange(len(self._corpus)) if rng.random() < 0.5 else 0)
        slot, data = self._corpus[place]
        others = [each for name, each in self._corpus[-50:] if name == slot]
        changed = mutated(rng, data, others, self._target.words)
        return slot, self._target.repair(rng, slot, changed)

    def _one(self, case: Case, scratch: Path, memory: int) -> bool:
        """Read an input; whether it reached anything new."""
        (self._kept / "input").write_bytes(pack(case))
        known, before = len(self._tracer.pairs), _peak()
        signal.setitimer(signal.ITIMER_PROF, self._target.cpu)
        signal.setitimer(signal.ITIMER_REAL, WALL_PER_CPU * self._target.cpu)
        try:
            with self._tracer.on():
                self._target.run(*case, scratch)
        except WellfedError:
            pass  # what a parser may raise
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            last = next((each for each in reversed(frames) if "fuzz" not in each.filename), frames[-1])
            where = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
            self._keep(where, f"{where}: {str(error)[:200]}", case)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._executions += 1
        if (taken := _peak() - before) > memory:
            self._keep("memory", f"took {taken // MEBIBYTE} MiB", case)
        return len(self._tracer.pairs) > known

    def _keep(self, kind: str, what: str, case: Case) -> None:
        if kind not in self._found:
            path = self._kept / f"finding-{os.getpid()}-{len(self._found)}"
            path.write_bytes(pack(case))
            self._found[kind] = f"{what} ({path})"

    def _tell(self) -> None:
        data = {
            "executions": self._executions,
            "findings": list(self._found.values()),
            "hit": sorted(self._tracer.lines & self._wanted),
        }
        temporary = self._kept / "told.tmp"
        temporary.write_text(json.dumps(data))
        temporary.replace(self._kept / "told.json")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
