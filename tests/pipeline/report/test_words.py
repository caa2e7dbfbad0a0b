"""How figures are written."""

from __future__ import annotations

from typing import Any

import pytest

from wellfed.pipeline.report import python_lines, words


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0123456, "0.0123"), (3.14159, "3.14"), (99.95, "100.0"), (586.2, "586"), (12345.6, "12,346")],
)
def test_numbers_keep_three_digits_and_never_an_exponent(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1536 * 1024, "1.50 MiB"), (8 << 30, "8.00 GiB")],
)
def test_bytes_are_binary(value: int, text: str) -> None:
    assert words.bytes_text(value) == text


@pytest.mark.parametrize(
    "write", [words.rate, words.percent, words.share, words.ratio, words.bytes_text, words.seconds]
)
def test_none_is_never_a_zero(write: Any) -> None:
    assert write(None, "MIG has no counter") == "not measured: MIG has no counter"


def test_seconds_become_minutes() -> None:
    assert words.seconds(60.2) == "60.2 s"
    assert words.seconds(204.1) == "3 min 24 s"


def test_the_three_lines_run_as_python(report: dict[str, Any]) -> None:
    report["output"] = {"tuned": "demo/tuned.json"}

    lines = python_lines(report)

    assert lines == (
        "from wellfed.pipeline import DataLoader",
        'loader = DataLoader("demo/wds", tuned="demo/tuned.json", shuffle=True, drop_last=True, augment="train")',
        "for images, labels in loader: ...",
    )
    compile("\n".join(lines), "lines", "exec")


def test_the_three_lines_load_at_the_size_that_was_tuned(report: dict[str, Any]) -> None:
    report["tuned"]["step"]["image_size"] = 160

    assert python_lines(report)[1].endswith('augment="train", image_size=160)')


@pytest.mark.parametrize("name", ['a"b', "a'b", "back\\slash", "new\nline", "tab\t", "größe", '"); import os; ("'])
def test_a_path_is_always_one_python_literal(report: dict[str, Any], name: str) -> None:
    report["request"]["data"] = name
    report["device"]["simulated"] = False

    second = python_lines(report)[1]

    found: list[Any] = []
    exec(second, {"DataLoader": lambda source, **options: found.append((source, options))})
    assert found[0][0] == name
    assert found[0][1]["device"] == "cuda"


def test_the_command_makes_such_a_report_again(report: dict[str, Any]) -> None:
    report["request"]["data"] = "my data"
    report["request"]["batch_sizes"] = [64, 128]

    assert words.reproduce_command(report) == (
        "wellfed tune 'my data' --step resnet50 --device simulated --util-target 70 --fed-target 0.9 --memory-cap 0.7 "
        "--budget 180s --hold 60s --image-size 224 --seed 0 --batch-sizes 64,128 --current current.json"
    )
