"""Gradients of sparse tensors: what connects a tensor, its values and torch's autograd.

A sparse tensor that requires a gradient is a leaf, or has a ``grad_fn``, like any tensor. Its gradient lives
on its pattern: it is a ``SparseTensor`` that shares it. Three functions connect what is computed on arrays:

    values_of(S)               the values of S                       backward: a tensor on the pattern of S
    sparse_of(pattern, v)      the tensor with values v              backward: the gradient at its places
    placed(v, source, target)  entries moved to another pattern      backward: entries moved back

``placed`` is its own kind of adjoint: sampling a dense gradient at a pattern, and spreading values over a
dense tensor, are one function with both patterns exchanged. So all of them have gradients of any order.

Inside ``torch.func`` there are no gradients on the tensor itself: its values are what is tracked. So it is in
forward mode (``tensor/transforms/forward_mode.py``).
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
from scorch._src.grad_state import fixed_patterns, is_differentiable, untracked
from scorch._src.notation.nodes import Access, Op
from scorch._src.storage.coordinates import clear_padding
from scorch._src.storage.relevel import releveled, shares_entries
from scorch._src.storage.storage import Pattern, Storage, plain
from scorch._src.tensor.entries import Entries, entries_of
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
    """``function.apply``, without the look at its signature that torch takes each time."""
    if peek_interpreter_stack() is not None:
        return function.apply(*args)
    return _apply.__get__(None, function)(*args)


WATCHED: dict[int, Callable[..., None]] = {}  # by id, what hears of each use of a tensor by a statement


def learned_of(tensor: SparseTensor) -> torch.Tensor:
    """What is learned: the tensor itself, or the values that it was made of by a layer."""
    return tensor if tensor.made_of is None else tensor.made_of


def watcher_of(tensor: weakref.ref[torch.Tensor] | None) -> Callable[..., None] | None:
    """What asked to hear of the gradients of a tensor outside of its pattern."""
    found = tensor() if WATCHED and tensor is not None else None
    return None if found is None else WATCHED.get(id(found))


def _check_watched(tensor: weakref.ref[torch.Tensor] | None) -> None:
    if watcher_of(tensor) is not None:
        raise unknown_outside()


def unknown_outside() -> UnsupportedError:
    """What is said where gradients outside of a pattern are asked for and not known."""
    return UnsupportedError(
        "grad_topk knows gradients outside of the pattern from einsum, evaluate, matmul and linear with "
        "dense results; this tensor was used otherwise too (transposed, converted, elementwise, for a sparse "
        "result): write the product as one einsum, as in scorch.einsum('bj,ij->bi', x, W), and take a "
        "penalty on the weights outside of the with block"
    )


def check_gradient(tensor: SparseTensor) -> None:
    if tensor.has_unknown_gradient:
        raise InPlaceError(
            "a view that was made inside of torch.no_grad(), by a function with several results (unbind, "
            "split, chunk), or that requires a gradient of its own, is used after its base has been modified "
            "inplace; take it again"
        )


# a tensor and its values -----------------------------------------------------------------------------


class _Values(torch.autograd.Function):
    """S to its values, for a statement or for something else."""

    @staticmethod
    def forward(ctx: Any, tensor: SparseTensor, in_statement: bool) -> torch.Tensor:
        check_gradient(tensor)
        ctx.pattern = tensor.storage.pattern
        ctx.other = None if in_statement else weakref.ref(learned_of(tensor))
        return tensor.storage.values.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        _check_watched(ctx.other)
        if is_legacy_batchedtensor(gradient):
            raise UnsupportedError(
                "gradients of a sparse tensor for a batch of directions (is_grads_batched, vectorize); "
                "use torch.func.jacrev over its values(), or one direction after the other"
            )
        return sparse_of(ctx.pattern, clear_padding(gradient, ctx.pattern)), None


class _Wrap(torch.autograd.Function):
    """Values to the tensor that has them."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, pattern: Pattern) -> SparseTensor:
        ctx.pattern = pattern
        return SparseTensor(Storage(pattern, plain(values.detach())))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return values_at(gradient, ctx.pattern), None


