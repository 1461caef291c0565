"""Kernels that compute each value of a result from entries of operands whose numbers are known."""

from __future__ import annotations

from collections.abc import Mapping

from scorch._src.backends.print.cuda import print_cuda
from scorch._src.compiler.lower.express import converted, value_of
from scorch._src.compiler.plan import Plan
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import INT32, INT64
from scorch._src.notation.nodes import Access, Expr, Op

SAME, EVERYWHERE, SOMEWHERE = "same", "everywhere", "somewhere"  # where operands have entries of the result


def print_pointwise(plan: Plan, kinds: Mapping[Access, str], is_wide: bool) -> str:
    """The CUDA source of a plan over entries: their numbers come first, then the values, then the result.

    The entries of an operand are all of its own in their order (``SAME``), or have a number at every place of
    the result, or at some, and -1 at the others, where it is zero. "" where it matters what is stored.
    """
    if _asks_where(plan.step.body):
        return ""
    index = INT64 if is_wide else INT32
    place, count = ir.Var("place"), ir.Var("places")
    numbers = {a: ir.Array(f"entry_{n}", index) for n, a in enumerate(kinds) if kinds[a] != SAME}
    values = {a: ir.Array(f"values_{n}", plan.operand(a.tensor).element) for n, a in enumerate(kinds)}
    body: list[ir.Stmt] = []
    reads: dict[Access, ir.Expr] = {}
    for n, (access, kind) in enumerate(kinds.items()):
        entry: ir.Expr = place
        if kind != SAME:
            entry = ir.Var(f"at_{n}")
            body.append(ir.Declare(ir.Var(f"at_{n}"), ir.wide(ir.Load(numbers[access], place))))
        value: ir.Expr = ir.Load(values[access], entry)
        if kind == SOMEWHERE:
            value = ir.Select(ir.Const(-1) < entry, value, ir.Const(0, value.type))
        body.append(ir.Declare(ir.Var(f"value_{n}", value.type), value))
        reads[access] = ir.Var(f"value_{n}", value.type)
    types = {operand.name: operand.element for operand in plan.operands}
    result = ir.Array("results", plan.element)
    found = converted(value_of(plan.step.body, types, reads.get), plan.element)
    body.append(ir.Store(result, place, found))
    arrays = (*numbers.values(), *values.values(), result)
    nothing = ir.Block(())
    loop = ir.Parallel(place, count, ir.Const(1), nothing, ir.block(*body), nothing)
    function = ir.Function("scorch_compute", (count, *arrays), ir.block(loop), exported=True)
    return print_cuda(ir.Kernel(plan.header, (count, *arrays), (function,)))


def _asks_where(body: Expr) -> bool:
    """Check for ``present``, whose value depends on which entries are stored."""
    return isinstance(body, Op) and (body.name == "present" or any(map(_asks_where, body.args)))
