"""Graph layers with PyG's names, arguments, parameters and numbers, by Scorch's kernels.

A layer is called as ``layer(x, graph)``. The graph is a sparse matrix of targets x sources, so that
``out[i] = sum_j A[i,j] * x[j]``, or PyG's ``edge_index`` of shape (2, edges): sources in its first row,
targets in its second. Both are read once and remembered (see ``ops.graph``). ``scorch.from_edge_index`` puts
sources in rows; its transpose, ``.T``, is the matrix for a layer.

The values of a matrix are weights for ``GCNConv``; the other layers only look where entries are stored.
``x`` may be a sparse matrix where a layer multiplies it by its weight first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_exporting
from torch.nn import Module, Parameter

from scorch._src.nn.graph.graph_inputs import (
    Nodes,
    as_pair,
    check_channels,
    drop_aggr_buffers,
    glorot_linear,
    make_linear,
    reset_linear,
    settle,
    split_nodes,
)
from scorch._src.ops.graph.aggregate import check_nodes, sparse_linear, to_kernel_dtype
from scorch._src.ops.graph.aggregations import Names, aggregate_neighbours, check_aggr
from scorch._src.ops.graph.neighbours import sum_neighbours
from scorch._src.statements.autocast import check_same_dtype
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, UnsupportedError


class GCNConv(Module):
    """``D^-1/2 (A + I) D^-1/2 x W + b`` (Kipf and Welling), with the degrees D of A + I.

    ``improved`` adds 2 I. Loops that A has keep their weights. The normalised matrix is kept with the
    graph; ``cached`` keeps that of the first call whatever graph is given later, as PyG does.
    """

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
            raise ArgumentError("add_self_loops is part of normalize: give both or add the loops before")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.lin = glorot_linear(in_channels, out_channels)
        self.bias = Parameter(torch.empty(out_channels)) if bias else None
        self._first: Any = None  # pickles have this name
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset_linear(self.lin)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._first = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        if isinstance(x, (tuple, list)):
            raise UnsupportedError("GCNConv has one kind of nodes; SAGEConv takes a pair (sources, targets)")
        settle(self.lin, x)
        check_nodes("x", x, self.lin.in_features)
        if self.cached:
            if self._first is None and not is_exporting():
                self._first = edge_index, edge_weight
            edge_index, edge_weight = self._first or (edge_index, edge_weight)
        nodes, weight = x.shape[0], self.lin.weight
        check_same_dtype("x", x, weight)
        loop = (2.0 if self.improved else 1.0) if self.add_self_loops else None
        how = "normalised" if self.normalize else "weights"
        if not isinstance(x, SparseTensor) and self._aggregates_first(x):
            aggregated = sum_neighbours(edge_index, to_kernel_dtype(x), nodes, how, loop, edge_weight)
            return F.linear(aggregated.to(weight.dtype), weight, self.bias)
        product = to_kernel_dtype(sparse_linear(x, weight))
        bias = None if self.bias is None else to_kernel_dtype(self.bias)
        return sum_neighbours(edge_index, product, nodes, how, loop, edge_weight, bias).to(weight.dtype)

    def _aggregates_first(self, x: Tensor) -> bool:
        """Whether (A x) W is less work than A (x W), backward included."""
        needed = [torch.is_grad_enabled() and tensor.requires_grad for tensor in (x, self.lin.weight)]
        return self.lin.in_features * (1 + needed[0]) < self.out_channels * (1 + any(needed))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


class SAGEConv(Module):
    """``W_l * aggr over neighbours of x + b + W_r * x`` (Hamilton, Ying and Leskovec).

    ``aggr`` is ``mean``, ``sum`` (also ``add``), ``max``, ``min``, ``mul``, ``var``, ``std``, ``softmax`` or
    ``median``, or a list of these, whose results are put side by side. ``x`` is a pair (sources, targets) for
    graphs between two kinds of nodes. Features that are -1 are taken from the first input.
    """

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
        self.register_load_state_dict_pre_hook(drop_aggr_buffers)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        sources, targets = self._channels = as_pair(in_channels)
        if project and sources == -1:
            raise ArgumentError("project=True needs in_channels: it makes as many features as there are")
        if project:
            self.lin = make_linear(sources, sources)
        parts = 1 if isinstance(aggr, str) else len(aggr)
        self.lin_l = make_linear(sources if sources == -1 else parts * sources, out_channels, bias)
        if root_weight:
            self.lin_r = make_linear(targets, out_channels, bias=False)

    def reset_parameters(self) -> None:
        for module in self.children():
            module.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Nodes, edge_index: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        sources, targets, shape = split_nodes(x, self._channels, edge_index, size)
        if self.project:
            sources = sparse_linear(sources, self.lin.weight, self.lin.bias).relu()
        out = self._neighbours(sources, edge_index, shape[0])
        if self.root_weight and targets is not None:
            settle(self.lin_r, targets)
            check_nodes("x", targets, self.lin_r.in_features)
            root = self.lin_r.weight
            is_sparse = isinstance(targets, SparseTensor)
            out = out + sparse_linear(targets, root) if is_sparse else torch.addmm(out, targets, root.t())
        return F.normalize(out, dim=-1) if self.normalize else out

    def _neighbours(self, x: Tensor, adj: Tensor, targets: int) -> Tensor:
        is_sparse, is_linear = isinstance(x, SparseTensor), self.aggr in ("mean", "sum", "add")
        if not is_linear:
            if is_sparse:
                raise UnsupportedError(f"SAGEConv with aggr={self.aggr!r} takes dense features: x.to_dense()")
            aggregated = aggregate_neighbours(adj, to_kernel_dtype(x), targets, self.aggr)
            settle(self.lin_l, aggregated)
            check_same_dtype("x", x, self.lin_l.weight)
            return F.linear(aggregated.to(self.lin_l.weight.dtype), self.lin_l.weight, self.lin_l.bias)
        settle(self.lin_l, x)
        check_nodes("x", x, self.lin_l.in_features)
        check_same_dtype("x", x, self.lin_l.weight)
        weight, bias, dtype = self.lin_l.weight, self.lin_l.bias, self.lin_l.weight.dtype
        how = "mean" if self.aggr == "mean" else "sum"
        if not is_sparse and weight.shape[1] <= weight.shape[0]:
            return F.linear(sum_neighbours(adj, to_kernel_dtype(x), targets, how).to(dtype), weight, bias)
        # sums and means are linear, so they may be taken of the fewer features after the weight
        product = to_kernel_dtype(sparse_linear(x, weight))
        added = None if bias is None else to_kernel_dtype(bias)
        return sum_neighbours(adj, product, targets, how, bias=added).to(dtype)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr}"


class GINConv(Module):
    """``nn((1 + eps) * x + sum over neighbours of x)`` (Xu, Hu, Leskovec and Jegelka).

    ``aggr`` may be another name of ``SAGEConv`` than ``add``.
    """

    eps: Tensor
    aggr: Names = "add"  # of pickles that have none

    def __init__(self, nn: Module, eps: float = 0.0, train_eps: bool = False, aggr: str = "add") -> None:
        super().__init__()
        self.nn, self.initial_eps, self.aggr = nn, eps, check_aggr(aggr)
        self.register_load_state_dict_pre_hook(drop_aggr_buffers)
        start = torch.full((1,), float(eps))
        if train_eps:
            self.eps = Parameter(start)
        else:
            self.register_buffer("eps", start)

    def reset_parameters(self) -> None:
        for module in self.nn.modules():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset()
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)

    def forward(self, x: Nodes, edge_index: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        first, second = x if isinstance(x, (tuple, list)) else (x, x)
        widths = tuple(x.shape[-1] if isinstance(x, Tensor) and x.dim() else 0 for x in (first, second))
        sources, targets, shape = split_nodes((first, second), (widths[0], widths[1]), edge_index, size)
        if isinstance(sources, SparseTensor) or isinstance(targets, SparseTensor):
            raise UnsupportedError("GINConv takes dense features: x.to_dense()")
        features = to_kernel_dtype(sources)
        neighbours = aggregate_neighbours(edge_index, features, shape[0], self.aggr).to(sources.dtype)
        out: Tensor = self.nn(neighbours if targets is None else neighbours + (1 + self.eps) * targets)
        return out
