"""Gradients of sparse tensors: connect a tensor, its values and torch's autograd.

A sparse tensor that requires a gradient is a leaf, or has a ``grad_fn``, like any tensor. Its gradient lives
on its pattern: it is a ``SparseTensor`` that shares it. Three functions connect computations on arrays:

    values_of(S)               the values of S                       backward: a tensor on the pattern of S
    sparse_of(pattern, v)      the tensor with values v              backward: the gradient at its pattern
    placed(v, source, target)  entries moved to another pattern      backward: entries moved back

``placed`` is its own kind of adjoint: sampling a dense gradient at a pattern, and spreading values over a
dense tensor, are one function with both patterns exchanged. So all of them have higher-order gradients.

``torch.func`` tracks the values of a sparse tensor, not the tensor itself, and so does forward mode
(``tensor/transforms/forward_mode.py``).
"""

from __future__ import annotations

import functools
import inspect
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.utils.weak import WeakIdKeyDictionary

from scorch._src.backends.base import MANY_VALUES, run_among_others
from scorch._src.compiler.plan import Step
from scorch._src.engine.execute import (
    Task,
    convert,
    converted_pattern,
    copy_step,
    from_dense,
    run_step,
    values_from,
)
from scorch._src.formats import Format, dense_format
from scorch._src.grad_state import fixed_patterns, is_differentiable, is_grad_enabled, untracked
from scorch._src.notation.nodes import Access, Op
from scorch._src.storage.coordinates import clear_padding
from scorch._src.storage.relevel import releveled, shares_entries
from scorch._src.storage.storage import Pattern, Storage, plain
from scorch._src.tensor.entries import entries_of, number_entries
from scorch._src.tensor.flatten import spelled
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.registry import look_up, own_arguments
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.transforms.forward_mode import as_one_step, has_sparse_tangents
from scorch._src.torch_internals import (
    DisableTorchFunctionSubclass,
    FunctionBase,
    any_requires_grad,
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    peek_interpreter_stack,
    tree_leaves,
    tree_map,
)
from scorch.errors import InPlaceError, UnsupportedError

_apply: Any = FunctionBase.__dict__["apply"]

Place = Pattern | tuple[int, ...]  # where values are: at the entries of a pattern, or everywhere in a shape


_MEMORY = (torch.Tensor, torch.nn.Parameter)


def apply(function: Any, *args: Any) -> Any:
    """Call ``function.apply`` without the inspection of its signature that torch repeats on every call."""
    if peek_interpreter_stack() is not None:
        return function.apply(*args)
    return _apply.__get__(None, function)(*args)


def bind_apply(function: Any) -> Callable[..., Any]:
    """Return ``apply`` of one function, for callers that know that no transform of ``torch.func`` runs."""
    return _apply.__get__(None, function)  # type: ignore[no-any-return]


WATCHED: dict[int, Callable[..., None]] = {}  # by id of a tensor: called for each statement that uses it


def gradient_target(tensor: SparseTensor) -> torch.Tensor:
    """Return the tensor that receives the gradient: this one, or the values that a layer built it from."""
    return tensor if tensor.source_values is None else tensor.source_values


def watcher_of(tensor: weakref.ref[torch.Tensor] | None) -> Callable[..., None] | None:
    """Return the callback for gradients of a tensor outside its sparsity pattern, if one is registered."""
    watched = tensor() if WATCHED and tensor is not None else None
    return None if watched is None else WATCHED.get(id(watched))


def _check_watched(tensor: weakref.ref[torch.Tensor] | None) -> None:
    if watcher_of(tensor) is not None:
        raise outside_pattern_error()


def outside_pattern_error() -> UnsupportedError:
    """Return the error for gradients outside a sparsity pattern that are requested but not computed."""
    return UnsupportedError(
        "grad_topk supports gradients outside the sparsity pattern from einsum, evaluate, matmul and "
        "linear with dense results only, but this tensor was also used differently (transposed, "
        "converted, elementwise, for a sparse result): write the product as one einsum, as in "
        "scorch.einsum('bj,ij->bi', x, W), and take a penalty on the weights outside the with block"
    )


