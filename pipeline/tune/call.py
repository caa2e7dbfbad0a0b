"""`wellfed.pipeline.tune(...)`: a tune from inside a training script, with the arguments of the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..config import LoaderSettings, TunedConfig, TuneRequest, parse_duration
from ..errors import ConfigError, UsageError

if TYPE_CHECKING:
    from ..formats import Source
    from .run import TuneOutcome

__all__ = ["tune"]


def tune(
    source: str | Path | Source,
    *,
    step: str | Callable[..., Any],
    device: str = "auto",
    util_target: float = 70.0,
    fed_target: float = 0.90,
    memory_cap: float = 0.70,
    budget_seconds: float | str = 180.0,
    hold_seconds: float | str = 60.0,
    batch_sizes: Sequence[int] | None = None,
    image_size: int = 224,
    seed: int = 0,
    current: LoaderSettings | TunedConfig | str | Path | None = None,
    rounds: int = 5,
    optimizer: Literal["sgd", "adam"] | None = None,
    base_lr: float | None = None,
    base_batch: int | None = None,
    global_batch: int | None = None,
    allow_shared_gpu: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> TuneOutcome:
    """Find the loader settings and the batch size that keep the device fed, by measuring against a training step.

        found = wellfed.pipeline.tune("imagenet-wds", step=build_step, device="cuda")
        found.save("tuned.json")
        with found.loader() as loader: ...

    In a script it may stand under a main guard or not: child processes that try a batch size import the script for
    its step, and stop at this call. What stands above the call runs in each of them.

    Args:
        source: path of the dataset, or an open `Source` (left open).
        step: "resnet18", "resnet50", "vit_b_16", "module:function", or that function, which is called as
            `build(device=..., batch_size=..., num_classes=..., image_size=...)` with those that it accepts and returns
            a callable that takes (images, labels). It must be at a module's top level.
        current: your present settings, or the file of them, measured beside the rest.
        budget_seconds, hold_seconds: seconds, or text as "3m". The budget is for probing, measuring and search; what
            first calls of a step that compiles take is beside it, the hold after it.
        optimizer, base_lr, base_batch, global_batch: for advice on the learning rate and on accumulation; see
            `TuneRequest`, as for the rest.
        allow_shared_gpu: measure also where other programs compute on the device.
        progress: called with a message and the share done, 0..1.

    Returns:
        What was found, whatever the verdict. Interrupted after a whole round, it is the best so far, with
        `interrupted` True.

    Raises:
        UsageError: no such dataset, step or device; a step that child processes cannot import.
        ConfigError: a value out of range.
        ResourceError: nothing fits under the memory cap, or others use the device.
        StepError: the step raised, hung, ended its process, or keeps too much memory.
        KeyboardInterrupt: before the first whole round.
    """
    from ..formats import Source
    from ..training import name_of_step, stop_while_importing
    from .run import run_tune

    stop_while_importing()
    if not isinstance(source, (str, Path, Source)):
        raise UsageError(
            "a source that is tuned is the path of a stored dataset or an open Source",
            got=type(source).__name__,
            remedy="Convert a torch Dataset's files with wellfed convert, and give the path.",
        )
    if progress is not None and not callable(progress):
        raise UsageError(
            "progress must be a function of a message and the share done",
            got=type(progress).__name__,
            remedy="Give a function, or leave it out.",
        )
    if isinstance(current, (str, Path)):
        current = _settings_in(current)
    request = TuneRequest(
        data=source.location if isinstance(source, Source) else str(source),
        step=name_of_step(step),
        device=device,
        util_target=util_target,
        fed_target=fed_target,
        memory_cap=memory_cap,
        budget_seconds=parse_duration(budget_seconds),
        hold_seconds=parse_duration(hold_seconds),
        # What is no sequence is refused by the request.
        batch_sizes=tuple(batch_sizes)
        if isinstance(batch_sizes, Sequence) and not isinstance(batch_sizes, str)
        else batch_sizes,
        image_size=image_size,
        seed=seed,
        current=current.settings if isinstance(current, TunedConfig) else current,
        rounds=rounds,
        optimizer=optimizer,
        base_lr=base_lr,
        base_batch=base_batch,
        global_batch=global_batch,
        allow_shared_gpu=allow_shared_gpu,
    )
    return run_tune(request, source=source if isinstance(source, Source) else None, progress=progress)


def _settings_in(path: str | Path) -> LoaderSettings:
    """The settings in a file that holds them, or a tuned config.

    Raises:
        ConfigError: neither.
    """
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the present settings {str(path)!r} must be a readable JSON file", got=str(error), remedy="Check the path."
        ) from error
    if isinstance(data, Mapping) and "settings" in data:
        return TunedConfig.from_dict(data, where=str(path)).settings
    return LoaderSettings.from_dict(data, where=str(path))
