"""The plan is a function of the sizes and the options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from wellfed.converters import plan
from wellfed.converters.inputs import Input
from wellfed.converters.plan import PlanOptions, make_plan
from wellfed.converters.selection import Selection
from wellfed.pipeline.errors import UsageError


@dataclass
class Sizes:
    sizes: Any
    state: str = "s"


def tasks(sizes: list[int], shard_bytes: int) -> tuple[tuple[int, int], ...]:
    options = PlanOptions(output="webdataset", shard_bytes=shard_bytes, check="decode")
    selection = Selection(None, len(sizes), {})
    return make_plan(cast(Input, Sizes(np.array(sizes))), selection, options, part=None, tool_version="1").tasks


def test_shards_fill_up_to_the_size() -> None:
    # Each sample takes 512 bytes of image and 5 more blocks: 3,072; a tar ends with 1,024.
    assert tasks([512] * 5, 2 * 3072 + 1024) == ((0, 2), (2, 4), (4, 5))
    assert tasks([512] * 5, 2 * 3072 + 1023) == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
    assert tasks([512] * 5, 1 << 30) == ((0, 5),)


def test_larger_sample_gets_its_own_shard() -> None:
    assert tasks([512, 512, 100_000, 512], 2 * 3072 + 1024) == ((0, 2), (2, 3), (3, 4))


def test_impossible_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="at least 1 byte"):
        tasks([512], 0)
    monkeypatch.setattr(plan, "_MOST_SHARDS", 3)
    with pytest.raises(UsageError, match="at most 3 shards"):
        tasks([512] * 4, 1)
