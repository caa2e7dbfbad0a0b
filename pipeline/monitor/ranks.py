"""A monitor inside a training script: every rank times its own loop, and rank 0 writes one report of all."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist

from ..errors import ConfigError, UsageError
from ..hardware import local_rank, versions
from ..loader.ranks import device_of_rank, found_ranks
from ..training import Accelerator, DeviceWindow, Window, open_accelerator
from ..version import __version__
from . import SCHEMA, SCHEMA_VERSION
from .figures import late_in_loading, rank_figures, scaling, slow_in_step, waits_by_step, world_rate

__all__ = ["Part", "RankMonitor"]

Part = Literal["fed", "ceiling", "own"]
"""What ran in a window: "fed", training with the loader; "ceiling", the same step on cached batches; "own", the step by
itself on cached batches, so that no rank waits for another."""

_NO_DEVICE = "batches stay on the CPU, so there is no GPU to watch"


class RankMonitor:
    """Times a loop over batches on every rank, and puts all ranks into one report.

    All ranks of the job make one, call `watch` for the same parts in the same order, and call `report` together: these
    meet the other ranks over a gloo group. A program that was not launched as several is a job of one rank.

    A window is the time between two synchronizations with the device, as in `training.measure`: samples, for each step
    its wait for data and its call, GPU-Util and memory from NVML.

    Args:
        device: where the step runs: "cuda" (this rank's, see `DataLoader`), "cuda:N", "cpu", which has no utilization
            and no memory of its own to watch, or an open `Accelerator`, which stays the caller's to close.
        clock: monotonic seconds.

    Raises:
        DeviceError: no such device.
        UsageError: one of several launched ranks, before init_process_group.
    """

    def __init__(self, device: str | Accelerator = "cuda", *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._several = dist.is_available() and dist.is_initialized()
        _, launched = found_ranks(None, None)
        if launched > 1 and not self._several:
            raise UsageError(
                "the ranks of a job put their measurements together over torch.distributed",
                got=f"WORLD_SIZE={launched} and no process group",
                remedy="Make the monitor after init_process_group.",
            )
        self._accelerator: Accelerator | None = None
        self._owned = isinstance(device, str)
        if not isinstance(device, str):
            self._accelerator = device
        elif device != "cpu":
            self._accelerator = open_accelerator(device_of_rank(device))
        self._clock = clock
        # Objects travel between ranks over the CPU: NCCL would need the GPU, and wait for the steps queued there.
        self._group: Any = dist.new_group(backend="gloo") if self._several and dist.get_backend() != "gloo" else None
        self._windows: dict[str, list[Window]] = {part: [] for part in get_args(Part)}
        self._cores: str | None = None

    def watch(
        self, batches: Iterable[Any], part: Part = "fed", *, warm_up: int = 3, steps: int | None = None
    ) -> Iterator[Any]:
        """The same batches, timed; what the loop does with each, until it asks for the next, is its step.

        Args:
            batches: a loader, or an endless rotation of cached batches, as `training.CachedBatches`, with `steps`.
            part: what runs.
            warm_up: steps at the beginning that are not measured.
            steps: measured steps to end after; None goes on to the end of the batches.

        Raises:
            ConfigError: no such part, or a number below 0.
        """
        if part not in get_args(Part):
            names = ", ".join(map(repr, get_args(Part)))
            raise ConfigError(f"part is one of {names}", got=part, remedy="Choose one of those.")
        for name, value in (("warm_up", warm_up), ("steps", 0 if steps is None else steps)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{name} is a whole number from 0", got=value, remedy="Count steps.")
        if part == "fed":
            self._cores = getattr(batches, "worker_cores", None)
        return self._watched(iter(batches), part, warm_up, steps)

    def _watched(self, batches: Iterator[Any], part: Part, warm_up: int, steps: int | None) -> Iterator[Any]:
        if self._several:
            # Windows of all ranks begin together, also where steps do not wait for each other.
            dist.barrier(group=self._group)
        for _ in range(warm_up):
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch
            del batch
        waits: list[float] = []
        calls: list[float] = []
        samples = first = 0
        exhausted = False
        self._synchronize()
        if self._accelerator is not None:
            self._accelerator.start_window()
        device: DeviceWindow | None = None
        started = now = self._clock()
        try:
            while steps is None or len(calls) < steps:
                try:
                    batch = next(batches)
                except StopIteration:
                    exhausted = True
                    break
                ready = self._clock()
                size = _samples_of(batch)
                try:
                    yield batch
                finally:
                    # Also where the loop is left: the step of its last batch is done.
                    del batch
                    done = self._clock()
                    waits.append(ready - now)
                    calls.append(done - ready)
                    samples += size
                    first = first or size
                    now = done
        finally:
            self._synchronize()
            finished = self._clock()
            if self._accelerator is not None:
                device = self._accelerator.end_window()
            if calls:
                self._windows[part].append(
                    _window(waits, calls, samples, first, finished - started, exhausted, device or _without_device())
                )

    def _synchronize(self) -> None:
        if self._accelerator is not None:
            self._accelerator.synchronize()

    def report(self, *, one_gpu_samples_per_second: float | None = None) -> dict[str, Any] | None:
        """Everything measured so far, of all ranks; on rank 0 the report, which `report.write_ranks_report` writes.

        Args:
            one_gpu_samples_per_second: of the step on cached batches in a job of one GPU; left out, it is the median of
                what the ranks reached in part "own".

        Returns:
            The report in JSON's types; None on the other ranks.
        """
        mine = {
            "local_rank": local_rank(),
            "host": socket.gethostname(),
            "device": self._device(),
            "worker_cores": self._cores,
            "windows": self._windows,
        }
        if not self._several:
            return _report([mine], one_gpu_samples_per_second)
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine, group=self._group)
        return _report(ranks, one_gpu_samples_per_second) if dist.get_rank() == 0 else None

    def _device(self) -> dict[str, Any]:
        if self._accelerator is None:
            return {"id": "cpu", "name": "CPU", "simulated": False, "memory_total_bytes": None}
        description = self._accelerator.description
        return {
            "id": self._accelerator.name,
            "name": description["name"],
            "simulated": description["simulated"],
            "memory_total_bytes": self._accelerator.memory_total_bytes,
        }

    def close(self) -> None:
        """Release the device and the group; may be called more than once."""
        if self._owned and self._accelerator is not None:
            self._accelerator.close()
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None

    def __enter__(self) -> RankMonitor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _samples_of(batch: Any) -> int:
    """Samples of a batch: of its first part, which is a tensor or an array."""
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    return len(parts if isinstance(parts, torch.Tensor) else parts[0])


def _without_device() -> DeviceWindow:
    return DeviceWindow(util_percent=None, util_reason=_NO_DEVICE, peak_bytes=None, memory_reason=_NO_DEVICE)


def _window(
    waits: list[float],
    calls: list[float],
    samples: int,
    batch_size: int,
    wall_seconds: float,
    exhausted: bool,
    device: DeviceWindow,
) -> Window:
    return Window(
        batch_size=batch_size,
        steps=len(calls),
        samples=samples,
        wall_seconds=wall_seconds,
        wait_seconds=tuple(waits),
        step_seconds=tuple(calls),
        exhausted=exhausted,
        host_rss_bytes=(),
        host_rss_seconds=(),
        **asdict(device),
    )


def _report(ranks: list[dict[str, Any]], one_gpu: float | None) -> dict[str, Any]:
    of = {part: [rank["windows"][part] for rank in ranks] for part in get_args(Part)}
    figures = {part: [rank_figures(windows) if windows else None for windows in of[part]] for part in of}
    fed = [found for found in figures["fed"] if found is not None]
    late, late_reason = late_in_loading(waits_by_step(of["fed"]), median(f.step_seconds for f in fed) if fed else 0.0)
    slow, slow_reason = slow_in_step([[window.samples_per_second for window in windows] for windows in of["own"]])
    own = [found.samples_per_second for found in figures["own"] if found is not None]
    measured = median(own) if own else None
    hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "tool_version": __version__,
        "versions": versions(),
        "world_size": len(ranks),
        "machines": len(hosts),
        "ranks": [
            {
                "rank": number,
                "local_rank": rank["local_rank"],
                "machine": hosts.index(rank["host"]),
                "device": rank["device"],
                "worker_cores": rank["worker_cores"],
                **{part: found and asdict(found) for part, found in ((p, figures[p][number]) for p in figures)},
                "windows": {
                    part: [window.to_dict() for window in windows] for part, windows in rank["windows"].items()
                },
            }
            for number, rank in enumerate(ranks)
        ],
        "stragglers": [asdict(one) for one in (*late, *slow)],
        "not_judged": {"loading": late_reason, "step": slow_reason},
        "scaling": asdict(
            scaling(
                len(ranks),
                one=measured if one_gpu is None else one_gpu,
                ceiling=world_rate(of["ceiling"]),
                fed=world_rate(of["fed"]),
            )
        ),
        "one_gpu_source": "the median rank's step by itself, all ranks at once" if one_gpu is None else "as given",
    }
