"""The shape of the result of an operator that moves entries, or torch's error for arguments it refuses.

torch infers shapes on meta tensors; for some operators by functions in Python, which import sympy and half
of its compiler. The usual calls of those are recognized by ``RULES``, which return None for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.tensor.entries import Shape
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import IndexRangeError

aten = torch.ops.aten


def as_meta(tensor: Any) -> Any:
    """Return a meta tensor of the same shape and dtype; anything else as it is."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")


def infer_shape(func: Any, tensor: SparseTensor, *args: Any, **kwargs: Any) -> Shape:
    """Return the shape of the result as torch infers it, or raise its error."""
    rule = None if kwargs else RULES.get(func)
    shape = None if rule is None else rule(tuple(tensor.shape), *args)
    if shape is not None:
        return shape
    try:
        return tuple(func(as_meta(tensor), *map(as_meta, args), **kwargs).shape)
    except AssertionError as error:  # of a dimension, before torch 2.13
        raise IndexRangeError(f"Dimension out of range: {error}") from None


def _flip(shape: Shape, dims: Sequence[int]) -> Shape | None:
    return shape if _are_different(dims, len(shape)) else None


def _roll(shape: Shape, shifts: Any, dims: Any = ()) -> Shape | None:
    if type(shifts) is not list or type(dims) is not list or len(shifts) != max(len(dims), 1):
        return None
    return shape if _are_different(dims, len(shape)) else None


def _repeat(shape: Shape, repeats: Sequence[int]) -> Shape | None:
    new = len(repeats) - len(shape)
    if new < 0 or not all(type(count) is int and count >= 0 for count in repeats):
        return None
    return tuple([count * size for count, size in zip(repeats, (1,) * new + shape, strict=True)])


def _gather(shape: Shape, dim: int, index: torch.Tensor) -> Shape | None:
    return tuple(index.shape) if _is_inside(shape, dim, index) else None


def _index_select(shape: Shape, dim: int, index: torch.Tensor) -> Shape | None:
    rank = len(shape)
    if index.dtype not in (torch.int64, torch.int32) or index.dim() != 1 or not -rank <= dim < rank:
        return None
    dim %= rank
    return (*shape[:dim], index.shape[0], *shape[dim + 1 :])


def _scatter(shape: Shape, dim: int, index: torch.Tensor, value: Any) -> Shape | None:
    return shape if type(value) in (int, float) and _is_inside(shape, dim, index) else None


def _index_add(shape: Shape, dim: int, index: torch.Tensor, source: torch.Tensor) -> Shape | None:
    return shape if tuple(source.shape) == _index_select(shape, dim, index) else None


def _diag_embed(shape: Shape, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Shape | None:
    if not shape or (dim1, dim2) != (-2, -1):
        return None
    return (*shape[:-1], *(2 * (shape[-1] + abs(offset),)))


def _are_different(dims: Sequence[Any], rank: int) -> bool:
    """Whether these are different dimensions of a tensor."""
    if not all(type(dim) is int and -rank <= dim < rank for dim in dims):
        return False
    return len({dim % rank for dim in dims}) == len(dims)


def _is_inside(shape: Shape, dim: int, index: torch.Tensor) -> bool:
    """Whether an index along ``dim`` has at most the sizes of ``shape`` in the other dimensions."""
    rank = len(shape)
    if index.dtype != torch.int64 or index.dim() != rank or not -rank <= dim < rank:
        return False
    sizes = enumerate(zip(index.shape, shape, strict=True))
    return all(length <= size or number == dim % rank for number, (length, size) in sizes)


RULES: dict[Any, Callable[..., Shape | None]] = {
    aten.flip.default: _flip,
    aten.roll.default: _roll,
    aten.repeat.default: _repeat,
    aten.gather.default: _gather,
    aten.index_select.default: _index_select,
    aten.scatter.value: _scatter,
    aten.index_add.default: _index_add,
    aten.diag_embed.default: _diag_embed,
}
