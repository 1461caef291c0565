"""Elementwise calls and those over stored entries that are recorded inside of ``scorch.compile``.

A rule takes the arguments of a call and returns a ``Recipe``, or None for what is to run as outside: other
dtypes, shapes that do not fit (torch has a message for those), results that are no longer sparse.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.compile.lazy_tensor import Recipe, SparseLater
from scorch._src.compile.recorder import Recorder, records
from scorch._src.compile.rules import Reading, elementwise, operator
from scorch._src.compiler.plan import Step
from scorch._src.loops.operators import OPERATORS, Operator
from scorch._src.notation.nodes import Expr, Literal, Op
from scorch._src.tensor.sparse_tensor import SparseTensor

T = torch.Tensor


def _record_operator(entry: Operator) -> None:
    homes = ((torch, entry.name), (T, entry.name), (F, entry.name), (T, f"__{entry.name}__"))
    found = [getattr(home, name, None) for home, name in homes]
    functions = dict.fromkeys(function for function in found if function is not None)

    @records(*functions)
    def rule(recorder: Recorder, input: Any, inplace: bool = False) -> Recipe | None:
        return (
            None
            if inplace
            else elementwise(recorder, operator(entry.name), [input], entry.keeps_zero, dense=True)
        )


for _entry in OPERATORS.values():
    if _entry.in_lanes and _entry.arity == 1:  # torch itself is faster with all others
        _record_operator(_entry)


@records(F.leaky_relu)
def leaky_relu(
    recorder: Recorder, input: Any, negative_slope: float = 0.01, inplace: bool = False
) -> Recipe | None:
    def make(x: Expr) -> Expr:
        return Op("where", (Op("gt", (x, Literal(0.0))), x, Op("mul", (Literal(float(negative_slope)), x))))

    return None if inplace else elementwise(recorder, make, [input], sparse=True, dense=True)


@records(F.elu)
def elu(recorder: Recorder, input: Any, alpha: float = 1.0, inplace: bool = False) -> Recipe | None:
    def make(x: Expr) -> Expr:
        below = Op("mul", (Literal(float(alpha)), Op("expm1", (x,))))
        return Op("where", (Op("gt", (x, Literal(0.0))), x, below))

    return None if inplace else elementwise(recorder, make, [input], sparse=True, dense=True)


@records(torch.add, T.add, T.__add__, T.__radd__)
def add(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1, out: Any = None) -> Recipe | None:
    return _sum(recorder, "add", input, other, alpha, out)


@records(torch.sub, T.sub, T.__sub__, torch.subtract, T.subtract)
def sub(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1, out: Any = None) -> Recipe | None:
    return _sum(recorder, "sub", input, other, alpha, out)


@records(T.__rsub__)
def rsub(recorder: Recorder, input: Any, other: Any) -> Recipe | None:
    return _sum(recorder, "sub", other, input, 1, None)


def _sum(recorder: Recorder, name: str, input: Any, other: Any, alpha: float, out: Any) -> Recipe | None:
    if out is not None or alpha != 1:
        return None
    sparse = [isinstance(part, SparseTensor) for part in (input, other)]
    if any(sparse) and not all(sparse):  # no longer sparse
        return None
    return elementwise(recorder, operator(name), [input, other], True, True)


# over stored entries ---------------------------------------------------------------------------------


@records(torch.sparse.softmax)
def softmax(recorder: Recorder, input: Any, dim: int, *, dtype: torch.dtype | None = None) -> Recipe | None:
    return _softmax(recorder, input, dim, dtype, is_log=False)


@records(torch.sparse.log_softmax)
def log_softmax(
    recorder: Recorder, input: Any, dim: int, *, dtype: torch.dtype | None = None
) -> Recipe | None:
    return _softmax(recorder, input, dim, dtype, is_log=True)


def _softmax(
    recorder: Recorder, input: Any, dim: int, dtype: torch.dtype | None, is_log: bool
) -> Recipe | None:
    reading = Reading(recorder)
    a = reading.sparse(input)
    if a is None or dim not in (1, -1) or dtype is not None or not reading.has_rows:
        return None
    row = a.indices[:1]
    m, s = reading.target(row, "m"), reading.target(row, "s")
    e, r = reading.target(a.indices, "E"), reading.target(a.indices)
    shifted = Op("sub", (a, m))
    steps = [
        Step(m, a, "max", a.indices[1:]),
        Step(e, Op("exp", (shifted,)), "sum", ()),
        Step(s, e, "sum", a.indices[1:]),
    ]
    if is_log:
        shift = reading.target(row, "h")
        steps.append(Step(shift, Op("add", (m, Op("log", (s,)))), "sum", ()))
        steps.append(Step(r, Op("sub", (a, shift)), "sum", ()))
    else:
        steps.append(Step(r, Op("div", (e, s)), "sum", ()))
    return reading.gives(steps, tuple(input.shape), True, "log_softmax" if is_log else "softmax")


@records(torch.sum, T.sum, torch.sparse.sum)
def row_sums(
    recorder: Recorder,
    input: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Any = None,
) -> Recipe | None:
    """Sums of rows of a sparse matrix."""
    if dim not in (1, -1, (1,), [1], (-1,), [-1]) or keepdim or dtype is not None or out is not None:
        return None
    if type(input) is not SparseLater or input.dim() != 2:  # alone it has a kernel of its own
        return None
    reading = Reading(recorder)
    a = reading.sparse(input)
    if a is None or not reading.has_rows:
        return None
    step = Step(reading.target(a.indices[:1]), a, "sum", a.indices[1:])
    return reading.gives([step], input.shape[:1], False, "sum")
