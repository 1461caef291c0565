"""What graph layers share: how they are initialised, and the features of nodes they are called with.

A layer whose ``in_channels`` is -1 takes it from the first input, as PyG's do: its linear maps are
uninitialised until ``settle`` is called.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import LazyLinear, Linear, Module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from scorch._src.ops.graph.aggregate import check_nodes, sparse_linear
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, ShapeError

Nodes = Tensor | tuple[Tensor, Tensor | None]


def glorot(tensor: Tensor) -> None:
    """Draw uniformly within the bounds of Glorot and Bengio, as PyG does."""
    bound = math.sqrt(6.0 / (tensor.shape[-2] + tensor.shape[-1]))
    torch.nn.init.uniform_(tensor, -bound, bound)


class LazyGlorotLinear(LazyLinear):
    """A linear map that takes its number of inputs from the first one, and then begins in Glorot's bounds."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.in_features and not self.has_uninitialized_params():
            glorot(self.weight)


def glorot_linear(in_channels: int, out_channels: int, bias: bool = False) -> Linear:
    """Return a linear map for ``reset_linear`` to begin; ``in_channels`` may be -1."""
    return (
        LazyGlorotLinear(out_channels, bias) if in_channels == -1 else Linear(in_channels, out_channels, bias)
    )


def make_linear(in_channels: int, out_channels: int, bias: bool = True) -> Linear:
    """Return a linear map as torch begins it; ``in_channels`` may be -1."""
    return LazyLinear(out_channels, bias) if in_channels == -1 else Linear(in_channels, out_channels, bias)


def settle(linear: Linear, x: Any) -> None:
    """Give a linear map that waits for its number of inputs that of ``x``."""
    if isinstance(linear, LazyModuleMixin) and isinstance(x, Tensor):
        linear._infer_parameters(linear, (x,))


def project(linear: Linear, x: Tensor) -> Tensor:
    """Return ``linear(x)``, where ``x`` may be sparse, and the first one tells its number of features."""
    settle(linear, x)
    check_nodes("x", x, linear.weight.shape[1])
    return sparse_linear(x, linear.weight, linear.bias)


def reset_linear(linear: Linear) -> None:
    """Draw the weights within Glorot's bounds, unless they wait for their number of inputs."""
    linear.reset_parameters()
    if not is_lazy(linear.weight):
        glorot(linear.weight)


def drop_aggr_buffers(module: Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Leave out what PyG's aggregations keep in a ``state_dict``: constants, such as 0.5 for the median."""
    for name in [name for name in state if name.startswith(f"{prefix}aggr_module.")]:
        del state[name]


def check_channels(lazy: bool = False, **sizes: Any) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or (size < 1 and not (lazy and size == -1)):
            inferred = ", or -1 to take it from the first input" if lazy else ""
            raise ArgumentError(f"{name} is {size!r}; it must be a positive integer{inferred}")


def as_pair(channels: int | tuple[int, int]) -> tuple[int, int]:
    """Return the features of sources and of targets."""
    pair = (channels, channels) if isinstance(channels, int) else tuple(channels)
    if len(pair) != 2:
        raise ArgumentError(f"in_channels is {channels!r}; it is a number or a pair for sources and targets")
    check_channels(lazy=True, in_channels=pair[0], **{"in_channels of targets": pair[1]})
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
