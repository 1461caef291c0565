"""Layers that repeat the propagation step of ``GCNConv``: ``SGConv`` and ``APPNP``, as in PyG."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorch._src.grad_state import outside_modes
from scorch._src.name_hints import suggests_keywords
from scorch._src.nn.graph.graph_inputs import as_input, check_channels, make_linear
from scorch._src.nn.layer import KernelLayer
from scorch._src.ops.graph.aggregate import (
    as_nodes,
    dense_linear,
    sparse_linear,
    sum_weighted,
    to_dtype,
    to_kernel_dtype,
)
from scorch._src.ops.graph.neighbours import refuse_shards, sum_neighbours, weighted_graph_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, UnsupportedError


def _check_steps(steps: Any) -> None:
    if not isinstance(steps, int) or steps < 0:
        raise ArgumentError(f"K must be a non-negative integer, but got {steps!r}")


class SGConv(KernelLayer):
    """Simple graph convolution (Wu et al. 2019), like ``torch_geometric.nn.SGConv``.

    Computes ``(D^-1/2 (A + I) D^-1/2)^K x W + b`` with the degrees D of A + I. The K steps run before or
    after the product with W, whichever has fewer features.

    Args:
        in_channels: the number of input features; -1 infers it from the first input.
        out_channels: the number of output features.
        K: the number of propagation steps.
        cached: whether to cache the propagated features of the first call, like PyG.
        add_self_loops: whether to add I.
        bias: whether to add a learned bias.

    Raises:
        ArgumentError: a size is not a positive integer, or ``K`` is negative.

    Example:

        >>> import torch, scorch
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> scorch.nn.SGConv(8, 4, K=2)(torch.ones(3, 8), edge_index).shape
        torch.Size([3, 4])
    """

    @suggests_keywords
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        K: int = 1,
        cached: bool = False,
        add_self_loops: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_channels(lazy=True, in_channels=in_channels)
        check_channels(out_channels=out_channels)
        _check_steps(K)
        self.in_channels, self.out_channels, self.K = in_channels, out_channels, K
        self.cached, self.add_self_loops = cached, add_self_loops
        self.lin = make_linear(in_channels, out_channels, bias)
        self._cached_x: Tensor | None = None

    def reset_parameters(self) -> None:
        """Reset the linear layer, and drop the cached features."""
        self.lin.reset_parameters()
        self._cached_x = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return the new node features; the arguments are those of ``GCNConv.forward``."""
        x, weight = as_input(self.lin, x)
        bias = self.lin.bias
        if self.cached:
            if self._cached_x is None:
                self._cached_x = outside_modes(self._propagate)(x, edge_index, edge_weight)
            return dense_linear(to_dtype(self._cached_x, weight.dtype), weight, bias)
        if not isinstance(x, SparseTensor) and weight.shape[1] <= weight.shape[0]:
            propagated = self._propagate(x, edge_index, edge_weight)
            return dense_linear(to_dtype(propagated, weight.dtype), weight, bias)
        out = to_dtype(self._propagate(sparse_linear(x, weight), edge_index, edge_weight), weight.dtype)
        return out if bias is None else out + bias

    def _propagate(self, x: Tensor, adj: Tensor, edge_weight: Tensor | None) -> Tensor:
        if isinstance(x, SparseTensor):
            raise UnsupportedError("SGConv with cached=True needs dense features; pass x.to_dense()")
        x, loop = to_kernel_dtype(x), 1.0 if self.add_self_loops else None
        for _ in range(self.K):
            x = sum_neighbours(adj, x, x.shape[0], "normalised", loop, edge_weight)
        return x

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, K={self.K}"


class APPNP(KernelLayer):
    """Propagation by personalized PageRank (Klicpera et al. 2019), like ``torch_geometric.nn.APPNP``.

    Starts with ``z = x`` and repeats ``z = (1 - alpha) Â z + alpha x`` K times, where Â is the normalized
    adjacency matrix of ``GCNConv``.

    Args:
        K: the number of propagation steps.
        alpha: the probability of returning to the start.
        dropout: the probability of dropping an edge in each step in training; repeated edges are one edge.
        cached: whether to use the graph of the first call in all later calls, like PyG.
        add_self_loops: whether to add self-loops before normalizing.
        normalize: whether to normalize the adjacency matrix; it is used as it is otherwise.

    Raises:
        ArgumentError: ``K`` is negative, or ``dropout`` is not a probability.

    Example:

        >>> import torch, scorch
        >>> edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]])
        >>> scorch.nn.APPNP(K=10, alpha=0.1)(torch.ones(3, 4), edge_index).shape
        torch.Size([3, 4])
    """

    @suggests_keywords
    def __init__(
        self,
        K: int,
        alpha: float,
        dropout: float = 0.0,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        _check_steps(K)
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"dropout must be between 0 and 1, but got {dropout}")
        self.K, self.alpha, self.dropout = K, alpha, dropout
        self.cached, self.add_self_loops, self.normalize = cached, add_self_loops, normalize
        self._first: Any = None

    def reset_parameters(self) -> None:
        """Drop the cached graph."""
        self._first = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return the propagated features; the arguments are those of ``GCNConv.forward``, ``x`` is dense."""
        x = as_nodes("x", x, -1)
        if isinstance(x, SparseTensor):
            raise UnsupportedError("APPNP needs dense features; pass x.to_dense()")
        if self.cached:
            self._first = self._first or (edge_index, edge_weight)
            edge_index, edge_weight = self._first
        start = z = to_kernel_dtype(x)
        for _ in range(self.K):
            z = torch.lerp(self._step(z, edge_index, edge_weight), start, self.alpha)
        return to_dtype(z, x.dtype)

    def _step(self, x: Tensor, adj: Tensor, edge_weight: Tensor | None) -> Tensor:
        loop = 1.0 if self.normalize and self.add_self_loops else None
        how = "normalised" if self.normalize else "weights"
        if not (self.training and self.dropout):
            return sum_neighbours(adj, x, x.shape[0], how, loop, edge_weight)
        refuse_shards(adj, "APPNP with dropout")
        weighted = weighted_graph_of(adj, x, x.shape[0], how, loop, edge_weight)
        return sum_weighted(weighted.with_dropout(self.dropout), x)

    def extra_repr(self) -> str:
        return f"K={self.K}, alpha={self.alpha}"
