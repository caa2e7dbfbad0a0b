"""Accumulation and learning rate for the chosen batch size: figures by hand, and lines that run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wellfed.pipeline.config import TuneRequest
from wellfed.pipeline.errors import ConfigError
from wellfed.pipeline.tune.advice.batch import BatchAdvice, OptimizerFacts, advise_batch, optimizer_facts


def advise(batch_size: int, *, world_size: int = 1, own: OptimizerFacts | None = None, **request: Any) -> BatchAdvice:
    found = advise_batch(
        TuneRequest(data="set", step="resnet50", **request),
        batch_size,
        world_size=world_size,
        samples=10_240,
        own=own or OptimizerFacts(),
    )
    assert found is not None
    return found


def test_without_a_base_or_a_global_batch_there_is_none() -> None:
    request = TuneRequest(data="set", step="resnet50", optimizer="sgd")
    facts = OptimizerFacts("sgd", 0.1)
    assert advise_batch(request, 64, world_size=1, samples=100, own=facts) is None


def test_sgd_grows_with_the_batch_and_warms_up() -> None:
    advice = advise(1024, optimizer="sgd", base_lr=0.1, base_batch=256)
    rate = advice.learning_rate
    assert rate is not None
    # 1024 / 256 = 4 times
    assert (rate.learning_rate, rate.factor, rate.warmup_epochs) == (0.4, 4.0, (5, 10))
    assert "linear rule from 0.1 at 256, sgd; Goyal et al. 2017, arXiv:1706.02677" in advice.words[0]
    assert "watched on validation data" in advice.words[0]
    # and the lines do it: 5 epochs of 10,240 / 1024 = 10 steps, from 0.1 to 0.4
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    names: dict[str, Any] = {"torch": torch, "optimizer": optimizer}
    exec("\n".join(advice.lines), names)
    seen = [optimizer.param_groups[0]["lr"]]
    for _ in range(50):
        optimizer.step()
        names["warmup"].step()
        seen.append(optimizer.param_groups[0]["lr"])
    assert seen[0] == pytest.approx(0.1)
    assert seen[25] == pytest.approx(0.25)
    assert seen[50] == pytest.approx(0.4)


def test_adam_grows_with_the_square_root() -> None:
    advice = advise(1024, optimizer="adam", base_lr=1e-3, base_batch=256)
    assert advice.learning_rate is not None
    assert advice.learning_rate.learning_rate == pytest.approx(2e-3)
    assert advice.lines == ("for group in optimizer.param_groups:", '    group["lr"] = 0.002')


def test_a_global_batch_is_kept_by_accumulation_over_all_ranks() -> None:
    # 64 x 2 ranks x 4 = 512
    advice = advise(64, world_size=2, global_batch=512, base_batch=512, base_lr=0.2, optimizer="sgd")
    assert (advice.accumulation, advice.global_batch) == (4, 512)
    assert advice.words[0] == "Global batch 512: accumulate 4 batches of 64 on 2 ranks."
    assert advice.learning_rate is not None
    assert advice.learning_rate.learning_rate == 0.2
    assert advice.learning_rate.warmup_epochs is None


def test_the_lines_of_accumulation_step_every_fourth_batch_with_the_mean_gradient() -> None:
    lines = "\n".join(advise(64, global_batch=256).lines)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    values = []
    for number in range(1, 9):
        exec(lines, {"loss": (weight * number).sum(), "number": number, "optimizer": optimizer})
        values.append(weight.item())
    # means of 1 to 4, and of 5 to 8, are 2.5 and 6.5
    assert values == [0, 0, 0, -2.5, -2.5, -2.5, -2.5, -9.0]


@pytest.mark.parametrize(
    ("batch", "world", "wanted", "accumulation", "words"),
    [
        (96, 1, 256, 3, "not a multiple of 96: 3 x 96 makes 288; batch 64 with 4 accumulated would keep it exactly."),
        (512, 1, 256, 1, "not a multiple of 512: 1 x 512 makes 512; batch 256 with 1 accumulated would keep it"),
        (64, 3, 256, 1, "1 x 64 on 3 ranks makes 192; no batch size divides it by 3 ranks."),
        (256, 1, 256, 1, "Global batch 256: no accumulation of 256."),
    ],
)
def test_a_global_batch_that_does_not_divide(
    batch: int, world: int, wanted: int, accumulation: int, words: str
) -> None:
    advice = advise(batch, world_size=world, global_batch=wanted)
    assert advice.accumulation == accumulation
    assert words in advice.words[0]


def test_the_steps_own_optimizer_fills_what_was_left_out() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1))]
    assert optimizer_facts(torch.optim.SGD(weights, lr=0.5)) == OptimizerFacts("sgd", 0.5)
    assert optimizer_facts(torch.optim.AdamW(weights, lr=0.125)) == OptimizerFacts("adam", 0.125)
    assert optimizer_facts(None) == OptimizerFacts(None, None)
    groups = [{"lr": 0.1}, {"lr": 0.2}]
    assert optimizer_facts(SimpleNamespace(param_groups=groups)) == OptimizerFacts(None, None)
    advice = advise(128, base_batch=64, own=OptimizerFacts("sgd", 0.5))
    assert advice.learning_rate is not None
    assert advice.learning_rate.learning_rate == 1.0


def test_what_is_missing_for_a_learning_rate_is_named() -> None:
    advice = advise(128, base_batch=64)
    assert advice.learning_rate is None
    assert advice.words == (
        "For advice on the learning rate give --optimizer and --base-lr: the step does not show it.",
    )


@pytest.mark.parametrize("wrong", [{"optimizer": "lion"}, {"base_lr": 0.0, "base_batch": 1}, {"base_lr": 0.1}])
def test_a_request_refuses_what_makes_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TuneRequest(data="set", step="resnet50", **wrong)
