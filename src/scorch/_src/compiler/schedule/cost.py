"""What an order of loops is expected to cost, from real shapes and numbers of entries.

The model walks the loops outwards in, as ``lower`` would open them, and multiplies expected trip counts: a
loop over a stored level makes as many turns as the level has entries per position, an intersection as
many as chance leaves, a loop over everything as many as the index has values. To the work inside it adds
the workspace or sorting that the order forces on the result, and the transposition of operands that are
stored in another order. Units are about one multiply-add.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field

from scorch._src.compiler import lattice
from scorch._src.compiler.lattice import EVERYWHERE, Support
from scorch._src.compiler.plan import LevelUse, Operand, Splits, Step
from scorch._src.compiler.schedule.infer_format import shared_pattern, support_of
from scorch._src.compiler.schedule.map_places import fixed_row
from scorch._src.compiler.target import target
from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.loops.types import INT64
from scorch._src.notation.nodes import Access
from scorch.settings import enabled

TRANSPOSE = 12.0  # an entry moved by sorting
SMALL_WORKSPACE_PLACES = 2**16  # a workspace up to this many places is dense
INSERT_DENSE = 3.0  # an entry put into a dense workspace
INSERT_SMALL = 12.0  # an entry put into a dense workspace for the whole result
INSERT_LIST = 60.0  # an entry put into a list and sorted
COPY = 0.75  # an element of a dense operand laid out anew
COPY_CALL = 60_000.0  # and the call that does it
SEARCH = 1.5  # one halving of a binary search
SHORTER = 8.0  # a level this many times shorter than another is walked and the other searched
SCATTER = 1.0  # an entry added to memory instead of a register
STRIDED = 0.5  # an access that jumps in the innermost loop
VECTOR = 0.25  # a turn of a loop that runs in vector registers
HORIZONTAL = 2.0  # the lanes of a vector sum added up
SERIAL = 1.6  # the outermost loop cannot be shared by threads
SHORT = 16  # or makes so few turns that most threads would get none


@dataclass(frozen=True)
class Problem:
    """A step with its operands and result, before an order is chosen."""

    step: Step
    operands: Mapping[Access, Operand]
    result: Format
    splits: Splits
    sizes: Mapping[str, int]
    costs: dict[tuple[str, ...], Cost] = field(default_factory=dict)  # of the orders priced so far
    _supports: dict[frozenset[Access], Support] = field(default_factory=dict)

    @functools.cached_property
    def sparse_support(self) -> Support:
        """Where the body can differ from zero, as a formula over the sparse operands."""
        return support_of(self.step.body, self.operands)

    @functools.cached_property
    def pattern(self) -> Access | None:
        """The operand whose pattern the result has, so that there is nothing to assemble."""
        shared = shared_pattern(self.step, self.operands, self.result)
        return None if shared is None else shared[0]

    @functools.cached_property
    def loops(self) -> tuple[str, ...]:
        return tuple(
            loop for index in dict.fromkeys(self.step.indices) for loop in self.splits.loops_of(index)
        )

    @functools.cached_property
    def result_loops(self) -> frozenset[str]:
        """The loops over indices of the result."""
        return self.splits.loops(self.step.target.indices)

    def extent(self, loop: str) -> int:
        index, part = self.splits.origin(loop)
        block = self.splits.block(index)
        if block is None:
            return self.sizes[index]
        return -(-self.sizes[index] // block) if part == "outer" else block

    @functools.cached_property
    def uses(self) -> dict[Access, tuple[LevelUse, ...]]:
        return {
            access: self.splits.uses(operand.format, access.indices, access.tensor, INT64)
            for access, operand in self.operands.items()
        }

    @functools.cached_property
    def result_uses(self) -> tuple[LevelUse, ...]:
        return self.splits.uses(self.result, self.step.target.indices, self.step.target.tensor, INT64)

    def support(self, filters: Iterable[Access]) -> Support:
        """Where the body can differ from zero if only ``filters`` leave anything out."""
        key = frozenset(filters)
        found = self._supports.get(key)
        if found is None:
            found = self._supports[key] = lattice.support_by(self.step.body, key)
        return found


@dataclass(frozen=True)
class Cost:
    """The expected cost of an order and where it comes from."""

    order: tuple[str, ...]
    work: float
    assembly: float
    transposition: float
    transposed: tuple[Access, ...]
    searched: tuple[tuple[Access, int], ...]
    laid_out: tuple[Access, ...]
    is_short: bool = False  # the outermost loop makes too few turns for threads
    along: str = ""  # the loop that laid out operands lie along, if not the innermost

    @property
    def total(self) -> float:
        return self.work + self.assembly + self.transposition


def is_against(order: Sequence[str], form: Format, uses: Sequence[LevelUse]) -> bool:
    """Whether a tensor's levels cannot be walked in ``order``: a stored level comes before its parent."""
    place = {loop: number for number, loop in enumerate(order)}
    reached = -1
    for use in uses:
        here = max(place[loop] for loop in use.needs)
        level = form.levels[use.level]
        if level.is_iterable and not level.is_full and here < reached:
            return True
        reached = max(reached, here)
    return False


