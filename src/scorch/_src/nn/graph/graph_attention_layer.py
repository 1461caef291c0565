"""Graph attention with the names, arguments, parameters and results of PyG, as one fused kernel.

See ``nn.graph.graph_layers`` for how to call a layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Parameter

from scorch._src.backends.by_torch.graphs import Scores
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.graph.graph_inputs import (
    Nodes,
    as_pair,
    check_channels,
    glorot,
    glorot_linear,
    project,
    reset_linear,
    split_nodes,
)
from scorch._src.nn.layer import KernelLayer
from scorch._src.ops.graph.aggregate import to_dtype, to_kernel_dtype
from scorch._src.ops.graph.edge_attention import attend_with_weights, weights_as_given
from scorch._src.ops.graph.edge_features import FILLS
from scorch._src.ops.graph.neighbours import attend_neighbours, attended_edges, refuse_shards
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, OperandError


class AttentionLayer(KernelLayer):
    """What graph layers with attention share: arguments, features of edges, and what follows the heads."""

    lin_edge: Linear | None
    res: Linear | None
    bias: Tensor | None
    fill_value: Any

    def _initialize(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int,
        concat: bool,
        dropout: float,
        edge_dim: int | None,
        fill_value: Any = "mean",
    ) -> tuple[int, int]:
        """Check and keep the arguments; return the numbers of features of sources and targets."""
        super().__init__()
        check_channels(out_channels=out_channels, heads=heads)
        if edge_dim is not None:
            check_channels(edge_dim=edge_dim)
        if isinstance(fill_value, str) and fill_value not in FILLS:
            raise ArgumentError(
                f"fill_value must be a number, a tensor or one of {', '.join(FILLS)}, but got {fill_value!r}"
            )
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"dropout must be between 0 and 1, but got {dropout}")
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.dropout = concat, dropout
        self.edge_dim, self.fill_value = edge_dim, fill_value
        self._channels = as_pair(in_channels)
        return self._channels

    def _has_features(self, adj: Any, edge_attr: Tensor | None) -> bool:
        """Whether the edges of a call have features; an error if the layer was not made for them."""
        is_matrix = isinstance(adj, SparseTensor)
        if self.lin_edge is not None:
            return edge_attr is not None or is_matrix
        if edge_attr is not None or (is_matrix and adj.dim() == 3):
            name = type(self).__name__
            raise ArgumentError(
                f"the edges have features (edge_attr); pass their number to {name} as edge_dim"
            )
        return False

    def _filling(self, like: Tensor) -> tuple[str, Tensor | None]:
        """Return how to compute the features of added self-loops, and these if they are given."""
        if isinstance(self.fill_value, str):
            return self.fill_value, None
        return "mean", torch.as_tensor(self.fill_value, dtype=like.dtype, device=like.device)

    def _join_heads(self, heads: Tensor) -> Tensor:
        """Concatenate heads of shape (nodes, heads, features), or average them."""
        return heads.flatten(1) if self.concat else heads.mean(1)

    def _finish(self, out: Tensor, targets: Tensor | None) -> Tensor:
        """Add the projection of the targets and the bias, if the layer has them."""
        if self.res is not None and targets is not None:
            out = out + project(self.res, targets)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


class GATConv(AttentionLayer):
    """Graph attention (Veličković et al. 2018), like ``torch_geometric.nn.GATConv``.

    Computes ``sum_j P[i,j] W x[j] + b``, where each row of P is the softmax over the neighbors of the scores
    ``leaky_relu(a_src W x[j] + a_dst W x[i])``. The scores, the softmax and the sum are one fused kernel,
    which stores no features per edge.

    Args:
        in_channels: the number of input features, or a pair for sources and targets; -1 infers it from the
            first input.
        out_channels: the number of output features per head.
        heads: the number of attention heads.
        concat: whether to concatenate the heads; they are averaged otherwise.
        negative_slope: the slope of the leaky ReLU.
        dropout: the probability of dropping an attention weight in training.
        add_self_loops: whether to make every node a neighbor of itself, once.
        edge_dim: the number of edge features, if edges have features. The scores then have another term,
            ``a_edge W_edge e[i,j]``.
        fill_value: the features of added self-loops: a reduction (``"mean"``, ``"add"``, ``"max"``, ``"min"``
            or ``"mul"``) of the features of all other edges that end at the node, a number or a tensor.
        bias: whether to add a learned bias.
        residual: whether to add a learned projection of the target features.

    Raises:
        ArgumentError: a size is not a positive integer, or ``dropout`` is not a probability.

    Example:

        >>> import torch, scorch
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])  # sources, targets
        >>> layer = scorch.nn.GATConv(8, 4, heads=2)
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
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: Any = "mean",
        bias: bool = True,
        residual: bool = False,
    ) -> None:
        sources, targets = self._initialize(
            in_channels, out_channels, heads, concat, dropout, edge_dim, fill_value
        )
        self.negative_slope, self.add_self_loops, self.residual = negative_slope, add_self_loops, residual
        width = out_channels * heads
        self.lin = glorot_linear(sources, width) if isinstance(in_channels, int) else None
        self.lin_src = None if self.lin is not None else glorot_linear(sources, width)
        self.lin_dst = None if self.lin is not None else glorot_linear(targets, width)
        self.att_src = Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, bias=False)
        self.att_edge = None if edge_dim is None else Parameter(torch.empty(1, heads, out_channels))
        last = width if concat else out_channels
        self.res = glorot_linear(targets, last) if residual else None
        self.bias = Parameter(torch.empty(last)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters as PyG does."""
        for module in (self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res):
            if module is not None:
                reset_linear(module)
        for attention in (self.att_src, self.att_dst, self.att_edge):
            if attention is not None:
                glorot(attention)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Nodes,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Return the new features of the targets.

        Args:
            x: the node features, or a pair (sources, targets).
            edge_index: the edges of shape (2, edges), or a sparse matrix of shape (targets, sources).
            edge_attr: the edge features, one row per edge of ``edge_index`` or per stored element of the
                matrix in the order of its ``values()``. By default, they are the values of the matrix, or of
                a tensor (targets, sources, features) in format ``dsd``.
            size: the numbers (sources, targets), if ``x`` has no features of the targets.
            return_attention_weights: whether to also return the attention weights.

        Returns:
            The new features. With ``return_attention_weights``, a pair of the features and the attention
            weights: ``(edges, weights)`` with added self-loops at the end if ``edge_index`` is one, or a
            sparse tensor of shape (targets, sources, heads) if it is a matrix.
        """
        sources, targets, shape = split_nodes(x, self._channels, edge_index, size)
        features, of_sources, of_targets = self._scores(sources, targets, shape[0])
        dropout = self.dropout if self.training else 0.0
        nodes = [to_kernel_dtype(tensor) for tensor in (features, of_sources, of_targets)]
        edges, weights = self._edges(edge_index, edge_attr), None
        if return_attention_weights:
            heads, weights = self._attend_with_weights(edge_index, nodes, dropout, edges)
        else:
            options: Any = (*nodes, self.negative_slope, dropout, self.add_self_loops, *edges)
            heads = attend_neighbours(edge_index, *options)
        out = self._finish(self._join_heads(to_dtype(heads, features.dtype)), targets)
        return (out, weights) if return_attention_weights else out

    def _attend_with_weights(
        self, adj: Tensor, nodes: list[Tensor], dropout: float, edges: tuple[Any, ...]
    ) -> tuple[Tensor, Any]:
        refuse_shards(adj, "return_attention_weights")
        x, of_sources, of_targets = nodes
        graph, scores = attended_edges(adj, (len(of_targets), len(x)), self.add_self_loops, *edges)
        every = Scores(of_sources, of_targets, scores)
        heads, weights = attend_with_weights(graph, x, every, self.negative_slope, dropout, True)
        assert weights is not None
        return heads, weights_as_given(adj, graph, weights, self.add_self_loops)

    def _edges(self, adj: Tensor, edge_attr: Tensor | None) -> tuple[Any, ...]:
        """Return the edge features, their projection to scores, and the features of added self-loops."""
        if not self._has_features(adj, edge_attr):
            return ()
        assert self.lin_edge is not None and self.att_edge is not None
        is_sparse = isinstance(edge_attr, SparseTensor)
        if is_sparse or (edge_attr is not None and not isinstance(edge_attr, Tensor)):
            raise OperandError("edge_attr must be a dense tensor with one row per edge")
        weight = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        project = (weight * self.att_edge.view(self.heads, self.out_channels, 1)).sum(1).t()
        return edge_attr, to_kernel_dtype(project), *self._filling(project)

    def _scores(self, sources: Tensor, targets: Tensor | None, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features of the sources, and the scores of sources and targets per head."""
        first = self.lin or self.lin_src
        assert first is not None
        features = project(first, sources)
        heads = self.heads
        if targets is sources and self.lin is not None:
            both = features @ _blocks(torch.cat([self.att_src, self.att_dst]))
            of_sources, of_targets = both.split(heads, 1)
        else:
            of_sources = features @ _blocks(self.att_src)
            of_targets = features.new_zeros(count, heads)
            if targets is not None:
                second = self.lin or self.lin_dst
                assert second is not None
                of_targets = project(second, targets) @ _blocks(self.att_dst)
        return features.view(-1, heads, self.out_channels), of_sources, of_targets


def _blocks(attention: Tensor) -> Tensor:
    """Arrange vectors (n, heads, features) as n block matrices (heads * features, heads), side by side."""
    number, heads, _ = attention.shape
    if heads == 1:
        return attention.view(number, -1).t()
    blocks = torch.diag_embed(attention.permute(2, 0, 1), dim1=0, dim2=3)  # (heads, features, n, heads)
    return blocks.reshape(-1, number * heads)
