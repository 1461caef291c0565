"""Several steps in one kernel: the loops of each, one after the other, for every row.

    S[i,j] = M[i,j] * Q[i,k] * K[j,k]                 for a strip of rows:
    m[i] = max(j, S[i,j])                       ->        S of these rows; their maxima; their exponentials
    E[i,j] = exp(S[i,j] - m[i])  ...                      and the sums of those; O of these rows

Steps can be joined if the outermost loop of each runs over the same index and every turn of it reads no more
of the others' results than its own row. Each step is planned by itself, as if it were alone; their loops are
joined under one outermost loop, which threads share. It takes a few rows at a time, so that what a step reads
of dense operands is still in the first cache for the next row. A result that nobody outside asks for is kept
for the rows at hand only, and never leaves the cache.

Sparse tensors of a group have their values at the entries of one pattern, which is walked once for all of
them, however many a step reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scorch.compiler import lattice
from scorch.compiler.collect import writes_everything
from scorch.compiler.convert_operands import Conversion
from scorch.compiler.infer_format import support_of
from scorch.compiler.levels import STRIP_BEGIN
from scorch.compiler.lower import lower
from scorch.compiler.pipeline import Planned, as_statement, plan_step
from scorch.compiler.plan import STRIP_START, Operand, Plan, Step
from scorch.formats import Format, dense_format
from scorch.loops.nodes import (
    Allocate,
    Array,
    Assign,
    Binary,
    Block,
    Comment,
    Const,
    Declare,
    Expr,
    For,
    Free,
    Function,
    Kernel,
    Load,
    Parallel,
    Stmt,
    Var,
    While,
    block,
    both,
    wide,
)
from scorch.loops.simplify import simplify
from scorch.loops.types import INT32, INT64, Type
from scorch.notation import nodes as notation
from scorch.notation.nodes import Access, Op
from scorch.notation.show import show
from scorch.notation.trees import substitute

LONGEST = Var("longest")  # entries of a strip: those of the longest row, if that is longer than others get
STRIP_STOP = Var("strip_stop")
ENTRIES = 2048  # of a strip: four results of so many stay in the first cache
ROWS = 16  # of a strip
FLAT = 1024  # elements of a strip, where rows are single elements


class FusionError(Exception):
    """Why steps cannot be one kernel, in words for people."""


@dataclass(frozen=True)
class Group:
    """Steps to be joined, in order; the outermost index is the first of every result.

    ``pattern``: the operand whose entries are walked, with the indices of its dimensions in ``walked``;
    ``stored`` are the tensors that have their values there, those that steps give included.
    ``operands``: the dense tensors that are read. ``kept``: the results that are asked for.
    """

    steps: tuple[Step, ...]
    kept: tuple[str, ...]
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
    """

    group: Group
    kernel: Kernel
    inputs: tuple[tuple[str, Format | None], ...]
    in_strip: frozenset[str]
    work: float


def fuse(group: Group) -> Fused:
    """The kernel of ``group``; ``FusionError`` says why there is none."""
    group = replace(group, steps=inline(group.steps, group.kept))
    in_strip = frozenset(group.results) - set(group.kept)
    planned = [_planned(group, step, in_strip) for step in group.steps]
    loops = [_loop_of(group, lower(each.plan)) for each in planned]
    kernel = simplify(_joined(group, planned, loops, in_strip))
    assert isinstance(kernel, Kernel)
    inputs = _inputs(group, planned)
    work = sum(each.choice.chosen.total for each in planned)
    return Fused(group, kernel, tuple(inputs.items()), in_strip, work)


# steps that become part of others --------------------------------------------------------------------


def inline(steps: Sequence[Step], kept: Sequence[str]) -> tuple[Step, ...]:
    """Elementwise steps that one other elementwise step reads, once, as a part of that step.

    T[i,j] = A[i,j] * d[i];  R[i,j] = relu(T[i,j])    ->    R[i,j] = relu(A[i,j] * d[i])
    """
    left = list(steps)
    for step in steps:
        name = step.target.tensor
        readers = [other for other in left for access in _all_accesses(other) if access.tensor == name]
        if step.reduced or name in kept or len(readers) != 1 or readers[0].reduced:
            continue
        place = left.index(readers[0])
        body = left[[other.target for other in left].index(step.target)].body
        left[place] = replace(readers[0], body=substitute(readers[0].body, {step.target: body}))
        left = [other for other in left if other.target != step.target]
    return tuple(left)


def _all_accesses(step: Step) -> Iterator[Access]:
    """Every access as often as it stands in the body."""
    left = [step.body]
    while left:
        expr = left.pop()
        if isinstance(expr, Access):
            yield expr
        elif isinstance(expr, Op):
            left += expr.args


# plans -----------------------------------------------------------------------------------------------


