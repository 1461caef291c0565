"""The largest elements of each row as a sparse matrix: ``topk_sparse``."""

from __future__ import annotations

import contextlib
import math

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.grad_state import untracked
from scorch._src.loops.types import LAST_INT32
from scorch._src.name_hints import suggests_keywords
from scorch._src.statements.operands import as_differentiable
from scorch._src.tensor.create.build import rows_tensor
from scorch._src.tensor.create.check import check_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
)
from scorch.errors import ArgumentError, DtypeError, ShapeError, is_integer

MIN_GROUP_WIDTH = 16  # from which on comparing maxima of groups first is faster


@suggests_keywords
def topk_sparse(h: torch.Tensor, k: int, dim: int = -1, *, abs: bool = False) -> SparseTensor:
    """Return the ``k`` largest elements along a dimension as a sparse tensor.

    ``topk_sparse(h, k) @ W`` reads only ``k`` rows of ``W`` per row of ``h``, forward and backward. The
    gradient flows to the elements that are kept.

    Args:
        h: a dense or sparse tensor.
        k: the number of elements to keep.
        dim: the dimension.
        abs: whether to compare magnitudes.

    Returns:
        A tensor in ``csr``, with leading dimensions as a batch. Every row stores exactly ``k`` entries,
        zeros included, or at most ``k`` if ``h`` is sparse: its implicit zeros compete with the stored
        entries, but are never stored. Inside ``torch.vmap``, whose samples share one pattern, rows store the
        entries of all samples, with zeros; ``topk_sparse`` of the whole batch does not.

    Raises:
        ArgumentError: ``k`` is negative or larger than the dimension.
        ShapeError: ``dim`` is out of range.
        OperandError: ``h`` is not a tensor.

    Example:

        >>> import torch, scorch
        >>> scorch.topk_sparse(torch.tensor([[1.0, 3.0, 2.0], [5.0, -9.0, 4.0]]), 2).to_dense()
        tensor([[0., 3., 2.],
                [5., 0., 4.]])
    """
    check_tensor("h", h)
    h = as_differentiable("h", h)
    if h.dim() == 0:
        raise ShapeError("topk_sparse expected a tensor with at least one dimension")
    if not -h.dim() <= dim < h.dim():
        raise ShapeError(f"dimension {dim} is out of range for a {h.dim()}-D tensor")
    if h.is_complex() or h.dtype == torch.bool:
        raise DtypeError(f"topk_sparse is not supported for {h.dtype}")
    size = h.shape[dim]
    if not is_integer(k, 0, size):
        raise ArgumentError(
            f"k must be an integer between 0 and {size}, the size of dimension {dim}, but got {k!r}"
        )
    if dim % h.dim() != h.dim() - 1:
        return topk_sparse(h.movedim(dim, -1), k, abs=abs).movedim(-1, dim)  # type: ignore[return-value]
    if isinstance(h, SparseTensor):
        return _topk_of_entries(h, k, abs)
    if not is_dynamo_compiling() and _unwrap(h)[1]:
        return _topk_of_batch(h, k, abs)
    positions = find_largest(h, k, abs)
    return from_positions(positions, h.gather(-1, positions), tuple(h.shape))


def _topk_of_entries(h: SparseTensor, k: int, abs: bool) -> SparseTensor:
    """Keep those stored entries of each row that are among its ``k`` largest elements."""
    stored = h.to_format("d" * (h.dim() - 1) + "s")
    assert isinstance(stored, SparseTensor)
    values, pattern = stored.values().reshape(-1), stored.storage.pattern  # batches of equal length are rows
    pos, crd = pattern.pos[-1], pattern.crd[-1]
    assert pos is not None and crd is not None
    with untracked():
        lengths = pos.diff()
        row = torch.arange(lengths.numel(), device=pos.device).repeat_interleave(lengths)
        score = values.detach().abs() if abs else values.detach()
        order = score.argsort(descending=True, stable=True)
        order = order[row[order].argsort(stable=True)]  # by row, the largest first
        rank = torch.empty_like(order)
        rank[order] = torch.arange(order.numel(), device=pos.device) - pos[row]
        rank += torch.where(score < 0, h.shape[-1] - lengths[row], 0)  # below the implicit zeros
        kept = (rank < k).nonzero().flatten()
        pos = torch.nn.functional.pad(torch.bincount(row[kept], minlength=lengths.numel()).cumsum(0), (1, 0))
    return rows_tensor(pos.to(crd.dtype), crd[kept], values[kept], tuple(h.shape))


