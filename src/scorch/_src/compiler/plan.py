"""What a kernel is to do, complete: the statement, the operands, and every choice of the scheduler.

A ``Step`` is one loop nest's worth of index notation. A ``Plan`` adds formats, loop order and the way
the result is built; ``lower`` turns it into loops without deciding anything.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Sequence

from scorch._src.dataclass import dataclass, replace
from scorch._src.formats import Format, LevelArrays
from scorch._src.loops.nodes import Array, Const, Expr, Var
from scorch._src.loops.types import Type
from scorch._src.notation import nodes as notation
from scorch._src.notation.nodes import Access
from scorch._src.notation.trees import accesses

STRIP_START = Var("strip_start")  # the first of the rows at hand
VALUES = -1  # in place of a level: as many as there are values


def fullness(entries: int, shape: Sequence[int]) -> int:
    """How full a tensor is, in 32nds, which is as exactly as schedules depend on it; 0 below a quarter."""
    places = math.prod(shape)
    share = 32 * entries // places if places else 0
    return min(share, 32) if share >= 8 else 0


@dataclass(frozen=True)
class Operand:
    """A tensor as the compiler sees it; ``counts`` has the number of positions of each level."""

    name: str
    format: Format
    element: Type
    index: Type
    shape: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def nnz(self) -> int:
        return self.counts[-1] if self.counts else 1

    @property
    def row_length(self) -> float:
        """About how many entries the last level has below a position."""
        return self.nnz / max((1, *self.counts[-2:-1]))

    @property
    def is_sparse(self) -> bool:
        return not self.format.is_dense

    @property
    def is_full(self) -> bool:
        """Whether every place is stored, once: then the values are those of a dense tensor."""
        return self.nnz == math.prod(self.shape) and not self.format.is_blocked


@dataclass(frozen=True)
class Step:
    """``target = reduction over reduced of body``; ``body`` holds no reduction itself.

    Coordinates outside the support of ``body`` are not visited, whatever the reduction; ``steps`` makes up
    for the zeros there where they matter (max, min, prod). ``sampled_at``: the factor whose entries the
    result may have, also where it is zero at them, as gradients do; ``covers``: it is known to have all
    that the other factors leave.
    """

    target: Access
    body: notation.Expr
    reduction: str
    reduced: tuple[str, ...]
    sampled_at: str = ""
    covers: bool = False

    @property
    def indices(self) -> tuple[str, ...]:
        return (*self.target.indices, *self.reduced)

    @functools.cached_property
    def accesses(self) -> tuple[Access, ...]:
        return accesses(self.body)


@dataclass(frozen=True)
class LevelUse:
    """A stored level under an access: which loops its coordinate comes from.

    ``loops`` are the loops that give the coordinate, in order, or () if it is computed from an index by
    division (a blocked level under an unsplit index); ``needs`` must be bound before it is known.
    """

    level: int
    coordinate: Expr
    loops: tuple[str, ...]
    needs: frozenset[str]
    arrays: LevelArrays

    @property
    def loop(self) -> str | None:
        """The loop that may iterate the level, if it is a single one."""
        return self.loops[0] if len(self.loops) == 1 else None


@dataclass(frozen=True)
class Splits:
    """Which indices a kernel splits into a block number and a place in the block.

    ``extents``: the sizes that are written into the kernel as numbers.
    """

    blocks: tuple[tuple[str, int], ...]
    extents: tuple[tuple[str, int], ...] = ()

    def size(self, index: str) -> Expr:
        """How many coordinates ``index`` has."""
        number = dict(self.extents).get(index)
        return Var(f"{index}_size") if number is None else Const(number)

    def block(self, index: str) -> int | None:
        return dict(self.blocks).get(index)

    def loops_of(self, index: str) -> tuple[str, ...]:
        return (index,) if self.block(index) is None else (f"{index}_out", f"{index}_in")

    def loops(self, indices: Iterable[str]) -> frozenset[str]:
        """The loops over ``indices``."""
        return frozenset(loop for index in indices for loop in self.loops_of(index))

    def origin(self, loop: str) -> tuple[str, str]:
        """The index a loop belongs to and which part of it it runs over."""
        for index, _ in self.blocks:
            if loop == f"{index}_out":
                return index, "outer"
            if loop == f"{index}_in":
                return index, "inner"
        return loop, "whole"

    def uses(self, form: Format, indices: Sequence[str], name: str, index: Type) -> tuple[LevelUse, ...]:
        """How each level of a tensor ``name[indices]`` in format ``form`` gets its coordinate."""
        return _uses(self, form, tuple(indices), name, index)

    def use(self, form: Format, indices: Sequence[str], name: str, index_type: Type, level: int) -> LevelUse:
        index = indices[form.order[level]]
        stored, split, part = form.block(form.order[level]), self.block(index), form.part(level)
        size = self.size(index)
        whole = Var(index)
        if part == "whole":
            loops, coordinate = self.loops_of(index), whole
        elif stored == split:
            loop = f"{index}_out" if part == "outer" else f"{index}_in"
            loops, coordinate = (loop,), Var(loop)
        else:
            assert stored is not None
            loops, coordinate = (), (whole // stored if part == "outer" else whole % stored)  # type: ignore[assignment]
        if stored is not None:
            size = (size + (stored - 1)) // stored if part == "outer" else Const(stored)
        needs = frozenset(loops or self.loops_of(index))
        arrays = LevelArrays(
            Array(f"{name}{level + 1}_pos", index_type), Array(f"{name}{level + 1}_crd", index_type), size
        )
        return LevelUse(level, coordinate, loops, needs, arrays)


@functools.lru_cache(maxsize=1024)  # asked for at every turn of planning, and little changes between
def _uses(
    splits: Splits, form: Format, indices: tuple[str, ...], name: str, index: Type
) -> tuple[LevelUse, ...]:
    return tuple(splits.use(form, indices, name, index, level) for level in range(len(form)))


@dataclass(frozen=True)
class Vectors:
    """How the innermost loop runs in vector registers (``vectorize``).

    ``kind``: ``rows`` (results stay in registers over the loops outside) or ``sums``.
    ``width`` elements are worked on at once, in registers of ``lanes``; ``sums``: in how many partial sums.
    ``whole``: the loop is exactly that long; ``rest``: what is left over at its end.
    ``depth``: how many loops stand outside the registers; ``opens``: outside the loop over stretches.
    ``jam``: how many turns of the last of those loops run side by side (``loops.jam``) and share loads.
    ``apart``: how many turns of the loop around the vectors add to registers of their own.
    ``panels``: in how many parts, at most, the rows are used that this loop picks (``vector.panels``).
    """

    kind: str
    loop: str
    width: int
    lanes: int
    sums: int
    whole: bool
    rest: int
    depth: int
    opens: int
    jam: int = 1
    apart: int = 1
    panels: int = 1

    @property
    def start(self) -> Expr:
        """Where the stretch at hand begins."""
        return Const(0) if self.whole else Var(f"{self.loop}_start")


@dataclass(frozen=True)
class Plan:
    """A step with every choice made.

    ``assembly``: ``dense`` (values of a dense result), ``shared`` (values on the first ``pattern_levels``
    levels of ``pattern``, with dense levels below), ``rows`` (append below dense levels), ``buckets`` (count
    the entries of each row, then put them there) or ``list`` (collect entries, sort if need be, then pack).
    ``prefix``: how many outer loops run over the result's first levels in stored order.
    ``prefix_levels``: the levels they cover.
    ``workspace``: None if all of the result's loops are in the prefix, or if entries may come in any order
    because a list sorts them all; else ``dense`` or ``list``. ``bitmap``: whether the positions of a
    dense one are sorted by marking them in a bitmap; ``sweeps``: or, where those of a row lie close
    together, by looking at all between the first and the last (``lower.sweep``).
    ``slots``: the tensors, each with a level (or ``VALUES``), whose entries bound those of the result, which
    then go straight to their place; () if there is no such bound.
    ``noted``: the factor of a product whose positions in a row are noted, for the other's to be looked up
    (``map_places``).
    ``words``: the result levels joined in each 64-bit key of the list; ``workspace_words``: of the workspace.
    ``searched``: levels that are searched for each coordinate of a much shorter one instead of walked.
    ``parallel``: whether several threads share the outermost loop; ``balance``: the tensor and level whose
    ``pos`` says how work is spread over it; ``is_grid``: every turn of it has a thread of its own.
    ``adds``: turns add to elements of the result that they share, atomically; ``is_private``: chunks of turns
    add to copies of the result, one for each, which are summed at the end.
    ``sums``: in how many parts an innermost sum is added; ``gathered``: in how many lanes; ``masked``: in how
    many registers of these it ends (``nodes.For``).
    ``in_blocks``: whether several coordinates of two rows may be merged at a time (``lower.merge_ahead``).
    ``vectors``: the innermost loop in vector registers; ``factors``: those taken out of inner sums, each with
    the number of loops it stands in; ``prefetched``: dense operands whose rows are fetched ahead of the loop
    over a stored level, the last before the innermost one, how many elements, and how far apart
    (``nodes.Prefetch``).
    ``value`` and ``reads``: what is computed at each point, where that is not the body of ``step`` because
    several tensors have their values at the entries of one; each access with the one that is walked for it.
    ``in_strip``: tensors of which only the rows at hand are kept (``fuse``).
    ``applied``: what becomes of each sum before it is stored: an access that stands for it, and the value.
    """

    step: Step
    operands: tuple[Operand, ...]
    result: Format
    element: Type
    index: Type
    splits: Splits
    order: tuple[str, ...]
    assembly: str = "dense"
    pattern: Access | None = None
    prefix: int = 0
    prefix_levels: int = 0
    workspace: str | None = None
    bitmap: bool = False
    sweeps: bool = False
    slots: tuple[tuple[str, int], ...] = ()
    noted: Access | None = None
    words: tuple[tuple[int, ...], ...] = ()
    workspace_words: tuple[tuple[int, ...], ...] = ()
    parallel: bool = False
    is_grid: bool = False
    adds: bool = False
    is_private: bool = False
    balance: tuple[str, int] | None = None
    skip_zeros: bool = False
    searched: frozenset[tuple[Access, int]] = frozenset()
    header: str = ""
    pattern_levels: int = 0
    sums: int = 1
    gathered: int = 0
    masked: int = 1
    in_blocks: bool = False
    vectors: Vectors | None = None
    factors: tuple[tuple[Access, int], ...] = ()
    prefetched: tuple[tuple[Access, int, int], ...] = ()
    value: notation.Expr | None = None
    reads: tuple[tuple[Access, Access], ...] = ()
    in_strip: frozenset[str] = frozenset()
    applied: tuple[Access, notation.Expr] | None = None

    def operand(self, name: str) -> Operand:
        for operand in self.operands:
            if operand.name == name:
                return operand
        raise AssertionError(f"no operand {name!r}")

    @property
    def comes_sorted(self) -> bool:
        """Whether entries reach the collector in stored order, each once."""
        return self.workspace is not None or self.prefix_levels == len(self.result)

    @property
    def notes_rows_once(self) -> bool:
        """Whether a row is noted for all turns of the loop around the innermost one."""
        if self.noted is None or len(self.order) < 2:
            return False
        return all(self.order[-2] not in use.loops for use in self.uses(self.noted))

    @property
    def row_levels(self) -> int | None:
        """How many dense levels lie above the entries, where these are one run of coordinates; else None."""
        rows = self.result.dense_levels
        return rows if rows < len(self.result) and self.result.run_from(rows) == len(self.result) else None

    @property
    def result_loops(self) -> frozenset[str]:
        """The loops over indices of the result."""
        return self.splits.loops(self.step.target.indices)

    def skips(self, loops: Collection[str]) -> bool:
        """Whether an operand stores coordinates of ``loops`` alone, so that these may leave some out."""
        return any(
            use.needs <= set(loops) and not self.operand(access.tensor).format.levels[use.level].is_full
            for access in self.step.accesses
            for use in self.uses(access)
        )

    @property
    def row_vectors(self) -> Vectors | None:
        """How a row of the result stays in registers, if it does."""
        return self.vectors if self.vectors is not None and self.vectors.kind == "rows" else None

    @property
    def result_uses(self) -> tuple[LevelUse, ...]:
        return self._uses(self.result, self.step.target, self.index)

    def uses(self, access: Access) -> tuple[LevelUse, ...]:
        """How each level under ``access`` gets its coordinate."""
        operand = self.operand(access.tensor)
        return self._uses(operand.format, access, operand.index)

    def _uses(self, form: Format, access: Access, index: Type) -> tuple[LevelUse, ...]:
        """The uses of ``access``; rows of a strip are counted from its first."""
        uses = self.splits.uses(form, access.indices, access.tensor, index)
        if access.tensor not in self.in_strip or not form.is_dense:
            return uses
        return (replace(uses[0], coordinate=uses[0].coordinate - STRIP_START), *uses[1:])