def transposed_format(order: Sequence[str], access: Access, operand: Operand, splits: Splits) -> Format:
    """A format of the same tensor whose levels can be walked in ``order``."""
    place = {loop: number for number, loop in enumerate(order)}
    dims = range(len(access.indices))
    sequence = sorted(dims, key=lambda dim: place[splits.loops_of(access.indices[dim])[-1]])
    return rows_format(operand, sequence)


def rows_format(operand: Operand, order: Sequence[int], root: str = "") -> Format:
    """The format with coordinates of rows, or rows everywhere if most of them have entries."""
    is_filled = operand.shape[order[0]] <= 4 * operand.nnz + 1024
    return Format((root or ("d" if is_filled else "s")) + "s" * (len(order) - 1), order=order)


def estimated_counts(form: Format, shape: Sequence[int], nnz: int) -> tuple[int, ...]:
    """About how many positions each level would have if ``nnz`` entries lay anywhere."""
    counts, room, parents = [], 1, 1
    for level in range(len(form)):
        room = min(room * form.level_size(level, shape), 2**62)
        entries = min(nnz, room)
        parents = form.levels[level].count(parents, form.level_size(level, shape), entries)
        counts.append(parents)
    return tuple(counts)


def branching(form: Format, shape: Sequence[int], counts: Sequence[int]) -> list[float]:
    """About how many coordinates each level has below one of the level above.

    A run of coordinate levels has as many positions as entries on every level; how many coordinates differ
    is taken to be as many as fit.
    """
    ratios, above = [], 1.0
    for level, count in enumerate(counts):
        here = min(float(count), above * form.level_size(level, shape))
        ratios.append(here / max(above, 1.0))
        above = here
    return ratios


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
    key = tuple(order)
    found = problem.costs.get(key)
    if found is None:
        found = problem.costs[key] = _Walk(problem, key).cost()
    return found


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
        self.laid_out: list[Access] = []
        self.searched: list[tuple[Access, int]] = []
        self.transposition = 0.0
        for access, operand in problem.operands.items():
            form, uses, counts = operand.format, problem.uses[access], operand.counts
            if is_against(order, form, uses):
                form = transposed_format(order, access, operand, problem.splits)
                uses = problem.splits.uses(form, access.indices, access.tensor, INT64)
                counts = estimated_counts(form, operand.shape, operand.nnz)
                self.transposed.append(access)
                self.transposition += TRANSPOSE * operand.nnz
            self.form[access], self.uses[access], self.level[access] = form, uses, 0
            self.branching[access] = branching(form, operand.shape, counts)

    def cost(self) -> Cost:
        work, trips, delivered = 0.0, 1.0, 1.0
        bound: set[str] = set()
        results = self.problem.result_loops
        for depth, x in enumerate(self.order):
            turns, spent = self._loop(x)
            is_last = depth == len(self.order) - 1
            if is_last:
                factor = self._innermost_factor(x, trips * spent)
                spent = spent * factor + (HORIZONTAL if factor == VECTOR and x not in results else 0.0)
            work += trips * spent
            trips *= turns
            bound.add(x)
            searches, chance = self._resolve(bound)
            work += trips * searches
            trips *= chance
            if x in results:  # an accumulator takes what is reduced further in
                delivered = trips
        assembly = self._assembly(delivered)
        is_short = bool(self.order) and self.problem.extent(self.order[0]) < SHORT
        if self.order and (is_short or not self._is_shared_by_threads()):
            work *= SERIAL
        return Cost(
            self.order,
            work,
            assembly,
            self.transposition,
            tuple(self.transposed),
            tuple(self.searched),
            tuple(self.laid_out),
            is_short,
        )

    def _loop(self, x: str) -> tuple[float, float]:
        """Expected turns that reach the body, and the cost of the loop itself."""
        size = max(self.problem.extent(x), 1)
        entries = {}
        for access, uses in self.uses.items():
            level = self.level[access]
            if level == len(uses) or uses[level].loop != x:
                continue
            kind = self.form[access].levels[level]
            if not kind.is_iterable:
                self.searched.append((access, level))
            elif not kind.is_full:
                entries[access] = min(self.branching[access][level], float(size))
        noted = self._noted_once(x, entries)
        if noted is None:
            self._leave_to_search(entries)
        for access in entries:
            self.level[access] += 1
        where = self.problem.support(entries)
        if where == EVERYWHERE:
            return float(size), size + sum(entries.values())
        chance = _chance(where, {access: count / size for access, count in entries.items()})
        walked = [count for access, count in entries.items() if access != noted]
        return size * chance, max(1.0, sum(walked))

    def _noted_once(self, x: str, entries: Mapping[Access, float]) -> Access | None:
        """The access whose row is noted before the loops around the innermost one (``map_places``)."""
        problem, where = self.problem, self.problem.support(entries)
        if x != self.order[-1] or len(entries) != 2 or where != frozenset({frozenset(entries)}):
            return None
        nnz = sum(operand.nnz for operand in problem.operands.values() if operand.is_sparse)
        if target().is_grid or problem.splits.blocks or problem.sizes[x] > nnz or not enabled("lookup"):
            return None
        return fixed_row(self.order, {access: (self.form[access], self.uses[access]) for access in entries})

    def _leave_to_search(self, entries: dict[Access, float]) -> None:
        """Take out of ``entries`` the levels to be searched: all but the shortest must be found anyway."""
        where = self.problem.support(entries)
        if len(where) != 1 or len(lattice.required(where)) < 2:
            return
        shortest = min(lattice.required(where), key=lambda a: (entries[a], list(entries).index(a)))
        for access in lattice.required(where):
            if entries[access] > SHORTER * max(entries[shortest], 1.0):
                self.searched.append((access, self.level[access]))
                del entries[access]

    def _resolve(self, bound: set[str]) -> tuple[float, float]:
        """Go down the levels that are known; what searching costs, and the chance that all are found."""
        searches, chance = 0.0, 1.0
        for access, uses in self.uses.items():
            while self.level[access] < len(uses) and uses[self.level[access]].needs <= bound:
                level = self.level[access]
                kind = self.form[access].levels[level]
                if not kind.is_full:
                    halvings = math.log2(self.branching[access][level] + 2) if kind.is_iterable else 1
                    searches += SEARCH * halvings
                    index = access.indices[self.form[access].order[level]]
                    chance *= min(1.0, self.branching[access][level] / max(self.problem.sizes[index], 1))
                self.level[access] += 1
        return searches, chance

    def _innermost_factor(self, x: str, turns: float) -> float:
        """Vector speed if every tensor moves by one place or none in the innermost loop.

        A dense operand that jumps is laid out anew if it is read often enough (``pipeline`` does so).
        """
        factor, vector = 1.0, True
        tensors = [(self.form[a], self.uses[a], a) for a in self.uses]
        for form, uses, access in (*tensors, (self.problem.result, self.problem.result_uses, None)):
            touching = [use for use in uses if x in use.needs]
            if not touching:
                continue
            if any(not form.levels[use.level].is_full for use in touching):
                vector = False
            elif touching[-1].level != len(uses) - 1:
                size = self.problem.operands[access].nnz if access is not None and form.is_dense else 0
                is_cheaper = size > 0 and COPY * size + COPY_CALL < STRIDED * turns
                if access is not None and len(touching) == 1 and is_cheaper:
                    self.transposition += COPY * size + COPY_CALL
                    self.laid_out.append(access)
                    continue
                vector = False
                factor += STRIDED
        return VECTOR if vector else factor

    def _is_shared_by_threads(self) -> bool:
        """Whether threads share the outermost loop, each with its part of the result or a copy of it."""
        problem = self.problem
        pattern = problem.pattern if problem.pattern not in self.transposed else None
        if self.order[0] not in problem.result_loops:
            return pattern is not None and bool(problem.step.sampled_at)
        return (
            problem.result.is_dense
            or pattern is not None
            or prefix_of(self.order, problem.result_uses)[0] > 0
        )

    def _assembly(self, trips: float) -> float:
        result, order = self.problem.result, self.order
        loops = self.problem.result_loops
        last = max((order.index(loop) for loop in loops), default=-1)
        pattern = self.problem.pattern
        if result.is_dense or (pattern is not None and pattern not in self.transposed):
            if all(loop in loops for loop in order[: last + 1]) or self._stays_in_registers(loops):
                return 0.0
            return trips * SCATTER * (VECTOR if result.is_dense else 1.0)
        prefix, levels = prefix_of(order, self.problem.result_uses)
        if levels == len(result):
            return trips * 0.5
        if prefix:
            return trips * INSERT_DENSE
        places = math.prod(self.problem.sizes[index] for index in self.problem.step.target.indices)
        return trips * (INSERT_SMALL if places <= SMALL_WORKSPACE_PLACES else INSERT_LIST)

    def _stays_in_registers(self, results: Collection[str]) -> bool:
        """Whether a stretch of the result's row is summed in registers (``vectorize`` makes sure)."""
        *outer, x = self.order
        last = self.problem.result_uses[-1]
        is_row = last.loop == x and self.problem.result.levels[last.level].is_full
        if x not in results or not is_row or not enabled("registers"):
            return False
        rest = itertools.dropwhile(lambda loop: loop in results, outer)
        return not any(loop in results for loop in rest)


def _chance(where: Support, chances: Mapping[Access, float]) -> float:
    missed = 1.0
    for clause in where:
        missed *= 1.0 - math.prod(min(1.0, chances[access]) for access in clause)
    return 1.0 - missed
