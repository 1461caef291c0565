"""Functions that write to a sparse tensor in place while autograd or ``torch.func`` tracks it.

The function runs on a copy of the target, and the result replaces it. The entries of a view are merged into
its base, whose gradient then flows to both, and all other views of the base are reconnected to it. Writes
that torch refuses for the same views of dense tensors are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.grad_state import is_grad_enabled, is_transformed
from scorch._src.storage.storage import Pattern, Storage, plain
from scorch._src.tensor.autograd import apply, by_formula, check_gradient, used, values_at, values_of
from scorch._src.tensor.dispatch_rules import register_common
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.layer_weight import computed_weight_error, layer_of
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.transforms.functorch import rewrap, run_as_one_function
from scorch._src.tensor.views.merge import (
    forget_gradient,
    is_overlapping,
    mark_changed,
    merge_view,
    positions_through,
    select_values,
    write_entries,
)
from scorch._src.tensor.write_checks import (
    RESHAPING,
    check_assignment,
    check_memory,
    check_writable,
    operator_name,
)
from scorch._src.torch_internals import DisableTorchFunctionSubclass
from scorch.errors import InPlaceError


def write(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute ``func``, which writes to its first argument, and connect that to the result."""
    target, name = args[0], operator_name(func)
    if not isinstance(target, SparseTensor):
        return by_formula(func, args, kwargs)
    if name in RESHAPING:
        return _reshape(func, args, kwargs)
    check_memory(name, target, (*args[1:], kwargs))
    if _is_of_layer(target):
        check_writable(target)
    if is_transformed():
        _store(target, *_written_in_torch_func(func, args, kwargs))
        base = target if target.view_of is None else target.view_of.parent
        for tensor in (base, *_live_views(base)):
            rewrap(tensor)
        return target
    check_gradient(target)
    if target.view_of is None and target.storage.origin is None:
        by_formula(func, args, kwargs)
        mark_changed(target)
        _reconnect_views(target)
        return target
    _check_current(target)
    check_writable(target)
    if is_overlapping(target.storage.meta_tensor()):
        raise InPlaceError(
            f"{name} on a view of shape {tuple(target.shape)} whose elements share memory is not "
            "differentiable; write to the tensor before expand, to a clone(), or inside torch.no_grad()"
        )
    working = used(target)
    if working is target:
        working = SparseTensor(Storage(target.storage.pattern, target.storage.values))
    by_formula(func, (working, *args[1:]), kwargs)
    _store(target, working.storage.pattern, values_of(working))
    return target


def _is_of_layer(target: SparseTensor) -> bool:
    """Whether a tensor is the weight of a layer, or a view of it."""
    return (target if target.view_of is None else target.view_of.parent).weight_of is not None


