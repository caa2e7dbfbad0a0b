"""Checkpointing and autocast are tried where they could help, and told with their numbers."""

from __future__ import annotations

from typing import Any

from wellfed.pipeline.config import TuneRequest
from wellfed.pipeline.training.step_facts import StepFacts
from wellfed.pipeline.tune.driver import Device, Driver
from wellfed.pipeline.tune.model.space import Limits

MEBI = 1 << 20


def facts(seconds: float, **more: Any) -> StepFacts:
    return StepFacts(
        call_seconds=(9.0, 9.0, 9.0, *[seconds] * 9), parameters_on="cuda", returned="Tensor", loss=1.0, **more
    )


def run(rig: Any, *, on_cuda: bool = True, **more: Any) -> Any:
    request = TuneRequest(data="set", step="m:build", **more)
    limits = Limits(cores=2, memory_bytes=None, shm_bytes=None)
    return Driver(rig, request, limits, Device(8 << 30, pin_memory=False, on_cuda=on_cuda)).run()


def tried(rig: Any) -> list[tuple[Any, ...]]:
    return [call[1:] for call in rig.calls if call[0] == "variant"]


def test_where_memory_binds_both_are_tried_and_the_larger_batch_is_told(fake_rig: Any) -> None:
    # given 500 + 20 b MiB under 5,734: batch 128 fits and 256 does not, and a larger batch is faster
    probe_type = type(fake_rig().probe(1))

    def variant(batch: int, name: str) -> Any:
        if name == "autocast":
            return probe_type(batch, None, False, "the step uses autocast already")
        return probe_type(batch, (500 + 8 * batch) * MEBI, facts=facts(0.125))

    rig = fake_rig(step=lambda b: (b * 10.0, 95.0), loader=lambda s: 1e6, facts=lambda b: facts(0.1), variant=variant)
    result = run(rig)

    assert result.chosen.trial.batch_size == 128
    assert tried(rig) == [(128, "checkpointing"), (128, "autocast")]
    notes = "\n".join(result.notes)
    # 500 + 20 x 128 = 3,060 MiB against 1,524; 0.1 s against 0.125; (5,734 - 500) / 8 = 654, so 512.
    assert "Tried on your step at batch 128, not applied: gradient checkpointing" in notes
    assert "2.99 GiB to 1.49 GiB at peak; 100.0 to 125.0 ms a step (-20% samples/s)" in notes
    assert "batch 512 would fit under the cap" in notes
    assert "Not tried: autocast to bfloat16 around the model's forward: the step uses autocast already." in notes


def test_where_the_step_binds_autocast_is_tried(fake_rig: Any) -> None:
    probe_type = type(fake_rig().probe(1))
    rig = fake_rig(
        facts=lambda b: facts(0.1),
        variant=lambda b, v: probe_type(b, (500 + 12 * b) * MEBI, facts=facts(0.08)),
    )
    result = run(rig, batch_sizes=(16, 32))
    assert tried(rig) == [(result.chosen.trial.batch_size, "autocast")]
    assert any("100.0 to 80.0 ms a step (+25% samples/s)" in note for note in result.notes)


def test_nothing_is_tried_where_the_loader_binds_or_there_is_no_model_or_no_gpu(fake_rig: Any) -> None:
    slow = fake_rig(loader=lambda s: 100.0, facts=lambda b: facts(0.1))
    run(slow, batch_sizes=(16, 32))
    no_model = fake_rig(facts=lambda b: StepFacts(call_seconds=(0.1,) * 12))
    run(no_model, batch_sizes=(16, 32))
    no_gpu = fake_rig(facts=lambda b: facts(0.1))
    run(no_gpu, batch_sizes=(16, 32), on_cuda=False)
    assert [tried(rig) for rig in (slow, no_model, no_gpu)] == [[], [], []]


def test_a_budget_that_is_spent_is_told(fake_rig: Any) -> None:
    rig = fake_rig(facts=lambda b: facts(0.1))
    result = run(rig, batch_sizes=(16, 32), budget_seconds=20)
    assert tried(rig) == []
    assert any("no time to try autocast" in note for note in result.notes)
