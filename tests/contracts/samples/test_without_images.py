"""A dataset that has no images at all loads by its fields, on every backend."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from wellfed.converters import convert
from wellfed.converters.inputs import InputOptions
from wellfed.pipeline.cli.main import app
from wellfed.pipeline.errors import ConfigError, UsageError

Case = tuple[str, int]
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sample k has k % 4 + 1 tokens k."""
    folder = tmp_path_factory.mktemp("sentences")
    lines = [json.dumps({"text": f"text {row}", "tokens": [row] * (row % 4 + 1)}) + "\n" for row in range(13)]
    (folder / "t.jsonl").write_text("".join(lines))
    options = InputOptions(columns=(("text", "text"), ("tokens", "array")))
    for kind in ("webdataset", "lmdb"):
        convert(folder / "t.jsonl", folder / kind, output=kind, input=options, workers=1)
    return {kind: folder / kind for kind in ("webdataset", "lmdb")}


@pytest.mark.parametrize("order", ["global", "sharded"])
def test_every_backend_and_storage_gives_the_same_epochs(
    open_rich: Open, sentences: dict[str, Path], case: Case, order: str
) -> None:
    options = {"fields": ("index", "tokens", "text", "valid"), "order": order}
    orders = []
    for kind, path in sentences.items():
        with open_rich(source=path, **options) as loader:
            expected = [batch["index"].tolist() for _ in range(2) for batch in loader]
        with open_rich(case, path, **options) as loader:
            got = [batch for _ in range(2) for batch in loader]
        assert [batch["index"].tolist() for batch in got] == expected, kind
        orders.append(expected)
        for batch in got:
            rows = batch["index"].tolist()
            assert batch["text"] == [f"text {row}" for row in rows]
            assert [tokens.tolist() for tokens in batch["tokens"]] == [[row] * (row % 4 + 1) for row in rows]
    assert orders[0] == orders[1]


def test_equal_shapes_are_stacked(open_rich: Open, sentences: dict[str, Path]) -> None:
    with open_rich(("threads", 1), sentences["lmdb"], subset=[1, 5, 9], fields=("tokens",), shuffle=False) as loader:
        (batch,) = list(loader)

    assert torch.equal(batch["tokens"], torch.tensor([[1, 1], [5, 5], [9, 9]]))


@pytest.mark.parametrize("kind", ["webdataset", "lmdb"])
def test_pairs_of_images_and_labels_are_refused_with_the_fields_there_are(
    open_rich: Open, sentences: dict[str, Path], kind: str
) -> None:
    with pytest.raises(UsageError) as caught:
        open_rich(source=sentences[kind])

    assert "has no image; got its fields class, text, tokens, json." in str(caught.value)
    assert "fields=('class', 'text', 'tokens', 'json')" in str(caught.value)


@pytest.mark.parametrize("field", ["image", "box", "flip"])
def test_what_images_alone_have_is_refused(open_rich: Open, sentences: dict[str, Path], field: str) -> None:
    with pytest.raises(ConfigError, match=f"own, index, key, valid; got '{field}'"):
        open_rich(source=sentences["lmdb"], fields=("tokens", field))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["tune", "DATA", "--step", "resnet18", "--device", "simulated"], "train on images and labels"),
        (["bench", "DATA", "--step", "resnet18", "--device", "simulated"], "train on images and labels"),
        (["inspect", "DATA", "--html", "page.html"], "is of images"),
    ],
)
def test_commands_about_images_say_so(sentences: dict[str, Path], command: list[str], message: str) -> None:
    words = [str(sentences["lmdb"]) if word == "DATA" else word for word in command]
    result = CliRunner().invoke(app, words)

    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
