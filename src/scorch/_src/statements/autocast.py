"""``torch.autocast``: products in a narrower dtype.

torch casts the operands of its own operators; products of sparse tensors never reach those, so they are cast
here. float64 stays, as in torch, and gradients come back in the dtype of the operand.

In expressions, contractions are cast: sums of products over an index that several factors have, which
``torch.einsum`` computes as matrix products. Everything else has the dtype that its operands promote to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch

from scorch._src.backends.base import is_served, served_devices
from scorch._src.compiler.typing import dtype_of_type, type_of, type_of_dtype
from scorch._src.devices import HOST
from scorch._src.notation.nodes import Access, Expr, Literal, Op, Reduce
from scorch._src.notation.trees import children, free_indices, walk, with_children
from scorch._src.torch_internals import is_any_autocast_enabled
from scorch.errors import CallError

Handler = TypeVar("Handler", bound=Callable[..., Any])
_CAST = (torch.float32, torch.bfloat16, torch.float16)
_NO_TENSOR = "0"  # begins the names of values that are no operands


def is_autocast() -> bool:
    """Check whether products of Scorch are cast; torch's flag for all devices is the fastest to ask first."""
    return is_any_autocast_enabled() and any(map(torch.is_autocast_enabled, served_devices()))


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which products are computed in the dtype of their operands."""
    return torch.autocast(device.type, enabled=False) if is_autocast() else nullcontext()


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the dtype that products on a device are cast to; None if they are not."""
    is_cast = is_autocast() and torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if is_cast else None


def cast(*tensors: Any) -> tuple[Any, ...]:
    """Cast the operands of a product as autocast does."""
    return tuple(
        tensor.to(torch.get_autocast_dtype(tensor.device.type)) if _is_cast(tensor) else tensor
        for tensor in tensors
    )


def casts_vectors(device: torch.device) -> bool:
    """Check whether torch casts the operands of ``mv`` and ``addmv`` on a device: not on the host."""
    return device.type != HOST.type and is_autocast()


def in_float32(is_on_host: bool = False) -> Callable[[Handler], Handler]:
    """Have autocast cast the operands of a handler to float32, where torch does for such a function.

    ``is_on_host``: that is on the host only.
    """

    def decorate(handler: Handler) -> Handler:
        def to_float32(value: Any) -> Any:
            is_narrow = _is_cast(value) and (not is_on_host or value.device == HOST)
            return value.to(torch.float32) if is_narrow else value

        @functools.wraps(handler)
        def run(*args: Any, **kwargs: Any) -> Any:
            if is_any_autocast_enabled() and is_autocast():
                args = tuple(map(to_float32, args))
                kwargs = {name: to_float32(value) for name, value in kwargs.items()}
            return handler(*args, **kwargs)

        return run  # type: ignore[return-value]

    return decorate


def check_same_dtype(name: str, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise, as ``torch.nn.Linear`` does, unless both have one dtype, or get one from autocast."""
    if x.dtype == weight.dtype or (is_autocast() and _is_cast(x) and _is_cast(weight)):
        return
    other = f" or layer.to({x.dtype})" if x.is_floating_point() or x.is_complex() else ""
    raise CallError(
        f"{name} and the weight must have the same dtype, as in torch.nn.Linear, but got {x.dtype} and "
        f"{weight.dtype}; use {name}.to({weight.dtype}){other}"
    )


def _is_cast(tensor: Any) -> bool:
    is_float = isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    if not is_float or tensor.dtype not in _CAST or not is_served(tensor.device):
        return False
    return torch.is_autocast_enabled(tensor.device.type)


class Casts(NamedTuple):
    """The tensors of an expression that autocast casts, and the dtype of the result."""

    names: frozenset[str]
    dtype: torch.dtype


def casts_of(
    value: Expr, dtypes: Mapping[str, torch.dtype], sizes: Mapping[str, int], low: torch.dtype
) -> Casts:
    """Return what autocast to ``low`` casts in an expression.

    A tensor that is used elsewhere, too, stays as it is, and so do the factors of a contraction if one of
    them is computed: in ``A[i,k] * (B[k,j] - 1)`` the difference is rounded by autocast, not what it is of.
    """
    ones = frozenset(index for index, size in sizes.items() if size == 1)
    return _casts_of(value, tuple(dtypes.items()), ones, low)


@functools.lru_cache(maxsize=1024)
def _casts_of(
    value: Expr, dtypes: tuple[tuple[str, torch.dtype], ...], ones: frozenset[str], low: torch.dtype
) -> Casts:
    types = {name: type_of_dtype(dtype) for name, dtype in dtypes}
    given = dict(dtypes)
    names: list[str] = []

    def lowered(expr: Expr) -> Expr:
        """Return an expression of the dtype that autocast gives it, with names for its contractions."""
        factors = tuple(_factors(expr.body)) if isinstance(expr, Reduce) and expr.op == "sum" else ()
        count = _contracted(factors, expr.indices, ones) if isinstance(expr, Reduce) else 0
        if not count:
            return with_children(expr, tuple(map(lowered, children(expr))))
        parts = tuple(map(lowered, factors))
        own = [dtype_of_type(type_of(part, types).type) for part in parts[:count]]
        floats = [dtype for dtype in own if dtype.is_floating_point or dtype.is_complex]
        if not floats or not all(dtype in _CAST for dtype in floats):
            return with_children(expr, tuple(map(lowered, children(expr))))
        if all(_is_operand(part) for part in parts):
            names.extend(
                part.tensor
                for part in parts[:count]
                if isinstance(part, Access) and given.get(part.tensor) in _CAST
            )
        product = Access(f"{_NO_TENSOR}{len(types)}", free_indices(expr))
        types[product.tensor] = type_of_dtype(low)
        return Op("mul", (product, *parts[count:])) if parts[count:] else product

    dtype = dtype_of_type(type_of(lowered(value), types).type)
    uses = [node.tensor for node in walk(value) if isinstance(node, Access)]
    return Casts(frozenset(name for name in names if names.count(name) == uses.count(name)), dtype)


def _is_operand(part: Expr) -> bool:
    """Check whether a factor is an operand, or a contraction of its own, times others."""
    return isinstance(part, Access) or (
        isinstance(part, Op) and part.name == "mul" and all(map(_is_operand, part.args))
    )


def _factors(expr: Expr) -> Iterator[Expr]:
    """Yield the factors of a product, without its numbers."""
    match expr:
        case Op("mul", args):
            for arg in args:
                yield from _factors(arg)
        case Op("neg", (part,)):
            yield from _factors(part)
        case Literal():
            pass
        case _:
            yield expr


def _contracted(factors: Sequence[Expr], summed: Sequence[str], ones: frozenset[str]) -> int:
    """Return how many factors, the first ones, ``torch.einsum`` would pass to a matrix product.

    It takes them in order, and sums over an index once no further factor has it. One of size 1 is no sum.
    """
    last = 0
    for index in summed:
        holders = [place for place, factor in enumerate(factors) if index in free_indices(factor)]
        if len(holders) > 1 and index not in ones:
            last = max(last, holders[-1] + 1)
    return last
