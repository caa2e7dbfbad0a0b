"""LMDB environments of other tools: key-per-image (LSUN), BasicSR, Caffe's Datum, pickled records."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from wellfed.pipeline.errors import DamagedDatasetError, SampleRejectedError, UsageError
from wellfed.pipeline.formats.perprocess import PerProcess

from .base import InputOptions, Record
from .flat import label_of, label_rule
from .folder import CHANGED
from .listing import ListedInput, Listing, ListingBuilder
from .uses import refuse_unused

DATA_NAME, META_NAME = "data.mdb", "meta_info.txt"
_LOOKED_AT = 100
"""Records looked at to find out what an environment holds."""

_LSUN_NAME = re.compile(r"(.+?)(?:_(?:train|val|test))?_lmdb")


def matches(location: str) -> bool:
    """A folder with `data.mdb`, such a file by another name, or a folder of nothing but such folders."""
    return bool(_environments(location))


class LmdbInput(ListedInput):
    """The records of one or several environments, in the order of their keys; see `Input` for the contract.

    The original name of a sample is its key (BasicSR: its name in `meta_info.txt`), below the name of its environment
    where the location holds several: those are classes then (LSUN), unless a label rule says otherwise.
    """

    kind = "lmdb"

    def __init__(self, location: str, listing: Listing) -> None:
        super().__init__(location, listing)
        self._paths = _environments(location)
        self._held: PerProcess[dict[Path, Any]] = PerProcess(dict)

    @classmethod
    def list(cls, location: str, options: InputOptions) -> Self:
        """Walk the environments, first in a process of its own: LMDB ends the process that meets a broken page.

        Raises:
            UsageError: no environment, one that is cut short or garbage, records of none of the layouts, pickles
                that were not allowed, or nothing that says the labels.
        """
        from .pixels import PixelEncoding

        PixelEncoding.parse(options.encoding)
        environments = _environments(location)
        if not environments:
            raise UsageError(
                "the location must be an LMDB environment, or a folder of them",
                got=location,
                remedy=f"Give the folder that holds {DATA_NAME}.",
            )
        rule = label_rule(options.label_regex) if options.label_regex is not None else None
        builder = ListingBuilder()
        skipped: Counter[str] = Counter()
        layouts = []
        for number, path in enumerate(environments):
            _check(path)
            layout = _layout(path, options)
            layouts.append(layout)
            prefix = os.fsencode(path.parent.name) + b"/" if len(environments) > 1 else b""
            label = _fixed_label(path, len(environments), layout, rule, options)
            stamp = path.stat().st_mtime_ns
            for key, name, value in _records(path, skipped):
                found, reason = label, None
                if rule is not None:
                    found = label_of(rule, prefix + name)
                    reason = None if found is not None else "the label rule does not fit the key"
                elif label is None and value is not None:
                    found, reason = _record_label(value, layout, options)
                if value is None:
                    reason = f"{META_NAME} lists it, and the environment has no such key"
                builder.add(
                    prefix + name,
                    label=found,
                    size=0 if value is None else len(value),
                    stamp=stamp,
                    reason=reason,
                    environment=number,
                    # A BasicSR name is its key and an extension.
                    key_bytes=len(key),
                )
        if "pickle" not in layouts:
            refuse_unused(
                options, ("allow_pickle", "image_column", "label_column"), f"no record of {location} is a pickle"
            )
        facts = {
            "layouts": layouts,
            "encoding": options.encoding,
            "image_column": options.image_column,
            "label_column": options.label_column,
        }
        listing = builder.finish(options.classes, skipped=skipped, facts=facts, content=repr(sorted(facts.items())))
        return cls(location, listing)

    def read(self, row: int) -> Record:
        """The image of a record.

        Raises:
            SampleRejectedError: the record is gone or not as it was listed, or holds no image that can be stored.
        """
        import lmdb

        from wellfed.pipeline.formats.environments import ENVIRONMENTS

        columns, name, paths = self.listing.columns, self.name(row), self._paths
        number = int(columns["environment"][row])
        if number >= len(paths) or paths[number].stat().st_mtime_ns != int(columns["stamp"][row]):
            raise SampleRejectedError(CHANGED)
        start = len(os.fsencode(paths[number].parent.name)) + 1 if len(self.listing.facts["layouts"]) > 1 else 0
        key = name[start : start + int(columns["key_bytes"][row])]
        try:
            with ENVIRONMENTS, self._environment(paths[number]).handle.begin() as transaction:
                value = transaction.get(key)
        except lmdb.Error as error:
            raise SampleRejectedError("the record must be readable", got=str(error)) from error
        if value is None or len(value) != int(columns["size"][row]):
            raise SampleRejectedError(CHANGED)
        return Record(self._image(value, self.listing.facts["layouts"][number]), {})

    def _environment(self, path: Path) -> Any:
        from wellfed.pipeline.formats.environments import ENVIRONMENTS

        held = self._held.get()
        if path not in held:
            held[path] = ENVIRONMENTS.open(path)
        return held[path]

    def _image(self, value: bytes, layout: str) -> bytes:
        from .lmdb_layouts import datum_image, pickled_image, unpickled
        from .pixels import PixelEncoding

        facts = self.listing.facts
        if layout == "datum":
            return datum_image(value, PixelEncoding.parse(facts["encoding"]))
        if layout == "pickle":
            image, _ = unpickled(value, facts["image_column"], facts["label_column"])
            return pickled_image(image, PixelEncoding.parse(facts["encoding"]))
        return value


def _environments(location: str) -> list[Path]:
    """Data files of the environments at a location."""
    path = Path(location)
    if path.is_file():
        return [path] if path.suffix in (".mdb", ".lmdb") else []
    if (path / DATA_NAME).is_file():
        return [path / DATA_NAME]
    try:
        folders = sorted(each for each in path.iterdir() if not each.name.startswith(".") and each.is_dir())
    except OSError:
        return []
    found = [each / DATA_NAME for each in folders]
    return found if found and all(each.is_file() for each in found) else []


def _is_metadata(key: bytes) -> bool:
    from .lmdb_layouts import is_metadata

    return is_metadata(key)


def _records(path: Path, skipped: Counter[str]) -> Iterator[tuple[bytes, bytes, Any]]:
    """(key, name, value) of each record, in the order of BasicSR's list if there is one; counts what is left out."""
    from .lmdb_layouts import meta_names

    meta = path.parent / META_NAME
    with _cursor(path) as cursor:
        if path.name != DATA_NAME or not meta.is_file():
            for key, value in cursor:
                if _is_metadata(bytes(key)):
                    skipped["metadata"] += 1
                else:
                    yield bytes(key), bytes(key), value
            return
        listed = 0
        for name in meta_names(meta):
            key = os.path.splitext(name)[0]
            found = cursor.set_key(key)
            listed += found
            yield key, name, cursor.value() if found else None
        cursor.first()
        metadata = others = 0
        for key in cursor.iternext(values=False):
            metadata, others = (metadata + 1, others) if _is_metadata(bytes(key)) else (metadata, others + 1)
        for what, count in (("metadata", metadata), (f"not in {META_NAME}", others - listed)):
            if count > 0:
                skipped[what] += count


