"""Contestants take turns, so that a machine that is busy for a moment is busy for all of them."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SAMPLE = 1e-3  # seconds that a sample lasts at least
MOST_ROUNDS = 25
FEWEST_ROUNDS = 3
SHORT = 1e-2  # seconds; before samples of shorter calls there is one that is not timed
SLOW = 10.0  # contestants that take this many times the best are measured a few times only
VERY_SLOW = 2.0  # seconds of a call after which it is measured once

Call = Callable[[], object]
Context = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class Timing:
    """The median time of a call in seconds; half the range of the middle samples, over the median."""

    median: float
    spread: float
    samples: int

    @staticmethod
    def of(samples: list[float]) -> Timing:
        middle = statistics.median(samples)
        low, high = min(samples), max(samples)
        if len(samples) >= 4:
            low, _, high = statistics.quantiles(samples, n=4)
        return Timing(float(f"{middle:.4g}"), round((high - low) / 2 / middle, 3), len(samples))


def sample(call: Call, times: int) -> float:
    """The time of one of ``times`` calls."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def interleaved(
    calls: Mapping[str, Call], seconds: float, around: Mapping[str, Context] | None = None
) -> dict[str, Timing]:
    """The time of each call, in about ``seconds`` for all of them together.

    ``around``: contexts that are entered for a whole sample, outside of what is timed.
    """
    contexts = around or {}

    def take(name: str, times: int, warm: bool = False) -> float:
        with contexts.get(name, contextlib.nullcontext)():
            if warm:  # threads of the contestant before may still be spinning
                calls[name]()
            return sample(calls[name], times)

    def estimate(name: str) -> float:
        first = take(name, 1)
        return first if first > VERY_SLOW else min(first, take(name, 1))

    collecting = gc.isenabled()
    gc.disable()
    try:
        guesses = {name: max(estimate(name), 1e-9) for name in calls}
        best = min(guesses.values())
        times = {name: max(1, math.ceil(SAMPLE / guess)) for name, guess in guesses.items()}
        quick = [name for name in calls if guesses[name] <= SLOW * best]
        warm = {name: guesses[name] < SHORT for name in calls}
        a_round = sum((times[name] + warm[name]) * guesses[name] for name in quick)
        rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(seconds / a_round)))
        samples: dict[str, list[float]] = {name: [] for name in calls}
        names = list(calls)
        for number in range(rounds):
            for name in names:
                # The slow take part in two rounds, the very slow in none beyond the guess.
                if name in quick or (number < 2 and guesses[name] < VERY_SLOW / 4):
                    samples[name].append(take(name, times[name], warm[name]))
            names = names[1:] + names[:1]  # nobody always follows the same
        return {name: Timing.of(found or [guesses[name]]) for name, found in samples.items()}
    finally:
        if collecting:
            gc.enable()
