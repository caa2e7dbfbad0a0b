"""Checkpointing and autocast of a model by changing its forward: same gradients, less memory kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision import models

from wellfed.pipeline.training.variants import checkpoint_blocks, repeated_blocks, why_no_autocast, with_autocast


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.5), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), *[Block() for _ in range(4)], nn.Linear(16, 3))


def kept_bytes(model: nn.Module) -> tuple[int, list[torch.Tensor]]:
    """Bytes that the forward pass keeps for the backward pass, less parameters; and the gradients."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(1)
    images = torch.randn(32, 16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(images).square().mean()
    total = sum(kept.values())
    loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return total, gradients


def test_checkpointed_blocks_keep_less_and_give_the_same_gradients() -> None:
    plain_bytes, plain = kept_bytes(net())
    model = net()
    assert checkpoint_blocks(model) is None
    less_bytes, same = kept_bytes(model)

    # Of each block only its input of 32 x 16 floats stays, instead of three activations of 64 columns as well.
    assert less_bytes < plain_bytes / 3
    assert len(plain) == len(same) > 0
    for one, other in zip(plain, same, strict=True):
        assert torch.allclose(one, other, atol=1e-7)


def test_blocks_of_known_models() -> None:
    resnet = repeated_blocks(models.resnet18(weights=None))
    assert [type(block).__name__ for block in resnet] == ["BasicBlock"] * 8
    vit = repeated_blocks(models.VisionTransformer(32, 16, 3, 2, 32, 64))
    assert [type(block).__name__ for block in vit] == ["EncoderBlock"] * 3
    # Single layers are none: computing one again saves nothing.
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    # What lies in plain containers is found in them, and blocks in blocks are one level.
    nested = nn.Sequential(*[nn.Sequential(Outer(), Outer()) for _ in range(3)])
    assert [type(block) for block in repeated_blocks(nested)] == [Outer] * 6


def test_a_model_without_blocks_says_so() -> None:
    assert checkpoint_blocks(nn.Linear(2, 2)) == "the model has no repeated blocks"


def test_autocast_computes_in_bfloat16_and_hands_on_float32() -> None:
    model = net().eval()
    images = torch.randn(4, 16)
    plain = model(images)
    already = with_autocast(model, "cpu")
    cast = model(images)

    assert cast.dtype == torch.float32
    assert not torch.equal(cast, plain)
    assert torch.allclose(cast, plain, atol=0.05)
    assert already == []


def test_a_step_under_autocast_already_is_told() -> None:
    model = net()
    already = with_autocast(model, "cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(4, 16))
    assert already == ["the step uses autocast already"]


def test_outputs_in_containers_are_float32_too() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> dict[str, object]:
            y = self.layer(x)
            return {"logits": y, "others": [y, (y, 1)]}

    model = Two()
    with_autocast(model, "cpu")
    out = model(torch.randn(2, 4))
    assert out["logits"].dtype == out["others"][0].dtype == out["others"][1][0].dtype == torch.float32


@pytest.mark.parametrize("compiled", ["whole", "in place"])
def test_a_compiled_model_is_left_alone(compiled: str) -> None:
    model = net()
    if compiled == "whole":
        model = torch.compile(model)  # type: ignore[assignment]
    else:
        model.compile()
    reason = "the model is compiled, which has taken in its forward"
    assert checkpoint_blocks(model) == reason
    assert why_no_autocast(model) == reason


def test_a_model_in_half_precision_needs_no_autocast() -> None:
    assert why_no_autocast(net().bfloat16()) == "the model's parameters are not float32"
    assert why_no_autocast(net()) is None
