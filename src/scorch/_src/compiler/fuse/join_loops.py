"""The loops of several plans under one loop over rows, a few rows at a time; or under two, one after another.

    for a strip of rows:  the rows of the first result; those of the second; ...

What nobody outside asks for is kept for the rows at hand only. A step that reads a long vector at the place
of every entry runs for all rows first, where a later one fetches rows of a large tensor: with these in
between, the vector would have to come from memory again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

from scorch._src.compiler.fuse.group import FusionError, Group
from scorch._src.compiler.lower.levels import STRIP_BEGIN
from scorch._src.compiler.lower.lower import lower
from scorch._src.compiler.pipeline import Planned, as_statement
from scorch._src.compiler.plan import STRIP_START, Plan, Step
from scorch._src.compiler.target import target
from scorch._src.dataclass import replace
from scorch._src.formats import Format
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import INT64
from scorch._src.notation import nodes as notation
from scorch._src.notation.nodes import Reduce
from scorch._src.notation.show import show
from scorch._src.notation.trees import accesses, substitute

LONGEST = ir.Var("longest")  # entries of a strip: those of the longest row, if that is longer than others get
STRIP_STOP = ir.Var("strip_stop")
ENTRIES = 2048  # of a strip: four results of so many stay in the first cache
ROWS = 16  # of a strip
FLAT = 1024  # elements of a strip, where rows are single elements
LONG = 16  # a vector of this part of a core's cache does not stay there beside rows of other tensors


def joined(group: Group, planned: Sequence[Planned]) -> tuple[ir.Kernel, frozenset[str], int]:
    """One kernel that does for each row what all plans do, and the results that it keeps for a strip only.

    The third is how many of the plans run for all rows before the others.
    """
    first = _first_phase(group, planned)
    phases = [part for part in (planned[:first], planned[first:]) if part]
    late = {access.tensor for each in planned[first:] for access in read_by(each.plan)}
    whole = [name for name in group.results[:first] if name in late and name not in group.outputs]
    in_strip = frozenset(group.results) - set(group.outputs) - set(whole)
    bodies = []
    for phase in phases:
        plans = [replace(each.plan, in_strip=in_strip) for each in phase]
        bodies.append(_phase(group, plans))
    temporaries = [values_of(group, name) for name in whole]
    before: list[ir.Stmt] = [ir.Allocate(array, _entries_of_all(group)) for array in temporaries]
    if any(name in group.stored for name in in_strip):
        pos, r = _pos(group), ir.Var("r")
        longer = ir.Binary("max", LONGEST, _entries(pos, r, r + 1), INT64)
        before.append(ir.Declare(LONGEST, ir.Const(ENTRIES)))
        before.append(ir.For(r, ir.Const(0), ir.Var(f"{group.outermost}_size"), ir.Assign(LONGEST, longer)))
    params = params_of(group, planned)
    scopes = bodies if len(bodies) == 1 else [ir.If(ir.TRUE, body) for body in bodies]
    body = ir.block(*before, *scopes, *(ir.Free(array) for array in temporaries))
    compute = ir.Function("scorch_compute", params, body, exported=True)
    return ir.Kernel(_header(group, planned, first, in_strip), params, (compute,)), in_strip, first


def params_of(group: Group, planned: Sequence[Planned]) -> tuple[ir.Var | ir.Array, ...]:
    """The arguments of the kernel: sizes, the arrays of the pattern, those that it reads, its results."""
    params: list[ir.Var | ir.Array] = [ir.Var("parallel_for"), ir.Var("threads")]
    params += [ir.Var(f"{index}_size") for index, _ in group.sizes]
    if group.pattern is not None:
        params += [ir.Array(f"{group.pattern.name}2_{part}", group.pattern.index) for part in ("pos", "crd")]
    params += [values_of(group, name) for name in (*inputs_of(group, planned), *group.outputs)]
    return tuple(params)


def values_of(group: Group, name: str) -> ir.Array:
    """The array of the values of a tensor."""
    return ir.Array(f"{name}_vals", group.element)


def inputs_of(group: Group, planned: Sequence[Planned]) -> dict[str, Format | None]:
    """What the kernel reads from outside, in order, each with the format it is copied to, if it is."""
    formats: dict[str, Format | None] = {}
    for each in planned:
        copies = {conversion.name: conversion.format for conversion in each.conversions}
        for access in read_by(each.plan):
            if access.tensor in group.results:
                continue
            form = copies.get(access.tensor)
            if formats.setdefault(access.tensor, form) != form:
                raise FusionError(f"{access.tensor} is read in two memory layouts")
    return formats


def read_by(plan: Plan) -> list[notation.Access]:
    """All that the loops of a plan read."""
    assert plan.value is not None
    reads = list(accesses(plan.value))
    if plan.applied is not None:
        total, value = plan.applied
        reads += [access for access in accesses(value) if access != total]
    return reads


# phases ----------------------------------------------------------------------------------------------


def _first_phase(group: Group, planned: Sequence[Planned]) -> int:
    """How many steps run for all rows before the others do; 0 if all go row by row."""
    if group.pattern is None or not any(_fetches_rows(each.plan) for each in planned):
        return 0
    first = 0
    for place, each in enumerate(planned):
        if each.plan.step.reduced or each.plan.step.target.tensor not in group.stored:
            break
        if any(_is_long_vector(group, each.plan, access) for access in read_by(each.plan)):
            first = place + 1
    return first


def _fetches_rows(plan: Plan) -> bool:
    """Whether entries pick rows of a tensor that is too large for the cache of a core."""
    sizes = [plan.operand(access.tensor).nnz * plan.element.bytes for access, _, _ in plan.prefetched]
    return any(size > target().cache_bytes for size in sizes)


def _is_long_vector(group: Group, plan: Plan, access: notation.Access) -> bool:
    if access.indices != group.walked[-1:]:
        return False
    return plan.operand(access.tensor).nnz * plan.element.bytes > target().cache_bytes // LONG


def _phase(group: Group, plans: Sequence[Plan]) -> ir.Stmt:
    """One loop over all rows, shared by threads."""
    loops = [loop_of(group, lower(plan)) for plan in plans]
    balanced = next((place for place, plan in enumerate(plans) if plan.balance is not None), 0)
    shell = loops[balanced][0]
    inner: list[ir.Stmt] = [ir.Comment(show(written(plans[0]))), loops[0][1]]
    if len(plans) > 1:
        inner = []
        for plan, (_, loop) in zip(plans, loops, strict=True):
            inner += [ir.Comment(show(written(plan))), replace(loop, start=STRIP_START, stop=STRIP_STOP)]
        inner = [_strips(group, inner)]
    own = {plan.step.target.tensor: plan.step for plan in plans}
    scratch = [_strip_array(group, step) for name, step in own.items() if name in plans[0].in_strip]
    head = ir.block(lower(plans[balanced]).functions[0].body).body[:2]
    shared = replace(
        shell,
        prologue=ir.block(*(ir.Allocate(array, count) for array, count in scratch)),
        body=ir.Block((*ir.block(shell.body).body[:2], *inner)),
        epilogue=ir.block(*(ir.Free(array) for array, _ in scratch)),
    )
    return ir.block(*head, shared)


def loop_of(group: Group, kernel: ir.Kernel) -> tuple[ir.Parallel, ir.For]:
    """The parallel loop of a kernel and the loop over rows inside it, if there is nothing else."""
    (function,) = kernel.functions
    match list(ir.block(function.body).body):
        case [
            ir.Declare(ir.Var("span")),
            ir.Declare(),
            ir.Parallel(_, _, _, ir.Block(()), ir.Block(body), ir.Block(())) as parallel,
        ]:
            match body:
                case [
                    ir.Declare(),
                    ir.Declare(),
                    ir.For(ir.Var(name), ir.Var("chunk_start"), ir.Var("chunk_stop")) as loop,
                ]:
                    if name == group.outermost:
                        return parallel, loop
    raise FusionError(f"the kernel of {kernel.header.splitlines()[0]} is not a single loop over rows")


# strips ----------------------------------------------------------------------------------------------


def _strips(group: Group, loops: Sequence[ir.Stmt]) -> ir.Stmt:
    """``loops`` for a few rows at a time: as many as have ``ENTRIES`` entries, or one."""
    most = FLAT if group.pattern is None else ROWS
    room = ir.both(ir.Var("chunk_stop") > STRIP_STOP, ir.Const(most) > STRIP_STOP - STRIP_START)
    begin: ir.Stmt | None = None
    if group.pattern is not None:
        pos = _pos(group)
        room = ir.both(room, _entries(pos, STRIP_START, STRIP_STOP + 1) <= ENTRIES)
        begin = ir.Declare(STRIP_BEGIN, ir.wide(ir.Load(pos, STRIP_START)))
    return ir.block(
        ir.Declare(STRIP_START, ir.Var("chunk_start")),
        ir.While(
            ir.Var("chunk_stop") > STRIP_START,
            ir.block(
                ir.Declare(STRIP_STOP, STRIP_START + 1),
                ir.While(room, ir.Assign(STRIP_STOP, STRIP_STOP + 1)),
                begin,
                *loops,
                ir.Assign(STRIP_START, STRIP_STOP),
            ),
        ),
    )


def _pos(group: Group) -> ir.Array:
    assert group.pattern is not None
    return ir.Array(f"{group.pattern.name}2_pos", group.pattern.index)


def _entries(pos: ir.Array, start: ir.Expr, stop: ir.Expr) -> ir.Expr:
    """How many entries the rows from ``start`` to ``stop`` have."""
    return ir.wide(ir.Load(pos, stop)) - ir.wide(ir.Load(pos, start))


def _entries_of_all(group: Group) -> ir.Expr:
    return ir.wide(ir.Load(_pos(group), ir.Var(f"{group.outermost}_size")))


def _strip_array(group: Group, step: Step) -> tuple[ir.Array, ir.Expr]:
    """Room for the rows at hand of a result."""
    array = values_of(group, step.target.tensor)
    if step.target.tensor in group.stored:
        return array, LONGEST
    count: ir.Expr = ir.Const(FLAT if group.pattern is None else ROWS)
    for index in step.target.indices[1:]:
        count = count * ir.Var(f"{index}_size")
    return array, count


# words -----------------------------------------------------------------------------------------------


def written(plan: Plan) -> notation.Assign:
    """What the plan computes, as it was given."""
    assert plan.value is not None
    statement = as_statement(replace(plan.step, body=plan.value))
    if plan.applied is None:
        return statement
    total, value = plan.applied
    assert isinstance(statement.value, Reduce)
    return notation.Assign(statement.target, substitute(value, {total: statement.value}))


def _header(group: Group, planned: Sequence[Planned], first: int, in_strip: frozenset[str]) -> str:
    loop = f"one parallel loop over {group.outermost}"
    if first:
        names = ", ".join(group.results[:first])
        loop = f"a parallel loop over {group.outermost} for {names}, then one for the others"
    return describe(group, planned, loop, in_strip)


def describe(group: Group, planned: Sequence[Planned], loop: str, of_rows: frozenset[str]) -> str:
    """What a kernel computes, how it loops, and what it holds ``of_rows`` for a few rows at a time."""
    lines = [show(written(each.plan)) for each in planned]
    lines.append(loop)
    if of_rows:
        names = ", ".join(name for name in group.results if name in of_rows)
        lines.append(f"held for a few rows at a time: {names}")
    if group.pattern is not None:
        found = [name for name in (*inputs_of(group, planned), *group.results) if name in group.stored]
        if found:
            lines.append(f"share one sparsity pattern ({group.pattern.format}): {', '.join(found)}")
    return "\n".join(lines)
