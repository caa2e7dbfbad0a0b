"""Configurations: valid ones survive JSON, everything else is refused with rule, value and remedy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from wellfed.pipeline.config import LoaderConfig, LoaderSettings, TunedConfig, TuneRequest, parse_duration
from wellfed.pipeline.errors import ConfigError, SchemaVersionError

SETTINGS = LoaderSettings(
    backend="processes", num_workers=3, prefetch_factor=4, persistent_workers=False, pin_memory=False, batch_size=7
)
EXAMPLES = [
    SETTINGS,
    LoaderConfig(
        settings=SETTINGS,
        shuffle=True,
        seed=(1 << 63) - 1,
        tail="pad",
        augment="train",
        image_size=160,
        fields=("image", "class", "key"),
        on_error="skip",
        rank=1,
        world_size=3,
        device="cuda:0",
        multiprocessing_context="spawn",
        timeout=2.5,
    ),
    TuneRequest(data="set", step="resnet50", batch_sizes=(16, 64), current=SETTINGS),
    TunedConfig(
        settings=SETTINGS,
        verdict="passed",
        dataset={"fingerprint": "ab", "samples": 250},
        machine={"cores": 2},
        step={"name": "resnet50", "device": "cuda:0", "image_size": 224},
        versions={"torch": "2.14"},
        measured={"samples_per_second": 600.5, "util_percent": None},
    ),
]


@pytest.mark.parametrize("config", EXAMPLES, ids=lambda c: type(c).__name__)
def test_a_configuration_written_as_json_reads_back_equal(config: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(config.to_json(), "utf-8")

    assert type(config).load(path) == config


def test_json_begins_with_the_schema_and_ends_with_a_newline() -> None:
    text = SETTINGS.to_json()

    assert list(json.loads(text))[:2] == ["schema", "schema_version"]
    assert json.loads(text)["schema"] == "wellfed-loader-settings"
    assert json.loads(text)["schema_version"] == 1
    assert text.endswith("}\n")


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SETTINGS.batch_size = 8  # type: ignore[misc]


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as caught:
        LoaderSettings.from_dict({"batch_size": 8, "num_worker": 2}, where="tuned.json")

    assert "num_worker" in str(caught.value)
    assert "tuned.json" in str(caught.value)
    assert "num_workers" in (caught.value.remedy or "")


def test_a_missing_field_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="lacks required fields; got 'step'"):
        TuneRequest.from_dict({"data": "set"})


def test_a_value_out_of_range_is_refused_with_the_file(tmp_path: Path) -> None:
    tuned = json.loads(EXAMPLES[3].to_json())
    for change, rule in (
        ({"verdict": "good"}, r"tuned\.json: verdict must be one of"),
        ({"settings": {"batch_size": 0}}, r"tuned\.json: settings: batch_size must be between 1"),
        (
            {"step": {}},
            r"tuned\.json: step of a tuned config must hold name, device, image_size; got no name, device, image_size",
        ),
    ):
        path = tmp_path / "tuned.json"
        path.write_text(json.dumps({**tuned, **change}))
        with pytest.raises(ConfigError, match=rule):
            TunedConfig.load(path)


def test_a_future_schema_is_refused_with_the_advice_to_upgrade() -> None:
    with pytest.raises(SchemaVersionError, match=r"knows up to 1\); got 2\. Upgrade wellfed"):
        LoaderSettings.from_dict({"schema_version": 2, "a_field_of_the_future": 1})


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.0, None])
def test_a_schema_version_that_is_no_positive_integer_is_refused(version: Any) -> None:
    with pytest.raises(ConfigError, match="schema_version"):
        LoaderSettings.from_dict({"schema_version": version})


def test_a_file_of_another_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be of schema 'wellfed-tuned-config'"):
        TunedConfig.from_json(SETTINGS.to_json())


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "3", "NaN", '{"batch_size": }', "[" * 100_000])
def test_text_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="JSON"):
        LoaderSettings.from_json(text)


def test_a_file_that_cannot_be_read_is_refused_with_its_path(tmp_path: Path) -> None:
    not_text = tmp_path / "latin.json"
    not_text.write_bytes(b"\xff\xfe{")

    for path in (tmp_path / "absent.json", tmp_path, not_text):
        with pytest.raises(ConfigError, match=path.name):
            LoaderSettings.load(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("backend", "fibers"),
        ("backend", None),
        ("num_workers", -1),
        ("num_workers", 1025),
        ("num_workers", 2.0),
        ("num_workers", True),
        ("prefetch_factor", 0),
        ("prefetch_factor", 65),
        ("persistent_workers", 1),
        ("pin_memory", "yes"),
        ("batch_size", 0),
        ("batch_size", (1 << 20) + 1),
        ("batch_size", "64"),
        ("hw_decoder_load", -0.1),
        ("hw_decoder_load", True),
        ("gpu_share", 1.01),
        ("gpu_share", "half"),
        ("hybrid_schedule", "random"),
    ],
)
def test_settings_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        LoaderSettings(**{field: value})

    assert field in caught.value.rule
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("settings", 3),
        ("settings", {"batch": 3}),
        ("shuffle", 1),
        ("seed", -1),
        ("seed", 1 << 63),
        ("tail", "wrap"),
        ("augment", "none"),
        ("decode", "draft"),
        ("image_size", 0),
        ("image_size", 4097),
        ("fields", ()),
        ("fields", ("image", 1)),
        ("fields", ("image", "image")),
        ("fields", 5),
        ("fields", "image"),
        ("on_error", "ignore"),
        ("world_size", 0),
        ("rank", 1),
        ("device", ""),
        ("multiprocessing_context", "thread"),
        ("timeout", -1),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", 10**400),
    ],
)
def test_loader_values_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        LoaderConfig(**{"settings": SETTINGS, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data", ""),
        ("step", None),
        ("util_target", 101),
        ("fed_target", 1.5),
        ("memory_cap", 0),
        ("memory_cap", 70),
        ("budget_seconds", 0),
        ("hold_seconds", float("nan")),
        ("batch_sizes", ()),
        ("batch_sizes", (0,)),
        ("batch_sizes", 64),
        ("image_size", 7),
        ("rounds", 4),
        ("current", 5),
        ("current", {"unknown": 1}),
    ],
)
def test_tune_values_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        TuneRequest(**{"data": "set", "step": "resnet18", field: value})


def test_a_number_is_asked_for_in_its_unit() -> None:
    with pytest.raises(ConfigError, match=r"Give hold_seconds as a number in seconds\.$"):
        TuneRequest(data="set", step="resnet18", hold_seconds="long")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Give fed_target as a number\.$"):
        TuneRequest(data="set", step="resnet18", fed_target="all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("settings", None),
        ("verdict", "good"),
        ("machine", [1]),
        ("measured", None),
        ("measured", {"samples_per_second": "many"}),
        ("measured", {"util_percent": float("nan")}),
        ("measured", {"fed_ratio": float("inf")}),
        ("measured", {"peak_bytes": True}),
        ("step", {}),
        ("step", {"name": "resnet50", "device": "cpu"}),
        ("step", {"name": "", "device": "cpu", "image_size": 224}),
        ("step", {"name": "resnet50", "device": 0, "image_size": 224}),
        ("step", {"name": "resnet50", "device": "cpu", "image_size": "224"}),
        ("dataset", {}),
        ("dataset", {"fingerprint": None, "samples": 250}),
        ("dataset", {"fingerprint": "ab", "samples": 0}),
    ],
)
def test_tuned_values_of_a_wrong_kind_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        dataclasses.replace(EXAMPLES[3], **{field: value})


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("3m", 180), ("1.5h", 5400), (" 2M ", 120), (45, 45), (0.5, 0.5)]
)
def test_durations(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "3d", "-1s", "0", "nan", "inf", "1e999", "three", None, 0, -2, [3]])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize("backend", ["dali", "nvjpeg", "hybrid"])
def test_decoding_exactly_is_refused_where_another_library_decodes(backend: str) -> None:
    with pytest.raises(ConfigError, match=r"decode='exact'.*backend='" + backend):
        LoaderConfig(settings=LoaderSettings(backend=backend), decode="exact")  # type: ignore[arg-type]
