"""Tensors like another one: of its shape, of its pattern, or just of its dtype.

zeros_like, fill(0)               the format of the tensor, without entries
ones_like, full_like              what they are on dense tensors, so dense
empty_like, rand_like, randn_like, randint_like,
normal_, uniform_, random_, bernoulli_, dropout
                                  the pattern of the tensor: random numbers stand where it has entries
new_zeros, new_ones ...           dense tensors of the requested size

That random numbers keep the pattern is what torch does with CSR tensors: noise on a sparse weight, and
initializing one, take the time and memory of its entries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.grad_state import are_patterns_fixed
from scorch._src.ops.fallback import replace_value, run_densely
from scorch._src.ops.movement.shape import zeros_like
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import clear_padding
from scorch._src.tensor.broadcast import broadcast_shape, expanded
from scorch._src.tensor.entries import entries_of, united
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch.errors import CallError, OperandError

aten = torch.ops.aten
ROWS_PER_CHUNK = 1024


def on_pattern(self: SparseTensor, fill: Callable[[torch.Tensor], torch.Tensor]) -> SparseTensor:
    """Return the pattern of ``self`` with the values of ``fill``; the padding of blocks stays zero."""
    return with_values(self, clear_padding(fill(self.storage.values.clone()), self.storage.pattern))


# on the same pattern ---------------------------------------------------------------------------------


def _draw_like(
    function: Any, self: SparseTensor, *args: Any, dtype: Any = None, **kwargs: Any
) -> SparseTensor:
    options = {name: kwargs[name] for name in ("generator",) if kwargs.get(name) is not None}
    return on_pattern(self, lambda values: function(values, *args, dtype=dtype or values.dtype, **options))


for _packet in (aten.rand_like, aten.randn_like, aten.randint_like):
    implements(_packet)(functools.partial(_draw_like, _packet))


@implements(aten.empty_like)
def empty_like(self: SparseTensor, *, dtype: torch.dtype | None = None, **_: Any) -> SparseTensor:
    """Return the pattern of ``self`` with zeros, where torch leaves the values undefined."""
    return with_values(self, torch.zeros_like(self.storage.values, dtype=dtype))


def _draw_in_place(func: Any, self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(self, SparseTensor) or any(isinstance(value, SparseTensor) for value in args):
        return run_densely(func, (self, *args), kwargs)
    filled = on_pattern(self, lambda values: func(values, *args, **kwargs))
    return replace_value(self, filled, func.overloadpacket.__name__)


for _func in (
    aten.normal_.default,
    aten.uniform_.default,
    aten.random_.default,
    getattr(aten.random_, "from"),
    aten.random_.to,
    aten.bernoulli_.float,
):
    implements(_func)(functools.partial(_draw_in_place, _func))


def _draw(func: Any, self: SparseTensor, generator: Any = None) -> SparseTensor:
    """Draw by the stored probabilities or rates: 0 at implicit zeros."""
    return on_pattern(self, lambda values: func(values, generator=generator))


for _func in (aten.bernoulli.default, aten.poisson.default):
    implements(_func)(functools.partial(_draw, _func))


@implements(aten.native_dropout)
def native_dropout(input: SparseTensor, p: float, train: bool | None) -> tuple[SparseTensor, SparseTensor]:
    """Return the entries after dropout, and which are kept."""
    values, is_kept = torch.native_dropout(input.storage.values, p, train)
    return with_values(input, values), with_values(input, is_kept)


@implements(F.dropout)
def dropout(input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Set some stored values to zero and scale the others; the pattern stays."""
    values = input.storage.values
    dropped = F.dropout(values, p, training)  # raises torch's errors
    if dropped is values:
        return input
    result = with_values(input, dropped)
    return replace_value(input, result, "dropout_") if inplace else result


implements(torch.dropout)(lambda input, p, train: dropout(input, p, train))
implements(torch.dropout_)(lambda input, p, train: dropout(input, p, train, inplace=True))


