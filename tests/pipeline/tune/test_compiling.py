"""Compiling: told from the calls, counted by itself, and with the graphs that training would have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from wellfed.pipeline.formats import open_source
from wellfed.pipeline.training import MemoryProbe, StepSpec, open_accelerator
from wellfed.pipeline.training.compiled import StaticGraphs
from wellfed.pipeline.tune.machine import compiling
from wellfed.pipeline.tune.machine.compiling import CompilingTime
from wellfed.pipeline.tune.machine.rig import MachineRig
from wellfed.pipeline.tune.measure.memory import MemoryPlan


def test_what_a_call_takes_beyond_a_usual_one_and_five_seconds_is_compiling() -> None:
    taken = CompilingTime()
    taken.called(64, [40.0, 0.5, 0.5], warming_up=True)
    assert taken.seconds == 34.5
    # A loader's batches, in another memory format: one call, compared with those before it.
    taken.called(64, [25.5], warming_up=True)
    assert taken.seconds == 34.5 + 20.0
    # A measured window counts whole.
    taken.called(64, [30.0, 0.5], warming_up=False)
    assert taken.seconds == 54.5
    taken.probed([50.0, 1.0])
    assert taken.seconds == 54.5 + 44.0


def test_a_slow_step_does_not_compile() -> None:
    taken = CompilingTime()
    taken.called(16, [9.0, 8.0, 8.0], warming_up=True)
    taken.called(16, [8.5], warming_up=True)
    assert taken.seconds == 0.0
    # One call alone has nothing to be compared with.
    taken.probed([9.0])
    assert taken.seconds == 4.0


def test_first_calls_of_a_step_that_compiles_are_told_from_measuring(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a step whose first call takes 0.4 s longer than any other, and a limit of 0.1 s for such calls
    (tmp_path / "compiling_step.py").write_text(
        "import time\n"
        "def build(device):\n"
        "    calls = []\n"
        "    def step(images, labels):\n"
        "        if not calls:\n"
        "            time.sleep(0.5)\n"
        "        calls.append(1)\n"
        "    return step\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compiling, "FIRST_CALL_SECONDS", 0.1)
    spec, accelerator = StepSpec(name="compiling_step:build", image_size=32), open_accelerator("simulated")
    with (
        closing(open_source(str(folder))) as source,
        MachineRig(source, spec, "simulated", accelerator) as rig,
    ):
        assert rig.compiling_seconds() == 0
        rig.ceiling(4, 0.05)
        here = rig.compiling_seconds()
        assert here >= 0.39
        rig.ceiling(4, 0.05)
        assert rig.compiling_seconds() == here
        rig.probe(4)
        assert rig.compiling_seconds() >= here + 0.39


def test_sizes_are_thinned_out_to_four_times_each_other_but_for_those_probed_and_wanted() -> None:
    def probe(size: int) -> MemoryProbe:
        return MemoryProbe(batch_size=size, peak_bytes=size, out_of_memory=False, error=None)

    plan = MemoryPlan(probe, (16, 32, 64, 100, 128, 256, 512, 1024), cap_bytes=1 << 20, cap_share=0.7)
    plan.start()
    assert sorted(plan.probes) == [16, 64]
    assert plan.thin_out(4, [100]) == (32, 128, 256, 1024)
    assert plan.sizes == (16, 64, 100, 512)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        path = tmp_path / "photos" / "a" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def dynamo() -> Iterator[Any]:
    import torch._dynamo

    config: Any = torch._dynamo.config
    before, config.recompile_limit = config.recompile_limit, 3  # monkeypatch cannot put it back: it takes it for absent
    yield config
    config.recompile_limit = before
    torch._dynamo.reset()


def test_each_batch_size_has_a_static_graph_and_settings_come_back(
    dynamo: Any, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graphs_step.py").write_text(
        "import torch\n"
        "graphs = []\n"
        "def keep(module, inputs):\n"
        "    graphs.append([tuple(i.shape) for i in inputs if isinstance(i, torch.Tensor)])\n"
        "    return module.forward\n"
        "def build(device):\n"
        "    def loss_of(images):\n"
        "        return (images.float() * 2).mean()\n"
        "    compiled = torch.compile(loss_of, backend=keep)\n"
        "    return lambda images, labels: compiled(images)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec, accelerator = StepSpec(name="graphs_step:build", image_size=8), open_accelerator("simulated")
    with closing(open_source(str(folder))) as source, MachineRig(source, spec, "simulated", accelerator) as rig:
        sizes = (2, 3, 4, 5, 6, 7)
        for size in sizes:
            rig.ceiling(size, 0.01)
        rig.ceiling(2, 0.01)
        assert dynamo.automatic_dynamic_shapes is False
    assert sys.modules["graphs_step"].graphs == [[(size, 3, 8, 8)] for size in sizes]
    assert dynamo.automatic_dynamic_shapes is True
    assert dynamo.recompile_limit == 3


def test_without_a_compiler_nothing_is_imported_or_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    graphs = StaticGraphs()
    graphs.apply()
    graphs.restore()
    assert "torch._dynamo" not in sys.modules