def check_gradient(tensor: SparseTensor) -> None:
    if tensor.has_unknown_gradient:
        raise InPlaceError(
            "a view that was created inside torch.no_grad(), by a function with several results (unbind, "
            "split, chunk), or that requires a gradient of its own, is used after its base has been "
            "modified inplace; create the view again"
        )


# a tensor and its values -----------------------------------------------------------------------------


class _Values(torch.autograd.Function):
    """Map S to its values, for a statement or for another use."""

    @staticmethod
    def forward(ctx: Any, tensor: SparseTensor, in_statement: bool) -> torch.Tensor:
        check_gradient(tensor)
        ctx.pattern = tensor.storage.pattern
        ctx.other = None if in_statement else weakref.ref(gradient_target(tensor))
        return tensor.storage.values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        _check_watched(ctx.other)
        return gradient_on(ctx.pattern, gradient), None


class _Wrap(torch.autograd.Function):
    """Map values to the tensor on ``pattern`` that has them; that of ``layer`` may change later."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, pattern: Pattern, layer: Any = None) -> SparseTensor:
        ctx.pattern, ctx.layer = pattern, layer
        return SparseTensor(Storage(pattern, plain(values.detach())))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        pattern = ctx.pattern if ctx.layer is None else ctx.layer._pattern_of_shape(ctx.pattern.shape)
        if pattern.size != ctx.pattern.size:
            raise _other_number_error()
        return values_at(gradient, pattern), None, None


REWIRED: Any = WeakIdKeyDictionary()  # the patterns of the values of layers that have had others before


def on_current_pattern(
    gradient: torch.Tensor, pattern: Pattern, parameter: weakref.ref[torch.Tensor] | None
) -> torch.Tensor:
    """Return the gradient of values on ``pattern`` for the values that the layer has by now."""
    values = None if parameter is None else parameter()
    current = None if values is None else REWIRED.get(values)
    if current is None or current is pattern:
        return gradient
    if current.size != pattern.size:
        raise _other_number_error()
    return placed(gradient, pattern, current)


def _other_number_error() -> InPlaceError:
    return InPlaceError(
        "the number of values of the layer was changed after its weight was read, so there is no gradient "
        "for these; call the layer, or read layer.weight, again"
    )


class _Use(torch.autograd.Function):
    """The identity, around one use of a tensor by torch: convert the gradient to the format of the tensor.

    torch's own formulas may return a dense gradient of a sparse tensor, or a sparse one of a dense tensor;
    only here is the pattern of the tensor known.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, SparseTensor):
            ctx.pattern = None
            return tensor.detach()
        ctx.pattern = tensor.storage.pattern
        ctx.other = weakref.ref(gradient_target(tensor))
        return SparseTensor(Storage(ctx.pattern, tensor.storage.values))  # unchanged by writes to ``tensor``

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.pattern is None:
            return dense_of(gradient)
        _check_watched(ctx.other)
        if isinstance(gradient, SparseTensor) and gradient.storage.pattern is ctx.pattern:
            return gradient
        return sparse_of(ctx.pattern, values_at(gradient, ctx.pattern))


def _refuse_batched(gradient: torch.Tensor) -> None:
    if is_legacy_batchedtensor(gradient):
        raise UnsupportedError(
            "batched gradients of a sparse tensor (is_grads_batched, vectorize) are not supported; use "
            "torch.func.jacrev, over the values() of sparse arguments, or compute one gradient at a time"
        )


def gradient_on(pattern: Pattern, values: torch.Tensor) -> SparseTensor:
    """Return the gradient of a tensor on ``pattern`` that has these values, connected to them."""
    _refuse_batched(values)
    values = clear_padding(values, pattern)
    if is_grad_enabled() or type(values) is not torch.Tensor:
        return sparse_of(pattern, values)
    return SparseTensor(Storage(pattern, plain(values)))


def values_of(tensor: SparseTensor, in_statement: bool = False) -> torch.Tensor:
    """Return the values of a tensor, connected to it."""
    stored = tensor.storage.values
    if torch.is_grad_enabled() and any_requires_grad(tensor) and not is_functorch_wrapped_tensor(stored):
        values: torch.Tensor = apply(_Values, tensor, in_statement)
        return values
    return stored


