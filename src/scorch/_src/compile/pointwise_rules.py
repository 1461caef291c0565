"""Rules of elementwise calls and of calls over stored entries, recorded inside of ``scorch.compile``.

A rule takes the arguments of a call and returns a ``Recipe``, or None for a call that must run eagerly: other
dtypes, shapes that do not match (torch has a message for those), results that are no longer sparse.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.compile.lazy_tensor import LazySparseTensor, Recipe
from scorch._src.compile.recorder import Recorder, recording_rule
from scorch._src.compile.rules import RecipeBuilder, build_operator, record_elementwise
from scorch._src.compiler.plan import Step
from scorch._src.loops.operators import OPERATORS, Operator
from scorch._src.notation.nodes import Expr, Literal, Op
from scorch._src.tensor.sparse_tensor import SparseTensor

T = torch.Tensor


def _record_operator(entry: Operator) -> None:
    homes = ((torch, entry.name), (T, entry.name), (F, entry.name), (T, f"__{entry.name}__"))
    candidates = [getattr(home, name, None) for home, name in homes]
    functions = dict.fromkeys(function for function in candidates if function is not None)

    @recording_rule(*functions)
    def rule(recorder: Recorder, input: Any, inplace: bool = False) -> Recipe | None:
        return (
            None
            if inplace
            else record_elementwise(
                recorder, build_operator(entry.name), [input], entry.keeps_zero, allow_dense=True
            )
        )


for _entry in OPERATORS.values():
    if _entry.in_lanes and _entry.arity == 1:  # torch itself is faster with all others
        _record_operator(_entry)


@recording_rule(F.leaky_relu)
def leaky_relu(
    recorder: Recorder, input: Any, negative_slope: float = 0.01, inplace: bool = False
) -> Recipe | None:
    def make(x: Expr) -> Expr:
        return Op("where", (Op("gt", (x, Literal(0.0))), x, Op("mul", (Literal(float(negative_slope)), x))))

    return (
        None if inplace else record_elementwise(recorder, make, [input], allow_sparse=True, allow_dense=True)
    )


@recording_rule(F.elu)
def elu(recorder: Recorder, input: Any, alpha: float = 1.0, inplace: bool = False) -> Recipe | None:
    def make(x: Expr) -> Expr:
        below = Op("mul", (Literal(float(alpha)), Op("expm1", (x,))))
        return Op("where", (Op("gt", (x, Literal(0.0))), x, below))

    return (
        None if inplace else record_elementwise(recorder, make, [input], allow_sparse=True, allow_dense=True)
    )


@recording_rule(torch.add, T.add, T.__add__, T.__radd__)
def add(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1, out: Any = None) -> Recipe | None:
    return _sum(recorder, "add", input, other, alpha, out)


@recording_rule(torch.sub, T.sub, T.__sub__, torch.subtract, T.subtract)
def sub(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1, out: Any = None) -> Recipe | None:
    return _sum(recorder, "sub", input, other, alpha, out)


@recording_rule(T.__rsub__)
def rsub(recorder: Recorder, input: Any, other: Any) -> Recipe | None:
    return _sum(recorder, "sub", other, input, 1, None)


def _sum(recorder: Recorder, name: str, input: Any, other: Any, alpha: float, out: Any) -> Recipe | None:
    if out is not None or alpha != 1:
        return None
    sparse = [isinstance(operand, SparseTensor) for operand in (input, other)]
    if any(sparse) and not all(sparse):  # no longer sparse
        return None
    return record_elementwise(recorder, build_operator(name), [input, other], True, True)


# over stored entries ---------------------------------------------------------------------------------


@recording_rule(torch.sparse.softmax)
def softmax(recorder: Recorder, input: Any, dim: int, *, dtype: torch.dtype | None = None) -> Recipe | None:
    return _softmax(recorder, input, dim, dtype, is_log=False)


@recording_rule(torch.sparse.log_softmax)
def log_softmax(
    recorder: Recorder, input: Any, dim: int, *, dtype: torch.dtype | None = None
) -> Recipe | None:
    return _softmax(recorder, input, dim, dtype, is_log=True)


def _softmax(
    recorder: Recorder, input: Any, dim: int, dtype: torch.dtype | None, is_log: bool
) -> Recipe | None:
    builder = RecipeBuilder(recorder)
    a = builder.read_sparse(input)
    if a is None or dim not in (1, -1) or dtype is not None or not builder.has_rows:
        return None
    row = a.indices[:1]
    m, s = builder.new_target(row, "m"), builder.new_target(row, "s")
    e, r = builder.new_target(a.indices, "E"), builder.new_target(a.indices)
    shifted = Op("sub", (a, m))
    steps = [
        Step(m, a, "max", a.indices[1:]),
        Step(e, Op("exp", (shifted,)), "sum", ()),
        Step(s, e, "sum", a.indices[1:]),
    ]
    if is_log:
        shift = builder.new_target(row, "h")
        steps.append(Step(shift, Op("add", (m, Op("log", (s,)))), "sum", ()))
        steps.append(Step(r, Op("sub", (a, shift)), "sum", ()))
    else:
        steps.append(Step(r, Op("div", (e, s)), "sum", ()))
    return builder.build(steps, tuple(input.shape), True, "log_softmax" if is_log else "softmax")


@recording_rule(torch.sum, T.sum, torch.sparse.sum)
def row_sums(
    recorder: Recorder,
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Any = None,
) -> Recipe | None:
    """Record the sums of the rows of a sparse matrix."""
    if dim not in (1, -1, (1,), [1], (-1,), [-1]) or keepdim or dtype is not None or out is not None:
        return None
    if type(input) is not LazySparseTensor or input.dim() != 2:  # alone it has a kernel of its own
        return None
    builder = RecipeBuilder(recorder)
    a = builder.read_sparse(input)
    if a is None or not builder.has_rows:
        return None
    step = Step(builder.new_target(a.indices[:1]), a, "sum", a.indices[1:])
    return builder.build([step], input.shape[:1], False, "sum")
