"""Products of sharded tensors: with dense rows, and with each other."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from typing import Any

import torch

from scorch._src.distributed.algorithms.exchanged import (
    Exchanged,
    product,
    sampled_product,
    transposed_product,
)
from scorch._src.distributed.algorithms.features import multiply_by_features
from scorch._src.distributed.algorithms.schedules import AtOnce, PeerByPeer, Schedule
from scorch._src.distributed.align import check_same_cuts
from scorch._src.distributed.calls import rule
from scorch._src.distributed.communication.agreement import sharing_errors
from scorch._src.distributed.communication.budget import one_call
from scorch._src.distributed.communication.collectives import row_bytes
from scorch._src.distributed.communication.halo import HaloPlan, check_dense
from scorch._src.distributed.communication.route import Route, narrower, tracked_of
from scorch._src.distributed.cost_model.plan import Plan
from scorch._src.distributed.repartition import repartition
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.events import LISTENERS, emit
from scorch._src.name_hints import suggests_keywords
from scorch._src.statements.autocast import cast, is_autocast
from scorch._src.storage.coordinates import joined_ranges, numbered_entries
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.create.torch_constructors import sparse_coo_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, ShapeError

Tensor = torch.Tensor
OVERLAP_BYTES = 1 << 20  # received by one rank, from which on own entries are multiplied meanwhile


@suggests_keywords
@rule(torch.matmul, torch.mm, torch.mv)
def matmul(a: Any, b: Any) -> Any:
    """Return ``a @ b`` where one or both operands are sharded.

    Args:
        a: a sharded tensor, or a dense tensor with the columns that belong to this rank's rows of ``b``.
        b: a sharded tensor, or a dense tensor with the rows that belong to this rank's columns of ``a``.

    Returns:
        This rank's rows of the product (columns, if ``a`` is dense), or a sharded tensor if both operands are
        sharded.

    Raises:
        OperandError: neither operand is sharded.
        ShapeError: a dense operand does not have the rows of this rank.
        CommunicationError: a rank is lost, or an exchange would exceed the exchange budget.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.eye(2), format="csr"))
        >>> sd.matmul(A, torch.ones(2, 1))
        tensor([[1.],
                [1.]])
    """
    if isinstance(a, RowSharded):
        return multiply_sharded(a, b) if isinstance(b, RowSharded) else multiply(a, b)
    if b.ndim != 2 or a.dim() > 2:
        raise ShapeError(
            f"products with a {b.ndim}-D sharded tensor are not supported; use scorch.distributed.einsum"
        )
    flipped = multiply(b.T, a if a.dim() == 1 else a.t())
    return flipped if a.dim() == 1 else flipped.t()


@one_call
def multiply(a: RowSharded, x: Tensor) -> Tensor:
    """Return this rank's rows of ``a @ x``, given its rows of ``x``."""
    if a.ndim != 2:
        raise ShapeError(
            f"products with a {a.ndim}-D sharded tensor are not supported; use scorch.distributed.einsum"
        )
    if is_autocast():
        local, x = cast(a.local, x)
        a = a if local is a.local else a.with_local(local)
    with sharing_errors(a.group, "exchange of x", a.device) if _exchanges(a) else contextlib.nullcontext():
        _check_operand(a, x)
    start = time.perf_counter()
    result = _multiply(a, x)
    if LISTENERS:
        emit("product", a.plan.at(features=math.prod(x.shape[1:])), (), None, start)
    return result


def _exchanges(a: RowSharded) -> bool:
    """Return whether ranks exchange rows for products with a tensor."""
    return a.algorithm == "features" or not (a.columns.is_local and a.rows.is_local)


def _check_operand(a: RowSharded, x: Any) -> None:
    check_dense("x", x)
    if x.dim() not in (1, 2):
        raise ShapeError(
            f"x must be 1-D or 2-D to be multiplied by a sharded matrix, but has {x.dim()} dimensions"
        )
    a.columns.check("x", x)
    if x.dtype != a.dtype:
        raise CallError(f"matmul: expected both to have the same dtype, but got: {a.dtype} != {x.dtype}")


def _multiply(a: RowSharded, x: Tensor) -> Tensor:
    if a.algorithm == "features":
        return multiply_by_features(a, x)
    route, dim = (a.rows.route, 0) if a.columns.is_local else (a.columns.route, 1)
    schedule = _schedule_of(a, x, route)
    if schedule is not None:
        return _multiply_exchanged(a, x, Exchanged(a.local.storage.pattern, schedule, a.wire, dim))
    (extended,) = a.columns.extend([x], a.wire)
    return a.rows.fold(a.local @ extended, a.wire)


def _schedule_of(a: RowSharded, x: Tensor, route: Route) -> Schedule | None:
    """Return how rows are exchanged while others are multiplied, if that is worthwhile."""
    if not route.total:
        return None
    tracked = tracked_of(A=a.local, x=x)
    if a.algorithm == "rounds":
        return PeerByPeer(route, tracked)
    is_large = route.most * row_bytes(x, narrower(x, a.wire)) >= OVERLAP_BYTES
    return AtOnce(route, tracked) if is_large else None


