"""Run PyTorch operators that have no handler of their own. In this order:

in place or with out=      the operator without it, and then the tensor takes the result
elementwise                ``ops.pointwise.elementwise``
composite                  torch's own decomposition, whose parts come here again
anything else              densely (fallback), within the dense budget
"""

from __future__ import annotations

import itertools
import re
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.engine.execute import convert
from scorch._src.events import LISTENERS, emit
from scorch._src.grad_state import are_patterns_fixed, is_called_from
from scorch._src.ops.pointwise.elementwise import elementwise, is_elementwise
from scorch._src.storage.budget import check_budget
from scorch._src.storage.storage import Storage, mark_written
from scorch._src.tensor import registry
from scorch._src.tensor.check_call import check_call, check_out
from scorch._src.tensor.create.check import refuse_freed
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.dispatch_rules import register_for
from scorch._src.tensor.entries import Entries, entries_of, format_for, from_entries, united
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.layer_weight import check_layer_pattern, computed_weight_error
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.views.merge import mark_changed, write_entries
from scorch._src.torch_internals import (
    DisableTorchDispatch,
    DisableTorchFunctionSubclass,
    DispatchKey,
    any_requires_grad,
    has_kernel_for_dispatch_key,
    tree_leaves,
    tree_map,
)
from scorch.errors import DeviceError, InPlaceError, UnsupportedError

aten = torch.ops.aten

# Operators decomposed as torch does for its compilers: their parts have handlers.
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
SIZE_DIVIDING = {aten.channel_shuffle, aten.pixel_shuffle, aten.pixel_unshuffle}

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

COLLECTIVES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}

# Operators that write in place and whose functional form has another name.
FUNCTIONAL: dict[Any, Any] = {
    aten.normal_: aten.normal_functional,
    aten.polygamma_: lambda self, n: aten.polygamma(n, self),
}


