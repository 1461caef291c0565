"""Graph layers with the names, arguments, parameters and results of PyG, computed by Scorch's kernels.

Call a layer as ``layer(x, graph)``. The graph is a sparse matrix of shape (targets, sources), so that
``out[i] = sum_j A[i,j] * x[j]``, or PyG's ``edge_index`` of shape (2, edges): sources in its first row,
targets in its second. Both are analyzed once and cached (see ``ops.graph``). ``scorch.from_edge_index`` puts
sources in rows; its transpose, ``.T``, is the matrix for a layer.

The values of a matrix are edge weights for ``GCNConv``; the other layers use only its sparsity pattern.
``x`` may be a sparse matrix in layers that multiply it by their weight first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_exporting
from torch.nn import Module, Parameter

from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.graph.graph_inputs import (
    Nodes,
    as_input,
    as_pair,
    check_channels,
    exchange_aggr_buffers,
    glorot_linear,
    make_linear,
    reset_linear,
    settle,
    split_nodes,
)
from scorch._src.nn.layer import KernelLayer
from scorch._src.ops.graph.aggregate import (
    as_nodes,
    dense_linear,
    sparse_linear,
    to_dtype,
    to_kernel_dtype,
)
from scorch._src.ops.graph.aggregations import Names, aggregate_neighbours, check_aggr
from scorch._src.ops.graph.neighbours import sum_neighbours
from scorch._src.statements.autocast import check_same_dtype
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, OperandError, UnsupportedError, kind_of


class GCNConv(KernelLayer):
    """Graph convolution (Kipf and Welling 2017), like ``torch_geometric.nn.GCNConv``.

    Computes ``D^-1/2 (A + I) D^-1/2 x W + b`` with the degrees D of A + I. The normalized matrix is cached
    with the graph.

    Args:
        in_channels: the number of input features; -1 infers it from the first input.
        out_channels: the number of output features.
        improved: whether to add 2 I instead of I.
        cached: whether to use the graph of the first call in all later calls, like PyG.
        add_self_loops: whether to add I; by default if ``normalize``. Self-loops of A keep their weights.
        normalize: whether to normalize by the degrees.
        bias: whether to add a learned bias.

    Raises:
        ArgumentError: a size is not a positive integer, or ``add_self_loops`` without ``normalize``.

    Example:

        >>> import torch, scorch
        >>> adjacency = scorch.from_torch(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), format="csr")
        >>> layer = scorch.nn.GCNConv(4, 2)
        >>> layer(torch.ones(2, 4), adjacency).shape
        torch.Size([2, 2])
    """

    @suggests_keywords
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_channels(lazy=True, in_channels=in_channels)
        check_channels(out_channels=out_channels)
        if add_self_loops and not normalize:
            raise ArgumentError(
                "add_self_loops=True requires normalize=True; otherwise, add the self-loops to the graph"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.lin = glorot_linear(in_channels, out_channels)
        self.bias = Parameter(torch.empty(out_channels)) if bias else None
        self._first: Any = None  # pickles have this name
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters as PyG does, and drop the cached graph."""
        reset_linear(self.lin)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._first = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return the new node features.

        Args:
            x: the node features, dense or sparse.
            edge_index: the edges of shape (2, edges), or a sparse matrix of shape (targets, sources).
            edge_weight: the weights of the edges of ``edge_index``.
        """
        if isinstance(x, (tuple, list)) and any(isinstance(each, Tensor) for each in x):
            raise UnsupportedError(
                "GCNConv does not support bipartite graphs; use SAGEConv for a pair (sources, targets)"
            )
        x, weight = as_input(self.lin, x)
        if self.cached:
            if self._first is None and not is_exporting():
                self._first = edge_index, edge_weight
            edge_index, edge_weight = self._first or (edge_index, edge_weight)
        nodes, bias = x.shape[0], self.bias
        loop = (2.0 if self.improved else 1.0) if self.add_self_loops else None
        how = "normalised" if self.normalize else "weights"
        if not isinstance(x, SparseTensor) and _aggregates_first(x, weight):
            aggregated = sum_neighbours(edge_index, to_kernel_dtype(x), nodes, how, loop, edge_weight)
            return dense_linear(to_dtype(aggregated, weight.dtype), weight, bias)
        product = to_kernel_dtype(sparse_linear(x, weight))
        added = None if bias is None else to_kernel_dtype(bias)
        out = sum_neighbours(edge_index, product, nodes, how, loop, edge_weight, added)
        return to_dtype(out, weight.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


def _aggregates_first(x: Tensor, weight: Tensor) -> bool:
    """Whether (A x) W is less work than A (x W), including the backward pass."""
    outputs, inputs = weight.shape
    if inputs < outputs or inputs >= 2 * outputs:
        return inputs < outputs
    # the gradient of the weight takes a product with A after x W, and none before it
    return torch.is_grad_enabled() and weight.requires_grad and not x.requires_grad


class SAGEConv(KernelLayer):
    """GraphSAGE layer (Hamilton, Ying and Leskovec 2017), like ``torch_geometric.nn.SAGEConv``.

    Computes ``W_l aggr_j(x[j]) + b + W_r x[i]`` over the neighbors j of i.

    Args:
        in_channels: the number of input features, or a pair for sources and targets; -1 infers it from the
            first input.
        out_channels: the number of output features.
        aggr: ``"mean"``, ``"sum"`` (or ``"add"``), ``"max"``, ``"min"``, ``"mul"``, ``"var"``, ``"std"``,
            ``"softmax"`` or ``"median"``, or a list of these, whose results are concatenated.
        normalize: whether to normalize each output row to unit length.
        root_weight: whether to add ``W_r x[i]``.
        project: whether to apply a linear layer and a ReLU to the sources first.
        bias: whether to add a learned bias.

    Raises:
        ArgumentError: a size is not a positive integer, or ``aggr`` is unknown.

    Example:

        >>> import torch, scorch
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> layer = scorch.nn.SAGEConv(8, 4, aggr=["mean", "max"])
        >>> layer(torch.ones(3, 8), edge_index).shape
        torch.Size([3, 4])
    """

    @suggests_keywords
    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: Names = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_channels(out_channels=out_channels)
        self.aggr = check_aggr(aggr)
        exchange_aggr_buffers(self)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        sources, targets = self._channels = as_pair(in_channels)
        if project and sources == -1:
            raise ArgumentError("project=True needs in_channels, which cannot be inferred")
        if project:
            self.lin = make_linear(sources, sources)
        parts = 1 if isinstance(aggr, str) else len(aggr)
        self.lin_l = make_linear(sources if sources == -1 else parts * sources, out_channels, bias)
        if root_weight:
            self.lin_r = make_linear(targets, out_channels, bias=False)

    def reset_parameters(self) -> None:
        """Reset all parameters."""
        for module in self.children():
            module.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Nodes, edge_index: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """Return the new features of the targets.

        Args:
            x: the node features, or a pair (sources, targets) for bipartite graphs; the targets may be None.
            edge_index: the edges of shape (2, edges), or a sparse matrix of shape (targets, sources).
            size: the numbers (sources, targets), if ``x`` has no features of the targets.
        """
        sources, targets, shape = split_nodes(x, self._channels, edge_index, size)
        if self.project:
            sources = sparse_linear(sources, self.lin.weight, self.lin.bias).relu()
        out = self._neighbours(sources, edge_index, shape[0])
        if self.root_weight and targets is not None:
            linear = self.lin_r
            settle(linear, targets)
            if linear.in_features != self._channels[1]:  # that were inferred
                as_nodes("x", targets, linear.in_features)
            root = linear.weight
            is_sparse = isinstance(targets, SparseTensor)
            out = out + sparse_linear(targets, root) if is_sparse else torch.addmm(out, targets, root.t())
        return F.normalize(out, dim=-1) if self.normalize else out

    def _neighbours(self, x: Tensor, adj: Tensor, targets: int) -> Tensor:
        is_sparse, is_linear = isinstance(x, SparseTensor), self.aggr in ("mean", "sum", "add")
        linear = self.lin_l
        if not is_linear:
            if is_sparse:
                raise UnsupportedError(
                    f"SAGEConv with aggr={self.aggr!r} needs dense features; pass x.to_dense()"
                )
            aggregated = aggregate_neighbours(adj, to_kernel_dtype(x), targets, self.aggr)
            settle(linear, aggregated)
            check_same_dtype("x", x, linear.weight)
            return dense_linear(to_dtype(aggregated, linear.weight.dtype), linear.weight, linear.bias)
        settle(linear, x)
        if linear.in_features != self._channels[0]:  # that were inferred
            as_nodes("x", x, linear.in_features)
        weight, bias = linear.weight, linear.bias
        check_same_dtype("x", x, weight)
        how, dtype = "mean" if self.aggr == "mean" else "sum", weight.dtype
        if not is_sparse and weight.shape[1] <= weight.shape[0]:
            aggregated = sum_neighbours(adj, to_kernel_dtype(x), targets, how)
            return dense_linear(to_dtype(aggregated, dtype), weight, bias)
        # sums and means are linear, so they may be taken of the fewer features after the weight
        product = to_kernel_dtype(sparse_linear(x, weight))
        added = None if bias is None else to_kernel_dtype(bias)
        return to_dtype(sum_neighbours(adj, product, targets, how, bias=added), dtype)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"


class GINConv(KernelLayer):
    """Graph isomorphism layer (Xu et al. 2019), like ``torch_geometric.nn.GINConv``.

    Computes ``nn((1 + eps) x[i] + sum_j x[j])`` over the neighbors j of i.

    Args:
        nn: the module that is applied to the aggregated features.
        eps: the (initial) value of eps.
        train_eps: whether to train eps.
        aggr: the aggregation, one of those of ``SAGEConv``.

    Raises:
        ArgumentError: ``aggr`` is unknown.
        OperandError: ``nn`` is no module.

    Example:

        >>> import torch, scorch
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> layer = scorch.nn.GINConv(torch.nn.Linear(8, 4))
        >>> layer(torch.ones(3, 8), edge_index).shape
        torch.Size([3, 4])
    """

    eps: Tensor
    aggr: Names = "add"  # of pickles that have none

    @suggests_keywords
    def __init__(self, nn: Module, eps: float = 0.0, train_eps: bool = False, aggr: str = "add") -> None:
        super().__init__()
        if not callable(nn):
            raise OperandError(f"nn must be a module, such as torch.nn.Linear(8, 4), but got {kind_of(nn)}")
        self.nn, self.initial_eps, self.aggr = nn, eps, check_aggr(aggr)
        exchange_aggr_buffers(self)
        start = torch.full((1,), float(eps))
        if train_eps:
            self.eps = Parameter(start)
        else:
            self.register_buffer("eps", start)

    def reset_parameters(self) -> None:
        """Reset the parameters of ``nn``, and eps to its initial value."""
        for module in self.nn.modules():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, x: Nodes, edge_index: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """Return the new features of the targets; the arguments are those of ``SAGEConv.forward``."""
        first, second = x if isinstance(x, (tuple, list)) else (x, x)
        widths = tuple(x.shape[-1] if isinstance(x, Tensor) and x.dim() else 0 for x in (first, second))
        sources, targets, shape = split_nodes((first, second), (widths[0], widths[1]), edge_index, size)
        if isinstance(sources, SparseTensor) or isinstance(targets, SparseTensor):
            raise UnsupportedError("GINConv needs dense features; pass x.to_dense()")
        features = to_kernel_dtype(sources)
        neighbours = aggregate_neighbours(edge_index, features, shape[0], self.aggr).to(sources.dtype)
        out: Tensor = self.nn(neighbours if targets is None else neighbours + (1 + self.eps) * targets)
        return out
