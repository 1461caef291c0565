"""Methods without a gradient: they record nothing, and a backward pass through their results says so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from scorch._src.tensor.autograd import values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad
from scorch.errors import UnsupportedError

P = ParamSpec("P")
R = TypeVar("R")


class _WithoutGradient(torch.autograd.Function):
    """The identity of a result; its backward pass raises an error."""

    @staticmethod
    def forward(message: str, result: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        return result.view_as(result)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.message = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise UnsupportedError(ctx.message)


def without_gradient(advice: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of tensors record no graph; ``advice`` ends the error of a backward pass.

    The result of operands that require gradients requires them too: a result that did not would let a loss
    with other terms train without this one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with torch.no_grad():
                result: Any = function(*args, **kwargs)
            operands = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            if not torch.is_grad_enabled() or not any_requires_grad(*operands):
                return result  # type: ignore[no-any-return]
            message = f"{name} is not differentiable; {advice}"
            leaves = [values_of(each) if isinstance(each, SparseTensor) else each for each in operands]
            if isinstance(result, tuple):
                result = tuple(_WithoutGradient.apply(message, each, *leaves) for each in result)
            else:
                result = _WithoutGradient.apply(message, result, *leaves)
            return result  # type: ignore[no-any-return]

        return call

    return decorate
