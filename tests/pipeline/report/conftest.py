"""A realistic report, written by hand as JSON beside this file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def report() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "sample.json").read_text("utf-8"))
