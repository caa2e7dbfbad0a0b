"""Crops drawn for many batches at once are those of each batch alone."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wellfed.pipeline.decode.augment import crop_parameters
from wellfed.pipeline.loader import crops as crops_module
from wellfed.pipeline.loader.batch import BatchTask
from wellfed.pipeline.loader.crops import drawn_ahead

INDEX = np.zeros(40, dtype=[("key", np.uint64), ("width", np.uint32), ("height", np.uint32), ("orientation", np.uint8)])
INDEX["key"] = 1000 + np.arange(40)
INDEX["width"], INDEX["height"], INDEX["orientation"] = 300 + np.arange(40), 200, 1
SOURCE: Any = SimpleNamespace(index=INDEX)


def draw(epoch: int, keys: Any, widths: Any, heights: Any, orientations: Any) -> tuple[np.ndarray, np.ndarray]:
    return crop_parameters("train", seed=5, epoch=epoch, keys=keys, widths=widths, heights=heights)


def tasks(*batches: tuple[int, list[int]], repeats: list[int] | None = None) -> Iterator[BatchTask]:
    for epoch, rows in batches:
        yield BatchTask(
            epoch=epoch,
            rows=np.array(rows),
            valid=np.ones(len(rows), bool),
            position_after=0,
            repeats=None if repeats is None else np.array(repeats),
        )


@pytest.mark.parametrize("at_once", [1, 5, 1000])
def test_crops_do_not_depend_on_how_many_are_drawn_together(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crops_module, "SAMPLES_AT_ONCE", at_once)
    batches = [(0, [3, 9, 12]), (0, [1, 0]), (1, [3, 9, 12]), (1, [39])]
    given = list(drawn_ahead(tasks(*batches), SOURCE, draw))

    assert [(task.epoch, task.rows.tolist()) for task in given] == batches
    for task in given:
        entries = INDEX[task.rows]
        boxes, flips = draw(task.epoch, entries["key"], entries["width"], entries["height"], None)
        assert task.crops is not None
        assert np.array_equal(task.crops.boxes, boxes)
        assert np.array_equal(task.crops.flips, flips)
        assert task.crops.widths.tolist() == [300 + row for row in task.rows]
    # The same samples, another epoch.
    assert given[0].crops is not None
    assert given[2].crops is not None
    assert not np.array_equal(given[0].crops.boxes, given[2].crops.boxes)


def test_a_sample_drawn_twice_is_cropped_anew() -> None:
    (task,) = drawn_ahead(tasks((0, [7, 7]), repeats=[0, 1]), SOURCE, draw)
    assert task.crops is not None
    assert task.crops.boxes[0].tolist() != task.crops.boxes[1].tolist()


def test_a_batch_with_a_sample_of_unknown_size_is_left_to_its_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = INDEX.copy()
    unknown["width"][5] = 0
    given = list(drawn_ahead(tasks((0, [4, 5]), (0, [6, 7])), SimpleNamespace(index=unknown), draw))  # type: ignore[arg-type]
    assert given[0].crops is None
    assert given[1].crops is not None
    entries = INDEX[[6, 7]]
    assert np.array_equal(given[1].crops.boxes, draw(0, entries["key"], entries["width"], entries["height"], None)[0])


def test_tasks_are_asked_for_only_as_far_as_they_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crops_module, "SAMPLES_AT_ONCE", 4)
    asked = []

    def endless() -> Iterator[BatchTask]:
        while True:
            asked.append(1)
            yield from tasks((0, [1, 2]))

    stream = drawn_ahead(endless(), SOURCE, draw)
    next(stream)
    assert len(asked) == 2
