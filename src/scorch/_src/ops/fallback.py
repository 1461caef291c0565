"""What happens to an operator of torch that has no handler of its own, in this order:

in place or with out=      the operator without it, and then the tensor takes the result
of each element            ``elementwise``
made of others             torch's own decomposition, whose parts come here again
anything else              on dense copies, within the dense budget
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.engine.execute import convert
from scorch._src.events import LISTENERS, tell
from scorch._src.formats import Format
from scorch._src.grad_state import are_patterns_fixed
from scorch._src.ops.pointwise.elementwise import elementwise, is_elementwise
from scorch._src.storage.budget import check_budget
from scorch._src.storage.storage import Storage, mark_written
from scorch._src.tensor import registry
from scorch._src.tensor.check_call import check_call, check_out
from scorch._src.tensor.create.check import refuse_freed
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.entries import Entries, entries_of, format_for, from_entries, united
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.views import mark_changed, write_entries
from scorch._src.torch_internals import (
    DisableTorchDispatch,
    DispatchKey,
    any_requires_grad,
    has_kernel_for_dispatch_key,
    tree_map,
)
from scorch.errors import DeviceError, InPlaceError, UnsupportedError

aten = torch.ops.aten

# Operators taken apart as torch does for its compilers: their parts have handlers.
DECOMPOSED = {
    aten.addr,
    aten.binary_cross_entropy,
    aten.binary_cross_entropy_with_logits,
    aten.channel_shuffle,
    aten.huber_loss,
    aten.linalg_cross,
    aten.mse_loss,
    aten.pixel_shuffle,
    aten.pixel_unshuffle,
    aten.renorm,
    aten.rot90,
    aten.smooth_l1_loss,
}

# Those that divide sizes by a number.
DIVIDING = {aten.channel_shuffle, aten.pixel_shuffle, aten.pixel_unshuffle}

# Operators that work on dense copies, but whose result is zero where the input is: it is stored sparse.
KEEP_ZEROS = {
    aten._embedding_bag,
    aten._embedding_bag_forward_only,
    aten._adaptive_avg_pool2d,
    aten._adaptive_avg_pool3d,
    aten.adaptive_max_pool2d,
    aten.adaptive_max_pool3d,
    aten.as_strided_copy,
    aten.avg_pool1d,
    aten.avg_pool2d,
    aten.avg_pool3d,
    aten.col2im,
    aten.cummax,
    aten.cummin,
    aten.geqrf,
    aten.grid_sampler_2d,
    aten.grid_sampler_3d,
    aten.im2col,
    aten.linalg_cholesky_ex,
    aten.linalg_ldl_factor_ex,
    aten.linalg_lu,
    aten.linalg_lu_factor_ex,
    aten.linalg_qr,
    aten.lu_unpack,
    aten.masked_scatter,
    aten.max_pool2d_with_indices,
    aten.max_pool3d_with_indices,
    aten.max_unpool2d,
    aten.max_unpool3d,
    aten.unfold,
    aten._upsample_bicubic2d_aa,
    aten._upsample_bilinear2d_aa,
    aten._upsample_nearest_exact1d,
    aten._upsample_nearest_exact2d,
    aten._upsample_nearest_exact3d,
    aten.upsample_bicubic2d,
    aten.upsample_bilinear2d,
    aten.upsample_linear1d,
    aten.upsample_nearest1d,
    aten.upsample_nearest2d,
    aten.upsample_nearest3d,
    aten.upsample_trilinear3d,
}

# The same if their second argument, a weight or what is written, and all other tensors are sparse too.
KEEP_ZEROS_OF_ALL = {
    aten.as_strided_scatter,
    aten.convolution,
    aten.linalg_lstsq,
    aten.native_group_norm,
    aten.ormqr,
    aten.triangular_solve,
}

# Operators that write in place and whose functional form has another name.
FUNCTIONAL: dict[Any, Any] = {
    aten.normal_: aten.normal_functional,
    aten.polygamma_: lambda self, n: aten.polygamma(n, self),
}


def run_operator(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """``func`` on arguments of which some are sparse."""
    if func.namespace == "c10d":
        raise UnsupportedError(
            f"{name_of(func)} sends dense tensors to other processes, and a sparse tensor is several; send "
            "S.values() and keep the places, as DistributedDataParallel does for sparse parameters"
        )
    if kwargs.get("out") is not None:
        return _into(kwargs.pop("out"), func, args, kwargs)
    if name_of(func).startswith("_foreach_"):  # a list of tensors: one after the other
        return func._op_dk(DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    if func._schema.is_mutable:
        found = _into_several(func, args, kwargs)
        return _in_place(func, args, kwargs) if found is None else found
    if is_elementwise(func):
        return elementwise(func, args, kwargs)
    view = _view_of(func)
    if view is not None:
        return tree_map(_of_its_own, view(*args, **kwargs))
    if func.overloadpacket in DIVIDING and (min(args[1:2], default=1) < 1 or not args[0].numel()):
        return densely(func, args, kwargs)
    if func.overloadpacket in DECOMPOSED:
        if func.overloadpacket not in DIVIDING:
            check_call(func, *args, **kwargs)
        from scorch._src.torch_internals import decomposition_table  # imports half of torch's compiler

        return decomposition_table[func](*args, **kwargs)
    if has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return func.decompose(*args, **kwargs)
    found = densely(func, args, kwargs)
    is_zero_for_zero = func.overloadpacket in KEEP_ZEROS and isinstance(args[0], SparseTensor)
    is_zero_for_zeros = func.overloadpacket in KEEP_ZEROS_OF_ALL and args[1] is not None and all_sparse(args)
    is_connected = torch.is_grad_enabled() and any_requires_grad(*args)  # zeros may be there by chance
    is_fixed = are_patterns_fixed() or is_connected
    is_sparse = (is_zero_for_zero or is_zero_for_zeros) and not is_fixed
    return stored(found, args[0]) if is_sparse else found


hooks.run_operator = run_operator


def _view_of(func: Any) -> Any:
    """For an operator such as ``transpose_copy`` or ``unsafe_split`` the one with handlers; else None."""
    name = name_of(func)
    plain = name.removesuffix("_copy").removeprefix("unsafe_")
    if plain == name or plain in ("as_strided", "index"):
        return None
    packet = getattr(aten, plain, None)
    found = getattr(packet, func._overloadname, None)
    is_known = any(op in KEEP_ZEROS or registry.look_up(op).run is not None for op in (found, packet))
    return found if is_known else None


def _of_its_own(value: Any) -> Any:
    """A view as a tensor that is none, with values of its own: what is written to it stays there."""
    if not isinstance(value, SparseTensor):
        return value
    return SparseTensor(Storage(value.storage.pattern, value.storage.values.clone()))


def all_sparse(args: Sequence[Any]) -> bool:
    """Whether all tensors with dimensions are sparse."""
    tensors = [value for value in args if isinstance(value, torch.Tensor) and value.dim()]
    return all(isinstance(value, SparseTensor) for value in tensors)


def stored(found: Any, like: SparseTensor) -> Any:
    """Dense results with the dtype of ``like`` as sparse tensors; places, which are whole numbers, stay."""

    def store(value: Any) -> Any:
        is_value = isinstance(value, torch.Tensor) and value.dtype == like.dtype and value.dim() > 0
        return from_torch(value, format=format_for(like, tuple(value.shape))) if is_value else value

    return tree_map(store, found)


def name_of(func: Any) -> str:
    """What an operator or function is called."""
    return str(getattr(func, "overloadpacket", getattr(func, "__name__", func))).removeprefix("aten.")


def densely(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """``func`` on dense copies; refused before anything is allocated where they exceed the dense budget."""
    sparse: list[SparseTensor] = []

    def note(value: Any) -> Any:
        if isinstance(value, SparseTensor):
            sparse.append(value)
        return value

    tree_map(note, (args, kwargs))
    size = sum(tensor.numel() * tensor.storage.values.element_size() for tensor in sparse)
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in sparse)
    cure = "it has no form for sparse tensors and works on a dense copy"
    check_budget(size, f"{name_of(func)} of {shapes}", cure)

    def dense(value: Any) -> Any:
        return value.to_dense() if isinstance(value, SparseTensor) else value

    start = time.perf_counter()
    found = func(*tree_map(dense, tuple(args)), **tree_map(dense, kwargs))
    if LISTENERS:
        tell("dense copy", name_of(func), sparse, found, start)
    return found


# in place --------------------------------------------------------------------------------------------


def _in_place(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """``x.add_(y)``: x takes the result of ``x.add(y)``."""
    name, target = name_of(func), args[0]
    if name == "abs_" and target.is_complex():
        raise InPlaceError("abs_ gives real numbers, which a complex tensor does not become; use abs")
    if torch.Tag.inplace_view in func.tags and isinstance(target, SparseTensor):
        return _reshape(target, getattr(aten, name.removesuffix("_"))(*args, **kwargs), name)
    functional = FUNCTIONAL.get(func.overloadpacket) or getattr(aten, name.removesuffix("_"), None)
    if name.endswith("_") and functional is not None:
        return replace_by(target, functional(*args, **kwargs), name)
    if name.endswith("_") and isinstance(target, SparseTensor):
        dense = target.to_dense()
        densely(func, (dense, *args[1:]), kwargs)
        return replace_by(target, dense, name)
    if _writes_sparse(func, args, kwargs):
        raise UnsupportedError(f"{name} does not write to sparse tensors; call .to_dense() first")
    return densely(func, args, kwargs)


@registry.implements(aten.add_.Tensor)
def _add_in_place(self: Any, other: Any, **kwargs: Any) -> Any:
    """``self += other``: how autograd sums gradients, which have one pattern."""
    if not kwargs and isinstance(self, SparseTensor) and isinstance(other, SparseTensor):
        mine, given = self.storage, other.storage
        is_same = mine.pattern is given.pattern and mine.values.dtype == given.values.dtype
        if is_same and mine.origin is None:
            mine.become(Storage(mine.pattern, mine.values + given.values))
            return self
    return run_operator(aten.add_.Tensor, (self, other), kwargs)


@registry.implements(aten.copy_.default)
def _copy_in_place(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """``self.copy_(src)`` of sparse tensors of one shape: a copy of the entries, and no zeros beside them."""
    is_whole = isinstance(self, SparseTensor) and isinstance(src, SparseTensor) and self.shape == src.shape
    if is_whole and torch.can_cast(src.dtype, self.dtype):
        return replace_by(self, _of_its_own(src), "copy_")
    return run_operator(aten.copy_.default, (self, src), {"non_blocking": non_blocking})


def _reshape(target: SparseTensor, view: Any, name: str) -> SparseTensor:
    """``x.squeeze_()``: x itself gets the shape of the view, and is a view of what it was."""
    if not isinstance(view, SparseTensor):
        raise InPlaceError(
            f"{name} would make a sparse tensor dense; use {name.removesuffix('_')} and its result"
        )
    strides = torch.empty(tuple(view.shape), device="meta").stride()
    mark_written(target.storage.values)
    with DisableTorchDispatch():
        aten.as_strided_.default(target, tuple(view.shape), strides)
    target.storage = view.storage
    if target.view_of is not None and view.view_of is not None:
        target.view_of = view.view_of
    return target


def _writes_sparse(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an argument that the operator writes to is sparse."""
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written and isinstance(value, SparseTensor):
            return True
    return False


def replace_by(target: torch.Tensor, result: Any, name: str) -> torch.Tensor:
    """``target`` with the value of ``result``; a sparse one keeps its format."""
    if not torch.can_cast(result.dtype, target.dtype):
        raise InPlaceError(f"{name} gives {result.dtype}, which a tensor of {target.dtype} cannot take")
    if not isinstance(target, SparseTensor):
        refuse_freed(target)
        return target.copy_(result.to_dense() if isinstance(result, SparseTensor) else result)
    if tuple(result.shape) != tuple(target.shape):
        raise InPlaceError(
            f"{name} on a tensor of shape {tuple(target.shape)} gives one of {tuple(result.shape)}"
        )
    if not isinstance(result, SparseTensor) and are_patterns_fixed():
        result = _store_all(result, target.format)
    given = result.storage if isinstance(result, SparseTensor) else result
    is_same = isinstance(given, Storage) and given.pattern is target.storage.pattern
    stored = given if is_same else convert(given, target.format)
    assert isinstance(stored, Storage)
    if _has_history(target) and not is_same:
        stored = _with_entries_of(target, stored)
    write_entries(target.storage, stored.pattern, stored.values.to(target.dtype))
    mark_changed(target)
    return target


def _has_history(target: SparseTensor) -> bool:
    """Whether gradients go through a tensor, or what it is a view of, to what it was computed of."""
    base = target if target.view_of is None else target.view_of.parent
    return base.requires_grad and not base.is_leaf


