"""A user's step with gradient checkpointing or autocast, by changing the forward of its model in a probing process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.checkpoint import checkpoint

__all__ = ["Variant", "apply", "checkpoint_blocks", "repeated_blocks", "why_no_autocast", "with_autocast"]

Variant = Literal["checkpointing", "autocast"]

_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)


def apply(variant: Variant, model: Any, torch_device: str) -> list[str]:
    """Change a model's forward.

    Returns:
        Why that was not possible or changes nothing; more may come in the first call.
    """
    if not isinstance(model, torch.nn.Module):
        return ["the step has no `model`"]
    if variant == "checkpointing":
        reason = checkpoint_blocks(model)
    elif (reason := why_no_autocast(model)) is None:
        return with_autocast(model, torch.device(torch_device).type)
    return [] if reason is None else [reason]


def repeated_blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The model's blocks: the group of at least two children of one class in one container that holds most parameters.

    Groups with the same class in several containers (a ResNet's stages) are one; a plain container is no block, since a
    whole stage computed again needs its activations all at once. Empty where nothing repeats.
    """
    groups: dict[type, list[torch.nn.Module]] = {}
    inside: set[int] = set()
    for container in model.modules():
        if id(container) in inside:
            continue
        children = list(container.children())
        for kind in {type(child) for child in children}:
            if kind in _CONTAINERS:
                continue
            alike = [child for child in children if type(child) is kind and any(True for _ in child.children())]
            if len(alike) < 2:
                continue
            groups.setdefault(kind, []).extend(alike)
            # What lies within a block is no block of its own: checkpoints in checkpoints compute twice for nothing.
            inside.update(id(module) for block in alike for module in block.modules())
    return max(groups.values(), key=_parameters, default=[])


def _parameters(blocks: Sequence[torch.nn.Module]) -> int:
    return sum(parameter.numel() for block in blocks for parameter in block.parameters())


def checkpoint_blocks(model: torch.nn.Module) -> str | None:
    """Compute each block's activations again in the backward pass instead of keeping them.

    Returns:
        Why that was not possible; None where it is done.
    """
    if _is_compiled(model):
        return "the model is compiled, which has taken in its forward"
    blocks = repeated_blocks(model)
    if not blocks:
        return "the model has no repeated blocks"
    for block in blocks:
        # The random state is kept, as in training: a dropout must drop the same again.
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    return None


def why_no_autocast(model: torch.nn.Module) -> str | None:
    """Why autocast would change nothing, as far as can be told before a call."""
    if _is_compiled(model):
        return "the model is compiled, which has taken in its forward"
    kinds = {parameter.dtype for parameter in model.parameters()}
    return None if torch.float32 in kinds else "the model's parameters are not float32"


def with_autocast(model: torch.nn.Module, device_type: str) -> list[str]:
    """Run the model's forward under autocast to bfloat16.

    Returns:
        A list that gets the reason in the first call, where the step does so already.
    """
    forward = model.forward
    already: list[str] = []

    def cast(*arguments: Any, **keywords: Any) -> Any:
        if torch.is_autocast_enabled(device_type) and not already:
            already.append("the step uses autocast already")
        with torch.autocast(device_type, dtype=torch.bfloat16):
            return _as_float32(forward(*arguments, **keywords))

    model.forward = cast  # type: ignore[method-assign]
    return already


def _as_float32(value: Any) -> Any:
    """Outputs as the rest of the step, which is not under autocast, expects them."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_as_float32(item) for item in value)
    return {key: _as_float32(item) for key, item in value.items()} if type(value) is dict else value


def _is_compiled(model: torch.nn.Module) -> bool:
    """Whether any part of it is compiled: `torch.compile(model)`, or `model.compile()` in place."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
