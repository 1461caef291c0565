"""Sharded tensors from whole tensors, from the rows of each rank, and from entries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from scorch._src.devices import HOST
from scorch._src.distributed.algorithms.choose import check_algorithm, with_algorithm
from scorch._src.distributed.communication.agreement import agree, validating
from scorch._src.distributed.communication.collectives import Group, gather_numbers, rank_in, size_of
from scorch._src.distributed.cuts import as_cuts, check_split, cut_by_work, cut_evenly, owners_in
from scorch._src.distributed.entries import check_sparse_format, from_entries
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.create.check import sparse_advice_on
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, OperandError, ShapeError, kind_of, warn

Tensor = torch.Tensor


def group_of(mesh: Any) -> Group:
    """Return the process group of a 1-D mesh or of a group; None without any."""
    if mesh is None:
        if dist.is_available() and dist.is_initialized():
            return dist.group.WORLD
        _warn_about_other_ranks()
        return None
    if hasattr(mesh, "get_group"):
        if mesh.ndim != 1:
            raise ArgumentError(f"the mesh must be 1-D, such as mesh['rows'], but has {mesh.ndim} dimensions")
        return mesh.get_group()
    if not isinstance(mesh, dist.ProcessGroup):
        raise OperandError(
            "mesh must be a device mesh, as scorch.distributed.init() returns it, or a process group, but "
            f"got {mesh!r}"
        )
    return mesh


def _warn_about_other_ranks() -> None:
    """Warn if ``torchrun`` started other processes too, each of which would work on its own."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ and ranks.isdigit() and int(ranks) > 1:
        warn(
            f"there is no process group, so this process works alone, although torchrun started {ranks} "
            "processes; call scorch.distributed.init() first"
        )


def device_of(mesh: Any, group: Group, given: Any = None) -> torch.device | None:
    """Return the device that the user names, that of a mesh, or the only one that a group supports.

    None means that tensors stay where they are.
    """
    if given is not None:
        return torch.device(given)
    if hasattr(mesh, "device_type"):
        kind = torch.device(mesh.device_type)
        if kind != HOST:
            kind = torch.device(kind.type, torch.accelerator.current_device_index())
        return kind
    serves_one = group is not None and dist.get_backend(group) == dist.Backend.NCCL
    return torch.accelerator.current_accelerator(check_available=True) if serves_one else None


def _moved(tensor: SparseTensor, device: torch.device | None) -> SparseTensor:
    moved: Any = tensor if device is None else tensor.to(device)
    return moved  # type: ignore[no-any-return]


@suggests_keywords
def shard(
    tensor: SparseTensor,
    mesh: Any = None,
    *,
    rows: Any = None,
    columns: Any = None,
    format: Any = None,
    split: bool | int = False,
    algorithm: str = "halo",
    replicas: int | None = None,
    wire: torch.dtype | None = None,
    device: Any = None,
) -> RowSharded:
    """Shard the rows of a sparse tensor that every rank has.

    Args:
        tensor: the sparse tensor, the same on all ranks.
        mesh: a 1-D ``DeviceMesh`` or a process group; all ranks by default.
        rows: where the rows of each rank begin, as ``cuts`` returns; by default, shards have about the same
            work.
        columns: where the columns of each rank begin; those of a square matrix are those of its rows.
        format: the format of the local shards; that of the tensor by default.
        split: whether to split rows that have more entries than an even share (or than this number) over
            ranks.
        algorithm: how products communicate, as in ``with_algorithm``; ``"auto"`` is the fastest by the cost
            model.
        replicas: the number of replicas for ``algorithm="1.5d"``.
        wire: a narrower dtype for rows on the wire, such as ``torch.bfloat16``.
        device: the device of the local shard; by default that of the mesh, or of the tensor.

    Returns:
        A ``RowSharded`` tensor.

    Raises:
        OperandError: ``tensor`` is not a ``SparseTensor``.
        CommunicationError: ranks pass different sparsity patterns, dtypes or options. Values are not
            compared: each rank takes those of its own rows.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.eye(3), format="csr"))  # one process
        >>> A.shape, A.format
        ((3, 3), Format('csr'))
    """
    group = group_of(mesh)
    with validating(group, "shard"):
        check_sparse("shard", tensor)
        check_options(tensor, format, split, algorithm, wire)
        tensor = _moved(tensor, device_of(mesh, group, device))
        crd, places = numbered_entries(tensor.storage.pattern)
        wide = [column.to(torch.int64) for column in crd]
        row_cuts, column_cuts = _both_cuts(wide[0], tensor.shape, rows, columns, size_of(group))
    options = {"columns": column_cuts.tolist(), "split": split, "wire": wire}
    facts = tuple(tensor.shape), str(tensor.dtype), tensor.nnz, row_cuts.tolist(), options, _checksum(wide)
    agree(group, "shard", facts, _facts)
    owners = owners_of(wide, row_cuts, column_cuts, split)
    mine = owners == rank_in(group)
    result = from_entries(
        [column[mine] for column in wide],
        values_of(tensor)[places[mine]],
        tuple(tensor.shape),
        row_cuts,
        column_cuts,
        group,
        tensor.format if format is None else format,
        mesh,
    )
    result.split = split
    return with_options(result, algorithm, wire, replicas)


