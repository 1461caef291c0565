"""Reductions over the stored elements of rows and columns, with torch_sparse's names."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING

from torch import Tensor

from scorch.compat.torch_sparse.check_source import takes_compat
from scorch.compat.torch_sparse.forms import filled
from scorch.compat.torch_sparse.storage import combine

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor


@takes_compat
def reduction(src: SparseTensor, dim: int | None = None, reduce: str = "sum") -> Tensor:
    """Reduce the stored elements of each column (0) or row (1), along a dimension of the values, or all.

    Args:
        src: the matrix.
        dim: the dimension; None reduces all values.
        reduce: ``"sum"``, ``"mean"``, ``"min"`` or ``"max"``.
    """
    value, reduce = filled(src), "sum" if reduce == "add" else reduce
    if dim is None:
        return methodcaller(reduce)(value)  # type: ignore[no-any-return]
    dim = dim + src.dim() if dim < 0 else dim
    if dim in (0, 1):
        place = src.storage.col() if dim == 0 else src.storage.row()
        return combine(value, place, src.sparse_size(1 - dim), reduce)
    name = {"min": "amin", "max": "amax"}.get(reduce, reduce)
    return methodcaller(name, dim=dim - 1)(value)  # type: ignore[no-any-return]


def _reducer(reduce: str, what: str) -> Callable[..., Tensor]:
    def method(src: SparseTensor, dim: int | None = None) -> Tensor:
        return reduction(src, dim, reduce)

    method.__name__, method.__qualname__, method.__doc__ = reduce, reduce, what
    return method


sum = _reducer("sum", "The sum of stored values.")
mean = _reducer("mean", "The mean of stored values.")
min = _reducer("min", "The least stored value, 0 where none is stored.")
max = _reducer("max", "The largest stored value, 0 where none is stored.")
