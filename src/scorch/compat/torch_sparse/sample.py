"""Sample neighbors, random walks and subgraphs of a graph, with vectorized operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from scorch._src.tensor.interop.optional import optional_module
from scorch.compat.torch_sparse.arrange import permute, row_entries
from scorch.compat.torch_sparse.check_source import takes_compat
from scorch.compat.torch_sparse.storage import pick
from scorch.errors import IndexRangeError, UnsupportedError

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor


@takes_compat
def sample(src: SparseTensor, num_neighbors: int, subset: Tensor | None = None) -> Tensor:
    """Sample ``num_neighbors`` columns of each row (of ``subset``), with replacement.

    In a square matrix, a row without entries samples itself, like a random walk that stays.

    Args:
        src: the matrix.
        num_neighbors: the number of columns to sample per row.
        subset: the rows; all by default.

    Raises:
        IndexRangeError: a row of a matrix that is not square has no entries.
    """
    rows = torch.arange(src.sparse_size(0), device=src.device()) if subset is None else subset
    counts = src.storage.rowcount()[rows].unsqueeze(1)
    is_empty = counts == 0
    if not src.is_quadratic() and bool(is_empty.any()):
        raise IndexRangeError(f"row {int(rows[is_empty.squeeze(1)][0])} has no neighbors to sample from")
    drawn = (torch.rand(rows.numel(), num_neighbors, device=counts.device) * counts).long()
    places = (drawn + src.storage.rowptr()[rows].unsqueeze(1)).masked_fill(is_empty, 0)
    columns = src.storage.col()[places] if src.nnz() else torch.zeros_like(places)
    return columns.where(~is_empty, rows.unsqueeze(1))


@takes_compat
def sample_adj(
    src: SparseTensor, subset: Tensor, num_neighbors: int, replace: bool = False
) -> tuple[SparseTensor, Tensor]:
    """Return the rows of ``subset`` with at most ``num_neighbors`` entries each, and the columns.

    Columns are relabeled: first those of ``subset``, then the others in order of appearance.

    Args:
        src: the matrix.
        subset: the rows.
        num_neighbors: the number of entries to sample per row; all if negative.
        replace: whether to sample with replacement.
    """
    places, row = draw_entries(src.storage.rowptr(), subset, num_neighbors, replace)
    nodes, col = extend_nodes(subset, src.storage.col()[places])
    sizes = (subset.numel(), nodes.numel())
    return src.like(row, col, pick(src.storage.value(), places), sizes), nodes


def draw_entries(rowptr: Tensor, subset: Tensor, most: int, replace: bool) -> tuple[Tensor, Tensor]:
    """Return the sampled entries, and the position of the row of each in ``subset``."""
    places, counts = row_entries(rowptr, subset)
    rows = torch.arange(subset.numel(), device=subset.device)
    if most < 0:
        return places, rows.repeat_interleave(counts)
    if replace:
        row = rows[counts > 0].repeat_interleave(most)
        drawn = (torch.rand(row.numel(), device=row.device) * counts[row]).long()
        return rowptr[subset[row]] + drawn, row
    row = rows.repeat_interleave(counts)
    # A random order inside each row, of which the first ones are kept.
    order = torch.rand(row.numel(), device=row.device).argsort()
    order = order[row[order].argsort(stable=True)]
    before = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.arange(row.numel(), device=row.device) - before
    kept = order[rank < most].sort().values
    return places[kept], row[kept]


def extend_nodes(nodes: Tensor, met: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``nodes`` extended by the new ones of ``met`` in order, and the position of each of ``met``."""
    both = torch.cat([nodes, met])
    unique, inverse = both.unique(return_inverse=True)
    first = torch.full((unique.numel(),), both.numel(), device=both.device).scatter_reduce(
        0, inverse, torch.arange(both.numel(), device=both.device), "amin"
    )
    is_new = first >= nodes.numel()
    order = first[is_new].argsort()
    number = first.clone()
    number[is_new] = nodes.numel() + order.argsort()
    return torch.cat([nodes, unique[is_new][order]]), number[inverse[nodes.numel() :]]


@takes_compat
def random_walk(src: SparseTensor, start: Tensor, walk_length: int) -> Tensor:
    """Return random walks of ``walk_length`` steps from ``start``; a node without neighbors stays."""
    rowptr, col, _ = src.csr()
    counts = src.storage.rowcount()
    walk = [start]
    for _ in range(walk_length):
        here = walk[-1]
        drawn = (torch.rand(here.numel(), device=here.device) * counts[here]).long() + rowptr[here]
        moves = counts[here] > 0
        following = here.clone()
        following[moves] = col[drawn[moves]]
        walk.append(following)
    return torch.stack(walk, 1)


@takes_compat
def saint_subgraph(src: SparseTensor, node_idx: Tensor) -> tuple[SparseTensor, Tensor]:
    """Return the subgraph of the nodes ``node_idx``, and the index of each of its edges in ``src``."""
    numbered = src.set_value(torch.arange(src.nnz(), device=src.device()), layout="coo")
    part = numbered.index_select(0, node_idx).index_select(1, node_idx)
    edges = part.storage.value()
    assert edges is not None
    return part.set_value(pick(src.storage.value(), edges), layout="coo"), edges


@takes_compat
def partition(
    src: SparseTensor,
    num_parts: int,
    recursive: bool = False,
    weighted: bool = False,
    node_weight: Tensor | None = None,
    balance_edge: bool = False,
) -> tuple[SparseTensor, Tensor, Tensor]:
    """Return the matrix in the order of its parts, where each part begins, and the order.

    Raises:
        UnsupportedError: there is more than one part; the METIS library is not part of Scorch.
    """
    if num_parts != 1:
        refuse_metis()
    nodes = src.sparse_size(0)
    order = torch.arange(nodes, device=src.device())
    return src, order.new_tensor([0, nodes]), order


def refuse_metis() -> NoReturn:
    raise UnsupportedError("partition needs METIS; use pymetis and permute(), or reverse_cuthill_mckee()")


@takes_compat
def reverse_cuthill_mckee(src: SparseTensor, is_symmetric: bool | None = None) -> tuple[SparseTensor, Tensor]:
    """Return the matrix in an order that brings entries close to the diagonal, and that order, by SciPy.

    A matrix that is not symmetric gets its entries in both directions.
    """
    csgraph = optional_module("scipy.sparse.csgraph", "SciPy")
    symmetric = src.is_symmetric() if is_symmetric is None else is_symmetric
    src = src if symmetric else src.to_symmetric()
    found = csgraph.reverse_cuthill_mckee(src.to_scipy(layout="csr"), True)
    order = torch.from_numpy(found.astype("int64")).to(src.device())
    return permute(src, order), order
