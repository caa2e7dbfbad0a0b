"""Rank 0 leads and the others follow: the same calls on every rank's rig, and one outcome from those of all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch.distributed as dist

from wellfed.pipeline.config import LoaderSettings
from wellfed.pipeline.errors import ResourceError
from wellfed.pipeline.training import MemoryProbe, Window
from wellfed.pipeline.training.probe import CANCELLED
from wellfed.pipeline.tune.ranks import rig as ranks_rig
from wellfed.pipeline.tune.ranks.agreement import Ranks
from wellfed.pipeline.tune.ranks.rig import RanksRig, follow
from wellfed.pipeline.tune.ranks.window import RanksWindow, joined_probe
from wellfed.pipeline.tune.rig import OutOfDeviceMemoryError

GIB = 1 << 30
OnEachRank = Callable[..., list[Any]]


def window(*, samples: int = 80, seconds: float = 1.0, waits: float = 0.1, **other: Any) -> Window:
    values: dict[str, Any] = {
        "util_percent": 90.0,
        "util_reason": None,
        "peak_bytes": GIB,
        "host_rss_bytes": (100, 300, 200),
        "host_rss_seconds": (0.0, 0.5, 1.0),
        **other,
    }
    return Window(
        batch_size=8,
        steps=samples // 8,
        samples=samples,
        wall_seconds=seconds,
        wait_seconds=(waits,),
        step_seconds=(0.5,),
        exhausted=False,
        util_source=None,
        util_samples=(),
        memory_reason=None,
        memory_source=None,
        memory_samples=(),
        other_process_bytes=None,
        torch_peak_reserved_bytes=None,
        **values,
    )


def test_a_window_of_ranks_is_that_of_the_slowest_and_fullest() -> None:
    fast = window(samples=80, seconds=1.0, waits=0.4, util_percent=95.0, peak_bytes=3 * GIB)
    slow = window(samples=80, seconds=1.25, waits=0.1, util_percent=60.0, host_rss_bytes=(1000,))
    both = RanksWindow((fast, slow))
    assert (both.samples, both.wall_seconds) == (80, 1.25)
    assert both.wait_seconds == (0.4,)
    assert (both.util_percent, both.util_reason, both.peak_bytes) == (60.0, None, 3 * GIB)
    assert both.host_rss_bytes == (1200,)
    told = both.to_dict()
    assert [rank["samples_per_second"] for rank in told["ranks"]] == [80.0, 64.0]
    assert told["util_percent"] == 60.0
    unknown = RanksWindow((fast, window(util_percent=None, util_reason="no NVML", peak_bytes=None)))
    assert (unknown.util_percent, unknown.util_reason, unknown.peak_bytes) == (None, "rank 1: no NVML", None)


def probe(peak: int | None = None, **fields: Any) -> MemoryProbe:
    return MemoryProbe(batch_size=8, peak_bytes=peak, **{"out_of_memory": False, "error": None, **fields})


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        ([probe(3), probe(5)], probe(5)),
        ([probe(error=CANCELLED), probe(out_of_memory=True)], probe(out_of_memory=True)),
        ([probe(3), probe(error="no NVML")], probe(error="no NVML")),
        ([probe(error=CANCELLED), probe(error="it crashed"), probe(error=CANCELLED)], probe(error="it crashed")),
    ],
)
def test_a_probe_of_ranks_is_that_of_the_fullest_or_of_the_one_that_failed(
    probes: list[MemoryProbe], expected: MemoryProbe
) -> None:
    assert joined_probe(probes) == expected


@dataclass
class OneRig:
    """A rank's rig, of which the calls are kept."""

    rank: int
    calls: list[Any] = field(default_factory=list)

    def clock(self) -> float:
        return 7.0 + self.rank

    def compiling_seconds(self) -> float:
        return 1.0 + self.rank

    def loader_alone(self, settings: LoaderSettings, seconds: float) -> float:
        self.calls.append((settings.num_workers, seconds))
        return 100.0 - self.rank

    def ceiling(self, batch_size: int, seconds: float) -> Window:
        self.calls.append(("ceiling", batch_size))
        if batch_size > 8 and self.rank == 1:
            raise OutOfDeviceMemoryError(f"batch size {batch_size}")
        return window(seconds=1.0 + self.rank)

    @contextmanager
    def hold(self, settings: LoaderSettings, *, samples_before_boundary: int) -> Iterator[OneRig]:
        self.calls.append(("hold", samples_before_boundary))
        yield self
        self.calls.append("held")

    @property
    def epochs_crossed(self) -> int:
        return 3

    def resume(self) -> None:
        self.calls.append("resume")

    def feed(self, seconds: float) -> Window:
        return window(seconds=1.0 + self.rank)

    def worker_bytes(self) -> dict[int, int]:
        return {77: 10 + self.rank}


