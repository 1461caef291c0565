"""The largest elements of each row as a sparse matrix: ``topk_sparse``."""

from __future__ import annotations

import math

import torch

from scorch.errors import ArgumentError, DtypeError, OperandError, ShapeError
from scorch.formats import Format
from scorch.tensor.learning import sparse_of
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern
from scorch.tensor.tracking import untracked

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
    score = h.detach().abs() if abs else h.detach()
    with untracked():
        places = _largest(score, k).sort().values
        pattern = _pattern(places, tuple(h.shape), k)
    return sparse_of(pattern, h.gather(-1, places).reshape(-1))


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
    places = (best + torch.arange(0, groups * width, groups, device="cpu")).flatten(-2)
    rest = torch.arange(groups * width, size, device="cpu").expand(*score.shape[:-1], -1)
    places = torch.cat([places, rest], -1)
    return places.gather(-1, score.gather(-1, places).topk(k, sorted=False).indices)


def _pattern(places: torch.Tensor, shape: tuple[int, ...], k: int) -> Pattern:
    """``k`` entries in every row, which ``places`` has in order."""
    counts: list[int] = []
    for size in shape[:-1]:
        counts.append((counts[-1] if counts else 1) * size)
    rows = counts[-1] if counts else 1
    dtype = torch.int32 if max(*shape, rows * k, 1) < 2**31 else torch.int64
    pos = torch.arange(0, rows * k + 1, k, dtype=dtype) if k else torch.zeros(rows + 1, dtype=dtype)
    nothing: tuple[None, ...] = (None,) * len(counts)
    form = Format("d" * len(counts) + "s")
    crd = places.reshape(-1).to(dtype)
    return Pattern(form, shape, (*nothing, pos), (*nothing, crd), (*counts, rows * k))
