"""How long a kernel should take on this machine, from what it reads, writes and multiplies.

The cost model counts multiply-adds or so. Here a few kernels are timed once, to learn how long one of them
takes where the places of the result are known, how long where its pattern has to be found, and how long a
byte takes. A prediction is the longer of the two, and a call's own time on top. It is meant to show what is
out of line: most kernels take between half and twice of it.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from scorch._src.backends.base import using_host_threads
from scorch._src.devices import HOST
from scorch._src.engine.executable import Prepared
from scorch._src.events import LISTENERS, Event
from scorch._src.ops.products.matmul import matmul
from scorch._src.statements.evaluate import evaluate
from scorch._src.tensor.create.construct import from_coordinates
from scorch.settings import settings

ROWS, ENTRIES, COLUMNS = 2000, 40_000, 32  # of what is timed
MIN_ROUNDS = 7


@dataclass(frozen=True)
class Speed:
    """Seconds of this machine with some threads: for a unit of cost, for one of a new pattern, for a byte."""

    unit: float
    unit_of_pattern: float
    byte: float
    call: float

    def predict(self, units: float, size: int, is_new_pattern: bool) -> float:
        """The expected seconds of a kernel with a cost of ``units`` that touches ``size`` bytes."""
        unit = self.unit_of_pattern if is_new_pattern else self.unit
        return self.call + max(units * unit, size * self.byte)


def predicted(prepared: Prepared, size: int) -> float:
    """The expected seconds of a prepared kernel that touches ``size`` bytes, with the threads it will use."""
    is_new = prepared.assembly not in ("dense", "shared")
    chosen = prepared.planned.choice.chosen
    return speed(prepared.kernel.workers()).predict(chosen.work + chosen.assembly, size, is_new)


@functools.cache
def speed(threads: int) -> Speed:
    """What this machine does with so many threads; measured once, in a fraction of a second."""
    draw = torch.Generator().manual_seed(0)
    A, B = _random(draw), _random(draw)
    x, X = (
        torch.rand(ROWS, generator=draw, device=HOST),
        torch.rand(ROWS, COLUMNS, generator=draw, device=HOST),
    )
    large = torch.rand(1 << 22, generator=draw, device=HOST)
    small = from_coordinates(
        [torch.arange(2, device=HOST), torch.arange(2, device=HOST)],
        torch.ones(2, device=HOST),
        (2, 2),
        "csr",
    )
    with settings(threads=threads):
        plain = [_unit(functools.partial(matmul, A, given)) for given in (x, X)]
        new = [
            _unit(functools.partial(matmul, A, B)),
            _unit(functools.partial(evaluate, "C[i,j] = A[i,j] + B[i,j]", A=A, B=B, format="csr")),
        ]
        call = statistics.median(_seconds(functools.partial(matmul, small, torch.ones(2, device=HOST))))
    with using_host_threads(threads):
        read = statistics.median(_seconds(large.sum))
    return Speed(statistics.median(plain), statistics.median(new), read / large.nbytes, call)


def _random(draw: torch.Generator) -> torch.Tensor:
    places = [torch.randint(ROWS, (ENTRIES,), generator=draw, device=HOST) for _ in range(2)]
    return from_coordinates(places, torch.rand(ENTRIES, generator=draw, device=HOST), (ROWS, ROWS), "csr")


def _unit(call: Callable[[], object]) -> float:
    """The seconds for a unit of cost of the kernel that ``call`` runs."""
    seen: list[Event] = []
    LISTENERS.append(seen.append)
    try:
        for _ in range(MIN_ROUNDS):
            call()
    finally:
        LISTENERS.remove(seen.append)
    events = [event for event in seen if event.kind == "kernel"]
    kernel: Prepared = events[-1].subject
    chosen = kernel.planned.choice.chosen
    spent = statistics.median(event.end - event.start - event.converted for event in events)
    return spent / max(chosen.work + chosen.assembly, 1.0)


def _seconds(call: Callable[[], object]) -> Sequence[float]:
    found = []
    for _ in range(MIN_ROUNDS):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found
