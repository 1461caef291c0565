"""The memory a kernel needs in addition to its operands and its result, read off its loops.

Nothing is listed by hand: every array that a kernel allocates is an ``Allocate`` in its loops, and every
routine that allocates says how much (``loops.intrinsics``). The loops are walked in order with an upper bound
for each variable. Lengths follow from the sizes; for counters that grow with the data, collectors and
workspaces state next to their declaration how far (``limits``). A length that nothing bounds is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from scorch._src.compiler.names import safe_index
from scorch._src.compiler.plan import Operand, Plan
from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import walk
from scorch._src.loops.intrinsics import INTRINSICS
from scorch._src.loops.types import INT64, LAST_INT32, Type

HUGE_PAGE = 2 << 20  # results from this size on lie in pages of their own, which are as large
PARTS_OF_PAGE = 16  # by which smaller ones grow


@dataclass(frozen=True)
class Footprint:
    """The bytes of a step; its peak is no more than ``operands + result + workspace``.

    ``operands``
        as they were given
    ``result``
        what is allocated for it: all of it if ``exact``, else the most there may be
    ``workspace``
        everything else: ``each_thread`` for every one of ``threads``, ``copies`` of operands that
        are stored otherwise first, and the rest once
    ``values``
        how many values the result has at most
    """

    operands: int
    result: int
    exact: bool
    workspace: int
    each_thread: int
    threads: int
    copies: int
    values: int

    @property
    def once(self) -> int:
        """The workspace that does not depend on the number of threads."""
        return self.workspace - self.each_thread * self.threads - self.copies


@dataclass(frozen=True)
class Workspace:
    """What a kernel allocates: ``each_thread`` in every worker and ``once`` for all of them."""

    each_thread: int
    once: int


def workspace(
    kernel: ir.Kernel, sizes: Mapping[str, int], threads: int, limits: Mapping[str, int]
) -> Workspace:
    """The most that ``kernel`` allocates at any one time; ``limits`` are those of its assembly."""
    bounds: dict[str, float] = {f"{safe_index(index)}_size": size for index, size in sizes.items()}
    memory = _Walk(kernel.functions, {**bounds, "threads": threads}, limits)
    for function in kernel.functions:
        if function.exported:
            memory.visit(function.body)
    once = memory.peak - memory.each_thread * threads
    return Workspace(memory.each_thread, once)


class _Walk:
    """The arrays that are alive while loops are walked; ``bounds`` has the most a variable may be."""

    def __init__(
        self, functions: Iterable[ir.Function], bounds: Mapping[str, float], limits: Mapping[str, int]
    ) -> None:
        self.functions = {function.name: function for function in functions}
        self.bounds = dict(bounds)
        self.limits = limits
        self.firsts: dict[str, float] = {}  # what growing counters begin with
        self.alive: dict[str, int] = {}
        self.peak = 0
        self.each_thread = 0
        self.keeps: frozenset[str] = frozenset()  # the arrays of a worker that outlive its turns,
        self.kept: dict[str, int] = {}  # what they take after all of them,
        self.growing = 0  # and the most that one of them takes twice while it grows
        self.turns: float = 1

    def visit(self, node: ir.Stmt) -> None:
        match node:
            case ir.Block(body):
                for statement in body:
                    self.visit(statement)
            case ir.For(_, _, _, body) | ir.While(_, body):
                self.visit(body)
            case ir.If(condition, then, otherwise):
                self._calls(condition)
                self.visit(then)
                self.visit(otherwise)
            case ir.Declare(var, value):
                self._calls(value)
                if var.name in self.limits:
                    self.firsts[var.name] = self.most(value)
                else:
                    self.bounds[var.name] = self.most(value)
            case ir.Allocate(array, count, _) if array.name in self.keeps:
                self.kept[array.name] = self._kept_bytes(array, count)
            case ir.Allocate(array, count, _):
                self.alive[array.name] = self._bytes(array, self.most(count))
                self._note()
            case ir.Resize(array, count) if array.name in self.keeps:
                self.growing = max(self.growing, self._bytes(array, self.most(count)) // 2)
            case ir.Resize(array, count):  # by doubling: the old array is at most half as long
                self._note(self._bytes(array, self.most(count)) // 2)
            case ir.Free(array):
                self.alive.pop(array.name, None)
            case ir.Parallel():
                self._workers(node)
            case _:
                self._calls(node)

    def _bytes(self, array: ir.Array, length: float) -> int:
        assert length < math.inf, f"nothing bounds the length of {array.name}"
        return array.element.bytes * max(int(length), 1)

    def _kept_bytes(self, array: ir.Array, count: ir.Expr) -> int:
        """Arrays of all turns: their counters reach their limit together, and each has its first length."""
        first = self.firsts[count.name] if isinstance(count, ir.Var) else self.most(count)
        return self._bytes(array, self.most(count) + first * self.turns)

    def _note(self, more: int = 0) -> None:
        self.peak = max(self.peak, sum(self.alive.values()) + more)

    def _workers(self, parallel: ir.Parallel) -> None:
        worker = _Walk(self.functions.values(), self.bounds, self.limits)
        worker.keeps = frozenset(n.array.name for n in walk(parallel.body) if isinstance(n, ir.KeepArray))
        worker.turns = self.most(parallel.count)
        for part in (parallel.prologue, parallel.body, parallel.epilogue):
            worker.visit(part)
        assert not worker.alive, f"workers leave {', '.join(worker.alive)} behind"
        self.alive |= worker.kept
        self.each_thread = max(self.each_thread, worker.peak)
        self._note(worker.growing + worker.peak * int(self.most(parallel.threads)))

    def _calls(self, node: ir.Expr | ir.Stmt) -> None:
        """What functions called in ``node`` allocate and free again."""
        for call in walk(node):
            if isinstance(call, ir.Call):
                self._note(self._called(call))

    def _called(self, call: ir.Call) -> int:
        arguments = [0.0 if isinstance(value, ir.Array) else self.most(value) for value in call.arguments]
        if call.function not in self.functions:
            memory = INTRINSICS[call.function].memory
            return 0 if memory is None else int(memory(*arguments))
        function = self.functions[call.function]
        names = (param.name for param in function.params)
        inside = _Walk(self.functions.values(), dict(zip(names, arguments, strict=True)), {})
        inside.visit(function.body)
        return inside.peak

    def most(self, expr: ir.Expr) -> float:
        """An upper bound of a number that is not negative."""
        match expr:
            case ir.Const(value):
                assert not isinstance(value, complex), "a length is a number"
                return value
            case ir.Var(name, _):
                return self.limits.get(name, self.bounds.get(name, math.inf))
            case ir.Cast(value, _):
                return self.most(value)
            case ir.Select(_, then, otherwise):
                return max(self.most(then), self.most(otherwise))
            case ir.Binary(op, a, b, _):
                return self._joined(op, self.most(a), self.most(b), b)
        return math.inf

    def _joined(self, op: str, x: float, y: float, divisor: ir.Expr) -> float:
        match op:
            case "+":
                return x + y
            case "-" | "%":
                return x
            case "*":
                return x * y if x and y else 0
            case "/":
                return x // y if isinstance(divisor, ir.Const) and x < math.inf else x
            case "max":
                return max(x, y)
            case "min":
                return min(x, y)
        return math.inf


# tensors ---------------------------------------------------------------------------------------------


def operand_bytes(operand: Operand) -> int:
    """What the arrays of a tensor take."""
    arrays = array_bytes(operand.format, operand.shape, operand.counts, operand.index, operand.element)
    return sum(arrays)


def array_bytes(
    form: Format, shape: Sequence[int], counts: Sequence[int], index: Type, element: Type
) -> list[int]:
    """What each array takes of a tensor with ``counts`` positions on its levels; the values come last."""
    sizes, parents = [], 1
    for level, count in enumerate(counts):
        kind = form.levels[level]
        if not kind.is_full:
            if form.starts_run(level):
                sizes.append((parents + 1) * index.bytes)
            sizes.append(kind.length(parents, form.level_size(level, shape), count) * index.bytes)
        parents = count
    return [*sizes, parents * element.bytes]


def most_counts(form: Format, shape: Sequence[int], places: Sequence[int]) -> tuple[int, ...]:
    """How many positions each level has at most with coordinates for ``places`` up to there.

    >>> most_counts(Format("csr"), (3, 4), (5, 5)), most_counts(Format("coo"), (3, 4), (5, 5))
    ((3, 5), (5, 5))
    """
    counts: list[int] = []
    room = parents = 1
    for level, kind in enumerate(form.levels):
        if kind.is_full or form.starts_run(level):
            last = form.run_from(level) - 1
            size = math.prod(form.level_size(member, shape) for member in range(level, last + 1))
            room *= size
            entries = min(places[last], room)
            if kind.is_padded:  # all that may be there, below as many positions as have any
                entries = min(parents, entries) * size
            parents = kind.count(parents, size, entries)
        counts.append(parents)
    return tuple(counts)


def finishing_bytes(form: Format, shape: Sequence[int], counts: Sequence[int], element: Type) -> int:
    """What it takes for a while to finish the levels of a result: coordinates, and numbers of int64."""
    size, parents = 0, 1
    for level, kind in enumerate(form.levels):
        if not kind.is_full and not kind.has_coordinates:
            length = kind.length(parents, form.level_size(level, shape), counts[level])
            size += 8 * (4 * (parents + 1) + 8 * counts[level] + 4 * length)
        parents = counts[level]
    return size + (element.bytes + 16) * parents if size and form.is_padded else size


def result_arrays(plan: Plan, shape: Sequence[int], counts: Sequence[int], element: Type) -> list[int]:
    """What the new arrays of the result take; a shared pattern takes nothing."""
    index = INT64 if max(counts, default=0) > LAST_INT32 else plan.index
    arrays = array_bytes(plan.result, shape, counts, index, element)
    return arrays[-1:] if plan.assembly == "shared" else arrays


def in_pages(size: int, least: int = HUGE_PAGE) -> int:
    """``size`` bytes as a result holds them: whole pages from the ``least`` that lie in some of their own."""
    unit = HUGE_PAGE if size >= HUGE_PAGE else HUGE_PAGE // PARTS_OF_PAGE
    return size if size < least else -(-size // unit) * unit
