"""Products that are recorded inside of ``scorch.compile``: rules as in ``record_elementwise``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from scorch._src.compile.lazy_tensor import Call, Later, Recipe, Value
from scorch._src.compile.recorder import PLAIN, Part, Recorder, records
from scorch._src.compile.rules import Reading, elementwise, number_of, operator
from scorch._src.compiler.plan import Step
from scorch._src.compiler.steps import split
from scorch._src.notation.indexing import parse
from scorch._src.notation.nodes import Access, Assign, Expr, Literal, Op, Reduce
from scorch._src.notation.parse_einsum import parse_einsum
from scorch._src.notation.trees import accesses, free_indices, substitute
from scorch._src.notation.verify import shapes_of
from scorch._src.statements.einsum import einsum as scorch_einsum
from scorch._src.statements.evaluate import evaluate as scorch_evaluate
from scorch._src.tensor.sparse_tensor import SparseTensor

T = torch.Tensor


@records(torch.matmul, T.matmul, T.__matmul__, torch.mm, T.mm, torch.mv, T.mv, torch.sparse.mm)
def matmul(recorder: Recorder, input: Any, other: Any, *, out: Any = None) -> Recipe | None:
    if out is not None or not isinstance(other, torch.Tensor):
        return None
    if not isinstance(input, SparseTensor):
        return _waiting(recorder, input, other)
    if input.dim() != 2 or other.dim() not in (1, 2) or other.shape[0] != input.shape[1]:
        return None
    reading = Reading(recorder)
    a = reading.sparse(input)
    if a is None or not reading.is_worth:
        return None
    columns = (f"e_{other.shape[1]}",) if other.dim() == 2 else ()  # rows of one length can be joined
    b = reading.dense(other, (a.indices[1], *columns))
    if b is None:
        return None
    step = Step(reading.target((a.indices[0], *columns)), Op("mul", (a, b)), "sum", a.indices[1:])
    return reading.gives([step], (input.shape[0], *other.shape[1:]), False, "sum")


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
) -> list[Part] | None:
    if out is not None or beta != 1 or alpha != 1 or not isinstance(mat1, SparseTensor):
        return None
    product = matmul(recorder, mat1, mat2)
    if product is None or type(input) not in PLAIN or len(product.shape) != 2:
        return None
    reading = Reading(recorder)
    own = reading.part(product, 0)
    bias = reading.dense(input, own.indices, product.shape)
    if bias is None:
        return None
    step = Step(reading.target(own.indices), Op("add", (own, bias)), "sum", ())
    total = reading.gives([step], product.shape, False, "elementwise")
    return [(product, (torch.mm, (mat1, mat2), {})), (total, (torch.add, (product, input), {}))]


# products at the entries of a pattern ----------------------------------------------------------------


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
) -> list[Part] | None:
    if out is not None or not isinstance(input, SparseTensor) or input.dim() != 2:
        return None
    reading = Reading(recorder)
    a = reading.sparse(input)
    if a is None or not reading.has_rows or mat1.dim() != 2 or mat2.dim() != 2:
        return None
    if (mat1.shape[0], mat2.shape[1], mat1.shape[1]) != (*input.shape, mat2.shape[0]):
        return None
    k = recorder.fresh("k_")
    rows, columns = reading.dense(mat1, (a.indices[0], k)), reading.dense(mat2, (k, a.indices[1]))
    if rows is None or columns is None:
        return None
    step = Step(reading.target(a.indices), Op("mul", (rows, columns)), "sum", (k,))
    product = reading.gives([step], input.shape, True, "sum")
    parts: list[Part] = [(product, (_sampled, (input, mat1, mat2), {}))]
    if beta == 0 and alpha == 1:
        return parts
    reading = Reading(recorder)
    b = reading.part(product, 0)
    if beta == 0:
        step = Step(reading.target(a.indices), Op("mul", (b, Literal(float(alpha)))), "sum", ())
        total = reading.gives([step], input.shape, True, "elementwise")
        return [*parts, (total, (torch.mul, (product, alpha), {}))]
    own = reading.sparse(input)
    if own is None:
        return None
    scaled = Op("add", (Op("mul", (own, Literal(float(beta)))), Op("mul", (b, Literal(float(alpha))))))
    step = Step(reading.target(a.indices), scaled, "sum", ())
    total = reading.gives([step], input.shape, True, "elementwise")
    return [*parts, (total, (_weighted, (input, product, beta, alpha), {}))]


def _sampled(input: Any, mat1: Any, mat2: Any) -> Any:
    return torch.sparse.sampled_addmm(input, mat1, mat2, beta=0.0)


_sampled.__name__ = "sampled_addmm"


def _weighted(a: Any, b: Any, beta: float, alpha: float) -> Any:
    return a * beta + b * alpha


# a product of dense matrices that waits ------------------------------------------------------------


def _waiting(recorder: Recorder, input: Any, other: Any) -> Recipe | None:
    """A product of dense matrices with more elements than both have: ``S * (Q @ K.T)`` never needs them all.

    It is computed, by torch, when anything but a sparse tensor is multiplied by it.
    """
    if type(input) not in PLAIN or type(other) not in PLAIN or input.dim() != 2 or other.dim() != 2:
        return None
    (rows, inner), columns = input.shape, other.shape[1]
    if inner != other.shape[0] or rows * columns <= inner * (rows + columns):
        return None
    reading, k = Reading(recorder), recorder.fresh("k_")
    a, b = reading.dense(input, ("i", k)), reading.dense(other, (k, "j"))
    if a is None or b is None:
        return None
    step = Step(reading.target(("i", "j"), "D"), Op("mul", (a, b)), "sum", (k,))
    return reading.waits(step, (rows, columns))


def _waits(tensor: Any) -> bool:
    if type(tensor) is not Later:
        return False
    value: Value = tensor._value
    return value.recipe.kind == "waits" and value.result is None


def _scaled(recorder: Recorder, product: Any, number: Literal) -> Recipe:
    """A product that waits, times a number."""
    reading = Reading(recorder)
    (step,) = reading.waiting(product._value.recipe)
    step = replace(step, target=reading.target(("i", "j"), "D"), body=Op("mul", (step.body, number)))
    return reading.waits(step, product.shape)


def _at_entries(recorder: Recorder, mask: Any, product: Any) -> list[Part] | None:
    """A product that was waiting, at the entries of a sparse tensor and times its values."""
    reading, waiting = Reading(recorder), product._value.recipe
    a = reading.sparse(mask)
    if a is None or not reading.has_rows or tuple(mask.shape) != tuple(product.shape):
        return None
    if waiting.dtype != reading.dtype or waiting.learns != reading.learns:
        return None
    (step,) = reading.waiting(waiting)
    step = Step(reading.target(a.indices), Op("mul", (a, step.body)), "sum", step.reduced)
    sources = [recorder.items[number] for number in waiting.parents.values()]
    outside: Call = (_masked, (mask, *sources, _factor(waiting.steps[0].body)), {})
    return [(reading.gives([step], mask.shape, True, "sum"), outside)]


def _factor(body: Expr) -> float:
    """What a product of two matrices is multiplied by."""
    match body:
        case Op("mul", (inner, Literal(value))):
            return _factor(inner) * float(value)
    return 1.0


def _masked(mask: Any, a: Any, b: Any, factor: float) -> Any:
    """The same outside, where no product is formed whole either."""
    return scorch_einsum("ij,ik,kj->ij", mask, a, b) * factor


_masked.__name__ = "mul"


@records(torch.mul, T.mul, T.__mul__, T.__rmul__, torch.multiply, T.multiply)
def mul(recorder: Recorder, input: Any, other: Any, *, out: Any = None) -> Any:
    if out is not None:
        return None
    for one, product in ((input, other), (other, input)):
        if _waits(product):
            number = number_of(one)
            if number is not None:
                return _scaled(recorder, product, number)
            if isinstance(one, SparseTensor):
                return _at_entries(recorder, one, product)
    return elementwise(recorder, operator("mul"), [input, other], True, True)


@records(torch.div, T.div, T.__truediv__, torch.true_divide, T.true_divide)
def div(
    recorder: Recorder, input: Any, other: Any, *, rounding_mode: str | None = None, out: Any = None
) -> Recipe | None:
    if out is not None or rounding_mode is not None or isinstance(other, SparseTensor):
        return None
    number = number_of(other)
    if _waits(input) and number is not None and number.value != 0:
        return _scaled(recorder, input, Literal(1.0 / number.value))
    return elementwise(recorder, operator("div"), [input, other], True, True)


# index notation --------------------------------------------------------------------------------------


@records(scorch_einsum, torch.einsum)
def einsum(recorder: Recorder, *args: Any, format: Any = None, sparse_grad: bool = False) -> Recipe | None:
    """A product of one sparse matrix with dense tensors whose result has its rows."""
    if not args or not isinstance(args[0], str) or format is not None or sparse_grad:
        return None
    equation, operands = args[0], args[1:]
    if not operands or not all(isinstance(operand, torch.Tensor) for operand in operands):
        return None
    parsed = parse_einsum(equation, [tuple(operand.shape) for operand in operands])
    if any(operand.squeeze for operand in parsed.operands):
        return None
    pairs = [(each.access, tensor) for each, tensor in zip(parsed.operands, operands, strict=True)]
    return _stated(recorder, parsed.statement, pairs, parsed.sizes)


@records(scorch_evaluate)
def evaluate(
    recorder: Recorder, expression: str, *, format: Any = None, sparse_grad: bool = False, **tensors: Any
) -> Recipe | None:
    """A product in index notation, as with ``einsum``."""
    if format is not None or sparse_grad or not isinstance(expression, str):
        return None
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        return None
    statement = parse(expression)
    assign = statement.assign
    used = accesses(assign.value)
    if statement.accumulate or {access.tensor for access in used} != set(tensors):
        return None
    sizes = shapes_of(statement, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return _stated(recorder, assign, [(access, tensors[access.tensor]) for access in used], sizes)


def _stated(
    recorder: Recorder, assign: Assign, reads: Sequence[tuple[Access, Any]], sizes: Mapping[str, int]
) -> Recipe | None:
    """One step that multiplies a sparse matrix by dense tensors and keeps its rows."""
    sparse = [(access, tensor) for access, tensor in reads if isinstance(tensor, SparseTensor)]
    if len(sparse) != 1 or sparse[0][1].dim() != 2 or len(set(sparse[0][0].indices)) != 2:
        return None
    steps = split(Assign(assign.target, _as_one_sum(assign.value)))
    if len(steps) != 1 or steps[0].reduction != "sum" or not _is_product(steps[0].body):
        return None
    reading = Reading(recorder)
    own, matrix = sparse[0]
    a = reading.sparse(matrix)
    if a is None or not reading.has_rows:
        return None
    names = dict(zip(own.indices, a.indices, strict=True))
    for index in sizes:
        names.setdefault(index, recorder.fresh("k_"))
    found: dict[Access, Expr] = {own: a}
    for old, tensor in reads:
        if old == own:
            continue
        access = reading.dense(tensor, [names[index] for index in old.indices])
        if access is None or len(set(access.indices)) != len(access.indices):
            return None
        found[old] = access
    target = tuple(names[index] for index in assign.target.indices)
    is_sparse = target == a.indices
    if target[:1] != a.indices[:1] or (a.indices[1] in target and not is_sparse):
        return None
    if not is_sparse and (not reading.is_worth or not reading.is_csr):
        return None  # lists of entries may have results with few rows
    reduced = tuple(names[index] for index in steps[0].reduced)
    step = Step(reading.target(target), substitute(steps[0].body, found), "sum", reduced)
    shape = [sizes[index] for index in assign.target.indices]
    return reading.gives([step], shape, is_sparse, "sum" if step.reduced else "elementwise")


def _as_one_sum(value: Expr) -> Expr:
    """``sum(j, a) * b`` as ``sum(j, a * b)``: indices of sums are not used outside of them."""
    match value:
        case Op("mul", (Reduce("sum", indices, body), other)) | Op(
            "mul", (other, Reduce("sum", indices, body))
        ):
            if _is_product(other) and set(indices).isdisjoint(free_indices(other)):
                return Reduce("sum", indices, Op("mul", (body, other)))
        case Op("mul", (a, b)):
            left, right = _as_one_sum(a), _as_one_sum(b)
            if (left, right) != (a, b):
                return _as_one_sum(Op("mul", (left, right)))
        case Op("neg", (Reduce("sum", indices, body),)):
            return Reduce("sum", indices, Op("neg", (body,)))
    return value


def _is_product(body: Expr) -> bool:
    match body:
        case Access() | Literal():
            return True
        case Op("mul" | "neg", args):
            return all(map(_is_product, args))
    return False
