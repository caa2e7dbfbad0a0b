"""How large a tar gets: what docs/converting.md says of --shard-size, tried at its edges."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

from wellfed.converters.run import convert

LIMIT = 20_000


def tar_sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(folder.glob("*.tar"))]


def test_limit_holds_for_image_and_label_with_paths_of_any_usual_length(
    tmp_path: Path, make_jpeg: Callable[..., bytes]
) -> None:
    # given class and path of 480 letters together, the most that is promised
    folder = tmp_path / "photos" / ("c" * 100)
    folder.mkdir(parents=True)
    for number in range(12):
        (folder / "d" / ("n" * 120)).mkdir(parents=True, exist_ok=True)
        name = f"d/{'n' * 120}/{number:02d}{'x' * 148}.jpg"
        assert len(f"{'c' * 100}{'c' * 100}/{name}") <= 480
        (folder / name).write_bytes(make_jpeg(number, 20 + 8 * number, 30))
    convert(tmp_path / "photos", tmp_path / "out", output="webdataset", shard_bytes=LIMIT)
    sizes = tar_sizes(tmp_path / "out")
    assert len(sizes) > 2
    assert max(sizes) <= LIMIT


def test_sample_larger_than_the_limit_is_alone(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> None:
    (tmp_path / "photos" / "c").mkdir(parents=True)
    for number, width in enumerate((20, 20, 400, 20, 20)):
        (tmp_path / "photos" / "c" / f"{number}.jpg").write_bytes(make_jpeg(number, width, 100))
    convert(tmp_path / "photos", tmp_path / "out", output="webdataset", shard_bytes=LIMIT)
    held = []
    for path in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(path) as tar:
            held.append([int(name[:10]) for name in tar.getnames() if name.endswith(".jpg")])
    assert held == [[0, 1], [2], [3, 4]]


def test_further_fields_come_on_top_by_their_bytes_and_one_kib_each(
    tmp_path: Path, make_jpeg: Callable[..., bytes]
) -> None:
    # given a tar whose samples have 3000 bytes beside the image
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(10):
            for extension, data in (("jpg", make_jpeg(number)), ("cls", b"0"), ("bin", os.urandom(3000))):
                member = tarfile.TarInfo(f"{number}.{extension}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    convert(tmp_path / "a.tar", tmp_path / "out", output="webdataset", shard_bytes=LIMIT)
    for path in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(path) as tar:
            extra = [member.size + 1024 for member in tar if member.name.endswith(".bin")]
        assert path.stat().st_size <= LIMIT + sum(extra)