def _with_entries_of(target: SparseTensor, stored: Storage) -> Storage:
    """``stored`` with zeros where only ``target`` has entries, which keep their gradients."""
    given = entries_of(SparseTensor(stored))
    keys = united([given, entries_of(target)])
    return from_entries(Entries(keys, given.at(keys), given.shape), target.format).storage


def _store_all(dense: torch.Tensor, form: Format) -> SparseTensor:
    """A dense tensor with its zeros stored: where torch differentiates, they have gradients too."""
    keys = torch.arange(dense.numel(), device=dense.device)
    return from_entries(Entries(keys, dense.reshape(-1), tuple(dense.shape)), form)


def _into(out: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of ``func`` written to ``out``, one tensor or several."""
    functional: Callable[..., Any] = getattr(func.overloadpacket, _without_out(func))
    check_out(func, functional, out, args, kwargs)
    found = functional(*args, **kwargs)
    if isinstance(out, (tuple, list)):
        return type(out)(write_out(o, f, name_of(func)) for o, f in zip(out, found, strict=True))
    return write_out(out, found, name_of(func))


def _into_several(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The results written to ``values`` and ``indices``, or how they are called; None where torch does it."""
    names = [argument.name for argument in func._schema.arguments if argument.is_out]
    packet = func.overloadpacket
    if len(names) < 2 or all(registry.look_up(op).run is None for op in _overloads(packet)):
        return None
    functional = getattr(packet, _without_out(func))
    outs = [kwargs[name] for name in names]
    found = functional(*args, **{name: value for name, value in kwargs.items() if name not in names})
    if any(out.dtype != result.dtype for out, result in zip(outs, found, strict=True)):
        return None  # which torch refuses
    return tuple(write_out(out, result, name_of(func)) for out, result in zip(outs, found, strict=True))


def _overloads(packet: Any) -> list[Any]:
    return [packet, *(getattr(packet, name) for name in packet.overloads())]


def write_out(out: torch.Tensor, result: Any, name: str) -> torch.Tensor:
    """``out=``: a dense tensor takes the shape of the result, with torch's warning unless it was empty."""
    is_dense = not isinstance(out, SparseTensor)
    if out.device != result.device:
        raise DeviceError(f"{name} gives a result on {result.device}, but out is on {out.device}")
    if is_dense and out.shape != result.shape and torch.can_cast(result.dtype, out.dtype):
        if out.numel():
            was, given = tuple(out.shape), tuple(result.shape)
            warnings.warn(f"out of {name} has shape {was} and is resized to {given}", stacklevel=2)
        out.resize_(result.shape)
    return replace_by(out, result, name)


def _without_out(func: Any) -> str:
    """The overload that returns what ``func`` writes to its argument ``out``."""
    names = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    for overload in func.overloadpacket.overloads():
        schema = getattr(func.overloadpacket, overload)._schema
        if [(a.name, str(a.type)) for a in schema.arguments] == names:
            return str(overload)
    raise UnsupportedError(f"{name_of(func)} with out= does not work on sparse tensors; use the result")
