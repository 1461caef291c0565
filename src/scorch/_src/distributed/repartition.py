"""Move sharded tensors to other cuts, with their entries, dense rows and the state of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.distributed.communication.agreement import agree, validating
from scorch._src.distributed.communication.collectives import Group, rank_in, size_of
from scorch._src.distributed.communication.halo import HaloPlan, Order, order_of
from scorch._src.distributed.communication.moves import RowMove, move_to_cuts, move_to_parts, send_to
from scorch._src.distributed.cuts import as_cuts, as_integers, block_owners, check_split, owners_in
from scorch._src.distributed.entries import from_entries
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.coordinates import keys_of, numbered_entries
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError

Tensor = torch.Tensor


@suggests_keywords
def repartition(
    A: RowSharded,
    rows: Any = None,
    *,
    owners: Any = None,
    columns: Any = None,
    split: bool | int = False,
    along: Sequence[Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Any:
    """Move a sharded tensor to other cuts; every entry goes to the rank that owns its row.

    Without cuts, only entries move that are not with their rows: those of rows that were split, and all of a
    transposed tensor. The algorithm of one by "1.5d", whose rows are split, is then "halo". Gradients travel
    back.

    Args:
        A: the sharded tensor.
        rows: where the rows of each rank begin, as ``cuts`` returns.
        owners: instead of ``rows``, the rank of each row of this rank, or of all rows. Rows, and the columns
            of a square matrix with them, are renumbered by owner; ``order`` of the result has their old
            numbers.
        columns: where the columns of each rank begin; those of a square matrix are those of its rows.
        split: whether to split long rows over ranks, as in ``shard``.
        along: dense tensors with this rank's rows that move too.
        optimizer: an optimizer whose state for ``A.local``, and for the tensors in ``along``, moves too; it
            continues with the parameters of the result.

    Returns:
        The moved tensor, or with ``along`` a pair of it and the list of moved dense tensors.

    Raises:
        ArgumentError: both ``rows`` and ``owners`` are given, or an owner is out of range.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.eye(4), format="csr"))
        >>> sd.repartition(A, rows=[0, 4]).shape
        (4, 4)
    """
    with validating(A.group, "repartition"):
        if rows is not None and owners is not None:
            raise ArgumentError("pass either rows (cuts) or owners, not both")
        check_split(split)
        for tensor in along or ():
            A.rows.check("a tensor in along", tensor)
        target = _target(A, rows, owners)
        new_columns = None if columns is None else as_cuts("columns", columns, A.shape[1], size_of(A.group))
    _agree_on_options(A, None if owners is not None else target, new_columns, split, along, optimizer)
    move = _row_move(A, target, is_owners=owners is not None)
    is_moved = any(given is not None for given in (rows, owners, columns))
    moved = move_tensor(A, move, _column_cuts(A, move, new_columns), owners is not None, split, is_moved)
    dense = [move.move(tensor) for tensor in along or ()]
    result = moved.tensor
    if optimizer is not None:
        result.local = move_state(optimizer, A.local, result.local, moved.carry)
        dense = [
            move_state(optimizer, old, new, move.move) for old, new in zip(along or (), dense, strict=True)
        ]
    return result if along is None else (result, dense)


def _target(A: RowSharded, rows: Any, owners: Any) -> Tensor:
    """Return the cuts that the user passed, those of the tensor, or the owner of each row of this rank."""
    parts = size_of(A.group)
    if owners is not None:
        return as_parts("owners", owners, A, parts)
    return A.rows.cuts if rows is None else as_cuts("rows", rows, A.shape[0], parts)


def _agree_on_options(
    A: RowSharded,
    cuts: Tensor | None,
    columns: Tensor | None,
    split: bool | int,
    along: Sequence[Tensor] | None,
    optimizer: Any,
) -> None:
    facts = {
        "shape": A.shape,
        "rows": None if cuts is None else cuts.tolist(),
        "columns": None if columns is None else columns.tolist(),
        "split": split,
        "along": None if along is None else [(tuple(x.shape[1:]), x.dtype) for x in along],
        "optimizer": type(optimizer).__name__,
    }
    agree(A.group, "repartition", facts, describe_options)


def describe_options(facts: Mapping[str, Any]) -> str:
    """Return the options of a call as they are written."""
    return ", ".join(f"{name}={value}" for name, value in facts.items())


def _row_move(A: RowSharded, target: Tensor, is_owners: bool) -> RowMove:
    if is_owners:
        return move_to_parts(target, size_of(A.group), A.group)
    return move_to_cuts(A.rows.begin, A.rows.end, target, A.group, A.rows.ghosts.device)


def as_parts(name: str, given: Any, A: RowSharded, count: int) -> Tensor:
    """Return validated parts that the user passed for this rank's rows, or for all rows."""
    found = as_integers(name, given, A.rows.ghosts.device)
    if found.dim() == 1 and len(found) == A.shape[0]:
        found = found[A.rows.begin : A.rows.end]
    if found.dim() != 1 or len(found) != A.rows.own:
        raise ShapeError(
            f"{name} must have one element for each of the {A.rows.own} rows of this rank, or of all "
            f"{A.shape[0]} rows, but got shape {tuple(found.shape)}"
        )
    if len(found) and (int(found.min()) < 0 or int(found.max()) >= count):
        raise ArgumentError(
            f"{name} must be from 0 to {count - 1}, but got {int(found.min())} to {int(found.max())}"
        )
    return found


def is_square(A: RowSharded) -> bool:
    """Check whether rows and columns have the same owners, so that they get new numbers together."""
    return A.shape[0] == A.shape[1] and A.rows.has_owners_of(A.columns)