class _Use(torch.autograd.Function):
    """A tensor itself, as one function of torch uses it: what comes back is stored as the tensor is.

    torch's own formulas may give a dense gradient of a sparse tensor, or a sparse one of a dense tensor; only
    here is it known which places of it are needed.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, SparseTensor):
            ctx.pattern = None
            return tensor.detach()
        ctx.pattern = tensor.storage.pattern
        ctx.other = weakref.ref(learned_of(tensor))
        return SparseTensor(Storage(ctx.pattern, tensor.storage.values))  # later writes leave it alone

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if ctx.pattern is None:
            return dense_of(gradient)
        _check_watched(ctx.other)
        if isinstance(gradient, SparseTensor) and gradient.storage.pattern is ctx.pattern:
            return gradient
        return sparse_of(ctx.pattern, values_at(gradient, ctx.pattern))


def values_of(tensor: SparseTensor, in_statement: bool = False) -> torch.Tensor:
    """The values of a tensor, connected to it."""
    if torch.is_grad_enabled() and any_requires_grad(tensor):
        found: torch.Tensor = apply(_Values, tensor, in_statement)
        return found
    return tensor.storage.values


def sparse_of(pattern: Pattern, values: torch.Tensor) -> SparseTensor:
    """The tensor with these values, connected to them."""
    if is_dynamo_compiling():
        pairs = zip(pattern.pos, pattern.crd, strict=True)
        arrays = [array for pair in pairs for array in pair if array is not None]
        given = spelled(pattern.format), list(pattern.shape), arrays, values
        return torch.ops.scorch.assemble(*given)  # type: ignore[no-any-return]
    if type(values) not in _MEMORY:  # inside of a graph that torch.export makes
        return hooks.trace(pattern, values)  # type: ignore[no-any-return]
    if peek_interpreter_stack() is None and torch.is_grad_enabled() and values.requires_grad:
        found: SparseTensor = apply(_Wrap, values, pattern)
        found.made_of = values
        return found
    return SparseTensor(Storage(pattern, plain(values)))


def used(tensor: Any) -> Any:
    """A tensor for one use of it by a function of torch."""
    if isinstance(tensor, torch.Tensor) and any_requires_grad(tensor) and peek_interpreter_stack() is None:
        return apply(_Use, tensor)
    return tensor


def dense_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a dense one, connected to it."""
    if not isinstance(tensor, SparseTensor):
        return tensor
    pattern = tensor.storage.pattern
    return placed(values_of(tensor), pattern, pattern.shape)