def sparse_of(pattern: Pattern, values: torch.Tensor, layer: Any = None) -> SparseTensor:
    """Return the tensor with these values, connected to them; it may be the weight of a ``layer``."""
    if is_dynamo_compiling():
        pairs = zip(pattern.pos, pattern.crd, strict=True)
        arrays = [array for pair in pairs for array in pair if array is not None]
        arguments = spelled(pattern.format), list(pattern.shape), arrays, values
        return torch.ops.scorch.assemble(*arguments)  # type: ignore[no-any-return]
    if type(values) not in _MEMORY:  # inside a graph that torch.export traces
        return hooks.trace(pattern, values)  # type: ignore[no-any-return]
    if peek_interpreter_stack() is None and torch.is_grad_enabled() and values.requires_grad:
        tensor: SparseTensor = apply(_Wrap, values, pattern, layer)
        tensor.__dict__["source_values"] = values
        return tensor
    return SparseTensor(Storage(pattern, plain(values)))


def map_values(tensor: SparseTensor, function: Callable[..., Any], *args: Any, **kwargs: Any) -> SparseTensor:
    """Return the tensor with ``function`` of its values, which are not lazy after it, connected to it."""
    storage, is_traced = tensor.storage, is_dynamo_compiling()
    if not is_traced and storage.pattern.size >= MANY_VALUES:
        function = functools.partial(run_among_others, storage.values, function)
    if peek_interpreter_stack() is None and not (torch.is_grad_enabled() and any_requires_grad(tensor)):
        values = function(storage.values, *args, **kwargs)
        if type(values) is torch.Tensor and not is_traced and not values.requires_grad:
            return SparseTensor(Storage(storage.pattern, values))
    else:
        values = function(values_of(tensor), *args, **kwargs)
    return sparse_of(storage.pattern, values)


def used(tensor: Any) -> Any:
    """Wrap a tensor that requires a gradient for one use of it by a PyTorch function."""
    if isinstance(tensor, torch.Tensor) and any_requires_grad(tensor) and peek_interpreter_stack() is None:
        return apply(_Use, tensor)
    return tensor


