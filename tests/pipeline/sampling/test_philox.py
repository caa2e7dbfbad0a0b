"""Philox4x32-10 against the known answers of its authors' library."""

from __future__ import annotations

import numpy as np
import pytest

from wellfed.pipeline.sampling import philox4x32, sample_words, uniform

# Random123 1.14, examples/kat_vectors, the three lines "philox4x32 10": counter, key, answer.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], answer: tuple[int, ...]) -> None:
    words = philox4x32(np.array([counter], dtype=np.uint32), key)

    assert words.dtype == np.uint32
    assert tuple(int(word) for word in words[0]) == answer


def test_known_answers_at_once_in_one_array() -> None:
    counters = np.array([KNOWN_ANSWERS[0][0]] * 3, dtype=np.uint64)

    assert philox4x32(counters, (0, 0)).tolist() == [list(KNOWN_ANSWERS[0][2])] * 3


def test_sample_words_lay_out_key_epoch_draw_and_seed_in_counter_and_key() -> None:
    # counter = (key low, key high, epoch, draw), Philox key = (seed low, seed high): the third known answer.
    words = sample_words(
        seed=0x299F31D0_A4093822, epoch=0x13198A2E, keys=np.array([0x85A308D3_243F6A88], np.uint64), draw=0x03707344
    )

    assert tuple(int(word) for word in words[0]) == KNOWN_ANSWERS[2][2]


def test_words_of_a_sample_do_not_depend_on_its_neighbours() -> None:
    keys = np.array([5, 900, 2**40], dtype=np.uint64)

    together = sample_words(3, 1, keys, 0)

    for row in range(3):
        assert np.array_equal(sample_words(3, 1, keys[row : row + 1], 0)[0], together[row])


def test_any_change_of_seed_epoch_key_or_draw_changes_the_words() -> None:
    key = np.array([7], dtype=np.uint64)
    seen = {
        tuple(words[0].tolist())
        for words in (
            sample_words(0, 0, key, 0),
            sample_words(1, 0, key, 0),
            sample_words(1 << 32, 0, key, 0),
            sample_words(0, 1, key, 0),
            sample_words(0, 0, key + np.uint64(1), 0),
            sample_words(0, 0, key + np.uint64(1 << 32), 0),
            sample_words(0, 0, key, 1),
        )
    }

    assert len(seen) == 7


def test_no_samples_give_no_words() -> None:
    assert sample_words(0, 0, np.empty(0, dtype=np.uint64), 0).shape == (0, 4)


def test_uniform_maps_the_ends_into_zero_to_one() -> None:
    values = uniform(np.array([0, 1 << 31, 0xFFFFFFFF], dtype=np.uint32))

    assert values.tolist() == [0.0, 0.5, 1.0 - 2.0**-32]
