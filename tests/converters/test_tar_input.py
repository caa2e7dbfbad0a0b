"""Tars as input: formats.md's rules for other people's tars, line by line."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import webdataset
import zstandard

from wellfed.converters.inputs import Field, InputOptions
from wellfed.converters.inputs.tar import TarInput, matches
from wellfed.pipeline.errors import SampleRejectedError, UsageError

Entry = tuple[str, bytes] | tarfile.TarInfo


def write_tar(path: Path, entries: list[Entry], format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
                continue
            member = tarfile.TarInfo(entry[0])
            member.size = len(entry[1])
            tar.addfile(member, io.BytesIO(entry[1]))
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def listed(path: Path | str, **options: object) -> TarInput:
    return TarInput.list(str(path), InputOptions(**options))  # type: ignore[arg-type]


def names(source: TarInput) -> list[bytes]:
    return [source.name(row) for row in range(len(source))]


SHARD: list[Entry] = [
    ("0001.jpg", b"first"),
    ("0001.cls", b"1"),
    ("0002.jpg", b"second"),
    ("0002.cls", b"0"),
]


def test_samples_are_members_of_one_key(tmp_path: Path) -> None:
    source = listed(write_tar(tmp_path / "a.tar", SHARD))
    assert names(source) == [b"0001.jpg", b"0002.jpg"]
    assert source.labels.tolist() == [1, 0]
    assert source.sizes.tolist() == [5, 6]
    assert source.class_names == ("0", "1")
    assert source.read(1).image == b"second"
    assert source.fields == (Field("image", "image"), Field("class", "class"))


@pytest.mark.parametrize(
    ("ending", "pack"),
    [(".tar.gz", gzip.compress), (".tar.bz2", bz2.compress), (".tar.zst", zstandard.compress)],
)
def test_compressed_tars_read_alike(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    plain = write_tar(tmp_path / "a.tar", SHARD)
    packed = tmp_path / f"b{ending}"
    packed.write_bytes(pack(plain.read_bytes()))
    source = listed(packed)
    assert source.fingerprint == listed(plain).fingerprint
    saved = tmp_path / "saved"
    saved.mkdir()
    source.save(saved)
    loaded = TarInput.load(str(packed), saved)
    assert [loaded.read(row).image for row in (1, 0)] == [b"second", b"first"]
    # An unsaved one reads too, as a look at a few samples does.
    assert source.read(0).image == b"first"


def test_several_frames_and_members_of_compression(tmp_path: Path) -> None:
    data = write_tar(tmp_path / "a.tar", SHARD).read_bytes()
    (tmp_path / "a.tar.zst").write_bytes(zstandard.compress(data[:700]) + zstandard.compress(data[700:]))
    (tmp_path / "a.tgz").write_bytes(gzip.compress(data[:700]) + gzip.compress(data[700:]))
    for name in ("a.tar.zst", "a.tgz"):
        assert names(listed(tmp_path / name)) == [b"0001.jpg", b"0002.jpg"]


def test_braces_globs_folders_and_lists_of_files(tmp_path: Path) -> None:
    for number in range(3):
        write_tar(tmp_path / f"part-{number}.tar", [(f"{number}.jpg", b"x"), (f"{number}.cls", b"0")])
    (tmp_path / "part-0.idx").write_text("beside")
    wanted = [b"0.jpg", b"1.jpg", b"2.jpg"]
    for location in ("part-{0..2}.tar", "part-*.tar", ".", "part-0.tar::part-{1,2}.tar"):
        where = "::".join(str(tmp_path / part) for part in location.split("::"))
        assert matches(where), location
        assert names(listed(where)) == wanted, location
    for location, words in (
        ("part-{0..3}.tar", "does not exist"),
        ("other-*.tar", "match at least one"),
        ("part-0.tar::" + str(tmp_path / "part-0.tar"), "once"),
        ("part-{0..1.tar", "balanced"),
    ):
        with pytest.raises(UsageError, match=words):
            listed(tmp_path / location)


def test_a_folder_with_folders_is_no_set_of_tars(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", SHARD)
    (tmp_path / "cat").mkdir()
    assert not matches(str(tmp_path))


def test_key_is_up_to_the_first_dot_after_the_last_slash(tmp_path: Path) -> None:
    entries: list[Entry] = [("v1.0/a.JPG", b"x"), ("v1.0/a.seg.png", b"mask"), ("v1.0/a.CLS", b"7")]
    source = listed(write_tar(tmp_path / "a.tar", entries))
    assert names(source) == [b"v1.0/a.JPG"]
    assert source.labels.tolist() == [7]
    assert source.read(0).values == {"seg_png": b"mask"}
    # as webdataset groups them
    [sample] = webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)
    assert sample["__key__"] == "v1.0/a"
    assert {"jpg", "seg.png", "cls"} <= set(sample)


def test_metadata_hidden_and_system_files_are_skipped_and_counted(tmp_path: Path) -> None:
    extra: list[Entry] = [
        ("__shard__.json", b"{}"),
        ("__meta__", b"1"),
        ("._0001.jpg", b"x"),
        (".hidden/a.jpg", b"x"),
        ("Thumbs.db", b"x"),
        ("__MACOSX/0001.jpg", b"x"),
    ]
    source = listed(write_tar(tmp_path / "a.tar", [*extra[:3], *SHARD, *extra[3:]]))
    assert names(source) == [b"0001.jpg", b"0002.jpg"]
    # "__shard__.json" is no `__x__`, and only one sample has json alone.
    assert source.skipped == {
        "metadata": 1,
        "apple_double": 1,
        "hidden": 1,
        "thumbs_db": 1,
        "macosx": 1,
        "member .json": 1,
    }


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_names_of_any_letters(tmp_path: Path, format: int) -> None:
    stems = ["d" * 150 + "/" + "n" * 120, "umlaut-ä", "a b'\"\n", "x" * 99]
    entries: list[Entry] = [(f"{stem}.{ext}", b"1") for stem in stems for ext in ("jpg", "cls")]
    source = listed(write_tar(tmp_path / "a.tar", entries, format))
    assert names(source) == [f"{stem}.jpg".encode() for stem in stems]
    assert dict(source.refused) == {}
    assert [source.read(row).image for row in range(4)] == [b"1"] * 4


def test_names_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    entries: list[Entry] = [("caf\udce9.jpg", b"x"), ("caf\udce9.cls", b"0")]
    assert names(listed(write_tar(tmp_path / "a.tar", entries))) == [b"caf\xe9.jpg"]


def test_float_times_of_webdatasets_own_writer(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "k/0", "jpg": b"x", "cls": 3, "json": {"a": 1}})
    source = listed(tmp_path / "a.tar")
    assert (names(source), source.labels.tolist()) == ([b"k/0.jpg"], [3])
    assert source.read(0).values == {"metadata": {"a": 1}}


def test_members_apart_are_joined(tmp_path: Path) -> None:
    entries = [SHARD[0], SHARD[2], SHARD[1], SHARD[3]]
    source = listed(write_tar(tmp_path / "a.tar", entries))
    assert names(source) == [b"0001.jpg", b"0002.jpg"]
    assert source.labels.tolist() == [1, 0]
    assert dict(source.refused) == {}


def test_two_files_of_one_name_are_both_kept(tmp_path: Path) -> None:
    entries: list[Entry] = [("a.jpg", b"1"), ("a.cls", b"0"), ("a.JPG", b"2"), ("a.cls", b"1")]
    source = listed(write_tar(tmp_path / "a.tar", entries))
    assert [source.read(row).image for row in range(len(source))] == [b"1", b"2"]
    assert source.labels.tolist() == [0, 1]


def test_equal_keys_of_two_shards_are_two_samples(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", SHARD)
    write_tar(tmp_path / "b.tar", SHARD)
    assert len(listed(tmp_path / "{a,b}.tar")) == 4


def test_partial_samples_are_refused_not_yielded(tmp_path: Path) -> None:
    entries: list[Entry] = [
        *[(f"{number}.{ext}", b"0") for number in range(4) for ext in ("jpg", "cls", "txt")],
        ("no-text.jpg", b"0"),
        ("no-text.cls", b"0"),
        ("no-image.cls", b"0"),
        ("no-image.txt", b"0"),
        ("no-label.jpg", b"0"),
        ("no-label.txt", b"0"),
    ]
    source = listed(write_tar(tmp_path / "a.tar", entries))
    assert len(source) == 7
    assert source.refused == {
        4: "the sample has no text",
        5: "the sample has no image",
        6: "the sample has no label",
    }


def test_paths_that_lead_out_links_and_devices_are_refused(tmp_path: Path) -> None:
    entries: list[Entry] = [
        *SHARD,
        ("/etc/a.jpg", b"x"),
        ("../b.jpg", b"x"),
        ("d/../../c.jpg", b"x"),
        special("link.jpg", tarfile.SYMTYPE, "0001.jpg"),
        special("hard.jpg", tarfile.LNKTYPE, "0001.jpg"),
        special("device.jpg", tarfile.BLKTYPE),
        special("pipe.jpg", tarfile.FIFOTYPE),
        ("empty.jpg", b""),
        ("empty.cls", b"0"),
    ]
    source = listed(write_tar(tmp_path / "a.tar", entries))
    outside = "a member's path must not be absolute or lead out of the archive"
    regular = "a member must be a regular file; got "
    assert source.refused == {
        2: outside,
        3: outside,
        4: outside,
        5: regular + "a symbolic link",
        6: regular + "a hard link",
        7: regular + "a block device",
        8: regular + "a pipe",
        9: "zero bytes",
    }
    assert (source.read(0).image, source.read(1).image) == (b"first", b"second")


def test_sparse_files_are_refused_and_passed_over(tmp_path: Path) -> None:
    sparse = tmp_path / "hole.jpg"
    with open(sparse, "wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    (tmp_path / "z.jpg").write_bytes(b"z")
    for format in ("gnu", "posix"):
        command = f"tar -C {tmp_path} --format={format} -S -cf {tmp_path}/{format}.tar hole.jpg z.jpg"
        assert os.system(command) == 0
        source = listed(tmp_path / f"{format}.tar", label_regex="([a-z]+)[.]jpg")
        [(row, reason)] = source.refused.items()
        assert (row, "sparse" in reason) == (0, True)
        assert source.read(1).image == b"z"


def test_labels_of_text_and_of_mixed_types(tmp_path: Path) -> None:
    entries: list[Entry] = [("a.jpg", b"x"), ("a.cls", b"dog\n"), ("b.jpg", b"x"), ("b.cls", b"cat")]
    source = listed(write_tar(tmp_path / "a.tar", entries))
    assert (source.class_names, source.labels.tolist()) == (("cat", "dog"), [1, 0])
    with pytest.raises(UsageError, match="all text or all whole numbers"):
        listed(write_tar(tmp_path / "b.tar", [*entries, ("c.jpg", b"x"), ("c.cls", b"3")]))


def test_labels_that_are_none(tmp_path: Path) -> None:
    bad = [b"", b" ", b"-1", b"\xff", b"x" * 5000]
    entries: list[Entry] = [("ok.jpg", b"x"), ("ok.cls", b"cat")]
    for number, label in enumerate(bad):
        entries += [(f"{number}.jpg", b"x"), (f"{number}.cls", label)]
    del entries[6:8]  # a negative number would be another type
    source = listed(write_tar(tmp_path / "a.tar", entries))
    assert source.labels.tolist() == [0, -1, -1, -1, -1]
    assert sorted(source.refused) == [1, 2, 3, 4]


def test_a_json_member_gives_label_and_fields(tmp_path: Path) -> None:
    documents = [
        {"label": "cat", "score": 1.5, "tags": ["a"]},
        {"label": "dog", "score": "high"},
        {"score": 2},
        {"label": 0.5},
    ]
    entries: list[Entry] = []
    for number, document in enumerate(documents):
        entries += [(f"{number}.jpg", b"x"), (f"{number}.json", json.dumps(document).encode())]
    path = write_tar(tmp_path / "a.tar", [*entries, ("4.jpg", b"x"), ("4.json", b"{broken")])
    source = listed(path, label_column="label", columns=(("score", "number"),))
    assert source.class_names == ("cat", "dog")
    assert source.fields[2:] == (Field("score", "number"),)
    assert source.refused == {
        2: "the json member has no 'label'",
        3: "the label is a fraction, or not a number",
        4: "the json member is no JSON",
    }
    assert source.read(0).values == {"score": 1.5}
    with pytest.raises(SampleRejectedError, match="score must be number"):
        source.read(1)
    with pytest.raises(UsageError, match=r"label column 'labels\.x'.*json"):
        listed(path, label_column="labels.x")


def test_values_that_do_not_parse_are_refused_when_read(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.array([[1, 2]]))
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}]), allow_pickle=True)
    entries: list[Entry] = []
    for number, (text, npy) in enumerate(
        [(b"hi", array), (b"\xff", array), (b"hi", pickled), (b"hi", io.BytesIO(b"x"))]
    ):
        entries += [(f"{number}.jpg", b"x"), (f"{number}.txt", text), (f"{number}.npy", npy.getvalue())]
        entries += [(f"{number}.cls", b"0"), (f"{number}.bin", b"\0\1")]
    source = listed(write_tar(tmp_path / "a.tar", entries))
    values = source.read(0).values
    assert values["array"].tolist() == [[1, 2]]
    assert (values["text"], values["data"]) == ("hi", b"\0\1")
    for row in (1, 2, 3):
        with pytest.raises(SampleRejectedError):
            source.read(row)


def test_class_folders(tmp_path: Path) -> None:
    entries: list[Entry] = [
        ("./dog/a/1.jpg", b"1"),
        ("./cat/1.png", b"2"),
        ("./cat/1.jpg", b"3"),
        ("./README", b"4"),
        special("./empty", tarfile.DIRTYPE),
    ]
    source = listed(write_tar(tmp_path / "a.tar", entries))
    assert source.class_names == ("cat", "dog", "empty")
    assert source.labels.tolist() == [1, 0, 0]
    assert [source.read(row).image for row in range(3)] == [b"1", b"2", b"3"]
    assert (source.skipped, source.notes) == ({"outside_class_folders": 1}, {"empty_class": 1})


def test_one_folder_around_all_class_folders_is_no_class(tmp_path: Path) -> None:
    entries: list[Entry] = [("photos/dog/1.jpg", b"1"), ("photos/cat/2.jpg", b"2")]
    source = listed(write_tar(tmp_path / "a.tar", entries))
    assert source.class_names == ("cat", "dog")
    assert names(source) == [b"photos/dog/1.jpg", b"photos/cat/2.jpg"]


@pytest.mark.parametrize("label", ["d/im.000.cls", "d/im.000.CLS", "d/im.cls2", "d/im.label", "d/im.0.class"])
def test_unseen_labels_do_not_give_way_to_class_folders(tmp_path: Path, label: str) -> None:
    path = write_tar(tmp_path / "a.tar", [("d/im.000.JPG", b"1"), (label, b"3"), ("d/im.001.JPG", b"2")])
    with pytest.raises(UsageError) as caught:
        listed(path)
    said = str(caught.value)
    assert repr(label) in said
    assert "'d/im'" in said
    assert "the first dot" in said
    assert "--label-regex" in said
    assert listed(path, label_regex="([a-z])/").class_names == ("d",)


def test_a_label_member_that_is_a_link_is_unseen_too(tmp_path: Path) -> None:
    entries: list[Entry] = [("d/1.jpg", b"1"), special("d/1.cls", tarfile.SYMTYPE, "x")]
    with pytest.raises(UsageError, match="look like labels"):
        listed(write_tar(tmp_path / "a.tar", entries))


def test_several_images_of_a_sample_need_a_choice(tmp_path: Path) -> None:
    entries: list[Entry] = [("a.left.jpg", b"1"), ("a.jpg", b"2"), ("a.png", b"3"), ("a.cls", b"0")]
    path = write_tar(tmp_path / "a.tar", entries)
    assert listed(path).refused == {0: "the sample has more than one image: jpg, png"}
    chosen = listed(path, image_column="png")
    assert chosen.read(0).image == b"3"
    assert dict(chosen.refused) == {}
