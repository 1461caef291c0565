"""A case is one operation on one matrix: its contestants, the right answer, and the bytes it must move."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu.check import TOLERANCES, error
from benchmarks.gpu.timing import Call, Device
from benchmarks.kernels.timing import Timing

OURS = "scorch"
LONG = 3.0  # seconds; a contestant whose second call takes longer is not timed further

Prepare = Callable[[], Call]


@dataclass(frozen=True)
class Case:
    """``reference`` gives a dense tensor, several in a list, or the sketch of a sparse one."""

    section: str
    label: str
    matrix: str
    contestants: dict[str, Prepare]
    reference: Callable[[], torch.Tensor | list[torch.Tensor]] | None = None
    is_sketch: bool = False
    bytes: float = 0.0
    tolerance: float = TOLERANCES[torch.float32]
    unchecked: frozenset[str] = frozenset()


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

    def best(self) -> tuple[str, float] | None:
        """The best of torch's ways, and of PyG's where that is what there is to compare with."""
        rivals = {name: timing.median for name, timing in self.times.items() if name != OURS}
        rivals = {name: seconds for name, seconds in rivals.items() if not name.startswith(OURS + ",")}
        return min(rivals.items(), key=lambda item: item[1]) if rivals else None

    def ratio(self) -> float | None:
        """How many times as fast as the best other way Scorch is."""
        best = self.best()
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

    @staticmethod
    def unpacked(row: dict[str, Any]) -> Measured:
        times = {name: Timing(ms / 1e3, row["spread"][name], 0) for name, ms in row["milliseconds"].items()}
        place = row["section"], row["label"], row["matrix"]
        return Measured(*place, times, row["floor_ms"] / 1e3, row["errors"], row["failed"])


def first_line(problem: BaseException) -> str:
    text = (str(problem).strip() or type(problem).__name__).splitlines()[0]
    return f"{type(problem).__name__}: {text[:150]}"


def measure(
    case: Case, device: Device, seconds: float, bandwidth: float, show_traces: bool = False
) -> Measured:
    """Check every contestant, then let those that are right take turns; the others say what failed."""
    found = Measured(case.section, case.label, case.matrix, floor=case.bytes / bandwidth)
    calls: dict[str, Call] = {}
    reference: torch.Tensor | list[torch.Tensor] | None = None
    try:
        reference = case.reference() if case.reference is not None else None
    except Exception as problem:
        found.failed["the reference"] = first_line(problem)
    for name, prepare in case.contestants.items():
        try:
            call = prepare()
            result = call()
            if reference is not None and name not in case.unchecked:
                gap = error(result, reference, case.is_sketch)
                if not gap <= case.tolerance:
                    found.errors[name] = gap
            del result
            elapsed = device.once(call)  # the first call may have compiled something
            if elapsed > LONG:
                found.failed[name] = f"one call takes {elapsed:.0f} s"
            else:
                calls[name] = call
        except Exception as problem:
            found.failed[name] = first_line(problem)
            if show_traces and name == OURS:
                traceback.print_exc()
    if calls:
        try:
            found.times = device.interleaved(calls, seconds)
        except Exception as problem:
            found.failed["timing"] = first_line(problem)
    return found
