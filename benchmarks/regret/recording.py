"""What a rig answered, call by call: kept as JSON, several answers to each call, and read back whole."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.training import MemoryProbe, Window
from wellfed.pipeline.training.step_facts import StepFacts
from wellfed.pipeline.tune.rig import OutOfDeviceMemoryError, Rig, UnmeasuredError

BENCHMARK = "regret"
WINDOWS = ("ceiling", "fed", "beside")
_DERIVED = ("samples_per_second", "wait_share")
_TIMES = ("wait_seconds", "step_seconds", "host_rss_seconds")
_RAISED: dict[str, type[Exception]] = {
    "OutOfDeviceMemoryError": OutOfDeviceMemoryError,
    "UnmeasuredError": UnmeasuredError,
}


class MissingCallError(Exception):
    """A recording has no answer to a call.

    Args:
        key: of the call.
        ask: makes the same call of another rig.
    """

    def __init__(self, key: str, ask: Callable[[Rig], object]) -> None:
        super().__init__(f"the recording holds no answer to {key}")
        self.key = key
        self.ask = ask


class RecordedError(Exception):
    """What was called failed when it was recorded, so it fails again; with the message of then."""


def key_of(call: str, **arguments: Any) -> str:
    """One text for a call and what settles its answer; how many seconds it was asked to take does not."""
    plain = {name: value.to_dict() if isinstance(value, LoaderSettings) else value for name, value in arguments.items()}
    return json.dumps([call, plain], sort_keys=True)


@dataclass(frozen=True)
class Answer:
    """One answer to a call.

    Attributes:
        seconds: that the call took.
        first: it had to open a loader, or build a step, first.
        value: as JSON; None where it raised.
        raised: name of the error's type; None where it gave a value.
        message: of the error.
    """

    seconds: float
    first: bool
    value: Any = None
    raised: str | None = None
    message: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Without what is not there."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None and (name, value) != ("first", False)
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Answer:
        return cls(**{"first": False, **stored})

    def replayed(self, call: str) -> Any:
        """The value as the call gave it.

        Raises:
            OutOfDeviceMemoryError, UnmeasuredError: as recorded.
            RecordedError: it failed in another way.
        """
        if self.raised is not None:
            kind = _RAISED.get(self.raised)
            raise RecordedError(f"{self.raised}: {self.message}") if kind is None else kind(self.message)
        if call in WINDOWS:
            return _window(self.value)
        return _probe(self.value) if call == "probe" else self.value


def stored_value(call: str, value: Any) -> Any:
    """As JSON, without what is derived; times to 10 us: a window of 1.5 s has hundreds."""
    if call in WINDOWS:
        kept = {name: found for name, found in value.to_dict().items() if name not in _DERIVED}
        return kept | {name: [round(seconds, 5) for seconds in kept[name]] for name in _TIMES}
    return asdict(value) if call == "probe" else value


def _window(stored: Mapping[str, Any]) -> Window:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
    return Window(**fields)


def _probe(stored: Mapping[str, Any]) -> MemoryProbe:
    facts = stored["facts"]
    return MemoryProbe(**{**stored, "facts": None if facts is None else StepFacts(**facts)})


@dataclass
class Recording:
    """Answers by call.

    Attributes:
        head: machine, step, dataset, and how it was recorded.
        calls: answers by the call's key, in the order in which they came.
        done: names of what was recorded whole; the rest of an interrupted recording is measured again.
        unavailable: settings of the grid that the machine could not run, with the reason.
    """

    head: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, list[Answer]] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    unavailable: list[dict[str, Any]] = field(default_factory=list)

    def add(self, key: str, answer: Answer) -> None:
        self.calls.setdefault(key, []).append(answer)

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        document = {
            "benchmark": BENCHMARK,
            **self.head,
            "done": self.done,
            "unavailable": self.unavailable,
            "calls": [
                {"call": call, "arguments": arguments, "answers": [answer.to_dict() for answer in answers]}
                for key, answers in self.calls.items()
                for call, arguments in (json.loads(key),)
            ],
        }
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps(document, separators=(",", ":")) + "\n")
        os.replace(partial, path)

    @classmethod
    def load(cls, path: Path) -> Recording:
        document = json.loads(path.read_text())
        if document.pop("benchmark", None) != BENCHMARK:
            raise SystemExit(f"{path} holds something else than a recording of this benchmark")
        calls = {
            json.dumps([one["call"], one["arguments"]], sort_keys=True): [
                Answer.from_dict(stored) for stored in one["answers"]
            ]
            for one in document.pop("calls")
        }
        done, unavailable = document.pop("done"), document.pop("unavailable")
        return cls(head=document, calls=calls, done=done, unavailable=unavailable)

    @classmethod
    def joined(cls, parts: Iterable[Recording]) -> Recording:
        """The parts of one recording together; the first one's head."""
        first, *others = parts
        whole = cls(first.head, {key: list(found) for key, found in first.calls.items()}, list(first.done))
        whole.unavailable = list(first.unavailable)
        for other in others:
            if other.head["step"] != first.head["step"]:
                raise SystemExit(
                    f"parts of one recording have one step, not {first.head['step']}, {other.head['step']}"
                )
            for key, answers in other.calls.items():
                whole.calls.setdefault(key, []).extend(answers)
            whole.done += other.done
        return whole
