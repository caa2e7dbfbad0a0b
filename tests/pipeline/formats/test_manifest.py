from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellfed.pipeline.errors import DamagedDatasetError, SchemaVersionError, WellfedError
from wellfed.pipeline.formats import Manifest, Shard

A, B = "a" * 64, "b" * 64

GOOD: dict[str, Any] = {
    "class_names": ["cat", "\udcff dog"],
    "field_types": {
        "image": {"type": "image", "ext": None},
        "class": {"type": "class", "ext": "cls"},
        "json": {"type": "json", "ext": "json"},
    },
    "fields": ["image", "class", "json"],
    "files": {"wellfed.index.npy": A},
    "kind": "webdataset",
    "notes": {"grayscale": 2},
    "options": {"image": "keep"},
    "samples": 3,
    "schema": "wellfed-dataset",
    "schema_version": 1,
    "shards": [
        {"name": "x-000000.tar", "samples": 2, "sha256": A, "size": 10240},
        {"name": "x-000001.tar", "samples": 1, "sha256": B, "size": 10240},
    ],
    "source": {"found": 4, "rejected": 1},
    "streams": 24,
    "tool_version": "0.1.0",
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(A),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)


def _shard(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "shards": [{**GOOD["shards"][0], **changes}, GOOD["shards"][1]]}


def test_json_goes_in_and_out_unchanged(tmp_path: Path) -> None:
    text = json.dumps(GOOD, sort_keys=True, indent=1) + "\n"
    (tmp_path / "wellfed.json").write_text(text)
    manifest = Manifest.load(tmp_path)
    assert manifest.samples == 3
    assert manifest.class_names == ("cat", "\udcff dog")
    assert manifest.shards[1] == Shard(name="x-000001.tar", samples=1, size=10240, sha256=B)
    assert manifest.dump() == text
    assert text.isascii()


def test_a_manifest_written_before_there_were_streams_has_sixteen() -> None:
    older = {name: value for name, value in GOOD.items() if name != "streams"}
    assert Manifest.from_dict(older).streams == 16


@pytest.mark.parametrize("streams", [0, -1, 65537, 1.5, True, "16", None])
def test_streams_are_a_number_from_1(streams: Any) -> None:
    with pytest.raises(DamagedDatasetError, match="streams"):
        Manifest.from_dict({**GOOD, "streams": streams})


