"""Align sharded tensors to one numbering of rows and columns, so that their local shards fit together.

Entries at the same coordinates have to be on the same rank. Entries are at the owners of their rows, unless
rows are split: then those of a row that is split in one of the tensors go to the owners of their columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.distributed.communication.agreement import all_say
from scorch._src.distributed.communication.collectives import rank_in
from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.cuts import block_owners, owners_in
from scorch._src.distributed.entries import move_entries
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.create.torch_constructors import sparse_coo_tensor
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError

Tensor = torch.Tensor


def same_plans(tensors: Sequence[RowSharded]) -> list[RowSharded]:
    """Return tensors whose local shards have the same numbers of rows and columns, and entries at the same
    coordinates on the same ranks; the cuts must be the same.
    """
    first = tensors[0]
    if all(other.rows is first.rows and other.columns is first.columns for other in tensors):
        return list(tensors)
    for other in tensors[1:]:
        check_same_cuts("rows", first.rows, other.rows)
        check_same_cuts("columns", first.columns, other.columns)
    tensors = _together(tensors)
    rows = joint_plan([tensor.rows for tensor in tensors])
    columns = joint_plan([tensor.columns for tensor in tensors])
    return [renumber(tensor, rows, columns) for tensor in tensors]


def _together(tensors: Sequence[RowSharded]) -> Sequence[RowSharded]:
    """Return tensors whose entries at the same coordinates are on the same ranks."""
    first = tensors[0]
    if not any(tensor.has_split_rows for tensor in tensors):
        return tensors
    if first.replicas > 1 and all(_is_in_blocks(tensor, first.replicas) for tensor in tensors):
        return tensors
    is_split = torch.zeros(first.rows.own, dtype=torch.int64, device=first.rows.ghosts.device)
    for tensor in tensors:
        is_split += tensor.rows.fold(_at_halo(tensor.rows))
    return [_move_split_rows(tensor, is_split) for tensor in tensors]


def _is_in_blocks(tensor: RowSharded, replicas: int) -> bool:
    """Return whether groups of ranks share the entries of their rows, as ``"1.5d"`` distributes them."""
    (rows, columns, *_), _ = tensor.entries()
    owners = block_owners(rows, columns, tensor.rows.cuts, tensor.columns.cuts, replicas)
    is_own = tensor.replicas == replicas and bool((owners == rank_in(tensor.group)).all())
    return all_say(is_own, tensor.group, tensor.rows.ghosts)


def _at_halo(plan: HaloPlan) -> Tensor:
    """Return one for each halo row of a rank, and zero for its own rows."""
    return (torch.arange(plan.size, device=plan.ghosts.device) >= plan.own).to(torch.int64)


def _move_split_rows(tensor: RowSharded, is_split: Tensor) -> RowSharded:
    """Return a tensor with the entries of some rows at the owners of their columns, and others at home."""
    (everywhere,) = tensor.rows.extend([is_split])
    (rows, columns, *_), _ = tensor.entries()
    splits = everywhere[tensor.rows.to_local(rows)] > 0
    by_column, by_row = owners_in(columns, tensor.columns.cuts), owners_in(rows, tensor.rows.cuts)
    moved = move_entries(tensor, torch.where(splits, by_column, by_row))
    moved.split = tensor.split
    return moved


def check_same_cuts(name: str, one: HaloPlan, other: HaloPlan) -> None:
    """Refuse two tensors whose rows or columns are owned by different ranks."""
    if not torch.equal(one.cuts, other.cuts):
        raise ShapeError(
            f"the {name} of two sharded tensors are cut differently, {one.cuts.tolist()} and "
            f"{other.cuts.tolist()}; give both the same cuts with scorch.distributed.repartition"
        )
    if not one.has_owners_of(other):
        raise ShapeError(
            f"the {name} of two sharded tensors are in different orders, because they were partitioned "
            "differently; pass the same owners to scorch.distributed.repartition for both"
        )


def joint_plan(plans: Sequence[HaloPlan]) -> HaloPlan:
    """Return a plan with the halos of all plans, which have the same cuts."""
    first = plans[0]
    if all(plan is first for plan in plans):
        return first
    return HaloPlan(torch.cat([plan.ghosts for plan in plans]).unique(), first.cuts, first.group, first.order)


def renumber(tensor: RowSharded, rows: HaloPlan, columns: HaloPlan) -> RowSharded:
    """Return a tensor renumbered by other plans, which include its halo."""
    if tensor.rows is rows and tensor.columns is columns:
        return tensor
    crd, places = numbered_entries(tensor.local.storage.pattern)
    wide = [column.to(torch.int64) for column in crd]
    wide[0] = rows.to_local(tensor.rows.to_global(wide[0]))
    wide[1] = columns.to_local(tensor.columns.to_global(wide[1]))
    shape = (rows.size, columns.size, *tensor.local.shape[2:])
    values = values_of(tensor.local)[places]
    local = sparse_coo_tensor(torch.stack(wide), values, shape, format=tensor.local.format)
    assert isinstance(local, SparseTensor)
    result = RowSharded(local, rows, columns, tensor.mesh)
    result.use_options_of(tensor)
    return result
