"""Graph attention layers whose scores depend jointly on both ends of an edge.

``GATv2Conv`` and ``TransformerConv`` have the names, arguments, parameters and results of PyG's layers. The
scores are one statement over the edges; the softmax and the sum over neighbors are one kernel. See
``nn.graph.graph_layers`` for how to call a layer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter

from scorch._src.backends.routines import Scores
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.graph.graph_attention_layer import check_attention, join_heads
from scorch._src.nn.graph.graph_inputs import (
    Nodes,
    as_pair,
    glorot,
    glorot_linear,
    make_linear,
    project,
    reset_linear,
    split_nodes,
)
from scorch._src.ops.graph.aggregate import sum_heads, to_kernel_dtype
from scorch._src.ops.graph.edge_attention import (
    additive_scores,
    additive_scores_with,
    attend_with_weights,
    attention_weights,
    inner_products,
    sum_edge_features,
    weights_as_given,
)
from scorch._src.ops.graph.edge_features import graph_with_features
from scorch._src.ops.graph.graph import Graph
from scorch._src.ops.graph.neighbours import attended_edges, refuse_shards
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError


def _project_heads(linear: Linear, x: Tensor, heads: int) -> Tensor:
    """Return features for each head, in a dtype that kernels compute in."""
    return to_kernel_dtype(project(linear, x)).view(len(x), heads, linear.out_features // heads)


class _EdgeAttention(Module):
    """What both layers share: the graph, with the features of its edges."""

    edge_dim: int | None

    def _edges(
        self, adj: Any, shape: tuple[int, int], edge_attr: Tensor | None, loops: bool, fill: Any = "mean"
    ) -> tuple[Graph, Tensor | None]:
        """Return the graph, and the features of its edges if they have some."""
        refuse_shards(adj, type(self).__name__)
        is_matrix = isinstance(adj, SparseTensor)
        if self.edge_dim is None:
            if edge_attr is not None or (is_matrix and adj.dim() == 3):
                name = type(self).__name__
                raise ArgumentError(
                    f"the edges have features (edge_attr); pass their number to {name} as edge_dim"
                )
            return attended_edges(adj, shape, loops)[0], None
        if edge_attr is None and not is_matrix:
            return attended_edges(adj, shape, loops)[0], None
        filled = None if isinstance(fill, str) else torch.as_tensor(fill, device=adj.device)
        how = fill if isinstance(fill, str) else "mean"
        graph, features = graph_with_features(adj, shape, edge_attr, how if loops else None, filled)
        if features.shape[1] != self.edge_dim:
            raise ShapeError(f"edge_attr has {features.shape[1]} features, but edge_dim is {self.edge_dim}")
        return graph, features


class GATv2Conv(_EdgeAttention):
    """Graph attention v2 (Brody, Alon and Yahav 2022), like ``torch_geometric.nn.GATv2Conv``.

    Computes ``sum_j P[i,j] W_l x[j] + b``, where each row of P is the softmax over the neighbors of the
    scores ``a leaky_relu(W_l x[j] + W_r x[i] + W_e e[i,j])``. Unlike in ``GATConv``, the ranking of the
    neighbors can differ between nodes.

    Args:
        in_channels: the number of input features, or a pair for sources and targets; -1 infers it from the
            first input.
        out_channels: the number of output features per head.
        heads: the number of attention heads.
        concat: whether to concatenate the heads; they are averaged otherwise.
        negative_slope: the slope of the leaky ReLU.
        dropout: the probability of dropping an attention weight in training.
        add_self_loops: whether to add a self-loop to every node.
        edge_dim: the number of edge features, if edges have features.
        fill_value: the features of added self-loops, as in ``GATConv``.
        bias: whether to add a learned bias.
        share_weights: whether W_r is W_l.
        residual: whether to add a learned projection of the target features.

    Raises:
        ArgumentError: a size is not a positive integer, or ``dropout`` is not a probability.

    Example:

        >>> import torch, scorch
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> layer = scorch.nn.GATv2Conv(8, 4, heads=2, edge_dim=3)
        >>> layer(torch.ones(3, 8), edge_index, edge_attr=torch.ones(3, 3)).shape
        torch.Size([3, 8])
    """

    @suggests_keywords
    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: Any = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        check_attention(out_channels, heads, edge_dim, fill_value, dropout)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.fill_value = add_self_loops, edge_dim, fill_value
        self.share_weights, self.residual = share_weights, residual
        sources, targets = self._channels = as_pair(in_channels)
        width = heads * out_channels
        self.lin_l = glorot_linear(sources, width, bias)
        self.lin_r = self.lin_l if share_weights else glorot_linear(targets, width, bias)
        self.att = Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else glorot_linear(edge_dim, width)
        last = width if concat else out_channels
        self.res = glorot_linear(targets, last) if residual else None
        self.bias = Parameter(torch.empty(last)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters as PyG does."""
        for module in (self.lin_l, self.lin_r, self.lin_edge, self.res):
            if module is not None:
                reset_linear(module)
        glorot(self.att)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Nodes,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Return the new features of the targets; see ``GATConv.forward`` for the arguments."""
        sources, targets, shape = split_nodes(x, self._channels, edge_index, None)
        if targets is None:
            raise ArgumentError(
                "GATv2Conv needs features of the targets; pass x as a pair (sources, targets)"
            )
        loops = self.add_self_loops
        graph, features = self._edges(edge_index, shape, edge_attr, loops, self.fill_value)
        left = _project_heads(self.lin_l, sources, self.heads)
        is_same = self.share_weights and targets is sources
        right = left if is_same else _project_heads(self.lin_r, targets, self.heads)
        scores = self._scores(graph, left, right, features)
        dropout = self.dropout if self.training else 0.0
        heads, weights = attend_with_weights(
            graph, left, scores, 1.0, dropout, bool(return_attention_weights)
        )
        out = join_heads(heads, self.concat).to(self.att.dtype)
        if self.res is not None:
            out = out + project(self.res, targets)
        out = out if self.bias is None else out + self.bias
        return out if weights is None else (out, weights_as_given(edge_index, graph, weights, loops))

    def _scores(self, graph: Graph, left: Tensor, right: Tensor, features: Tensor | None) -> Scores:
        attention = self.att.squeeze(0).to(left.dtype)
        if features is None or self.lin_edge is None:
            return additive_scores(graph, left, right, attention, self.negative_slope)
        edges = (features.to(left.dtype) @ self.lin_edge.weight.t().to(left.dtype)).view(-1, *left.shape[1:])
        return additive_scores_with(graph, left, right, attention, self.negative_slope, edges)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


class TransformerConv(_EdgeAttention):
    """Graph transformer layer (Shi et al. 2021), like ``torch_geometric.nn.TransformerConv``.

    Computes ``W_1 x[i] + sum_j P[i,j] (W_2 x[j] + W_6 e[i,j])``, where each row of P is the softmax over the
    neighbors of the scaled dot products of the queries ``W_3 x[i]`` and the keys ``W_4 x[j] + W_6 e[i,j]``.

    Args:
        in_channels: the number of input features, or a pair for sources and targets; -1 infers it from the
            first input.
        out_channels: the number of output features per head.
        heads: the number of attention heads.
        concat: whether to concatenate the heads; they are averaged otherwise.
        beta: whether to learn a gate between the first term and the sum.
        dropout: the probability of dropping an attention weight in training.
        edge_dim: the number of edge features, if edges have features; pass them as for ``GATConv``.
        bias: whether the projections have a bias.
        root_weight: whether to add the first term, ``W_1 x[i]``.

    Raises:
        ArgumentError: a size is not a positive integer, or ``dropout`` is not a probability.

    Example:

        >>> import torch, scorch
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> layer = scorch.nn.TransformerConv(8, 4, heads=2)
        >>> layer(torch.ones(3, 8), edge_index).shape
        torch.Size([3, 8])
    """

    @suggests_keywords
    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
    ) -> None:
        super().__init__()
        check_attention(out_channels, heads, edge_dim, "mean", dropout)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.dropout, self.edge_dim = concat, dropout, edge_dim
        self.root_weight, self.beta = root_weight, beta and root_weight
        sources, targets = self._channels = as_pair(in_channels)
        width = heads * out_channels
        self.lin_key = make_linear(sources, width, bias)
        self.lin_query = make_linear(targets, width, bias)
        self.lin_value = make_linear(sources, width, bias)
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, bias=False)
        last = width if concat else out_channels
        self.lin_skip = make_linear(targets, last, bias)
        self.lin_beta = Linear(3 * last, 1, bias=False) if self.beta else None

    def reset_parameters(self) -> None:
        """Reset all parameters."""
        for module in self.children():
            module.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        x: Nodes,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Return the new features of the targets; see ``GATConv.forward`` for the arguments."""
        sources, targets, shape = split_nodes(x, self._channels, edge_index, None)
        if targets is None:
            raise ArgumentError(
                "TransformerConv needs features of the targets; pass x as a pair (sources, targets)"
            )
        if self.edge_dim is not None and edge_attr is None and not isinstance(edge_index, SparseTensor):
            raise ArgumentError(f"TransformerConv with edge_dim={self.edge_dim} needs edge_attr")
        graph, features = self._edges(edge_index, shape, edge_attr, False)
        queries = _project_heads(self.lin_query, targets, self.heads) / math.sqrt(self.out_channels)
        keys, values = (
            _project_heads(linear, sources, self.heads) for linear in (self.lin_key, self.lin_value)
        )
        heads, weights = self._attend(graph, queries, keys, values, features, bool(return_attention_weights))
        out = self._add_root(join_heads(heads, self.concat).to(self.lin_key.weight.dtype), targets)
        return out if weights is None else (out, weights_as_given(edge_index, graph, weights, False))

    def _attend(
        self,
        graph: Graph,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        features: Tensor | None,
        wants_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of each head, and if requested the attention weights before dropout."""
        nothing = keys.new_zeros(keys.shape[:2]), queries.new_zeros(queries.shape[:2])
        products = inner_products(graph, queries, keys)
        dropout = self.dropout if self.training else 0.0
        if features is None and not wants_weights:
            return attend_with_weights(graph, values, Scores(*nothing, products), 1.0, dropout, False)
        dtype, weight = values.dtype, None
        if features is not None and self.lin_edge is not None:
            features = features.to(dtype)
            weight = self.lin_edge.weight.to(dtype).view(self.heads, self.out_channels, -1)
            # q W e is (q W) e, so that nothing as wide as the heads is made for each edge
            towards = torch.einsum("ihc,hcd->ihd", queries, weight)[graph.targets]
            products = products + torch.einsum("ehd,ed->eh", towards, features)
        weights = attention_weights(graph, Scores(*nothing, products), 1.0)
        kept = torch.nn.functional.dropout(weights, dropout)
        heads = sum_heads(graph, kept, values)
        if weight is not None and features is not None:
            summed = sum_edge_features(graph, kept, features)
            heads = heads + torch.einsum("ihd,hcd->ihc", summed, weight)
        return heads, weights if wants_weights else None

    def _add_root(self, out: Tensor, targets: Tensor) -> Tensor:
        if not self.root_weight:
            return out
        root = project(self.lin_skip, targets)
        if self.lin_beta is None:
            return out + root
        share = self.lin_beta(torch.cat([out, root, out - root], -1)).sigmoid()
        return torch.lerp(out, root, share)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