def test_the_fingerprint_tells_names_apart_however_they_are_split() -> None:
    def fingerprint(names: list[str]) -> str:
        return Manifest.from_dict({**GOOD, "class_names": names}).fingerprint

    assert len({fingerprint(names) for names in ([], ["ab"], ["a", "b"], ["b", "a"], ["a", "b\n"])}) == 5
    assert fingerprint(["a", "b"]) == fingerprint(["a", "b"])
    assert Manifest.from_dict({**GOOD, "tool_version": "9", "options": {}}).fingerprint == fingerprint(
        GOOD["class_names"]
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "must be a JSON object"),
        ({}, "schema must be"),
        ({**GOOD, "schema": "wids"}, "schema must be"),
        ({**GOOD, "schema_version": 0}, "schema_version"),
        ({**GOOD, "schema_version": True}, "schema_version"),
        ({**GOOD, "schema_version": "1"}, "schema_version"),
        ({**GOOD, "colour": 1}, "colour"),
        ({key: value for key, value in GOOD.items() if key != "notes"}, "no notes"),
        ({**GOOD, "kind": "zip"}, "kind must be"),
        ({**GOOD, "kind": ["lmdb"]}, "kind must be"),
        ({**GOOD, "samples": -1}, "samples must be a whole number"),
        ({**GOOD, "samples": 4}, "add up"),
        ({**GOOD, "samples": 3.0}, "samples must be a whole number"),
        ({**GOOD, "class_names": "cat"}, "class_names must be a list"),
        ({**GOOD, "class_names": ["cat", "cat"]}, "must all differ"),
        ({**GOOD, "class_names": ["cat", ""]}, "non-empty"),
        ({**GOOD, "class_names": ["cat", 2]}, "non-empty texts"),
        ({**GOOD, "fields": ["Image"]}, "lower-case word"),
        ({**GOOD, "fields": [["image"]]}, "non-empty texts"),
        ({**GOOD, "shards": {}}, "shards must be a list"),
        ({**GOOD, "shards": [1]}, "shard 0 of the manifest must be a JSON object"),
        (_shard(md5=""), "md5"),
        (_shard(samples=-1), "samples of shard"),
        (_shard(size=1 << 63), "size of shard"),
        (_shard(size=None), "size of shard"),
        (_shard(sha256="A" * 64), "sha256"),
        (_shard(sha256=A + "\n"), "sha256"),
        (_shard(name="x-000001.tar"), "must all differ"),
        (_shard(name="../x.tar"), "plain file name"),
        (_shard(name=".."), "plain file name"),
        (_shard(name="/etc/passwd"), "plain file name"),
        (_shard(name="a\\b"), "plain file name"),
        (_shard(name="a\0b"), "plain file name"),
        (_shard(name=""), "plain file name"),
        (_shard(name=7), "plain file name"),
        ({**GOOD, "files": {"../up": A}}, "plain file name"),
        ({**GOOD, "files": {"up": "short"}}, "sha256"),
        ({**GOOD, "files": []}, "files must be a JSON object"),
        ({**GOOD, "options": None}, "options must be a JSON object"),
        ({**GOOD, "notes": {"grayscale": -2}}, "count of note"),
        ({**GOOD, "tool_version": 1}, "tool_version"),
    ],
)
def test_what_breaks_a_rule_is_named_with_the_file(tmp_path: Path, data: Any, message: str) -> None:
    (tmp_path / "wellfed.json").write_text(json.dumps(data))
    with pytest.raises(DamagedDatasetError) as caught:
        Manifest.load(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.remedy


def test_a_newer_schema_is_told_from_damage(tmp_path: Path) -> None:
    (tmp_path / "wellfed.json").write_text(json.dumps({**GOOD, "schema_version": 7, "unheard_of": 1}))
    with pytest.raises(SchemaVersionError, match=r"got 7.*Upgrade wellfed"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"1" * 10_000, json.dumps(GOOD).encode("utf-16")]
)
def test_what_is_no_json_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "wellfed.json").write_bytes(content)
    with pytest.raises(DamagedDatasetError, match=r"wellfed\.json"):
        Manifest.load(tmp_path)


def test_a_missing_manifest_and_a_folder_in_its_place_are_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedDatasetError, match="No such file"):
        Manifest.load(tmp_path)
    (tmp_path / "wellfed.json").mkdir()
    with pytest.raises(DamagedDatasetError, match="Is a directory"):
        Manifest.load(tmp_path)


def test_a_long_wrong_value_is_not_printed_whole() -> None:
    with pytest.raises(DamagedDatasetError) as caught:
        Manifest.from_dict({**GOOD, "class_names": [1] * 100_000})
    assert len(str(caught.value)) < 500


@settings(max_examples=150, deadline=None)
@given(data=json_values)
def test_arbitrary_json_never_crashes_the_reader(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    directory = tmp_path_factory.getbasetemp() / "fuzz"
    directory.mkdir(exist_ok=True)
    (directory / "wellfed.json").write_text(json.dumps(data))
    with pytest.raises(WellfedError) as caught:
        Manifest.load(directory)
    assert str(caught.value)


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_a_manifest_with_any_part_replaced_loads_or_says_why(data: st.DataObject) -> None:
    broken = json.loads(json.dumps(GOOD))
    target: Any = broken
    while True:
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        if not isinstance(target[key], (dict, list)) or not target[key] or data.draw(st.booleans()):
            break
        target = target[key]
    if isinstance(target, dict) and data.draw(st.booleans()):
        key = data.draw(st.text())
    target[key] = data.draw(json_values)
    try:
        manifest = Manifest.from_dict(broken)
    except WellfedError:
        return
    # The text of whatever loads is stable, and its identity can be computed.
    assert Manifest.from_dict(json.loads(manifest.dump())).dump() == manifest.dump()
    assert len(manifest.fingerprint) == 64