def _make_dropout(function: Callable[..., torch.Tensor], spatial: int | None) -> Callable[..., Any]:
    """Return ``function``, which drops whole channels: one factor for all ``spatial`` dimensions.

    With ``spatial`` None it changes zeros too: the result is dense.
    """

    def drop(
        input: SparseTensor, p: float = 0.5, training: bool = spatial is not None, inplace: bool = False
    ) -> Any:
        is_single = spatial is None or (input.dim() == spatial + 1 and spatial != 2)  # torch reads (N, C, L)
        kept_dims = 1 if is_single else 2
        shape = (*input.shape[:kept_dims], *(1,) * (input.dim() - kept_dims))
        ones = torch.ones(shape if spatial else (0,), dtype=input.dtype, device=input.storage.device)
        factors = function(ones, p, training)  # raises torch's errors
        if not training or p == 0:
            return input
        result = torch.mul(input, factors) if spatial else run_densely(function, (input, p, True), {})
        return replace_value(input, result, function.__name__) if inplace else result

    return drop


for _spatial, _dropout in enumerate((F.dropout1d, F.dropout2d, F.dropout3d), 1):
    implements(_dropout)(_make_dropout(_dropout, _spatial))
for _dropout in (F.alpha_dropout, F.feature_alpha_dropout):
    implements(_dropout)(_make_dropout(_dropout, None))


def _full(name: str, like: SparseTensor, shape: Sequence[int], value: Any, dtype: Any = None) -> torch.Tensor:
    dtype = dtype or like.dtype
    hint = "use scorch.zeros or a similar function with format= for a sparse result"
    device = like.storage.device
    check_budget(math.prod(shape) * dtype.itemsize, device, f"{name} of shape {tuple(shape)}", hint)
    return torch.full(tuple(shape), value, dtype=dtype, device=device)


@implements(torch.zeros_like, differentiable=True)
def zeros_like_of_torch(
    input: SparseTensor, *, requires_grad: bool = False, device: Any = None, **options: Any
) -> torch.Tensor:
    """Return a tensor without entries; one that requires a gradient has those of ``input``, to receive it."""
    result: torch.Tensor = (empty_like if requires_grad else zeros_like)(input, dtype=options.get("dtype"))
    result = result if device is None else result.to(device)
    return result.requires_grad_() if requires_grad else result


@implements(aten.full_like)
def full_like(self: SparseTensor, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    if fill_value == 0:
        return zeros_like(self, dtype=dtype)
    return _full("full_like", self, self.shape, fill_value, dtype)


@implements(aten.ones_like)
def ones_like(self: SparseTensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    return _full("ones_like", self, self.shape, 1, dtype)


@implements(aten.fill.Scalar, aten.fill.Tensor)
def fill(self: SparseTensor, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() > 0:
        raise CallError(f"fill_ expected a number or a 0-D tensor, but got shape {tuple(value.shape)}")
    if not isinstance(value, torch.Tensor):
        return full_like(self, value)
    if are_patterns_fixed():  # a zero of a tensor has a gradient
        return _full("fill_", self, self.shape, value.item())
    return full_like(self, value.item())


implements(aten.zero)(zeros_like)


@implements(aten.new_full)
def new_full(
    self: SparseTensor,
    size: Sequence[int],
    fill_value: Any,
    *,
    dtype: torch.dtype | None = None,
    name: str = "new_full",
    **_: Any,
) -> torch.Tensor:
    return _full(name, self, size, fill_value, dtype)


implements(aten.new_zeros, aten.new_empty)(functools.partial(new_full, fill_value=0, name="new_zeros"))
implements(aten.new_ones)(functools.partial(new_full, fill_value=1, name="new_ones"))


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
    size = self.numel() * self.element_size()
    check_budget(size, self.storage.device, f"apply_ of {tuple(self.shape)}", "apply it to .values()")
    return replace_value(self, self.to_dense().apply_(callable), "apply_")


@implements(aten.allclose)
def allclose(self: torch.Tensor, other: torch.Tensor, *tolerances: Any) -> bool:
    """Whether all elements are close, by the entries where both tensors are sparse."""
    if not isinstance(self, SparseTensor) or not isinstance(other, SparseTensor):
        return bool(torch.isclose(self, other, *tolerances).all())
    shape = tuple(self.shape)
    if shape != tuple(other.shape):
        shape = broadcast_shape(shape, other.shape)
    pair = [expanded(entries_of(tensor), shape) for tensor in (self, other)]
    keys = united(pair)
    return torch.allclose(pair[0].at(keys), pair[1].at(keys), *tolerances)
