"""Optimizers on sparse parameters: for the time of a step they see the values.

torch's optimizers compute with every element of a parameter, of its gradient and of their own state. For a
sparse parameter these are its stored elements: while ``step`` runs, a plain tensor, the values of the
parameter, stands in its place, and the values of its gradient in the place of that. So every optimizer of
torch, one tensor at a time, ``foreach`` or ``fused``, does what it would do to a dense parameter that is kept
zero outside of the pattern, its state is as large as the values, and weight decay acts on the pattern.

A dense parameter may have a gradient that stores a few rows only (``scorch.einsum(sparse_grad=True)``). Then
these rows stand in its place, and the others stay as they are (``ops/lazy_rows.py``).

torch calls functions before and after every step of every optimizer; these are two of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from scorch._src.nn.lazy_rows import Rows, is_lazy
from scorch._src.tensor.autograd import placed, values_at
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ShapeError

Pairs = list[tuple[SparseTensor, torch.Tensor]]  # parameters, and what stands for them

_replaced: weakref.WeakKeyDictionary[Optimizer, Pairs] = weakref.WeakKeyDictionary()
_rows: weakref.WeakKeyDictionary[Optimizer, list[Rows]] = weakref.WeakKeyDictionary()
_learned_at: WeakIdKeyDictionary = WeakIdKeyDictionary()  # the patterns of parameters at their last steps

LAZY = {"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adadelta", "Adagrad"}
GUARDED = ("zero_grad", "state_dict", "load_state_dict", "add_param_group")


def _before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Put values in the place of sparse parameters."""
    _restore(optimizer)  # if the last step ended by an error
    pairs: Pairs = []
    states = []
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if isinstance(parameter, SparseTensor):
            values = parameter.storage.values.detach().requires_grad_(parameter.requires_grad)
            pairs.append((parameter, values))
            if parameter in optimizer.state:
                states.append(
                    (
                        parameter,
                        values,
                        _state_of(
                            parameter, optimizer.state[parameter], isinstance(optimizer, torch.optim.LBFGS)
                        ),
                    )
                )
    _exchange(optimizer, pairs)
    for parameter, values, state in states:
        del optimizer.state[parameter]
        optimizer.state[values] = state
    closure = args[1] if args[1:] else kwargs.get("closure")
    if pairs:
        _replaced[optimizer] = pairs
        _hand_over(pairs)
    if closure is None:
        _take_rows(optimizer)
    if pairs or optimizer in _rows:
        _guard(optimizer)
    if closure is None or not (pairs or _has_dense(optimizer)):
        return None
    if args[1:]:
        return (args[0], _learning(optimizer, closure), *args[2:]), kwargs
    return args, {**kwargs, "closure": _learning(optimizer, closure)}


def _has_dense(optimizer: Optimizer) -> bool:
    return any(not isinstance(p, SparseTensor) for group in optimizer.param_groups for p in group["params"])


def _take_rows(optimizer: Optimizer) -> None:
    """Put rows in the place of dense parameters whose gradients store only these."""
    found = []
    for group in optimizer.param_groups:
        params = group["params"]
        for place, parameter in enumerate(params):
            if not is_lazy(parameter):
                continue
            rows = Rows.of(parameter) if type(optimizer).__name__ in LAZY else None
            if rows is None:
                parameter.grad = _for_all_rows(optimizer, parameter.grad)
                continue
            params[place] = rows.part
            if parameter in optimizer.state:
                optimizer.state[rows.part] = rows.take(optimizer.state.pop(parameter))
            found.append(rows)
    if found:
        _rows[optimizer] = found


def _for_all_rows(optimizer: Optimizer, gradient: SparseTensor) -> torch.Tensor:
    """A gradient for optimizers that do not work row by row."""
    return gradient.to_torch() if isinstance(optimizer, torch.optim.SparseAdam) else gradient.to_dense()


def _guard(optimizer: Optimizer) -> None:
    """See that parameters are back before anything else happens to them, should the step end by an error."""

    def guarded(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            _restore(optimizer)
            return getattr(optimizer, name)(*args, **kwargs)

        return call

    for name in GUARDED:
        optimizer.__dict__[name] = guarded(name)


def _state_of(parameter: SparseTensor, state: dict[str, Any], is_joint: bool) -> dict[str, Any]:
    """What an optimizer keeps, as values at the places that the parameter has now.

    A tensor like the parameter was made when the optimizer was. If the parameter was given other places since
    the last step, what was kept for those that stay is kept, and new ones begin at zero. A state that
    ``is_joint``, of all parameters together, is begun anew then.
    """
    pattern = parameter.storage.pattern
    before = _learned_at.get(parameter, pattern)
    if is_joint:
        return dict(state) if before is pattern else {}
    found = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or not value.dim():
            found[name] = value
        elif value.shape == parameter.shape:
            found[name] = values_at(value, pattern)
        elif tuple(value.shape) == (before.size,):
            found[name] = placed(value, before, pattern)
        else:
            raise ShapeError(
                f"an optimizer keeps {name!r} of shape {tuple(value.shape)} for a parameter with "
                f"{pattern.size} stored values; load a state that belongs to these, or make a new optimizer"
            )
    return found


def _hand_over(pairs: Pairs) -> None:
    """Give the values the gradients that their parameters have now."""
    for parameter, values in pairs:
        gradient = parameter.grad
        values.grad = None if gradient is None else values_at(gradient, parameter.storage.pattern).detach()


def _unguard(optimizer: Optimizer) -> None:
    for name in GUARDED:
        optimizer.__dict__.pop(name, None)


def _learning(optimizer: Optimizer, closure: Any) -> Any:
    """``closure``, which computes the loss anew, with the gradients handed over after it."""
    if closure is None:
        return None
    function: Callable[[], Any] = closure

    def learning() -> Any:
        pairs = _replaced.get(optimizer, [])
        _exchange(optimizer, [(values, parameter) for parameter, values in pairs])
        _unguard(optimizer)  # the closure itself calls zero_grad
        try:
            loss = function()
        except BaseException:
            _restore(optimizer)
            raise
        _exchange(optimizer, pairs)
        _hand_over(pairs)
        _take_rows(optimizer)
        _guard(optimizer)
        return loss

    return learning


def _exchange(optimizer: Optimizer, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Put the second tensor of each pair in the place of the first, in all groups."""
    others = {id(old): new for old, new in pairs}
    for group in optimizer.param_groups:
        group["params"][:] = [others.get(id(tensor), tensor) for tensor in group["params"]]


def _after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _restore(optimizer)


def _restore(optimizer: Optimizer) -> None:
    """Put the parameters back; what the optimizer keeps for the values it keeps for them."""
    pairs, lazy = _replaced.pop(optimizer, []), _rows.pop(optimizer, [])
    if not pairs and not lazy:
        return
    _unguard(optimizer)
    originals = [(values, parameter) for parameter, values in pairs]
    _exchange(optimizer, [*originals, *((rows.part, rows.parameter) for rows in lazy)])
    for parameter, values in pairs:
        if values in optimizer.state:
            optimizer.state[parameter] = optimizer.state.pop(values)
            _learned_at[parameter] = parameter.storage.pattern
        torch.autograd.graph.increment_version(parameter)
    for rows in lazy:
        kept = rows.put_back(optimizer.state.pop(rows.part, {}))
        if kept:
            optimizer.state[rows.parameter] = kept


def install() -> None:
    """Serve all optimizers from now on."""
    register_optimizer_step_pre_hook(_before)
    register_optimizer_step_post_hook(_after)
