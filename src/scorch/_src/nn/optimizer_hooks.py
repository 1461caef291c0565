"""Optimizers on sparse parameters: during a step they see the values.

PyTorch's optimizers compute with every element of a parameter, of its gradient and of their own state. For a
sparse parameter these are its stored elements: while ``step`` runs, a plain tensor, the values of the
parameter, replaces it, and the values of its gradient replace that. So every optimizer of PyTorch, whether
for-loop, ``foreach`` or ``fused``, does what it would do to a dense parameter that is kept zero outside the
sparsity pattern, its state is as large as the values, and weight decay acts on the stored elements.

A dense parameter may have a gradient that stores only a few rows (``scorch.einsum(sparse_grad=True)``). Then
these rows, or columns, replace it: a step gathers those of the parameter and of its optimizer state, updates
them, and scatters them back; everything else stays as it is. These are the lazy semantics of
``torch.optim.SparseAdam``: momentum, running averages and weight decay of a row advance only when the row has
a gradient, while the step count is that of the parameter.

The zeros of dense parameters that ``scorch.sparsify`` pruned stay zero (``nn.pruned.pruned_weights``).

PyTorch calls hooks before and after every step of every optimizer; two of them are defined here. A step may
contain others: ``super().step()``, and those of an optimizer that shares its groups, such as the one that
SAM or Lookahead wraps. The outermost replaces the parameters, and the others find them replaced.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakIdKeyDictionary

from scorch._src.devices import shares_memory
from scorch._src.nn.pattern import move_values
from scorch._src.nn.pruned.pruned_weights import are_pruned, mask_gradients, mask_weights
from scorch._src.tensor.autograd import REWIRED, placed, values_at
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch.errors import ShapeError

LAZY_OPTIMIZERS = {"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adadelta", "Adagrad"}
GUARDED_METHODS = ("zero_grad", "state_dict", "load_state_dict", "add_param_group")
STEP_CODE = Optimizer.profile_hook_step(lambda optimizer: None).__code__  # torch's wrapper of every step


# what a step replaces --------------------------------------------------------------------------------


@dataclass(eq=False)
class Replacement:
    """A sparse parameter, and its values, which replace it during a step."""

    parameter: SparseTensor
    values: torch.Tensor
    gradient: torch.Tensor | None = None  # which the values were given

    @staticmethod
    def of(parameter: SparseTensor) -> Replacement:
        values = parameter.storage.values.detach().requires_grad_(parameter.requires_grad)
        replacement = Replacement(parameter, values)
        replacement.take()
        return replacement

    def take(self) -> None:
        """Take the current values and gradient of the parameter."""
        stored = self.parameter.storage.values
        if not shares_memory(stored, self.values):
            self.values.data = stored
        gradient, pattern = self.parameter.grad, self.parameter.storage.pattern
        if isinstance(gradient, SparseTensor) and gradient.storage.pattern is pattern:
            self.values.grad = gradient.storage.values.detach()
        else:
            self.values.grad = None if gradient is None else values_at(gradient, pattern).detach()
        self.gradient = self.values.grad

    def give_back(self) -> None:
        """Give the parameter what was assigned to ``.data`` and ``.grad`` of its values."""
        stored, gradient = self.parameter.storage.values, self.values.grad
        if not shares_memory(stored, self.values):
            with torch.no_grad():
                stored.copy_(self.values)
            self.values.data = stored
        if gradient is not self.gradient:
            self.parameter.grad = None if gradient is None else with_values(self.parameter, gradient)
            self.gradient = gradient
        self.parameter.storage.drop_copies()
        torch.autograd.graph.increment_version(self.parameter)


@dataclass(eq=False)
class ConvertedGradient:
    """The sparse gradient of a dense parameter, and what replaces it during a step."""

    parameter: torch.Tensor
    gradient: SparseTensor
    converted: torch.Tensor

    def restore(self) -> None:
        if self.parameter.grad is self.converted:
            self.parameter.grad = self.gradient


@dataclass(eq=False)
class RunningStep:
    """What a step of an optimizer has replaced, until it ends."""

    replacements: list[Replacement] = field(default_factory=list)
    shared: list[Replacement] = field(default_factory=list)  # by the step of another optimizer
    rows: list[LazyRows] = field(default_factory=list)
    gradients: list[ConvertedGradient] = field(default_factory=list)
    methods: dict[str, Any] = field(default_factory=dict)  # which were set on the optimizer itself

    def __bool__(self) -> bool:
        return bool(self.replacements or self.shared or self.rows or self.gradients)


_running: weakref.WeakKeyDictionary[Optimizer, RunningStep] = weakref.WeakKeyDictionary()
_replacements: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of values, while a step runs
_last_patterns: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of parameters at their last steps
_stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # optimizers that have made a step
_outdated: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # ``LBFGS`` of parameters whose number has changed


def _count_steps(optimizer: Optimizer) -> int:
    """Return how many steps of the optimizer are running, one inside of another."""
    count, frame = 0, sys._getframe(1)
    while frame is not None:
        if frame.f_code is STEP_CODE and frame.f_locals["args"][0] is optimizer:
            count += 1
        frame = frame.f_back  # type: ignore[assignment]
    return count


# before, in and after a step -------------------------------------------------------------------------


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Replace sparse parameters by their values."""
    if optimizer in _running:
        if _count_steps(optimizer) > 1:
            return None
        _restore(optimizer)  # the last step raised
    parameters = _parameters(optimizer)
    _stepped.add(optimizer)
    if REWIRED:
        _check_rewired(optimizer, parameters)
    if are_pruned():
        mask_gradients(parameters)
    closure = args[1] if args[1:] else kwargs.get("closure")
    if closure is None and not _has_sparse(parameters):
        return None
    step = RunningStep()
    for parameter in parameters:
        if isinstance(parameter, SparseTensor):
            step.replacements.append(Replacement.of(parameter))
        elif parameter in _replacements:
            step.shared.append(_replacements[parameter])
    everything = (*step.replacements, *step.shared)
    states = [
        (replacement, _convert_state(optimizer, replacement.parameter))
        for replacement in everything
        if replacement.parameter in optimizer.state
    ]
    for replacement, state in states:
        del optimizer.state[replacement.parameter]
        optimizer.state[replacement.values] = state
    for replacement in step.replacements:
        _replacements[replacement.values] = replacement
    _replace_parameters(optimizer, [(each.parameter, each.values) for each in step.replacements])
    if step:
        _guard(optimizer, step)
    if closure is None:
        _gather_rows(optimizer)
        return None
    if not parameters:
        return None
    if args[1:]:
        return (args[0], _wrap_closure(optimizer, closure), *args[2:]), kwargs
    return args, {**kwargs, "closure": _wrap_closure(optimizer, closure)}


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _has_sparse(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether some parameter or gradient is sparse, without which a step is PyTorch's alone."""
    for parameter in parameters:
        if isinstance(parameter, SparseTensor) or isinstance(parameter.grad, SparseTensor):
            return True
    return bool(_replacements.data) and any(parameter in _replacements for parameter in parameters)


def _gather_rows(optimizer: Optimizer) -> None:
    """Replace dense parameters by the rows that their gradients store.

    ``SparseAdam`` reads these rows itself, from PyTorch's layout; other optimizers need all rows.
    """
    step = _running.get(optimizer, RunningStep())
    for group in optimizer.param_groups:
        params = group["params"]
        for position, parameter in enumerate(params):
            gradient = None if isinstance(parameter, SparseTensor) else parameter.grad
            if not isinstance(gradient, SparseTensor):
                continue
            is_lazy = type(optimizer).__name__ in LAZY_OPTIMIZERS
            rows = LazyRows.of(parameter, gradient) if is_lazy else None
            if rows is None:
                is_coo = isinstance(optimizer, torch.optim.SparseAdam)
                parameter.grad = converted = gradient.to_torch() if is_coo else gradient.to_dense()
                step.gradients.append(ConvertedGradient(parameter, gradient, converted))
                continue
            params[position] = rows.rows_parameter
            if parameter in optimizer.state:
                optimizer.state[rows.rows_parameter] = rows.gather_state(optimizer.state.pop(parameter))
            step.rows.append(rows)
    if step and optimizer not in _running:
        _guard(optimizer, step)


def _guard(optimizer: Optimizer, step: RunningStep) -> None:
    """Restore parameters before other calls of the optimizer, should the step raise."""

    def restore_and_call(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _count_steps(optimizer):
                _restore(optimizer)
            return method(*args, **kwargs)

        return call

    _running[optimizer] = step
    step.methods = {name: vars(optimizer)[name] for name in GUARDED_METHODS if name in vars(optimizer)}
    for name in GUARDED_METHODS:
        optimizer.__dict__[name] = restore_and_call(getattr(optimizer, name))


def _convert_state(optimizer: Optimizer, parameter: SparseTensor) -> dict[str, Any]:
    """Convert an optimizer state to values on the current pattern of the parameter.

    State tensors in the shape of the parameter are sampled. If the pattern has changed since the last step,
    the state of entries that stay is kept, and new ones start at zero. The state of ``LBFGS``, which is that
    of all parameters together, is reset then.
    """
    state, pattern = optimizer.state[parameter], parameter.storage.pattern
    last_pattern = _last_patterns.get(parameter, pattern)
    if isinstance(optimizer, torch.optim.LBFGS):
        return dict(state) if last_pattern is pattern else {}
    converted = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or not value.dim():
            converted[name] = value
        elif value.shape == pattern.shape:
            converted[name] = values_at(value, pattern)
        elif tuple(value.shape) == (last_pattern.size,):
            converted[name] = placed(value, last_pattern, pattern)
        else:
            raise _other_state_error(name, value, pattern.size)
    return converted


def _other_state_error(name: str, value: torch.Tensor, size: int) -> ShapeError:
    return ShapeError(
        f"the optimizer state {name!r} has shape {tuple(value.shape)}, but the parameter has {size} stored "
        "elements; load a matching state, or create a new optimizer"
    )


# layers that are rewired -----------------------------------------------------------------------------


def move_states(others: Any, parameter: torch.Tensor, old_positions: torch.Tensor, before: int) -> None:
    """Move what optimizers have for each of ``before`` values of a layer to their new positions.

    These are all optimizers that have made a step, and ``others``. New values start at zero. ``LBFGS``, whose
    state is that of all parameters together, starts anew; it cannot go on with another number of values.
    """
    given = others if isinstance(others, Iterable) else () if others is None else (others,)
    for optimizer in {*_stepped, *given}:
        state = optimizer.state.get(parameter)
        if isinstance(optimizer, torch.optim.LBFGS):
            if any(parameter is own for own in _parameters(optimizer)):
                optimizer.state.clear()
                if old_positions.numel() != before:
                    _outdated.add(optimizer)
        elif state:
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and tuple(value.shape) == (before,):
                    state[name] = move_values(value, old_positions)


def _check_rewired(optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> None:
    """Refuse a state for another number of values, which fused optimizers would read beyond its end."""
    if optimizer in _outdated:
        raise ShapeError("LBFGS cannot go on after the number of values has changed; create a new optimizer")
    for parameter in parameters:
        if parameter in REWIRED and not isinstance(optimizer, torch.optim.LBFGS):
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.dim() and value.shape != parameter.shape:
                    raise _other_state_error(name, value, parameter.numel())


def _wrap_closure(optimizer: Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap ``closure``, which computes the loss again from the parameters and sets their gradients."""

    def run_closure() -> Any:
        step = _running.get(optimizer, RunningStep())
        for replacement in step.replacements:
            replacement.give_back()
        _replace_parameters(optimizer, [(each.values, each.parameter) for each in step.replacements])
        _restore_rows(optimizer, step)
        try:
            loss = closure()
        except BaseException:
            _restore(optimizer)
            raise
        mask_gradients(_parameters(optimizer))
        _replace_parameters(optimizer, [(each.parameter, each.values) for each in step.replacements])
        for replacement in step.replacements:
            replacement.take()
        _gather_rows(optimizer)
        return loss

    return run_closure


def _replace_parameters(
    optimizer: Optimizer, replacements: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Replace the first tensor of each pair by the second, in all groups."""
    if not replacements:
        return
    others = {id(old): new for old, new in replacements}
    for group in optimizer.param_groups:
        group["params"][:] = [others.get(id(tensor), tensor) for tensor in group["params"]]


def _restore(optimizer: Optimizer) -> None:
    """Restore the parameters, with the state that the optimizer has for their values."""
    step = _running.pop(optimizer, None)
    if step is None:
        return
    for name in GUARDED_METHODS:
        optimizer.__dict__.pop(name, None)
    optimizer.__dict__.update(step.methods)
    _replace_parameters(optimizer, [(each.values, each.parameter) for each in step.replacements])
    for replacement in (*step.replacements, *step.shared):
        parameter, values = replacement.parameter, replacement.values
        if values in optimizer.state:
            optimizer.state[parameter] = optimizer.state.pop(values)
            _last_patterns[parameter] = parameter.storage.pattern
    for replacement in step.replacements:
        replacement.give_back()
        _replacements.pop(replacement.values, None)
    _restore_rows(optimizer, step)


def _restore_rows(optimizer: Optimizer, step: RunningStep) -> None:
    """Restore dense parameters and their gradients."""
    _replace_parameters(optimizer, [(rows.rows_parameter, rows.parameter) for rows in step.rows])
    for rows in step.rows:
        state = rows.scatter_state(optimizer.state.pop(rows.rows_parameter, {}))
        if state:
            optimizer.state[rows.parameter] = state
    for gradient in step.gradients:
        gradient.restore()
    step.rows, step.gradients = [], []


# rows of dense parameters ----------------------------------------------------------------------------


@dataclass
class LazyRows:
    """A parameter, and its gathered rows while a step runs."""

    parameter: torch.Tensor
    dim: int
    row_numbers: torch.Tensor
    rows_parameter: torch.Tensor
    full_state: dict[str, torch.Tensor] = field(default_factory=dict)

    @staticmethod
    def of(parameter: torch.Tensor, gradient: SparseTensor) -> LazyRows | None:
        """Gather the rows, or columns, that a gradient stores; None if it has another format."""
        pattern = gradient.storage.pattern
        form, (dim, *inner) = pattern.format, pattern.format.order
        if form.dense_levels or form.dense_tail != len(form) - 1 or form.is_blocked:
            return None
        crd = pattern.crd[0]
        assert crd is not None
        row_numbers = crd.to(torch.int64)
        stored = gradient.storage.values.detach().reshape(-1, *(pattern.shape[other] for other in inner))
        to_dims = sorted(range(len(form)), key=lambda level: form.order[level])
        rows = parameter.detach().index_select(dim, row_numbers).requires_grad_(parameter.requires_grad)
        rows.grad = stored.permute(to_dims).to(rows.dtype).contiguous()
        return LazyRows(parameter, dim, row_numbers, rows)

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Gather the rows of an optimizer state."""
        gathered = dict(state)
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == self.parameter.shape:
                self.full_state[name] = value
                gathered[name] = value.index_select(self.dim, self.row_numbers)
        return gathered

    def scatter_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Scatter the rows of an optimizer state back; new state is zero everywhere else."""
        with torch.no_grad():
            self.parameter.index_copy_(self.dim, self.row_numbers, self.rows_parameter.detach())
        scattered = dict(state)
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == self.rows_parameter.shape and value.dim():
                full = self.full_state.get(name)
                if full is None:
                    full = value.new_zeros(self.parameter.shape)
                scattered[name] = full.index_copy_(self.dim, self.row_numbers, value)
        return scattered


def _after_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if optimizer in _running and _count_steps(optimizer) == 1:
        _restore(optimizer)
    if are_pruned():
        mask_weights(_parameters(optimizer))


def install() -> None:
    """Register the hooks for all optimizers."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
