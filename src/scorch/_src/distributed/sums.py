"""Sums over processes that are differentiable to any order, and what is the same in all of them."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.distributed.collectives import Group, sum_over

Tensor = torch.Tensor


def sum_processes(x: Tensor, group: Group) -> Tensor:
    """Return the sum of an array over all processes, the same bits in each, differentiable to any order.

    All processes go on with the same sum and find the same gradient, which is that of each part.
    """
    return _Sum.apply(x, group)  # type: ignore[no-any-return]


def spread(x: Tensor, group: Group) -> Tensor:
    """Return ``x``, which is the same in all processes, for use beside rows of one process.

    Its gradient is then the sum of what all processes find.
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
