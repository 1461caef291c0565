"""Sparse tensors inside ``torch.func``, and functions there without a rule of their own.

A function of sparse tensors is one of arrays: dense tensors, and the values of sparse ones. ``torch.func``
sees it as one step, whose backward runs autograd outside ``torch.func``. That backward is such a function
itself; so there are derivatives of any order, forward mode too, and ``vmap`` runs batches one by one.

``torch.func`` wraps tensors in C++, and unwraps those that a function returns. A sparse tensor whose values
it has wrapped is therefore wrapped as well, as the result of an autograd function of its values, and has its
storage beside that, which all calls inside the function read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.storage.storage import Pattern, Storage, plain
from scorch._src.tensor.autograd import dense_of, has_same_arrays, sparse_of, used, values_at, values_of
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.transforms.forward_mode import is_number
from scorch._src.torch_internals import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_level,
    swap_tensor_impl,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)

Arrays = tuple[torch.Tensor, ...]
Function = Callable[..., Arrays]


# sparse tensors that torch.func wraps ------------------------------------------------------------------


def wrapped(storage: Storage) -> SparseTensor:
    """Return the tensor with a storage whose values ``torch.func`` has wrapped, wrapped likewise."""
    tensor: SparseTensor = _Wrapped.apply(storage.values, storage.pattern)
    _attach(tensor, storage)
    return tensor


def _attach(tensor: SparseTensor, storage: Storage) -> None:
    """Give a wrapped tensor its storage, and the tensors that transforms further out unwrap theirs."""
    tensor.__class__ = SparseTensor
    tensor.__dict__["storage"] = storage
    inner, values = get_unwrapped(tensor), storage.values
    if is_batchedtensor(tensor) or not is_functorch_wrapped_tensor(inner):
        return
    if maybe_get_level(values) == maybe_get_level(tensor):
        values = get_unwrapped(values)
    _attach(inner, Storage(storage.pattern, values))


def rewrap(tensor: SparseTensor) -> None:
    """Let ``torch.func`` see what was written to a tensor in place."""
    if is_functorch_wrapped_tensor(tensor.storage.values):
        swap_tensor_impl(tensor, wrapped(tensor.storage))


class _Wrapped(torch.autograd.Function):
    """Map values, of which ``vmap`` may have batches, to the tensor on ``pattern`` that has them."""

    @staticmethod
    def forward(values: torch.Tensor, pattern: Pattern) -> SparseTensor:
        values = values.detach()
        if values.dim() == 1:
            return SparseTensor(Storage(pattern, plain(values)))
        batch = values.shape[:-1]
        storage: Storage = Storage.__new__(Storage)
        storage.pending = lambda _: _batched(values, pattern)  # most are never read
        return SparseTensor(storage, (*batch, *pattern.shape), values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.pattern = inputs

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _sampled(gradient, ctx.pattern), None

    @staticmethod
    def jvp(ctx: Any, change: Any, *_: Any) -> Any:
        return _Wrapped.apply(change, ctx.pattern)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], values: torch.Tensor, pattern: Pattern) -> Any:
        return _Wrapped.apply(values.movedim(in_dims[0], 0), pattern), 0


def _batched(values: torch.Tensor, pattern: Pattern) -> Storage:
    """Return the storage of the tensors on ``pattern`` that have batches of values, stacked."""
    shape = (*values.shape[:-1], *pattern.shape)
    parts: list[Any] = [SparseTensor(Storage(pattern, plain(part))) for part in values.flatten(0, -2)]
    if parts:
        batch: Any = torch.stack(parts).reshape(shape)
    else:
        batch = SparseTensor(Storage(pattern, values.new_zeros(pattern.size))).expand(shape)
    storage: Storage = batch.storage
    return storage


def _sampled(gradient: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Return the values of a gradient, or of batches of them, at the entries of ``pattern``."""
    if gradient.dim() == len(pattern.shape):
        return values_at(gradient, pattern)
    parts = [_sampled(part, pattern) for part in gradient.unbind()]
    return (
        torch.stack(parts)
        if parts
        else gradient.new_zeros(*gradient.shape[: -len(pattern.shape)], pattern.size)
    )


