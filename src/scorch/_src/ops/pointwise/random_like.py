"""Tensors like another one: of its shape, of its pattern, or just of its dtype.

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
from scorch._src.ops.fallback import replace_value, run_densely
from scorch._src.ops.movement.shape import zeros_like
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import clear_padding
from scorch._src.tensor.broadcast import expanded
from scorch._src.tensor.entries import entries_of, united
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch.errors import CallError, OperandError

aten = torch.ops.aten
ROWS_PER_CHUNK = 1024


def on_pattern(self: SparseTensor, fill: Callable[[torch.Tensor], torch.Tensor]) -> SparseTensor:
    """Return the pattern of ``self`` with the values of ``fill``; the padding of blocks stays zero."""
    pattern = self.storage.pattern
    values = fill(self.storage.values.clone())
    return with_values(self, clear_padding(values, pattern))


# on the same pattern ---------------------------------------------------------------------------------


def _make_like_handler(function: Callable[..., torch.Tensor]) -> Callable[..., SparseTensor]:
    def handler(self: SparseTensor, *args: Any, dtype: Any = None, **kwargs: Any) -> SparseTensor:
        options = {name: kwargs[name] for name in ("generator",) if kwargs.get(name) is not None}
        return on_pattern(
            self, lambda values: function(values, *args, dtype=dtype or values.dtype, **options)
        )

    return handler


for _packet in (aten.rand_like, aten.randn_like, aten.randint_like):
    implements(_packet)(_make_like_handler(_packet))


@implements(aten.empty_like)
def empty_like(self: SparseTensor, *, dtype: torch.dtype | None = None, **_: Any) -> SparseTensor:
    """Return the pattern of ``self`` with zeros, where torch leaves the values undefined."""
    return with_values(self, torch.zeros_like(self.storage.values, dtype=dtype))


def _make_in_place_handler(func: Any) -> Callable[..., torch.Tensor]:
    def handler(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not isinstance(self, SparseTensor) or any(isinstance(value, SparseTensor) for value in args):
            result: torch.Tensor = run_densely(func, (self, *args), kwargs)
            return result
        filled = on_pattern(self, lambda values: func(values, *args, **kwargs))
        return replace_value(self, filled, func.overloadpacket.__name__)

    return handler


for _func in (
    aten.normal_.default,
    aten.uniform_.default,
    aten.random_.default,
    getattr(aten.random_, "from"),
    aten.random_.to,
    aten.bernoulli_.float,
):
    implements(_func)(_make_in_place_handler(_func))


@implements(aten.bernoulli.default)
def bernoulli(self: SparseTensor, generator: Any = None) -> SparseTensor:
    """Draw 1 with the stored probability: 0 at implicit zeros."""
    return on_pattern(self, lambda values: torch.bernoulli(values, generator=generator))


@implements(aten.poisson)
def poisson(self: SparseTensor, generator: Any = None) -> SparseTensor:
    return on_pattern(self, lambda values: torch.poisson(values, generator=generator))


@implements(aten.native_dropout)
def native_dropout(input: SparseTensor, p: float, train: bool | None) -> tuple[SparseTensor, SparseTensor]:
    """Return the entries after dropout, and which are kept."""
    values, is_kept = torch.native_dropout(input.storage.values, p, train)
    return with_values(input, values), with_values(input, is_kept)


# filled ----------------------------------------------------------------------------------------------


def _full(
    name: str, shape: Sequence[int], value: Any, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    size = math.prod(shape) * dtype.itemsize
    hint = "its result is dense; scorch.zeros and its like take format= for sparse ones"
    check_budget(size, f"{name} of shape {tuple(shape)}", hint)
    return torch.full(tuple(shape), value, dtype=dtype, device=device)


@implements(aten.full_like)
def full_like(self: SparseTensor, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    if fill_value == 0:
        return zeros_like(self, dtype=dtype)
    return _full("full_like", self.shape, fill_value, dtype or self.dtype, self.storage.device)


@implements(aten.ones_like)
def ones_like(self: SparseTensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return _full("ones_like", self.shape, 1, dtype or self.dtype, self.storage.device)


@implements(aten.fill.Scalar, aten.fill.Tensor)
def fill(self: SparseTensor, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        raise CallError(f"fill_ takes one number, not a tensor of shape {tuple(value.shape)}")
    if not isinstance(value, torch.Tensor):
        return full_like(self, value)
    if are_patterns_fixed():  # a zero of a tensor has a gradient
        return _full("fill_", self.shape, value.item(), self.dtype, self.storage.device)
    return full_like(self, value.item())


@implements(aten.zero)
def zero(self: SparseTensor) -> SparseTensor:
    return zeros_like(self)


@implements(aten.new_zeros, aten.new_empty)
def new_zeros(
    self: SparseTensor, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return _full("new_zeros", size, 0, dtype or self.dtype, self.storage.device)


@implements(aten.new_ones)
def new_ones(
    self: SparseTensor, size: Sequence[int], *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return _full("new_ones", size, 1, dtype or self.dtype, self.storage.device)


@implements(aten.new_full)
def new_full(
    self: SparseTensor, size: Sequence[int], fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any
) -> torch.Tensor:
    return _full("new_full", size, fill_value, dtype or self.dtype, self.storage.device)


# Python protocols ------------------------------------------------------------------------------------


def iterate(self: SparseTensor) -> Iterator[torch.Tensor]:
    """Yield the rows one by one, computed on demand."""
    if self.dim() == 0:
        raise OperandError("iteration over a 0-d tensor")
    return (
        row
        for start in range(0, self.shape[0], ROWS_PER_CHUNK)
        for row in self[start : start + ROWS_PER_CHUNK].unbind(0)
    )


setattr(SparseTensor, "__iter__", iterate)  # noqa: B010 - torch types it as a plain method


@implements(torch.Tensor.apply_)
def apply_(self: SparseTensor, callable: Callable[[Any], Any]) -> torch.Tensor:
    """Apply a Python function to every element, zeros included."""
    check_budget(
        self.numel() * self.element_size(), f"apply_ of {tuple(self.shape)}", "apply it to .values()"
    )
    return replace_value(self, self.to_dense().apply_(callable), "apply_")


@implements(aten.allclose)
def allclose(
    self: torch.Tensor,
    other: torch.Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> bool:
    """Whether all elements are close, by the entries where both tensors are sparse."""
    if not isinstance(self, SparseTensor) or not isinstance(other, SparseTensor):
        return bool(torch.isclose(self, other, rtol=rtol, atol=atol, equal_nan=equal_nan).all())
    shape = tuple(torch.broadcast_shapes(self.shape, other.shape))
    pair = [expanded(entries_of(tensor), shape) for tensor in (self, other)]
    keys = united(pair)
    return torch.allclose(pair[0].at(keys), pair[1].at(keys), rtol=rtol, atol=atol, equal_nan=equal_nan)
