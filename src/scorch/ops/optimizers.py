"""Optimizers on sparse parameters: for the time of a step they see the values.

torch's optimizers compute with every element of a parameter, of its gradient and of their own state. For a
sparse parameter these are its stored elements: while ``step`` runs, a plain tensor, the values of the
parameter, stands in its place, and the values of its gradient in the place of that. So every optimizer of
torch, one tensor at a time, ``foreach`` or ``fused``, does what it would do to a dense parameter that is kept
zero outside of the pattern, its state is as large as the values, and weight decay acts on the pattern.

torch calls functions before and after every step of every optimizer; these are two of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from scorch.tensor.learning import values_at
from scorch.tensor.sparse_tensor import SparseTensor

Pairs = list[tuple[SparseTensor, torch.Tensor]]  # parameters, and what stands for them

_replaced: weakref.WeakKeyDictionary[Optimizer, Pairs] = weakref.WeakKeyDictionary()


def _before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put values in the place of sparse parameters."""
    _restore(optimizer)  # if the last step ended by an error
    pairs: Pairs = []
    for group in optimizer.param_groups:
        params = group["params"]
        for place, parameter in enumerate(params):
            if isinstance(parameter, SparseTensor):
                values = parameter.storage.values.detach().requires_grad_(parameter.requires_grad)
                pairs.append((parameter, values))
                params[place] = values
                if parameter in optimizer.state:
                    optimizer.state[values] = _state_of(parameter, optimizer.state.pop(parameter))
    if not pairs:
        return None
    _replaced[optimizer] = pairs
    _hand_over(pairs)
    if args[1:]:
        return (args[0], _learning(optimizer, args[1]), *args[2:]), kwargs
    closure = kwargs.get("closure")
    return args, kwargs if closure is None else {**kwargs, "closure": _learning(optimizer, closure)}


def _state_of(parameter: SparseTensor, state: dict[str, Any]) -> dict[str, Any]:
    """What an optimizer keeps; a sparse tensor that it made when it was made itself becomes values too."""
    pattern = parameter.storage.pattern
    return {
        name: values_at(value, pattern) if isinstance(value, SparseTensor) else value
        for name, value in state.items()
    }


def _hand_over(pairs: Pairs) -> None:
    """Give the values the gradients that their parameters have now."""
    for parameter, values in pairs:
        gradient = parameter.grad
        values.grad = None if gradient is None else values_at(gradient, parameter.storage.pattern).detach()


def _learning(optimizer: Optimizer, closure: Any) -> Any:
    """``closure``, which computes the loss anew, with the gradients handed over after it."""
    if closure is None:
        return None
    function: Callable[[], Any] = closure

    def learning() -> Any:
        try:
            loss = function()
        except BaseException:
            _restore(optimizer)
            raise
        _hand_over(_replaced[optimizer])
        return loss

    return learning


def _after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _restore(optimizer)


def _restore(optimizer: Optimizer) -> None:
    """Put the parameters back; what the optimizer keeps for the values it keeps for them."""
    pairs = _replaced.pop(optimizer, None)
    if pairs is None:
        return
    originals = {id(values): parameter for parameter, values in pairs}
    for group in optimizer.param_groups:
        group["params"][:] = [originals.get(id(tensor), tensor) for tensor in group["params"]]
    for parameter, values in pairs:
        if values in optimizer.state:
            optimizer.state[parameter] = optimizer.state.pop(values)
        torch.autograd.graph.increment_version(parameter)


def install() -> None:
    """Serve all optimizers from now on."""
    register_optimizer_step_pre_hook(_before)
    register_optimizer_step_post_hook(_after)
