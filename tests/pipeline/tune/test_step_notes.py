"""Steps that misbehave: refused, or named with their numbers."""

from __future__ import annotations

from typing import Any

import pytest

from wellfed.pipeline.config import LoaderSettings, TuneRequest
from wellfed.pipeline.errors import StepError
from wellfed.pipeline.training import MemoryProbe
from wellfed.pipeline.training.step_facts import StepFacts
from wellfed.pipeline.tune.advice.step import leak_bytes, refuse_fault, step_notes
from wellfed.pipeline.tune.driver import Device, Driver
from wellfed.pipeline.tune.model.space import Limits

MEBI = 1 << 20
GROWING = tuple(100 * MEBI + 5 * MEBI * call for call in range(12))
FLAT = (100 * MEBI,) * 12


def facts(**more: Any) -> StepFacts:
    given: dict[str, Any] = {
        "call_seconds": (0.5, 0.01, 0.01, *[0.01] * 9),
        "device_bytes": FLAT,
        "host_bytes": FLAT,
        "device_work_bytes": 900 * MEBI,
        "batch_bytes": 2 * MEBI,
        "parameters_on": "cuda",
        "returned": "Tensor",
        "loss": 6.9,
        "loss_finite": True,
    }
    return StepFacts(**{**given, **more})


def notes(*found: tuple[int, StepFacts], device_bytes: int | None = 80 << 30, on_cuda: bool = True) -> list[str]:
    probes = [MemoryProbe(batch_size=size, peak_bytes=1, out_of_memory=False, error=None, facts=f) for size, f in found]
    return step_notes("m:build", probes, device_bytes=device_bytes, host_bytes=64 << 30, on_cuda=on_cuda)


def test_an_ordinary_step_has_no_notes() -> None:
    bigger = facts(call_seconds=(0.04,) * 12, device_work_bytes=3600 * MEBI, batch_bytes=8 * MEBI)
    assert notes((16, facts()), (64, bigger)) == []
    assert notes() == []


def test_a_leak_on_the_device_is_told_with_its_slope() -> None:
    (note,) = notes((16, facts(device_bytes=GROWING)))
    assert note.startswith("Leak: Device memory grows by 5.00 MiB a step at batch 16: ")
    assert "loss.item()" in note


def test_a_leak_of_host_memory_is_told_too() -> None:
    (note,) = notes((16, facts(host_bytes=GROWING)))
    assert note.startswith("Leak: Host memory grows by 5.00 MiB a step")


def test_a_leak_that_fills_memory_within_the_tune_is_refused() -> None:
    # 2,155 MiB under the cap, of which 155 are in use after 12 calls: 400 calls at 5 MiB.
    with pytest.raises(StepError, match=r"keep tensors alive .* 5\.00 MiB a step .* full after 400 more"):
        notes((16, facts(device_bytes=GROWING)), device_bytes=2155 * MEBI)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (GROWING, 5.0 * MEBI),
        (FLAT, None),
        # Grows while caches fill, and not after.
        ((10, 20 * MEBI, 40 * MEBI, *FLAT), None),
        # Up and down.
        (tuple(100 * MEBI + (call % 2) * MEBI for call in range(14)), None),
        # Less than is worth a word.
        (tuple(100 * MEBI + 512 * call for call in range(12)), None),
        # Too few calls to say.
        (GROWING[:6], None),
    ],
)
def test_what_counts_as_a_leak(sizes: tuple[int, ...], expected: float | None) -> None:
    assert leak_bytes(sizes, 64 << 10) == expected


def test_a_step_that_returns_nothing_may_be_measured() -> None:
    (note,) = notes((16, facts(returned="NoneType", loss=None, loss_finite=None)))
    assert "returns nothing" in note
    assert "could not be checked" in note


def test_a_loss_that_is_not_finite_is_told() -> None:
    (note,) = notes((16, facts(loss=None, loss_finite=False)))
    assert "not finite after 12 calls" in note


def test_a_step_on_the_cpu_is_told_by_its_parameters_or_by_the_memory_it_does_not_take() -> None:
    assert "parameters lie there" in notes((16, facts(parameters_on="cpu")))[0]
    assert "took 0 bytes on the GPU" in notes((16, facts(parameters_on=None, device_work_bytes=0)))[0]
    assert notes((16, facts(parameters_on="cpu", device_work_bytes=None)), on_cuda=False) == []


