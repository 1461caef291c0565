"""What an order of loops is expected to cost, from real shapes and numbers of entries.

The model walks the loops outwards in, as ``lower`` would open them, and multiplies expected trip counts: a
loop over a stored level makes as many turns as the level has entries per position, an intersection as
many as chance leaves, a loop over everything as many as the index has values. To the work inside it adds
the workspace or sorting that the order forces on the result, and the transposition of operands that are
stored in another order. Units are about one multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorch.compiler import lattice
from scorch.compiler.lattice import EVERYWHERE, Support
from scorch.compiler.plan import LevelUse, Operand, Splits, Step
from scorch.formats import Format
from scorch.loops.types import INT64
from scorch.notation.nodes import Access

TRANSPOSE = 12.0  # an entry moved by sorting
INSERT_DENSE = 3.0  # an entry put into a dense workspace
INSERT_LIST = 12.0  # an entry put into a list and sorted
SEARCH = 8.0
SCATTER = 1.0  # an entry added to memory instead of a register
STRIDED = 0.5  # an access that jumps in the innermost loop
VECTOR = 0.25  # a turn of a loop that runs in vector registers
SERIAL = 1.6  # the outermost loop cannot be shared by threads


@dataclass(frozen=True)
class Problem:
    """A step with its operands and result, before an order is chosen."""

    step: Step
    operands: Mapping[Access, Operand]
    result: Format
    splits: Splits
    sizes: Mapping[str, int]

    @property
    def loops(self) -> tuple[str, ...]:
        return tuple(
            loop for index in dict.fromkeys(self.step.indices) for loop in self.splits.loops_of(index)
        )

    def extent(self, loop: str) -> int:
        index, part = self.splits.origin(loop)
        block = self.splits.block(index)
        if block is None:
            return self.sizes[index]
        return -(-self.sizes[index] // block) if part == "outer" else block

    def uses(self, access: Access) -> tuple[LevelUse, ...]:
        return self.splits.uses(self.operands[access].format, access.indices, access.tensor, INT64)

    @property
    def result_uses(self) -> tuple[LevelUse, ...]:
        return self.splits.uses(self.result, self.step.target.indices, self.step.target.tensor, INT64)


@dataclass(frozen=True)
class Cost:
    """The expected cost of an order and where it comes from."""

    order: tuple[str, ...]
    work: float
    assembly: float
    transposition: float
    transposed: tuple[Access, ...]

    @property
    def total(self) -> float:
        return self.work + self.assembly + self.transposition


def is_against(order: Sequence[str], form: Format, uses: Sequence[LevelUse]) -> bool:
    """Whether a tensor's levels cannot be walked in ``order``: a stored level comes before its parent."""
    place = {loop: number for number, loop in enumerate(order)}
    reached = -1
    for use in uses:
        here = max(place[loop] for loop in use.needs)
        if not form.levels[use.level].is_full and here < reached:
            return True
        reached = max(reached, here)
    return False


def transposed_format(order: Sequence[str], access: Access, operand: Operand, splits: Splits) -> Format:
    """A format of the same tensor whose levels can be walked in ``order``."""
    place = {loop: number for number, loop in enumerate(order)}
    dims = range(len(access.indices))
    sequence = sorted(dims, key=lambda dim: place[splits.loops_of(access.indices[dim])[-1]])
    first = operand.shape[sequence[0]]
    root = "d" if first <= 4 * operand.nnz + 1024 else "s"
    return Format(root + "s" * (len(sequence) - 1), order=sequence)


def estimated_counts(form: Format, shape: Sequence[int], nnz: int) -> tuple[int, ...]:
    """About how many positions each level would have if ``nnz`` entries lay anywhere."""
    counts, room, parents = [], 1, 1
    for level in range(len(form)):
        room = min(room * form.level_size(level, shape), 2**62)
        entries = min(nnz, room)
        parents = form.levels[level].count(parents, form.level_size(level, shape), entries)
        counts.append(parents)
    return tuple(counts)


def prefix_of(order: Sequence[str], uses: Sequence[LevelUse]) -> tuple[int, int]:
    """How many outer loops run over the first levels of the result in stored order, and how many levels."""
    loops = levels = 0
    for use in uses:
        wanted = use.loops
        if not wanted or tuple(order[loops : loops + len(wanted)]) != tuple(wanted):
            break
        loops += len(wanted)
        levels += 1
    return loops, levels


def cost(problem: Problem, order: Sequence[str]) -> Cost:
    """The expected cost of running the loops of ``problem`` in ``order``."""
    return _Walk(problem, tuple(order)).cost()


