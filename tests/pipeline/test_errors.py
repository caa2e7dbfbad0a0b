"""Errors say rule, value and remedy, carry their exit code, and cross process boundaries."""

from __future__ import annotations

import copy
import pickle

import pytest

from wellfed.pipeline import errors
from wellfed.pipeline.errors import CorruptSampleError, SampleError, UsageError, WellfedError

KINDS = [getattr(errors, name) for name in errors.__all__]
SIMPLE = [kind for kind in KINDS if not issubclass(kind, SampleError)]


def test_the_text_is_rule_value_and_remedy() -> None:
    error = WellfedError("the batch size must be at least 1", got=0, remedy="Choose a larger one.")

    assert str(error) == "the batch size must be at least 1; got 0. Choose a larger one."


def test_text_without_value_or_remedy_is_one_sentence() -> None:
    assert str(WellfedError("the dataset must not be empty")) == "the dataset must not be empty."


def test_a_value_that_is_one_word_is_quoted_and_a_phrase_is_not() -> None:
    assert str(WellfedError("a rule", got="word")) == "a rule; got 'word'."
    assert str(WellfedError("a rule", got="two words")) == "a rule; got two words."


def test_a_corrupt_sample_names_dataset_row_and_original_path() -> None:
    error = CorruptSampleError("an image must decode", dataset="wds", index=7, path="cat/a b.jpg", got="OSError: cut")

    assert str(error) == "an image must decode; got OSError: cut. Sample 7 of wds, originally 'cat/a b.jpg'."


@pytest.mark.parametrize("kind", SIMPLE)
def test_every_error_survives_pickle_and_copy(kind: type[WellfedError]) -> None:
    error = kind("a rule", got={"value": 3}, remedy="A remedy.")

    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert (again.rule, again.got, again.remedy) == ("a rule", {"value": 3}, "A remedy.")
        assert again.args == ("a rule",)


def test_a_corrupt_sample_survives_pickle_with_its_place() -> None:
    error = CorruptSampleError("a rule", dataset="wds", index=7, path="x.jpg")

    again = pickle.loads(pickle.dumps(error))

    assert (again.dataset, again.index, again.path, str(again)) == ("wds", 7, "x.jpg", str(error))


@pytest.mark.parametrize("kind", KINDS)
def test_exit_codes_are_2_for_wrong_usage_and_1_otherwise(kind: type[WellfedError]) -> None:
    usage = {
        "UsageError",
        "ConfigError",
        "SchemaVersionError",
        "TunedConfigMismatchError",
        "DeviceError",
        "MissingDependencyError",
    }

    assert kind.exit_code == (2 if kind.__name__ in usage else 1)
    assert issubclass(kind, UsageError) == (kind.__name__ in usage)
