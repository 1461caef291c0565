"""Graph layers with PyG's names, arguments, parameters and numbers, by Scorch's kernels.

A layer is called as ``layer(x, graph)``. The graph is a sparse matrix of targets x sources, so that
``out[i] = sum_j A[i,j] * x[j]``, or PyG's ``edge_index`` of shape (2, edges): sources in its first row,
targets in its second. Both are read once and remembered (see ``ops.graph``). ``scorch.from_edge_index`` puts
sources in rows; its transpose, ``.T``, is the matrix for a layer.

The values of a matrix are weights for ``GCNConv``; the other layers only look where entries are stored.
``x`` may be a sparse matrix where a layer multiplies it by its weight first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_exporting
from torch.nn import Linear, Module, Parameter

from scorch._src.ops.graph.aggregate import check_nodes, sparse_linear, to_kernel_dtype
from scorch._src.ops.graph.neighbours import max_neighbours, sum_neighbours
from scorch._src.statements.autocast import check_same_dtype
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError, UnsupportedError

Nodes = Tensor | tuple[Tensor, Tensor | None]


def glorot(tensor: Tensor) -> None:
    """Draw uniformly within the bounds of Glorot and Bengio, as PyG does."""
    bound = math.sqrt(6.0 / (tensor.shape[-2] + tensor.shape[-1]))
    torch.nn.init.uniform_(tensor, -bound, bound)


def check_channels(**sizes: Any) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ArgumentError(
                f"{name} is {size!r}; it must be a whole number from 1 on (give it, it is not inferred)"
            )


def as_pair(channels: int | tuple[int, int]) -> tuple[int, int]:
    """Return the features of sources and of targets."""
    pair = (channels, channels) if isinstance(channels, int) else tuple(channels)
    if len(pair) != 2:
        raise ArgumentError(f"in_channels is {channels!r}; it is a number or a pair for sources and targets")
    check_channels(in_channels=pair[0], **{"in_channels of targets": pair[1]})
    return pair[0], pair[1]


def split_nodes(
    x: Any, channels: tuple[int, int], adj: Any, size: Any
) -> tuple[Tensor, Tensor | None, tuple[int, int]]:
    """Return features of sources and of targets, and the numbers (targets, sources)."""
    sources, targets = x if isinstance(x, (tuple, list)) else (x, x)
    check_nodes("x", sources, channels[0])
    if targets is not None:
        check_nodes("x", targets, channels[1])
        count = targets.shape[0]
    elif isinstance(adj, SparseTensor):
        count = adj.shape[0]
    elif size is None:
        raise ArgumentError("x has no features of targets: give size=(sources, targets)")
    else:
        count = size[1]
    if size is not None and tuple(size) != (sources.shape[0], count):
        raise ShapeError(f"size is {tuple(size)}, but x has (sources, targets) = {(sources.shape[0], count)}")
    return sources, targets, (count, sources.shape[0])


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
        check_channels(in_channels=in_channels, out_channels=out_channels)
        if add_self_loops and not normalize:
            raise ArgumentError("add_self_loops is part of normalize: give both or add the loops before")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached, self.normalize = improved, cached, normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        self.lin = Linear(in_channels, out_channels, bias=False)
        self.bias = Parameter(torch.empty(out_channels)) if bias else None
        self._first: Any = None  # pickles have this name
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot(self.lin.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)
        self._first = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        if isinstance(x, (tuple, list)):
            raise UnsupportedError("GCNConv has one kind of nodes; SAGEConv takes a pair (sources, targets)")
        check_nodes("x", x, self.in_channels)
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
        return self.in_channels * (1 + needed[0]) < self.out_channels * (1 + any(needed))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


class SAGEConv(Module):
    """``W_l * aggr over neighbours of x + b + W_r * x`` (Hamilton, Ying and Leskovec).

    ``aggr`` is ``mean``, ``max`` or ``sum`` (also ``add``). ``x`` is a pair (sources, targets) for graphs
    between two kinds of nodes.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_channels(out_channels=out_channels)
        if aggr not in ("mean", "max", "sum", "add"):
            raise ArgumentError(f"aggr is {aggr!r}; it may be 'mean', 'max' or 'sum'")
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.normalize, self.root_weight, self.project = normalize, root_weight, project
        sources, targets = self._channels = as_pair(in_channels)
        if project:
            self.lin = Linear(sources, sources)
        self.lin_l = Linear(sources, out_channels, bias=bias)
        if root_weight:
            self.lin_r = Linear(targets, out_channels, bias=False)

    def reset_parameters(self) -> None:
        for module in self.children():
            module.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Nodes, edge_index: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        sources, targets, shape = split_nodes(x, self._channels, edge_index, size)
        if self.project:
            sources = sparse_linear(sources, self.lin.weight, self.lin.bias).relu()
        out = self._neighbours(sources, edge_index, shape[0])
        if self.root_weight and targets is not None:
            root = self.lin_r.weight
            is_sparse = isinstance(targets, SparseTensor)
            out = out + sparse_linear(targets, root) if is_sparse else torch.addmm(out, targets, root.t())
        return F.normalize(out, dim=-1) if self.normalize else out

    def _neighbours(self, x: Tensor, adj: Tensor, targets: int) -> Tensor:
        weight, bias = self.lin_l.weight, self.lin_l.bias
        dtype, is_sparse = weight.dtype, isinstance(x, SparseTensor)
        check_same_dtype("x", x, weight)
        if self.aggr == "max":
            if is_sparse:
                raise UnsupportedError("SAGEConv with aggr='max' takes dense features: x.to_dense()")
            return F.linear(max_neighbours(adj, to_kernel_dtype(x), targets).to(dtype), weight, bias)
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
    """``nn((1 + eps) * x + sum over neighbours of x)`` (Xu, Hu, Leskovec and Jegelka)."""

    eps: Tensor

    def __init__(self, nn: Module, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn, self.initial_eps = nn, eps
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
        neighbours = sum_neighbours(edge_index, to_kernel_dtype(sources), shape[0]).to(sources.dtype)
        out: Tensor = self.nn(neighbours if targets is None else neighbours + (1 + self.eps) * targets)
        return out
