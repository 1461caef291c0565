"""From a statement to steps: each step is one kernel, or one call of torch where all is dense.

A reduction inside an elementwise expression is computed first, into a tensor of its own:

    D[i,j] = A[i,j] / sum(k, A[i,k])    ->    T1[i] = sum(k, A[i,k]);  D[i,j] = A[i,j] / T1[i]

Kernels visit stored coordinates only. Where implicit zeros count (max, min, prod), the
reduction over what is stored is corrected by the number of entries that took part:

    R[i] = max(j, A[i,j])    ->    V[i] = max over stored;  N[i] = how many;  R[i] = N < size ? max(V, 0) : V

The same serves sums of what is not zero where nothing is stored, so that their cost follows the entries:

    R[i] = sum(j, exp(A[i,j]))    ->    V[i] = sum over stored;  N[i] = how many;  R[i] = V + 1 * (size - N)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast

from scorch._src.compiler.plan import Step
from scorch._src.dataclass import replace
from scorch._src.loops.types import Type
from scorch._src.notation.nodes import Access, Assign, Expr, Literal, Op, Reduce
from scorch._src.notation.trees import accesses, children, free_indices, with_children


def split(statement: Assign, sampled_at: str = "") -> tuple[Step, ...]:
    """The steps of ``statement``; temporaries are called T1, T2, ... (or more, if a tensor is).

    ``sampled_at``: the tensor whose entries the result may have (``Step``).
    """
    steps: list[Step] = []
    known: dict[Reduce, Access] = {}
    taken = {statement.target.tensor} | _tensors(statement.value)
    numbers = iter(name for name in (f"T{n}" for n in range(1, 10_000)) if name not in taken)

    def temporary(reduce: Reduce) -> Access:
        access = known.get(reduce)
        if access is None:
            access = known[reduce] = Access(next(numbers), free_indices(reduce))
            steps.append(finish(access, reduce))
        return access

    def finish(target: Access, value: Expr) -> Step:
        if isinstance(value, Reduce):
            return Step(target, _without_reductions(value.body, temporary), value.op, value.indices)
        return Step(target, _without_reductions(value, temporary), "sum", ())

    target = statement.target
    if target.tensor in _tensors(statement.value):  # C[i] += ... reads C and makes a new tensor
        target = Access(fresh(f"{target.tensor}_new", taken), target.indices)
    last = finish(target, statement.value)
    return (*steps, replace(last, sampled_at=sampled_at) if sampled_at else last)


def fresh(name: str, taken: set[str]) -> str:
    """Lengthen ``name`` until it is not taken."""
    while name in taken:
        name += "_"
    return name


def _without_reductions(expr: Expr, temporary: Callable[[Reduce], Access]) -> Expr:
    if isinstance(expr, Reduce):
        return temporary(expr)
    return with_children(expr, tuple(_without_reductions(part, temporary) for part in children(expr)))


def _tensors(expr: Expr) -> set[str]:
    return {access.tensor for access in accesses(expr)}


def _over_stored(step: Step) -> tuple[Access, Access]:
    """Tensors for the reduction over what is stored, and for the number of entries that took part."""
    name, taken = step.target.tensor, _tensors(step.body)
    stored, number = (fresh(f"{name}_{part}", taken) for part in ("stored", "number"))
    return Access(stored, step.target.indices), Access(number, step.target.indices)


def correct_for_implicit_zeros(step: Step, total: int, element: Type) -> tuple[Step, Step, Step]:
    """``step``, a max, min or prod over stored entries, with the implicit zeros included.

    ``total`` is the number of coordinates reduced over. The three steps give V, N and the result.
    """
    stored, number = _over_stored(step)
    zero, one = (Literal(False), Literal(True)) if element.kind == "bool" else (Literal(0), Literal(1))
    operator = {"max": "maximum", "min": "minimum", "prod": "mul"}[step.reduction]
    some_missing = Op("lt", (number, Literal(total)))
    result = Op("where", (some_missing, Op(operator, (stored, zero)), stored))
    if total == 0:  # an empty product is 1 everywhere
        result = Op("add", (Op("mul", (stored, zero)), one))
    return (
        Step(stored, step.body, step.reduction, step.reduced),
        Step(number, Op("present", (step.body,)), "sum", step.reduced),
        Step(step.target, result, "sum", ()),
    )


def correct_for_implicit_constant(
    step: Step, total: int, element: Type, fill: float, sparse: Sequence[Access]
) -> tuple[Step, Step, Step] | None:
    """``step`` over stored entries, with ``fill``, what its body is where nothing is stored, added.

    ``sparse`` are the accesses that decide where something is stored. None for reductions by which a repeated
    ``fill`` has no short form.
    """
    stored, number = _over_stored(step)
    union = functools.reduce(lambda a, b: Op("add", (a, b)), sparse[1:], cast(Expr, sparse[0]))
    here = Op("present", (union,))
    is_bool = element.kind == "bool"
    constant = Literal(bool(fill)) if is_bool else Literal(int(fill) if element.is_integer else float(fill))
    zero = Literal(False) if is_bool else Literal(0)
    missing = Op("lt", (number, Literal(total)))
    nothing = Op("eq", (number, Literal(0)))
    last: Expr
    match step.reduction:
        case "sum" if not is_bool:
            absent = Op("sub", (Literal(total), number))
            last = Op("add", (stored, Op("mul", (constant, absent))))
        case "max" | "min":
            joined = Op("maximum" if step.reduction == "max" else "minimum", (stored, constant))
            last = Op("where", (nothing, constant, Op("where", (missing, joined, stored))))
        case "any":
            last = Op("where", (missing, constant, stored))
        case _:
            return None
    body = Op("where", (here, step.body, zero))
    return (
        Step(stored, body, step.reduction, step.reduced),
        Step(number, here, "sum", step.reduced),
        Step(step.target, last, "sum", ()),
    )
