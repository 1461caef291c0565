"""Short ways for what is called most: they are taken where they apply, and else the general rule is.

``S * number`` and ``S / number`` act on the values, as functions of one tensor do (``functions.py``).
Sums, differences and products of floating-point tensors are generated kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.grad_state import is_learning, is_plain_inference
from scorch._src.ops.movement.index import index
from scorch._src.ops.movement.shape import permute, select
from scorch._src.ops.pointwise.elementwise import is_finite, not_expanded
from scorch._src.statements.call_cache import keep_as, repeat_call
from scorch._src.statements.evaluate import evaluate
from scorch._src.storage.slices import element
from scorch._src.storage.strides import has_strides
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.registry import implements
from scorch._src.tensor.saved_versions import differentiate
from scorch._src.tensor.sparse_tensor import SparseTensor, as_view, without_base
from scorch._src.tensor.write_checks import check_assignment
from scorch._src.torch_internals import DisableTorchFunctionSubclass
from scorch.errors import CallError

_FLOATS = (torch.float32, torch.float64)
_LETTERS = "abcdefghijklmnop"
# What products with a dense tensor of the same shape, and sums of sparse tensors, are remembered by.
_PRODUCT, _SUM, _DIFFERENCE = (("mul",), None), (("add",), None), (("sub",), None)


# arithmetic ------------------------------------------------------------------------------------------


def general(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The rule for all functions (``ops.pointwise.elementwise``)."""
    if is_learning(*args, **kwargs):
        return differentiate(function, args, kwargs)
    with DisableTorchFunctionSubclass():
        return without_base(function(*args, **kwargs))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@implements(
    torch.mul,
    torch.Tensor.mul,
    torch.Tensor.__mul__,
    torch.Tensor.__rmul__,
    torch.multiply,
    differentiable=True,
)
def mul(input: Any, other: Any, **kwargs: Any) -> Any:
    if not kwargs and isinstance(input, SparseTensor):
        if type(other) is torch.Tensor and is_plain_inference(input, other):
            product = repeat_call(_PRODUCT, (input, other))
            if product is not None and math.isfinite(other.sum()):
                return product
        if _is_number(other):
            return sparse_of(input.storage.pattern, values_of(input) * other)
    return _by_kernel("*", torch.mul, input, other, kwargs)


@implements(
    torch.div,
    torch.Tensor.div,
    torch.Tensor.__truediv__,
    torch.true_divide,
    torch.divide,
    differentiable=True,
)
def div(input: Any, other: Any, **kwargs: Any) -> Any:
    if not kwargs and isinstance(input, SparseTensor) and _is_number(other) and other != 0:
        return sparse_of(input.storage.pattern, values_of(input) / other)
    is_dense = isinstance(other, torch.Tensor) and not isinstance(other, SparseTensor)
    if is_dense and other.layout == torch.strided and bool(not_expanded(other).all()):
        return _by_kernel("/", torch.div, input, other, kwargs)
    return general(torch.div, input, other, **kwargs)


@implements(torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, differentiable=True)
def add(input: Any, other: Any, **kwargs: Any) -> Any:
    if not kwargs and type(other) is SparseTensor and is_plain_inference(input, other):
        known = repeat_call(_SUM, (input, other))
        if known is not None:
            return known
    return _by_kernel("+", torch.add, input, other, kwargs)


@implements(torch.sub, torch.Tensor.sub, torch.Tensor.__sub__, torch.subtract, differentiable=True)
def sub(input: Any, other: Any, **kwargs: Any) -> Any:
    if not kwargs and type(other) is SparseTensor and is_plain_inference(input, other):
        known = repeat_call(_DIFFERENCE, (input, other))
        if known is not None:
            return known
    return _by_kernel("-", torch.sub, input, other, kwargs)


