"""Rules of elementwise calls and of calls over stored entries, recorded inside ``scorch.compile``.

A rule takes the arguments of a call and returns a ``Recipe``, or None for a call that must run eagerly: other
dtypes, shapes that do not match (torch has a message for those), results that are no longer sparse.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.compile.layer_rules import find_layer, record_activation, record_residual
from scorch._src.compile.lazy_tensor import LazySparseTensor, Recipe
from scorch._src.compile.recorder import Recorder, recording_rule
from scorch._src.compile.rules import BuildExpression, RecipeBuilder, build_operator, record_elementwise
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
    def rule(recorder: Recorder, input: Any) -> Any:
        if find_layer(input) is not None:
            return record_activation(recorder, input, entry.name)
        return record_elementwise(recorder, build_operator(entry.name), [input], entry.keeps_zero)


for _entry in OPERATORS.values():
    if _entry.in_lanes and _entry.arity == 1:  # torch itself is faster with all others
        _record_operator(_entry)


@recording_rule(F.relu)
def relu(recorder: Recorder, input: Any, inplace: bool = False) -> Any:
    if find_layer(input) is not None:
        return record_activation(recorder, input, "relu")
    return None if inplace else record_elementwise(recorder, build_operator("relu"), [input])


@recording_rule(torch.relu_, T.relu_, applies=lambda input: find_layer(input) is not None)
def relu_in_place(recorder: Recorder, input: Any) -> Any:
    return record_activation(recorder, input, "relu")


@recording_rule(T.add_, T.__iadd__, applies=lambda input, other, **_: find_layer(input) is not None)
def add_in_place(recorder: Recorder, input: Any, other: Any) -> Any:
    return None if find_layer(other) is find_layer(input) else record_residual(recorder, input, other, True)


@recording_rule(F.leaky_relu)
def leaky_relu(recorder: Recorder, input: Any, negative_slope: float = 0.01) -> Recipe | None:
    return _leak(recorder, input, lambda x: Op("mul", (Literal(float(negative_slope)), x)))


@recording_rule(F.elu)
def elu(recorder: Recorder, input: Any, alpha: float = 1.0) -> Recipe | None:
    return _leak(recorder, input, lambda x: Op("mul", (Literal(float(alpha)), Op("expm1", (x,)))))


def _leak(recorder: Recorder, input: Any, below: BuildExpression) -> Recipe | None:
    """Record a function that is the identity above zero, and ``below`` elsewhere."""

    def make(x: Expr) -> Expr:
        return Op("where", (Op("gt", (x, Literal(0.0))), x, below(x)))

    return record_elementwise(recorder, make, [input])


def _sum(recorder: Recorder, input: Any, other: Any, name: str) -> Any:
    if name == "add" and (find_layer(input) or find_layer(other)) is not None:
        return record_residual(recorder, input, other)
    if isinstance(input, SparseTensor) != isinstance(other, SparseTensor):  # no longer sparse
        return None
    return record_elementwise(recorder, build_operator(name), [input, other])


recording_rule(torch.add, T.add, T.__add__, T.__radd__)(functools.partial(_sum, name="add"))
recording_rule(torch.sub, T.sub, T.__sub__, torch.subtract, T.subtract)(functools.partial(_sum, name="sub"))
recording_rule(T.__rsub__)(lambda recorder, input, other: _sum(recorder, other, input, "sub"))


# over stored entries ---------------------------------------------------------------------------------


def _softmax(recorder: Recorder, input: Any, dim: int, kind: str) -> Recipe | None:
    builder = RecipeBuilder(recorder)
    a = builder.read_sparse(input)
    if a is None or dim not in (1, -1) or not builder.has_rows:
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
    if kind == "log_softmax":
        shift = builder.new_target(row, "h")
        steps.append(Step(shift, Op("add", (m, Op("log", (s,)))), "sum", ()))
        steps.append(Step(r, Op("sub", (a, shift)), "sum", ()))
    else:
        steps.append(Step(r, Op("div", (e, s)), "sum", ()))
    return builder.build(steps, input.shape, True, kind)


recording_rule(torch.sparse.softmax)(functools.partial(_softmax, kind="softmax"))
recording_rule(torch.sparse.log_softmax)(functools.partial(_softmax, kind="log_softmax"))


@recording_rule(torch.sum, T.sum, torch.sparse.sum)
def row_sums(recorder: Recorder, input: Any, dim: Any = None) -> Recipe | None:
    """Record the sums of the rows of a sparse matrix."""
    if dim not in (1, -1, (1,), [1], (-1,), [-1]):
        return None
    if type(input) is not LazySparseTensor or input.dim() != 2:  # alone it has a kernel of its own
        return None
    builder = RecipeBuilder(recorder)
    a = builder.read_sparse(input)
    if a is None or not builder.has_rows:
        return None
    return builder.build_step(a.indices[:1], a, input.shape[:1], False, a.indices[1:])
