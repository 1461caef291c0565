"""The entries of a sharded tensor as sharded arrays: the contents of checkpoints.

Entries are in the order of rows, and of coordinates in each row. ``lengths`` has the number of entries of
each row, so that a rank that needs other rows finds their entries; ``crd1`` and so on, and ``values``, have
the entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from scorch._src.distributed.checkpoint.runs import Run
from scorch._src.distributed.communication.collectives import Group, gather_numbers, rank_in
from scorch._src.io.archive import describe_format
from scorch._src.storage.coordinates import keys_of, numbered_entries
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch.errors import CommunicationError, UnsupportedError

Tensor = torch.Tensor
FACTS = "row_sharded"


class EntryOrder:
    """The entries of this rank in the order of rows: their coordinates, and positions among the values."""

    def __init__(self, tensor: Any) -> None:
        if tensor.has_split_rows:
            raise UnsupportedError(
                "rows of this tensor are split over ranks (as in a transposed tensor), but checkpoints store "
                "whole rows: save scorch.distributed.repartition(A)"
            )
        crd, places = numbered_entries(tensor.local.storage.pattern)
        wide = [column.to(torch.int64) for column in crd]
        wide[0], wide[1] = tensor.rows.to_global(wide[0]), tensor.columns.to_global(wide[1])
        order = torch.argsort(keys_of(wide, tensor.shape))
        self.crd, self.places = [column[order] for column in wide], places[order]
        self.lengths = torch.bincount(self.crd[0] - tensor.rows.begin, minlength=tensor.rows.own)
        self.begin, self.total = begin_of(len(order), tensor.group, self.places)
        self.group: Group = tensor.group

    def run(self, array: Tensor) -> Run:
        """Return, by entry, the numbers of an array with one number per value of the local shard."""
        return Run(array.detach()[self.places], self.begin, self.total, self.group)

    def spread(self, numbers: Tensor, count: int) -> Tensor:
        """Return an array for ``count`` values of the local shard, from a number for each entry."""
        result = numbers.new_zeros(count, *numbers.shape[1:])
        result[self.places] = numbers
        return result


def begin_of(count: int, group: Group, like: Tensor) -> tuple[int, int]:
    """Return how many rows or entries previous ranks have, and how many there are."""
    counts = [found for (found,) in gather_numbers([count], group, like)]
    return sum(counts[: rank_in(group)]), sum(counts)


def state_of(tensor: Any, options_of: Any = None) -> dict[str, Any]:
    """Return the state of a sharded tensor, whose arrays are sharded over ranks; all ranks call this.

    ``options_of`` is the tensor that it was before its entries moved to the owners of their rows.
    """
    order, rows = EntryOrder(tensor), tensor.rows
    state: dict[str, Any] = {FACTS: describe(tensor, tensor if options_of is None else options_of)}
    state["lengths"] = Run(order.lengths, rows.begin, rows.extent, tensor.group)
    for dim, column in enumerate(order.crd[1:], 1):
        state[f"crd{dim}"] = Run(column, order.begin, order.total, tensor.group)
    state["values"] = order.run(values_of(tensor.local))
    if rows.order is not None:
        state["order"] = Run(rows.order.numbers, rows.begin, rows.extent, tensor.group)
    if _order_of_columns(tensor) == "column_order":
        columns = tensor.columns
        state["column_order"] = Run(columns.order.numbers, columns.begin, columns.extent, tensor.group)
    return state


def _order_of_columns(tensor: Any) -> str | None:
    """Return the array with the order of columns, which is that of rows in a square matrix."""
    if tensor.columns.order is None:
        return None
    return "order" if tensor.rows.has_owners_of(tensor.columns) else "column_order"


def describe(tensor: Any, options_of: Any) -> str:
    """Return facts of a sharded tensor, and the options of another, as a line of JSON."""
    wire = options_of.wire
    facts = {
        "shape": list(tensor.shape),
        "dtype": _name_of(tensor.dtype),
        "format": describe_format(tensor.local.format),
        "has_order": tensor.rows.order is not None,
        "order_of_columns": _order_of_columns(tensor),
        "rows": tensor.rows.cuts.tolist(),
        "columns": tensor.columns.cuts.tolist(),
        "wire": None if wire is None else _name_of(wire),
        "algorithm": options_of.algorithm,
        "replicas": options_of.replicas,
        "split": options_of.split,
    }
    return json.dumps(facts)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def load_state(tensor: Any, state: Mapping[str, Any]) -> None:
    """Copy the values of a state into a sharded tensor with the same global sparsity pattern."""
    own = state_of(tensor)
    for name, what in (
        ("lengths", "rows"),
        ("crd1", "columns"),
        ("order", "order of rows"),
        ("column_order", "order of columns"),
    ):
        saved = state.get(name)
        is_same = (saved is None) == (name not in own)
        if saved is not None and is_same:
            is_same = torch.equal(_plain(saved), own[name].rows)
        _check_everywhere(is_same, what, tensor.group, own["lengths"].rows)
    order = EntryOrder(tensor)
    pattern = tensor.local.storage.pattern
    values = order.spread(_plain(state["values"]), pattern.size)
    with torch.no_grad():
        tensor.local.copy_(sparse_of(pattern, values.to(tensor.dtype)))


def _plain(array: Tensor) -> Tensor:
    return array.rows if isinstance(array, Run) else array


def _check_everywhere(is_same: bool, what: str, group: Group, like: Tensor) -> None:
    """Raise an error on all ranks if the sparsity pattern of one differs from the state."""
    found = [bool(answer) for (answer,) in gather_numbers([int(is_same)], group, like)]
    if not all(found):
        raise CommunicationError(
            f"the sparsity pattern in the checkpoint differs from that of the tensor in the {what} of rank "
            f"{found.index(False)}; scorch.distributed.load returns new tensors with the saved pattern"
        )
