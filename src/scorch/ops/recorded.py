"""Which calls are recorded inside of ``scorch.compile``, and the steps that each of them is.

A rule takes the arguments of a call and returns a ``Value``, or None for what is to run as outside: other
dtypes, shapes that do not fit (torch has a message for those), results that are no longer sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch.compiler.plan import Step
from scorch.compiler.steps import split
from scorch.notation.einsum import parse_einsum
from scorch.notation.nodes import Access, Expr, Literal, Op
from scorch.notation.trees import substitute
from scorch.ops.einsum import einsum as scorch_einsum
from scorch.ops.fused import letters_of, rows_of
from scorch.ops.later import LATER, Source, SparseLater, Value
from scorch.ops.recording import Recorder, records
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern

FLOATS = (torch.float32, torch.float64)
PLAIN = (torch.Tensor, torch.nn.Parameter)
FULL = 0.25  # of all places; from here on products are given to torch's BLAS, outside

Make = Callable[..., Expr]


class Reading:
    """The tensors that one recorded call reads."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.parents: dict[str, Value | Source] = {}
        self.views: dict[str, tuple[int, ...]] = {}
        self.sizes: dict[str, int] = {}
        self.pattern: Pattern | None = None
        self.dtype: torch.dtype | None = None
        self.learns = torch.is_grad_enabled()

    def _takes(self, dtype: torch.dtype) -> bool:
        self.dtype = dtype if self.dtype is None else self.dtype
        return dtype == self.dtype and dtype in FLOATS

    def _joins(self, value: Value) -> bool:
        """Whether a value that is not computed yet can be computed together with this call."""
        same = self.pattern is None or value.walked is self.pattern
        return value.result is None and value.learns == self.learns and same

    def sparse(self, tensor: Any) -> Access | None:
        """A sparse tensor on the pattern of this call, which the first one decides."""
        if type(tensor) is SparseLater and self._joins(tensor._value):
            value: Value = tensor._value
            if not self._takes(value.dtype):
                return None
            self._walk(value.walked)
            self.parents[value.access.tensor] = value
            return value.access
        if type(tensor) is SparseLater:
            tensor = tensor._value.tensor()
        if not isinstance(tensor, SparseTensor):
            return None
        pattern = tensor.storage.pattern
        if (self.pattern is not None and pattern is not self.pattern) or not self._takes(tensor.dtype):
            return None
        self._walk(pattern)
        return self._read(tensor, letters_of(pattern), None)

    def _walk(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.sizes.update(zip(letters_of(pattern), pattern.shape, strict=True))

    def value_of(self, value: Value) -> Access:
        """A part of this call that has been recorded just now."""
        self.pattern, self.dtype = value.walked, value.dtype
        self.sizes.update(value.sizes)
        self.parents[value.access.tensor] = value
        return value.access

    def rows(self, tensor: Any) -> Access | None:
        """A dense result of which this call reads the row that it computes itself."""
        if type(tensor) not in LATER or type(tensor) is SparseLater or not self._joins(tensor._value):
            return None
        value: Value = tensor._value
        if not self._takes(value.dtype):
            return None
        self.pattern = value.walked
        self.sizes.update(zip(value.access.indices, value.shape, strict=True))
        self.parents[value.access.tensor] = value
        return value.access

    def dense(self, tensor: Any, indices: Sequence[str], shape: Sequence[int] | None = None) -> Access | None:
        """A dense tensor, broadcast to ``shape`` if there is one."""
        if type(tensor) in LATER and type(tensor) is not SparseLater:
            tensor = tensor._value.tensor()
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not tensor.is_cpu:
            return None
        if not self._takes(tensor.dtype) or tensor.dim() > len(indices):
            return None
        indices = list(indices)[len(indices) - tensor.dim() :]
        wanted = list(tensor.shape if shape is None else shape)[-tensor.dim() :] if tensor.dim() else []
        kept = tuple(dim for dim, size in enumerate(tensor.shape) if shape is None or size != 1)
        if any(tensor.shape[dim] != wanted[dim] for dim in kept):
            return None
        self.sizes.update((indices[dim], wanted[dim]) for dim in kept)
        return self._read(tensor, [indices[dim] for dim in kept], kept)

    def _read(self, tensor: torch.Tensor, indices: Sequence[str], dims: tuple[int, ...] | None) -> Access:
        source = self.recorder.source(tensor)
        name = self.recorder.name(source, dims)
        self.parents[name] = source
        if dims is not None:
            self.views[name] = dims
        return Access(name, tuple(indices))

    def value(self, steps: Sequence[Step], shape: Sequence[int], is_sparse: bool, kind: str) -> Value:
        """The result of the call; the last step gives it."""
        assert self.pattern is not None and self.dtype is not None
        return Value(
            steps[-1].target,
            tuple(shape),
            self.dtype,
            self.pattern if is_sparse else None,
            self.pattern,
            tuple(steps),
            self.sizes,
            self.parents,
            self.views,
            self.learns,
            self.learns and any(map(_requires_grad, self.parents.values())),
            kind,
        )

    def target(self, indices: Sequence[str], letter: str = "T") -> Access:
        return Access(self.recorder.fresh(letter), tuple(indices))


def _requires_grad(parent: Value | Source) -> bool:
    return parent.requires_grad if isinstance(parent, Value) else parent.tensor.requires_grad


# elementwise -----------------------------------------------------------------------------------------


def _elementwise(
    recorder: Recorder, make: Make, args: Sequence[Any], sparse: bool, dense: bool
) -> Value | None:
    """``make`` of tensors and numbers: on a pattern (if ``sparse`` allows), or on rows of a dense result."""
    reading = Reading(recorder)
    found: dict[int, Access] = {}
    is_sparse = False
    for place, argument in enumerate(args):
        if isinstance(argument, SparseTensor):
            access = reading.sparse(argument) if sparse else None
            if access is None:
                return None
            found[place], is_sparse = access, True
    if not is_sparse:
        if not dense:
            return None
        for place, argument in enumerate(args):
            access = reading.rows(argument)
            if access is not None and found and access.indices != next(iter(found.values())).indices:
                return None
            if access is not None:
                found[place] = access
        if not found:
            return None
    first = next(iter(found))
    indices, shape = found[first].indices, tuple(args[first].shape)
    if any(tuple(args[place].shape) != shape for place in found):
        return None
    parts: list[Expr] = []
    for place, argument in enumerate(args):
        if place in found:
            parts.append(found[place])
        elif isinstance(argument, int | float) and not isinstance(argument, bool):
            parts.append(Literal(float(argument)))
        else:
            access = reading.dense(argument, indices, shape)
            if access is None:
                return None
            parts.append(access)
    step = Step(reading.target(indices), make(*parts), "sum", ())
    return reading.value([step], shape, is_sparse, "elementwise")


def _op(name: str) -> Make:
    return lambda *parts: Op(name, parts)


def _unary(name: str, keeps_zero: bool, *functions: Any) -> None:
    @records(*functions)
    def rule(recorder: Recorder, input: Any, inplace: bool = False) -> Value | None:
        return None if inplace else _elementwise(recorder, _op(name), [input], keeps_zero, dense=True)


T = torch.Tensor  # functions that kernels have in vectors; torch itself is faster with all others
_unary("relu", True, torch.relu, T.relu, F.relu)
_unary("abs", True, torch.abs, T.abs, T.__abs__)
_unary("neg", True, torch.neg, T.neg, T.__neg__)
_unary("sqrt", True, torch.sqrt, T.sqrt)
_unary("tanh", True, torch.tanh, T.tanh, F.tanh)
_unary("square", True, torch.square, T.square)
_unary("expm1", True, torch.expm1, T.expm1)
_unary("exp", False, torch.exp, T.exp)
_unary("sigmoid", False, torch.sigmoid, T.sigmoid, F.sigmoid)


@records(F.leaky_relu)
def leaky_relu(
    recorder: Recorder, input: Any, negative_slope: float = 0.01, inplace: bool = False
) -> Value | None:
    def make(x: Expr) -> Expr:
        return Op("where", (Op("gt", (x, Literal(0.0))), x, Op("mul", (Literal(float(negative_slope)), x))))

    return None if inplace else _elementwise(recorder, make, [input], sparse=True, dense=True)


@records(F.elu)
def elu(recorder: Recorder, input: Any, alpha: float = 1.0, inplace: bool = False) -> Value | None:
    def make(x: Expr) -> Expr:
        below = Op("mul", (Literal(float(alpha)), Op("expm1", (x,))))
        return Op("where", (Op("gt", (x, Literal(0.0))), x, below))

    return None if inplace else _elementwise(recorder, make, [input], sparse=True, dense=True)


@records(torch.mul, T.mul, T.__mul__, T.__rmul__, torch.multiply, T.multiply)
def mul(recorder: Recorder, input: Any, other: Any, *, out: Any = None) -> Value | None:
    return None if out is not None else _elementwise(recorder, _op("mul"), [input, other], True, True)


@records(torch.div, T.div, T.__truediv__, torch.true_divide, T.true_divide)
def div(
    recorder: Recorder, input: Any, other: Any, *, rounding_mode: str | None = None, out: Any = None
) -> Value | None:
    if out is not None or rounding_mode is not None or isinstance(other, SparseTensor):
        return None
    return _elementwise(recorder, _op("div"), [input, other], True, True)


@records(torch.add, T.add, T.__add__, T.__radd__)
def add(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1, out: Any = None) -> Value | None:
    return _sum(recorder, "add", input, other, alpha, out)


@records(torch.sub, T.sub, T.__sub__, torch.subtract, T.subtract)
def sub(recorder: Recorder, input: Any, other: Any, *, alpha: float = 1, out: Any = None) -> Value | None:
    return _sum(recorder, "sub", input, other, alpha, out)


@records(T.__rsub__)
def rsub(recorder: Recorder, input: Any, other: Any) -> Value | None:
    return _sum(recorder, "sub", other, input, 1, None)


def _sum(recorder: Recorder, name: str, input: Any, other: Any, alpha: float, out: Any) -> Value | None:
    if out is not None or alpha != 1:
        return None
    sparse = [isinstance(part, SparseTensor) for part in (input, other)]
    if any(sparse) and not all(sparse):  # no longer sparse
        return None
    return _elementwise(recorder, _op(name), [input, other], True, True)


# over stored entries ---------------------------------------------------------------------------------


@records(torch.sparse.softmax)
def softmax(recorder: Recorder, input: Any, dim: int, *, dtype: torch.dtype | None = None) -> Value | None:
    return _softmax(recorder, input, dim, dtype, is_log=False)


@records(torch.sparse.log_softmax)
def log_softmax(
    recorder: Recorder, input: Any, dim: int, *, dtype: torch.dtype | None = None
) -> Value | None:
    return _softmax(recorder, input, dim, dtype, is_log=True)


def _softmax(
    recorder: Recorder, input: Any, dim: int, dtype: torch.dtype | None, is_log: bool
) -> Value | None:
    reading = Reading(recorder)
    a = reading.sparse(input)
    if a is None or dim not in (1, -1) or dtype is not None or not _has_rows(reading.pattern):
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
    return reading.value(steps, tuple(input.shape), True, "log_softmax" if is_log else "softmax")


def _has_rows(pattern: Pattern | None) -> bool:
    return pattern is not None and rows_of(pattern) is not None


# products --------------------------------------------------------------------------------------------


@records(torch.matmul, T.matmul, T.__matmul__, torch.mm, T.mm, torch.mv, T.mv, torch.sparse.mm)
def matmul(recorder: Recorder, input: Any, other: Any, *, out: Any = None) -> Value | None:
    if out is not None or not isinstance(input, SparseTensor) or input.dim() != 2:
        return None
    reading = Reading(recorder)
    a = reading.sparse(input)
    if a is None or not _is_worth(reading.pattern) or not isinstance(other, torch.Tensor):
        return None
    if other.dim() not in (1, 2) or other.shape[0] != input.shape[1]:
        return None
    columns = (recorder.fresh("e_"),) if other.dim() == 2 else ()
    b = reading.dense(other, (a.indices[1], *columns))
    if b is None:
        return None
    step = Step(reading.target((a.indices[0], *columns)), Op("mul", (a, b)), "sum", a.indices[1:])
    return reading.value([step], (input.shape[0], *other.shape[1:]), False, "sum")


def _is_worth(pattern: Pattern | None) -> bool:
    if pattern is None or not _has_rows(pattern):
        return False
    return pattern.size < FULL * pattern.shape[0] * pattern.shape[1]


def _part(recorder: Recorder, value: Value, func: Any, *args: Any, **kwargs: Any) -> Value:
    """``value`` as a call of its own, inside of the one that is recorded."""
    value.recorder = recorder
    value.call = (func, recorder.kept(args), recorder.kept(kwargs))
    return value


@records(torch.addmm, T.addmm)
def addmm(
    recorder: Recorder,
    input: Any,
    mat1: Any,
    mat2: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Any = None,
) -> Value | None:
    if out is not None or beta != 1 or alpha != 1 or not isinstance(mat1, SparseTensor):
        return None
    product = matmul(recorder, mat1, mat2)
    if product is None or type(input) not in PLAIN or len(product.shape) != 2:
        return None
    reading = Reading(recorder)
    own = reading.value_of(_part(recorder, product, torch.mm, mat1, mat2))
    bias = reading.dense(input, own.indices, product.shape)
    if bias is None:
        return None
    step = Step(reading.target(own.indices), Op("add", (own, bias)), "sum", ())
    total = reading.value([step], product.shape, False, "elementwise")
    return _part(recorder, total, torch.add, product, input)


@records(torch.sparse.sampled_addmm)
def sampled_addmm(
    recorder: Recorder,
    input: Any,
    mat1: Any,
    mat2: Any,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Any = None,
) -> Value | None:
    if out is not None or not isinstance(input, SparseTensor) or input.dim() != 2:
        return None
    reading = Reading(recorder)
    a = reading.sparse(input)
    if a is None or not _has_rows(reading.pattern) or mat1.dim() != 2 or mat2.dim() != 2:
        return None
    if (mat1.shape[0], mat2.shape[1], mat1.shape[1]) != (*input.shape, mat2.shape[0]):
        return None
    k = recorder.fresh("k_")
    rows, columns = reading.dense(mat1, (a.indices[0], k)), reading.dense(mat2, (k, a.indices[1]))
    if rows is None or columns is None:
        return None
    step = Step(reading.target(a.indices), Op("mul", (rows, columns)), "sum", (k,))
    product = reading.value([step], input.shape, True, "sum")
    _part(recorder, product, torch.sparse.sampled_addmm, input, mat1, mat2, beta=0.0)
    if beta == 0 and alpha == 1:
        return product
    reading = Reading(recorder)
    b = reading.value_of(product)
    if beta == 0:
        step = Step(reading.target(a.indices), Op("mul", (b, Literal(float(alpha)))), "sum", ())
        return _part(
            recorder, reading.value([step], input.shape, True, "elementwise"), torch.mul, product, alpha
        )
    own = reading.sparse(input)
    if own is None:
        return None
    scaled = Op("add", (Op("mul", (own, Literal(float(beta)))), Op("mul", (b, Literal(float(alpha))))))
    step = Step(reading.target(a.indices), scaled, "sum", ())
    total = reading.value([step], input.shape, True, "elementwise")
    return _part(recorder, total, _weighted, input, product, beta, alpha)


def _weighted(a: Any, b: Any, beta: float, alpha: float) -> Any:
    return a * beta + b * alpha


# einsum ----------------------------------------------------------------------------------------------


@records(scorch_einsum, torch.einsum)
def einsum(recorder: Recorder, *args: Any, format: Any = None, sparse_grad: bool = False) -> Value | None:
    """A product of one sparse matrix with dense tensors whose result has its rows."""
    if not args or not isinstance(args[0], str) or format is not None or sparse_grad:
        return None
    equation, operands = args[0], args[1:]
    places = [place for place, operand in enumerate(operands) if isinstance(operand, SparseTensor)]
    if len(places) != 1 or operands[places[0]].dim() != 2:
        return None
    parsed = parse_einsum(equation, [tuple(operand.shape) for operand in operands])
    if any(operand.squeeze for operand in parsed.operands):
        return None
    reading = Reading(recorder)
    a = reading.sparse(operands[places[0]])
    if a is None or not _has_rows(reading.pattern):
        return None
    own = parsed.operands[places[0]].access.indices
    if own[0] == own[1]:
        return None
    names = dict(zip(own, a.indices, strict=True))
    for index in parsed.sizes:
        names.setdefault(index, recorder.fresh("k_"))
    reads: dict[Access, Expr] = {}
    for place, operand in enumerate(operands):
        if place in places:
            reads[parsed.operands[place].access] = a
            continue
        old = parsed.operands[place].access
        access = reading.dense(operand, [names[index] for index in old.indices])
        if access is None or len(set(access.indices)) != len(access.indices):
            return None
        reads[old] = access
    steps = split(parsed.statement)
    target = tuple(names[index] for index in parsed.statement.target.indices)
    is_sparse = target == a.indices
    if len(steps) != 1 or target[:1] != a.indices[:1] or (a.indices[1] in target and not is_sparse):
        return None
    if not is_sparse and not _is_worth(reading.pattern):
        return None
    body = substitute(steps[0].body, reads)
    reduced = tuple(names[index] for index in steps[0].reduced)
    step = Step(reading.target(target), body, steps[0].reduction, reduced)
    shape = [parsed.sizes[index] for index in parsed.statement.target.indices]
    return reading.value([step], shape, is_sparse, "sum" if step.reduced else "elementwise")
