"""Steps that are to be one kernel, and that kernel (``fuse``)."""

from __future__ import annotations

from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.plan import Operand, Step
from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.loops.nodes import Kernel
from scorch._src.loops.stages import Rows
from scorch._src.loops.types import Type


class FusionError(Exception):
    """Why steps cannot be one kernel, in words for people."""


@dataclass(frozen=True)
class Group:
    """Steps to be joined, in order; the outermost index is the first of every result.

    ``pattern``: the operand whose entries are walked, with the indices of its dimensions in ``walked``;
    ``stored`` are the tensors that have their values there, those that steps give included.
    ``operands``: the dense tensors that are read. ``outputs``: the results that are returned.
    """

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    pattern: Operand | None
    walked: tuple[str, ...]
    stored: frozenset[str]
    operands: tuple[Operand, ...]
    sizes: tuple[tuple[str, int], ...]
    element: Type

    @property
    def outermost(self) -> str:
        return self.steps[0].target.indices[0]

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(step.target.tensor for step in self.steps)


@dataclass(frozen=True)
class Fused:
    """One kernel for a group, and what must be passed to it.

    ``group`` is what is left of the steps once some are parts of others; ``inputs`` are the dense tensors and
    values in the order of the kernel's slots, each with the format it is copied to first, if it is;
    ``in_strip``: the results that are never stored whole; ``work``: about how many operations it takes.
    ``planned`` are the plans of the steps by themselves, of which the first ``phase`` run for all rows before
    the others. For a grid, ``rows`` is what is done for each row, and ``scratch`` the results that are stored
    behind the outputs for the kernel itself.
    """

    group: Group
    kernel: Kernel
    inputs: tuple[tuple[str, Format | None], ...]
    in_strip: frozenset[str]
    work: float
    planned: tuple[Planned, ...]
    phase: int = 0
    rows: Rows | None = None
    scratch: tuple[str, ...] = ()

    def indices_of(self, name: str) -> tuple[str, ...] | None:
        """The indices of a dense result; None if it has its values at the entries of the pattern."""
        group = self.group
        if name in group.stored or group.pattern is None:
            return None
        return next(step.target.indices for step in group.steps if step.target.tensor == name)
