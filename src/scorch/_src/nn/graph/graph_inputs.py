"""What graph layers share: their initialization, and checks of the node features.

A layer whose ``in_channels`` is -1 infers it from the first input, like PyG's layers: its linear maps are
uninitialized until ``settle`` is called.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import LazyLinear, Linear, Module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from scorch._src.devices import HOST
from scorch._src.ops.graph.aggregate import as_nodes, is_usual_nodes, sparse_linear
from scorch._src.statements.autocast import check_same_dtype
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, OperandError, ShapeError, is_integer, kind_of

Nodes = Tensor | tuple[Tensor, Tensor | None]


def glorot(tensor: Tensor) -> None:
    """Fill a tensor by Glorot and Bengio's uniform initialization, as PyG does."""
    bound = math.sqrt(6.0 / (tensor.shape[-2] + tensor.shape[-1]))
    torch.nn.init.uniform_(tensor, -bound, bound)


class LazyGlorotLinear(LazyLinear):
    """A linear map with Glorot initialization that infers its input size from the first input."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.in_features and not self.has_uninitialized_params():
            glorot(self.weight)


def glorot_linear(in_channels: int, out_channels: int, bias: bool = False) -> Linear:
    """Return a linear map for ``reset_linear`` to initialize; ``in_channels`` may be -1."""
    return (
        LazyGlorotLinear(out_channels, bias) if in_channels == -1 else Linear(in_channels, out_channels, bias)
    )


def make_linear(in_channels: int, out_channels: int, bias: bool = True) -> Linear:
    """Return a linear map with PyTorch's initialization; ``in_channels`` may be -1."""
    return LazyLinear(out_channels, bias) if in_channels == -1 else Linear(in_channels, out_channels, bias)


def settle(linear: Linear, x: Any) -> None:
    """Initialize a lazy linear map for the number of features of ``x``."""
    if isinstance(linear, LazyModuleMixin) and isinstance(x, Tensor):
        linear._infer_parameters(linear, (x,))


def as_input(linear: Linear, x: Any) -> tuple[Tensor, Tensor]:
    """Return node features, and the weight that they are multiplied by, which has the same dtype.

    The first features initialize a lazy linear map.
    """
    if type(linear) is Linear and is_usual_nodes(x, linear.in_features):
        weight = linear.weight
        if x.dtype is weight.dtype:
            return x, weight
    settle(linear, x)
    x, weight = as_nodes("x", x, linear.in_features), linear.weight
    check_same_dtype("x", x, weight)
    return x, weight


def project(linear: Linear, x: Tensor) -> Tensor:
    """Return ``linear(x)``; ``x`` may be sparse, and the first ``x`` initializes a lazy linear map."""
    x, weight = as_input(linear, x)
    return sparse_linear(x, weight, linear.bias)


def reset_linear(linear: Linear) -> None:
    """Reset the weights by Glorot's initialization, unless they are still uninitialized."""
    linear.reset_parameters()
    if not is_lazy(linear.weight):
        glorot(linear.weight)


def exchange_aggr_buffers(module: Module) -> None:
    """Let a layer with an ``aggr`` exchange its ``state_dict`` with PyG, whose aggregations have buffers."""
    module.register_load_state_dict_pre_hook(drop_aggr_buffers)
    module.register_state_dict_post_hook(add_aggr_buffers)


def add_aggr_buffers(module: Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Add the buffers of PyG's aggregations to a ``state_dict``: for each median, its quantile."""
    aggr: Any = module.aggr
    single = isinstance(aggr, str)
    for number, name in enumerate([aggr] if single else aggr):
        if name == "median":
            part = "" if single else f"aggrs.{number}."
            state[f"{prefix}aggr_module.{part}q"] = torch.tensor([[0.5]], device=HOST)


def drop_aggr_buffers(module: Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Drop the buffers of PyG's aggregations from a ``state_dict``: constants, such as 0.5 for the median."""
    for name in [name for name in state if name.startswith(f"{prefix}aggr_module.")]:
        del state[name]


def check_channels(lazy: bool = False, **sizes: Any) -> None:
    for name, size in sizes.items():
        if not is_integer(size, 1) and not (lazy and size == -1):
            inferred = ", or -1 to infer it from the first input" if lazy else ""
            raise ArgumentError(f"{name} must be a positive integer{inferred}, but got {size!r}")


def as_pair(channels: int | tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of features of sources and targets."""
    pair = (channels, channels) if isinstance(channels, int) else tuple(channels)
    if len(pair) != 2:
        raise ArgumentError(
            f"in_channels must be an integer or a pair for sources and targets, but got {channels!r}"
        )
    check_channels(lazy=True, in_channels=pair[0], **{"in_channels of targets": pair[1]})
    return pair[0], pair[1]


def split_nodes(
    x: Any, channels: tuple[int, int], adj: Any, size: Any
) -> tuple[Tensor, Tensor | None, tuple[int, int]]:
    """Return the features of sources and targets, and the shape (targets, sources)."""
    sources, targets = x if isinstance(x, (tuple, list)) else (x, x)
    is_same = targets is sources
    sources = as_nodes("x", sources, channels[0])
    if targets is not None:
        is_checked = is_same and channels[1] == channels[0]
        targets = sources if is_checked else as_nodes("x", targets, channels[1])
        count = targets.shape[0]
    elif isinstance(adj, SparseTensor):
        count = adj.shape[0]
    else:
        count = sources.shape[0] if size is None else size[1]
    if size is not None and (not isinstance(size, (tuple, list)) or len(size) != 2):
        raise OperandError(f"size must be a pair, the numbers of (sources, targets), but got {kind_of(size)}")
    if size is not None and tuple(size) != (sources.shape[0], count):
        raise ShapeError(
            f"size={tuple(size)} does not match (sources, targets) = {(sources.shape[0], count)} of x"
        )
    return sources, targets, (count, sources.shape[0])
