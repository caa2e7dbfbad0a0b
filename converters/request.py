"""What a conversion was asked to do: checked, listed and planned, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from wellfed.pipeline import __version__
from wellfed.pipeline.errors import SampleRejectedError, UsageError
from wellfed.pipeline.formats import index_dtype
from wellfed.pipeline.hardware import usable_cores

from .destination import Destination
from .files import FULL
from .image_option import ImageOption
from .inputs import Input, InputOptions, list_input
from .inputs.temporary import spool_error
from .layout import Layout
from .outputs import Output, open_output
from .plan import CheckName, OutputName, Plan, PlanOptions, make_plan, planned_sizes
from .selection import Selection, SelectionOptions, select

DEFAULT_SHARD_BYTES = 256_000_000

OnRejected = Literal["reject", "fail"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `convert`, which says what they mean; max_rejects is samples, or "P%" of those found."""

    src: str | Path
    dst: str | Path
    output: OutputName
    shard_bytes: int = DEFAULT_SHARD_BYTES
    shard_samples: int | None = None
    check: CheckName = "decode"
    image: str = "keep"
    input: InputOptions = field(default_factory=InputOptions)
    selection: SelectionOptions = field(default_factory=SelectionOptions)
    workers: int | None = None
    on_error: OnRejected = "reject"
    max_rejects: int | str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("output", OutputName), ("check", CheckName), ("on_error", OnRejected)):
            value, allowed = getattr(self, name), get_args(choices)
            if value not in allowed:
                raise UsageError(
                    f"{name} must be one of {', '.join(allowed)}", got=value, remedy="Choose one of those."
                )
        if self.workers is not None and self.workers < 1:
            raise UsageError("there must be at least 1 worker", got=self.workers, remedy="Leave it out.")
        most_rejects(self.max_rejects, 0)
        ImageOption.parse(self.image)
        if self.max_rejects is not None and self.on_error == "fail":
            raise UsageError(
                "a run that stops at its first reject has no use for a largest number of them",
                got=f"--on-error fail and --max-rejects {self.max_rejects}",
                remedy="Leave one of them out.",
            )

    @property
    def cores(self) -> int:
        """Workers asked for, or one for each usable core."""
        return self.workers or max(1, int(usable_cores().value or 1))

    @property
    def plan_options(self) -> PlanOptions:
        """What decides the published bytes."""
        return PlanOptions(
            output=self.output,
            shard_bytes=self.shard_bytes if self.shard_samples is None else None,
            shard_samples=self.shard_samples,
            check=self.check,
            image=ImageOption.parse(self.image),
            input=self.input,
            selection=self.selection,
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """One destination of a conversion: the only one, or that of one part of a split.

    Attributes:
        location: of the source, as given.
        workers: processes, at most one for each task.
        cores: workers asked for, or of the machine, however few tasks there are.
        most_rejects: more rejected samples than this end the run; None for any number.
    """

    request: Request
    location: str
    source: Input
    selection: Selection
    plan: Plan
    output: Output
    destination: Destination
    workers: int
    cores: int
    most_rejects: int | None

    @property
    def tars(self) -> Literal["published", "staged", "without_images"]:
        """What the packed tars are for. An LMDB takes images that are stored as they are from a source that can be
        read again: staging them costs writing and reading all of them once more."""
        if self.output.kind == "webdataset":
            return "published"
        has_images = any(field.type == "image" for field in self.source.fields)
        aside = has_images and self.source.rereads and self.plan.options.image.kind == "keep"
        return "without_images" if aside else "staged"

    @property
    def bytes_needed(self) -> int:
        """The most disk space in use while converting, as far as the input knows the sizes."""
        row, name = self._row_bytes()
        listing = 40 * len(self.source)
        staged = self.plan.bytes_without_images if self.tars == "without_images" else self.plan.staged_bytes
        beside = staged + self._bytes_beyond_tars + listing
        return beside + self.selection.found * (2 * row + name) + (1 << 20)

    @property
    def result_bytes(self) -> int:
        """Size of the finished dataset, as far as the input knows the sizes: tars that are staged stay in one kind."""
        row, name = self._row_bytes()
        tars = self.plan.staged_bytes if self.output.kind == "webdataset" else 0
        return tars + self._bytes_beyond_tars + self.selection.found * (row + name)

    def _row_bytes(self) -> tuple[int, int]:
        """Of a sample: its row of the index, and its name, judged by the first ones."""
        some = range(min(self.selection.found, 1000))
        names = sum(len(self.source.name(self.selection.row(number))) for number in some)
        members = tuple(Layout.of(self.source.fields).members)
        return index_dtype(members).itemsize, names // len(some)

    @property
    def _bytes_beyond_tars(self) -> int:
        return self.output.bytes_beyond_tars(planned_sizes(self.source, self.selection, self.plan.options.image))


def prepare(request: Request) -> list[Job]:
    """List the source and plan each destination; writes nothing.

    Raises:
        UsageError: the source cannot be used, the destination is not ours, or the options do not fit the source.
        SampleRejectedError: with on_error "fail", a sample that listing refused.
    """
    location, root = str(request.src), Path(request.dst)
    _check_apart(location, root)
    parts = [name for name, _ in request.selection.split]
    destinations: dict[str | None, Destination] = (
        {name: Destination(root / name) for name in parts} if parts else {None: Destination(root)}
    )
    _check_root(root, parts)
    for destination in destinations.values():
        destination.check_ours()
    with _source_errors(location):
        source = list_input(location, request.input)
    if "image" not in Layout.of(source.fields).types and request.plan_options.image.kind != "keep":
        raise UsageError(
            "the image option is for sources with images",
            got=f"--image {request.image} for {location}, which has none",
            remedy="Leave it out.",
        )
    jobs = []
    cores = request.cores
    for part, selection in select(source, request.selection).items():
        if request.on_error == "fail":
            for row in _refused_rows(source, selection):
                raise _unusable(source, row)
        plan = make_plan(source, selection, request.plan_options, part=part, tool_version=__version__)
        jobs.append(
            Job(
                request=request,
                location=location,
                source=source,
                selection=selection,
                plan=plan,
                output=open_output(request.output),
                destination=destinations[part],
                workers=min(cores, len(plan.tasks)),
                cores=cores,
                most_rejects=most_rejects(request.max_rejects, selection.found),
            )
        )
    return jobs


@contextmanager
def _source_errors(location: str) -> Iterator[None]:
    """What the system says while a source is listed concerns the source or its spool, never the destination."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise spool_error(error) from error
        raise UsageError(
            "the source must be readable", got=f"{location}: {error}", remedy="Check its permissions and its disk."
        ) from error


def most_rejects(given: int | str | None, found: int) -> int | None:
    """How many samples may be rejected of those found.

    Raises:
        UsageError: neither a number from 0 on nor a percentage from 0% to 100%.
    """
    if given is None:
        return None
    text = str(given).strip()
    try:
        if text.endswith("%"):
            share = float(text[:-1])
            if 0 <= share <= 100:
                return int(found * share / 100)
        elif (number := int(text)) >= 0:
            return number
    except ValueError:
        pass  # reported below, with what else is wrong
    raise UsageError(
        "the largest number of rejects must be a number from 0 on or a percentage up to 100%",
        got=given,
        remedy="Write for example 100 or 0.5%.",
    )


def _check_apart(location: str, root: Path) -> None:
    if "://" in location:
        return
    inside, outside = Path(location).resolve(), root.resolve()
    if inside == outside or inside in outside.parents or outside in inside.parents:
        raise UsageError(
            "source and destination must not lie inside each other",
            got=f"{location} and {root}",
            remedy="Give a destination elsewhere.",
        )


def _check_root(root: Path, parts: list[str]) -> None:
    """Of a split, the folder may hold nothing but the parts."""
    if not parts or not root.exists():
        return
    if not root.is_dir():
        raise UsageError("the destination must be a folder", got=str(root), remedy="Give another path.")
    foreign = sorted({entry.name for entry in root.iterdir()} - set(parts))
    if foreign:
        raise UsageError(
            "the destination of a split must be empty or hold nothing but its parts",
            got=f"{root}, which holds {', '.join(foreign[:3])}",
            remedy="Give another path, or move those files away.",
        )


def _refused_rows(source: Input, selection: Selection) -> Iterator[int]:
    if selection.order is None:
        yield from source.refused
    else:
        wanted = set(source.refused)
        yield from (row for row in map(int, selection.order) if row in wanted)


def _unusable(source: Input, row: int) -> SampleRejectedError:
    return SampleRejectedError(
        f"every sample must be storable, and {source.name(row).decode('utf-8', 'backslashreplace')!r} is not",
        got=source.refused[row],
        remedy="Mend or remove the file, or let such files be rejected (--on-error reject).",
    )


def facts_of(source: Input, selection: Selection) -> dict[str, Any]:
    """What listing says beside the samples: what it skipped and noticed."""
    return {"skipped": {**source.skipped, **selection.skipped}, "notes": dict(source.notes)}
