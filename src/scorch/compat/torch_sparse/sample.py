"""Neighbours, walks and subgraphs drawn from a graph, by whole arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scorch.compat.torch_sparse.arrange import _row_entries
from scorch.compat.torch_sparse.storage import pick
from scorch.errors import IndexRangeError, UnsupportedError

if TYPE_CHECKING:
    from scorch.compat.torch_sparse.tensor import SparseTensor


def sample(src: SparseTensor, num_neighbors: int, subset: Tensor | None = None) -> Tensor:
    """For each row (of ``subset``) ``num_neighbors`` of its columns, drawn with replacement."""
    rows = torch.arange(src.sparse_size(0), device=src.device()) if subset is None else subset
    counts = src.storage.rowcount()[rows]
    if bool((counts == 0).any()):
        raise IndexRangeError(f"row {int(rows[counts == 0][0])} has no neighbours to draw from")
    drawn = (torch.rand(rows.numel(), num_neighbors, device=counts.device) * counts.unsqueeze(1)).long()
    return src.storage.col()[drawn + src.storage.rowptr()[rows].unsqueeze(1)]


def sample_adj(
    src: SparseTensor, subset: Tensor, num_neighbors: int, replace: bool = False
) -> tuple[SparseTensor, Tensor]:
    """The rows of ``subset`` with at most ``num_neighbors`` entries each (all if negative), and the columns.

    Columns are numbered anew: first those of ``subset``, then the others as they are met.
    """
    places, row = _draw(src, subset, num_neighbors, replace)
    met = torch.cat([subset, src.storage.col()[places]])
    nodes, number = _by_first_use(met)
    col, sizes = number[subset.numel() :], (subset.numel(), nodes.numel())
    return src.like(row, col, pick(src.storage.value(), places), sizes), nodes


def _draw(src: SparseTensor, subset: Tensor, most: int, replace: bool) -> tuple[Tensor, Tensor]:
    """The entries that were drawn, and for each the place of its row in ``subset``."""
    places, counts = _row_entries(src, subset)
    rows = torch.arange(subset.numel(), device=subset.device)
    if most < 0:
        return places, rows.repeat_interleave(counts)
    if replace:
        row = rows[counts > 0].repeat_interleave(most)
        drawn = (torch.rand(row.numel(), device=row.device) * counts[row]).long()
        return src.storage.rowptr()[subset[row]] + drawn, row
    row = rows.repeat_interleave(counts)
    # A random order inside each row, of which the first ones are kept.
    order = torch.rand(row.numel(), device=row.device).argsort()
    order = order[row[order].argsort(stable=True)]
    before = (counts.cumsum(0) - counts).repeat_interleave(counts)
    rank = torch.arange(row.numel(), device=row.device) - before
    kept = order[rank < most].sort().values
    return places[kept], row[kept]


def _by_first_use(nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Different nodes in the order in which they come, and for each the number it has there."""
    unique, inverse = nodes.unique(return_inverse=True)
    first = torch.full((unique.numel(),), nodes.numel(), device=nodes.device).scatter_reduce(
        0, inverse, torch.arange(nodes.numel(), device=nodes.device), "amin"
    )
    order = first.argsort()
    return unique[order], order.argsort()[inverse]


def random_walk(src: SparseTensor, start: Tensor, walk_length: int) -> Tensor:
    """Walks of ``walk_length`` steps from each node of ``start``; a node without neighbours stays."""
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


def saint_subgraph(src: SparseTensor, node_idx: Tensor) -> tuple[SparseTensor, Tensor]:
    """The graph between the nodes ``node_idx``, and the number of each of its edges in ``src``."""
    numbered = src.set_value(torch.arange(src.nnz(), device=src.device()), layout="coo")
    part = numbered.index_select(0, node_idx).index_select(1, node_idx)
    edges = part.storage.value()
    assert edges is not None
    return part.set_value(pick(src.storage.value(), edges), layout="coo"), edges


def partition(src: SparseTensor, num_parts: int, *args: object, **kwargs: object) -> None:
    """Refused: the METIS library is not part of Scorch."""
    raise UnsupportedError("partition needs METIS; use pymetis and permute(), or reverse_cuthill_mckee()")


def reverse_cuthill_mckee(src: SparseTensor, is_symmetric: bool | None = None) -> Tensor:
    """An order of the nodes that brings entries close to the diagonal; SciPy finds it."""
    from scipy.sparse import csgraph

    symmetric = src.is_symmetric() if is_symmetric is None else is_symmetric
    found = csgraph.reverse_cuthill_mckee(src.to_scipy(layout="csr"), symmetric)
    return torch.from_numpy(found.astype("int64"))
