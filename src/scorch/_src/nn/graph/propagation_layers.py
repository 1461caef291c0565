"""Layers that repeat the step of ``GCNConv``: ``SGConv`` and ``APPNP``, as in PyG."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module

from scorch._src.nn.graph.graph_inputs import check_channels, make_linear, settle
from scorch._src.ops.graph.aggregate import check_nodes, sparse_linear, sum_weighted, to_kernel_dtype
from scorch._src.ops.graph.neighbours import refuse_shards, sum_neighbours, weighted_graph_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, UnsupportedError


def _check_steps(steps: Any) -> None:
    if not isinstance(steps, int) or steps < 0:
        raise ArgumentError(f"K is {steps!r}; it is how often neighbours are summed, 0 or more")


class SGConv(Module):
    """``(D^-1/2 (A + I) D^-1/2)^K x W + b`` (Wu and others), with the degrees D of A + I.

    ``cached`` keeps the features of the first call after K steps, as PyG does. Without it the steps are taken
    with the fewer features, before or after the weight.
    """

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
        self.lin.reset_parameters()
        self._cached_x = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        settle(self.lin, x)
        weight, bias = self.lin.weight, self.lin.bias
        check_nodes("x", x, weight.shape[1])
        if self.cached:
            if self._cached_x is None:
                self._cached_x = self._propagate(x, edge_index, edge_weight)
            return F.linear(self._cached_x.to(weight.dtype), weight, bias)
        if not isinstance(x, SparseTensor) and weight.shape[1] <= weight.shape[0]:
            return F.linear(self._propagate(x, edge_index, edge_weight).to(weight.dtype), weight, bias)
        out = self._propagate(sparse_linear(x, weight), edge_index, edge_weight).to(weight.dtype)
        return out if bias is None else out + bias

    def _propagate(self, x: Tensor, adj: Tensor, edge_weight: Tensor | None) -> Tensor:
        if isinstance(x, SparseTensor):
            raise UnsupportedError("SGConv with cached=True takes dense features: x.to_dense()")
        x, loop = to_kernel_dtype(x), 1.0 if self.add_self_loops else None
        for _ in range(self.K):
            x = sum_neighbours(adj, x, x.shape[0], "normalised", loop, edge_weight)
        return x

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, K={self.K}"


class APPNP(Module):
    """Personalised PageRank of features (Klicpera and others): K times ``(1 - alpha) Â z + alpha x``.

    Â is the normalised matrix of ``GCNConv``, or without ``normalize`` the graph's. In training ``dropout``
    drops entries of it in each step, where edges that repeat are one entry. ``cached`` keeps the graph of the
    first call.
    """

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
            raise ArgumentError(f"dropout must be a probability between 0 and 1, not {dropout}")
        self.K, self.alpha, self.dropout = K, alpha, dropout
        self.cached, self.add_self_loops, self.normalize = cached, add_self_loops, normalize
        self._first: Any = None

    def reset_parameters(self) -> None:
        self._first = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        check_nodes("x", x, -1)
        if isinstance(x, SparseTensor):
            raise UnsupportedError("APPNP takes dense features: x.to_dense()")
        if self.cached:
            self._first = self._first or (edge_index, edge_weight)
            edge_index, edge_weight = self._first
        start = z = to_kernel_dtype(x)
        for _ in range(self.K):
            z = torch.lerp(self._step(z, edge_index, edge_weight), start, self.alpha)
        return z.to(x.dtype)

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
