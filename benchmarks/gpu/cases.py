"""A case is one operation on one matrix: its contestants, the right answer, and the bytes it must move."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu.check import TOLERANCES, error
from benchmarks.gpu.timing import Call, Device
from benchmarks.kernels.timing import Timing

OURS = "scorch"
LONG = 20.0  # seconds; a contestant whose first call takes longer is not timed

Prepare = Callable[[], Call]


@dataclass(frozen=True)
class Case:
    """``reference`` is dense, or the sketch of a sparse result; without one, nothing is compared."""

    section: str
    label: str
    matrix: str
    contestants: dict[str, Prepare]
    reference: Callable[[], torch.Tensor] | None = None
    is_sketch: bool = False
    bytes: float = 0.0
    dtype: torch.dtype = torch.float32


@dataclass
class Measured:
    """What was found: times in seconds, the time that moving the bytes takes, and what went wrong."""

    section: str
    label: str
    matrix: str
    times: dict[str, Timing] = field(default_factory=dict)
    floor: float = 0.0
    errors: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def best_torch(self) -> tuple[str, float] | None:
        """The best of torch's ways, and of PyG's where that is what there is to compare with."""
        rivals = {name: timing.median for name, timing in self.times.items() if name != OURS}
        rivals = {name: seconds for name, seconds in rivals.items() if not name.startswith(OURS + ",")}
        return min(rivals.items(), key=lambda item: item[1]) if rivals else None

    def ratio(self) -> float | None:
        """How many times as fast as the best other way Scorch is."""
        best = self.best_torch()
        return best[1] / self.times[OURS].median if best and OURS in self.times else None

    def packed(self) -> dict[str, Any]:
        milliseconds = {name: round(timing.median * 1e3, 5) for name, timing in self.times.items()}
        return {
            "section": self.section,
            "label": self.label,
            "matrix": self.matrix,
            "milliseconds": milliseconds,
            "spread": {name: timing.spread for name, timing in self.times.items()},
            "floor_ms": round(self.floor * 1e3, 5),
            "ratio": self.ratio(),
            "errors": self.errors,
            "failed": self.failed,
        }


def first_line(problem: BaseException) -> str:
    text = (str(problem).strip() or type(problem).__name__).splitlines()[0]
    return f"{type(problem).__name__}: {text[:150]}"


def measure(
    case: Case, device: Device, seconds: float, bandwidth: float, show_traces: bool = False
) -> Measured:
    """Check every contestant, then let those that are right take turns; the others say what failed."""
    found = Measured(case.section, case.label, case.matrix, floor=case.bytes / bandwidth)
    calls: dict[str, Call] = {}
    reference: torch.Tensor | None = None
    try:
        reference = case.reference() if case.reference is not None else None
    except Exception as problem:
        found.failed["the reference"] = first_line(problem)
    for name, prepare in case.contestants.items():
        try:
            call = prepare()
            device.synchronize()
            start = time.perf_counter()
            result = call()
            device.synchronize()
            elapsed = time.perf_counter() - start
            if reference is not None:
                gap = error(result, reference, case.is_sketch)
                if not gap <= TOLERANCES[case.dtype]:
                    found.errors[name] = gap
            del result
            if elapsed > LONG:
                found.failed[name] = f"one call takes {elapsed:.0f} s"
            else:
                calls[name] = call
        except Exception as problem:
            found.failed[name] = first_line(problem)
            if show_traces:
                traceback.print_exc()
    if calls:
        try:
            found.times = device.interleaved(calls, seconds)
        except Exception as problem:
            found.failed["timing"] = first_line(problem)
    return found
