"""Tensors like a given one: of its shape, of its pattern, or just of its dtype.

zeros_like, fill(0)               the format of the tensor, without entries
ones_like, full_like              what they are on dense tensors, so dense
empty_like, rand_like, randn_like, randint_like,
normal_, uniform_, random_, bernoulli_, dropout
                                  the pattern of the tensor: random numbers stand where it has entries
new_zeros, new_ones ...           dense tensors, as small as asked for

That random numbers keep the pattern is what torch does with CSR tensors: noise on a sparse weight, and
initialising one, take the time and memory of its entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from scorch._src.grad_state import are_patterns_fixed
from scorch._src.ops.fallback import densely, replace_by
from scorch._src.ops.movement.shape import zeros_like
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import clear_padding
from scorch._src.tensor.broadcast import expanded
from scorch._src.tensor.entries import entries_of, united
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch.errors import CallError, OperandError

aten = torch.ops.aten
ROWS_AT_ONCE = 1024


def on_pattern(self: SparseTensor, fill: Callable[[torch.Tensor], torch.Tensor]) -> SparseTensor:
    """The pattern of ``self`` with the values that ``fill`` gives; the padding of blocks stays zero."""
    pattern = self.storage.pattern
    values = fill(self.storage.values.clone())
    return with_values(self, clear_padding(values, pattern))


# of the same pattern ---------------------------------------------------------------------------------


def _on_values(function: Callable[..., torch.Tensor]) -> Callable[..., SparseTensor]:
    def handler(self: SparseTensor, *args: Any, dtype: Any = None, **kwargs: Any) -> SparseTensor:
        options = {name: kwargs[name] for name in ("generator",) if kwargs.get(name) is not None}
        return on_pattern(
            self, lambda values: function(values, *args, dtype=dtype or values.dtype, **options)
        )

    return handler


for _packet in (aten.rand_like, aten.randn_like, aten.randint_like):
    implements(_packet)(_on_values(_packet))


@implements(aten.empty_like)
def empty_like(self: SparseTensor, *, dtype: torch.dtype | None = None, **_: Any) -> SparseTensor:
    """The pattern of ``self``; torch leaves the values open, here they are zeros."""
    return with_values(self, torch.zeros_like(self.storage.values, dtype=dtype))


def _in_place(func: Any) -> Callable[..., torch.Tensor]:
    def handler(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not isinstance(self, SparseTensor) or any(isinstance(value, SparseTensor) for value in args):
            found: torch.Tensor = densely(func, (self, *args), kwargs)
            return found
        filled = on_pattern(self, lambda values: func(values, *args, **kwargs))
        return replace_by(self, filled, func.overloadpacket.__name__)

    return handler


for _func in (
    aten.normal_.default,
    aten.uniform_.default,
    aten.random_.default,
    getattr(aten.random_, "from"),
    aten.random_.to,
    aten.bernoulli_.float,
):
    implements(_func)(_in_place(_func))


@implements(aten.bernoulli.default)
def bernoulli(self: SparseTensor, generator: Any = None) -> SparseTensor:
    """1 with the probability that is stored: 0 where nothing is."""
    return on_pattern(self, lambda values: torch.bernoulli(values, generator=generator))


@implements(aten.poisson)
def poisson(self: SparseTensor, generator: Any = None) -> SparseTensor:
    return on_pattern(self, lambda values: torch.poisson(values, generator=generator))


@implements(aten.native_dropout)
def native_dropout(input: SparseTensor, p: float, train: bool | None) -> tuple[SparseTensor, SparseTensor]:
    """What is left of the entries, and which are."""
    found, kept = torch.native_dropout(input.storage.values, p, train)
    return with_values(input, found), with_values(input, kept)


# filled ----------------------------------------------------------------------------------------------


def _filled(
    name: str, shape: Sequence[int], value: Any, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    cure = "its result is dense; scorch.zeros and its like take format= for sparse ones"
    check_budget(size, f"{name} of shape {tuple(shape)}", cure)
    return torch.full(tuple(shape), value, dtype=dtype, device=device)


@implements(aten.full_like)
def full_like(self: SparseTensor, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    if fill_value == 0:
        return zeros_like(self, dtype=dtype)
    return _filled("full_like", self.shape, fill_value, dtype or self.dtype, self.storage.device)


@implements(aten.ones_like)
def ones_like(self: SparseTensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return _filled("ones_like", self.shape, 1, dtype or self.dtype, self.storage.device)


@implements(aten.fill.Scalar, aten.fill.Tensor)
def fill(self: SparseTensor, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        raise CallError(f"fill_ takes one number, not a tensor of shape {tuple(value.shape)}")
    if not isinstance(value, torch.Tensor):
        return full_like(self, value)
    if are_patterns_fixed():  # a zero of a tensor has a gradient
        return _filled("fill_", self.shape, value.item(), self.dtype, self.storage.device)
    return full_like(self, value.item())


@implements(aten.zero)
def zero(self: SparseTensor) -> SparseTensor:
    return zeros_like(self)


@implements(aten.new_zeros, aten.new_empty)
def new_zeros(
    self: SparseTensor, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return _filled("new_zeros", size, 0, dtype or self.dtype, self.storage.device)


@implements(aten.new_ones)
def new_ones(
    self: SparseTensor, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return _filled("new_ones", size, 1, dtype or self.dtype, self.storage.device)


@implements(aten.new_full)
def new_full(
    self: SparseTensor, size: Sequence[int], fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return _filled("new_full", size, fill_value, dtype or self.dtype, self.storage.device)


# Python's own ways with tensors ----------------------------------------------------------------------


def iterate(self: SparseTensor) -> Iterator[torch.Tensor]:
    """The rows one by one, made when they are asked for."""
    if self.dim() == 0:
        raise OperandError("iteration over a 0-d tensor")
    return (
        row
        for start in range(0, self.shape[0], ROWS_AT_ONCE)
        for row in self[start : start + ROWS_AT_ONCE].unbind(0)
    )


setattr(SparseTensor, "__iter__", iterate)  # noqa: B010 - torch types it as a plain method


@implements(torch.Tensor.apply_)
def apply_(self: SparseTensor, callable: Callable[[Any], Any]) -> torch.Tensor:
    """A Python function of every element, zeros included."""
    check_budget(
        self.numel() * self.element_size(), f"apply_ of {tuple(self.shape)}", "apply it to .values()"
    )
    return replace_by(self, self.to_dense().apply_(callable), "apply_")


@implements(aten.allclose)
def allclose(
    self: torch.Tensor,
    other: torch.Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> bool:
    """Whether all elements are close, seen from the entries where both tensors are sparse."""
    if not isinstance(self, SparseTensor) or not isinstance(other, SparseTensor):
        return bool(torch.isclose(self, other, rtol=rtol, atol=atol, equal_nan=equal_nan).all())
    shape = tuple(torch.broadcast_shapes(self.shape, other.shape))
    pair = [expanded(entries_of(tensor), shape) for tensor in (self, other)]
    keys = united(pair)
    return torch.allclose(pair[0].at(keys), pair[1].at(keys), rtol=rtol, atol=atol, equal_nan=equal_nan)
