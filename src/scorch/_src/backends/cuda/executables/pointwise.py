"""Kernels that compute each value of a result from entries of operands whose numbers are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scorch._src.backends.print.cuda import print_cuda
from scorch._src.compiler.lower.express import converted, value_of
from scorch._src.compiler.plan import Plan
from scorch._src.formats.scratch import join_key
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import INT32, INT64
from scorch._src.notation.nodes import Access, Expr, Op

SAME, EVERYWHERE, SOMEWHERE = "same", "everywhere", "somewhere"  # where operands have entries of the result


def print_pointwise(plan: Plan, kinds: Mapping[Access, str], is_wide: bool) -> str:
    """The CUDA source of a plan over entries.

    The entries of an operand are all of its own in their order (``SAME``), or have a number at every place of
    the result, or at some, and -1 at the others, where it is zero. "" where it matters what is stored. Slots
    are how many there are, the sizes of indices, their numbers and values in sparse operands, coordinates and
    values of dense operands, if there are some, and the result.
    """
    if _asks_where(plan.step.body):
        return ""
    index = INT64 if is_wide else INT32
    place, count = ir.Var("place"), ir.Var("places")
    numbers = {a: ir.Array(f"entry_{n}", index) for n, a in enumerate(kinds) if kinds[a] != SAME}
    values = {a: ir.Array(f"values_{n}", plan.operand(a.tensor).element) for n, a in enumerate(kinds)}
    sizes = [ir.Var(f"{index}_size") for index in plan.step.target.indices]
    columns, reads = _dense_reads(plan, [a for a in plan.step.accesses if a not in kinds], sizes, place)
    tensors = [read.array for read in reads.values()]
    body: list[ir.Stmt] = []
    known: dict[Access, ir.Expr] = dict(reads)
    for n, (access, kind) in enumerate(kinds.items()):
        entry: ir.Expr = place
        if kind != SAME:
            entry = ir.Var(f"at_{n}")
            body.append(ir.Declare(ir.Var(f"at_{n}"), ir.wide(ir.Load(numbers[access], place))))
        value: ir.Expr = ir.Load(values[access], entry)
        if kind == SOMEWHERE:
            value = ir.Select(ir.Const(-1) < entry, value, ir.Const(0, value.type))
        body.append(ir.Declare(ir.Var(f"value_{n}", value.type), value))
        known[access] = ir.Var(f"value_{n}", value.type)
    types = {operand.name: operand.element for operand in plan.operands}
    result = ir.Array("results", plan.element)
    found = converted(value_of(plan.step.body, types, known.get), plan.element)
    body.append(ir.Store(result, place, found))
    arrays = (*numbers.values(), *values.values(), *columns, *tensors, result)
    slots: tuple[ir.Var | ir.Array, ...] = (count, *sizes, *arrays)
    nothing = ir.Block(())
    loop = ir.Parallel(place, count, ir.Const(1), nothing, ir.block(*body), nothing, has_unit_each=True)
    function = ir.Function("scorch_compute", slots, ir.block(loop), exported=True)
    return print_cuda(ir.Kernel(plan.header, slots, (function,)))


def _dense_reads(
    plan: Plan, dense: Sequence[Access], sizes: Sequence[ir.Expr], place: ir.Var
) -> tuple[list[ir.Array], dict[Access, ir.Load]]:
    """The arrays of coordinates, and what is read of dense operands at those of a place."""
    columns = [ir.Array(f"column_{n}", INT64) for n in range(len(sizes))] if dense else []
    reads = {}
    for n, access in enumerate(dense):
        dims = [plan.step.target.indices.index(index) for index in access.indices]
        at = join_key([ir.Load(columns[dim], place) for dim in dims], [sizes[dim] for dim in dims])
        reads[access] = ir.Load(ir.Array(f"dense_{n}", plan.operand(access.tensor).element), at)
    return columns, reads


def _asks_where(body: Expr) -> bool:
    """Check for ``present``, whose value depends on which entries are stored."""
    return isinstance(body, Op) and (body.name == "present" or any(map(_asks_where, body.args)))