def dense_of(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a tensor to a dense one, connected to it."""
    if not isinstance(tensor, SparseTensor):
        return tensor
    pattern = tensor.storage.pattern
    return placed(values_of(tensor), pattern, pattern.shape)


def values_at(tensor: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Return the values of a tensor at the entries of ``pattern``, connected to it."""
    if isinstance(tensor, SparseTensor):
        return placed(values_of(tensor), tensor.storage.pattern, pattern)
    _refuse_batched(tensor)
    return placed(tensor, tuple(tensor.shape), pattern)


def keep_gradient_sparse(tensor: SparseTensor) -> None:
    """Sample the gradients of a leaf at its entries where they arrive dense."""
    if tensor.samples_gradient:
        return

    def sample(gradient: torch.Tensor) -> torch.Tensor:
        if isinstance(gradient, SparseTensor):
            return gradient
        pattern = tensor.storage.pattern
        return sparse_of(pattern, values_at(gradient, pattern))

    tensor.samples_gradient = True
    tensor.register_hook(sample)


# entries moved ---------------------------------------------------------------------------------------


class _Placed(torch.autograd.Function):
    """Move values from the entries of ``source`` to those of ``target``: zero where there are none."""

    @staticmethod
    def forward(values: torch.Tensor, source: Place, target: Place) -> torch.Tensor:
        moved = _moved(values, source, target)
        return moved.detach() if moved is values else moved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.source, ctx.target = inputs

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return placed(dense_of(gradient), ctx.target, ctx.source), None, None

    @staticmethod
    def jvp(ctx: Any, change: Any, *_: Any) -> Any:
        return placed(change, ctx.source, ctx.target)

    @staticmethod
    def vmap(info: Any, in_dims: Any, values: torch.Tensor, source: Place, target: Place) -> Any:
        if in_dims[0] is None:
            return placed(values, source, target), None
        parts = [placed(part, source, target) for part in values.unbind(in_dims[0])]
        if not parts:
            size = (target.size,) if isinstance(target, Pattern) else target
            return values.new_zeros(0, *size), 0
        return torch.stack(parts), 0


def placed(values: torch.Tensor, source: Place, target: Place) -> torch.Tensor:
    """Move values from ``source`` to ``target``, connected to them."""
    if source is target:
        return values
    if is_differentiable(values):
        moved: torch.Tensor = apply(_Placed, values, source, target)
        return moved
    return _moved(values, source, target)


def _moved(values: torch.Tensor, source: Place, target: Place) -> torch.Tensor:
    if isinstance(values, SparseTensor):  # which torch.func had wrapped
        storage = values.storage
        values, source = storage.values, storage.pattern
    if source is target or not isinstance(target, Pattern):
        return _spread(values, source)
    if not isinstance(source, Pattern):
        return _sampled(values, target)
    conversion = source.converted.get(target.format)
    if conversion is not None and conversion[0] is target:
        return values_from(values, *conversion)
    conversion = target.converted.get(source.format)
    if conversion is not None and conversion[0] is source:
        restored = values.new_zeros(target.size + 1)
        restored[conversion[1]] = values  # those of padding, at -1, are dropped
        return restored[:-1]
    is_releveled = shares_entries(source.format, target.format) and source.crd[1] is target.crd[1]
    if is_releveled or has_same_arrays(source, target):
        return values
    entries = entries_of(SparseTensor(Storage(source, values.contiguous())))
    listed = entries_of(number_entries(target))
    moved = entries.values.new_zeros(target.size)
    moved[listed.values] = entries.at(listed.keys)
    return moved


def has_same_arrays(source: Pattern, target: Pattern) -> bool:
    return source.format == target.format and all(
        a is b or (a.numel() == b.numel() and torch.equal(a, b))
        for a, b in zip(source.arrays, target.arrays, strict=True)
    )


def _spread(values: torch.Tensor, source: Place) -> torch.Tensor:
    if not isinstance(source, Pattern):
        return values
    if not source.shape:
        return values.reshape(())
    dense = convert(Storage(source, values.contiguous()), dense_format(len(source.shape)))
    assert isinstance(dense, torch.Tensor)
    return dense


def _sampled(dense: torch.Tensor, target: Pattern) -> torch.Tensor:
    """Sample a dense tensor at the entries of ``target``; read expanded dimensions once."""
    if not target.shape:
        return dense.reshape(1)
    if math.prod(target.shape) == 0 or not target.size or dense._is_zerotensor():
        return dense.new_zeros(target.size)
    unexpanded = tuple(dim for dim in range(dense.dim()) if dense.stride(dim) or dense.shape[dim] == 1)
    for dim in reversed(range(dense.dim())):
        if dim not in unexpanded:
            dense = dense.select(dim, 0)
    if not unexpanded:
        return clear_padding(dense.reshape(1).expand(target.size).contiguous(), target)
    step = _sample_step(len(target.shape), unexpanded)
    sizes = dict(zip(step.target.indices, target.shape, strict=True))
    plain = dense.resolve_conj().resolve_neg()
    sampled = run_step(Task(step, {"P": Storage(target, target.present), "A": plain}, sizes, target.format))
    assert isinstance(sampled, Storage)
    return sampled.values


@functools.lru_cache(maxsize=1024)
def _sample_step(dims: int, unexpanded: tuple[int, ...]) -> Step:
    """Build ``B[i,j] = P[i,j] * A[i,j]``, where A has its ``unexpanded`` dimensions only."""
    copy = copy_step(dims)
    indices = copy.target.indices
    read = Access("A", tuple(indices[dim] for dim in unexpanded))
    return Step(copy.target, Op("mul", (Access("P", indices), read)), "sum", ())


def converted(tensor: SparseTensor, form: Format) -> SparseTensor | torch.Tensor:
    """Convert the tensor to another format, connected to it."""
    source = tensor.storage.pattern
    if form.is_dense:
        return placed(values_of(tensor), source, source.shape)
    with untracked():
        if form == source.format:
            target = source
        elif shares_entries(source.format, form):
            target = releveled(Storage(source, source.present), form).pattern
        else:
            target, _ = converted_pattern(source, form)
    return sparse_of(target, placed(values_of(tensor), source, target))


def stored(dense: torch.Tensor, form: Format) -> SparseTensor:
    """Store the nonzeros of a dense tensor as ``form``, connected to it."""
    if is_functorch_wrapped_tensor(dense):
        raise UnsupportedError(
            "the sparsity pattern of a dense tensor is unknown inside torch.func; compute the pattern "
            "outside, and pass the values inside: scorch.sparse_csr_tensor(crow, col, values)"
        )
    storage = from_dense(dense.detach(), form)
    return sparse_of(storage.pattern, values_at(dense, storage.pattern))


# PyTorch functions -----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _signature(func: Any) -> inspect.Signature | None:
    """Return the signature of a function with an argument ``inplace``, such as ``F.elu``; None for others."""
    code = getattr(func, "__code__", None)
    has_inplace = code is not None and "inplace" in code.co_varnames[: code.co_argcount]
    return inspect.signature(func) if has_inplace else None


def _bind_in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Bind the arguments by name if ``inplace=True`` writes the result to the first, which is sparse."""
    signature = _signature(func) if args and isinstance(args[0], SparseTensor) else None
    if signature is None:
        return None
    bound = dict(signature.bind(*args, **kwargs).arguments)
    return bound if bound.get("inplace") else None


def differentiated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute ``func`` of tensors that require gradients: by its handler, or by torch's formula."""
    bound = _bind_in_place(func, args, kwargs)
    if bound is not None:
        (name, target), *_ = bound.items()
        copy = target.clone()  # gradients need it as it is
        result = func(**{**bound, name: copy, "inplace": False})
        return target if result is copy else target.copy_(result)
    entry = look_up(func)
    handler = entry.run_differentiable
    if handler is not None and entry.only_moves_entries:
        return handler(*args, **kwargs)
    if peek_interpreter_stack() is not None and own_arguments(func) == 0:
        return by_torch(func, args, kwargs)
    if handler is not None:
        return handler(*args, **kwargs)
    if own_arguments(func) == 1:
        return hooks.write(func, args, kwargs)
    return by_formula(func, args, kwargs)


def by_torch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute ``func`` without a handler that only moves entries: in ``torch.func``, or by a formula."""
    entry = look_up(func)
    handler = entry.run_differentiable
    has_none = handler is None or entry.only_moves_entries
    is_transformed = peek_interpreter_stack() is not None
    if is_transformed and (
        hooks.is_tracked(args, kwargs) or (has_none and hooks.is_any_tracked(args, kwargs))
    ):
        return hooks.run_as_one_function(func, args, kwargs)
    return (
        handler(*args, **kwargs) if handler is not None and not has_none else by_formula(func, args, kwargs)
    )


def by_formula(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute ``func``, differentiated by torch's own formula."""
    if forward_ad._current_level >= 0 and has_sparse_tangents(args, kwargs):
        return as_one_step(func, args, kwargs)
    own, originals = own_arguments(func), (args, kwargs)
    copies: dict[int, tuple[Any, Any]] = {}

    def copy(leaf: Any) -> Any:
        alias = used(leaf)
        if alias is not leaf:
            copies[id(alias)] = alias, leaf
        return alias

    if own >= 0:
        args = (*args[:own], *tree_map(copy, args[own:]))
        kwargs = tree_map(copy, kwargs)
    with DisableTorchFunctionSubclass(), fixed_patterns():
        result = func(*args, **kwargs)
        if own >= 0 and any_requires_grad(result):
            for leaf in tree_leaves(originals):
                if isinstance(leaf, SparseTensor):
                    check_gradient(leaf)
    if not copies:
        return result
    return tree_map(lambda leaf: copies[id(leaf)][1] if id(leaf) in copies else leaf, result)


hooks.values_at, hooks.values_of, hooks.sparse_of = values_at, values_of, sparse_of
hooks.store, hooks.convert = stored, converted
