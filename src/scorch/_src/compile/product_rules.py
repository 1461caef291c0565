"""Rules of products, recorded inside ``scorch.compile``; see ``pointwise_rules`` for what a rule is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from scorch._src.compile.lazy_tensor import Call, LazyTensor, Recipe, Value
from scorch._src.compile.recorder import PLAIN, RecordedCall, Recorder, recording_rule
from scorch._src.compile.rules import RecipeBuilder, as_literal, build_operator, record_elementwise
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


@recording_rule(torch.matmul, T.matmul, T.__matmul__, torch.mm, T.mm, torch.mv, T.mv, torch.sparse.mm)
def matmul(recorder: Recorder, input: Any, other: Any) -> Recipe | None:
    if not isinstance(other, torch.Tensor):
        return None
    if not isinstance(input, SparseTensor):
        return _defer_product(recorder, input, other)
    if input.dim() != 2 or other.dim() not in (1, 2) or other.shape[0] != input.shape[1]:
        return None
    builder = RecipeBuilder(recorder)
    a = builder.read_sparse(input)
    if a is None or not builder.is_worth_fusing:
        return None
    columns = (f"e_{other.shape[1]}",) if other.dim() == 2 else ()  # rows of one length can be joined
    b = builder.read_dense(other, (a.indices[1], *columns))
    if b is None:
        return None
    shape = (input.shape[0], *other.shape[1:])
    return builder.build_step((a.indices[0], *columns), Op("mul", (a, b)), shape, False, a.indices[1:])


@recording_rule(torch.addmm, T.addmm)
def addmm(recorder: Recorder, input: Any, mat1: Any, mat2: Any) -> list[RecordedCall] | None:
    if not isinstance(mat1, SparseTensor):
        return None
    product = matmul(recorder, mat1, mat2)
    if product is None or type(input) not in PLAIN or len(product.shape) != 2:
        return None
    builder = RecipeBuilder(recorder)
    product_access = builder.read_recorded(product, 0)
    bias = builder.read_dense(input, product_access.indices, product.shape)
    if bias is None:
        return None
    body = Op("add", (product_access, bias))
    total = builder.build_step(product_access.indices, body, product.shape, False)
    return [(product, (torch.mm, (mat1, mat2), {})), (total, (torch.add, (product, input), {}))]


# products at the entries of a pattern ----------------------------------------------------------------


@recording_rule(torch.sparse.sampled_addmm)
def sampled_addmm(
    recorder: Recorder, input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1
) -> list[RecordedCall] | None:
    if not isinstance(input, SparseTensor) or input.dim() != 2:
        return None
    builder = RecipeBuilder(recorder)
    a = builder.read_sparse(input)
    if a is None or not builder.has_rows or mat1.dim() != 2 or mat2.dim() != 2:
        return None
    if (mat1.shape[0], mat2.shape[1], mat1.shape[1]) != (*input.shape, mat2.shape[0]):
        return None
    k = recorder.fresh("k_")
    rows, columns = builder.read_dense(mat1, (a.indices[0], k)), builder.read_dense(mat2, (k, a.indices[1]))
    if rows is None or columns is None:
        return None
    product = builder.build_step(a.indices, Op("mul", (rows, columns)), input.shape, True, (k,))
    calls: list[RecordedCall] = [(product, (_sample_product, (input, mat1, mat2), {}))]
    if beta == 0 and alpha == 1:
        return calls
    builder = RecipeBuilder(recorder)
    b = builder.read_recorded(product, 0)
    if beta == 0:
        total = builder.build_step(a.indices, Op("mul", (b, Literal(float(alpha)))), input.shape, True)
        return [*calls, (total, (torch.mul, (product, alpha), {}))]
    unscaled = builder.read_sparse(input)
    if unscaled is None:
        return None
    scaled = Op("add", (Op("mul", (unscaled, Literal(float(beta)))), Op("mul", (b, Literal(float(alpha))))))
    total = builder.build_step(a.indices, scaled, input.shape, True)
    return [*calls, (total, (_weighted_sum, (input, product, beta, alpha), {}))]


def _sample_product(input: Any, mat1: Any, mat2: Any) -> Any:
    return torch.sparse.sampled_addmm(input, mat1, mat2, beta=0.0)


_sample_product.__name__ = "sampled_addmm"


def _weighted_sum(a: Any, b: Any, beta: float, alpha: float) -> Any:
    return a * beta + b * alpha


# deferred products of dense matrices -----------------------------------------------------------------


def _defer_product(recorder: Recorder, input: Any, other: Any) -> Recipe | None:
    """Defer a product of dense matrices that is larger than both: ``S * (Q @ K.T)`` never needs it whole.

    Torch computes it as soon as anything but a sparse tensor multiplies it.
    """
    if type(input) not in PLAIN or type(other) not in PLAIN or input.dim() != 2 or other.dim() != 2:
        return None
    (rows, inner), columns = input.shape, other.shape[1]
    if inner != other.shape[0] or rows * columns <= inner * (rows + columns):
        return None
    builder, k = RecipeBuilder(recorder), recorder.fresh("k_")
    a, b = builder.read_dense(input, ("i", k)), builder.read_dense(other, (k, "j"))
    if a is None or b is None:
        return None
    step = Step(builder.new_target(("i", "j"), "D"), Op("mul", (a, b)), "sum", (k,))
    return builder.build([step], (rows, columns), False, "deferred")


def _is_deferred(tensor: Any) -> bool:
    value: Value | None = tensor._value if type(tensor) is LazyTensor else None
    return value is not None and value.recipe.kind == "deferred" and value.result is None


def _scale_deferred(recorder: Recorder, product: Any, number: Literal) -> Recipe:
    """Multiply a deferred product by a number."""
    builder = RecipeBuilder(recorder)
    (step,) = builder.inline_deferred(product._value.recipe)
    step = replace(step, target=builder.new_target(("i", "j"), "D"), body=Op("mul", (step.body, number)))
    return builder.build([step], product.shape, False, "deferred")


def _sample_deferred(recorder: Recorder, mask: Any, product: Any) -> list[RecordedCall] | None:
    """Compute a deferred product at the entries of a sparse tensor, times its values."""
    builder, deferred = RecipeBuilder(recorder), product._value.recipe
    a = builder.read_sparse(mask)
    if a is None or not builder.has_rows or tuple(mask.shape) != tuple(product.shape):
        return None
    if deferred.dtype != builder.dtype or deferred.is_grad_enabled != builder.is_grad_enabled:
        return None
    (step,) = builder.inline_deferred(deferred)
    sampled = builder.build_step(a.indices, Op("mul", (a, step.body)), mask.shape, True, step.reduced)
    sources = [recorder.items[number] for number in deferred.parents.values()]
    outside: Call = (_sampled_product, (mask, *sources, _find_factor(deferred.steps[0].body)), {})
    return [(sampled, outside)]


def _find_factor(body: Expr) -> float:
    """Return the number that a product of two matrices is multiplied by."""
    match body:
        case Op("mul", (inner, Literal(value))):
            return _find_factor(inner) * float(value)
    return 1.0


def _sampled_product(mask: Any, a: Any, b: Any, factor: float) -> Any:
    """Compute the same eagerly, also without forming the whole product."""
    return scorch_einsum("ij,ik,kj->ij", mask, a, b) * factor


_sampled_product.__name__ = "mul"


@recording_rule(torch.mul, T.mul, T.__mul__, T.__rmul__, torch.multiply, T.multiply)
def mul(recorder: Recorder, input: Any, other: Any) -> Any:
    for factor, product in ((input, other), (other, input)):
        if _is_deferred(product):
            number = as_literal(factor)
            if number is not None:
                return _scale_deferred(recorder, product, number)
            if isinstance(factor, SparseTensor):
                return _sample_deferred(recorder, factor, product)
    return record_elementwise(recorder, build_operator("mul"), [input, other])


@recording_rule(T.sparse_mask)
def sparse_mask(recorder: Recorder, input: Any, mask: Any) -> str:
    return "it reads all of a tensor; to sample a product, multiply by a mask of ones, as in A * (P @ Q.T)"


@recording_rule(torch.div, T.div, T.__truediv__, torch.true_divide, T.true_divide)
def div(recorder: Recorder, input: Any, other: Any) -> Recipe | None:
    if isinstance(other, SparseTensor):
        return None
    number = as_literal(other)
    if _is_deferred(input) and number is not None and number.value != 0:
        return _scale_deferred(recorder, input, Literal(1.0 / number.value))
    return record_elementwise(recorder, build_operator("div"), [input, other])


# index notation --------------------------------------------------------------------------------------


@recording_rule(scorch_einsum, torch.einsum)
def einsum(recorder: Recorder, *args: Any) -> Recipe | None:
    """Record a product of one sparse matrix with dense tensors whose result has its rows."""
    if not args or not isinstance(args[0], str):
        return None
    equation, operands = args[0], args[1:]
    if not operands or not all(isinstance(operand, torch.Tensor) for operand in operands):
        return None
    parsed = parse_einsum(equation, [tuple(operand.shape) for operand in operands])
    if any(operand.squeeze for operand in parsed.operands):
        return None
    reads = [(operand.access, tensor) for operand, tensor in zip(parsed.operands, operands, strict=True)]
    return _record_product(recorder, parsed.statement, reads, parsed.sizes)


@recording_rule(scorch_evaluate)
def evaluate(
    recorder: Recorder, expression: str, /, *, format: Any = None, sparse_grad: bool = False, **tensors: Any
) -> Recipe | None:
    """Record a product in index notation, as ``einsum`` does."""
    if format is not None or sparse_grad or not isinstance(expression, str):
        return None
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        return None
    statement = parse(expression)
    assign = statement.assign
    reads = accesses(assign.value)
    if statement.accumulate or {access.tensor for access in reads} != set(tensors):
        return None
    sizes = shapes_of(statement, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return _record_product(recorder, assign, [(access, tensors[access.tensor]) for access in reads], sizes)


def _record_product(
    recorder: Recorder, assign: Assign, reads: Sequence[tuple[Access, Any]], sizes: Mapping[str, int]
) -> Recipe | None:
    """Record one step that multiplies a sparse matrix by dense tensors and keeps its rows."""
    sparse = [(access, tensor) for access, tensor in reads if isinstance(tensor, SparseTensor)]
    if len(sparse) != 1 or sparse[0][1].dim() != 2 or len(set(sparse[0][0].indices)) != 2:
        return None
    steps = split(Assign(assign.target, _hoist_sum(assign.value)))
    if len(steps) != 1 or steps[0].reduction != "sum" or not _is_product(steps[0].body):
        return None
    builder = RecipeBuilder(recorder)
    access_of_matrix, matrix = sparse[0]
    a = builder.read_sparse(matrix)
    if a is None or not builder.has_rows:
        return None
    names = dict(zip(access_of_matrix.indices, a.indices, strict=True))
    for index in sizes:
        names.setdefault(index, recorder.fresh("k_"))
    substitutions: dict[Access, Expr] = {access_of_matrix: a}
    for old, tensor in reads:
        if old == access_of_matrix:
            continue
        access = builder.read_dense(tensor, [names[index] for index in old.indices])
        if access is None or len(set(access.indices)) != len(access.indices):
            return None
        substitutions[old] = access
    target = tuple(names[index] for index in assign.target.indices)
    is_sparse = target == a.indices
    if target[:1] != a.indices[:1] or (a.indices[1] in target and not is_sparse):
        return None
    if not is_sparse and (not builder.is_worth_fusing or not builder.is_csr):
        return None  # lists of entries may have results with few rows
    reduced = tuple(names[index] for index in steps[0].reduced)
    shape = [sizes[index] for index in assign.target.indices]
    return builder.build_step(target, substitute(steps[0].body, substitutions), shape, is_sparse, reduced)


def _hoist_sum(value: Expr) -> Expr:
    """Rewrite ``sum(j, a) * b`` as ``sum(j, a * b)``: indices of sums are not used outside them."""
    match value:
        case Op("mul", (Reduce("sum", indices, body), other)) | Op(
            "mul", (other, Reduce("sum", indices, body))
        ):
            if _is_product(other) and set(indices).isdisjoint(free_indices(other)):
                return Reduce("sum", indices, Op("mul", (body, other)))
        case Op("mul", (a, b)):
            left, right = _hoist_sum(a), _hoist_sum(b)
            if (left, right) != (a, b):
                return _hoist_sum(Op("mul", (left, right)))
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
