"""Convert between matrices and graphs: edges and weights for graph libraries, and networkx both ways.

``coo``, ``csr`` and ``csc`` return tuples as torch_sparse does, with int64 indices. Of a tensor with more
than two dimensions the first two are nodes, and each edge has a value of the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from scorch._src.formats import Format
from scorch._src.grad_state import is_differentiable
from scorch._src.name_hints import suggests_keywords
from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.check import as_values, own
from scorch._src.tensor.entries import as_sparse
from scorch._src.tensor.interop.optional import optional_module
from scorch._src.tensor.sparse_tensor import SparseTensor, check_sparse
from scorch._src.tensor.traced import as_symbol
from scorch.errors import OperandError, ShapeError, kind_of

Arrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


# arrays ----------------------------------------------------------------------------------------------


def coo(S: SparseTensor) -> Arrays:
    """Return row, column (int64) and value of every entry of a matrix, row by row."""
    return _arrays(S, "oo", (0, 1))


def csr(S: SparseTensor) -> Arrays:
    """Return row pointers, columns (int64) and values of a matrix."""
    return _arrays(S, "ds", (0, 1))


def csc(S: SparseTensor) -> Arrays:
    """Return column pointers, rows (int64) and values of a matrix."""
    return _arrays(S, "ds", (1, 0))


def sparse_sizes(S: SparseTensor) -> tuple[int, int]:
    """Return the numbers of rows and columns."""
    shape = S.storage.pattern.shape
    if len(shape) < 2:
        raise ShapeError(f"expected a matrix, but got a tensor of shape {shape}")
    return shape[0], shape[1]


def sparse_size(S: SparseTensor, dim: int) -> int:
    """Return the number of rows (0) or columns (1)."""
    return as_symbol(S, sparse_sizes(S)[dim])


def to_edge_index(S: SparseTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the edges of a graph, a column (source, target) for each, and their weights.

    Returns:
        ``edge_index``, of shape (2, edges), and the weights.

    Example:

        >>> import torch, scorch
        >>> S = scorch.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), format="csr")
        >>> edge_index, weight = S.to_edge_index()
        >>> edge_index.tolist(), weight.tolist()
        ([[0, 1], [1, 0]], [2.0, 3.0])
    """
    row, column, value = coo(S)
    return torch.stack([row, column]), value


def _arrays(S: SparseTensor, letters: str, order: tuple[int, int]) -> Arrays:
    """Store the first two dimensions by ``letters`` and ``order``, with dense ones below: two arrays."""
    sparse_sizes(S)
    more = len(S.storage.pattern.shape) - 2
    stored = as_sparse(S.to_format(Format(letters + "d" * more, order=(*order, *range(2, 2 + more)))))
    pattern = stored.storage.pattern
    first, second = pattern.crd[:2] if letters == "oo" else (pattern.pos[1], pattern.crd[1])
    assert first is not None and second is not None
    values = values_of(stored) if is_differentiable(stored) else stored.storage.values.detach()
    return own(first, torch.int64), own(second, torch.int64), values.view(-1, *pattern.shape[2:])


# networkx --------------------------------------------------------------------------------------------


@suggests_keywords
def from_networkx(
    graph: Any,
    weight: str | None = "weight",
    format: str | Format = "csr",
    nodes: Iterable[Any] | None = None,
    dtype: torch.dtype | None = None,
) -> SparseTensor | torch.Tensor:
    """Build the adjacency matrix of a NetworkX graph.

    Args:
        graph: the graph. Undirected edges are stored in both directions; weights of parallel edges are
            summed.
        weight: the edge attribute that holds weights; edges without it, and all edges if it is None, weigh
            1.
        format: the storage format.
        nodes: the order of rows and columns; that of ``graph.nodes`` without it.
        dtype: the dtype of the values.

    Returns:
        A ``SparseTensor``.

    Raises:
        OperandError: ``graph`` is not a NetworkX graph, or ``nodes`` names a node that it does not have.
        UnsupportedError: NetworkX is not installed.

    Example:

        >>> import networkx, scorch
        >>> scorch.from_networkx(networkx.path_graph(3)).to_dense()
        tensor([[0., 1., 0.],
                [1., 0., 1.],
                [0., 1., 0.]])
    """
    module = optional_module("networkx", "networkx")
    if not isinstance(graph, module.Graph):
        raise OperandError(f"from_networkx expected a networkx graph, but got {kind_of(graph)}")
    listed = list(graph) if nodes is None else list(nodes)
    number = {node: place for place, node in enumerate(listed)}
    if len(number) != len(listed):
        raise OperandError("nodes contains a node twice")
    unknown = [node for node in listed if node not in graph]
    if unknown:
        raise OperandError(f"nodes contains {unknown[0]!r}, which is not a node of the graph")
    edges = [
        (number[source], number[target], 1 if weight is None else data.get(weight, 1))
        for source, target, data in graph.edges(data=True)
        if source in number and target in number
    ]
    if not graph.is_directed():
        edges += [(target, source, value) for source, target, value in edges if source != target]
    values = _weights(edges, dtype)
    crd = torch.tensor([edge[:2] for edge in edges], dtype=torch.int64, device=values.device).reshape(-1, 2)
    return from_coordinates(crd.t(), values, (len(listed),) * 2, format)


def _weights(edges: list[tuple[int, int, Any]], dtype: torch.dtype | None) -> torch.Tensor:
    """Return the weights in torch's default dtype, but integers other than 1 as int64."""
    weights = [edge[2] for edge in edges]
    if dtype is None and all(value == 1 for value in weights):
        dtype = torch.get_default_dtype()
    return as_values("the weights of the edges", weights, dtype)


@suggests_keywords
def to_networkx(S: SparseTensor, create_using: Any = None, weight: str = "weight") -> Any:
    """Convert a square sparse matrix to a NetworkX graph with an edge for every stored element.

    Args:
        S: the adjacency matrix.
        create_using: the kind of graph; ``networkx.DiGraph`` without it.
        weight: the edge attribute that receives the values.

    Returns:
        A NetworkX graph whose nodes are 0, 1, ...

    Raises:
        OperandError: ``S`` is not a sparse tensor.
        ShapeError: the matrix is not square.
        UnsupportedError: NetworkX is not installed.

    Example:

        >>> import scorch
        >>> scorch.to_networkx(scorch.eye(3, format="csr")).number_of_edges()
        3
    """
    check_sparse("to_networkx", S)
    module = optional_module("networkx", "networkx")
    rows, columns = sparse_sizes(S)
    if rows != columns or S.dim() != 2:
        raise ShapeError(f"expected a square matrix, but got shape {tuple(S.shape)}")
    graph = module.empty_graph(rows, create_using=create_using or module.DiGraph)
    row, column, value = coo(S)
    graph.add_weighted_edges_from(
        zip(row.tolist(), column.tolist(), value.tolist(), strict=True), weight=weight
    )
    return graph
