"""Reference steps, users' steps, and what is said of one that fails."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wellfed.pipeline.errors import StepError, UsageError
from wellfed.pipeline.training import StepSpec, build_step, open_accelerator, validate_step_name
from wellfed.pipeline.training.steps import ReferenceStep

_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module into the working directory and returns its name."""
    monkeypatch.chdir(tmp_path)
    # The code under test adds the working directory itself.
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str) -> str:
        name = f"own_step_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def build(name: str) -> Any:
    return build_step(StepSpec(name=name, image_size=8, num_classes=5), open_accelerator("simulated"), 2)


BATCH = (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))


def test_a_reference_step_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    step = ReferenceStep(StepSpec(name="resnet18", image_size=32, num_classes=3), "cpu")
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    before = [p.detach().clone() for p in step.model.parameters()]

    loss = step(images, torch.tensor([0, 1, 2, 0]))

    assert torch.isfinite(loss)
    assert not loss.requires_grad
    assert all(not torch.equal(a, b) for a, b in zip(before, step.model.parameters(), strict=True) if a.dim() == 4)
    assert step.optimizer.param_groups[0]["momentum"] == 0.9
    conv = next(m for m in step.model.modules() if isinstance(m, torch.nn.Conv2d))
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert step.model.fc.out_features == 3


def test_normalization_is_inside_the_step() -> None:
    step = ReferenceStep(StepSpec(name="resnet18", image_size=32, num_classes=3), "cpu")
    seen: list[torch.Tensor] = []
    step.model.register_forward_pre_hook(lambda model, inputs: seen.append(inputs[0].detach()))
    images = torch.full((2, 3, 32, 32), 255, dtype=torch.uint8)

    step(images, torch.tensor([0, 1]))

    # (1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225
    assert seen[0][0, :, 0, 0].tolist() == pytest.approx([2.2489, 2.4286, 2.6400], abs=1e-4)


def test_a_users_step_gets_the_keywords_it_accepts(module: Any) -> None:
    name = module(
        "def some(device, num_classes, *, extra=1):\n"
        "    assert (device, num_classes, extra) == ('cpu', 5, 1)\n"
        "    return lambda images, labels: 'some'\n"
        "def everything(**keywords):\n"
        "    assert sorted(keywords) == ['batch_size', 'device', 'image_size', 'num_classes'], keywords\n"
        "    return lambda images, labels: 'everything'\n"
        "class Step:\n"
        "    def __init__(self):\n"
        "        self.optimizer = 'sgd'\n"
        "    def __call__(self, images, labels):\n"
        "        return 'class'\n"
        "class namespace:\n"
        "    inner = Step\n"
    )

    assert build(f"{name}:some")(*BATCH) == "some"
    assert build(f"{name}:everything")(*BATCH) == "everything"
    assert build(f"{name}:Step").optimizer == "sgd"
    assert build(f"{name}:Step").model is None
    assert build(f"{name}:namespace.inner")(*BATCH) == "class"


@pytest.mark.parametrize(
    "name", ["", "resnet", "resnet50:", ":build", "a b:c", "mod:<lambda>", "mod:f.<locals>.g", "mod/file.py:f", "a:b:c"]
)
def test_names_that_name_no_step(name: str) -> None:
    with pytest.raises(UsageError, match="module:function"):
        validate_step_name(name)


def test_functions_and_closures_are_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="child processes import it again"):
        validate_step_name(lambda: None)
    with pytest.raises(UsageError, match="__main__ is another module there"):
        StepSpec(name="__main__:build")


def test_sizes_must_be_positive() -> None:
    with pytest.raises(UsageError, match="image_size"):
        StepSpec(name="resnet50", image_size=0)
    with pytest.raises(UsageError, match="num_classes"):
        StepSpec(name="resnet50", num_classes=True)