def led(on_each: OnEachRank, lead: Callable[[RanksRig], Any]) -> tuple[list[Any], list[OneRig]]:
    """What each rank gave where rank 0 does this and the other follows."""
    rigs = [OneRig(0), OneRig(1)]

    def run(ranks: Ranks) -> Any:
        if ranks.rank == 1:
            return follow(rigs[1], ranks)  # type: ignore[arg-type]
        rig = RanksRig(rigs[0], ranks)  # type: ignore[arg-type]
        try:
            result = lead(rig)
        except BaseException as error:
            rig.fail(error)
            raise
        rig.end(result)
        return result

    return on_each(2, run), rigs


def test_rank_0_leads_and_the_other_follows_with_the_same_calls(on_each: OnEachRank) -> None:
    def lead(rig: RanksRig) -> Any:
        alone = rig.loader_alone(LoaderSettings(num_workers=3), 0.5)
        slow = rig.ceiling(8, 1.0)
        with pytest.raises(OutOfDeviceMemoryError, match="batch size 16"):
            rig.ceiling(16, 1.0)
        with rig.hold(LoaderSettings(), samples_before_boundary=40) as held:
            held.resume()
            fed = held.feed(1.0)
            rig.ceiling(8, 1.0)
            workers = dict(held.worker_bytes())
            crossed = held.epochs_crossed
        return alone, slow.wall_seconds, fed.wall_seconds, workers, crossed, rig.clock(), rig.compiling_seconds()

    results, rigs = led(on_each, lead)
    assert results == [(99.0, 2.0, 2.0, {77: 10, (1 << 32) + 77: 11}, 3, 7.0, 2.0)] * 2
    assert rigs[0].calls == rigs[1].calls
    assert rigs[0].calls[3:] == [("hold", 40), "resume", ("ceiling", 8), "held"]


def test_what_ends_rank_0_ends_the_others_with_the_same_words(on_each: OnEachRank) -> None:
    def lead(rig: RanksRig) -> None:
        rig.ceiling(8, 1.0)
        raise ResourceError("the step must fit", got="9 GiB", remedy="Use a smaller model.")

    found, _ = led(on_each, lead)
    assert [type(each) for each in found] == [ResourceError] * 2
    assert [str(each) for each in found] == ["the step must fit; got 9 GiB. Use a smaller model."] * 2


def test_an_interrupt_on_a_rank_that_follows_ends_the_tune_on_all(on_each: OnEachRank) -> None:
    def run(ranks: Ranks) -> Any:
        if ranks.rank == 1:
            ranks.interrupt()
            return follow(OneRig(1), ranks)  # type: ignore[arg-type]
        rig = RanksRig(OneRig(0), ranks)  # type: ignore[arg-type]
        while not ranks.interrupted():
            time.sleep(0.001)
        with pytest.raises(KeyboardInterrupt):
            rig.ceiling(8, 1.0)
        rig.end("the best so far")
        return "the best so far"

    assert on_each(2, run) == ["the best so far"] * 2


def test_a_signal_is_told_between_pieces_of_work_and_raised_within_one() -> None:
    ranks = Ranks(dist.HashStore(), 1, 2)
    before = signal.getsignal(signal.SIGINT)
    with ranks_rig._interrupts(ranks):
        os.kill(os.getpid(), signal.SIGINT)
        while not ranks.interrupted():
            time.sleep(0.001)
        # a second one is meant
        with pytest.raises(KeyboardInterrupt):
            _interrupt_this()
    with ranks_rig._interrupts(ranks):
        ranks.working = True
        with pytest.raises(KeyboardInterrupt):
            _interrupt_this()
    assert signal.getsignal(signal.SIGINT) is before


def _interrupt_this() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
