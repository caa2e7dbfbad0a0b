"""The training scripts of examples/: each trains, and goes on in the middle of an epoch as if it had never stopped."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

NEEDS = {
    "torch": (),
    "lightning": ("lightning",),
    "accelerate": ("accelerate",),
    "transformers": ("transformers", "accelerate"),
}
ON_CPU = {"torch": (), "lightning": ("--accelerator", "cpu"), "accelerate": ("--cpu",), "transformers": ("--cpu",)}
Train = Callable[..., list[float]]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """9 JPEGs of noise in 2 classes: 4 whole batches of two, and one picture more."""
    root = tmp_path_factory.mktemp("examples") / "pictures"
    random = np.random.default_rng(1)
    for number in range(9):
        folder = root / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 48)).save(folder / f"{number}.jpg", quality=90)
    return root


@pytest.fixture
def train(pictures: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Train]]:
    """Of an example's name: a function that runs it with small pictures and returns its losses."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def choose(name: str) -> Train:
        for library in NEEDS[name]:
            pytest.importorskip(library, reason=f"needs {library} (pip install 'wellfed[dev]')")
        path = repository / "examples" / f"{name}_training.py"
        spec = util.spec_from_file_location(f"{name}_training", path)
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if hasattr(module, "resnet18"):
            monkeypatch.setattr(module, "resnet18", small_model)

        def run(directory: Path, *arguments: str) -> list[float]:
            forget_processes()
            before = dict(os.environ)
            common = [str(pictures), "--batch-size", "2", "--image-size", "32"]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return module.main([*common, "--directory", str(directory), *ON_CPU[name], *arguments])
            finally:
                os.environ.clear()
                os.environ.update(before)

        return run

    yield choose
    forget_processes()


def small_model(num_classes: int) -> torch.nn.Module:
    """In place of ResNet-18, whose checkpoints of 90 MB take most of the time."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 4, stride=4),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, num_classes),
    )


def forget_processes() -> None:
    """What Accelerate keeps for the whole program."""
    if util.find_spec("accelerate") is not None:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


# In the middle of the first epoch; after its last batch; in the middle of the second.
@pytest.mark.parametrize("stop", [3, pytest.param(4, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_goes_on_where_it_stopped(
    train: Callable[[str], Train], name: str, stop: int, tmp_path: Path
) -> None:
    run = train(name)
    # given the losses of two epochs in one run, by Python's seeds alone
    whole = run(tmp_path / "whole", "--save-every", "100")
    assert len(whole) == 8
    # when another stops and is started again
    first = run(tmp_path / "parts", "--save-every", str(stop), "--stop-after", str(stop))
    second = run(tmp_path / "parts", "--save-every", "100")
    # then both together are the first: same samples, crops and flips, in the same order
    assert first + second == pytest.approx(whole, rel=1e-3)
    # and what is finished is not trained again
    assert run(tmp_path / "whole") == []


@pytest.mark.parametrize("name", ["torch", *(pytest.param(n, marks=pytest.mark.long) for n in NEEDS if n != "torch")])
def test_an_example_that_has_nothing_to_train_says_so(
    name: str, pictures: Path, run_example: Callable[..., str]
) -> None:
    for library in NEEDS[name]:
        pytest.importorskip(library, reason=f"needs {library} (pip install 'wellfed[dev]')")
    said = run_example(f"{name}_training.py", str(pictures), "--epochs", "0", "--image-size", "32", "--batch-size", "2")
    assert said.endswith("nothing left to train: more --epochs, or another --directory?\n")


@pytest.mark.parametrize("name", ["accelerate", "transformers"])
def test_an_example_accumulates_gradients(train: Callable[[str], Train], name: str, tmp_path: Path) -> None:
    losses = train(name)(tmp_path, "--accumulate", "2")
    assert len(losses) == 8
    assert all(np.isfinite(losses))


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_is_named_in_the_list(repository: Path, name: str) -> None:
    text = (repository / "examples" / "README.md").read_text("utf-8")
    assert f"({name}_training.py)" in text
    assert {path.stem.removesuffix("_training") for path in (repository / "examples").glob("*_training.py")} == set(
        NEEDS
    )


def test_the_data_module_survives_what_lightning_forgets(
    train: Callable[[str], Train], pictures: Path, repository: Path, tmp_path: Path
) -> None:
    """Lightning drops a loader's state from a checkpoint of an epoch's end, and where the total of steps is asked for.

    See pytorch-lightning #20550 and litData #775. So the data module of the example holds it.
    """
    lightning = pytest.importorskip("lightning.pytorch", reason="needs lightning (pip install 'wellfed[dev]')")
    spec = util.spec_from_file_location("example", repository / "examples" / "lightning_training.py")
    assert spec is not None
    assert spec.loader is not None
    example = util.module_from_spec(spec)
    spec.loader.exec_module(example)

    class Asking(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches > 0
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(batch[0].float().mean().item())
            return self.weight.sum()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            assert batch[0].dtype == torch.uint8

    def fit(epochs: int, checkpoint: Path | None = None, every: dict[str, int] | None = None) -> list[float]:
        seen.clear()
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            callbacks=[
                lightning.callbacks.ModelCheckpoint(
                    tmp_path / "kept", filename="{step}", save_top_k=-1, **(every or {"every_n_epochs": 1})
                )
            ],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = example.StoredImages(str(pictures), batch_size=2, image_size=32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(Asking(), datamodule=data, ckpt_path=checkpoint)
        return list(seen)

    seen: list[float] = []
    whole = fit(3)
    assert len(whole) == 12
    assert fit(3, tmp_path / "kept" / "step=4.ckpt") == whole[4:]
    assert fit(3, tmp_path / "kept" / "step=8.ckpt") == whole[8:]
    assert fit(2, every={"every_n_train_steps": 3}) == whole[:8]
    assert fit(3, tmp_path / "kept" / "step=6.ckpt") == whole[6:]