def test_what_is_missing_is_named(module: Any) -> None:
    name = module("def build():\n    pass\nnumber = 3\n")

    with pytest.raises(UsageError, match=r"module 'no_such_module_here' must be importable"):
        build("no_such_module_here:build")
    # a file's name is not its module's, and the folder does not help
    with pytest.raises(UsageError, match=r"got 'no_such_module_here.py'. Write no_such_module_here:build, without .py"):
        build("no_such_module_here.py:build")
    with pytest.raises(UsageError, match=r"must have the function 'bild'.*build"):
        build(f"{name}:bild")
    with pytest.raises(UsageError, match="must name a function"):
        build(f"{name}:number")


def test_errors_of_the_users_code_are_step_errors_with_the_cause(module: Any) -> None:
    needs = module("import a_library_nobody_has\n")
    raises = module("raise OSError('no weights')\n")
    builds = module("def build():\n    raise ValueError('bad depth')\ndef nothing():\n    return 3\n")

    with pytest.raises(StepError, match="a_library_nobody_has"):
        build(f"{needs}:build")
    with pytest.raises(StepError, match="OSError: no weights"):
        build(f"{raises}:build")
    with pytest.raises(StepError, match="ValueError: bad depth") as caught:
        build(f"{builds}:build")
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(StepError, match=r"must return a callable.*got 'int'"):
        build(f"{builds}:nothing")


def test_a_users_script_that_exits_ends_in_an_error_not_in_its_exit_code(module: Any) -> None:
    script = module("import sys\nsys.exit(3)\n")
    builds = module("def build():\n    raise SystemExit(4)\n")
    steps = module("def build():\n    def step(images, labels):\n        raise SystemExit(5)\n    return step\n")

    with pytest.raises(StepError, match=r"got SystemExit: 3\. .*if __name__ == '__main__':"):
        build(f"{script}:build")
    with pytest.raises(StepError, match=r"building .* raised; got SystemExit: 4"):
        build(f"{builds}:build")
    step = build(f"{steps}:build")
    with pytest.raises(StepError, match=r"at call 1; got SystemExit: 5"):
        step(*BATCH)


def test_a_function_that_needs_more_is_refused(module: Any) -> None:
    name = module("def build(device, depth):\n    pass\ndef strict(device, /):\n    pass\n")

    with pytest.raises(UsageError, match="requires depth"):
        build(f"{name}:build")
    with pytest.raises(UsageError, match="requires device"):
        build(f"{name}:strict")


def test_a_step_that_raises_is_named_with_its_call_and_cause(module: Any) -> None:
    name = module(
        "def build():\n"
        "    calls = []\n"
        "    def step(images, labels):\n"
        "        calls.append(1)\n"
        "        if len(calls) == 3:\n"
        "            raise ZeroDivisionError('by zero')\n"
        "    return step\n"
    )
    step = build(f"{name}:build")
    step(*BATCH)
    step(*BATCH)

    with pytest.raises(
        StepError, match=rf"the step {name}:build .* at call 3; got ZeroDivisionError: by zero"
    ) as caught:
        step(*BATCH)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_running_out_of_memory_passes_through(module: Any) -> None:
    name = module(
        "import torch\n"
        "def build():\n"
        "    def step(images, labels):\n"
        "        raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')\n"
        "    return step\n"
        "def greedy():\n"
        "    raise torch.OutOfMemoryError('CUDA out of memory')\n"
    )
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        build(f"{name}:build")(*BATCH)
    with pytest.raises(torch.OutOfMemoryError):
        build(f"{name}:greedy")


def test_torch_devices_map_to_nvml_by_uuid_and_address() -> None:
    from wellfed.pipeline.hardware.nvml import nvml_keys

    properties = SimpleNamespace(uuid="ab-cd", pci_domain_id=0, pci_bus_id=0x65, pci_device_id=0)
    assert nvml_keys(properties) == ("GPU-ab-cd", "00000000:65:00.0")
    assert nvml_keys(SimpleNamespace(uuid="MIG-ab")) == ("MIG-ab", None)
    assert nvml_keys(SimpleNamespace()) == (None, None)
