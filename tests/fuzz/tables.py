"""CSV, TSV, JSON Lines and Parquet, listed, saved, loaded and read."""

from __future__ import annotations

import base64
import io
import json
import shutil
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import ClassVar, Self

import pyarrow
import pyarrow.parquet

from wellfed.converters.inputs import InputOptions, parquet_check
from wellfed.converters.inputs.table import TableInput
from wellfed.pipeline.errors import SampleRejectedError, UsageError

from .target import MEBIBYTE, Case, Target

IMAGE = b"\xff\xd8 an image \xff\xd9"
_BASE64 = base64.b64encode(IMAGE).decode()

OPTIONS = (
    InputOptions(),
    InputOptions(columns=(("n", "number"), ("t", "text"), ("j", "json"))),
    InputOptions(columns=(("b", "bytes"), ("a", "array")), classes=("cat", "dog")),
    InputOptions(label_regex="(ro?)"),
    InputOptions(image_column="path", label_column="label", classes=("0", "1")),
)


def texts(delimiter: str) -> list[Case]:
    """Tables by each rule of RFC 4180, in each encoding."""
    slot = "t.csv" if delimiter == "," else "t.tsv"
    plain = "path,label,n,t,j\na.jpg,cat,1,x,{}\nb.jpg,dog,2.5,y,[1]\n"
    quoted = 'path,label,n,t,j\r\n"a.jpg","c""at",1,"two\nlines",{}\r\n\r\nb.jpg,dog,-3,"","[1]"\r\n'
    broken = 'path,label,n,t,j\na.jpg,"cat,1,x,{}\nb.jpg,dog,2,y\n'
    inside = f"bytes,label,b\n{_BASE64},0,{_BASE64}\ndata:image/jpeg;base64,{_BASE64},1,\ndata:,x,2,!\n"
    url = f"image,label\ndata:image/jpeg;base64,{_BASE64},0\ndata:x,1\n,1\n"
    numbers = "path,label,n,t,j,b,a\na.jpg,cat,x,,{,!,[1]\nb.jpg,dog, 7,y,[,,[[1],2]\n"
    files = [
        url,
        numbers,
        plain,
        quoted,
        broken,
        inside,
        "path,label\na.jpg,nan\nb.jpg,0\nc.jpg,-1\n",
        "path,path,label\na,b,c\n",
        "\n",
    ]
    made = [text.replace(",", delimiter) for text in files]
    cases = [(slot, text.encode()) for text in made]
    cases += [(slot, made[0].encode(encoding)) for encoding in ("utf-8-sig", "utf-16", "utf-16-be")]
    cases += [
        (slot, b"\xfe\xff" + made[1].encode("utf-16-be")),
        (slot, made[0].replace("cat", "chät").encode("latin-1")),
    ]
    cases += [(slot, b"\x1f\x8b\x08" + bytes(20)), (slot, "a,b\n".encode("utf-32")), (slot, b"a\0b\n1,2\n")]
    cases += [(slot, made[0].replace("cat", "ä").encode() + b"\xff,x,1,2,3\n")]
    return cases


