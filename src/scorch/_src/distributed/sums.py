"""Differentiable sums over ranks, and tensors that are replicated on all of them."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.distributed.communication.budget import gradients_of_call
from scorch._src.distributed.communication.collectives import Group, gather_numbers, rank_in
from scorch._src.distributed.communication.replicate import gather_rows, sum_over
from scorch._src.name_hints import suggests_keywords
from scorch.errors import UnsupportedError

Tensor = torch.Tensor


@suggests_keywords
def sum_processes(x: Tensor, group: Group) -> Tensor:
    """Return the sum of a tensor over all ranks, bitwise identical on each, with higher-order gradients.

    All ranks continue with the same sum and compute the same gradient, which is the gradient of each term.

    Args:
        x: the tensor of this rank; shapes must be the same on all ranks.
        group: the process group, such as ``A.group`` of a sharded tensor; None in a single process.

    Returns:
        The sum, the same on every rank.

    Raises:
        CommunicationError: a rank is lost.

    Example:

        >>> import torch, scorch.distributed as sd
        >>> sd.sum_processes(torch.tensor([1.0, 2.0]), None)  # one process
        tensor([1., 2.])
    """
    return _Sum.apply(x, group)  # type: ignore[no-any-return]


@suggests_keywords
def spread(x: Tensor, group: Group) -> Tensor:
    """Return ``x``, which is replicated on all ranks, for use together with the rows of one rank.

    Its gradient is the sum of the gradients of all ranks.

    Args:
        x: a tensor with the same values on all ranks.
        group: the process group, such as ``A.group`` of a sharded tensor; None in a single process.

    Returns:
        A tensor with the values of ``x``.

    Raises:
        CommunicationError: a rank is lost while gradients are summed.

    Example:

        >>> import torch, scorch.distributed as sd
        >>> sd.spread(torch.tensor([1.0, 2.0]), None)  # one process
        tensor([1., 2.])
    """
    return _Spread.apply(x, group)  # type: ignore[no-any-return]


def gather_processes(rows: Tensor, group: Group) -> Tensor:
    """Return the rows of all ranks on every rank, with higher-order gradients.

    All ranks continue with the same rows and compute the same gradient, of which each keeps its own rows.
    """
    return _GatherSame.apply(rows, group)  # type: ignore[no-any-return]


def as_replicated(x: Any, group: Group) -> Any:
    """Return an operand that is the same on all ranks, for use next to the entries of one rank.

    The gradient of a weight is the contribution of this rank; ``sum_gradients`` sums the contributions. That
    of a sum over ranks, such as a norm, has to be whole on the way back: it is spread.
    """
    if not isinstance(x, Tensor) or not x.requires_grad or x.grad_fn is None:
        return x
    kinds = _sources_of(x.grad_fn)
    if kinds == {"sum", "part"}:
        raise UnsupportedError(
            "an operand depends on a sum over ranks and on a weight, whose gradients are summed at different "
            "points; wrap the sum first: scorch.distributed.spread(A.norm(), A.group) * weight"
        )
    return spread(x, group) if kinds == {"sum"} else x


def _sources_of(node: Any) -> set[str]:
    """Return what a tensor depends on: sums over ranks, or tensors whose gradients are contributions."""
    kinds, seen, waiting = set(), {node}, [node]
    while waiting:
        node = waiting.pop()
        if node.name() in ("_SumBackward", "_GatherSameBackward"):
            kinds.add("sum")
        elif node.name() == "_SpreadBackward" or not node.next_functions:
            kinds.add("part")
        else:
            found = {inner for inner, _ in node.next_functions if inner is not None} - seen
            seen |= found
            waiting += found
    return kinds


@gradients_of_call
class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return sum_over(x.detach(), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Spread.apply(grad, ctx.group), None


@gradients_of_call
class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.detach().clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Sum.apply(grad, ctx.group), None


@gradients_of_call
class _GatherSame(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group) -> Tensor:
        counts = [count for (count,) in gather_numbers([len(rows)], group, rows)]
        begin = sum(counts[: rank_in(group)])
        ctx.how = begin, begin + len(rows), group
        return gather_rows(rows.detach(), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Own.apply(grad, *ctx.how), None


@gradients_of_call
class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, begin: int, end: int, group: Group) -> Tensor:
        ctx.group = group
        return rows.detach()[begin:end].clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _GatherSame.apply(grad, ctx.group), None, None, None