def test_a_step_that_ignores_the_batch_size_is_told() -> None:
    (note,) = notes((16, facts()), (64, facts(batch_bytes=8 * MEBI)))
    assert "as long for 64 samples (10.0 ms) as for 16 (10.0 ms)" in note
    # A step that launches bind takes no longer either, but it does take memory.
    assert notes((16, facts()), (64, facts(batch_bytes=8 * MEBI, device_work_bytes=3600 * MEBI))) == []
    # Without a GPU time alone decides.
    on_cpu = facts(device_work_bytes=None, device_bytes=None)
    assert len(notes((16, on_cpu), (64, on_cpu), on_cuda=False)) == 1
    slower = facts(device_work_bytes=None, device_bytes=None, call_seconds=(0.04,) * 12)
    assert notes((16, on_cpu), (64, slower), on_cuda=False) == []


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("raised", "the step m:build must run, and raised at call 3; got KeyError: 'x'.", "at call 3; got KeyError"),
        ("hung", "the probing process did not come on for 120 s in call 2 of the step", "each call .* in call 2"),
        ("died", "the probing process ended with signal SIGSEGV in call 1 of the step", "process alive.*SIGSEGV"),
    ],
)
def test_a_fault_of_the_step_is_refused_with_its_traceback(fault: Any, error: str, words: str) -> None:
    probe = MemoryProbe(
        batch_size=16, peak_bytes=None, out_of_memory=False, error=error, fault=fault, details="File 'm.py', line 7"
    )
    with pytest.raises(StepError, match=words) as caught:
        refuse_fault("m:build", probe)
    assert caught.value.__notes__ == ["In the probing process:\nFile 'm.py', line 7"]
    assert ".." not in str(caught.value)


@pytest.mark.parametrize(
    ("remedy", "words"), [("Return a function.", "Return a function."), (None, "Mend the step; --debug shows its")]
)
def test_what_the_steps_own_error_advises_is_kept(remedy: str | None, words: str) -> None:
    probe = MemoryProbe(
        batch_size=16, peak_bytes=None, out_of_memory=False, error="a rule; got 3.", fault="raised", remedy=remedy
    )
    with pytest.raises(StepError) as caught:
        refuse_fault("m:build", probe)
    assert str(caught.value).startswith(f"a rule; got 3. {words}")


def test_a_failure_that_is_not_the_steps_is_no_fault() -> None:
    refuse_fault("m:build", MemoryProbe(batch_size=16, peak_bytes=None, out_of_memory=False, error="no NVML"))


def test_a_tune_carries_the_notes(fake_rig: Any) -> None:
    rig = fake_rig(facts=lambda b: facts(device_bytes=GROWING, call_seconds=(b / 1000,) * 12))
    request = TuneRequest(data="set", step="m:build")
    limits = Limits(cores=2, memory_bytes=None, shm_bytes=None)
    result = Driver(rig, request, limits, Device(80 << 30, pin_memory=True, on_cuda=True)).run()
    assert result.verdict is not None
    assert any(note.startswith("Leak: Device memory grows by 5.00 MiB a step") for note in result.notes)


def test_a_loader_that_decodes_on_the_device_is_probed_together_with_the_step(fake_rig: Any) -> None:
    # given DALI that feeds the step where nothing else does, and takes 5 GiB beside a step of 0.8 to 1.8
    def speed(settings: LoaderSettings) -> float:
        return 700.0 if settings.backend == "dali" else 100.0

    rig = fake_rig(
        loader=speed, loader_bytes=lambda s: 5 << 30 if s.batch_size > 16 else 1 << 30, step=lambda b: (600.0, 95.0)
    )
    limits = Limits(cores=2, memory_bytes=None, shm_bytes=None, backends=("threads", "dali"))
    request = TuneRequest(data="set", step="m:build", batch_sizes=(32, 64))
    result = Driver(rig, request, limits, Device(8 << 30, pin_memory=True)).run()

    # then no DALI setting is returned, since each was tried and did not fit under 5.6 GiB
    assert result.chosen is not None
    assert result.chosen.trial.settings is not None
    assert result.chosen.trial.settings.backend == "threads"
    tried = [call for call in rig.calls if call[0] == "fed probe"]
    assert tried
    assert all(settings.backend == "dali" for _, _, settings in tried)
    assert any("together with its loader" in (r.left or "") for r in result.records)
    assert len(result.memory.to_dict()["fed_probes"]) == len(tried)
