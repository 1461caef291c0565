"""Sharded tensors from the entries of each rank, and entries that move to other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.distributed.communication.collectives import Group, gather_numbers, size_of
from scorch._src.distributed.communication.halo import HaloPlan, Order
from scorch._src.distributed.communication.route import Route
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.formats.format import as_format
from scorch._src.tensor.create.torch_constructors import sparse_coo_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError

Tensor = torch.Tensor


def check_sparse_format(format: Any, dims: int) -> None:
    """Refuse a dense format for local shards."""
    if as_format(format, dims).is_dense:
        raise ArgumentError(f"format must be sparse, but {format!r} is dense")


def from_entries(
    crd: Sequence[Tensor],
    values: Tensor,
    shape: Sequence[int],
    rows: Tensor,
    columns: Tensor,
    group: Group,
    format: Any,
    mesh: Any = None,
    orders: tuple[Order | None, Order | None] = (None, None),
) -> RowSharded:
    """Build a sharded tensor from the entries of each rank, given by their global coordinates.

    ``orders`` are those of rows and columns, where they were partitioned.
    """
    row_plan = HaloPlan(crd[0].unique(), rows, group, orders[0])
    column_plan = HaloPlan(crd[1].unique(), columns, group, orders[1])
    places = torch.stack([row_plan.to_local(crd[0]), column_plan.to_local(crd[1]), *crd[2:]])
    size = (row_plan.size, column_plan.size, *shape[2:])
    local = sparse_coo_tensor(places, values, size, format=format)
    assert isinstance(local, SparseTensor)
    result = RowSharded(local, row_plan, column_plan, mesh)
    counts = [count for (count,) in gather_numbers([len(values)], group, row_plan.ghosts)]
    result.spread = sum(counts), max(counts)
    return result


def move_entries(a: RowSharded, owners: Tensor) -> RowSharded:
    """Return a tensor whose entries, as ``entries`` lists them, are on other ranks, differentiably."""
    crd, values = a.entries()
    order = torch.argsort(owners, stable=True)
    sent = torch.bincount(owners, minlength=size_of(a.group)).tolist()
    route = Route(order, sent, len(order), a.group)
    places = route.send(torch.stack(crd, 1))
    moved = from_entries(
        list(places.t().contiguous()),
        route.send(values),
        a.shape,
        a.rows.cuts,
        a.columns.cuts,
        a.group,
        a.format,
        a.mesh,
        (a.rows.order, a.columns.order),
    )
    moved.use_options_by_rows(a)
    return moved