def _multiply_exchanged(a: RowSharded, x: Tensor, how: Exchanged) -> Tensor:
    values, wide = values_of(a.local), x if x.dim() == 2 else x[:, None]
    if how.dim == 0:
        result = transposed_product(how, values, wide)
    else:
        result = a.rows.fold(product(how, values, wide), a.wire)
    return result if x.dim() == 2 else result[:, 0]


def sample(a: RowSharded, q: Tensor, x: Tensor) -> RowSharded:
    """Return the entries of ``a`` times the products of rows of ``q`` and ``x``, peer by peer.

    This is ``einsum("ij,ik,jk->ij", a, q, x)`` in rounds: rows of ``x`` are fetched, used and freed.
    """
    with sharing_errors(a.group, "exchange of x", a.device) if _exchanges(a) else contextlib.nullcontext():
        a.rows.check("q", q)
        a.columns.check("x", x)
    dtype = torch.promote_types(a.dtype, torch.promote_types(q.dtype, x.dtype))
    schedule = PeerByPeer(a.columns.route, tracked_of(q=q, x=x))
    how = Exchanged(a.local.storage.pattern, schedule, a.wire, 1)
    start = time.perf_counter()
    scores = sampled_product(how, q.to(dtype), x.to(dtype))
    if LISTENERS:
        emit("product", a.plan.at(features=math.prod(x.shape[1:])), (), None, start)
    return a.with_local(sparse_of(how.pattern, values_of(a.local).to(dtype) * scores))


def multiply_sharded(a: RowSharded, b: RowSharded) -> RowSharded:
    """Return the sparse product; rows of ``b`` that entries of ``a`` need are fetched."""
    if a.ndim != 2 or b.ndim != 2:
        raise ShapeError("both sharded tensors of a product must be matrices")
    if a.shape[1] != b.shape[0]:
        raise ShapeError(f"matrices of shapes {a.shape} and {b.shape} cannot be multiplied")
    check_same_cuts("columns of the first and rows of the second", a.columns, b.rows)
    # Entries of rows that are split, as all of a transposed tensor are, go to the owners of these first.
    a, b = (repartition(tensor) if tensor.has_split_rows else tensor for tensor in (a, b))
    start = time.perf_counter()
    local, columns = _with_fetched_rows(b, a.columns)
    made = a.local @ local
    if LISTENERS:
        emit("product", _plan_of_fetched(a, b, local), (), None, start)
    if not isinstance(made, SparseTensor):
        made = made.to_sparse()
    result = RowSharded(made, a.rows, columns, a.mesh)
    result.use_options_by_rows(a)
    return result


def _plan_of_fetched(a: RowSharded, b: RowSharded, local: SparseTensor) -> Plan:
    """Return the plan of a product with a sparse tensor: rows are as wide as they are on average."""
    fetched = local.nnz - b.local.nnz
    entry = torch.int64.itemsize + b.dtype.itemsize
    wide = -(-fetched * entry // (max(a.columns.route.incoming, 1) * a.dtype.itemsize))
    return dataclasses.replace(a.plan.at(features=max(wide, 1)), algorithm="halo", wire=None)


def _with_fetched_rows(b: RowSharded, wanted: HaloPlan) -> tuple[SparseTensor, HaloPlan]:
    """Return ``b`` with the halo rows of a plan below its own, and the plan of its columns."""
    (rows, crd), places = numbered_entries(b.local.storage.pattern)
    order = torch.argsort(rows.to(torch.int64), stable=True)
    rows, crd, places = rows.to(torch.int64)[order], crd.to(torch.int64)[order], places[order]
    begins = torch.zeros(b.rows.own + 1, dtype=torch.int64, device=rows.device)
    begins[1:] = torch.bincount(rows, minlength=b.rows.own).cumsum(0)
    lengths = begins.diff()
    picks = joined_ranges(begins[wanted.route.picks], lengths[wanted.route.picks])
    counts = _sums_of_runs(lengths[wanted.route.picks], wanted.route.sent)
    route = Route(picks, counts, len(rows), b.group)
    values = values_of(b.local)[places]
    columns = b.columns.to_global(crd)
    fetched_columns, fetched_values = route.send(columns), route.send(values, b.wire)
    fetched_lengths = wanted.route.send(lengths)
    ghost_rows = torch.repeat_interleave(
        torch.arange(b.rows.own, b.rows.own + len(fetched_lengths), device=rows.device), fetched_lengths
    )
    everything = torch.cat([columns, fetched_columns])
    plan = HaloPlan(everything.unique(), b.columns.cuts, b.group, b.columns.order)
    places_of = torch.stack([torch.cat([rows, ghost_rows]), plan.to_local(everything)])
    shape = b.rows.own + len(fetched_lengths), plan.size
    local = sparse_coo_tensor(places_of, torch.cat([values, fetched_values]), shape, format="csr")
    assert isinstance(local, SparseTensor)
    return local, plan


def _sums_of_runs(lengths: Tensor, runs: list[int]) -> list[int]:
    """Return the sum of each run of numbers, of as many as ``runs`` says."""
    parts = torch.split(lengths, runs)
    return [int(part.sum()) for part in parts]
