"""Link views to the tensors that they are taken of, as torch does: writes to one change the other.

A view of a sparse tensor is a tensor of its own to torch. It records the operators between both, by which
its storage is computed again after a write to the other (``storage.storage``, ``tensor.views.merge``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.grad_state import is_grad_enabled, is_ordinary_in_inference_mode, untracked
from scorch._src.storage.storage import Origin, Step, Storage, add_weak, run_steps
from scorch._src.storage.strides import has_strides
from scorch._src.tensor.flatten import TracedStorage
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor, ViewOf

_tuple = tuple.__new__  # of a named tuple takes half the time of its constructor
_aten = torch.ops.aten
_DETACHED = {_aten.detach.default, _aten.lift_fresh.default}
_COPIED = {_aten._conj.default, _aten.view.dtype, _aten.view_as_complex.default, _aten.view_as_real.default}
_RESHAPED = {
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten._reshape_alias.default,
    _aten.reshape.default,
}


def ordinary_view(take: Callable[..., Any]) -> Callable[..., Any]:
    """Take the view of an ordinary tensor outside ``torch.inference_mode``, which has its views ordinary."""

    @functools.wraps(take)
    def take_outside(*args: Any, **kwargs: Any) -> Any:
        if is_ordinary_in_inference_mode(args[0] if args else next(iter(kwargs.values()))):
            with untracked():
                return take(*args, **kwargs)
        return take(*args, **kwargs)

    return take_outside


def as_view(result: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """Link ``result``, one tensor or several, as views of the first argument by the operator ``func``."""
    source, rest, named = args[0], args[1:], dict(kwargs or {})
    if not isinstance(source, SparseTensor) or func in _DETACHED:
        return result
    if func in _COPIED:
        if isinstance(result, SparseTensor):
            mark_copy(result, source, func.overloadpacket.__name__)
        return result
    is_several = isinstance(result, (list, tuple))
    for place, part in enumerate(result if is_several else [result]):
        if isinstance(part, SparseTensor) and part is not source:
            step = Step(func, rest, named, place if is_several else None, is_grad_enabled())
            link_view(part, source, (step,))
    return result


def mark_copy(copy: SparseTensor, source: SparseTensor, function: str) -> None:
    """Mark the copy that ``function`` returned of ``source``, of which torch has a view."""
    copy.copied_by = function
    if type(copy.storage) is not TracedStorage and copy.storage is not source.storage:
        copy.storage.expire_with(source.storage, function.strip("_"))


def link_view(view: SparseTensor, source: SparseTensor, steps: tuple[Step, ...]) -> None:
    """Link ``view``, which is ``steps`` of ``source``, and its base: writes to one change the other."""
    is_reshaped = has_strides((source,)) and any(step.func in _RESHAPED for step in steps)
    if not is_reshaped or not _is_copy(source.storage, steps):
        join_view(view, source, steps)


def join_view(view: SparseTensor, source: SparseTensor, steps: tuple[Step, ...]) -> None:
    """Link a view that shares memory with its base for certain."""
    above, origin = source.storage, source.storage.origin
    if origin is not None:
        above = origin.source
    if view.storage is not source.storage:
        view.storage.follow(_tuple(Origin, (above, steps if origin is None else (*origin.steps, *steps))))
    link = source.view_of
    parts = (source, steps) if link is None else (link.parent, (*link.steps, *steps))
    view.__dict__["view_of"] = _tuple(ViewOf, parts)
    _register(view)


def _is_copy(source: Storage, steps: tuple[Step, ...]) -> bool:
    """Whether torch returns a copy instead of this view: a reshape that the strides do not allow."""
    try:
        run_steps(steps, source.meta_tensor())
    except RuntimeError:
        return True
    return False


def _register(view: SparseTensor) -> None:
    assert view.view_of is not None
    parent = view.view_of.parent
    if parent.viewed_by is None:
        parent.viewed_by = []
    add_weak(parent.viewed_by, view)


def without_base(result: Any) -> Any:
    """Replace views by tensors that torch does not treat as views: ``view_of`` has the base instead.

    torch would write through a view by its strides, which a sparse tensor does not have.
    Call it where PyTorch functions do not reenter ``__torch_function__``.
    """
    if isinstance(result, SparseTensor):
        if type(result.storage) is TracedStorage or not result._is_view():
            return result
        with untracked() if is_ordinary_in_inference_mode(result) else contextlib.nullcontext():
            view = SparseTensor(result.storage)
        if result.copied_by is not None:
            view.copied_by = result.copied_by
        if result.view_of is not None:
            view.view_of = result.view_of
            _register(view)
        return view
    if type(result) is list or type(result) is tuple:
        return type(result)(without_base(part) for part in result)
    return result


hooks.as_view = as_view
