"""``torch.ops.torch_sparse``: the operators that users of torch_sparse call on index arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scorch.compat.torch_sparse import matmul as products
from scorch.compat.torch_sparse import neighbors, sample
from scorch.compat.torch_sparse.arrange import row_entries
from scorch.compat.torch_sparse.storage import pick, pointers_of
from scorch.compat.torch_sparse.tensor import SparseTensor

_TABLES = "Dict(str, Tensor)"
_SAMPLED = f"({_TABLES}, {_TABLES}, {_TABLES}, {_TABLES})"
_NEIGHBORS = f"{_TABLES} colptr_dict, {_TABLES} row_dict, {_TABLES} input_node_dict"
_EXTREME = "(Tensor rowptr, Tensor col, Tensor? value, Tensor mat) -> (Tensor, Tensor)"
_METIS = "Tensor rowptr, Tensor col, Tensor? value"


def ind2ptr(ind: Tensor, M: int) -> Tensor:
    """Return where each of ``M`` rows begins in the sorted row indices ``ind``."""
    return pointers_of(torch.bincount(ind, minlength=M))


def ptr2ind(ptr: Tensor, E: int) -> Tensor:
    """Return the row index of each of ``E`` entries."""
    rows = torch.arange(ptr.numel() - 1, device=ptr.device)
    return rows.repeat_interleave(ptr.diff(), output_size=E)


def _matrix(rowptr: Tensor, col: Tensor, value: Tensor | None, columns: int) -> SparseTensor:
    return SparseTensor(None, rowptr, col, value, (rowptr.numel() - 1, columns), True, True)


def _square(rowptr: Tensor, col: Tensor) -> SparseTensor:
    return _matrix(rowptr, col, None, rowptr.numel() - 1)


def spmm_sum(
    row: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    value: Tensor | None,
    colptr: Tensor | None,
    csr2csc: Tensor | None,
    mat: Tensor,
) -> Tensor:
    """Return the product with ``mat``; gradients need none of the optional arrays."""
    return products.spmm_sum(_matrix(rowptr, col, value, mat.shape[-2]), mat)


def spmm_mean(
    row: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    value: Tensor | None,
    rowcount: Tensor | None,
    colptr: Tensor | None,
    csr2csc: Tensor | None,
    mat: Tensor,
) -> Tensor:
    return products.spmm_mean(_matrix(rowptr, col, value, mat.shape[-2]), mat)


def spmm_min(rowptr: Tensor, col: Tensor, value: Tensor | None, mat: Tensor) -> tuple[Tensor, Tensor]:
    return products.spmm_min(_matrix(rowptr, col, value, mat.shape[-2]), mat)


def spmm_max(rowptr: Tensor, col: Tensor, value: Tensor | None, mat: Tensor) -> tuple[Tensor, Tensor]:
    return products.spmm_max(_matrix(rowptr, col, value, mat.shape[-2]), mat)


def random_walk(rowptr: Tensor, col: Tensor, start: Tensor, walk_length: int) -> Tensor:
    return sample.random_walk(_square(rowptr, col), start, walk_length)


def saint_subgraph(idx: Tensor, rowptr: Tensor, row: Tensor, col: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, columns and positions of the edges between the nodes ``idx``."""
    part, edges = sample.saint_subgraph(_square(rowptr, col), idx)
    return part.storage.row(), part.storage.col(), edges


