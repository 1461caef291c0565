"""Differentiable sums over ranks, and tensors that are replicated on all of them."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.distributed.collectives import Group, sum_over

Tensor = torch.Tensor


def sum_processes(x: Tensor, group: Group) -> Tensor:
    """Return the sum of a tensor over all ranks, bitwise identical on each, with higher-order gradients.

    All ranks continue with the same sum and compute the same gradient, which is the gradient of each term.

    Args:
        x: the tensor of this rank; shapes must be the same on all ranks.
        group: the process group, such as ``A.group`` of a sharded tensor; None in a single process.

    Example:

        >>> import torch, scorch.distributed as sd
        >>> sd.sum_processes(torch.tensor([1.0, 2.0]), None)  # one process
        tensor([1., 2.])
    """
    return _Sum.apply(x, group)  # type: ignore[no-any-return]


def spread(x: Tensor, group: Group) -> Tensor:
    """Return ``x``, which is replicated on all ranks, for use together with the rows of one rank.

    Its gradient is the sum of the gradients of all ranks.

    Args:
        x: a tensor with the same values on all ranks.
        group: the process group, such as ``A.group`` of a sharded tensor; None in a single process.

    Example:

        >>> import torch, scorch.distributed as sd
        >>> sd.spread(torch.tensor([1.0, 2.0]), None)  # one process
        tensor([1., 2.])
    """
    return _Spread.apply(x, group)  # type: ignore[no-any-return]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return sum_over(x.detach(), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Spread.apply(grad, ctx.group), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.detach().clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Sum.apply(grad, ctx.group), None
