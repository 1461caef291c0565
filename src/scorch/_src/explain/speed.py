"""Predict the time of a kernel on this machine, from what it reads, writes and multiplies.

The cost model counts multiply-adds or so. Here a few kernels are timed once: the time of a unit where the
pattern of the result is known, where it has to be computed, and the time of a byte. A prediction is the
larger of the two, plus the overhead of a call. It is meant to show outliers: most kernels take between half
and twice of it.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import torch

from scorch._src.backends.base import using_host_threads
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.engine.executable import Prepared
from scorch._src.events import LISTENERS, Event
from scorch._src.ops.products.matmul import matmul
from scorch._src.statements.evaluate import evaluate
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.construct import from_torch
from scorch.settings import settings

TIMED_ROWS, TIMED_ENTRIES, TIMED_COLUMNS = 2000, 40_000, 32
ROUNDS = 7


@dataclass(frozen=True)
class Speed:
    """Seconds of this machine with some threads: for a unit of cost, for one of a new pattern, for a byte."""

    unit: float
    unit_of_pattern: float
    byte: float
    call: float

    def predict(self, units: float, size: int, is_new_pattern: bool) -> float:
        """Predict the seconds of a kernel with a cost of ``units`` that touches ``size`` bytes."""
        unit = self.unit_of_pattern if is_new_pattern else self.unit
        return self.call + max(units * unit, size * self.byte)


def predict_seconds(prepared: Prepared, size: int) -> float:
    """Predict the seconds of a prepared kernel that touches ``size`` bytes, with the threads it will use."""
    is_new = prepared.assembly not in ("dense", "shared")
    chosen = prepared.planned.choice.chosen
    return measure_speed(prepared.kernel.workers()).predict(chosen.work + chosen.assembly, size, is_new)


@functools.cache
def measure_speed(threads: int) -> Speed:
    """Measure this machine with so many threads; once, in a fraction of a second."""
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.rand, generator=generator, device=HOST)
    A, B = _random_matrix(generator), _random_matrix(generator)
    x, X, large = draw(TIMED_ROWS), draw(TIMED_ROWS, TIMED_COLUMNS), draw(1 << 22)
    small, ones = from_torch(torch.eye(2, device=HOST), format="csr"), torch.ones(2, device=HOST)
    with settings(threads=threads):
        known_pattern = [_seconds_per_unit(lambda: matmul(A, x)), _seconds_per_unit(lambda: matmul(A, X))]
        new_pattern = [
            _seconds_per_unit(lambda: matmul(A, B)),
            _seconds_per_unit(lambda: evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=B, format="csr")),
        ]
        call = statistics.median(time_calls(lambda: matmul(small, ones)))
    with using_host_threads(threads):
        byte = statistics.median(time_calls(large.sum)) / large.nbytes
    return Speed(statistics.median(known_pattern), statistics.median(new_pattern), byte, call)


def _random_matrix(generator: torch.Generator) -> torch.Tensor:
    coordinates = torch.randint(TIMED_ROWS, (2, TIMED_ENTRIES), generator=generator, device=HOST)
    values = torch.rand(TIMED_ENTRIES, generator=generator, device=HOST)
    return from_coordinates(coordinates, values, (TIMED_ROWS, TIMED_ROWS), "csr")


def _seconds_per_unit(call: Callable[[], object]) -> float:
    """Return the seconds per unit of cost of the kernel that ``call`` runs."""
    heard: list[Event] = []
    LISTENERS.append(heard.append)
    try:
        for _ in range(ROUNDS):
            call()
    finally:
        LISTENERS.remove(heard.append)
    events = [event for event in heard if event.kind == "kernel"]
    kernel: Prepared = events[-1].subject
    chosen = kernel.planned.choice.chosen
    seconds = statistics.median(event.end - event.start - event.converted for event in events)
    return seconds / max(chosen.work + chosen.assembly, 1.0)


def time_calls(call: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Return the seconds of each of so many calls."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds
