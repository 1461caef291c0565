"""Refuse in-place writes as torch does: to leaves, some views, and elements that share memory.

Where possible torch itself checks: on the same views of a meta tensor, with the same ``requires_grad``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.grad_state import is_grad_enabled
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.views.merge import is_overlapping
from scorch._src.torch_internals import tree_leaves
from scorch.errors import CallError, InPlaceError

# In place these change the shape or strides of a tensor, and no element.
RESHAPING = {"squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}

# torch lets these write to elements that share memory: each writes one number, whatever the element was.
WRITE_TO_COPIES = {
    "_index_put_impl_",
    "fill_",
    "fill_diagonal_",
    "index_fill_",
    "index_put_",
    "masked_fill_",
    "tril_",
    "triu_",
    "zero_",
}


def operator_name(func: Callable[..., Any]) -> str:
    """Return the name of an in-place function: ``mul_`` for ``__imul__`` too."""
    name = str(getattr(func, "__name__", func))
    return f"{name[3:-2]}_" if name.startswith("__i") and name.endswith("__") else name


def check_writable(target: SparseTensor) -> None:
    """Refuse to write to a leaf that requires a gradient, and to views that torch does not let write."""
    if not target.dtype.is_floating_point and not target.dtype.is_complex:
        return  # no gradient goes through it
    try:
        with torch.enable_grad():
            _outline(target).add_(torch.empty((), device="meta", requires_grad=True))
    except RuntimeError as error:
        raise InPlaceError(str(error)) from None


def _outline(tensor: SparseTensor) -> torch.Tensor:
    """Return a meta tensor that is a leaf, a result or a view where ``tensor`` is one."""
    link = tensor.view_of
    base = tensor if link is None else link.parent
    outline = torch.empty(base.storage.pattern.shape, device="meta", requires_grad=base.requires_grad)
    if not base.is_leaf and base.weight_of is None:  # to users, that is a leaf
        outline = outline * 1
    for step in () if link is None else link.steps:
        with torch.set_grad_enabled(step.grad_mode):
            outline = step.of(outline)
    if tensor.requires_grad and not outline.requires_grad:  # it, or a view between it and the base, is a leaf
        outline.requires_grad_()
    return outline


def check_memory(name: str, target: SparseTensor, rest: Any) -> None:
    """Refuse to write where several elements, or some of ``rest``, share memory with the target."""
    if name in RESHAPING:
        return
    base = target if target.view_of is None else target.view_of.parent
    if base.copied_by is not None:
        raise InPlaceError(
            f"{name} on the result of {base.copied_by}, which for sparse tensors is a copy, not a view, so "
            "its base would not change; write to the base, or to a clone() of this tensor"
        )
    is_itself = name == "copy_" and any(leaf is target for leaf in tree_leaves(rest))
    if target.storage.origin is not None and name not in WRITE_TO_COPIES and not is_itself:
        _check_overlap(name, target.storage.meta_tensor())
    for leaf in tree_leaves(rest):
        if isinstance(leaf, SparseTensor) and leaf is not target and _is_partly_same(target, leaf):
            raise InPlaceError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to "
                f"a single memory location. Please clone() the input tensor before performing {name}."
            )


@functools.cache
def _are_numbers_spread() -> bool:
    """Whether this torch assigns a number to elements that share memory, as from 2.15 on."""
    try:
        torch.zeros(1, device=HOST).expand(2)[:] = 0.0
    except RuntimeError:
        return False
    return True


def check_assignment(target: SparseTensor, key: Any, value: Any) -> None:
    """Refuse ``target[key] = value`` where the elements that slices and numbers name share memory."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(part, torch.Tensor) and part.dtype == torch.uint8 for part in parts):
        try:  # this torch may accept only masks of bools
            torch.zeros(1, device=HOST)[torch.ones(1, dtype=torch.uint8, device=HOST)] = 0.0
        except RuntimeError as error:
            raise CallError(str(error)) from None
    is_slicing = all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)
    is_spread = not isinstance(value, torch.Tensor) and _are_numbers_spread()
    if target.storage.origin is not None and is_slicing and not is_spread:
        _check_overlap("this assignment", target.storage.meta_tensor()[key])


def _check_overlap(name: str, meta: torch.Tensor) -> None:
    if is_overlapping(meta):
        raise InPlaceError(
            "unsupported operation: more than one element of the written-to tensor, a view of shape "
            f"{tuple(meta.shape)} created by expand or unfold, refers to a single memory location. Please "
            f"clone() the tensor before performing {name}."
        )


def _is_partly_same(target: SparseTensor, other: SparseTensor) -> bool:
    """Whether two tensors overlap partly in memory, as torch decides it for tensors without gaps."""
    origin, other_origin = target.storage.origin, other.storage.origin
    if origin is None and other_origin is None:
        return False
    base = target.storage if origin is None else origin.source
    if base is not (other.storage if other_origin is None else other_origin.source):
        return False
    first, second = target.storage.meta_tensor(), other.storage.meta_tensor()
    if not all(meta.numel() and _is_dense(meta) for meta in (first, second)):
        return False
    begin, other_begin = int(first.storage_offset()), int(second.storage_offset())
    end, other_end = begin + first.numel(), other_begin + second.numel()
    if (begin, end) == (other_begin, other_end):
        return first.stride() != second.stride()
    return begin < other_end and other_begin < end


def _is_dense(meta: torch.Tensor) -> bool:
    """Whether the elements fill their stretch of memory without gaps, in some order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(meta.stride(), meta.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def check_write(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
    """Refuse to write where torch refuses it for dense tensors that are the same views."""
    target = args[0] if args else None
    if not isinstance(target, SparseTensor):
        return
    check_memory(func.overloadpacket.__name__, target, (args[1:], kwargs))
    link = target.view_of
    if link is not None and is_grad_enabled() and link.parent.requires_grad:
        check_writable(target)
        raise InPlaceError(
            f"this view of shape {tuple(target.shape)} is not connected to the tensor that it is a view "
            "of, which requires a gradient; create the view again, or write inside torch.no_grad()"
        )


hooks.check_write = check_write
