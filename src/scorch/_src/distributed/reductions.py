"""Reductions of sharded tensors: sums, means, norms and softmax."""

from __future__ import annotations

import numbers
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.calls import rule
from scorch._src.distributed.communication.collectives import Group
from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.communication.replicate import largest_over, sum_over
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.distributed.sums import sum_processes
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.coordinates import coordinates
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, OperandError, ShapeError, UnsupportedError

Tensor = torch.Tensor


@rule(torch.sum)
def sum(a: RowSharded, dim: Any = None) -> Any:
    if dim is None:
        return sum_processes(a.local.sum(), a.group)
    dim = _dim_of(a, dim)
    plan = a.rows if dim == 1 else a.columns
    sums = a.local.sum(dim)
    return plan.fold(sums.to_dense() if isinstance(sums, SparseTensor) else sums, a.wire)


def _dim_of(a: RowSharded, dim: Any) -> int:
    if a.ndim != 2:
        raise UnsupportedError(
            "reductions along a dimension are supported only for matrices; use scorch.distributed.einsum"
        )
    dims = [dim] if isinstance(dim, int) else list(dim)
    if len(dims) != 1 or not -2 <= dims[0] < 2:
        raise ShapeError(
            f"dim must be 0 (along columns) or 1 (along rows) for a sharded matrix, but got {dim!r}"
        )
    return int(dims[0]) % 2


def _check_dtype(name: str, function: Any, a: RowSharded) -> None:
    """Refuse entries of a dtype that PyTorch's function does not support."""
    try:
        function(torch.zeros(1, dtype=a.dtype, device=HOST))
    except RuntimeError as error:
        raise CallError(f"{name}: {error}") from None


@rule(torch.mean)
def mean(a: RowSharded, dim: Any = None) -> Any:
    _check_dtype("mean", torch.mean, a)
    if dim is None:
        return sum(a) / torch.Size(a.shape).numel()
    return sum(a, dim) / a.shape[_dim_of(a, dim)]


@rule(torch.norm)
def norm(a: RowSharded, p: Any = "fro") -> Tensor:
    result: Tensor = vector_norm(a, 2 if p in ("fro", None) else p)
    return result


@rule(torch.linalg.norm)
def matrix_norm(a: RowSharded, ord: Any = None) -> Tensor:
    if ord not in ("fro", None):
        raise UnsupportedError(
            f"torch.linalg.norm(A, {ord!r}) is a matrix norm, which is not supported for sharded tensors; "
            "for a norm over all entries, use torch.linalg.vector_norm(A, p) or A.norm(p)"
        )
    result: Tensor = vector_norm(a)
    return result


@rule(torch.linalg.vector_norm)
def vector_norm(a: RowSharded, ord: Any = 2) -> Tensor:
    _check_dtype("norm", torch.linalg.vector_norm, a)
    values = values_of(a.local)
    if ord == float("inf"):
        return _largest_magnitude(values, a.group)
    if not isinstance(ord, numbers.Real) or ord <= 0:
        raise UnsupportedError(
            f"norms of sharded tensors must have a positive order, or inf, but got {ord!r}"
        )
    power = float(ord)
    if power < 1:
        values = values[values != 0]  # where the slope has no end
    total = sum_processes(values.abs().pow(power).sum(), a.group)
    is_zero = total == 0
    return torch.where(is_zero, 0, torch.where(is_zero, 1, total) ** (1 / power))


def _largest_magnitude(values: Tensor, group: Group) -> Tensor:
    """Return the largest magnitude over all ranks; all entries that have it share the gradient."""
    sizes = values.abs()
    largest = sizes.detach().amax() if sizes.numel() else sizes.new_zeros(())
    largest = largest_over(largest, group)
    if not (torch.is_grad_enabled() and values.requires_grad):
        return largest
    sizes = sizes[sizes.detach() == largest]
    count = sum_over(torch.tensor(len(sizes), device=sizes.device), group)
    mean = sum_processes(sizes.sum(), group) / count
    return largest + (mean - mean.detach())


@suggests_keywords
@rule(torch.sparse.softmax)
def softmax(a: RowSharded, dim: int) -> RowSharded:
    """Return the softmax over the stored elements of each row or column; implicit zeros are ignored.

    Args:
        a: a sharded matrix.
        dim: 1 for the softmax of each row, 0 for that of each column.

    Returns:
        A sharded matrix with the sparsity pattern of ``a``.

    Raises:
        ShapeError: ``dim`` is neither 0 nor 1.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.tensor([[1.0, 1.0], [0.0, 3.0]]), format="csr"))
        >>> sd.softmax(A, 1).gather().to_dense()
        tensor([[0.5000, 0.5000],
                [0.0000, 1.0000]])
    """
    if not a.dtype.is_floating_point:
        raise OperandError(f"softmax expected floating-point values, but got {a.dtype}; use .float()")
    return _softmax_rows(a) if _dim_of(a, dim) == 1 else _softmax_rows(a.T).T


def _softmax_rows(a: RowSharded) -> RowSharded:
    if a.rows.is_local:
        return a.map_local(torch.sparse.softmax, 1)
    pattern, values = a.local.storage.pattern, values_of(a.local)
    rows = coordinates(pattern, [0])[0].to(torch.int64)
    shifted = torch.exp(values - _largest(values.detach(), rows, a.rows)[rows])
    sums = torch.zeros(a.rows.size, dtype=values.dtype, device=values.device).index_add(0, rows, shifted)
    (everywhere,) = a.rows.extend([a.rows.fold(sums)])
    return a.with_local(sparse_of(pattern, shifted / everywhere[rows]))


def _largest(values: Tensor, rows: Tensor, plan: HaloPlan) -> Tensor:
    """Return the largest value of each row over all ranks, for the rows that this rank has."""
    least = torch.full((plan.size,), -torch.inf, dtype=values.dtype, device=values.device)
    parts = least.scatter_reduce(0, rows, values, "amax")
    own, route = parts[: plan.own], plan.route
    returned = route.start_back(parts[plan.own :]).wait()
    whole = own.scatter_reduce(0, route.picks.to(own.device), returned, "amax")
    (everywhere,) = plan.extend([whole])
    return everywhere