def _fixed_label(path: Path, environments: int, layout: str, rule: Any, options: InputOptions) -> str | None:
    """The class of all records of an environment; None where each record says its own."""
    if rule is not None:
        return None
    if layout in ("datum", "pickle"):
        return None
    if environments > 1:
        match = _LSUN_NAME.fullmatch(path.parent.name)
        return match[1] if match else path.parent.name
    if options.classes is not None and len(options.classes) == 1:
        return options.classes[0]
    raise UsageError(
        "the records of an environment of images must get their labels from somewhere",
        got=f"{path}, whose records are only images",
        remedy="Give --label-regex, a rule on their keys, or a folder with one environment for each class.",
    )


def _record_label(value: Any, layout: str, options: InputOptions) -> tuple[Any, str | None]:
    from ..rejects import reason_of
    from .lmdb_layouts import datum_label, unpickled

    try:
        if layout == "datum":
            return datum_label(value), None
        return unpickled(value, options.image_column, options.label_column)[1], None
    except SampleRejectedError as error:
        return None, reason_of(error)


def _layout(path: Path, options: InputOptions) -> str:
    from .lmdb_layouts import layout_of

    first = None
    with _cursor(path) as cursor:
        looked = 0
        for key, value in cursor:
            if _is_metadata(bytes(key)):
                continue
            first = (bytes(key), bytes(value[:8])) if first is None else first
            layout = layout_of(value)
            if layout == "pickle" and not options.allow_pickle:
                raise UsageError(
                    "pickled records are read only when allowed, since unpickling runs code that the source brings",
                    got=f"{path}, whose record {bytes(key)!r} is a pickle",
                    remedy="Give --allow-pickle if you trust whoever wrote it.",
                )
            if layout is not None:
                return layout
            looked += 1
            if looked == _LOOKED_AT:
                break
    raise UsageError(
        "the records of an LMDB environment must be images, Caffe Datums or pickles of images",
        got=f"{path}, which has no records"
        if first is None
        else f"{path}, whose record {first[0]!r} begins with {first[1]!r}",
        remedy="Read it with the tool that wrote it, and give that as a torch Dataset.",
    )


def _check(path: Path) -> None:
    """Raises UsageError where the environment cannot be read to its end."""
    from wellfed.pipeline.formats.lmdb import check_mappable

    from ..pool import run_tasks

    try:
        check_mappable(path)
    except (OSError, DamagedDatasetError) as error:
        raise UsageError(
            f"{str(path)!r} must be a whole LMDB data file",
            got=str(getattr(error, "got", None) or error),
            remedy="Copy it again from where it is whole.",
        ) from error
    ends: list[str] = []
    run_tasks(
        walk_environment,
        [(str(path),)],
        workers=1,
        attempts=1,
        describe=lambda position, last: str(path),
        on_result=lambda position, fault: ends.extend([fault] if fault else []),
        on_death=lambda position, how: ends.append(f"a reader of it is {how}"),
    )
    if ends:
        raise UsageError(
            f"{str(path)!r} must be a whole LMDB data file", got=ends[0], remedy="Copy it again from where it is whole."
        )


def walk_environment(path: str, *, report: Callable[[Any], None]) -> str | None:
    """Touch every record; what LMDB says where it cannot. Runs in a worker process, which a broken page may end."""
    import lmdb

    try:
        with _cursor(Path(path)) as cursor:
            for _, value in cursor:
                # Its first and its last page.
                for end in (value[:1], value[-1:]):
                    end.tobytes()
    except lmdb.Error as error:
        return str(error)
    return None


@contextmanager
def _cursor(path: Path) -> Iterator[Any]:
    import lmdb

    from wellfed.pipeline.formats.environments import ENVIRONMENTS

    try:
        with ENVIRONMENTS:
            environment = ENVIRONMENTS.open(path)
            with environment.handle.begin(buffers=True) as transaction, transaction.cursor() as cursor:
                yield cursor
    except lmdb.Error as error:
        raise UsageError(f"LMDB must be able to read {str(path)!r}", got=str(error), remedy="Copy it again.") from error
