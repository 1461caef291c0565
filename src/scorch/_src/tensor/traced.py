"""A sparse tensor inside a graph that is traced: its arrays have shapes, but no memory yet.

``torch.compile`` and ``torch.export`` run a program once on such tensors and record the operations on their
arrays. Every call on one is an operator of the graph (``compile.capture``), which repeats the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

import torch
from torch.autograd.function import once_differentiable

from scorch._src.name_hints import check_keywords, keywords_of
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import sparse_of, values_at
from scorch._src.tensor.flatten import LIVE, VALUES, TracedStorage, any_traced, array_of, names_of, spelled
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad

Number = TypeVar("Number", int, bool)
Method = TypeVar("Method", bound=Callable[..., Any])


def is_traced(tensor: Any) -> TypeGuard[SparseTensor]:
    """Whether ``tensor`` is a sparse tensor whose arrays are traced."""
    return isinstance(tensor, SparseTensor) and isinstance(tensor.storage, TracedStorage)


def same_arrays(first: Pattern, second: Pattern) -> bool:
    """Whether two patterns have the same arrays, as objects, in the same format."""
    if first is second:
        return True
    return first.format == second.format and all(
        a is b for a, b in zip(first.entry_arrays, second.entry_arrays, strict=True)
    )


def as_symbol(tensor: SparseTensor, number: Number) -> Number:
    """Return a number about ``tensor``, as a symbol where ``torch.compile`` calls a method that returns it.

    Methods must return tensors or symbols there.
    """
    if not is_traced(tensor) or torch.compiler.is_exporting() or type(number) not in (int, bool):
        return number
    shape_env = getattr(getattr(tensor.storage.values, "fake_mode", None), "shape_env", None)
    if shape_env is None:
        return number
    import sympy  # type: ignore[import-untyped]

    from scorch._src.torch_internals import SymNode

    kind: Any = torch.SymBool if type(number) is bool else torch.SymInt
    symbol: Number = kind(SymNode(sympy.sympify(number), shape_env, type(number), number))
    return symbol


def recorded(method: Method) -> Method:
    """Make a method of sparse tensors one call in graphs, or, if it has no name there, an error."""

    known = [name for name in keywords_of(method) if name != "S"]  # the tensor itself

    @functools.wraps(method)
    def call(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            check_keywords(method.__name__, kwargs, known)
        if LIVE and any_traced((self, *args)):
            return hooks.record(call, (self, *args), kwargs)
        return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


class _Values(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: SparseTensor) -> torch.Tensor:
        ctx.pattern = tensor.storage.pattern
        return tensor.storage.values.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return SparseTensor(TracedStorage(ctx.pattern, gradient))


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, pattern: Pattern) -> SparseTensor:
        ctx.pattern = pattern
        return SparseTensor(TracedStorage(pattern, values.detach()))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return values_on(gradient, ctx.pattern), None


def arrays_of(tensor: SparseTensor) -> list[torch.Tensor]:
    """Return index arrays and values; ``torch.export`` traces them by attribute access."""
    storage = tensor.storage
    if not torch.compiler.is_exporting():
        return [*storage.pattern.entry_arrays, storage.values]
    names = [*names_of(storage.pattern.format), VALUES]
    try:
        return [getattr(tensor, name) for name in names]
    except RuntimeError:  # computed inside the graph, which has its arrays already
        return [array_of(storage, name) for name in names]


def traced_values(tensor: SparseTensor) -> torch.Tensor:
    """Return the values of a tensor, connected to it."""
    if torch.compiler.is_exporting():
        return arrays_of(tensor)[-1]
    if torch.is_grad_enabled() and any_requires_grad(tensor):
        values: torch.Tensor = _Values.apply(tensor)
        return values
    return tensor.storage.values


def traced(pattern: Pattern, values: torch.Tensor) -> SparseTensor:
    """Return the traced tensor with these values, connected to them.

    ``torch.export`` returns tensors that operators of the graph return, and no others.
    """
    arrays = list(pattern.entry_arrays)
    is_constant = any(type(array) is torch.Tensor for array in arrays)
    if torch.compiler.is_exporting() and not is_constant:
        format = str(spelled(pattern.format))
        result: SparseTensor = torch.ops.scorch.assemble(format, list(pattern.shape), arrays, values)
        return result
    return wrap_arrays(pattern, values)


def wrap_arrays(pattern: Pattern, values: torch.Tensor) -> SparseTensor:
    """Return the traced tensor with these arrays, connected to its values."""
    if not torch.compiler.is_exporting() and torch.is_grad_enabled() and values.requires_grad:
        tensor: SparseTensor = _Wrap.apply(values, pattern)
        return tensor
    return SparseTensor(TracedStorage(pattern, values))


def values_on(tensor: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Return the values of a dense or sparse tensor at the entries of a pattern."""
    if is_traced(tensor) and same_arrays(tensor.storage.pattern, pattern):
        return tensor.storage.values
    like = tensor.storage.values if is_traced(tensor) else tensor
    marked = SparseTensor(TracedStorage(pattern, like.new_ones((pattern.size,))))
    result: SparseTensor = hooks.record(sampled, (tensor, marked), {})
    return result.storage.values


def sampled(tensor: torch.Tensor, mask: SparseTensor) -> SparseTensor:
    """Sample a tensor at the entries of ``mask``."""
    return sparse_of(mask.storage.pattern, values_at(tensor, mask.storage.pattern))


hooks.trace = traced