def _column_cuts(A: RowSharded, move: RowMove, columns: Tensor | None) -> Tensor:
    if columns is not None:
        return move.cuts if torch.equal(columns, move.cuts) else columns
    return move.cuts if is_square(A) else A.columns.cuts


@dataclass(frozen=True)
class MovedEntries:
    """A tensor after its entries have moved: which they were, who received them, and which arrived here."""

    tensor: RowSharded
    places: Tensor
    owners: Tensor
    arrived: list[Tensor]

    def carry(self, array: Tensor) -> Tensor:
        """Move an array with one number per value of the old local shard."""
        (found,) = send_to(self.owners, [array[self.places]], self.tensor.group)
        (crd, places), tensor = numbered_entries(self.tensor.local.storage.pattern), self.tensor
        wide = [column.to(torch.int64) for column in crd]
        wide[0], wide[1] = tensor.rows.to_global(wide[0]), tensor.columns.to_global(wide[1])
        result = array.new_zeros(self.tensor.local.storage.pattern.size, *array.shape[1:])
        to, since = (torch.argsort(keys_of(columns, tensor.shape)) for columns in (wide, self.arrived))
        result[places[to]] = found[since]
        return result


def move_tensor(
    A: RowSharded,
    move: RowMove,
    columns: Tensor,
    renumbers: bool,
    split: bool | int = False,
    keeps_algorithm: bool = True,
) -> MovedEntries:
    """Send entries to the new owners of their rows; ``renumbers`` says whether rows get other numbers.

    Where ``keeps_algorithm``, groups of ranks share the entries of "1.5d" as before.
    """
    shares_blocks = keeps_algorithm and A.replicas > 1
    crd, places = numbered_entries(A.local.storage.pattern)
    wide = [column.to(torch.int64) for column in crd]
    local_rows, local_columns = wide[:2]
    wide[0] = A.rows.extend([move.numbers])[0][local_rows]
    if renumbers and is_square(A):
        wide[1] = A.columns.extend([move.numbers])[0][local_columns]
    else:
        wide[1] = A.columns.to_global(local_columns)
    owners = owners_in(wide[0], move.cuts)
    if shares_blocks:
        owners = block_owners(wide[0], wide[1], move.cuts, columns, A.replicas)
    elif split is not False:
        is_long = _long_rows(A, local_rows, split)[local_rows]
        owners = torch.where(is_long, owners_in(wide[1], columns), owners)
    coordinates, values = send_to(owners, [torch.stack(wide, 1), values_of(A.local)[places]], A.group)
    arrived = [column.contiguous() for column in coordinates.unbind(1)]
    orders = _moved_orders(A, move, columns, renumbers)
    result = from_entries(
        arrived, values, A.shape, move.cuts, columns, A.group, A.local.format, A.mesh, orders
    )
    result.use_options_by_rows(A)
    if shares_blocks:
        result.algorithm, result.replicas = A.algorithm, A.replicas
    else:
        result.split = split
    return MovedEntries(result, places, owners, arrived)


def _moved_orders(
    A: RowSharded, move: RowMove, columns: Tensor, renumbers: bool
) -> tuple[Order | None, Order | None]:
    """Return the orders of the moved rows and of the columns, which follow the rows of a square matrix."""
    rows = _moved_order(A.rows, move, renumbers)
    if not is_square(A):
        return rows, _recut(A.columns.order, A.columns.cuts, columns, A.group)
    return rows, _recut(rows, move.cuts, columns, A.group)


def _moved_order(plan: HaloPlan, move: RowMove, renumbers: bool) -> Order | None:
    if plan.order is None and not renumbers:
        return None
    now = torch.arange(plan.begin, plan.end, device=move.numbers.device)
    numbers = move.move(now if plan.order is None else plan.order.numbers.to(now.device))
    return order_of(numbers, int(move.cuts[rank_in(plan.group)]), plan.group)


def _recut(order: Order | None, before: Tensor, cuts: Tensor, group: Group) -> Order | None:
    """Return the order of the rows that this rank owns by other cuts."""
    if order is None or torch.equal(before, cuts):
        return order
    rank = rank_in(group)
    move = move_to_cuts(int(before[rank]), int(before[rank + 1]), cuts, group, order.numbers.device)
    return order_of(move.move(order.numbers), int(cuts[rank]), group)


def _long_rows(A: RowSharded, rows: Tensor, split: bool | int) -> Tensor:
    """Return which local rows have more entries over all ranks than ``split`` allows."""
    most = -(-A.count_entries() // size_of(A.group)) if split is True else split
    (lengths,) = A.rows.extend([A.rows.fold(torch.bincount(rows, minlength=A.rows.size))])
    return lengths > most


# optimizers ------------------------------------------------------------------------------------------


def move_state(
    optimizer: torch.optim.Optimizer, old: Any, new: Any, carry: Callable[[Tensor], Tensor]
) -> Any:
    """Return ``new`` as the parameter of an optimizer that replaces ``old``, with its state."""
    found = [group["params"] for group in optimizer.param_groups if any(p is old for p in group["params"])]
    if not found:
        return new
    is_parameter = isinstance(old, torch.nn.Parameter)
    new = new.detach()
    new = torch.nn.Parameter(new) if is_parameter else new.requires_grad_(old.requires_grad)
    for params in found:
        params[:] = [new if parameter is old else parameter for parameter in params]
    if old in optimizer.state:
        size = len(old.storage.values) if isinstance(old, SparseTensor) else len(old)
        optimizer.state[new] = {
            name: carry(value) if isinstance(value, Tensor) and value.dim() and len(value) == size else value
            for name, value in optimizer.state.pop(old).items()
        }
    return new