def _by_kernel(sign: str, function: Callable[..., Any], a: Any, b: Any, kwargs: dict[str, Any]) -> Any:
    """``a sign b`` of two sparse tensors, or for a product of a sparse and a dense one, by a kernel."""
    if sign in "+-" and not kwargs and type(a) is SparseTensor and type(b) is SparseTensor:
        mine, given = a.storage, b.storage
        shape, form, dtype = mine.pattern.shape, mine.pattern.format, mine.values.dtype
        is_alike = shape == given.pattern.shape and dtype == given.values.dtype and dtype in _FLOATS
        if is_alike and 0 < len(shape) <= len(_LETTERS) and not form.is_blocked:
            text = _sum_of(sign, len(shape))
            result = evaluate(text, A=a, B=b, format=form)
            if is_plain_inference(a, b):
                keep_as(_SUM if sign == "+" else _DIFFERENCE, (text, form, "A", "B"), (a, b))
            return result
    both = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if kwargs or not both or not _is_plain(a, b, sign):
        return general(function, a, b, **kwargs)
    sparse = a if isinstance(a, SparseTensor) else b
    shape = sparse.storage.pattern.shape
    other = _shape(b if sparse is a else a)
    if other != shape and (1 in shape or not _broadcasts(other, shape)):
        return general(function, a, b)
    a, b = not_expanded(a), not_expanded(b)
    left, right = _access("A", a, shape), _access("B", b, shape)
    if left is None or right is None:
        return general(function, a, b)
    target = ",".join(_LETTERS[: len(shape)])
    text = f"C[{target}] = {left[0]} {sign} {right[0]}"
    result = evaluate(text, A=left[1], B=right[1], format=sparse.format)
    if sign == "*" and sparse is a and other == shape and is_plain_inference(a, b):
        keep_as(_PRODUCT, (text, sparse.format, "A", "B"), (a, b))
    return result


@functools.lru_cache(maxsize=256)
def _sum_of(sign: str, rank: int) -> str:
    """``C[a,b] = A[a,b] + B[a,b]``."""
    indices = ",".join(_LETTERS[:rank])
    return f"C[{indices}] = A[{indices}] {sign} B[{indices}]"


