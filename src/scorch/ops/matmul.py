"""Matrix products under torch's own names: each is an einsum.

As torch users expect, a product with a dense tensor is dense; a product of sparse tensors is sparse.
"""

from __future__ import annotations

from typing import Any

import torch

from scorch.errors import CallError, OperandError, ShapeError
from scorch.ops.einsum import einsum
from scorch.ops.generic import write_out
from scorch.tensor.dispatch import implements
from scorch.tensor.sparse_tensor import SparseTensor

Result = SparseTensor | torch.Tensor
_BATCH = "abcdefgh"


@implements(torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
def matmul(input: Any, other: Any, *, out: Any = None) -> Result:
    """``input @ other`` for vectors, matrices and batches of matrices."""
    return _product("matmul", input, other, out)


@implements(torch.mm, torch.Tensor.mm)
def mm(input: Any, mat2: Any, *, out: Any = None) -> Result:
    """The product of two matrices."""
    return _product("mm", input, mat2, out, 2, 2)


@implements(torch.mv, torch.Tensor.mv)
def mv(input: Any, vec: Any, *, out: Any = None) -> Result:
    """The product of a matrix and a vector."""
    return _product("mv", input, vec, out, 2, 1)


@implements(torch.bmm, torch.Tensor.bmm)
def bmm(input: Any, mat2: Any, *, out: Any = None) -> Result:
    """The products of two batches of matrices."""
    return _product("bmm", input, mat2, out, 3, 3)


@implements(torch.Tensor.__rmatmul__)
def rmatmul(input: Any, other: Any) -> Result:
    """``other @ input``, where ``other`` is the dense tensor on the left."""
    return _product("matmul", other, input, None)


implements(torch.einsum)(einsum)


def _product(
    name: str, left: Any, right: Any, out: Any, left_dims: int | None = None, right_dims: int | None = None
) -> Result:
    for side, wanted in ((left, left_dims), (right, right_dims)):
        if not isinstance(side, torch.Tensor):
            raise OperandError(f"{name} takes tensors, not a {type(side).__name__}; use torch.as_tensor")
        if wanted is not None and side.dim() != wanted:
            raise ShapeError(
                f"{name} takes a tensor of {wanted} dimensions here, not of {side.dim()} "
                f"(shape {tuple(side.shape)}); matmul takes any"
            )
    if left_dims == 3 and left.shape[0] != right.shape[0]:
        raise ShapeError(f"{name} takes batches of one length, not {left.shape[0]} and {right.shape[0]}")
    first, second, result = _subscripts(left.dim(), right.dim())
    if left.dtype != right.dtype:
        raise CallError(
            f"{name} takes tensors of one dtype, not {left.dtype} and {right.dtype}; use .to(dtype)"
        )
    both_sparse = isinstance(left, SparseTensor) and isinstance(right, SparseTensor)
    found = einsum(f"{first},{second}->{result}", left, right, format=None if both_sparse else "dense")
    return found if out is None else write_out(out, found, name)


def _subscripts(left: int, right: int) -> tuple[str, str, str]:
    """The subscripts of both operands and the result; leading dimensions are batches."""
    if not left or not right:
        raise ShapeError("matmul takes vectors, matrices or batches of them, not scalars; use * instead")
    batch = max(left, right) - 2
    if batch > len(_BATCH):
        raise ShapeError(f"matmul takes up to {len(_BATCH)} batch dimensions, not {batch}")
    letters = _BATCH[: max(batch, 0)]
    first = "j" if left == 1 else letters[len(letters) - (left - 2) :] + "ij"
    second = "j" if right == 1 else letters[len(letters) - (right - 2) :] + "jk"
    return first, second, letters + ("" if left == 1 else "i") + ("" if right == 1 else "k")
