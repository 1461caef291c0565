"""Matrix products under torch's own names: each is an einsum.

As torch users expect, a product with a dense tensor is dense, and a product of sparse tensors (torch's own
layouts included) is sparse, however full it is; ``einsum`` makes those dense that need less memory so.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from scorch._src.backends.base import routines_for
from scorch._src.backends.repeated_calls import NO_RULE
from scorch._src.formats import Format
from scorch._src.grad_state import is_differentiable, is_plain_inference
from scorch._src.ops.fallback import run_densely, write_out
from scorch._src.statements.autocast import cast, casts_vectors, is_autocast, without_autocast
from scorch._src.statements.autograd import keep_differentiable_as, repeat_differentiable
from scorch._src.statements.call_cache import keep_as, repeat_call, repeat_pair
from scorch._src.statements.einsum import einsum
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.registry import entry, implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import is_any_autocast_enabled
from scorch.errors import ShapeError

Result = SparseTensor | torch.Tensor
_BATCH = "abcdefgh"
MIN_TRANSPOSED_ROWS = 2  # of a dense matrix, below which it is not worth transposing
MIN_TRANSPOSED_MULTIPLICATIONS = 1 << 14  # below which it is not, either


@implements(torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, differentiable=True)
def matmul(input: Any, other: Any, *, out: Any = None) -> Result:
    """``input @ other`` for vectors, matrices and batches of matrices."""
    return _product(torch.matmul, input, other, out)


_operator = entry(torch.Tensor.__matmul__)
_operator.repeats = (("matmul",), None), NO_RULE
_operator.repeat = functools.partial(repeat_pair, _operator.repeats[0])


MM = (("mm",), None)  # by which calls of ``mm`` are remembered


@implements(torch.mm, torch.Tensor.mm, differentiable=True)
@implements(torch.ops.aten.mm.default)
def mm(input: Any, mat2: Any, *, out: Any = None) -> Result:
    """The product of two matrices."""
    return _product(torch.mm, input, mat2, out)


@implements(torch.mv, torch.Tensor.mv, differentiable=True)
@implements(torch.ops.aten.mv.default)
def mv(input: Any, vec: Any, *, out: Any = None) -> Result:
    """The product of a matrix and a vector, which autocast does not cast on the host."""
    if is_any_autocast_enabled() and isinstance(input, torch.Tensor) and not casts_vectors(input.device):
        with without_autocast(input.device):
            return _product(torch.mv, input, vec, out, is_cast=False)
    return _product(torch.mv, input, vec, out)


@implements(torch.bmm, torch.Tensor.bmm, differentiable=True)
@implements(torch.ops.aten.bmm.default)
def bmm(input: Any, mat2: Any, *, out: Any = None) -> Result:
    """The products of two batches of matrices."""
    return _product(torch.bmm, input, mat2, out)


@implements(torch.Tensor.__rmatmul__, differentiable=True)
def rmatmul(input: Any, other: Any) -> Result:
    """``other @ input``, where ``other`` is the dense tensor on the left."""
    return _product(torch.matmul, other, input, None)


@implements(torch.einsum, differentiable=True)
def torch_einsum(*args: Any) -> Result:
    return einsum(*args)


def _product(function: Any, left: Any, right: Any, out: Any, is_cast: bool = True) -> Result:
    """Multiply as ``function`` does; only checked calls are remembered under its name."""
    if is_cast and is_any_autocast_enabled() and is_autocast():
        left, right = cast(left, right)
    name = function.__name__
    if out is None:
        repeat = repeat_differentiable if is_differentiable(left, right) else repeat_call
        known: Result | None = repeat(((name,), None), (left, right))
        if known is not None:
            return known
    check_call(function, left, right, out=out)
    if left.dtype != right.dtype:  # which torch accepts where there is nothing to add up
        return run_densely(function, (left, right), {} if out is None else {"out": out})  # type: ignore[no-any-return]
    subscripts = _subscripts(left.dim(), right.dim())
    left, right = _convert_layout(left), _convert_layout(right)
    found = multiply_transposed(left, right) if prefers_transpose(left, right) else None
    if found is None:
        found = _multiply(name, subscripts, left, right)
    return found if out is None else write_out(out, found, name)


def _multiply(name: str, subscripts: tuple[str, str, str], left: Any, right: Any) -> Result:
    """Multiply by an einsum; the product of two sparse tensors is sparse."""
    first, second, result = subscripts
    equation = f"{first},{second}->{result}"
    is_sparse = isinstance(left, SparseTensor) and isinstance(right, SparseTensor)
    asked: Any = _sparse_format(subscripts, left.format, right.format) if is_sparse else "dense"
    found = einsum(equation, left, right, format=asked)
    if is_sparse and result and not isinstance(found, SparseTensor):  # a sparse dimension of size 1 is none
        return from_torch(found, format=_rows_format(len(result)))
    if is_differentiable(left, right):
        keep_differentiable_as(((name,), None), (equation, asked, False), (left, right))
    else:
        keep_as(((name,), None), (equation, asked), (left, right))
    return found


def prefers_transpose(left: Any, right: Any) -> bool:
    """Whether a product is faster as the transpose of the product of the transposes.

    Kernels go along rows of a dense operand. Those of ``left.T`` are met by one entry of a sparse ``right``
    each, and stay in registers; along rows of ``left`` values would be picked one by one.
    """
    if not isinstance(right, SparseTensor) or isinstance(left, SparseTensor) or left.dim() != 2:
        return False
    pattern, rows = right.storage.pattern, left.shape[0]
    return (
        len(pattern.shape) == 2
        and rows >= MIN_TRANSPOSED_ROWS
        and rows * pattern.size >= MIN_TRANSPOSED_MULTIPLICATIONS
    )


def multiply_transposed(left: Any, right: Any) -> Any:
    """Compute ``left @ right`` as the transpose of the product of the transposes; None for other sizes."""
    if left.shape[1] != right.shape[0]:
        return None
    return transpose_contiguous(einsum("jk,ji->ki", right, transpose_contiguous(left), format="dense"))


def transpose_contiguous(matrix: torch.Tensor) -> torch.Tensor:
    """Transpose a dense matrix, row by row in memory."""
    if type(matrix) is not torch.Tensor or not is_plain_inference(matrix):
        return matrix.t().contiguous()
    return routines_for(matrix).transpose(matrix, (1, 0))


def _convert_layout(tensor: Any) -> Any:
    """Convert a tensor in one of torch's sparse layouts."""
    if isinstance(tensor, SparseTensor) or tensor.layout is torch.strided:
        return tensor
    return from_torch(tensor)


