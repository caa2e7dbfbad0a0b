"""Progress outside a terminal: a line at each new kind of step, not at each count."""

from __future__ import annotations

import pytest

from wellfed.pipeline.cli._step_progress import show_progress


def test_a_log_gets_a_line_for_each_step_and_one_every_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0

    with show_progress(clock=lambda: now) as report:
        for second, step, done in [
            (0.0, "1 of 300 images", 0.0),
            (0.1, "2 of 300 images", 0.01),
            (5.5, "90 of 300 images", 0.3),
            (5.6, "checking", 0.31),
            (6.0, "300 of 300 images", 1.0),
        ]:
            now = 100.0 + second
            report(step, done)

    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[   0.0 s]   0%  1 of 300 images",
        "[   5.5 s]  30%  90 of 300 images",
        "[   5.6 s]  31%  checking",
        "[   6.0 s] 100%  300 of 300 images",
    ]
