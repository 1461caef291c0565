"""The largest elements of each row as a sparse matrix: ``topk_sparse``."""

from __future__ import annotations

import contextlib
import math

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.grad_state import untracked
from scorch._src.loops.types import LAST_INT32
from scorch._src.tensor.matrix_rows import rows_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
)
from scorch.errors import ArgumentError, DtypeError, OperandError, ShapeError

LEAST_WIDTH = 16  # of groups, from which on looking at their maxima first pays


def topk_sparse(h: torch.Tensor, k: int, dim: int = -1, *, abs: bool = False) -> SparseTensor:
    """The ``k`` largest elements along ``dim``, by magnitude with ``abs``, as a sparse tensor.

    Every row stores exactly ``k`` entries, zeros among them too; the format is ``csr``, with leading
    dimensions as a batch. The gradient goes to the elements that are kept. So ``topk_sparse(h, k) @ W`` costs
    what ``k`` rows of ``W`` cost for every row of ``h``, in both directions.

    >>> import torch, scorch
    >>> scorch.topk_sparse(torch.tensor([[1.0, 3.0, 2.0], [5.0, -9.0, 4.0]]), 2).to_dense()
    tensor([[0., 3., 2.],
            [5., 0., 4.]])
    """
    if not isinstance(h, torch.Tensor) or isinstance(h, SparseTensor):
        raise OperandError(f"topk_sparse takes a dense tensor, not a {type(h).__name__}")
    if h.dim() == 0:
        raise ShapeError("topk_sparse takes a tensor with at least one dimension")
    if not -h.dim() <= dim < h.dim():
        raise ShapeError(f"dim is {dim}, but the tensor has {h.dim()} dimensions")
    if h.is_complex() or h.dtype == torch.bool:
        raise DtypeError(f"{h.dtype} values have no largest")
    size = h.shape[dim]
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= size:
        raise ArgumentError(f"k is a number from 0 to {size}, the size of dimension {dim}, not {k!r}")
    if dim % h.dim() != h.dim() - 1:
        return topk_sparse(h.movedim(dim, -1), k, abs=abs).movedim(-1, dim)  # type: ignore[return-value]
    if not is_dynamo_compiling() and _is_batched(h):
        return _of_batch(h, k, abs)
    places = largest_places(h, k, abs)
    return in_places(places, h.gather(-1, places), tuple(h.shape))


def largest_places(h: torch.Tensor, k: int, abs: bool = False) -> torch.Tensor:
    """Where the ``k`` largest elements of each row are, in order."""
    score = h.detach().abs() if abs else h.detach()
    with contextlib.nullcontext() if is_dynamo_compiling() else untracked():
        return _largest(score, k).sort().values


def in_places(places: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> SparseTensor:
    """The tensor with these values at ``places``, as many in every row and in order."""
    with contextlib.nullcontext() if is_dynamo_compiling() else untracked():
        pos, crd = _arrays(places, shape, places.shape[-1])
    return rows_tensor(pos, crd, values.reshape(-1), shape)


def _is_batched(h: torch.Tensor) -> bool:
    """Whether ``torch.vmap`` batches it, at any level."""
    while is_functorch_wrapped_tensor(h):
        if is_batchedtensor(h):
            return True
        h = get_unwrapped(h)
    return False


def _of_batch(h: torch.Tensor, k: int, abs: bool) -> SparseTensor:
    """Inside of ``torch.vmap``, where one pattern serves all: it has the places of all, with zeros."""
    score = h.detach().abs() if abs else h.detach()
    kept = torch.zeros_like(score, dtype=torch.bool).scatter(-1, score.topk(k, sorted=False).indices, True)
    used, batches = kept, []
    while is_functorch_wrapped_tensor(used):
        if is_batchedtensor(used):
            batches.append(maybe_get_bdim(used))
        used = get_unwrapped(used)
    with untracked():
        for dim in reversed(batches):  # the innermost was wrapped first
            used = used.any(dim)
        flat = used.reshape(-1, h.shape[-1])
        rows, columns = flat.nonzero(as_tuple=True)
        dtype = torch.int32 if max(*h.shape, rows.numel()) <= LAST_INT32 else torch.int64
        pos = torch.cat([torch.zeros(1, dtype=torch.int64, device=flat.device), flat.sum(1).cumsum(0)])
        pos, columns = pos.to(dtype), columns.to(dtype)
        places = rows * h.shape[-1] + columns
    return rows_tensor(pos, columns, torch.where(kept, h, 0).reshape(-1)[places], tuple(h.shape))


def _largest(score: torch.Tensor, k: int) -> torch.Tensor:
    """Where the ``k`` largest elements of each row are.

    In long rows they are looked for in the ``k`` groups with the largest maxima, which have
    them all; finding those takes one pass.
    """
    size = score.shape[-1]
    width = 1 << int(math.log2(max(size / max(k, 1), 1)) / 2)
    groups = size // width
    if width < LEAST_WIDTH or groups < k or not score.numel():
        return score.topk(k, sorted=False).indices
    heads = score[..., : groups * width].unflatten(-1, (width, groups)).amax(-2)
    best = heads.topk(k, sorted=False).indices.unsqueeze(-1)
    places = (best + torch.arange(0, groups * width, groups, device=best.device)).flatten(-2)
    rest = torch.arange(groups * width, size, device=score.device).expand(*score.shape[:-1], -1)
    places = torch.cat([places, rest], -1)
    return places.gather(-1, score.gather(-1, places).topk(k, sorted=False).indices)


def _arrays(places: torch.Tensor, shape: tuple[int, ...], k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where rows begin and their columns: ``k`` in every row, which ``places`` has in order."""
    rows = 1
    for size in shape[:-1]:
        rows = rows * size
    dtype = torch.int32 if max(*shape, rows * k, 1) <= LAST_INT32 else torch.int64
    pos = (
        torch.arange(0, rows * k + 1, k, dtype=dtype, device=places.device)
        if k
        else torch.zeros(rows + 1, dtype=dtype, device=places.device)
    )
    return pos, places.reshape(-1).to(dtype)