@functools.lru_cache(maxsize=256)
def _sparse_format(subscripts: tuple[str, str, str], left: Format, right: Format) -> Format | None:
    """The format to ask for so that a product of sparse tensors is sparse; None where it is anyway.

    Rows of ``csr`` and columns of ``csc`` are all stored, so nothing but the sum is sparse in their product.
    """
    first, second, result = subscripts
    for indices, form in ((first, left), (second, right)):
        for dim, level in zip(form.order, form.levels, strict=True):
            if indices[dim] in result and not level.is_full:
                return None
    return _rows_format(len(result)) if result else None


def _rows_format(dims: int) -> Format:
    return Format("d" * (dims - 1) + "s")


def _subscripts(left: int, right: int) -> tuple[str, str, str]:
    """The subscripts of both operands and the result; leading dimensions are batches."""
    if not left or not right:
        raise ShapeError(
            "matmul expected operands with at least one dimension, but got a scalar; use * instead"
        )
    batch = max(left, right) - 2
    if batch > len(_BATCH):
        raise ShapeError(f"matmul supports up to {len(_BATCH)} batch dimensions, but got {batch}")
    letters = _BATCH[: max(batch, 0)]
    first = "j" if left == 1 else letters[len(letters) - (left - 2) :] + "ij"
    second = "j" if right == 1 else letters[len(letters) - (right - 2) :] + "jk"
    return first, second, letters + ("" if left == 1 else "i") + ("" if right == 1 else "k")