class _Walk:
    """One walk down the loops: for each access its levels, their branching and how far it is resolved."""

    def __init__(self, problem: Problem, order: tuple[str, ...]) -> None:
        self.problem = problem
        self.order = order
        self.level: dict[Access, int] = {}
        self.uses: dict[Access, tuple[LevelUse, ...]] = {}
        self.form: dict[Access, Format] = {}
        self.branching: dict[Access, list[float]] = {}
        self.transposed: list[Access] = []
        self.transposition = 0.0
        for access, operand in problem.operands.items():
            form, uses, counts = operand.format, problem.uses(access), operand.counts
            if is_against(order, form, uses):
                form = transposed_format(order, access, operand, problem.splits)
                uses = problem.splits.uses(form, access.indices, access.tensor, INT64)
                counts = estimated_counts(form, operand.shape, operand.nnz)
                self.transposed.append(access)
                self.transposition += TRANSPOSE * operand.nnz
            parents = (1, *counts)[: len(counts)]
            self.form[access], self.uses[access], self.level[access] = form, uses, 0
            self.branching[access] = [c / max(p, 1) for c, p in zip(counts, parents, strict=True)]

    def cost(self) -> Cost:
        work, trips = 0.0, 1.0
        bound: set[str] = set()
        for depth, x in enumerate(self.order):
            turns, spent = self._loop(x)
            is_last = depth == len(self.order) - 1
            if is_last:
                spent *= self._innermost_factor(x)
            work += trips * spent
            trips *= turns
            bound.add(x)
            searches, chance = self._resolve(bound)
            work += trips * SEARCH * searches
            trips *= chance
        assembly = self._assembly(trips)
        if self.order and self.order[0] not in self._result_loops():
            work *= SERIAL
        return Cost(self.order, work, assembly, self.transposition, tuple(self.transposed))

    def _loop(self, x: str) -> tuple[float, float]:
        """Expected turns that reach the body, and the cost of the loop itself."""
        size = max(self.problem.extent(x), 1)
        entries = {}
        for access, uses in self.uses.items():
            level = self.level[access]
            if level < len(uses) and uses[level].loop == x and not self.form[access].levels[level].is_full:
                entries[access] = min(self.branching[access][level], float(size))
                self.level[access] += 1
        where = lattice.support(
            self.problem.step.body, lambda a: lattice.stored(a) if a in entries else EVERYWHERE
        )
        if where == EVERYWHERE:
            return float(size), size + sum(entries.values())
        chance = _chance(where, {access: count / size for access, count in entries.items()})
        return size * chance, max(1.0, sum(entries.values()))

    def _resolve(self, bound: set[str]) -> tuple[int, float]:
        """Go down the levels that are known; how many are searched, and the chance that all are found."""
        searches, chance = 0, 1.0
        for access, uses in self.uses.items():
            while self.level[access] < len(uses) and uses[self.level[access]].needs <= bound:
                level = self.level[access]
                if not self.form[access].levels[level].is_full:
                    searches += 1
                    index = access.indices[self.form[access].order[level]]
                    chance *= min(1.0, self.branching[access][level] / max(self.problem.sizes[index], 1))
                self.level[access] += 1
        return searches, chance

    def _innermost_factor(self, x: str) -> float:
        """Vector speed if every access moves by one place or none in the innermost loop."""
        factor, vector = 1.0, True
        tensors = [(self.form[a], self.uses[a]) for a in self.uses]
        tensors.append((self.problem.result, self.problem.result_uses))
        for form, uses in tensors:
            touching = [use for use in uses if x in use.needs]
            if not touching:
                continue
            last = touching[-1].level == len(uses) - 1
            if any(not form.levels[use.level].is_full for use in touching):
                vector = False
            elif not last:
                vector = False
                factor += STRIDED
        return VECTOR if vector else factor

    def _result_loops(self) -> set[str]:
        splits = self.problem.splits
        return {loop for index in self.problem.step.target.indices for loop in splits.loops_of(index)}

    def _assembly(self, trips: float) -> float:
        result, order = self.problem.result, self.order
        loops = self._result_loops()
        last = max((order.index(loop) for loop in loops), default=-1)
        if result.is_dense:
            scattered = any(loop not in loops for loop in order[: last + 1])
            return trips * SCATTER * VECTOR if scattered else 0.0
        prefix, levels = prefix_of(order, self.problem.result_uses)
        if levels == len(result):
            return trips * 0.5
        return trips * (INSERT_DENSE if prefix else INSERT_LIST)


def _chance(where: Support, chances: Mapping[Access, float]) -> float:
    missed = 1.0
    for clause in where:
        missed *= 1.0 - math.prod(min(1.0, chances[access]) for access in clause)
    return 1.0 - missed
