"""The page of a dataset: what it shows, that it fetches nothing, and that nothing in a name can break out of it."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wellfed.converters import convert
from wellfed.pipeline.cli.main import main
from wellfed.pipeline.formats import open_source
from wellfed.pipeline.formats.summary import summarize
from wellfed.pipeline.report import render_dataset
from wellfed.pipeline.report.dataset import _spread_rows
from wellfed.pipeline.report.histogram import binned

HOSTILE = "<script>alert('x')</script>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 images of "cat" and 3 of a class that is no friend, one of them text."""
    root = tmp_path_factory.mktemp("page") / "photos"
    for name, count in (("cat", 9), (HOSTILE.replace("/", ""), 2)):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (40 + 10 * number, 30), (250, 10, 10)).save(root / name / f"{number}.jpg")
    (root / HOSTILE.replace("/", "") / "\n2.jpg").write_text("no image")
    return root


@pytest.fixture(scope="module")
def stored(folder: Path) -> Path:
    convert(folder, folder.parent / "wds", output="webdataset", workers=1)
    return folder.parent / "wds"


def page_of(path: Path) -> str:
    source = open_source(path)
    return render_dataset(source, summarize(source))


def test_a_converted_dataset_is_shown_with_its_pictures(stored: Path) -> None:
    page = page_of(stored)
    # then each of the 11 images is there as a small picture of its own colour
    pictures = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    assert len(pictures) == 11
    with Image.open(io.BytesIO(base64.b64decode(pictures[-1]))) as image:
        red, green, blue = np.asarray(image)[5, 5]
        assert (red > 240, green < 20, blue < 20) == (True, True, True)
    for text in (
        "11",
        "9 (81.8%)",
        "2 (18.2%)",
        "Width (px)",
        "Height (px)",
        "Encoded size (kB)",
        "RGB",
        "Option check",
    ):
        assert text in page
    for identifier in ("width", "height", "shape", "bytes"):
        assert f'id="{identifier}-t"' in page


def test_a_folder_is_shown_as_it_is_with_the_file_that_is_no_image(folder: Path) -> None:
    page = page_of(folder)
    assert page.count("data:image/jpeg") == 11
    assert page.count("cannot be decoded") == 1
    assert "Dimensions are not measured" in page


def test_the_page_fetches_nothing_and_runs_nothing(stored: Path) -> None:
    parser = Tags()
    parser.feed(page_of(stored))
    assert {tag for tag, _ in parser.found} & {"script", "link", "iframe", "object"} == set()
    addresses = [value for _, attrs in parser.found for name, value in attrs.items() if name in ("src", "href")]
    assert all(value and value.startswith("data:image/jpeg;base64,") for value in addresses)
    policies = [attrs["content"] for _, attrs in parser.found if attrs.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_rows_are_spread_over_classes() -> None:
    # given 100 rows of class 0 and one of class 7, then both are shown, the ends of the first included
    rows = _spread_rows(np.array([0] * 100 + [7]))
    assert (rows[0], rows[-2], rows[-1], len(rows)) == (0, 99, 100, 13)
    # and of 1,000 classes, 24
    assert len(_spread_rows(np.arange(1000))) == 24
    assert _spread_rows(np.array([], np.int64)) == []


def test_bins_hold_every_value_once() -> None:
    for values in (np.array([5]), np.array([0, 0, 0]), np.array([1, 2, 1000]), np.array([0.5, 2.0])):
        _, counts = binned(values)
        assert sum(counts) == len(values)


def test_the_command_writes_the_page(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(stored), "--html", str(tmp_path / "page.html")])
    assert ended.value.code == 0
    assert (tmp_path / "page.html").read_text("utf-8").startswith("<!doctype html>")
    assert "11 samples in 2 classes" in capsys.readouterr().out


def test_charts_say_how_many_images_their_highest_bar_has(stored: Path) -> None:
    # given widths of 40, 50 to 120 px in the first class and 40, 50 in the second, all 30 px high
    page = page_of(stored)
    assert "30 to 30; the highest bar is 11 images" in page
    assert "1 data file<" in page
