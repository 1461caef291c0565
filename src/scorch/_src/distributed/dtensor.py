"""Convert this rank's rows to DTensors, whose rows are sharded evenly, and back."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.communication.agreement import sharing_errors
from scorch._src.distributed.communication.collectives import rank_in, size_of
from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.communication.route import Route
from scorch._src.distributed.cuts import owners_in
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.name_hints import suggests_keywords
from scorch.errors import ArgumentError, OperandError, ShapeError, kind_of

Tensor = torch.Tensor


@suggests_keywords
def to_dtensor(rows: Tensor, a: RowSharded, *, dim: int = 0) -> Any:
    """Return this rank's rows as a DTensor with placement ``Shard(0)``, chunked like ``torch.chunk``.

    Rows move to the ranks that own them in the DTensor; gradients move back. The DTensor has the rows in the
    order of ``a``, which after ``partition`` is not the original one.

    Args:
        rows: this rank's rows of a dense tensor.
        a: the sharded tensor that the rows belong to.
        dim: whether they belong to the rows (0) or the columns (1) of ``a``.

    Returns:
        A DTensor on the mesh of ``a``.

    Raises:
        ArgumentError: there is no process group, or ``dim`` is not 0 or 1.
        ShapeError: ``rows`` are not this rank's rows.

    Example::

        D = sd.to_dtensor(A @ x, A)  # a DTensor on the mesh of A
        y = sd.from_dtensor(D, A)    # this rank's rows again
    """
    from scorch._src.torch_internals import DTensor, Shard  # takes a second

    plan = _plan_of(a, dim)
    route = _route_of(plan)
    with sharing_errors(plan.group, "to_dtensor", a.device) if route.total else contextlib.nullcontext():
        plan.check("rows", rows)
    local = route.send(rows)
    shape = torch.Size([plan.extent, *rows.shape[1:]])
    stride = torch.empty(shape, device="meta").stride()
    placements = [Shard(0)]
    return DTensor.from_local(local, _mesh_of(a), placements, run_check=False, shape=shape, stride=stride)


@suggests_keywords
def from_dtensor(tensor: Any, a: RowSharded, *, dim: int = 0) -> Tensor:
    """Return this rank's rows of a DTensor with placement ``Shard(0)``; the inverse of ``to_dtensor``.

    Args:
        tensor: the DTensor.
        a: the sharded tensor that the rows belong to.
        dim: whether they belong to the rows (0) or the columns (1) of ``a``.

    Returns:
        This rank's rows.

    Raises:
        OperandError: ``tensor`` is not a DTensor.
        ArgumentError: the DTensor has another placement.
        ShapeError: the number of rows differs.

    Example::

        D = sd.to_dtensor(A @ x, A)  # a DTensor on the mesh of A
        y = sd.from_dtensor(D, A)  # this rank's rows again
    """
    from scorch._src.torch_internals import DTensor, Shard  # takes a second

    if not isinstance(tensor, DTensor):
        raise OperandError(f"from_dtensor expected a DTensor, but got {kind_of(tensor)}")
    plan = _plan_of(a, dim)
    if tuple(tensor.placements) != (Shard(0),):
        raise ArgumentError(
            f"the DTensor must have the placements (Shard(0),), but has {tuple(tensor.placements)}; "
            "redistribute it"
        )
    if tensor.shape[0] != plan.extent:
        raise ShapeError(f"the DTensor must have {plan.extent} rows, but has {tensor.shape[0]}")
    return _route_of(plan).send_back(tensor.to_local())


def _plan_of(a: RowSharded, dim: int) -> HaloPlan:
    if dim not in (0, 1):
        raise ArgumentError(f"dim must be 0 (the rows of the tensor) or 1 (its columns), but got {dim!r}")
    return a.columns if dim else a.rows


def _route_of(plan: HaloPlan) -> Route:
    """Return the route of rows from uneven shards to even ones."""
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
        raise ArgumentError(
            "a DTensor needs a process group; call torch.distributed.init_process_group first"
        )
    mesh = a.rows.kept.get("mesh")
    if mesh is None:
        mesh = a.rows.kept["mesh"] = DeviceMesh.from_group(a.group, a.device.type)
    return mesh