def dense_operand(name: str, shape: Sequence[int], element: Type) -> Operand:
    """A dense tensor that lies in memory row by row."""
    counts, places = [], 1
    for size in shape:
        places *= size
        counts.append(places)
    return Operand(name, dense_format(len(shape)), element, INT32, tuple(shape), tuple(counts))


def _planned(group: Group, step: Step, in_strip: frozenset[str]) -> Planned:
    """``step`` planned as if it were alone, with one operand for all tensors on the pattern."""
    sizes = dict(group.sizes)
    tensors = {operand.name: operand for operand in group.operands}
    for other in group.steps:
        if other.target.tensor not in group.stored:
            shape = [sizes[index] for index in other.target.indices]
            tensors[other.target.tensor] = dense_operand(other.target.tensor, shape, group.element)
    value, reads, body = step.body, {}, step.body
    if group.pattern is not None:
        tensors[group.pattern.name] = group.pattern
        walked = Access(group.pattern.name, group.walked)
        reads = {access: walked for access in step.accesses if access.tensor in group.stored}
        body = substitute(step.body, dict(reads))
        operands = {access: tensors[access.tensor] for access in replace(step, body=body).accesses}
        where = support_of(replace(step, body=body), operands)
        if step.target.tensor in group.stored and where != lattice.stored(walked):
            body = Op("mul", (walked if step.reduced else Op("present", (walked,)), body))
    _check_rows(group, step)
    used = [tensors[access.tensor] for access in replace(step, body=body).accesses]
    planned = plan_step(
        replace(step, body=body), {operand.name: operand for operand in used}, sizes, group.element
    )
    plan = planned.plan
    for conversion in planned.conversions:
        value = _converted(group, step, value, conversion)
    extra = [replace(group.pattern, name=access.tensor) for access in reads if group.pattern is not None]
    plan = replace(
        plan,
        value=value,
        reads=tuple(reads.items()),
        in_strip=in_strip,
        operands=(*plan.operands, *extra),
        vectors=plan.vectors
        and replace(
            plan.vectors,
            opens=max(plan.vectors.opens, min(plan.vectors.depth, 1)),
            jam=1 if plan.vectors.depth <= 1 and plan.vectors.kind == "rows" else plan.vectors.jam,
        ),
    )
    _check(group, plan)
    return replace(planned, plan=plan)


def _check_rows(group: Group, step: Step) -> None:
    """Whether ``step`` reads other results of the group in its own row only."""
    for access in step.accesses:
        if access.tensor in group.results and access.indices[:1] != (group.outermost,):
            raise FusionError(f"{show(access)} reads rows of {access.tensor} that other turns compute")


def _converted(group: Group, step: Step, value: notation.Expr, conversion: Conversion) -> notation.Expr:
    """``value`` reading the copy of a dense operand that is laid out otherwise."""
    if conversion.tensor in group.results or not conversion.format.is_dense:
        raise FusionError(f"{conversion.tensor} would have to be stored otherwise: {conversion.reason}")
    old = [access for access in step.accesses if access.tensor == conversion.tensor]
    if len(old) != 1:
        raise FusionError(f"{conversion.tensor} is read in two ways, one of which needs a copy")
    return substitute(value, {old[0]: Access(conversion.name, old[0].indices)})


def _check(group: Group, plan: Plan) -> None:
    name = plan.step.target.tensor
    if not plan.order or plan.order[0] != group.outermost:
        raise FusionError(f"the loops of {name} begin with {plan.order[0] if plan.order else 'nothing'}")
    if plan.assembly != ("shared" if name in group.stored else "dense"):
        raise FusionError(f"{name} has entries of its own")
    if not plan.parallel or plan.splits.blocks or not writes_everything(plan):
        raise FusionError(f"the rows of {name} are not computed one by one")


# loops -----------------------------------------------------------------------------------------------


def _loop_of(group: Group, kernel: Kernel) -> tuple[Parallel, For]:
    """The parallel loop of a kernel and the loop over rows inside it, if there is nothing else."""
    (function,) = kernel.functions
    match _statements(function.body):
        case [Declare(), Declare(), Parallel(_, _, _, Block(()), Block(body), Block(())) as parallel]:
            match body:
                case [Declare(), Declare(), For(Var(name), Var("chunk_start"), Var("chunk_stop")) as loop]:
                    if name == group.outermost:
                        return parallel, loop
    raise FusionError(f"the loops of {kernel.header.splitlines()[0]} are not one loop over rows")


def _statements(stmt: Stmt) -> list[Stmt]:
    return list(block(stmt).body)


