"""Fast paths for the most frequent calls; others take the general rule.

``S * number`` and ``S / number`` act on the values, as unary functions do (``zero_preserving.py``). Sums,
differences and products of floating-point tensors are generated kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.grad_state import is_differentiable, is_plain_inference
from scorch._src.ops.movement.index import index
from scorch._src.ops.movement.shape import permute, select
from scorch._src.ops.pointwise.elementwise import is_finite, undo_expand
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
_PRODUCT_KEY, _SUM_KEY, _DIFFERENCE_KEY = (("mul",), None), (("add",), None), (("sub",), None)


# arithmetic ------------------------------------------------------------------------------------------


def run_generally(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a function by the general rule (``ops.pointwise.elementwise``)."""
    if is_differentiable(*args, **kwargs):
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
            product = repeat_call(_PRODUCT_KEY, (input, other))
            if product is not None and math.isfinite(other.sum()):
                return product
        if _is_number(other):
            return sparse_of(input.storage.pattern, values_of(input) * other)
    return _run_kernel("*", torch.mul, input, other, kwargs)


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
    if is_dense and other.layout == torch.strided and bool(undo_expand(other).all()):
        return _run_kernel("/", torch.div, input, other, kwargs)
    return run_generally(torch.div, input, other, **kwargs)


def _define_sum(sign: str, function: Callable[..., Any], key: tuple[Any, ...]) -> Callable[..., Any]:
    """Define ``a + b`` or ``a - b``; of two sparse tensors by the kernel that is cached by ``key``."""

    def total(input: Any, other: Any, **kwargs: Any) -> Any:
        if not kwargs and type(other) is SparseTensor and is_plain_inference(input, other):
            known = repeat_call(key, (input, other))
            if known is not None:
                return known
        return _run_kernel(sign, function, input, other, kwargs)

    return total


add = implements(
    torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, differentiable=True
)(_define_sum("+", torch.add, _SUM_KEY))
sub = implements(torch.sub, torch.Tensor.sub, torch.Tensor.__sub__, torch.subtract, differentiable=True)(
    _define_sum("-", torch.sub, _DIFFERENCE_KEY)
)


def _run_kernel(sign: str, function: Callable[..., Any], a: Any, b: Any, kwargs: dict[str, Any]) -> Any:
    """Compute ``a sign b`` of two sparse tensors, or a product of a sparse and a dense one, by a kernel."""
    if sign in "+-" and not kwargs and type(a) is SparseTensor and type(b) is SparseTensor:
        left_storage, right_storage = a.storage, b.storage
        shape, form, dtype = (
            left_storage.pattern.shape,
            left_storage.pattern.format,
            left_storage.values.dtype,
        )
        is_alike = (
            shape == right_storage.pattern.shape and dtype == right_storage.values.dtype and dtype in _FLOATS
        )
        if is_alike and 0 < len(shape) <= len(_LETTERS) and not form.is_blocked:
            text = _sum_statement(sign, len(shape))
            result = evaluate(text, A=a, B=b, format=form)
            if is_plain_inference(a, b):
                keep_as(_SUM_KEY if sign == "+" else _DIFFERENCE_KEY, (text, form, "A", "B"), (a, b))
            return result
    are_tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if kwargs or not are_tensors or not _is_plain(a, b, sign):
        return run_generally(function, a, b, **kwargs)
    sparse = a if isinstance(a, SparseTensor) else b
    shape = sparse.storage.pattern.shape
    other = _shape(b if sparse is a else a)
    if other != shape and (1 in shape or not _broadcasts(other, shape)):
        return run_generally(function, a, b)
    a, b = undo_expand(a), undo_expand(b)
    left, right = _access("A", a, shape), _access("B", b, shape)
    if left is None or right is None:
        return run_generally(function, a, b)
    target = ",".join(_LETTERS[: len(shape)])
    text = f"C[{target}] = {left[0]} {sign} {right[0]}"
    result = evaluate(text, A=left[1], B=right[1], format=sparse.format)
    if sign == "*" and sparse is a and other == shape and is_plain_inference(a, b):
        keep_as(_PRODUCT_KEY, (text, sparse.format, "A", "B"), (a, b))
    return result


