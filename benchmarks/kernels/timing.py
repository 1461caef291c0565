"""Contestants take turns, so that a machine that is busy for a moment is busy for all of them."""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SAMPLE = 5e-3  # seconds that a sample lasts at least: one call after another contestant is not warm yet
MOST_ROUNDS = 25
FEWEST_ROUNDS = 3
SHORT = 1e-2  # seconds; before samples of shorter calls there is one that is not timed
SLOW = 10.0  # contestants that take this many times the best are measured a few times only
LONG = 1.0  # seconds; where a round takes longer, there is only one

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

    collecting = gc.isenabled()
    gc.disable()
    try:
        guesses: dict[str, float] = {}
        for name in calls:
            guesses[name] = max(take(name, 1), 1e-9)
            if guesses[name] <= min(LONG, SLOW * min(guesses.values())):  # the first call is often slower
                guesses[name] = max(min(guesses[name], take(name, 1)), 1e-9)
        best = min(guesses.values())
        times = {name: max(1, math.ceil(SAMPLE / guess)) for name, guess in guesses.items()}
        quick = [name for name in calls if guesses[name] <= SLOW * best]
        warm = {name: guesses[name] < SHORT for name in calls}
        a_round = sum((times[name] + warm[name]) * guesses[name] for name in quick)
        fewest = FEWEST_ROUNDS if a_round < LONG else 1
        rounds = max(fewest, min(MOST_ROUNDS, int(seconds / a_round)))
        # Calls that are made a few times only are samples from the first.
        samples = {name: [guesses[name]] if fewest == 1 or name not in quick else [] for name in calls}
        names = list(calls)
        order = random.Random(len(names))
        for number in range(rounds):
            for name in names:
                if name in quick or (number == 0 and guesses[name] < LONG / 4):
                    samples[name].append(take(name, times[name], warm[name]))
            order.shuffle(names)  # nobody always follows the same, who may have emptied the caches
        return {name: Timing.of(found) for name, found in samples.items()}
    finally:
        if collecting:
            gc.enable()
