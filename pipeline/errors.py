"""One exception tree: every error a user can act on.

Each error states the rule, the value that broke it, and the remedy, and carries the exit code the command line ends
with (design section 9): 1 a failed operation, 2 wrong usage or configuration.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ConfigError",
    "CorruptSampleError",
    "DamagedDatasetError",
    "DeviceError",
    "MissingDependencyError",
    "ResourceError",
    "SampleError",
    "SampleRejectedError",
    "SchemaVersionError",
    "SourceChangedError",
    "StepError",
    "TransformError",
    "TunedConfigMismatchError",
    "UsageError",
    "WellfedError",
    "WorkerError",
]

_MOST_WORDS = 300
"""Characters of another library's message that one of ours repeats."""


class WellfedError(Exception):
    """Base of all errors raised on purpose.

    Args:
        rule: what must hold, as a statement ("the batch size must be at least 1").
        got: the value received, shown with repr; omit it where the rule already names it.
        remedy: what the user can do about it.
    """

    exit_code = 1

    def __init__(self, rule: str, *, got: Any = None, remedy: str | None = None) -> None:
        self.rule = rule
        self.got = got
        self.remedy = remedy
        super().__init__(rule)

    def __str__(self) -> str:
        text = self.rule
        if self.got is not None:
            text += f"; got {self.got if isinstance(self.got, str) and ' ' in self.got else repr(self.got)}"
        if not text.endswith("."):
            text += "."
        if self.remedy:
            text += f" {self.remedy}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only arguments do not survive the default reduction, and errors cross process boundaries.
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(kind: type[WellfedError], state: dict[str, Any]) -> WellfedError:
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("rule", ""))
    error.__dict__.update(state)
    return error


class UsageError(WellfedError):
    """A wrong argument, path or combination of options."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration value or file breaks a rule."""


class SchemaVersionError(UsageError):
    """A file was written by a newer wellfed than this one."""


class TunedConfigMismatchError(UsageError):
    """A tuned configuration does not fit this machine, dataset or step."""


class DeviceError(UsageError):
    """The device asked for is not there or cannot be used."""


class MissingDependencyError(UsageError):
    """An optional library is needed and is not installed; the remedy is the exact install line."""


class SampleRejectedError(WellfedError):
    """One input sample cannot be stored; the conversion counts it and goes on."""


class SampleError(WellfedError):
    """A stored sample cannot be handed over; names dataset, index (row) and original path."""

    def __init__(
        self,
        rule: str,
        *,
        dataset: str,
        index: int,
        path: str,
        got: Any = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(rule, got=got, remedy=remedy)
        self.dataset = dataset
        self.index = index
        self.path = path

    def __str__(self) -> str:
        return f"{super().__str__()} Sample {self.index} of {self.dataset}, originally {self.path!r}."


class CorruptSampleError(SampleError):
    """A stored sample does not decode."""


class TransformError(SampleError):
    """The user's transform raised on a sample; its exception is the cause, across processes its traceback a note."""


class DamagedDatasetError(WellfedError):
    """A stored dataset's files contradict its manifest or index."""


class SourceChangedError(WellfedError):
    """The source is not what it was when the conversion was planned."""


class ResourceError(WellfedError):
    """The machine lacks what the operation needs: disk, memory, shared memory, open files."""


class RemoteError(WellfedError):
    """An object store or web server does not answer, however often it was asked."""


class StepError(WellfedError):
    """The user's training step raised, or does not keep the step contract."""


class WorkerError(WellfedError):
    """A loader or conversion worker ended without a result."""


def words_of(error: BaseException) -> str:
    """Another's exception in one line: its type, and its message without line breaks, cut where it is long."""
    text = " ".join(str(error).split())
    if len(text) > _MOST_WORDS:
        text = f"{text[:_MOST_WORDS]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def follows_interrupt(error: BaseException) -> bool:
    """Whether this is an interrupt, or was raised while one was ending what was open.

    A signal to a whole process group ends worker processes too, and whoever closes them then may find them dead.
    """
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and all(one is not other for other in seen):
            if isinstance(one, KeyboardInterrupt):
                return True
            seen.append(one)
            left += [one.__cause__, one.__context__]
    return False