# functions without a rule ------------------------------------------------------------------------------


def is_tracked(args: Any, kwargs: Any) -> bool:
    """Whether the values of a sparse tensor are tracked by ``torch.func``."""
    return any(
        isinstance(leaf, SparseTensor) and is_functorch_wrapped_tensor(leaf.storage.values)
        for leaf in tree_leaves((args, kwargs))
    )


def is_any_tracked(args: Any, kwargs: Any) -> bool:
    """Whether a tensor, sparse or dense, is tracked by ``torch.func``."""
    leaves = tree_leaves((args, kwargs))
    arrays = (leaf.storage.values if isinstance(leaf, SparseTensor) else leaf for leaf in leaves)
    return any(isinstance(array, torch.Tensor) and is_functorch_wrapped_tensor(array) for array in arrays)


def run_as_one_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute ``func`` of sparse tensors whose values ``torch.func`` tracks, as one autograd function.

    Its result is dense if the sparsity pattern is not the same for all elements of a batch of ``vmap``.
    """
    try:
        return _run_as_one(func, args, kwargs, is_dense=False)
    except _PatternsDifferError:
        return _run_as_one(func, args, kwargs, is_dense=True)


def _run_as_one(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_dense: bool) -> Any:
    leaves, spec = tree_flatten((args, kwargs))
    patterns = [leaf.storage.pattern if isinstance(leaf, SparseTensor) else None for leaf in leaves]
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    arrays = [
        leaf.storage.values if isinstance(leaf, SparseTensor) else leaf
        for leaf in (leaves[place] for place in places)
    ]
    results: list[Any] = []  # the leaves of the result, where tensors are patterns or _DENSE; its tree spec

    def function(*inputs: torch.Tensor) -> Arrays:
        filled = list(leaves)
        for place, array in zip(places, inputs, strict=True):
            pattern = patterns[place]
            filled[place] = array if pattern is None else sparse_of(pattern, array)
        own_args, own_kwargs = tree_unflatten(filled, spec)
        outputs_of_func, form = tree_flatten(func(*own_args, **own_kwargs))
        if is_dense:
            outputs_of_func = [
                dense_of(leaf) if isinstance(leaf, SparseTensor) else leaf for leaf in outputs_of_func
            ]
        outlines = [_outline(leaf) for leaf in outputs_of_func]
        if results and not all(map(_is_same, outlines, results[0])):
            raise _PatternsDifferError
        results[:] = outlines, form
        tensors = [leaf for leaf in outputs_of_func if isinstance(leaf, torch.Tensor)]
        return tuple(values_of(leaf) if isinstance(leaf, SparseTensor) else leaf for leaf in tensors)

    outputs = iter(_ArrayFunction.apply(function, *arrays))
    outlines, form = results

    def filled(outline: Any) -> Any:
        if outline is _DENSE:
            return next(outputs)
        return sparse_of(outline, next(outputs)) if isinstance(outline, Pattern) else outline

    return tree_unflatten([filled(outline) for outline in outlines], form)


_DENSE = object()


class _PatternsDifferError(Exception):
    """The sparsity pattern of a result is not the same for all elements of a batch."""


def _outline(leaf: Any) -> Any:
    """Return a leaf of a result without its values: a pattern, _DENSE, or what is no tensor as it is."""
    if isinstance(leaf, SparseTensor):
        return leaf.storage.pattern
    return _DENSE if isinstance(leaf, torch.Tensor) else leaf


def _is_same(outline: Any, other: Any) -> bool:
    if isinstance(outline, Pattern) and isinstance(other, Pattern):
        return outline is other or (outline.shape == other.shape and has_same_arrays(outline, other))
    return (isinstance(outline, Pattern), outline is _DENSE) == (isinstance(other, Pattern), other is _DENSE)


class _ArrayFunction(torch.autograd.Function):
    """A function of arrays as one step, differentiable to any order."""

    @staticmethod
    def forward(function: Function, *arrays: torch.Tensor) -> Arrays:
        with torch.enable_grad():  # without gradients it may choose another form of its result
            outputs = function(*_leaves(arrays))
        return tuple(array.detach() for array in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Arrays) -> None:
        ctx.function, *arrays = inputs
        ctx.save_for_backward(*arrays)
        ctx.save_for_forward(*arrays)
        ctx.are_numbers = [is_number(array) for array in output]
        ctx.mark_non_differentiable(*(array for array in output if not is_number(array)))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        arrays, function = ctx.saved_tensors, ctx.function
        present = [gradient for gradient in gradients if gradient is not None]
        which = [place for place, gradient in enumerate(gradients) if gradient is not None]
        floats = [place for place, array in enumerate(arrays) if is_number(array)]

        def pulled_back(*both: torch.Tensor) -> Arrays:
            create_graph = torch.is_grad_enabled() and any(array.requires_grad for array in both)
            with torch.enable_grad():
                own = _leaves(both[: len(arrays)])
                outputs = function(*own)
                pairs = [
                    (outputs[place], gradient)
                    for place, gradient in zip(which, both[len(arrays) :], strict=True)
                ]
                return _gradients(pairs, [own[place] for place in floats], create_graph)

        input_gradients = dict(zip(floats, _ArrayFunction.apply(pulled_back, *arrays, *present), strict=True))
        return None, *(input_gradients.get(place) for place in range(len(arrays)))

    @staticmethod
    def jvp(ctx: Any, _: Any, *changes: Any) -> Any:
        arrays, function = ctx.saved_tensors, ctx.function
        which = [place for place, change in enumerate(changes) if change is not None]

        def pushed_forward(*both: torch.Tensor) -> Arrays:
            create_graph = torch.is_grad_enabled() and any(array.requires_grad for array in both)
            with torch.enable_grad():
                own = _leaves(both[: len(arrays)])
                outputs = function(*own)
                numbers = [array for array in outputs if is_number(array)]
                seeds = [torch.zeros_like(array).requires_grad_() for array in numbers]
                inner = _gradients(
                    list(zip(numbers, seeds, strict=True)), [own[place] for place in which], True
                )
                pairs = list(zip(inner, both[len(arrays) :], strict=True))
                moved = iter(_gradients(pairs, seeds, create_graph))
                return tuple(next(moved) for array in outputs if is_number(array))

        moved = iter(_ArrayFunction.apply(pushed_forward, *arrays, *(changes[place] for place in which)))
        return tuple(next(moved) if has_tangent else None for has_tangent in ctx.are_numbers)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], function: Function, *arrays: torch.Tensor) -> Any:
        pairs = list(zip(arrays, in_dims[1:], strict=True))
        if info.batch_size == 0:  # the shapes are those of the results for zeros
            zeros = [array if dim is None else array.sum(dim, dtype=array.dtype) for array, dim in pairs]
            rows = [_ArrayFunction.apply(function, *zeros)]
        else:
            rows = [
                _ArrayFunction.apply(
                    function, *(array if dim is None else array.select(dim, number) for array, dim in pairs)
                )
                for number in range(info.batch_size)
            ]
        stacked = tuple(torch.stack(column)[: info.batch_size] for column in zip(*rows, strict=True))
        return stacked, (0,) * len(stacked)


def _leaves(arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the arrays as independent variables, connected to what they were computed from."""
    return [
        used(array) if array.requires_grad or not is_number(array) else array.detach().requires_grad_()
        for array in arrays
    ]


def _gradients(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], inputs: Sequence[torch.Tensor], create_graph: bool
) -> Arrays:
    """Compute the gradients of ``inputs``, dense as they are, zeros where nothing depends on them."""
    connected = [(result, gradient) for result, gradient in pairs if result.requires_grad]
    if not connected:
        return tuple(torch.zeros_like(array) for array in inputs)
    gradients = torch.autograd.grad(
        [result for result, _ in connected],
        list(inputs),
        [gradient for _, gradient in connected],
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return tuple(dense_of(gradient) for gradient in gradients)  # torch's formulas may return sparse ones


hooks.run_as_one_function, hooks.wrap = run_as_one_function, wrapped
hooks.is_tracked, hooks.is_any_tracked = is_tracked, is_any_tracked
