"""Graph layers on a sharded graph: sums, maxima and attention over the neighbors of this rank's nodes.

Call a layer with the features of this rank's nodes. Those of neighbors on other ranks are fetched (the halo
exchange), and the local shard of the matrix is a graph from own nodes and halo nodes to own nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.backends.by_torch.graphs import Options, Scores
from scorch._src.distributed.calls import RULES
from scorch._src.distributed.communication.agreement import all_say
from scorch._src.distributed.dropout import draw_edges
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.distributed.statements import einsum
from scorch._src.grad_state import outside_modes
from scorch._src.name_hints import suggests_keywords
from scorch._src.ops.graph.aggregate import attend_composed
from scorch._src.ops.graph.graph import graph_of
from scorch._src.ops.graph.neighbours import attend_neighbours, max_neighbours, sum_neighbours
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.create.torch_constructors import sparse_coo_tensor
from scorch.errors import ShapeError, UnsupportedError

Tensor = torch.Tensor


def _kept(adj: RowSharded, key: Any, make: Callable[[], Any]) -> Any:
    """Return ``make()``, computed once for entries that change on no rank."""
    storage, found = adj.local.storage, adj.derived.get(key)
    facts = storage.pattern, storage.values, storage.values._version
    is_kept = found is not None and not adj.requires_grad and _are_same(found[0], facts)
    if not all_say(is_kept, adj.group, adj.rows.ghosts) or found is None:
        made = outside_modes(make)()
        if adj.requires_grad:
            return made
        found = adj.derived[key] = facts, made
    return found[1]


def _are_same(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Check whether entries have the same pattern and array of values, with the same version."""
    return before[0] is now[0] and before[1] is now[1] and before[2] == now[2]


def _sum(
    adj: RowSharded,
    x: Tensor,
    targets: int,
    how: str = "sum",
    loop: float | None = None,
    edge_weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    if edge_weight is not None:
        raise UnsupportedError(
            "edge_weight requires an edge_index; the edge weights of a sharded graph are its values"
        )
    adj.columns.check("x", x)
    if how in ("sum", "mean"):
        result = _sum_edges(adj, x)
        if how == "mean":
            degree = _kept(adj, ("degree", x.dtype), lambda: _degrees(adj, x))
            result = result / degree.clamp(min=1)[:, None]
    else:
        weighted = adj.to(x.dtype) if adj.dtype != x.dtype else adj
        if how == "normalised":
            weighted = _kept(adj, (loop, x.dtype), lambda: normalize(weighted, loop))
        result = weighted @ x
    return result if bias is None else result + bias


def _sum_edges(adj: RowSharded, x: Tensor) -> Tensor:
    """Sum over neighbors, whatever the values of the matrix are."""
    (extended,) = adj.columns.extend([x], adj.wire)
    return adj.rows.fold(sum_neighbours(adj.local, extended, adj.rows.size, "sum"), adj.wire)


def _degrees(adj: RowSharded, like: Tensor) -> Tensor:
    ones = like.new_ones(adj.columns.own, 1)
    return _sum_edges(adj, ones).squeeze(1)


@suggests_keywords
def normalize(adj: RowSharded, loop: float | None = None) -> RowSharded:
    """Return the symmetrically normalized matrix ``D^-1/2 A D^-1/2``, where D has the row sums of A.

    Args:
        adj: a square sharded matrix.
        loop: the weight of self-loops to add first; None adds none.

    Returns:
        A sharded matrix.

    Raises:
        ShapeError: the matrix is not square, or its rows and columns are cut differently.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.tensor([[0.0, 4.0], [4.0, 0.0]]), format="csr"))
        >>> sd.normalize(A).gather().to_dense()
        tensor([[0., 1.],
                [1., 0.]])
    """
    if loop is not None:
        adj = add_loops(adj, loop)
    degree = adj.sum(1)
    is_zero = degree == 0
    factor = torch.where(is_zero, 0.0, torch.where(is_zero, 1.0, degree).pow(-0.5))
    with torch.autocast(adj.device.type, enabled=False):  # layers cache the result
        result: RowSharded = einsum("i,ij,j->ij", factor, adj, factor)
    return result


@suggests_keywords
def add_loops(adj: RowSharded, weight: float) -> RowSharded:
    """Return the matrix with a self-loop of this weight at every node that has none.

    Args:
        adj: a square sharded matrix whose rows and columns have the same cuts.
        weight: the weight of the new self-loops.

    Returns:
        A sharded matrix.

    Raises:
        ShapeError: the matrix is not square, or its rows and columns are cut differently.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.tensor([[0.0, 2.0], [2.0, 5.0]]), format="csr"))
        >>> sd.add_loops(A, 1.0).gather().to_dense()
        tensor([[1., 2.],
                [2., 5.]])
    """
    rows, columns = adj.rows, adj.columns
    if not rows.has_owners_of(columns):
        raise ShapeError(
            "self-loops can only be added to square matrices whose rows and columns have the same cuts"
        )
    (row, column), places = numbered_entries(adj.local.storage.pattern)
    row, column = row.to(torch.int64), column.to(torch.int64)
    has_loop = torch.zeros(rows.own, dtype=torch.bool, device=row.device)
    has_loop[row[(row == column) & (row < rows.own)]] = True
    missing = (~has_loop).nonzero().squeeze(1)
    values = values_of(adj.local)[places]
    joined = torch.cat([values, values.new_full((len(missing),), weight)])
    crd = torch.stack([torch.cat([row, missing]), torch.cat([column, missing])])
    return adj.with_local(sparse_coo_tensor(crd, joined, tuple(adj.local.shape), format="csr"))


def _max(adj: RowSharded, x: Tensor, targets: int) -> Tensor:
    _check_whole_rows(adj, "the maximum over neighbors")
    adj.columns.check_before_exchange("x", x)
    (extended,) = adj.columns.extend([x], adj.wire)
    return max_neighbours(adj.local, extended, adj.rows.own)


def _attend(
    adj: RowSharded,
    x: Tensor,
    sources: Tensor,
    targets: Tensor,
    slope: float,
    dropout: float = 0.0,
    loops: bool = False,
    edge_attr: Tensor | None = None,
    *edges: Any,
) -> Tensor:
    _check_whole_rows(adj, "attention over neighbors")
    if edge_attr is not None or edges:
        raise UnsupportedError("attention over a sharded graph does not support edge features")
    adj.columns.check_before_exchange("x", x)
    features, scores = adj.columns.extend([x, sources], adj.wire)
    if not dropout:
        return attend_neighbours(adj.local, features, scores, targets, slope, 0.0, loops)
    graph = graph_of(adj.local, (targets.shape[0], features.shape[0]))[0]
    graph = graph.with_loops[0] if loops else graph
    is_kept = draw_edges(adj, graph.targets, graph.sources, x.shape[1], dropout)
    options = Options(slope, dropout)
    return attend_composed(graph, features, Scores(scores, targets, None), options, is_kept)


def _check_whole_rows(adj: RowSharded, what: str) -> None:
    if adj.has_split_rows:
        raise UnsupportedError(
            f"{what} is not supported if rows are split over ranks or the matrix is transposed; shard it "
            "with split=False, or repartition it"
        )


RULES.update({sum_neighbours: _sum, max_neighbours: _max, attend_neighbours: _attend})
