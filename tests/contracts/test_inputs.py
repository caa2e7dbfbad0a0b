"""What every kind of input promises, tried on the same twelve images in each kind."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wellfed.converters.inputs import Input, Record, kinds, list_input, open_saved
from wellfed.converters.layout import Layout
from wellfed.converters.run import convert
from wellfed.converters.selection import SelectionOptions
from wellfed.converters.verify import verify
from wellfed.pipeline.errors import UsageError
from wellfed.pipeline.formats import open_source


def hashed(images: Iterable[tuple[str, bytes | None]]) -> Counter[tuple[str, str]]:
    """Class names with the SHA-256 of the images."""
    return Counter((name, hashlib.sha256(data or b"").hexdigest()) for name, data in images)


def labelled(source: Input) -> list[tuple[str, bytes | None]]:
    return [(source.class_names[source.labels[row]], source.read(row).image) for row in range(len(source))]


@pytest.fixture
def source(built: Any) -> Input:
    return list_input(built.location, built.options)


def test_every_kind_has_a_builder(input_builders: Mapping[str, Any]) -> None:
    assert set(kinds()) <= {name.partition(":")[0] for name in input_builders}


def test_every_image_comes_out_with_its_class(source: Input, built: Any) -> None:
    assert hashed(labelled(source)) == hashed(built.images)
    assert set(source.class_names) >= {name for name, _ in built.images}
    assert dict(source.refused) == {}


def test_columns_have_a_row_for_each_sample(source: Input) -> None:
    assert isinstance(source, Input)
    assert source.labels.shape == source.sizes.shape == (len(source),)
    assert source.labels.dtype == np.int64
    names = [source.name(row) for row in range(len(source))]
    assert all(isinstance(name, bytes) and name for name in names)
    for row in range(len(source)):
        record = source.read(row)
        assert isinstance(record, Record)
        assert set(record.values) == {field.name for field in source.fields} - {"image", "class"}
    Layout.of(source.fields)


def test_listing_again_gives_the_same(source: Input, built: Any) -> None:
    again = list_input(built.location, built.options)
    assert (again.fingerprint, again.state) == (source.fingerprint, source.state)
    assert [again.name(row) for row in range(len(again))] == [source.name(row) for row in range(len(source))]


def test_the_kind_is_found_out_or_told(source: Input, built: Any, input_kind: str) -> None:
    kind = input_kind.partition(":")[0]
    assert source.kind == kind
    if built.detected:
        assert list_input(built.location, replace(built.options, kind=None)).kind == kind
    assert list_input(built.location, replace(built.options, kind=kind)).kind == kind


def test_a_saved_listing_reads_the_same_in_any_order(source: Input, built: Any, tmp_path: Path) -> None:
    source.save(tmp_path)
    loaded = open_saved(source.kind, built.location, tmp_path)
    assert (loaded.fingerprint, loaded.state) == (source.fingerprint, source.state)
    assert loaded.fields == source.fields
    assert loaded.class_names == source.class_names
    for row in reversed(range(len(source))):
        assert loaded.name(row) == source.name(row)
        assert loaded.read(row).image == source.read(row).image
    assert loaded.labels.tolist() == source.labels.tolist()


def test_options_pickle(built: Any) -> None:
    assert pickle.loads(pickle.dumps(built.options)) == built.options


@pytest.mark.parametrize("output", ["webdataset", "lmdb"])
def test_conversion_stores_the_same_bytes_and_labels(built: Any, tmp_path: Path, output: Any) -> None:
    result = convert(built.location, tmp_path / "out", output=output, shard_samples=5, workers=1, input=built.options)
    assert (result.stored, result.rejected, result.found) == (len(built.images), 0, len(built.images))
    stored = open_source(tmp_path / "out")
    images = [(stored.class_names[int(stored.index["label"][row])], stored.read(row)) for row in range(len(stored))]
    stored.close()
    assert hashed(images) == hashed(built.images)
    assert verify(tmp_path / "out", deep=True, workers=1).problems == ()
    # Nothing published depends on where the source lies.
    place = str(Path(built.location).parent).encode()
    for path in (tmp_path / "out").iterdir():
        # "module:function" lies nowhere.
        assert place == b"." or place not in path.read_bytes(), path.name


def test_given_classes_decide_labels_and_refuse_others(source: Input, built: Any) -> None:
    if source.class_names != ("bird", "cat", "dog"):
        pytest.skip("this kind's classes are the source's own")
    chosen = list_input(built.location, replace(built.options, classes=("dog", "bird", "fish")))
    assert chosen.class_names == ("dog", "bird", "fish")
    assert Counter(chosen.labels.tolist()) == {0: 4, 1: 4, -1: 4}
    assert len(chosen.refused) == 4
    assert all("cat" in reason for reason in chosen.refused.values())


def test_selection_is_by_name(source: Input, built: Any, tmp_path: Path) -> None:
    name = source.name(3).decode()
    selection = SelectionOptions(include=(name,))
    result = convert(
        built.location, tmp_path / "out", output="webdataset", input=built.options, selection=selection, workers=1
    )
    assert result.found == 1
    assert result.skipped["excluded"] == len(source) - 1


def test_what_is_not_there_is_an_error(built: Any, input_kind: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        list_input(str(tmp_path / "missing"), replace(built.options, kind=input_kind.partition(":")[0]))
