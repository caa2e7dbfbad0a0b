"""A pytest plugin that puts `wellfed.pipeline.DataLoader` in the place of torchdata's `StatefulDataLoader`.

Tests import the name before they run, so it is replaced when pytest is configured; what else they take from torchdata
stays. The outcome of each test, and how many loaders the factory made in it, go to the file WELLFED_STATEFUL_RESULTS.
WELLFED_STATEFUL_FACTORY=torchdata replaces nothing. WELLFED_STATEFUL_LEAVE_OUT names the tests that are left out, by
shell patterns, one a line.
"""

from __future__ import annotations

import fnmatch
import json
import os
from pathlib import Path
from typing import Any

import pytest

made = 0
_inside = False
_results: dict[str, dict[str, Any]] = {}


def pytest_configure() -> None:
    if os.environ.get("WELLFED_STATEFUL_FACTORY") != "torchdata":
        import torchdata.stateful_dataloader as package

        package.StatefulDataLoader = _stand_in(package.StatefulDataLoader)


def _stand_in(real: Any) -> Any:
    """A class that is called as torchdata's is, and knows its instances, but is made by our factory."""

    class Made(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            global made, _inside
            # Our factory comes by here for the loader that it hands out; classes that tests derive are their own.
            if _inside or cls is not StatefulDataLoader:
                return real(*args, **kwargs) if cls is StatefulDataLoader else super().__call__(*args, **kwargs)
            from wellfed.pipeline import DataLoader

            made += 1
            _inside = True
            try:
                return DataLoader(*args, **kwargs)
            finally:
                _inside = False

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real)

    class StatefulDataLoader(real, metaclass=Made):  # type: ignore[misc]
        pass

    return StatefulDataLoader


def short(item: pytest.Item) -> str:
    """ "test_file.py::Class::test", whatever the folder."""
    return item.nodeid.rpartition("/")[2]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    patterns = os.environ.get("WELLFED_STATEFUL_LEAVE_OUT", "").splitlines()
    left_out = [item for item in items if any(fnmatch.fnmatch(short(item), pattern) for pattern in patterns)]
    config.hook.pytest_deselected(items=left_out)
    for item in left_out:
        _results[short(item)] = {"outcome": "left out", "made": 0}
    items[:] = [item for item in items if item not in left_out]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _results[report.nodeid.rpartition("/")[2]] = {"outcome": "failed", "made": 0}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    known = _results.setdefault(short(item), {"outcome": "passed", "made": 0})
    known["made"] = made - item.stash.setdefault(_BEFORE, made)
    if not report.passed:
        known["outcome"] = "skipped" if report.skipped else "failed"
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_BEFORE] = made


def pytest_sessionfinish() -> None:
    Path(os.environ["WELLFED_STATEFUL_RESULTS"]).write_text(json.dumps(_results))


_BEFORE = pytest.StashKey[int]()
