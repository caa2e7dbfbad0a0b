"""The benchmark of tuners: finders of other libraries find on the simulated device, and rows are read from windows."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.training.simulated import PRESETS

Load = Callable[[str], Any]


@pytest.fixture(scope="session")
def dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    from wellfed.converters import convert

    out = tmp_path_factory.mktemp("tuners") / "dataset"
    convert(photos, out, output="webdataset", workers=1)
    return str(out)


@pytest.fixture
def task(load: Load, dataset: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """ResNet-50 on a card that holds 20 samples: 2,048 MiB, less 769 of context, 292 of weights, and 48 a sample."""
    small = dataclasses.replace(PRESETS["simulated"], memory_bytes=2 * 2**30)
    monkeypatch.setitem(PRESETS, "simulated", small)  # type: ignore[arg-type]
    return load("tuners.choice").Task(
        dataset=dataset,
        step="resnet50",
        device="simulated",
        budget_seconds=2.0,
        memory_cap=0.95,
        image_size=224,
        seed=0,
    )


@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        ("torch defaults", 64),
        ("workers = cores", 64),
        # 2, 4, 8, 16 fit and 32 does not.
        ("Lightning power", 16),
    ],
)
def test_what_others_find(load: Load, task: Any, name: str, batch_size: int) -> None:
    choice = load("tuners.contestants").BY_NAME[name].choose(task)
    assert choice.batch_size == batch_size
    assert (choice.loader.num_workers == 0) == (name == "torch defaults")
    assert load("tuners.choice").Choice.from_dict(json.loads(json.dumps(choice.to_dict()))) == choice


def test_lightning_bisects_to_less_than_fits(load: Load, task: Any) -> None:
    # 20 fit; its margin takes a twentieth off
    assert load("tuners.contestants").BY_NAME["Lightning binsearch"].choose(task).batch_size == 19


def test_accelerate_goes_down_to_what_fits(load: Load, task: Any) -> None:
    # nine tenths at a time, rounded down
    find = load("tuners.finders").accelerate_finder
    choice = load("tuners.contestants").opening(lambda task, on: find(task, on, 28))(task)
    assert (choice.batch_size, choice.details["tried"]) == (19, [28, 25, 22, 19])


def test_a_random_search_takes_what_it_measured(load: Load, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load("tuners.searches"), "BATCH_SIZES", (2,))
    choice = load("tuners.contestants").BY_NAME["random search"].choose(task)
    assert isinstance(choice.loader, LoaderSettings)
    assert choice.loader.batch_size == choice.batch_size == 2
    assert choice.details["measured"] >= 1


@pytest.mark.parametrize(("batch_size", "outcome"), [(16, "over the cap"), (64, "out of memory")])
def test_a_random_search_keeps_to_the_memory(
    load: Load, task: Any, monkeypatch: pytest.MonkeyPatch, batch_size: int, outcome: str
) -> None:
    monkeypatch.setattr(load("tuners.searches"), "BATCH_SIZES", (batch_size,))
    with pytest.raises(RuntimeError, match=f"no random point ran under the memory cap.*'{outcome}': [1-9]"):
        load("tuners.contestants").BY_NAME["random search"].choose(dataclasses.replace(task, memory_cap=0.6))


def test_a_choice_that_runs_out_of_memory_is_a_result(load: Load, task: Any) -> None:
    choice = load("tuners.choice")
    torch_loader = choice.TorchLoader(num_workers=0, pin_memory=False)
    choices = {
        "small": choice.Choice(batch_size=4, loader=torch_loader),
        "large": choice.Choice(batch_size=64, loader=torch_loader),
        "ours": choice.Choice(batch_size=4, loader=LoaderSettings(batch_size=4, num_workers=1, pin_memory=False)),
    }
    found = load("tuners.rounds").measure_choices(choices, task, rounds=2, seconds=0.1, say=lambda text: None)
    assert [window["round"] for window in found["windows"]["small"]] == [1, 2]
    assert [window["round"] for window in found["windows"]["ours"]] == [1, 2]
    assert [window["round"] for window in found["ceilings"][4]] == [1, 2]
    assert found["windows"]["large"] == []
    assert found["ceilings"][64] == []
    assert found["failed"]["large"].startswith("round 1: simulated out of memory")
    assert all(window["peak_bytes"] < 2 * 2**30 for window in found["windows"]["small"])


def test_who_lacks_a_library_is_absent(load: Load, task: Any) -> None:
    contestant = load("tuners.contestants").Contestant(name="x", choose=lambda task: None, needs="no_such_library")
    found = load("tuners.choose").chosen_by(contestant, task)
    assert found == {"absent": "no_such_library is not installed: pip install no_such_library"}


def test_whoever_ends_badly_has_an_error(load: Load, task: Any) -> None:
    contestant = load("tuners.contestants").BY_NAME["torch defaults"]
    found = load("tuners.choose").chosen_by(contestant, dataclasses.replace(task, dataset="/nowhere"))
    assert "choice" not in found
    assert "/nowhere" in found["error"]
    assert found["out_of_memory"] is False
    assert found["seconds"] > 0


def test_a_window_holds_whole_cycles_of_workers(load: Load) -> None:
    # given a clock that goes on by one second a look, and workers in cycles of 3
    clock = map(float, itertools.count())
    taken = list(load("tuners.rounds").whole_cycles(itertools.count(), 2.5, 3, clock=lambda: next(clock)))
    # then it looks at 1 and 2 seconds, takes a cycle after each, and ends at 3
    assert taken == [0, 1, 2, 3, 4, 5]


def window(number: int, rate: float, peak: int = 50) -> dict[str, Any]:
    return {"round": number, "samples_per_second": rate, "util_percent": 80.0, "peak_bytes": peak}


@pytest.fixture
def run() -> dict[str, Any]:
    """A card of 100 bytes; wellfed gives 900 of 1,000, the other 300 with too much memory, and one has no choice."""
    torch = {"loader": "torch", "settings": {"num_workers": 16}, "batch_size": 64}
    own = {"loader": "wellfed", "settings": {"num_workers": 4, "backend": "threads"}, "batch_size": 32}
    return {
        "rounds": 5,
        "memory_cap": 0.7,
        "memory_total_bytes": 100,
        "device": {"simulated": False},
        "contestants": {
            "rule": {"seconds": 5.0, "choice": torch},
            "late": {"seconds": 5.0, "choice": torch},
            "gone": {"absent": "lightning is not installed"},
            "broken": {"seconds": 9.0, "error": "RuntimeError: no", "out_of_memory": False},
            "wellfed": {"seconds": 180.0, "choice": own},
        },
        "windows": {
            "rule": [window(1, 300, peak=60), window(2, 300, peak=70)],
            "late": [window(2, 450)],
            "wellfed": [window(2, 900), window(1, 600)],
        },
        "ceilings": {32: [window(1, 1000), window(2, 1000)], 64: [window(1, 1200), window(2, 1500)]},
        "failed": {"late": "round 1: out of memory"},
    }


def test_rows_are_paired_by_round(load: Load, run: dict[str, Any]) -> None:
    rule, late, gone, broken, own = load("tuners.summary").summarize(run)["rows"]
    assert sorted(rule["wellfed_over_it"]["rounds"]) == [2.0, 3.0]
    assert sorted(rule["fed_ratio"]["rounds"]) == [0.2, 0.25]
    assert late["wellfed_over_it"]["rounds"] == [2.0]
    assert own["wellfed_over_it"] is None
    assert own["fed_ratio"]["median"] == 0.75
    # 70 of 100 bytes is no longer under a cap of 70%
    assert (rule["memory_share"], rule["under_cap"], own["under_cap"]) == (0.7, False, True)
    assert (gone["none"], broken["none"]) == ("lightning is not installed", "RuntimeError: no")


def test_the_table_says_what_is_missing(load: Load, run: dict[str, Any]) -> None:
    summary = load("tuners.summary")
    run["summary"] = summary.summarize(run)
    text = summary.table(run)
    assert "| rule | 5 s | torch, 16 | 64 | 300 | 2.50 (" in text
    assert "| 70% | **broken** |" in text
    assert "| gone |  | none | | | | | | | |" in text
    assert "late: round 1: out of memory" in text
    assert "not a result" not in text


@pytest.mark.parametrize(
    ("change", "why"),
    [({"rounds": 4}, "fewer than 5 rounds"), ({"device": {"simulated": True}}, "the device is simulated")],
)
def test_no_result(load: Load, run: dict[str, Any], change: dict[str, Any], why: str) -> None:
    assert load("tuners.summary").summarize({**run, **change})["no_result"] == why


@pytest.mark.long
def test_the_whole_benchmark_on_the_simulated_device(
    load: Load, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    command = ["--photos", str(photos), "--output", str(out), "--step", "resnet50", "--device", "simulated"]
    command += ["--budget", "5", "--seconds", "0.3", "--rounds", "2"]
    command += ["--contestants", "workers = cores", "Lightning power", "Accelerate from 128", "wellfed"]
    assert load("tuners.__main__").main(command) == 0

    run = json.loads(out.read_text())
    rows = {row["contestant"]: row for row in run["summary"]["rows"]}
    assert rows["Lightning power"]["batch_size"] == rows["Accelerate from 128"]["batch_size"] == 128
    # 128 samples of 48 MiB with context and weights are over 70% of 8 GiB, 64 are under it.
    assert rows["Lightning power"]["under_cap"] is False
    assert rows["workers = cores"]["under_cap"] is True
    assert rows["wellfed"]["under_cap"] is True
    assert {name: len(windows) for name, windows in run["windows"].items()} == dict.fromkeys(rows, 2)
    assert run["summary"]["no_result"] == "the device is simulated"
    assert "| wellfed |" in capsys.readouterr().out
