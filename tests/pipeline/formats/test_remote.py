"""Datasets behind a URL, against a real S3 server on the loopback: every byte arrives, the cache keeps its bound."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import pickle
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

from wellfed.converters.run import convert
from wellfed.pipeline.cli.inspect import inspect
from wellfed.pipeline.errors import ConfigError, DamagedDatasetError, RemoteError, UsageError
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.formats.cache import DiskCache
from wellfed.pipeline.formats.download import Remote, Retry
from wellfed.pipeline.formats.readahead import RecentBlocks
from wellfed.pipeline.formats.reading import read_rows
from wellfed.pipeline.formats.remote import RemoteSource
from wellfed.pipeline.formats.webdataset import WebDatasetSource
from wellfed.pipeline.loader import DataLoader

pytest.importorskip("moto.server", reason="needs moto[server]")
s3fs = pytest.importorskip("s3fs", reason="needs s3fs")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty noisy images in several shards of about 20 kB."""
    folder = tmp_path_factory.mktemp("photos")
    noise = np.random.default_rng(0)
    for number in range(40):
        path = folder / "in" / ("cat", "dog")[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    convert(folder / "in", folder / "wds", output="webdataset", workers=1, shard_bytes=20_000)
    return folder / "wds"


@pytest.fixture(scope="module")
def url(s3_server: None, local: Path) -> str:
    store = fsspec.filesystem("s3", use_listings_cache=False)
    store.mkdir("pets")
    for path in local.iterdir():
        store.pipe_file(f"pets/wds/{path.name}", path.read_bytes())
    return "s3://pets/wds"


class Counted(Remote):
    """Counts what is asked of the store; fails as told."""

    def __init__(self, location: str) -> None:
        super().__init__(location, Retry(sleep=lambda seconds: self.slept.append(seconds)))
        self.slept: list[float] = []
        self.asked: list[tuple[str, int, int]] = []
        self.fail = 0
        self.error: Exception = ConnectionResetError(104, "reset, with a secret")

    def _piece(self, name: str, start: int, size: int) -> bytes:
        self.asked.append((name, start, size))
        if self.fail:
            self.fail -= 1
            raise self.error
        return super()._piece(name, start, size)


def images_of(local: Path) -> list[bytes]:
    source = open_source(local)
    return [source.read(row) for row in range(len(source))]


def held(cache: Path) -> int:
    return sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())


def test_all_rows_arrive_and_the_next_run_asks_for_no_shard(url: str, local: Path, tmp_path: Path):
    expected = WebDatasetSource(local)
    first = RemoteSource(url, cache_dir=tmp_path, remote=(remote := Counted(url)))
    assert len(expected.manifest.shards) > 4
    assert (len(first), first.class_names, first.location) == (40, ("cat", "dog"), url)
    assert first.fingerprint == expected.fingerprint
    assert [bytes(data) for data in read_rows(first, np.arange(39, -1, -1))] == images_of(local)[::-1]
    assert [first.name(row) for row in (0, 39)] == [expected.name(row) for row in (0, 39)]
    assert first.read_field(3, "class") == b"0"
    names = [name for name, _, _ in remote.asked]
    # the index, two files of names, and each shard once
    assert len(names) == len(set(names)) == len(first.manifest.shards) + 3
    first.close()

    again = RemoteSource(url, cache_dir=tmp_path, remote=(remote := Counted(url)))
    assert [again.read(row) for row in range(40)] == images_of(local)
    assert remote.asked == []
    again.close()


def test_a_cache_too_small_for_the_shards_reads_samples_alone(url: str, local: Path, tmp_path: Path):
    source = RemoteSource(url, cache_dir=tmp_path, cache_bytes=60_000, remote=(remote := Counted(url)))
    remote.asked.clear()
    assert [bytes(data) for data in source.read_rows(np.array([7, 30]))] == [images_of(local)[row] for row in (7, 30)]
    assert source.read(12) == images_of(local)[12]
    asked = [size for _, _, size in remote.asked]
    assert sorted(asked) == sorted(len(images_of(local)[row]) for row in (7, 30, 12))
    assert not list(source.cache_directory.glob("*.tar"))


def test_shards_make_room_for_each_other_longest_unused_first(url: str, local: Path, tmp_path: Path):
    source = RemoteSource(url, cache_dir=tmp_path, cache_bytes=100_000)
    source._by_shard = True
    shards = [shard.name for shard in source.manifest.shards]
    rows = [int(np.flatnonzero(source.index["shard"] == number)[0]) for number in range(len(shards))]
    for row in rows:
        assert source.read(row) == images_of(local)[row]
        assert source.read(rows[0]) == images_of(local)[rows[0]]
        assert held(tmp_path) <= 100_000
    there = {path.name for path in source.cache_directory.glob("*.tar")}
    assert shards[0] in there
    assert shards[-1] in there
    assert shards[1] not in there


