"""A case is one kernel on one matrix: its contestants and the right answer.

A contestant is a function that prepares whatever it needs and returns the call to be timed, or raises
``Skip`` with the reason why it does not take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from benchmarks.kernels.check import Reference
from benchmarks.kernels.timing import Call

OURS = "Scorch"
Prepare = Callable[[], Call]


@dataclass(frozen=True)
class Case:
    """``extras`` are shown but not counted when contestants are ranked."""

    kernel: str
    label: str
    reference: Callable[[], Reference]
    contestants: dict[str, Prepare]
    extras: frozenset[str] = field(default=frozenset())


def is_torch(name: str) -> bool:
    """Whether a contestant is torch's own sparse tensors, or the best that torch can spell without them."""
    return name.startswith("torch ") and name != "torch dense"


@dataclass(frozen=True)
class Kernel:
    """A kernel of the suite: its name on the command line, its labels, and its cases on one matrix."""

    name: str
    takes: str  # "matrix" or "tensor"
    labels: tuple[str, ...]
    make: Callable[..., Iterable[Case]]

    def cases(self, data: object, only: Callable[[str], bool] = lambda label: True) -> Iterator[Case]:
        for case in self.make(data):
            assert case.label in self.labels, case.label
            if only(case.label):
                yield case