def json_lines() -> list[Case]:
    """Objects with paths, bytes, labels and fields."""
    rows = [
        {"path": "a.jpg", "label": "cat", "n": 1, "t": "x", "j": {"k": [1, None]}, "a": [[1, 2], [3, 4]]},
        {"path": "b.jpg", "label": "dog", "n": 2.5, "t": "é", "j": [], "a": [1.5], "b": _BASE64},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    image = {"bytes": _BASE64, "path": None}
    return [
        ("t.jsonl", text.encode()),
        ("t.jsonl", b"\n" + text.encode("utf-8-sig")),
        ("t.jsonl", text.encode("utf-16")),
        ("t.jsonl", b'[]\n{"a":\nnull\n' + text.encode() + b'\xff\n"x"\n' + b'{"path": 7, "label": null}\n'),
        (
            "t.jsonl",
            json.dumps({"image": image, "label": 0}).encode() + b'\n{"image": {"path": "a.jpg"}, "label": 1}\n',
        ),
        ("t.jsonl", json.dumps({"bytes": _BASE64, "label": True}).encode() + b"\n"),
        ("t.jsonl", json.dumps({"image": f"data:image/jpeg;base64,{_BASE64}", "label": 0}).encode() + b"\n"),
        ("t.jsonl", b'{"image": "data:,x", "label": 0}\n{"image": 7, "label": 0}\n{"bytes": "!", "label": 0}\n'),
        ("t.jsonl", b'{"bytes": 7, "label": 0}\n{"bytes": "!", "label": 0}\n{"label": 0}\n'),
        ("t.jsonl", b""),
    ]


def parquets() -> list[Case]:
    """Columns of each kind, in one or several row groups, with and without compression."""
    struct = pyarrow.array([{"bytes": IMAGE, "path": "a.jpg"}, {"bytes": None, "path": "a.jpg"}, None])
    tables = [
        pyarrow.table(
            {"path": ["a.jpg", "b.jpg", None], "label": ["cat", "dog", "cat"], "n": [1, 2, 3], "t": list("xyz")}
        ),
        pyarrow.table({"image": struct, "label": [0, 1, 0], "a": [[1, 2], [3, 4], None], "b": [b"1", None, b"3"]}),
        pyarrow.table(
            {"bytes": [IMAGE, IMAGE, b""], "label": [0, 1, 1], "b": [b"1", b"2", b"3"], "a": [["x"], [], None]}
        ),
        pyarrow.table({"image": [{"bytes": IMAGE}] * 3, "label": [0, 1, 1]}),
    ]
    cases = []
    for table in tables:
        for options in ({"compression": "none"}, {"compression": "zstd", "row_group_size": 2}):
            buffer = io.BytesIO()
            pyarrow.parquet.write_table(table, buffer, **options)
            cases.append(("t.parquet", buffer.getvalue()))
    twice = pyarrow.Table.from_arrays(
        [pyarrow.array(["a.jpg"]), pyarrow.array(["x"]), pyarrow.array([1])], ["path", "path", "label"]
    )
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(twice, buffer)
    return [*cases, ("t.parquet", buffer.getvalue())]


@cache
def _valid() -> frozenset[Case]:
    return frozenset([*texts(","), *texts("\t"), *json_lines(), *parquets()])


def read(slot: str, data: bytes, folder: Path) -> None:
    """List, save, load and read; what was listed is there, and a second listing is the same."""
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(IMAGE)
    path = folder / slot
    path.write_bytes(data)
    # The valid ones by each of the options, so that their lines are reached; of the others, what the bytes choose.
    chosen = OPTIONS if (slot, data) in _valid() else (OPTIONS[zlib.crc32(data) % len(OPTIONS)],)
    for options in chosen:
        try:
            table = TableInput.list(str(path), options)
        except UsageError:
            continue
        shutil.rmtree(folder / "saved", ignore_errors=True)
        (folder / "saved").mkdir()
        table.save(folder / "saved")
        loaded = TableInput.load(str(path), folder / "saved")
        assert len(loaded) == len(table)
        for row in range(len(loaded)):
            assert loaded.name(row) == table.name(row) != b""
            if row in loaded.refused:
                assert loaded.refused[row]
                continue
            assert 0 <= int(loaded.labels[row]) < len(loaded.class_names)
            with suppress(SampleRejectedError):
                record = loaded.read(row)
                assert record.image or not any(field.type == "image" for field in loaded.fields)
                assert set(record.values) == {name for name, _ in options.columns}


class KeptReader(parquet_check.FooterReader):
    """One reader of footers for all inputs that it survives: the start of Python and pyarrow is a hundred inputs long.

    The check stays as it is: a footer still has to be survived in the child before this process reads it, so a crash of
    this process is a finding.
    """

    _living: ClassVar[Self | None] = None

    def __new__(cls) -> Self:
        return cls._living or super().__new__(cls)

    def __init__(self) -> None:
        if self._living is not self:
            super().__init__()
            type(self)._living = self

    def survives(self, footer: bytes) -> bool:
        survived = super().survives(footer)
        if not survived:
            type(self)._living = None
        return survived

    def end(self) -> None:
        if self._living is not self:
            super().end()


def read_large_groups(slot: str, data: bytes, folder: Path) -> None:
    """Parquet: every row group read both ways, whole and in sequence."""
    from wellfed.converters.inputs import table_parquet

    parquet_check.FooterReader = KeptReader  # type: ignore[misc]
    read(slot, data, folder)
    kept = table_parquet._SMALL_GROUP
    table_parquet._SMALL_GROUP = -1
    try:
        read(slot, data, folder)
    finally:
        table_parquet._SMALL_GROUP = kept


_REMOTE = "only for tables in a store, which have tests of their own"
_CHANGED = "only where the file is written again in between, which has a test of its own"
_CODE_ONLY = "only from Python values that no such file holds"
_WORDS = (
    b'"',
    b'""',
    b"\n",
    b"\r\n",
    b"\r",
    b"\0",
    b"\xff",
    b"nan",
    b"../",
    b"://",
    b"file://",
    b"data:,",
    b"\xfe\xff",
)

TARGETS = (
    Target(
        name="csv",
        run=read,
        seeds=lambda: texts(",") + texts("\t"),
        modules=(
            "wellfed.converters.inputs.table_csv",
            "wellfed.converters.inputs.table_text",
            "wellfed.converters.inputs.table_values",
        ),
        functions=("CsvTable", "TextFile", "_", "text_label", "field_value"),
        uncounted={
            "TextFile.start_of": "only for names without an ending",
            "TextFile._stat": _REMOTE,
            "TextFile._now": _REMOTE,
            "_open": "a file that cannot be opened, or lies in a store",
        },
        words=(*_WORDS, b",", b"\t"),
    ),
    Target(
        name="jsonl",
        run=read,
        seeds=json_lines,
        modules=("wellfed.converters.inputs.table_json", "wellfed.converters.inputs.table_values"),
        functions=("JsonTable", "_object", "held_image", "is_inside", "size_inside", "_base64"),
        uncounted={"return bytes(value) or None": _CODE_ONLY},
        words=(
            *_WORDS,
            b"{",
            b"}",
            b"[",
            b"]",
            b":",
            b"null",
            b"1e999",
            b"\\ud800",
            b'{"path": "a.jpg", "label": "x"}',
        ),
    ),
    Target(
        name="parquet",
        run=read_large_groups,
        seeds=parquets,
        modules=("wellfed.converters.inputs.table_parquet",),
        uncounted={
            "ParquetTable.saved": _CHANGED,
            "ParquetTable._stat": _REMOTE,
            "_pyarrow": "where pyarrow is not installed",
            "self._stores.open": _REMOTE,
        },
        words=(b"PAR1", b"\x15\x00", b"\x15\x02", b"\x19\x1c", b"\x18\x04"),
        # Arrow's pools, and pages that say how large they unpack.
        memory=512 * MEBIBYTE,
    ),
)