def test_processes_share_a_bounded_cache(url: str, local: Path, tmp_path: Path):
    source = RemoteSource(url, cache_dir=tmp_path, cache_bytes=100_000)
    source._by_shard = True
    sent = pickle.dumps(source)
    assert len(sent) < 2000
    expected = images_of(local)
    most, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            try:
                most[0] = max(most[0], held(tmp_path))
            except FileNotFoundError:
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(_read_all, [(sent, seed) for seed in range(2)])
    over.set()
    watcher.join()
    assert found == [expected, expected]
    largest = max(shard.size for shard in source.manifest.shards)
    assert 0 < most[0] <= 100_000 + 2 * largest
    assert not list(tmp_path.rglob("*.part"))


def _read_all(job: tuple[bytes, int]) -> list[bytes]:
    source = pickle.loads(job[0])
    found = [b""] * len(source)
    for row in np.random.default_rng(job[1]).permutation(len(source)).tolist():
        found[row] = bytes(source.read_rows(np.array([row]))[0])
    source.close()
    return found


def test_what_a_killed_download_left_is_removed(url: str, local: Path, tmp_path: Path):
    source = RemoteSource(url, cache_dir=tmp_path)
    left = source.cache_directory / f"{source.manifest.shards[3].name}.part"
    left.write_bytes(b"half")
    assert source.read(0) == images_of(local)[0]
    assert not left.exists()


def test_a_connection_that_breaks_is_tried_again_from_where_it_broke(url: str, local: Path, tmp_path: Path):
    source = RemoteSource(url, cache_dir=tmp_path, remote=(remote := Counted(url)))
    remote.fail = 3
    assert source.read(0) == images_of(local)[0]
    assert remote.slept == [0.5, 1.0, 2.0]

    remote.fail = 5
    with pytest.raises(RemoteError, match="ConnectionResetError 104, 5 times") as caught:
        source.read(39)
    assert f"{url}/{source.manifest.shards[-1].name}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert source.read(39) == images_of(local)[39]

    # and what asking again does not mend is not asked again
    remote.slept.clear()
    remote.fail, remote.error = 1, PermissionError(13, "Access Denied")
    with pytest.raises(UsageError, match=r"PermissionError 13.*credentials"):
        source.read(20)
    assert remote.slept == []


def test_a_damaged_manifest_in_the_cache_is_fetched_again(url: str, local: Path, tmp_path: Path):
    source = RemoteSource(url, cache_dir=tmp_path)
    (source.cache_directory / "wellfed.json").write_text("{")
    assert RemoteSource(url, cache_dir=tmp_path).read(5) == images_of(local)[5]


def test_a_server_without_range_requests_is_named(tmp_path: Path):
    class Whole(Remote):
        def _store(self) -> Any:
            return SimpleNamespace(cat_file=lambda url, **part: b"0123456789")

    with pytest.raises(RemoteError, match=r"http://host/set/a\.tar.*range requests"):
        Whole("http://me:secret@host/set").part("a.tar", 2, 3)


def test_other_bytes_than_the_manifests_are_refused(url: str, local: Path, tmp_path: Path):
    shutil.copytree(local, tmp_path / "bad")
    shard = sorted((tmp_path / "bad").glob("*.tar"))[0]
    data = bytearray(shard.read_bytes())
    data[int(open_source(local).index["offset_image"][0]) + 50] ^= 1
    shard.write_bytes(data)
    store = fsspec.filesystem("s3", use_listings_cache=False)
    for path in (tmp_path / "bad").iterdir():
        store.pipe_file(f"pets/bad/{path.name}", path.read_bytes())
    source = RemoteSource("s3://pets/bad", cache_dir=tmp_path / "cache")
    with pytest.raises(DamagedDatasetError, match=f"s3://pets/bad/{shard.name}.*SHA-256"):
        source.read(0)
    assert not list((tmp_path / "cache").rglob("*.tar*"))

    # and of a sample that is fetched alone, the hash in the index tells
    alone = RemoteSource("s3://pets/bad", cache_dir=tmp_path / "small", cache_bytes=60_000)
    with pytest.raises(DamagedDatasetError, match=f"{shard.name}.*row 0.*XXH3"):
        alone.read(0)
    assert alone.read(1) == images_of(local)[1]


