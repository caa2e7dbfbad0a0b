"""The step that is no reference step of the product, as `benchmarks.fed_ratio.steps:compiled_resnet50`."""

from __future__ import annotations

from wellfed.pipeline.training.steps import ReferenceStep, StepSpec


def compiled_resnet50(device: str, num_classes: int, image_size: int) -> ReferenceStep:
    """The reference ResNet-50 step with its model compiled by torch; the first call takes a minute."""
    step = ReferenceStep(StepSpec(name="resnet50", num_classes=num_classes, image_size=image_size), device)
    step.model.compile()
    return step