def _facts(facts: Any) -> str:
    shape, dtype, nnz, cuts, options, checksum = facts
    return (
        f"a tensor of shape {shape}, dtype {dtype}, {nnz} entries, cuts {cuts} and "
        f"{', '.join(f'{name}={value}' for name, value in options.items())} (its pattern has the checksum "
        f"{checksum:x})"
    )


def _checksum(crd: Sequence[Tensor]) -> int:
    """Return a number that differs, most likely, for another set of coordinates."""
    mixed = torch.zeros_like(crd[0])
    for column in crd:
        mixed = (mixed + column + 1) * -7046029254386353131
        mixed = mixed ^ (mixed >> 29)
    return int(mixed.sum()) & 0xFFFFFFFF


def check_sparse(what: str, tensor: Any) -> None:
    """Refuse what cannot be sharded."""
    if not isinstance(tensor, SparseTensor):
        is_sharded = isinstance(tensor, RowSharded)
        advice = "it is sharded already" if is_sharded else sparse_advice_on(tensor)
        raise OperandError(f"{what} expected a SparseTensor, but got {kind_of(tensor)}; {advice}")
    if tensor.dim() < 2:
        raise ShapeError(f"{what} expected at least 2 dimensions, but got {tensor.dim()}")


def check_options(tensor: SparseTensor, format: Any, split: bool | int, algorithm: str, wire: Any) -> None:
    """Refuse options that a sharded tensor cannot have."""
    check_sparse_format(tensor.format if format is None else format, tensor.dim())
    check_split(split)
    check_algorithm(algorithm)
    check_wire(wire)


def check_wire(wire: Any) -> None:
    """Refuse a dtype that rows cannot have on the wire."""
    if wire is not None and not (isinstance(wire, torch.dtype) and wire.is_floating_point):
        raise ArgumentError(f"wire must be a floating-point dtype such as torch.bfloat16, but got {wire!r}")


def with_options(
    result: RowSharded, algorithm: str, wire: torch.dtype | None, replicas: int | None = None
) -> RowSharded:
    """Set how a sharded tensor exchanges rows."""
    result.wire = wire
    return with_algorithm(result, algorithm, replicas=replicas)


def _both_cuts(
    rows: Tensor, shape: Sequence[int], row_cuts: Any, column_cuts: Any, parts: int
) -> tuple[Tensor, Tensor]:
    if row_cuts is None:
        row_cuts = cut_by_work(torch.bincount(rows, minlength=shape[0]), parts)
    found = as_cuts("rows", row_cuts, shape[0], parts)
    if column_cuts is not None:
        return found, as_cuts("columns", column_cuts, shape[1], parts)
    return found, found if shape[0] == shape[1] else cut_evenly(shape[1], parts)


def owners_of(crd: Sequence[Tensor], rows: Tensor, columns: Tensor, split: bool | int) -> Tensor:
    """Return the rank of each entry: that of its row, or of its column if its row is split."""
    owners = owners_in(crd[0], rows)
    if split is False:
        return owners
    parts = len(rows) - 1
    most = -(-len(crd[0]) // parts) if split is True else split
    is_long = torch.bincount(crd[0], minlength=int(rows[-1])) > most
    return torch.where(is_long[crd[0]], owners_in(crd[1], columns), owners)


@suggests_keywords
def shard_rows(
    local: SparseTensor, mesh: Any = None, *, columns: Any = None, format: Any = None, algorithm: str = "halo"
) -> RowSharded:
    """Build a sharded tensor from the rows of each rank, with global columns.

    Args:
        local: the rows of this rank; the rows of the previous rank come before them.
        mesh: a 1-D ``DeviceMesh`` or a process group; all ranks by default.
        columns: where the columns of each rank begin; those of a square matrix are those of its rows.
        format: the format of the local shards; that of ``local`` by default.
        algorithm: how products communicate, as in ``with_algorithm``.

    Returns:
        A ``RowSharded`` tensor.

    Raises:
        OperandError: ``local`` is not a sparse tensor.
        ArgumentError: ``algorithm`` is unknown.
        CommunicationError: the ranks disagree about the columns or the dtype, or a rank is lost.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> sd.shard_rows(scorch.from_torch(torch.eye(3), format="csr")).shape  # one process
        (3, 3)
    """
    group = group_of(mesh)
    with validating(group, "shard_rows"):
        check_sparse("shard_rows", local)
        check_options(local, format, False, algorithm, None)
        local = _moved(local, device_of(mesh, group))
    shape = tuple(local.shape)
    crd, places = numbered_entries(local.storage.pattern)
    wide = [column.to(torch.int64) for column in crd]
    counts = [count for (count,) in gather_numbers([shape[0]], group, wide[0])]
    cuts = torch.tensor([0, *counts], dtype=torch.int64, device=HOST).cumsum(0)
    agree(
        group, "shard_rows", (shape[1:], str(local.dtype)), lambda facts: f"columns {facts[0]} of {facts[1]}"
    )
    total = int(cuts[-1])
    with validating(group, "shard_rows"):
        _, column_cuts = _both_cuts(wide[0], (total, *shape[1:]), cuts, columns, len(counts))
    agree(group, "shard_rows", column_cuts.tolist(), lambda found: f"columns={found}")
    wide[0] = wide[0] + int(cuts[rank_in(group)])
    form = local.format if format is None else format
    result = from_entries(
        wide, values_of(local)[places], (total, *shape[1:]), cuts, column_cuts, group, form, mesh
    )
    return with_options(result, algorithm, None)
