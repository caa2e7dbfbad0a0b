"""Probing memory in a child process that leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from PIL import Image

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.training import ProbeLoader, StepSpec, probe_memory
from wellfed.pipeline.training.probe import CANCELLED, group_of_one
from wellfed.pipeline.training.probe_child import run_step
from wellfed.pipeline.training.process_group import ProbeGroup
from wellfed.pipeline.training.simulated import CONTEXT_BYTES, MODELS, SimulatedAccelerator

STEPS = """
import os, subprocess, sys, threading, time

def good():
    print("a line on standard output")
    return lambda images, labels: None

def bad():
    def step(images, labels):
        raise ValueError("no good")
    return step

def die():
    os._exit(3)

def third():
    calls = []
    def step(images, labels):
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("third")
    return step

def deadlock():
    lock = threading.Lock()
    start_a_process()
    def waits_for_itself(images, labels):
        lock.acquire()
    return waits_for_itself

def leak():
    import torch
    kept = []
    def step(images, labels):
        kept.append(torch.ones(2**21))
        return torch.tensor(float("nan"))
    return step

def collective():
    import torch, torch.distributed as dist
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    def step(images, labels):
        ranks = torch.ones(1)
        dist.all_reduce(ranks)
        return ranks
    return step

def start_a_process():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with open("pids.tmp", "w") as f:
        f.write(f"{os.getpid()} {child.pid}")
    os.rename("pids.tmp", "pids")

def endless_thread():
    threading.Thread(target=time.sleep, args=(1e6,)).start()
    return good()

def hang():
    start_a_process()
    threading.Event().wait()
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "probed_steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images" / "one"
    folder.mkdir(parents=True)
    for number in range(12):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / f"{number}.png")
    return folder.parent


def spec(function: str) -> StepSpec:
    return StepSpec(name=f"probed_steps:{function}", image_size=8)


def test_a_reference_step_on_the_simulated_device_needs_no_child() -> None:
    model = MODELS["resnet50"]
    images = 3 * (16 * 3 * 224 * 224 + 16 * 8)

    probe = probe_memory(StepSpec(name="resnet50"), "simulated", 16, timeout_seconds=1)

    expected = CONTEXT_BYTES + 12 * model.parameters + 16 * model.sample_bytes + images
    assert (probe.peak_bytes, probe.out_of_memory, probe.error) == (expected, False, None)


def test_a_batch_that_does_not_fit_is_out_of_memory() -> None:
    probe = probe_memory(StepSpec(name="resnet50"), "simulated", 256, timeout_seconds=1)

    assert (probe.batch_size, probe.peak_bytes, probe.out_of_memory, probe.error) == (256, None, True, None)


def test_a_users_step_is_probed_in_a_child(steps: Path) -> None:
    probe = probe_memory(spec("good"), "simulated", 4, timeout_seconds=120)

    assert (probe.batch_size, probe.out_of_memory, probe.error) == (4, False, None)
    assert probe.peak_bytes is not None
    assert probe.peak_bytes > CONTEXT_BYTES


def test_a_step_that_raises_is_the_probes_error(steps: Path) -> None:
    probe = probe_memory(spec("bad"), "simulated", 4, timeout_seconds=120)

    assert (probe.peak_bytes, probe.out_of_memory) == (None, False)
    assert probe.error is not None
    assert "ValueError: no good" in probe.error


def test_a_child_that_dies_is_the_probes_error(steps: Path) -> None:
    probe = probe_memory(spec("die"), "simulated", 4, timeout_seconds=120)

    assert probe.error is not None
    assert "ended with code 3 while the step was imported and built" in probe.error
    assert probe.fault == "died"


def gone(pids: list[int], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids):
            return True
        time.sleep(0.05)
    return False


def test_a_step_that_deadlocks_is_told_by_its_stacks_and_killed_with_what_it_started(steps: Path) -> None:
    probe = probe_memory(spec("deadlock"), "simulated", 4, timeout_seconds=100, stall_seconds=0.5)

    assert probe.error == "the probing process did not come on for 0.5 s in call 2 of the step"
    assert probe.fault == "hung"
    assert "in waits_for_itself" in (probe.details or "")
    pids = [int(pid) for pid in (steps / "pids").read_text().split()]
    assert len(pids) == 2
    assert gone(pids, 0.5)


def test_a_thread_of_the_step_that_never_ends_does_not_hold_the_probe(steps: Path) -> None:
    probe = probe_memory(spec("endless_thread"), "simulated", 2, timeout_seconds=100, stall_seconds=100)
    assert probe.error is None
    assert probe.facts is not None


def test_a_step_that_raises_at_its_third_call_is_told_by_number_and_traceback(steps: Path) -> None:
    probe = probe_memory(spec("third"), "simulated", 4, timeout_seconds=100)

    assert probe.fault == "raised"
    assert "at call 3; got KeyError: 'third'" in (probe.error or "")
    assert "raise KeyError" in (probe.details or "")


