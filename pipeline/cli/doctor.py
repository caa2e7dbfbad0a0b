"""`wellfed doctor`: what this machine has, and three questions about a job that starves or does not fit."""

from __future__ import annotations

import json
from typing import Any

import typer

DISTRIBUTIONS = ("torch", "torchvision", "torchdata", "webdataset", "lmdb", "numpy", "pillow", "nvidia-ml-py")
UTIL_TARGET_PERCENT = 70.0


def doctor(
    seconds: float = typer.Option(3.0, "--seconds", min=0.5, max=3600, help="How long to watch the GPUs."),
    batch_size: int | None = typer.Option(
        None, "--batch-size", min=1, help="Samples in an optimizer step, over all GPUs and accumulation."
    ),
    base_batch: int | None = typer.Option(
        None, "--base-batch", min=1, help="The batch size at which --base-lr is known to work."
    ),
    base_lr: float | None = typer.Option(None, "--base-lr", help="The learning rate that works at --base-batch."),
    optimizer: str | None = typer.Option(None, "--optimizer", help="sgd (with momentum) or adam (also AdamW)."),
    as_json: bool = typer.Option(False, "--json", help="Write one JSON document to standard output."),
) -> None:
    """Show what this machine has, whether its GPUs are fed, and what learning rate a batch size asks for."""
    from ..hardware import preflight
    from ..training.watch import watch_gpus

    learning_rate = _learning_rate(batch_size, base_batch, base_lr, optimizer)
    gpus, reason = watch_gpus(seconds)
    document = {
        "schema": "wellfed-doctor",
        "schema_version": 1,
        "facts": [fact.to_dict() for fact in preflight()],
        "versions": _versions(),
        "decoders": _decoders(),
        "torch_cuda": _torch_cuda(),
        "questions": {
            "device_memory_free": _memory_answer(gpus, reason),
            "gpu_fed": _fed_answer(gpus, reason, seconds),
            "learning_rate": learning_rate,
        },
    }
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(document)


def _versions() -> dict[str, str | None]:
    from ..hardware import versions

    found = versions()
    return {name: found.get(name) for name in ("wellfed", "python", *DISTRIBUTIONS)}


def _decoders() -> dict[str, str]:
    import torch
    from PIL import features
    from torchvision import io

    from ..decode.chunk import native_state
    from ..loader.dali_library import dali_state
    from ..loader.nvjpeg import has_nvjpeg

    jpeg = "libjpeg-turbo" if features.check_feature("libjpeg_turbo") else "libjpeg"
    decoders = {"Pillow": f"{jpeg} {features.version('jpg')}" if features.check("jpg") else "built without JPEG"}
    try:
        io.encode_jpeg(torch.zeros(3, 8, 8, dtype=torch.uint8))
        decoders["torchvision"] = "available"
    except RuntimeError as error:
        decoders["torchvision"] = f"not usable: {str(error).splitlines()[0]}"
    return {
        "C extension": native_state(),
        **decoders,
        "nvJPEG": "available, on CUDA devices" if has_nvjpeg() else "not in this torchvision, which has no CUDA",
        "DALI": dali_state(),
        **_gpu_resize(),
    }


def _gpu_resize() -> dict[str, str]:
    import torch

    from ..loader.resample import state

    if not torch.cuda.is_available():
        return {}
    return {"resize on the GPU": state(torch.device("cuda", 0))}


def _torch_cuda() -> dict[str, Any]:
    import torch

    return {
        "built_for": torch.version.cuda,
        "available": torch.cuda.is_available(),
        "devices": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    }


