"""Matrix products under torch's own names: each is an einsum.

As torch users expect, a product with a dense tensor is dense; a product of sparse tensors is sparse.
"""

from __future__ import annotations

from typing import Any

import torch

from scorch.errors import ShapeError
from scorch.ops.einsum import einsum
from scorch.tensor.dispatch import implements
from scorch.tensor.sparse_tensor import SparseTensor

_BATCH = "abcdefgh"


@implements(
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.mm,
    torch.Tensor.mm,
    torch.mv,
    torch.Tensor.mv,
    torch.bmm,
    torch.Tensor.bmm,
)
def matmul(input: Any, other: Any) -> SparseTensor | torch.Tensor:
    """``input @ other`` for vectors, matrices and batches of matrices."""
    left, right = input.dim(), other.dim()
    if not left or not right:
        raise ShapeError("matmul takes vectors, matrices or batches of them, not scalars; use * instead")
    batch = max(left, right) - 2
    if batch > len(_BATCH):
        raise ShapeError(f"matmul takes up to {len(_BATCH)} batch dimensions, not {batch}")
    letters = _BATCH[: max(batch, 0)]
    first = "j" if left == 1 else letters[len(letters) - (left - 2) :] + "ij"
    second = "j" if right == 1 else letters[len(letters) - (right - 2) :] + "jk"
    result = letters + ("" if left == 1 else "i") + ("" if right == 1 else "k")
    both_sparse = isinstance(input, SparseTensor) and isinstance(other, SparseTensor)
    return einsum(f"{first},{second}->{result}", input, other, format=None if both_sparse else "dense")


@implements(torch.Tensor.__rmatmul__)
def rmatmul(input: Any, other: Any) -> SparseTensor | torch.Tensor:
    """``other @ input``, where ``other`` is the dense tensor on the left."""
    return matmul(other, input)


implements(torch.einsum)(einsum)
