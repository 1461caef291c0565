"""Rows of this process to DTensors, whose rows are cut evenly, and back."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.collectives import rank_in, size_of
from scorch._src.distributed.cuts import owners_in
from scorch._src.distributed.halo import HaloPlan
from scorch._src.distributed.route import Route
from scorch._src.distributed.row_sharded import RowSharded
from scorch.errors import ArgumentError, OperandError, ShapeError

Tensor = torch.Tensor


def to_dtensor(rows: Tensor, a: RowSharded, *, dim: int = 0) -> Any:
    """Return this process's rows as a DTensor, cut evenly (``Shard(0)``) as ``torch.chunk`` cuts.

    ``dim``: whether they are rows for the rows of ``a`` (0) or for its columns (1). Rows move to the
    processes that have them then; gradients move back.
    """
    from scorch._src.torch_internals import DTensor, Shard  # takes a second

    plan = _plan_of(a, dim)
    plan.check("rows", rows)
    local = _route_of(plan).send(rows)
    shape = torch.Size([plan.extent, *rows.shape[1:]])
    stride = torch.empty(shape, device="meta").stride()
    placements = [Shard(0)]
    return DTensor.from_local(local, _mesh_of(a), placements, run_check=False, shape=shape, stride=stride)


def from_dtensor(tensor: Any, a: RowSharded, *, dim: int = 0) -> Tensor:
    """Return this process's rows of a DTensor whose rows are cut evenly (``Shard(0)``)."""
    from scorch._src.torch_internals import DTensor, Shard  # takes a second

    if not isinstance(tensor, DTensor):
        raise OperandError(f"from_dtensor takes a DTensor, not a {type(tensor).__name__}")
    plan = _plan_of(a, dim)
    if tuple(tensor.placements) != (Shard(0),):
        raise ArgumentError(
            f"the DTensor has the placements {tuple(tensor.placements)}; redistribute it to (Shard(0),) first"
        )
    if tensor.shape[0] != plan.extent:
        raise ShapeError(f"the DTensor has {tensor.shape[0]} rows; {plan.extent} are sharded")
    return _route_of(plan).send_back(tensor.to_local())


def _plan_of(a: RowSharded, dim: int) -> HaloPlan:
    if dim not in (0, 1):
        raise ArgumentError(f"dim is {dim!r}; rows are for the rows (0) or for the columns (1) of the tensor")
    return a.columns if dim else a.rows


def _route_of(plan: HaloPlan) -> Route:
    """Return the way of rows from uneven shares to even ones."""
    found: Route | None = plan.kept.get("even")
    if found is None:
        parts, rank = size_of(plan.group), rank_in(plan.group)
        each = max(-(-plan.extent // parts), 1)
        even = torch.arange(parts + 1, device=HOST).mul(each).clamp(max=plan.extent)
        numbers = torch.arange(plan.begin, plan.end, device=plan.ghosts.device)
        sent = torch.bincount(numbers // each, minlength=parts).tolist()
        here = torch.arange(int(even[rank]), int(even[rank + 1]), device=HOST)
        received = torch.bincount(owners_in(here, plan.cuts), minlength=parts).tolist()
        found = plan.kept["even"] = Route(numbers - plan.begin, sent, plan.own, plan.group, received)
    return found


def _mesh_of(a: RowSharded) -> Any:
    from scorch._src.torch_internals import DeviceMesh  # takes a second

    if hasattr(a.mesh, "get_group"):
        return a.mesh
    if a.group is None:
        raise ArgumentError("DTensors need a process group: call torch.distributed.init_process_group first")
    mesh = a.rows.kept.get("mesh")
    if mesh is None:
        mesh = a.rows.kept["mesh"] = DeviceMesh.from_group(a.group, a.device.type)
    return mesh