def test_what_the_calls_showed_comes_back(steps: Path) -> None:
    probe = probe_memory(spec("leak"), "simulated", 4, timeout_seconds=100)

    facts = probe.facts
    assert facts is not None
    assert len(facts.call_seconds) == len(facts.host_bytes) == 12
    assert (facts.returned, facts.loss, facts.loss_finite) == ("Tensor", None, False)
    # 8 MiB are kept in each call.
    assert facts.host_bytes[-1] - facts.host_bytes[2] > 8 * 9 * 2**20
    # 4 images of 8 x 8 in three bytes, and 4 labels of 8 bytes.
    assert facts.batch_bytes == 4 * 3 * 8 * 8 + 4 * 8
    assert facts.device_bytes is None


def test_the_loader_that_feeds_the_step_counts(steps: Path, image_folder: Path) -> None:
    settings = LoaderSettings(backend="threads", num_workers=1, batch_size=4, pin_memory=False)
    fed = ProbeLoader(data=str(image_folder), settings=settings, times=50)

    probe = probe_memory(spec("good"), "simulated", 4, timeout_seconds=100, loader=fed)

    assert probe.error is None
    assert probe.facts is not None
    # For two seconds, so that what a loader holds ready is held.
    assert len(probe.facts.call_seconds) > 12
    assert probe.peak_bytes is not None
    assert probe.peak_bytes > CONTEXT_BYTES


@pytest.mark.parametrize(("asked", "calls"), [([], 4), ([True, True, True, False], 7)])
def test_a_probe_ends_when_all_ranks_do(
    steps: Path, monkeypatch: pytest.MonkeyPatch, asked: list[bool], calls: int
) -> None:
    # given answers of all ranks together on each call after the fourth
    monkeypatch.syspath_prepend(str(steps))
    numbers: list[int] = []
    answers = iter(asked)

    def go_on(number: int, wanted: bool) -> bool:
        numbers.append(number)
        return next(answers, False)

    answer = run_step(spec("good"), SimulatedAccelerator("simulated"), 4, go_on=go_on)

    assert len(answer["facts"]["call_seconds"]) == calls
    assert numbers == list(range(4, calls + 1))


def test_a_probe_is_given_up_where_another_ranks_child_has_failed(steps: Path) -> None:
    # given a child that waits for the other rank's, and a rank that says after a while that it has none any more
    answers = iter([False] * 40)
    group = ProbeGroup(rank=0, world_size=2, host="127.0.0.1", port=1, cancelled=lambda: next(answers, True))

    probe = probe_memory(spec("hang"), "simulated", 4, timeout_seconds=600, group=group)

    assert (probe.peak_bytes, probe.out_of_memory, probe.fault) == (None, False, None)
    assert probe.error == CANCELLED


def test_the_child_of_a_rank_is_launched_into_the_childrens_own_group() -> None:
    group = ProbeGroup(rank=3, world_size=8, host="node7", port=4711, cancelled=lambda: False)
    launched = {"PATH": "/bin", "LOCAL_RANK": "1", "MASTER_ADDR": "node2", "MASTER_PORT": "29500"}

    assert group.environment(launched) == {
        "PATH": "/bin",
        "RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "node7",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


PARENT = """
import sys
from wellfed.pipeline.training import StepSpec, probe_memory
probe_memory(StepSpec(name="probed_steps:hang", image_size=8), "simulated", 4, timeout_seconds=600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_probe_ends_with_its_parent(steps: Path, number: int) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (steps / "pids").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        pids = [int(pid) for pid in (steps / "pids").read_text().split()]
        parent.send_signal(number)
        parent.wait(20)
    finally:
        parent.kill()

    assert gone(pids)


def test_a_launched_rank_probes_in_a_group_of_one() -> None:
    launched = {
        "PATH": "/bin",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "ROLE_RANK": "3",
        "MASTER_ADDR": "node7",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }

    assert group_of_one(launched) == {
        "PATH": "/bin",
        "RANK": "0",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    assert group_of_one({"PATH": "/bin"}) == {"PATH": "/bin"}


RANK = """
import json, sys
import torch.distributed as dist
from wellfed.pipeline.training import StepSpec, probe_memory

dist.init_process_group("gloo")
probe = probe_memory(StepSpec(name="probed_steps:collective", image_size=8), "simulated", 4, timeout_seconds=60)
seen = [None, None]
dist.all_gather_object(seen, (dist.get_rank(), probe.error, probe.facts and probe.facts.loss))
if dist.get_rank() == 0:
    print(json.dumps(seen))
dist.destroy_process_group()
"""


def test_under_torchrun_the_collectives_of_a_probed_step_wait_for_nobody(steps: Path) -> None:
    # given two ranks as torchrun starts them, of which each probes a step that reduces over all ranks
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "rank.py"]
    (steps / "rank.py").write_text(RANK)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    # then in each child the sum is over one
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == [[0, None, 1.0], [1, None, 1.0]]