def _reshape(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[0].view_of is not None or next(_live_views(args[0]), None) is not None:
        name = operator_name(func)
        raise InPlaceError(
            f"{name} is not supported on a view, or on a tensor that has views, while gradients are tracked; "
            f"write S = S.{name.removesuffix('_')}(...)"
        )
    return by_formula(func, args, kwargs)


def _written_in_torch_func(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Pattern, torch.Tensor]:
    """Return the entries of the first argument after ``func``, tracked by ``torch.func``."""

    def written(target: SparseTensor, *rest: Any, **named: Any) -> torch.Tensor:
        copy = target.clone()  # gradients need the values as they are
        func(copy, *rest, **named)
        return copy

    target = args[0]
    copied = SparseTensor(Storage(target.storage.pattern, target.storage.values))
    result = run_as_one_function(written, (copied, *args[1:]), kwargs)
    return result.storage.pattern, result.storage.values


# writes to a tensor, its base and its views ----------------------------------------------------------


class _Become(torch.autograd.Function):
    """Replace the entries of a tensor in place: its gradient then flows to the new ones."""

    @staticmethod
    def forward(
        ctx: Any, target: SparseTensor, values: torch.Tensor, pattern: Pattern, is_view: bool
    ) -> SparseTensor:
        ctx.pattern = pattern
        ctx.mark_dirty(target)
        stored = plain(values.detach())
        if is_view:  # recomputed from its base
            target.storage.take(pattern, stored)
        else:
            write_entries(target.storage, pattern, stored)
        return target

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, values_at(gradient, ctx.pattern), None, None


def _store(target: SparseTensor, pattern: Pattern, values: torch.Tensor) -> None:
    """Write entries to a tensor; those of a view are merged into its base."""
    link = target.view_of
    if link is None:
        _become(target, values, pattern, is_view=False)
        mark_changed(target)
        _reconnect_views(target)
        return
    parent, steps = link
    _check_current(target)
    merged, positions = merge_view(parent.storage, steps, pattern)
    joined = torch.cat([values_of(parent), values.to(parent.dtype)])
    _store(parent, merged, select_values(joined, positions))


def _become(target: SparseTensor, values: torch.Tensor, pattern: Pattern, is_view: bool) -> None:
    is_connected = is_grad_enabled() and (target.requires_grad or values.requires_grad)
    if is_connected and not is_transformed():
        apply(_Become, target, values, pattern, is_view)
        target.source_values = values
    elif not is_view:
        write_entries(target.storage, pattern, plain(values))


def _check_current(target: SparseTensor) -> None:
    if target.view_of is not None and not _is_current(target):
        raise InPlaceError(
            "the base of this view was reshaped in place (squeeze_, t_ ...) after the view was created; "
            "create the view again"
        )


def _is_current(view: SparseTensor) -> bool:
    """Whether the base of a view has not been reshaped in place (``squeeze_``, ``t_``) since."""
    assert view.view_of is not None
    (parent, steps), origin = view.view_of, view.storage.origin
    if view.storage is parent.storage:
        return True
    above = parent.storage.origin
    if origin is None:
        return False
    if above is None:
        return origin.source is parent.storage
    return origin.source is above.source and origin.steps == (*above.steps, *steps)


def _live_views(tensor: SparseTensor) -> Iterator[SparseTensor]:
    for reference in tensor.viewed_by or ():
        view = reference()
        if view is not None and view.view_of is not None and view.view_of.parent is tensor:
            yield view


def _reconnect_views(parent: SparseTensor, is_written: bool = True) -> None:
    """Connect all views of a tensor to its present values."""
    if is_transformed() or not parent.requires_grad:
        return
    for view in list(_live_views(parent)):
        assert view.view_of is not None
        if view.has_unknown_gradient:
            continue
        is_own = view.is_leaf and view.requires_grad  # its gradient ends there
        if is_own and not is_written and not view._version:
            continue
        if is_own or not _is_current(view):
            forget_gradient(view)
            view.view_of = None
            continue
        steps, storage = view.view_of.steps, view.storage
        before = storage.pattern if storage.forgotten is None else storage.forgotten[0]
        pattern, positions = positions_through(steps, parent.storage.pattern, before.format)
        values = select_values(values_of(parent), positions)
        _become(view, values, pattern, is_view=True)


@implements(torch.Tensor.requires_grad_, differentiable=True)
def requires_grad_(self: SparseTensor, requires_grad: bool = True) -> SparseTensor:
    """Set ``requires_grad`` of a tensor, and connect its existing views to it."""
    if self.weight_of is None:
        set_requires_grad(self, requires_grad)
    else:
        self.weight_of.values.requires_grad_(requires_grad)
    return self


@implements(torch.Tensor.requires_grad.__set__, differentiable=True)  # type: ignore[attr-defined]
def set_requires_grad(self: SparseTensor, requires_grad: bool) -> None:
    if self.weight_of is not None:
        self.weight_of.values.requires_grad = requires_grad
        return
    with DisableTorchFunctionSubclass():
        before = self.requires_grad
        torch.Tensor.requires_grad_(self, requires_grad)
    if requires_grad and not before:
        register_common()
        _reconnect_views(self, is_written=False)


@implements(torch.Tensor.grad.__set__, differentiable=True)  # type: ignore[union-attr]
def set_grad(self: torch.Tensor, gradient: Any) -> None:
    """Set the gradient of a tensor, which is no function of its values."""
    layer = layer_of(self) if isinstance(self, SparseTensor) else None
    if isinstance(self, SparseTensor) and layer is not None:
        layer.values.grad = None if gradient is None else values_at(gradient, self.storage.pattern)
        return
    with DisableTorchFunctionSubclass():
        self.grad = gradient


@implements(torch.Tensor.detach_, differentiable=True)
def detach_(self: SparseTensor) -> SparseTensor:
    if self.weight_of is not None:
        raise computed_weight_error("detach_")
    if self.view_of is not None:
        raise InPlaceError("Can't detach views in-place. Use detach() instead.")
    with DisableTorchFunctionSubclass():
        torch.Tensor.detach_(self)
    return self


# assignment ------------------------------------------------------------------------------------------


@implements_differentiable(torch.Tensor.__setitem__)
def assign(self: Any, key: Any, value: Any) -> None:
    """Assign ``S[key] = value``: write to the view by numbers and slices, by index where tensors are left."""
    if not isinstance(self, SparseTensor):
        by_formula(torch.Tensor.__setitem__, (self, key, value), {})
        return
    view, indices = _split_key(self, key)
    check_assignment(self, key, value)
    source = value
    if not isinstance(value, torch.Tensor):
        source = torch.tensor(value, dtype=self.dtype, device=self.storage.device)
    # leading dimensions of size 1 that the target does not have
    while source.dim() > (0 if indices else view.dim()) and source.shape[0] == 1:
        source = source.squeeze(0)
    if indices:
        write(torch.ops.aten.index_put_, (view, indices, source), {})
    else:
        view.copy_(source)


def _split_key(self: SparseTensor, key: Any) -> tuple[SparseTensor, list[torch.Tensor | None]]:
    """Split a key into the view by its numbers, slices and None, and the tensors left to index that with."""
    parts = [_as_index(part) for part in (key if isinstance(key, tuple) else (key,))]
    named = sum(_dimensions(part) for part in parts)
    view: Any = self
    dim = covered = 0
    indices: list[torch.Tensor | None] = []  # for each dimension in turn, up to ``covered``
    for part in parts:
        if isinstance(part, bool):
            view = view.unsqueeze(dim)
            part = torch.zeros(int(part), dtype=torch.int64, device=self.storage.device)
        elif isinstance(part, int) and view.dim() <= 1:  # an element has no view that is sparse
            part = torch.tensor([part], device=self.storage.device)
        if part is Ellipsis:
            dim += self.dim() - named
        elif part is None:
            view, dim = view.unsqueeze(dim), dim + 1
        elif isinstance(part, slice):
            view, dim = view[(slice(None),) * dim + (part,)], dim + 1
        elif isinstance(part, int):
            view = view.select(dim, part)
        else:
            indices += [None] * (dim - covered) + [part]
            dim = covered = dim + _dimensions(part)
    return view, indices


def _dimensions(part: Any) -> int:
    """Count the dimensions of a tensor that a part of a key indexes."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    is_mask = isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8)
    return part.dim() if is_mask else 1


def _as_index(part: Any) -> Any:
    """Convert a part of a key to a number, a slice, None, Ellipsis or a tensor with dimensions."""
    if part is None or part is Ellipsis or isinstance(part, (bool, slice)):
        return part
    if isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype == torch.bool:
        return bool(part)
    if not isinstance(part, torch.Tensor) or part.dim() == 0:
        try:
            return operator.index(part)
        except TypeError:
            pass
    return part if isinstance(part, torch.Tensor) else torch.as_tensor(part, device=HOST)


hooks.write = write