def run_operator(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run ``func`` on arguments of which some are sparse."""
    if func.namespace in COLLECTIVES:
        raise UnsupportedError(
            "torch.distributed sends dense tensors to other processes, but a sparse tensor consists of "
            f"several ({name_of(func)}); send S.values() if all processes have the sparsity pattern, as "
            "DistributedDataParallel does, or S itself with torch.distributed.broadcast_object_list. "
            "DTensors do this in full_tensor, redistribute and products of two sparse tensors; "
            "scorch.distributed.shard exchanges only the rows that are needed"
        )
    _refuse_layouts(func, args, kwargs)
    if kwargs.get("out") is not None:
        return _run_with_out(kwargs.pop("out"), func, args, kwargs)
    if name_of(func).startswith("_foreach_"):  # a list of tensors: one after the other
        return func._op_dk(DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    if func._schema.is_mutable:
        result = _run_with_outs(func, args, kwargs)
        return _run_in_place(func, args, kwargs) if result is None else result
    if is_elementwise(func):
        return elementwise(func, args, kwargs)
    view = _find_view_operator(func)
    if view is not None:
        return tree_map(_copy_values, view(*args, **kwargs))
    if func.overloadpacket in SIZE_DIVIDING and (min(args[1:2], default=1) < 1 or not args[0].numel()):
        return run_densely(func, args, kwargs)
    if func.overloadpacket in DECOMPOSED:
        if func.overloadpacket not in SIZE_DIVIDING:
            check_call(func, *args, **kwargs)
        from scorch._src.torch_internals import decomposition_table  # imports half of torch's compiler

        return decomposition_table[func](*args, **kwargs)
    if has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return func.decompose(*args, **kwargs)
    if any(isinstance(arg, SparseTensor) and arg.is_inside_dtensor for arg in args):
        refuse_inside_dtensor(func, 3)
    result = run_densely(func, args, kwargs)
    keeps_zeros = func.overloadpacket in KEEP_ZEROS and isinstance(args[0], SparseTensor)
    if func.overloadpacket in KEEP_ZEROS_OF_ALL:
        keeps_zeros = args[1] is not None and are_all_sparse(args)
    is_tracked = torch.is_grad_enabled() and any_requires_grad(*args)  # zeros may be there by chance
    is_sparse = keeps_zeros and not are_patterns_fixed() and not is_tracked
    return store_like(result, args[0]) if is_sparse else result


def refuse_inside_dtensor(func: Any, depth: int) -> None:
    """Refuse an operator that makes its operand dense, where a DTensor calls it and not the user.

    ``depth`` is the number of frames to whoever called the operator.
    """
    if not is_called_from("scorch", depth):
        raise UnsupportedError(
            f"{name_of(func)} would make the sparse tensor inside a DTensor dense. Call it with the local "
            "tensor (D.to_local()), or shard the tensor with scorch.distributed.shard"
        )


hooks.run_operator = run_operator
hooks.refuse_inside_dtensor = refuse_inside_dtensor


def _find_view_operator(func: Any) -> Any:
    """Return the operator with handlers for one such as ``transpose_copy`` or ``unsafe_split``; else None."""
    name = name_of(func)
    plain = name.removesuffix("_copy").removeprefix("unsafe_")
    if plain == name or plain in ("as_strided", "index"):
        return None
    packet = getattr(aten, plain, None)
    operator = getattr(packet, func._overloadname, None)
    is_known = any(op in KEEP_ZEROS or registry.look_up(op).run is not None for op in (operator, packet))
    return operator if is_known else None


def _copy_values(value: Any) -> Any:
    """Return a tensor with its own copy of the values of a view: writing to it leaves the base alone."""
    if not isinstance(value, SparseTensor):
        return value
    return SparseTensor(Storage(value.storage.pattern, value.storage.values.clone()))


def are_all_sparse(args: Sequence[Any]) -> bool:
    """Whether all tensors with dimensions are sparse."""
    tensors = [value for value in args if isinstance(value, torch.Tensor) and value.dim()]
    return all(isinstance(value, SparseTensor) for value in tensors)


def store_like(results: Any, like: SparseTensor) -> Any:
    """Store dense results with the dtype of ``like`` as sparse tensors; indices stay dense."""

    def store(value: Any) -> Any:
        is_value = isinstance(value, torch.Tensor) and value.dtype == like.dtype and value.dim() > 0
        return from_torch(value, format=format_for(like, tuple(value.shape))) if is_value else value

    return tree_map(store, results)


def as_dense(value: Any) -> Any:
    """Convert a sparse tensor to dense, and return anything else as it is."""
    return value.to_dense() if isinstance(value, SparseTensor) else value


def name_of(func: Any) -> str:
    """Return the name of an operator or function."""
    return str(getattr(func, "overloadpacket", getattr(func, "__name__", func))).removeprefix("aten.")


# What to use for large tensors instead of functions that fall back to a dense computation, by public name.
_SPARSE_ALTERNATIVES = {
    "softmax": "use torch.sparse.softmax(S, dim) for the stored elements alone",
    "log_softmax": "use torch.sparse.log_softmax(S, dim) for the stored elements alone",
    "linalg.eigh": "use scorch.linalg.eigsh(S, k) for k eigenvalues",
    "linalg.eig": "use scipy.sparse.linalg.eigs(S.to_scipy(), k) for k eigenvalues",
    "linalg.svd": "use torch.svd_lowrank(S, k) for the k largest singular values",
    **dict.fromkeys(("linalg.pinv", "linalg.qr"), "use torch.linalg.lstsq(S, b)"),
    **dict.fromkeys(("linalg.cholesky", "linalg.lu", "linalg.lu_factor"), "use torch.linalg.solve(S, b)"),
    "cdist": "compute it for some rows at a time",
}


def sparse_alternative(name: str) -> str:
    """Return what to use instead of a function that falls back to dense, by public name; may be empty."""
    return _SPARSE_ALTERNATIVES.get(name, "")


def _public_name(func: Any) -> str:
    """Return the name that users know a function by: ``linalg.eigh`` for ``aten._linalg_eigh``."""
    name = name_of(func)
    public = re.sub(r"^_*(linalg_|fft_)?(.*?)(_ex|_forward|_forward_only)?$", r"\1\2", name)
    public = re.sub("^fft_(r2c|c2r|c2c)$", "fft", public)
    return {"euclidean_dist": "cdist"}.get(public, re.sub("^linalg_", "linalg.", public))


def run_torch(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a function as torch decomposes it, into operators that have handlers."""
    register_for(function)
    with DisableTorchFunctionSubclass():
        return function(*args, **kwargs)


def run_densely(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Fall back to a dense computation; raise before allocating anything if it exceeds the dense budget."""
    sparse = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, SparseTensor)]
    size = sum(tensor.numel() * tensor.storage.values.element_size() for tensor in sparse)
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in sparse)
    device, name = sparse[0].storage.device if sparse else HOST, _public_name(func)
    reason = f"{name} has no sparse implementation and falls back to a dense computation"
    check_budget(size, device, f"{name} of {shapes}", sparse_alternative(name), reason)
    start = time.perf_counter()
    result = func(*tree_map(as_dense, tuple(args)), **tree_map(as_dense, kwargs))
    if LISTENERS:
        emit("dense copy", name_of(func), sparse, result, start)
    return result


def _refuse_layouts(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuse to write to a tensor of another layout, which torch would write to as if it was dense."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written = args[place] if place < len(args) else kwargs.get(argument.name)
            for target in tree_leaves(written):  # of operators on lists, several
                if isinstance(target, torch.Tensor) and target.layout is not torch.strided:
                    raise UnsupportedError(
                        f"{name_of(func)} cannot write what is computed of a sparse tensor of Scorch to one "
                        f"of layout {target.layout}; convert that with scorch.from_torch, or use the result"
                    )


def _run_in_place(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run ``x.add_(y)``: x takes the result of ``x.add(y)``."""
    name, target = name_of(func), args[0]
    if name == "abs_" and target.is_complex():
        raise InPlaceError("abs_ is not supported for complex tensors, because its result is real; use abs")
    if torch.Tag.inplace_view in func.tags and isinstance(target, SparseTensor):
        return _reshape_in_place(target, getattr(aten, name.removesuffix("_"))(*args, **kwargs), name)
    functional = FUNCTIONAL.get(func.overloadpacket) or getattr(aten, name.removesuffix("_"), None)
    if name.endswith("_") and functional is not None:
        register_for(functional)
        return replace_value(target, functional(*args, **kwargs), name)
    if name.endswith("_") and isinstance(target, SparseTensor):
        dense = target.to_dense()
        run_densely(func, (dense, *args[1:]), kwargs)
        return replace_value(target, dense, name)
    if _writes_sparse(func, args, kwargs):
        raise UnsupportedError(f"{name} cannot write to sparse tensors; call .to_dense() first")
    return run_densely(func, args, kwargs)


@registry.implements(aten.add_.Tensor)
def _add_in_place(self: Any, other: Any, **kwargs: Any) -> Any:
    """Add in place: how autograd accumulates gradients, which share one pattern."""
    if not kwargs and isinstance(self, SparseTensor) and isinstance(other, SparseTensor):
        own, added = self.storage, other.storage
        is_same = own.pattern is added.pattern and own.values.dtype == added.values.dtype
        if is_same and own.origin is None:
            own.become(Storage(own.pattern, own.values + added.values))
            return self
    return run_operator(aten.add_.Tensor, (self, other), kwargs)


@registry.implements(aten.copy_.default)
def _copy_in_place(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """Copy the entries between sparse tensors of one shape, and no zeros with them."""
    are_sparse = isinstance(self, SparseTensor) and isinstance(src, SparseTensor)
    if are_sparse and self.shape == src.shape and torch.can_cast(src.dtype, self.dtype):
        return replace_value(self, _copy_values(src), "copy_")
    return run_operator(aten.copy_.default, (self, src), {"non_blocking": non_blocking})


def _reshape_in_place(target: SparseTensor, view: Any, name: str) -> SparseTensor:
    """Run ``x.squeeze_()``: x itself gets the shape of the view, and is a view of what it was."""
    if not isinstance(view, SparseTensor):
        raise InPlaceError(
            f"{name} would make a sparse tensor dense; use {name.removesuffix('_')} and its result"
        )
    if target.weight_of is not None:
        raise computed_weight_error(name)
    strides = torch.empty(tuple(view.shape), device="meta").stride()
    mark_written(target.storage.values)
    with DisableTorchDispatch():
        aten.as_strided_.default(target, tuple(view.shape), strides)
    target.__dict__["storage"] = view.storage
    if target.view_of is not None and view.view_of is not None:
        target.view_of = view.view_of
    return target


def _writes_sparse(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an argument that the operator writes to is sparse."""
    arguments = func._schema.arguments
    written = [argument.alias_info is not None and argument.alias_info.is_write for argument in arguments]
    values = (*args, *(kwargs.get(argument.name) for argument in arguments[len(args) :]))
    return any(isinstance(value, SparseTensor) for value in itertools.compress(values, written))


def replace_value(target: torch.Tensor, result: Any, name: str) -> torch.Tensor:
    """Write ``result`` to ``target``; a sparse one keeps its format."""
    if not torch.can_cast(result.dtype, target.dtype):
        raise InPlaceError(
            f"{name} returns {result.dtype}, which cannot be cast to the tensor's dtype {target.dtype}"
        )
    if not isinstance(target, SparseTensor):
        refuse_freed(target)
        return target.copy_(as_dense(result))
    if tuple(result.shape) != tuple(target.shape):
        raise InPlaceError(
            f"{name} on a tensor of shape {tuple(target.shape)} returns shape {tuple(result.shape)}"
        )
    if not isinstance(result, SparseTensor) and are_patterns_fixed():  # zeros have gradients too
        keys = torch.arange(result.numel(), device=result.device)
        result = from_entries(Entries(keys, result.reshape(-1), tuple(result.shape)), target.format)
    source = result.storage if isinstance(result, SparseTensor) else result
    is_same = isinstance(source, Storage) and source.pattern is target.storage.pattern
    converted = source if is_same else convert(source, target.format)
    assert isinstance(converted, Storage)
    base = target if target.view_of is None else target.view_of.parent
    if not is_same and base.requires_grad and not base.is_leaf:  # was computed: its entries have gradients
        converted = _keep_entries(target, converted)
    check_layer_pattern(target.storage, converted, name)
    write_entries(target.storage, converted.pattern, converted.values.to(target.dtype))
    mark_changed(target)
    return target


def _keep_entries(target: SparseTensor, stored: Storage) -> Storage:
    """Add zeros to ``stored`` where only ``target`` has entries, which keep their gradients."""
    entries = entries_of(SparseTensor(stored))
    keys = united([entries, entries_of(target)])
    return from_entries(Entries(keys, entries.at(keys), entries.shape), target.format).storage


def _run_with_out(out: Any, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Write the result of ``func`` to ``out``, one tensor or several."""
    functional: Callable[..., Any] = getattr(func.overloadpacket, _functional_overload(func))
    check_out(func, functional, out, args, kwargs)
    result = functional(*args, **kwargs)
    if isinstance(out, (tuple, list)):
        return type(out)(write_out(o, f, name_of(func)) for o, f in zip(out, result, strict=True))
    return write_out(out, result, name_of(func))


def _run_with_outs(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Write results to ``values`` and ``indices`` or such; return None where torch does it itself."""
    names = [argument.name for argument in func._schema.arguments if argument.is_out]
    packet = func.overloadpacket
    overloads = (packet, *(getattr(packet, name) for name in packet.overloads()))
    if len(names) < 2 or all(registry.look_up(op).run is None for op in overloads):
        return None
    functional = getattr(packet, _functional_overload(func))
    outs = [kwargs[name] for name in names]
    results = functional(*args, **{name: value for name, value in kwargs.items() if name not in names})
    if any(out.dtype != result.dtype for out, result in zip(outs, results, strict=True)):
        return None  # which torch refuses
    return tuple(write_out(out, result, name_of(func)) for out, result in zip(outs, results, strict=True))


def write_out(out: torch.Tensor, result: Any, name: str) -> torch.Tensor:
    """Write to ``out=``: a dense tensor is resized, with torch's warning unless it was empty."""
    is_dense = not isinstance(out, SparseTensor)
    if out.device != result.device:
        raise DeviceError(f"expected out of {name} to be on {result.device}, but got {out.device}")
    if is_dense and out.shape != result.shape and torch.can_cast(result.dtype, out.dtype):
        if out.numel():
            old_shape, new_shape = tuple(out.shape), tuple(result.shape)
            warnings.warn(
                f"an output of {name} with shape {old_shape} was resized to {new_shape}", stacklevel=2
            )
        out.resize_(result.shape)
    return replace_value(out, result, name)


def _functional_overload(func: Any) -> str:
    """Return the overload that returns what ``func`` writes to its argument ``out``."""
    names = [(a.name, str(a.type)) for a in func._schema.arguments if not a.is_out]
    for overload in func.overloadpacket.overloads():
        schema = getattr(func.overloadpacket, overload)._schema
        if [(a.name, str(a.type)) for a in schema.arguments] == names:
            return str(overload)
    raise UnsupportedError(f"{name_of(func)} with out= is not supported for sparse tensors; use the result")