def sample_adj(
    rowptr: Tensor, col: Tensor, idx: Tensor, num_neighbors: int, replace: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return row pointers, columns, nodes and edges of the rows ``idx`` with some of their entries."""
    numbered = _square(rowptr, col).set_value(torch.arange(col.numel(), device=col.device))
    part, nodes = sample.sample_adj(numbered, idx, num_neighbors, replace)
    rowptr, col, edges = part.csr()
    assert edges is not None
    return rowptr, col, nodes, edges


def relabel(col: Tensor, idx: Tensor) -> tuple[Tensor, Tensor]:
    """Return positions of ``col`` among the nodes, and the nodes: ``idx``, then others in order."""
    nodes, number = sample.extend_nodes(idx, col)
    return number, nodes


def relabel_one_hop(
    rowptr: Tensor, col: Tensor, optional_value: Tensor | None, idx: Tensor, bipartite: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return the rows ``idx`` with relabeled columns; unless ``bipartite``, each column has a row, too."""
    places, counts = row_entries(rowptr, idx)
    number, nodes = relabel(col[places], idx)
    empty = counts.new_zeros(0 if bipartite else nodes.numel() - idx.numel())
    pointers = pointers_of(torch.cat([counts, empty]))
    return pointers, number, pick(optional_value, places), nodes


def non_diag_mask(row: Tensor, col: Tensor, M: int, N: int, k: int) -> Tensor:
    """Return which entries are off diagonal ``k`` once all of it is stored among those given."""
    first, count = max(-k, 0), max(0, min(M, N - k) if k >= 0 else min(M + k, N))
    diagonal = torch.arange(first, first + count, device=row.device)
    is_off = col - row != k
    keys = torch.cat([(row * N + col)[is_off], diagonal * N + diagonal + k])
    return keys.argsort() < int(is_off.sum())


def _partition(rowptr: Tensor, col: Tensor, *args: Any) -> None:
    sample.refuse_metis()


_OPERATORS: dict[str, tuple[Callable[..., Any], str]] = {
    "cuda_version": (lambda: -1, "() -> int"),
    "ind2ptr": (ind2ptr, "(Tensor ind, int M) -> Tensor"),
    "ptr2ind": (ptr2ind, "(Tensor ptr, int E) -> Tensor"),
    "spmm_sum": (
        spmm_sum,
        "(Tensor? row, Tensor rowptr, Tensor col, Tensor? value, Tensor? colptr, Tensor? csr2csc, "
        "Tensor mat) -> Tensor",
    ),
    "spmm_mean": (
        spmm_mean,
        "(Tensor? row, Tensor rowptr, Tensor col, Tensor? value, Tensor? rowcount, Tensor? colptr, "
        "Tensor? csr2csc, Tensor mat) -> Tensor",
    ),
    "spmm_min": (spmm_min, _EXTREME),
    "spmm_max": (spmm_max, _EXTREME),
    "random_walk": (random_walk, "(Tensor rowptr, Tensor col, Tensor start, int walk_length) -> Tensor"),
    "saint_subgraph": (
        saint_subgraph,
        "(Tensor idx, Tensor rowptr, Tensor row, Tensor col) -> (Tensor, Tensor, Tensor)",
    ),
    "sample_adj": (
        sample_adj,
        "(Tensor rowptr, Tensor col, Tensor idx, int num_neighbors, bool replace) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
    ),
    "relabel": (relabel, "(Tensor col, Tensor idx) -> (Tensor, Tensor)"),
    "relabel_one_hop": (
        relabel_one_hop,
        "(Tensor rowptr, Tensor col, Tensor? optional_value, Tensor idx, bool bipartite) "
        "-> (Tensor, Tensor, Tensor?, Tensor)",
    ),
    "non_diag_mask": (non_diag_mask, "(Tensor row, Tensor col, int M, int N, int k) -> Tensor"),
    "ego_k_hop_sample_adj": (
        neighbors.ego_k_hop_sample_adj,
        "(Tensor rowptr, Tensor col, Tensor idx, int depth, int num_neighbors, bool replace) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    ),
    "neighbor_sample": (
        neighbors.neighbor_sample,
        "(Tensor colptr, Tensor row, Tensor input_node, int[] num_neighbors, bool replace, bool directed) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
    ),
    "hetero_neighbor_sample": (
        neighbors.hetero_neighbor_sample,
        f"(str[] node_types, (str, str, str)[] edge_types, {_NEIGHBORS}, "
        f"Dict(str, int[]) num_neighbors_dict, int num_hops, bool replace, bool directed) -> {_SAMPLED}",
    ),
    "hgt_sample": (
        neighbors.hgt_sample,
        f"({_NEIGHBORS}, Dict(str, int[]) num_samples_dict, int num_hops) -> {_SAMPLED}",
    ),
    "partition": (_partition, f"({_METIS}, int num_parts, bool recursive) -> Tensor"),
    "partition2": (
        _partition,
        f"({_METIS}, Tensor? node_weight, int num_parts, bool recursive) -> Tensor",
    ),
    "mt_partition": (
        _partition,
        f"({_METIS}, Tensor? node_weight, int num_parts, bool recursive, int num_workers) -> Tensor",
    ),
}


def register() -> torch.library.Library:
    """Define the operators, and return the library, which removes them when it is destroyed."""
    library = torch.library.Library("torch_sparse", "FRAGMENT")
    for name, (function, schema) in _OPERATORS.items():
        library.define(name + schema)
        library.impl(name, function, "CompositeImplicitAutograd")
    return library