def _joined(
    group: Group, planned: Sequence[Planned], loops: Sequence[tuple[Parallel, For]], in_strip: frozenset[str]
) -> Kernel:
    """One kernel whose outermost loop does for each row what those of all ``loops`` do."""
    balanced = next((n for n, each in enumerate(planned) if each.plan.balance is not None), 0)
    shell = loops[balanced][0]
    scopes: list[Stmt] = []
    for each, (_, loop) in zip(planned, loops, strict=True):
        scopes += [Comment(show(_written(each.plan))), replace(loop, start=STRIP_START, stop=STRIP_STOP)]
    before: list[Stmt] = []
    scratch = [_strip_array(group, step) for step in group.steps if step.target.tensor in in_strip]
    if any(count == LONGEST for _, count in scratch):
        pos, r = _pos(group), Var("r")
        longer = Binary("max", LONGEST, _entries(pos, r, r + 1), INT64)
        rows_of = For(r, Const(0), Var(f"{group.outermost}_size"), Assign(LONGEST, longer))
        before = [Declare(LONGEST, Const(ENTRIES)), rows_of]
    chunk = Block((*_statements(shell.body)[:2], _strips(group, scopes)))
    shared = replace(
        shell,
        prologue=block(*(Allocate(array, count) for array, count in scratch)),
        body=chunk,
        epilogue=block(*(Free(array) for array, _ in scratch)),
    )
    span = Var("span")
    head = _statements(lower(planned[balanced].plan).functions[0].body)[:2]
    assert isinstance(head[0], Declare) and head[0].var == span
    params: list[Var | Array] = [Var("parallel_for"), Var("threads")]
    params += [Var(f"{index}_size") for index, _ in group.sizes]
    if group.pattern is not None:
        params += [Array(f"{group.pattern.name}2_{part}", group.pattern.index) for part in ("pos", "crd")]
    params += [Array(f"{name}_vals", group.element) for name in (*_inputs(group, planned), *group.kept)]
    body = block(*before, *head, shared)
    compute = Function("scorch_compute", tuple(params), body, exported=True)
    return Kernel(_header(group, planned, in_strip), tuple(params), (compute,))


def _strips(group: Group, loops: Sequence[Stmt]) -> Stmt:
    """``loops`` for a few rows at a time: as many as have ``ENTRIES`` entries, or one."""
    most = FLAT if group.pattern is None else ROWS
    room = both(Var("chunk_stop") > STRIP_STOP, Const(most) > STRIP_STOP - STRIP_START)
    begin: Stmt | None = None
    if group.pattern is not None:
        pos = _pos(group)
        room = both(room, _entries(pos, STRIP_START, STRIP_STOP + 1) <= ENTRIES)
        begin = Declare(STRIP_BEGIN, wide(Load(pos, STRIP_START)))
    return block(
        Declare(STRIP_START, Var("chunk_start")),
        While(
            Var("chunk_stop") > STRIP_START,
            block(
                Declare(STRIP_STOP, STRIP_START + 1),
                While(room, Assign(STRIP_STOP, STRIP_STOP + 1)),
                begin,
                *loops,
                Assign(STRIP_START, STRIP_STOP),
            ),
        ),
    )


def _pos(group: Group) -> Array:
    assert group.pattern is not None
    return Array(f"{group.pattern.name}2_pos", group.pattern.index)


def _entries(pos: Array, start: Expr, stop: Expr) -> Expr:
    """How many entries the rows from ``start`` to ``stop`` have."""
    return wide(Load(pos, stop)) - wide(Load(pos, start))


def _strip_array(group: Group, step: Step) -> tuple[Array, Expr]:
    """Room for the rows at hand of a result."""
    array = Array(f"{step.target.tensor}_vals", group.element)
    if step.target.tensor in group.stored:
        return array, LONGEST
    count: Expr = Const(FLAT if group.pattern is None else ROWS)
    for index in step.target.indices[1:]:
        count = count * Var(f"{index}_size")
    return array, count


def _inputs(group: Group, planned: Sequence[Planned]) -> dict[str, Format | None]:
    """What the kernel reads from outside, in order."""
    formats: dict[str, Format | None] = {}
    for each in planned:
        copies = {conversion.name: conversion.format for conversion in each.conversions}
        body = each.plan.value
        assert body is not None
        for access in Step(each.plan.step.target, body, "sum", ()).accesses:
            if access.tensor in group.results:
                continue
            form = copies.get(access.tensor)
            if formats.setdefault(access.tensor, form) != form:
                raise FusionError(f"{access.tensor} is needed in two layouts")
    return formats


# words -----------------------------------------------------------------------------------------------


def _written(plan: Plan) -> notation.Assign:
    """What the plan computes, as it was given."""
    assert plan.value is not None
    return as_statement(replace(plan.step, body=plan.value))


def _header(group: Group, planned: Sequence[Planned], in_strip: frozenset[str]) -> str:
    lines = [show(_written(each.plan)) for each in planned]
    lines.append(f"one loop over {group.outermost} for all, shared by threads")
    if in_strip:
        names = [name for name in group.results if name in in_strip]
        lines.append(f"only for the rows at hand: {', '.join(names)}")
    if group.pattern is not None:
        names = [name for name in (*_inputs(group, planned), *group.results) if name in group.stored]
        lines.append(f"at the entries of one pattern, {group.pattern.format}: {', '.join(names)}")
    return "\n".join(lines)