def find_largest(h: torch.Tensor, k: int, abs: bool = False) -> torch.Tensor:
    """Return the positions of the ``k`` largest elements of each row, in order."""
    score = h.detach().abs() if abs else h.detach()
    with contextlib.nullcontext() if is_dynamo_compiling() else untracked():
        return _find_largest(score, k).sort().values


def _find_largest(score: torch.Tensor, k: int) -> torch.Tensor:
    """Return the positions of the ``k`` largest elements of each row.

    In long rows they are searched in the ``k`` groups with the largest maxima, which contain them all;
    finding those takes one pass.
    """
    size = score.shape[-1]
    width = 1 << int(math.log2(max(size / max(k, 1), 1)) / 2)
    groups = size // width
    if width < MIN_GROUP_WIDTH or groups < k or not score.numel():
        return score.topk(k, sorted=False).indices
    maxima = score[..., : groups * width].unflatten(-1, (width, groups)).amax(-2)
    best = maxima.topk(k, sorted=False).indices.unsqueeze(-1)
    positions = (best + torch.arange(0, groups * width, groups, device=best.device)).flatten(-2)
    remainder = torch.arange(groups * width, size, device=score.device).expand(*score.shape[:-1], -1)
    positions = torch.cat([positions, remainder], -1)
    return positions.gather(-1, score.gather(-1, positions).topk(k, sorted=False).indices)


def from_positions(positions: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> SparseTensor:
    """Build a tensor with these values at ``positions``, as many in every row and in order."""
    rows, k, device = 1, positions.shape[-1], positions.device
    for size in shape[:-1]:
        rows = rows * size
    with contextlib.nullcontext() if is_dynamo_compiling() else untracked():
        dtype = torch.int32 if max(*shape, rows * k, 1) <= LAST_INT32 else torch.int64
        if k:
            pos = torch.arange(0, rows * k + 1, k, dtype=dtype, device=device)
        else:
            pos = torch.zeros(rows + 1, dtype=dtype, device=device)
        crd = positions.reshape(-1).to(dtype)
    return rows_tensor(pos, crd, values.reshape(-1), shape)


def _unwrap(h: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return the tensor that ``torch.func`` has wrapped, and the dimensions that ``torch.vmap`` batches."""
    batches = []
    while is_functorch_wrapped_tensor(h):
        if is_batchedtensor(h):
            batches.append(maybe_get_bdim(h))
        h = get_unwrapped(h)
    return h, batches


def _topk_of_batch(h: torch.Tensor, k: int, abs: bool) -> SparseTensor:
    """Select inside ``torch.vmap``, where one pattern serves all: the union of all, with zeros."""
    score = h.detach().abs() if abs else h.detach()
    is_kept = torch.zeros_like(score, dtype=torch.bool).scatter(-1, score.topk(k, sorted=False).indices, True)
    union, batches = _unwrap(is_kept)
    with untracked():
        for dim in reversed(batches):  # the innermost was wrapped first
            union = union.any(dim)
        flat = union.reshape(-1, h.shape[-1])
        rows, columns = flat.nonzero(as_tuple=True)
        dtype = torch.int32 if max(*h.shape, rows.numel()) <= LAST_INT32 else torch.int64
        pos = torch.cat([torch.zeros(1, dtype=torch.int64, device=flat.device), flat.sum(1).cumsum(0)])
        pos, columns = pos.to(dtype), columns.to(dtype)
        positions = rows * h.shape[-1] + columns
    return rows_tensor(pos, columns, torch.where(is_kept, h, 0).reshape(-1)[positions], tuple(h.shape))
