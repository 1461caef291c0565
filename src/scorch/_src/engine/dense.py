"""Run steps whose operands are all dense by torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from scorch._src.compiler.plan import Step
from scorch._src.compiler.typing import argument_type, dtype_of_type, result_type, type_of, type_of_dtype
from scorch._src.devices import HOST, shares_memory
from scorch._src.loops.operators import OPERATORS
from scorch._src.loops.types import Type
from scorch._src.notation.nodes import Access, Expr, Literal, Op
from scorch._src.storage.budget import check_budget
from scorch.errors import ShapeError


def torch_function(name: str) -> Callable[..., torch.Tensor]:
    """Return the torch function that computes an operator on dense tensors."""
    function: Callable[..., torch.Tensor] = OPERATORS[name].torch or getattr(torch, name)
    return function


def run_dense(step: Step, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
    """Run ``step`` over dense tensors by torch; the result shares no memory with them."""
    result = _run(step, tensors, sizes)
    return result.clone() if any(shares_memory(result, tensor) for tensor in tensors.values()) else result


def matrix_product(step: Step) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor] | None:
    """Return a function for the product of two floating-point matrices, or a matrix and a vector, or None."""
    factors = _factors(step.body)
    if factors is None or len(factors) != 2 or step.reduction != "sum" or len(step.reduced) != 1:
        return None
    (j,) = step.reduced
    left, right = factors if factors[0].indices[:1] == step.target.indices[:1] else factors[::-1]
    rows, columns = (tuple(i for i in f.indices if i != j) for f in (left, right))
    if len(rows) != 1 or len(columns) > 1 or step.target.indices != (*rows, *columns):
        return None
    if sorted(left.indices) != sorted((*rows, j)) or sorted(right.indices) != sorted((*columns, j)):
        return None
    transpose_left, transpose_right = left.indices[0] == j, len(columns) == 1 and right.indices[0] != j

    def multiply(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        a, b = tensors[left.tensor], tensors[right.tensor]
        return (a.T if transpose_left else a) @ (b.T if transpose_right else b)

    return multiply


def _run(step: Step, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
    types = {name: type_of_dtype(tensor.dtype) for name, tensor in tensors.items()}
    element = result_type(step, types)
    dtype = dtype_of_type(element)
    factors = _factors(step.body)
    is_product = factors is not None and step.reduction == "sum" and element.kind != "bool"
    order = step.target.indices if is_product else (*step.target.indices, *step.reduced)
    size = math.prod(sizes[index] for index in order) * element.bytes
    what = f"{step.target.tensor}[{','.join(step.target.indices)}], over dense operands only,"
    check_budget(size, what, "store an operand sparse")
    if factors is not None and is_product:
        return _einsum(step, factors, tensors, dtype)
    value = _evaluate(step.body, tensors, order, types)
    value = value.expand([sizes[index] for index in order])
    if not step.reduced:
        return value.to(dtype).contiguous()
    dims = list(range(len(step.target.indices), len(order)))
    return _reduce(step, value, dims, sizes, dtype).to(dtype)


def _factors(expr: Expr) -> list[Access] | None:
    """Return the accesses of a plain product, else None."""
    match expr:
        case Access():
            return [expr]
        case Op("mul", (a, b)):
            left, right = _factors(a), _factors(b)
            return None if left is None or right is None else left + right
    return None


def _einsum(
    step: Step, factors: list[Access], tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """Run ``torch.einsum``; integers as int64, as torch sums narrow ones into it halfway and then refuses."""
    number = {index: n for n, index in enumerate(dict.fromkeys(step.indices))}
    wide = dtype if dtype.is_floating_point or dtype.is_complex else torch.int64
    operands: list[object] = []
    for access in factors:
        operands += [tensors[access.tensor].to(wide), [number[index] for index in access.indices]]
    output = [number[index] for index in step.target.indices]
    return torch.einsum(*operands, output).to(dtype).contiguous()


def _evaluate(
    expr: Expr, tensors: Mapping[str, torch.Tensor], order: tuple[str, ...], types: Mapping[str, Type]
) -> torch.Tensor:
    """Evaluate ``expr`` with one dimension for each index of ``order``, of size 1 where it is constant in it.

    Scalars have such dimensions too, so arguments are converted by Scorch's rules before torch sees them.
    """
    match expr:
        case Access(tensor, indices):
            return _aligned(tensors[tensor], indices, order)
        case Literal(value):
            dtype = dtype_of_type(type_of(expr, types).type)
            device = next((tensor.device for tensor in tensors.values()), HOST)
            return torch.tensor(value, dtype=dtype, device=device)
        case Op(name, args):
            values = [_evaluate(arg, tensors, order, types) for arg in args]
            wanted = dtype_of_type(argument_type(name, [type_of(arg, types) for arg in args]))
            if name == "where":
                return torch.where(values[0] != 0, values[1].to(wanted), values[2].to(wanted))
            return torch_function(name)(*(value.to(wanted) for value in values))
    raise AssertionError(f"cannot evaluate {expr!r}")


def _aligned(tensor: torch.Tensor, indices: tuple[str, ...], order: tuple[str, ...]) -> torch.Tensor:
    """Take diagonals for repeated indices, permute dimensions to ``order``, insert size 1 for absent ones."""
    labels = list(indices)
    while len(set(labels)) < len(labels):
        twice = next(index for index in labels if labels.count(index) > 1)
        first = labels.index(twice)
        second = labels.index(twice, first + 1)
        tensor = tensor.diagonal(dim1=first, dim2=second)
        labels = [index for place, index in enumerate(labels) if place not in (first, second)] + [twice]
    present = [index for index in order if index in labels]
    tensor = tensor.permute([labels.index(index) for index in present])
    for place, index in enumerate(order):
        if index not in labels:
            tensor = tensor.unsqueeze(place)
    return tensor


def _reduce(
    step: Step, value: torch.Tensor, dims: list[int], sizes: Mapping[str, int], dtype: torch.dtype
) -> torch.Tensor:
    match step.reduction:
        case "sum":
            return value.any(dims) if dtype == torch.bool else value.sum(dims)
        case "any":
            return (value != 0).any(dims)
        case "prod":
            for dim in reversed(dims):
                value = value.prod(dim)
            return value
        case "max" | "min":
            empty = [index for index in step.reduced if sizes[index] == 0]
            if empty:
                raise ShapeError(f"{step.reduction} over index {empty[0]!r} of size 0 has no value")
            return value.amax(dims) if step.reduction == "max" else value.amin(dims)
    raise AssertionError(f"cannot reduce by {step.reduction!r}")
