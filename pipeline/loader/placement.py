"""On which cores a loader's decoding threads and processes run: near the rank's GPU where that is known to help.

On a machine of several NUMA nodes, memory of another node is slower to reach from a core, and to copy to a GPU. Only
what a loader starts itself is placed; the program's own threads, CUDA's and DALI's stay where the system has them.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from ..config import LoaderConfig
from ..hardware.near import gpus_of_node, near_cores
from ..hardware.nvml import Reading, nvml_keys, open_nvml
from ..hardware.ranks import local_world_size

__all__ = ["Near", "Placement", "choose_cores", "core_words", "keep_to", "place_workers"]


@dataclass(frozen=True)
class Placement:
    """Where decoding runs.

    Attributes:
        cores: the numbers of the cores that it keeps to; None leaves it to the system.
        words: what was chosen and why, for people.
    """

    cores: frozenset[int] | None
    words: str


@dataclass(frozen=True)
class Near:
    """The cores near a GPU.

    Attributes:
        found: a frozenset of their numbers, or None with the reason.
        source: where they were read.
        gpus: of the machine that are near these cores.
    """

    found: Reading
    source: str = ""
    gpus: int = 1


def choose_cores(near: Near, *, allowed: frozenset[int], workers: int, ranks: int, device: str) -> Placement:
    """The near cores that this process may use, where these suffice for all ranks whose GPUs are near them.

    Which ranks use which GPU isn't known here: at most all of them share these cores, and at most as many as have GPUs
    near them.

    Args:
        allowed: the process's own affinity, which is never widened.
        workers: decoding threads or processes of each rank.
        ranks: on this machine.
        device: its name, for the words.
    """
    if near.found.value is None:
        return Placement(None, f"any cores: which are near {device} is not known ({near.found.reason})")
    mine = allowed & near.found.value
    if mine == allowed:
        return Placement(None, f"any cores: all that this process may use are near {device} ({near.source})")
    if not mine:
        return Placement(None, f"any cores: none that this process may use is near {device} ({near.source})")
    sharing = min(ranks, near.gpus)
    if workers * sharing > len(mine):
        return Placement(
            None,
            f"any cores: the {len(mine)} near {device} ({near.source}) are too few for {workers} workers of each of "
            f"{sharing} local ranks",
        )
    return Placement(
        mine, f"cores {core_words(mine)}, near {device} ({near.source}), for {sharing} of {ranks} local ranks"
    )


def place_workers(config: LoaderConfig, device: torch.device, *, nvml: Any = None) -> Placement:
    """Where the workers of this loader belong.

    Args:
        device: where its batches go.
        nvml: pynvml or a fake; None imports it.

    Raises:
        ConfigError: LOCAL_WORLD_SIZE is no number of ranks.
    """
    if config.worker_cores == "any":
        return Placement(None, "any cores: worker_cores='any'")
    if config.settings.num_workers == 0:
        return Placement(None, "any cores: the calling thread decodes")
    ranks = local_world_size()
    if ranks == 1:
        return Placement(None, "any cores: this rank has the machine to itself")
    if device.type != "cuda":
        return Placement(None, "any cores: batches stay on the CPU")
    if not hasattr(os, "sched_setaffinity"):
        return Placement(None, "any cores: this system has no sched_setaffinity")
    return choose_cores(
        _near(torch.cuda.get_device_properties(device), nvml),
        allowed=frozenset(os.sched_getaffinity(0)),
        workers=config.settings.num_workers,
        ranks=ranks,
        device=str(device),
    )


def keep_to(cores: frozenset[int] | None) -> None:
    """Keep the calling thread, and threads and processes that it starts, to these cores; None changes nothing."""
    if cores is None:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        # The group's set of cores was changed meanwhile. It is a matter of speed, and a thread that ended would be
        # waited for.
        warnings.warn(f"decoding cannot keep to cores {core_words(cores)} and runs on any: {error}", stacklevel=2)


def core_words(cores: frozenset[int]) -> str:
    """Numbers of cores in the kernel's form, as "0-3,8"."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _near(properties: Any, module: Any) -> Near:
    uuid, address = nvml_keys(properties)
    opened = open_nvml(module)
    if opened.value is None:
        return Near(*near_cores(None, address))
    try:
        found, source = near_cores(opened.value.find(uuid=uuid, pci_bus_id=address).value, address)
        return Near(found, source, 1 if found.value is None else gpus_of_node(opened.value, found.value))
    finally:
        opened.value.close()