def _memory_answer(gpus: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
    answers = []
    for gpu in gpus:
        free, total = gpu["memory_free_bytes"], gpu["memory_total_bytes"]
        text = "not measured" if free is None else f"{_gib(free)} of {_gib(total)} are free"
        answers.append(f"gpu {gpu['index']} ({gpu['name']}): {text}")
    return {
        "question": "How much device memory is free?",
        "answer": "; ".join(answers) or f"Not measured: {reason}.",
        "free_bytes": [gpu["memory_free_bytes"] for gpu in gpus] if gpus else None,
        "reason": reason,
    }


def _fed_answer(gpus: list[dict[str, Any]], reason: str | None, seconds: float) -> dict[str, Any]:
    answers = [_fed_text(gpu, seconds) for gpu in gpus]
    return {
        "question": "Is the GPU fed?",
        "answer": "; ".join(answers) or f"Not measured: {reason}.",
        "gpus": gpus or None,
        "reason": reason,
    }


def _fed_text(gpu: dict[str, Any], seconds: float) -> str:
    where = f"gpu {gpu['index']}"
    percent = gpu["util_percent"]
    if percent is None:
        return f"{where}: not measured: {gpu['util_reason']}"
    text = f"{where}: GPU-Util {percent:.0f}% over {seconds:g} s"
    processes = gpu["processes"]
    if processes:
        users = ", ".join(f"{p['name'] or 'a process'} (pid {p['pid']})" for p in processes)
        text += f", used by {users}"
    elif processes is not None:
        text += ", and no process is listed on it"
    if percent <= 1 and not processes:
        return f"{text}: idle, nothing to judge"
    if percent < UTIL_TARGET_PERCENT:
        return f"{text}: under {UTIL_TARGET_PERCENT:g}%, so it waits; `wellfed tune` finds for what"
    return f"{text}: busy; whether the step is fed, only the fed ratio says, which `wellfed tune` measures"


def _learning_rate(
    batch_size: int | None, base_batch: int | None, base_lr: float | None, optimizer: str | None
) -> dict[str, Any]:
    from ..training.learning_rate import advise_learning_rate

    question = "Do learning rate and optimizer fit the batch size?"
    if batch_size is None or base_batch is None or base_lr is None or optimizer is None:
        given = {
            "--batch-size": batch_size,
            "--base-batch": base_batch,
            "--base-lr": base_lr,
            "--optimizer": optimizer,
        }
        missing = [name for name, value in given.items() if value is None]
        answer = f"Give {', '.join(missing)}: a rate is judged from one known to work at another batch size."
        return {"question": question, "answer": answer, "advice": None}
    advice = advise_learning_rate(
        optimizer=optimizer, batch_size=batch_size, base_batch=base_batch, base_learning_rate=base_lr
    )
    answer = (
        f"For {optimizer} at batch {batch_size}: learning rate {advice.learning_rate:.6g} "
        f"({advice.rule} rule, {advice.factor:.4g} times {base_lr:g}; {advice.source})"
    )
    if advice.warmup_epochs is not None:
        low, high = advice.warmup_epochs
        answer += f", reached from {base_lr:g} in {low} to {high} epochs of warm-up"
    return {"question": question, "answer": f"{answer}; {advice.warning}.", "advice": advice.to_dict()}


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table(title="This machine", title_justify="left")
    for column in ("fact", "value", "source", "note"):
        table.add_column(column, overflow="fold")
    for fact in document["facts"]:
        cells = (fact["name"], _value(fact["value"], fact["unit"]), fact["source"], fact["note"])
        table.add_row(*(escape(cell) for cell in cells))
    console.print(table)
    versions = {name: version or "not installed" for name, version in document["versions"].items()}
    console.print("Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()), highlight=False)
    decoders = ", ".join(f"{name} ({what})" for name, what in document["decoders"].items())
    console.print(f"Decoders: {escape(decoders)}", highlight=False)
    cuda = document["torch_cuda"]
    sees = f"sees {cuda['devices']} device(s)" if cuda["available"] else "sees no device"
    console.print(f"torch: built for CUDA {cuda['built_for']}, {sees}\n", highlight=False)
    for answer in document["questions"].values():
        console.print(f"[bold]{answer['question']}[/bold]", highlight=False)
        console.print(f"  {escape(answer['answer'])}", highlight=False)


def _value(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return _gib(value)
    if isinstance(value, list):
        return ", ".join(_process(v) for v in value) or "none"
    return f"{value:g} {unit}".strip() if isinstance(value, float) else f"{value} {unit}".strip()


def _process(process: dict[str, Any]) -> str:
    used, name = process["used_bytes"], process.get("name")
    who = f"pid {process['pid']}" + (f" {name}" if name else "")
    return who + ("" if used is None else f" ({_gib(used)})")


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
