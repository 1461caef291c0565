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
from torch.nn import Linear, Parameter

from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.graph.graph_attention_layer import AttentionLayer
from scorch._src.nn.graph.graph_inputs import (
    Nodes,
    glorot,
    glorot_linear,
    make_linear,
    project,
    reset_linear,
    split_nodes,
)
from scorch._src.ops.graph.aggregate import to_kernel_dtype
from scorch._src.ops.graph.edge_attention import attend_with_weights, weights_as_given
from scorch._src.ops.graph.joint_attention import (
    attend_additively,
    attend_by_products,
    attend_with_products,
    score_additively,
)
from scorch._src.ops.graph.neighbours import refuse_shards
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError


def _project_heads(linear: Linear, x: Tensor, heads: int) -> Tensor:
    """Return features for each head, in a dtype that kernels compute in."""
    return to_kernel_dtype(project(linear, x)).view(x.shape[0], heads, linear.out_features // heads)


class _EdgeAttention(AttentionLayer):
    """What both layers share: features of both ends of an edge, and of the edge itself."""

    def _nodes(self, x: Nodes, adj: Any) -> tuple[Tensor, Tensor]:
        """Return the features of sources and targets, both of which these layers need."""
        sources, targets, _ = split_nodes(x, self._channels, adj, None)
        if targets is None:
            raise ArgumentError(
                f"{type(self).__name__} needs features of the targets; pass x as a pair (sources, targets)"
            )
        return sources, targets

    def _features(self, adj: Any, edge_attr: Tensor | None, dtype: torch.dtype) -> tuple[Any, ...]:
        """Return the features of edges and their weight, or nothing if edges have none."""
        refuse_shards(adj, type(self).__name__)
        if not self._has_features(adj, edge_attr):
            return ()
        assert self.lin_edge is not None
        return edge_attr, self.lin_edge.weight.to(dtype)


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
        sources, targets = self._initialize(
            in_channels, out_channels, heads, concat, dropout, edge_dim, fill_value
        )
        self.negative_slope, self.add_self_loops = negative_slope, add_self_loops
        self.share_weights, self.residual = share_weights, residual
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
        sources, targets = self._nodes(x, edge_index)
        left = _project_heads(self.lin_l, sources, self.heads)
        is_same = self.share_weights and targets is sources
        right = left if is_same else _project_heads(self.lin_r, targets, self.heads)
        nodes = edge_index, left, right, self.att.squeeze(0).to(left.dtype), self.negative_slope
        features = self._features(edge_index, edge_attr, left.dtype)
        features = (*features, *self._filling(left)) if features else ()
        loops, weights, dropout = self.add_self_loops, None, self.dropout if self.training else 0.0
        if return_attention_weights:
            graph, scores = score_additively(*nodes, loops, *features)
            heads, weights = attend_with_weights(graph, left, scores, 1.0, dropout, True)
        else:
            heads = attend_additively(*nodes, dropout, loops, *features)
        out = self._finish(self._join_heads(heads).to(self.att.dtype), targets)
        return out if weights is None else (out, weights_as_given(edge_index, graph, weights, loops))


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
        sources, targets = self._initialize(in_channels, out_channels, heads, concat, dropout, edge_dim)
        self.root_weight, self.beta = root_weight, beta and root_weight
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
        sources, targets = self._nodes(x, edge_index)
        if self.edge_dim is not None and edge_attr is None and not isinstance(edge_index, SparseTensor):
            raise ArgumentError(f"TransformerConv with edge_dim={self.edge_dim} needs edge_attr")
        queries = _project_heads(self.lin_query, targets, self.heads) / math.sqrt(self.out_channels)
        keys, values = (
            _project_heads(linear, sources, self.heads) for linear in (self.lin_key, self.lin_value)
        )
        features = self._features(edge_index, edge_attr, keys.dtype)
        weights, dropout = None, self.dropout if self.training else 0.0
        if return_attention_weights:
            graph, heads, weights = attend_with_products(
                edge_index, queries, keys, values, dropout, *features
            )
        else:
            heads = attend_by_products(edge_index, queries, keys, values, dropout, *features)
        out = self._add_root(self._join_heads(heads).to(self.lin_key.weight.dtype), targets)
        return out if weights is None else (out, weights_as_given(edge_index, graph, weights, False))

    def _add_root(self, out: Tensor, targets: Tensor) -> Tensor:
        if not self.root_weight:
            return out
        root = project(self.lin_skip, targets)
        if self.lin_beta is None:
            return out + root
        share = self.lin_beta(torch.cat([out, root, out - root], -1)).sigmoid()
        return torch.lerp(out, root, share)