def values_at(tensor: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The values of a tensor at the entries of ``pattern``, connected to it."""
    if isinstance(tensor, SparseTensor):
        return placed(values_of(tensor), tensor.storage.pattern, pattern)
    return placed(tensor, tuple(tensor.shape), pattern)


# entries moved ---------------------------------------------------------------------------------------


class _Placed(torch.autograd.Function):
    """Values of the entries of ``source`` at the places of ``target``: zero where there are none."""

    @staticmethod
    def forward(values: torch.Tensor, source: Place, target: Place) -> torch.Tensor:
        found = _moved(values, source, target)
        return found.detach() if found is values else found

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
    """Values at ``source`` as those at ``target``, connected to them."""
    if source is target:
        return values
    if is_differentiable(values):
        found: torch.Tensor = apply(_Placed, values, source, target)
        return found
    return _moved(values, source, target)


def _moved(values: torch.Tensor, source: Place, target: Place) -> torch.Tensor:
    if source is target or not isinstance(target, Pattern):
        return _spread(values, source)
    if not isinstance(source, Pattern):
        return _sampled(values, target)
    known = source.converted.get(target.format)
    if known is not None and known[0] is target:
        return values_from(values, *known)
    known = target.converted.get(source.format)
    if known is not None and known[0] is source:
        return _back(values, known[1], target.size)
    if _same_entries(source, target) or _same_arrays(source, target):
        return values
    entries = entries_of(SparseTensor(Storage(source, values.contiguous())))
    return _at(entries, target)


def _back(values: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
    """Converted values where they came from; those that came from nowhere, -1, are dropped."""
    found = values.new_zeros(size + 1)
    found[places] = values
    return found[:size]


def _same_entries(source: Pattern, target: Pattern) -> bool:
    """Whether one was made of the other by telling rows in another way only."""
    return shares_entries(source.format, target.format) and source.crd[1] is target.crd[1]


def _same_arrays(source: Pattern, target: Pattern) -> bool:
    return source.format == target.format and all(
        a is b or (a.numel() == b.numel() and torch.equal(a, b))
        for a, b in zip(source.arrays, target.arrays, strict=True)
    )


def _at(entries: Entries, target: Pattern) -> torch.Tensor:
    """The values at the entries of ``target``, in its own order."""
    numbers = Storage(target, torch.arange(target.size, device=target.device))
    listed = entries_of(SparseTensor(numbers))
    found = entries.values.new_zeros(target.size)
    found[listed.values] = entries.at(listed.keys)
    return found


def _spread(values: torch.Tensor, source: Place) -> torch.Tensor:
    if not isinstance(source, Pattern):
        return values
    if not source.shape:
        return values.reshape(())
    found = convert(Storage(source, values.contiguous()), dense_format(len(source.shape)))
    assert isinstance(found, torch.Tensor)
    return found


def _sampled(dense: torch.Tensor, target: Pattern) -> torch.Tensor:
    """A dense tensor at the entries of ``target``; where it is expanded it is read as it was before."""
    if not target.shape:
        return dense.reshape(1)
    if math.prod(target.shape) == 0 or not target.size or dense._is_zerotensor():
        return dense.new_zeros(target.size)
    kept = tuple(dim for dim in range(dense.dim()) if dense.stride(dim) or dense.shape[dim] == 1)
    for dim in reversed(range(dense.dim())):
        if dim not in kept:
            dense = dense.select(dim, 0)
    if not kept:
        return clear_padding(dense.reshape(1).expand(target.size).contiguous(), target)
    step = _sample_step(len(target.shape), kept)
    sizes = dict(zip(step.target.indices, target.shape, strict=True))
    plain = dense.resolve_conj().resolve_neg()
    found = run_step(Task(step, {"P": Storage(target, target.present), "A": plain}, sizes, target.format))
    assert isinstance(found, Storage)
    return found.values


@functools.lru_cache(maxsize=1024)
def _sample_step(dims: int, kept: tuple[int, ...]) -> Step:
    """``B[i,j] = P[i,j] * A[i,j]``, with the dimensions of A that are ``kept``."""
    copy = copy_step(dims)
    indices = copy.target.indices
    read = Access("A", tuple(indices[dim] for dim in kept))
    return Step(copy.target, Op("mul", (Access("P", indices), read)), "sum", ())


def converted(tensor: SparseTensor, form: Format) -> SparseTensor | torch.Tensor:
    """The tensor stored otherwise, connected to it."""
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
    """The nonzeros of a dense tensor stored as ``form``, connected to it."""
    if is_functorch_wrapped_tensor(dense):
        raise UnsupportedError(
            "which elements are zero is not known inside of torch.func; make the sparse tensor outside, and "
            "inside give it values: scorch.sparse_csr_tensor(crow, col, values)"
        )
    found = from_dense(dense.detach(), form)
    return sparse_of(found.pattern, values_at(dense, found.pattern))


# functions of torch ----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _signature(func: Any) -> inspect.Signature | None:
    """The signature of a function with an argument ``inplace``, such as ``F.elu``; None for others."""
    code = getattr(func, "__code__", None)
    return inspect.signature(func) if code is not None and "inplace" in code.co_varnames else None


def _asked_in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """All arguments by name, where they ask to write the result to the first, which is sparse."""
    signature = _signature(func) if args and isinstance(args[0], SparseTensor) else None
    if signature is None or "inplace" not in signature.parameters:
        return None
    bound = dict(signature.bind(*args, **kwargs).arguments)
    return bound if bound.get("inplace") else None


def differentiated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func`` as torch takes it apart and differentiates it, some of its arguments being learned."""
    bound = _asked_in_place(func, args, kwargs)
    if bound is not None:
        (name, target), *_ = bound.items()
        copy = target.clone()  # gradients need it as it is
        found = func(**{**bound, name: copy, "inplace": False})
        return target if found is copy else target.copy_(found)
    known = look_up(func)
    handler = known.run_differentiable
    if handler is not None and known.only_moves_entries:
        return handler(*args, **kwargs)
    if peek_interpreter_stack() is not None and own_arguments(func) == 0:
        return by_torch(func, args, kwargs)
    if handler is not None:
        return handler(*args, **kwargs)
    if own_arguments(func) == 1:
        return hooks.write(func, args, kwargs)
    return by_formula(func, args, kwargs)


def by_torch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func`` without a handler that only moves entries: as one step of ``torch.func``, or by a formula."""
    known = look_up(func)
    handler = known.run_differentiable
    has_none = handler is None or known.only_moves_entries
    is_transformed = peek_interpreter_stack() is not None
    if is_transformed and (
        hooks.is_tracked(args, kwargs) or (has_none and hooks.is_any_tracked(args, kwargs))
    ):
        return hooks.run_as_a_whole(func, args, kwargs)
    return (
        handler(*args, **kwargs) if handler is not None and not has_none else by_formula(func, args, kwargs)
    )


def by_formula(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``func`` differentiated by torch's own formula."""
    if forward_ad._current_level >= 0 and has_sparse_tangents(args, kwargs):
        return as_one_step(func, args, kwargs)
    own, given = own_arguments(func), (args, kwargs)
    copies: dict[int, tuple[Any, Any]] = {}

    def copy(leaf: Any) -> Any:
        found = used(leaf)
        if found is not leaf:
            copies[id(found)] = found, leaf
        return found

    if own >= 0:
        args = (*args[:own], *tree_map(copy, args[own:]))
        kwargs = tree_map(copy, kwargs)
    with DisableTorchFunctionSubclass(), fixed_patterns():
        result = func(*args, **kwargs)
        if own >= 0 and any_requires_grad(result):
            for leaf in tree_leaves(given):
                if isinstance(leaf, SparseTensor):
                    check_gradient(leaf)
    if not copies:
        return result
    return tree_map(lambda leaf: copies[id(leaf)][1] if id(leaf) in copies else leaf, result)


hooks.values_at, hooks.values_of, hooks.sparse_of = values_at, values_of, sparse_of
hooks.store, hooks.convert = stored, converted
