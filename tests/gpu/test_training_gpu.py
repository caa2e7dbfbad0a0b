"""The CUDA accelerator, the reference steps and the memory probe on a real card."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator

import pytest
import torch

from wellfed.pipeline.hardware import fingerprint, gpu_facts
from wellfed.pipeline.training import CachedBatches, StepSpec, build_step, measure, open_accelerator, probe_memory
from wellfed.pipeline.training.accelerator import Accelerator, Batch

pytestmark = pytest.mark.gpu

GIB = 2**30


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    device = open_accelerator("cuda:0")
    yield device
    device.reset_peak()
    device.close()


def test_nvml_tells_of_the_card() -> None:
    facts = {fact.name: fact for fact in gpu_facts()}
    assert facts["gpus"].value >= 1
    assert facts["gpu 0 memory"].value > GIB
    assert fingerprint()["gpus"][0]["memory_gib"] >= 1


def test_auto_is_the_card_and_it_is_mapped_to_nvml(accelerator: Accelerator) -> None:
    assert open_accelerator("auto").kind == "cuda"
    assert accelerator.torch_device == "cuda:0"
    assert accelerator.description["nvml"] == "available"
    assert accelerator.memory_total_bytes == torch.cuda.get_device_properties(0).total_memory
    json.dumps(accelerator.description)


def test_a_busy_card_reads_busy_and_an_idle_one_idle(accelerator: Accelerator) -> None:
    step = build_step(StepSpec(name="resnet50"), accelerator, 128)
    batches = CachedBatches(accelerator, 128, 224)
    measure(step, batches, accelerator, seconds=2.0)

    busy = measure(step, batches, accelerator, seconds=4.0)

    assert busy.util_source == "NVML GPU-Util sample buffer"
    assert busy.util_percent is not None
    assert busy.util_percent > 80
    assert len(busy.util_samples) >= 4
    # Peak reserved is torch's alone; the context and the libraries come on top.
    assert busy.peak_bytes is not None
    assert busy.torch_peak_reserved_bytes is not None
    assert 0 < busy.peak_bytes - busy.torch_peak_reserved_bytes < 4 * GIB
    # 20 Hz or more.
    assert len(busy.memory_samples) >= 20 * 4
    assert math.isclose(sum(busy.wait_seconds) + sum(busy.step_seconds), busy.wall_seconds, rel_tol=0.2)

    def slowly() -> Iterator[Batch]:
        for batch in batches:
            torch.cuda.synchronize()
            # A starved card waits about ten times as long as it works.
            time.sleep(0.4)
            yield batch

    starved = measure(step, slowly(), accelerator, seconds=4.0)
    assert starved.util_percent is not None
    assert starved.util_percent < 40
    assert starved.wait_share > 0.7


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vit_b_16"])
def test_reference_steps_learn_a_fixed_batch(accelerator: Accelerator, name: str) -> None:
    torch.manual_seed(0)
    step = build_step(StepSpec(name=name, num_classes=10), accelerator, 16)
    images, labels = next(CachedBatches(accelerator, 16, 224, num_classes=10))
    step.optimizer.param_groups[0]["lr"] = 0.001

    losses = [float(step(images, labels)) for _ in range(40)]

    assert all(math.isfinite(loss) for loss in losses)
    assert min(losses[-5:]) < losses[0]


def test_running_out_of_memory_is_seen_and_the_card_goes_on(accelerator: Accelerator) -> None:
    total = accelerator.memory_total_bytes
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda:0")
    assert accelerator.is_out_of_memory(caught.value)
    step = build_step(StepSpec(name="resnet18"), accelerator, 8)
    step(*next(CachedBatches(accelerator, 8, 224)))
    accelerator.synchronize()


def test_probes_grow_with_the_batch_and_do_not_count_this_process(accelerator: Accelerator) -> None:
    held = torch.zeros(4 * GIB, dtype=torch.uint8, device="cuda:0")
    small, large = (probe_memory(StepSpec(name="resnet50"), "cuda:0", size, timeout_seconds=120) for size in (32, 256))
    assert (small.error, large.error) == (None, None)
    assert small.peak_bytes is not None
    assert large.peak_bytes is not None
    assert small.peak_bytes < 8 * GIB
    assert large.peak_bytes > small.peak_bytes + 8 * GIB
    assert held.numel() == 4 * GIB


def test_a_probe_that_does_not_fit_is_out_of_memory() -> None:
    # About 0.1 GiB a sample, so that no card holds it, and the batches themselves stay small on the host.
    probe = probe_memory(StepSpec(name="resnet50"), "cuda:0", 4096, timeout_seconds=120)
    assert probe.error is None
    assert probe.out_of_memory
