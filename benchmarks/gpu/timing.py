"""The time that a call takes on a device, measured by events around it, in turns with the others.

As ``triton.testing.do_bench`` does it: single calls, each behind a write that fills the cache of the device.
The device then waits, so that all of a call has been issued when it begins: what the host takes is measured
by the section ``host``. Without a GPU the clock of the process
serves, so that everything here can be tried anywhere.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.kernels.timing import Timing

CACHE_BYTES = 256 << 20
LEAD_CYCLES = 400_000  # of the device, which the host is ahead: a fifth of a millisecond
BATCH_SECONDS = 2e-3  # how long one contestant is measured before it is another's turn
MOST_ROUNDS = 20
FEWEST_ROUNDS = 3
MOST_IN_BATCH = 20
SLOW = 20.0  # contestants that take this many times the best are measured a few times only


@dataclass(frozen=True)
class Call:
    """What is timed: ``run`` on what ``fresh`` made just before, which is not timed."""

    run: Callable[..., Any]
    fresh: Callable[[], Any] | None = None

    def __call__(self) -> Any:
        return self.run() if self.fresh is None else self.run(self.fresh())


class Device:
    """Measure calls on ``name``, such as "cuda"."""

    def __init__(self, name: str, flush: bool = True) -> None:
        self.name = name
        self.is_cuda = torch.device(name).type == "cuda"
        self._cache = None
        if self.is_cuda and flush:
            self._cache = torch.empty(CACHE_BYTES // 4, dtype=torch.int32, device=name)

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def is_broken(self) -> bool:
        """Say whether an error in a kernel has left the process without its device."""
        try:
            self.synchronize()
        except Exception:
            return True
        return False

    def batch(self, call: Call, times: int) -> list[float]:
        """Seconds that each of ``times`` calls takes."""
        if not self.is_cuda:
            return [_clocked(call) for _ in range(times)]
        marks = []
        for _ in range(times):
            given = () if call.fresh is None else (call.fresh(),)
            if self._cache is not None:
                self._cache.zero_()
            torch.cuda._sleep(LEAD_CYCLES)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call.run(*given)
            end.record()
            marks.append((begin, end))
        self.synchronize()
        return [begin.elapsed_time(end) * 1e-3 for begin, end in marks]

    def once(self, call: Call) -> float:
        """Seconds of one call, its host time included; a warming call."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def interleaved(self, calls: Mapping[str, Call], seconds: float) -> dict[str, Timing]:
        """Measure all calls in about ``seconds`` altogether, in a new order every round."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            end = time.perf_counter() + seconds
            guesses = {name: max(self.once(call), 1e-9) for name, call in calls.items()}
            for name, call in calls.items():
                if guesses[name] < 0.5:
                    self.once(call)
                    guesses[name] = max(min(guesses[name], self.batch(call, 1)[0]), 1e-9)
            best = min(guesses.values())
            samples: dict[str, list[float]] = {name: [] for name in calls}
            names, order = list(calls), random.Random(len(calls))
            for number in range(MOST_ROUNDS):
                order.shuffle(names)
                for name in names:
                    if number and guesses[name] > SLOW * best:
                        continue
                    times = min(MOST_IN_BATCH, max(1, int(BATCH_SECONDS / guesses[name])))
                    samples[name] += self.batch(calls[name], times)
                if number + 1 >= FEWEST_ROUNDS and time.perf_counter() > end:
                    break
                if time.perf_counter() > end + 2 * seconds:
                    break
            return {name: Timing.of(found) for name, found in samples.items()}
        finally:
            if collecting:
                gc.enable()

    def bandwidth(self, size: int = 1 << 30) -> float:
        """Bytes a second that a copy reads and writes."""
        given = torch.ones(size // 4 if self.is_cuda else 1 << 20, device=self.name)
        into = torch.empty_like(given)
        found = self.interleaved({"copy": Call(lambda: into.copy_(given))}, 0.2)["copy"].median
        return 2 * 4 * given.numel() / found


def _clocked(call: Call) -> float:
    given = () if call.fresh is None else (call.fresh(),)
    start = time.perf_counter()
    call.run(*given)
    return time.perf_counter() - start
