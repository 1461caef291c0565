"""Subgraphs around seed nodes, sampled hop by hop from homogeneous or heterogeneous graphs.

Graphs are stored by column: ``colptr`` and ``row``, so that the column of a node holds its in-neighbors. The
results are the nodes, seeds first, and for each sampled edge the positions of its ends among the nodes and
its position in ``row``. An edge type ``(source, relation, target)`` has the key ``source__relation__target``.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from scorch.compat.torch_sparse.arrange import row_entries
from scorch.compat.torch_sparse.sample import draw_entries, extend_nodes
from scorch.compat.torch_sparse.storage import pointers_of

Arrays = dict[str, Tensor]
Sampled = tuple[Arrays, Arrays, Arrays, Arrays]
EdgeType = tuple[str, str, str]


def neighbor_sample(
    colptr: Tensor, row: Tensor, input_node: Tensor, num_neighbors: list[int], replace: bool, directed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return nodes, rows, columns and edges of a sampled neighborhood of ``input_node`` (GraphSAGE)."""
    kind = ("", "", "")
    key = "__".join(kind)
    nodes, *edges = hetero_neighbor_sample(
        [""],
        [kind],
        {key: colptr},
        {key: row},
        {"": input_node},
        {key: num_neighbors},
        len(num_neighbors),
        replace,
        directed,
    )
    rows, cols, places = (found[key] for found in edges)
    return nodes[""], rows, cols, places


def hetero_neighbor_sample(
    node_types: list[str],
    edge_types: list[EdgeType],
    colptr_dict: Arrays,
    row_dict: Arrays,
    input_node_dict: Arrays,
    num_neighbors_dict: dict[str, list[int]],
    num_hops: int,
    replace: bool,
    directed: bool,
) -> Sampled:
    """Return nodes by type, and rows, columns and edges by edge type.

    In each hop, every node of the previous hop samples as many in-neighbors of each edge type as
    ``num_neighbors_dict`` says. The edges are the sampled ones, or all edges between the nodes unless
    ``directed``.
    """
    empty = next(iter([*row_dict.values(), *input_node_dict.values()])).new_empty(0)
    nodes = {kind: input_node_dict.get(kind, empty) for kind in node_types}
    kinds = {"__".join(kind): kind for kind in edge_types if "__".join(kind) in colptr_dict}
    drawn: dict[str, list[tuple[Tensor, ...]]] = {key: [] for key in kinds}
    begins = dict.fromkeys(node_types, 0)
    for hop in range(num_hops):
        ends = {kind: found.numel() for kind, found in nodes.items()}
        for key, (source, _, target) in kinds.items():
            frontier = nodes[target][begins[target] : ends[target]]
            most = num_neighbors_dict[key][hop]
            places, of = draw_entries(colptr_dict[key], frontier, most, replace)
            nodes[source], rows = extend_nodes(nodes[source], row_dict[key][places])
            drawn[key].append((rows, of + begins[target], places))
        begins = ends
    if directed:
        edges = {key: _joined(parts, empty) for key, parts in drawn.items()}
    else:
        edges = _edges_between(nodes, kinds.items(), colptr_dict, row_dict)
    return nodes, *_by_array(edges)


def hgt_sample(
    colptr_dict: Arrays,
    row_dict: Arrays,
    input_node_dict: Arrays,
    num_samples_dict: dict[str, list[int]],
    num_hops: int,
) -> Sampled:
    """Return as many nodes of each type as ``num_samples_dict`` says, and all edges between them.

    A neighbor is sampled in proportion to the square of its budget: for each sampled node it points to, one
    over that node's number of in-neighbors (Hu et al., Heterogeneous Graph Transformer, algorithm 1).
    """
    kinds = {key: _edge_type(key) for key in colptr_dict}
    empty = next(iter(row_dict.values())).new_empty(0)
    types = {*num_samples_dict, *input_node_dict, *(end for kind in kinds.values() for end in kind[::2])}
    nodes = {kind: input_node_dict.get(kind, empty) for kind in sorted(types)}
    budget = {kind: (empty, empty.to(torch.get_default_dtype())) for kind in nodes}
    added = dict(nodes)
    for hop in range(num_hops):
        for key, (source, _, target) in kinds.items():
            _add_budget(budget, source, added[target], colptr_dict[key], row_dict[key])
        for kind, (candidates, weight) in budget.items():
            is_new = ~torch.isin(candidates, nodes[kind])
            candidates, weight = candidates[is_new], weight[is_new]
            most = min(num_samples_dict[kind][hop] if kind in num_samples_dict else 0, candidates.numel())
            chosen = torch.multinomial(weight.square(), most) if most else empty
            added[kind], budget[kind] = candidates[chosen], (candidates, weight)
            nodes[kind] = torch.cat([nodes[kind], added[kind]])
    return nodes, *_by_array(_edges_between(nodes, kinds.items(), colptr_dict, row_dict))