@functools.lru_cache(maxsize=256)
def _sum_statement(sign: str, rank: int) -> str:
    """Return ``C[a,b] = A[a,b] + B[a,b]``."""
    indices = ",".join(_LETTERS[:rank])
    return f"C[{indices}] = A[{indices}] {sign} B[{indices}]"


def _broadcasts(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    """Whether a tensor of ``shape`` is broadcast to ``wide``."""
    sizes = zip(reversed(shape), reversed(wide), strict=False)
    return len(shape) <= len(wide) and all(size in (1, target) for size, target in sizes)


def _access(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> tuple[str, torch.Tensor] | None:
    """Return ``A[a,b]`` of a tensor broadcast to ``shape``: without dimensions of size 1, if it is dense."""
    if _shape(tensor) == shape:
        return f"{name}[{','.join(_LETTERS[: len(shape)])}]", tensor
    if isinstance(tensor, SparseTensor):
        return None
    skipped = len(shape) - tensor.dim()
    kept_dims = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != 1]
    indices = ",".join(_LETTERS[skipped + dim] for dim in kept_dims)
    return f"{name}[{indices}]", tensor.reshape([tensor.shape[dim] for dim in kept_dims])


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tensor.storage.pattern.shape if isinstance(tensor, SparseTensor) else tuple(tensor.shape)


def _is_plain(a: torch.Tensor, b: torch.Tensor, sign: str) -> bool:
    dtype, other = (
        tensor.storage.values.dtype if isinstance(tensor, SparseTensor) else tensor.dtype for tensor in (a, b)
    )
    if dtype != other or dtype not in _FLOATS or not 0 < len(_shape(a)) <= len(_LETTERS):
        return False
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        is_sum = sign in "+-"  # a product with infinity or NaN is not zero where one is not stored
        return not a.format.is_blocked and (
            is_sum or (is_finite(a.storage.values) and is_finite(b.storage.values))
        )
    dense = b if isinstance(a, SparseTensor) else a
    return sign in "*/" and dense.layout == torch.strided and is_finite(undo_expand(dense))


# moving entries --------------------------------------------------------------------------------------


@implements(torch.Tensor.T.__get__)  # type: ignore[attr-defined]
def transpose(self: SparseTensor) -> Any:
    """``S.T``, which shares all arrays."""
    rank = len(self.storage.pattern.shape)
    if rank == 2:
        return t(self)
    return run_generally(torch.Tensor.T.__get__, self)  # type: ignore[attr-defined]


@implements(torch.t, torch.Tensor.t)
def t(input: SparseTensor) -> Any:
    if len(input.storage.pattern.shape) != 2:
        return run_generally(torch.t, input)
    return as_view(permute(input, (1, 0)), torch.ops.aten.t.default, (input,))


# what depends on strides -----------------------------------------------------------------------------


@implements(torch.Tensor.view, differentiable=True)
def view(self: Any, *size: Any, **kwargs: Any) -> Any:
    """Compute ``S.view(...)``, refused where a dense tensor would have to be copied for it."""
    is_shape = not kwargs and not (size and isinstance(size[0], torch.dtype))
    if is_shape and has_strides((self,)):
        try:
            self.storage.meta_tensor().view(*size)
        except RuntimeError as error:
            raise CallError(str(error)) from None
    return run_generally(torch.Tensor.view, self, *size, **kwargs)


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
    """Whether the same view of a dense tensor would be contiguous."""
    if has_strides((self,)):
        return self.storage.meta_tensor().is_contiguous(*args, **kwargs)
    with DisableTorchFunctionSubclass():
        return self.is_contiguous(*args, **kwargs)


@implements(torch.Tensor.stride, differentiable=True)
def stride(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """Return the strides of the same view of a dense tensor."""
    if has_strides((self,)):
        return self.storage.meta_tensor().stride(*args, **kwargs)
    with DisableTorchFunctionSubclass():
        return self.stride(*args, **kwargs)


@implements(torch.Tensor.contiguous, differentiable=True)
def contiguous(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """Return the tensor itself, or a copy of a view that dense tensors would have to copy."""
    if has_strides((self,)) and not is_contiguous(self, *args, **kwargs):
        return self.clone(memory_format=kwargs.get("memory_format", torch.contiguous_format))
    return run_generally(torch.Tensor.contiguous, self, *args, **kwargs)


def _make_tensor_split(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``tensor_split``, whose indices may be a sparse tensor."""

    def split(input: Any, *args: Any, **kwargs: Any) -> Any:
        options = {name: _dense(value) for name, value in kwargs.items()}
        return run_generally(function, input, *map(_dense, args), **options)

    return split


def _dense(value: Any) -> Any:
    return value.to_dense() if isinstance(value, SparseTensor) else value


for _function in (torch.tensor_split, torch.Tensor.tensor_split):
    implements(_function, differentiable=True)(_make_tensor_split(_function))


@implements(torch.Tensor.__setitem__)
def setitem(self: Any, key: Any, value: Any) -> None:
    """Run ``S[1, 2] = x``; torch decomposes everything else into views, which write through."""
    index = _element_index(key, self.dim()) if isinstance(self, SparseTensor) else None
    if index is not None:
        value = torch.as_tensor(value, dtype=self.dtype, device=self.storage.device).reshape(1)
        self.index_put_(tuple(torch.tensor([number], device=self.storage.device) for number in index), value)
    else:
        if isinstance(self, SparseTensor):
            check_assignment(self, key, value)
        run_generally(torch.Tensor.__setitem__, self, key, value)


def _element_index(key: Any, rank: int) -> list[int] | None:
    """Return the coordinates in ``key``, if it names one element: such have no views."""
    coordinates: list[int] = []
    for item in key if isinstance(key, tuple) else (key,):
        if item is None or item is Ellipsis:
            continue
        is_scalar = (
            isinstance(item, torch.Tensor) and item.dim() == 0 and item.dtype in (torch.int64, torch.int32)
        )
        if type(item) is not int and not is_scalar:
            return None
        coordinates.append(int(item))
    return coordinates if len(coordinates) == rank else None


@implements(torch.Tensor.__getitem__)
def getitem(self: Any, key: Any) -> Any:
    """Run ``S[rows]``, ``S[i]`` and ``S[i, j]``; torch decomposes everything else."""
    if isinstance(self, SparseTensor) and self.storage.pattern.shape:
        if type(key) is torch.Tensor and key.dtype == torch.int64 and key.dim() == 1:
            return index(self, (key,))
        indices = key if isinstance(key, tuple) else (key,)
        if all(type(index_of_dim) is int for index_of_dim in indices):
            return _select_element(self, indices)
    return run_generally(torch.Tensor.__getitem__, self, key)


def _select_element(self: SparseTensor, positions: tuple[int, ...]) -> Any:
    """Select the element or slice at ``positions`` of the first dimensions."""
    full_shape = self.storage.pattern.shape
    if not 0 < len(positions) <= len(full_shape):
        return run_generally(torch.Tensor.__getitem__, self, positions)
    is_inside = all(-size <= position < size for position, size in zip(positions, full_shape, strict=False))
    if len(positions) == len(full_shape) and is_inside and not self.format.is_blocked:
        return element(
            self.storage, [position % size for position, size in zip(positions, full_shape, strict=True)]
        )
    selected: Any = self
    for position in positions:
        if not isinstance(selected, SparseTensor):
            return selected[positions[self.dim() - selected.dim() :]]
        selected = as_view(select(selected, 0, position), torch.ops.aten.select.int, (selected, 0, position))
    return selected