def test_a_dataset_that_changed_is_not_mixed_with_what_was_fetched_before(url: str, local: Path, tmp_path: Path):
    store = fsspec.filesystem("s3", use_listings_cache=False)

    def put(folder: Path) -> None:
        for path in folder.iterdir():
            store.pipe_file(f"pets/changing/{path.name}", path.read_bytes())

    put(local)
    before = RemoteSource("s3://pets/changing", cache_dir=tmp_path / "cache")
    assert before.read(0) == images_of(local)[0]
    photo = io.BytesIO()
    Image.new("RGB", (9, 9), "red").save(photo, "PNG")
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "cat" / "x.png").write_bytes(photo.getvalue())
    convert(tmp_path / "in", tmp_path / "new", output="webdataset", workers=1)
    put(tmp_path / "new")
    after = RemoteSource("s3://pets/changing", cache_dir=tmp_path / "cache")
    assert after.fingerprint != before.fingerprint
    assert after.read(0) == photo.getvalue()
    assert after.cache_directory != before.cache_directory


@pytest.mark.parametrize("order", ["global", "sharded"])
@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_a_loader_over_a_url_gives_what_one_over_the_folder_gives(
    order: str, backend: str, url: str, local: Path, tmp_path: Path
):
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "order": order, "seed": 4, "image_size": 16}
    options |= {"augment": "train", "num_workers": 2, "backend": backend}
    fields = ("image", "index", "class")
    with (
        DataLoader(local, fields=fields, **options) as near,
        DataLoader(url, fields=fields, cache_dir=tmp_path, cache_bytes=10**6, **options) as far,
    ):
        for _ in range(2):
            for one, other in zip(near, far, strict=True):
                assert isinstance(one, dict)
                assert isinstance(other, dict)
                assert all(one[name].equal(other[name]) for name in fields)
    assert not [thread for thread in threading.enumerate() if thread.name == "wellfed-fetch"]


def test_shards_that_are_announced_are_fetched_in_the_background(url: str, tmp_path: Path):
    source = RemoteSource(url, cache_dir=tmp_path)
    source.will_need(np.array([39, 0]), RecentBlocks())
    for thread in [thread for thread in threading.enumerate() if thread.name == "wellfed-fetch"]:
        thread.join()
    wanted = {source.manifest.shards[int(source.index["shard"][row])].name for row in (0, 39)}
    assert {path.name for path in source.cache_directory.glob("*.tar")} == wanted
    source.close()


def test_sharded_order_needs_a_cache_for_the_shards_in_use(url: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="cache_bytes must hold the shards"):
        DataLoader(url, shuffle=True, order="sharded", cache_dir=tmp_path, cache_bytes=60_000)


def test_what_is_no_dataset_to_read_from_a_url_says_what_to_do(url: str, local: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=r"without wellfed\.json"):
        open_source("s3://pets/nothing", cache_dir=tmp_path)
    manifest = json.loads((local / "wellfed.json").read_text())
    fsspec.filesystem("s3").pipe_file("pets/lmdb/wellfed.json", json.dumps({**manifest, "kind": "lmdb"}).encode())
    with pytest.raises(UsageError, match="local disk"):
        open_source("s3://pets/lmdb", cache_dir=tmp_path)
    with pytest.raises(UsageError, match="behind a URL"):
        open_source(local, cache_dir=tmp_path)
    with pytest.raises(UsageError, match="given by its URL"):
        DataLoader(open_source(local), cache_bytes=5)
    with pytest.raises(ConfigError, match="cache_bytes"):
        open_source(url, cache_dir=tmp_path, cache_bytes=0)


def test_the_default_bound_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(1000))
    assert DiskCache(tmp_path, None).limit == 800
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(10**15))
    assert DiskCache(tmp_path, None).limit == 100 * 10**9


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_the_manifest_names_the_folder(url: str, local: Path, tmp_path: Path):
    source = RemoteSource(url, cache_dir=tmp_path)
    assert source.cache_directory.name == hashlib.sha256((local / "wellfed.json").read_bytes()).hexdigest()[:32]


def test_the_command_line_shows_a_dataset_behind_a_url(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    inspect(url, as_json=True, html=None)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["location"], shown["samples"], shown["kind"]) == (url, 40, "webdataset")
    # the manifest and the index, and no shard
    assert sorted(path.name for path in tmp_path.glob("wellfed/*/wellfed.*")) == ["wellfed.index.npy", "wellfed.json"]
    assert not list(tmp_path.rglob("*.tar"))