def ego_k_hop_sample_adj(
    rowptr: Tensor, col: Tensor, idx: Tensor, depth: int, num_neighbors: int, replace: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return one graph with a component for each node of ``idx``: the nodes within ``depth`` hops of it.

    The arrays are row pointers, columns, nodes, edges, where each component begins, and where its root is.
    """
    width = rowptr.numel() - 1
    trees = torch.arange(idx.numel(), device=idx.device)
    keys = frontier = trees * width + idx
    for _ in range(depth):
        places, of = draw_entries(rowptr, frontier % width, num_neighbors, replace)
        frontier = ((frontier // width)[of] * width + col[places]).unique()
        frontier = frontier[~torch.isin(frontier, keys)]
        keys = torch.cat([keys, frontier])
    keys = keys.unique()
    places, counts = row_entries(rowptr, keys % width)
    source = torch.arange(keys.numel(), device=idx.device).repeat_interleave(counts)
    rows, cols, kept = _edges_inside(keys, keys[source] // width * width + col[places], source)
    begins = torch.searchsorted(keys, torch.arange(idx.numel() + 1, device=idx.device) * width)
    roots = torch.searchsorted(keys, trees * width + idx)
    pointers = pointers_of(torch.bincount(rows, minlength=keys.numel()))
    return pointers, cols, keys % width, places[kept], begins, roots


def _edge_type(key: str) -> EdgeType:
    source, relation, target = key.split("__")
    return source, relation, target


def _joined(parts: list[tuple[Tensor, ...]], empty: Tensor) -> tuple[Tensor, ...]:
    """Concatenate the samples of all hops, array by array."""
    return tuple(torch.cat(arrays) for arrays in zip(*parts, strict=True)) or (empty,) * 3


def _by_array(edges: dict[str, tuple[Tensor, ...]]) -> tuple[Arrays, Arrays, Arrays]:
    rows, cols, places = ({key: arrays[number] for key, arrays in edges.items()} for number in range(3))
    return rows, cols, places


def _edges_between(
    nodes: Arrays, kinds: Iterable[tuple[str, EdgeType]], colptr_dict: Arrays, row_dict: Arrays
) -> dict[str, tuple[Tensor, ...]]:
    """Return all edges between ``nodes``."""
    found: dict[str, tuple[Tensor, ...]] = {}
    for key, (source, _, target) in kinds:
        places, counts = row_entries(colptr_dict[key], nodes[target])
        cols = torch.arange(nodes[target].numel(), device=counts.device).repeat_interleave(counts)
        order = nodes[source].argsort(stable=True)
        cols, at, kept = _edges_inside(nodes[source][order], row_dict[key][places], cols)
        found[key] = order[at], cols, places[kept]
    return found


def _edges_inside(keys: Tensor, ends: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return starts and positions of the ``ends`` that are among the sorted ``keys``, and which those are."""
    if not keys.numel():
        return starts[:0], starts[:0], torch.zeros_like(starts, dtype=torch.bool)
    at = torch.searchsorted(keys, ends).clamp_(max=keys.numel() - 1)
    kept = keys[at] == ends
    return starts[kept], at[kept], kept


def _add_budget(
    budget: dict[str, tuple[Tensor, Tensor]], kind: str, targets: Tensor, colptr: Tensor, row: Tensor
) -> None:
    """Let each of ``targets`` distribute a budget of one over its in-neighbors."""
    places, counts = row_entries(colptr, targets)
    candidates, weight = budget[kind]
    share = counts.reciprocal().repeat_interleave(counts)
    unique, inverse = torch.cat([candidates, row[places]]).unique(return_inverse=True)
    total = weight.new_zeros(unique.numel()).index_add(0, inverse, torch.cat([weight, share.to(weight)]))
    budget[kind] = unique, total