def _broadcasts(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    """Whether a tensor of ``shape`` is broadcast to ``wide``."""
    pairs = zip(reversed(shape), reversed(wide), strict=False)
    return len(shape) <= len(wide) and all(size in (1, target) for size, target in pairs)


def _access(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> tuple[str, torch.Tensor] | None:
    """``A[a,b]`` for a tensor broadcast to ``shape``: without its dimensions of size 1, if it is dense."""
    if _shape(tensor) == shape:
        return f"{name}[{','.join(_LETTERS[: len(shape)])}]", tensor
    if isinstance(tensor, SparseTensor):
        return None
    skipped = len(shape) - tensor.dim()
    kept = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != 1]
    indices = ",".join(_LETTERS[skipped + dim] for dim in kept)
    return f"{name}[{indices}]", tensor.reshape([tensor.shape[dim] for dim in kept])


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.storage.pattern.shape if isinstance(tensor, SparseTensor) else tuple(tensor.shape)


def _is_plain(a: torch.Tensor, b: torch.Tensor, sign: str) -> bool:
    dtype, other = (
        part.storage.values.dtype if isinstance(part, SparseTensor) else part.dtype for part in (a, b)
    )
    if dtype != other or dtype not in _FLOATS or not 0 < len(_shape(a)) <= len(_LETTERS):
        return False
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        is_sum = sign in "+-"  # a product with infinity or NaN is not zero where one is not stored
        return not a.format.is_blocked and (
            is_sum or (is_finite(a.storage.values) and is_finite(b.storage.values))
        )
    dense = b if isinstance(a, SparseTensor) else a
    return sign in "*/" and dense.layout == torch.strided and is_finite(not_expanded(dense))


# moving entries --------------------------------------------------------------------------------------


@implements(torch.Tensor.T.__get__)  # type: ignore[attr-defined]
def turned(self: SparseTensor) -> Any:
    """``S.T``, which shares all arrays."""
    rank = len(self.storage.pattern.shape)
    if rank == 2:
        return t(self)
    return general(torch.Tensor.T.__get__, self)  # type: ignore[attr-defined]


@implements(torch.t, torch.Tensor.t)
def t(input: SparseTensor) -> Any:
    if len(input.storage.pattern.shape) != 2:
        return general(torch.t, input)
    return as_view(permute(input, (1, 0)), torch.ops.aten.t.default, (input,))


# what depends on how dense tensors lie in memory -----------------------------------------------------


@implements(torch.Tensor.view, differentiable=True)
def view(self: Any, *size: Any, **kwargs: Any) -> Any:
    """``S.view(...)``, refused where a dense tensor would have to be copied for it."""
    is_shape = not kwargs and not (size and isinstance(size[0], torch.dtype))
    if is_shape and has_strides((self,)):
        try:
            self.storage.shell().view(*size)
        except RuntimeError as error:
            raise CallError(str(error)) from None
    return general(torch.Tensor.view, self, *size, **kwargs)


@implements(torch.Tensor.view_as, differentiable=True)
def view_as(self: Any, other: torch.Tensor) -> Any:
    return self.view(other.shape)


@implements(torch.Tensor.reshape_as, differentiable=True)
def reshape_as(self: Any, other: torch.Tensor) -> Any:
    return self.reshape(other.shape)


@implements(torch.Tensor.expand_as, differentiable=True)
def expand_as(self: Any, other: torch.Tensor) -> Any:
    return self.expand(other.shape)


@implements(torch.Tensor.is_contiguous, differentiable=True)
def is_contiguous(self: SparseTensor, *args: Any, **kwargs: Any) -> bool:
    """Whether a dense tensor that is the same view would lie in memory row by row."""
    if has_strides((self,)):
        return self.storage.shell().is_contiguous(*args, **kwargs)
    with DisableTorchFunctionSubclass():
        return self.is_contiguous(*args, **kwargs)


@implements(torch.Tensor.stride, differentiable=True)
def stride(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """The strides of a dense tensor that was made in the same way."""
    if has_strides((self,)):
        return self.storage.shell().stride(*args, **kwargs)
    with DisableTorchFunctionSubclass():
        return self.stride(*args, **kwargs)


@implements(torch.Tensor.contiguous, differentiable=True)
def contiguous(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """The tensor itself, or a copy of a view that dense tensors would have to copy."""
    if has_strides((self,)) and not is_contiguous(self, *args, **kwargs):
        return self.clone(memory_format=kwargs.get("memory_format", torch.contiguous_format))
    return general(torch.Tensor.contiguous, self, *args, **kwargs)


def _split_at(function: Callable[..., Any]) -> Callable[..., Any]:
    """``tensor_split``, which may be given a sparse tensor of places."""

    def split(input: Any, *args: Any, **kwargs: Any) -> Any:
        named = {name: _dense(value) for name, value in kwargs.items()}
        return general(function, input, *map(_dense, args), **named)

    return split


def _dense(value: Any) -> Any:
    return value.to_dense() if isinstance(value, SparseTensor) else value


for _function in (torch.tensor_split, torch.Tensor.tensor_split):
    implements(_function, differentiable=True)(_split_at(_function))


@implements(torch.Tensor.__setitem__)
def setitem(self: Any, key: Any, value: Any) -> None:
    """``S[1, 2] = x``; everything else torch takes apart into views, which write through."""
    place = _element(key, self.dim()) if isinstance(self, SparseTensor) else None
    if place is not None:
        value = torch.as_tensor(value, dtype=self.dtype, device=self.storage.device).reshape(1)
        self.index_put_(tuple(torch.tensor([number], device=self.storage.device) for number in place), value)
    else:
        if isinstance(self, SparseTensor):
            check_assignment(self, key, value)
        general(torch.Tensor.__setitem__, self, key, value)


def _element(key: Any, rank: int) -> list[int] | None:
    """The coordinates that ``key`` names, if it names one element: such have no views."""
    found: list[int] = []
    for part in key if isinstance(key, tuple) else (key,):
        if part is None or part is Ellipsis:
            continue
        is_scalar = (
            isinstance(part, torch.Tensor) and part.dim() == 0 and part.dtype in (torch.int64, torch.int32)
        )
        if type(part) is not int and not is_scalar:
            return None
        found.append(int(part))
    return found if len(found) == rank else None


@implements(torch.Tensor.__getitem__)
def getitem(self: Any, key: Any) -> Any:
    """``S[rows]``, ``S[i]`` and ``S[i, j]``; everything else is taken apart by torch."""
    if isinstance(self, SparseTensor) and self.storage.pattern.shape:
        if type(key) is torch.Tensor and key.dtype == torch.int64 and key.dim() == 1:
            return index(self, (key,))
        places = key if isinstance(key, tuple) else (key,)
        if all(type(place) is int for place in places):
            return _picked(self, places)
    return general(torch.Tensor.__getitem__, self, key)


def _picked(self: SparseTensor, places: tuple[int, ...]) -> Any:
    """What is at ``places`` of the first dimensions."""
    whole = self.storage.pattern.shape
    if not 0 < len(places) <= len(whole):
        return general(torch.Tensor.__getitem__, self, places)
    is_there = all(-size <= place < size for place, size in zip(places, whole, strict=False))
    if len(places) == len(whole) and is_there and not self.format.is_blocked:
        return element(self.storage, [place % size for place, size in zip(places, whole, strict=True)])
    found: Any = self
    for place in places:
        if not isinstance(found, SparseTensor):
            return found[places[self.dim() - found.dim() :]]
        found = as_view(select(found, 0, place), torch.ops.aten.select.int, (found, 0, place))
    return found
