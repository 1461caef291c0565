"""Run steps whose operands are all dense by torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import torch

from scorch._src.compiler.plan import Step
from scorch._src.compiler.typing import dtype_of_type, result_type, type_of_dtype
from scorch._src.devices import HOST, shares_memory
from scorch._src.engine.by_torch.joined_statement import Statement
from scorch._src.loops.types import Type
from scorch._src.notation.nodes import Access, Expr, Op
from scorch._src.storage.budget import check_budget


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


def _cure(step: Step) -> str:
    """Say how to need less memory: a sum that sparse operands multiply is needed at their elements only."""
    is_intermediate = re.fullmatch(r"T\d+", step.target.tensor)  # as ``compiler.steps`` names them
    if not is_intermediate or step.reduction != "sum":
        return "store an operand sparse"
    return (
        f"multiply inside the sum by M[{','.join(step.target.indices)}], where M = S.with_values(1) has the "
        "pattern of the sparse operand S, to compute the sum only where S has entries"
    )


def _run(step: Step, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
    element = result_type(step, {name: type_of_dtype(tensor.dtype) for name, tensor in tensors.items()})
    factors = _factors(step.body)
    is_product = factors is not None and step.reduction == "sum" and _multiplies(element, tensors)
    order = step.target.indices if is_product else step.indices
    size = math.prod(sizes[index] for index in order) * element.bytes
    what = f"{step.target.tensor}[{','.join(step.target.indices)}], over dense operands only,"
    device = next((tensor.device for tensor in tensors.values()), HOST)
    check_budget(size, device, what, _cure(step))
    if factors is not None and is_product:
        return _einsum(step, factors, tensors, dtype_of_type(element))
    value = Statement(step, tensors, sizes).value_at(slice(None), 1, dtype_of_type(element.computes_in))
    return value[0].to(dtype_of_type(element)).contiguous()


def _multiplies(element: Type, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether ``torch.einsum`` takes a product of such elements: integers on the host only."""
    if element.kind in ("int", "uint"):
        return all(tensor.device == HOST for tensor in tensors.values())
    return element.kind != "bool"


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
