"""Fast paths for the most frequent calls; others take the general rule.

``S * number`` and ``S / number`` act on the values, as unary functions do (``zero_preserving.py``). Sums,
differences, products and quotients of floating-point tensors are generated kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.backends.base import routines_for
from scorch._src.backends.repeated_calls import DIFFERENCE, PRODUCT, SUM
from scorch._src.devices import HOST
from scorch._src.formats import Format
from scorch._src.grad_state import (
    is_called_from,
    is_differentiable,
    is_plain_inference,
    is_tracked_by_autograd_alone,
)
from scorch._src.ops.movement.index import index
from scorch._src.ops.movement.shape import select, slice_, swap
from scorch._src.ops.pointwise.elementwise import undo_expand
from scorch._src.statements.call_cache import MIN_VALUES, find_repeater, keep_as, repeat_call, repeat_pair
from scorch._src.statements.evaluate import evaluate
from scorch._src.storage.budget import is_within_budget
from scorch._src.storage.slices import element
from scorch._src.storage.storage import Step
from scorch._src.storage.strides import has_strides
from scorch._src.tensor.autograd import keep_gradient_sparse, map_values, used
from scorch._src.tensor.create.check import refuse_freed
from scorch._src.tensor.operators import run_by_torch
from scorch._src.tensor.registry import entry, implements
from scorch._src.tensor.saved_versions import differentiate
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.tensor.views.link import as_view, join_view, link_view, ordinary_view
from scorch._src.tensor.write_checks import check_assignment
from scorch._src.torch_internals import (
    COMPILE_INPUTS,
    DTENSOR,
    FAKE_TENSOR_MAKER,
    DisableTorchFunctionSubclass,
    is_functorch_wrapped_tensor,
)
from scorch.errors import CallError, DensityError

_FLOATS = (torch.float32, torch.float64)
_LETTERS = "abcdefghijklmnop"


# arithmetic ------------------------------------------------------------------------------------------


def run_generally(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a function by the general rule (``ops.pointwise.elementwise``)."""
    if is_differentiable(*args, **kwargs):
        return differentiate(function, args, kwargs)
    return run_by_torch(function, args, kwargs)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_RULES = {"+": SUM, "*": PRODUCT, "-": DIFFERENCE}


def _cache_key(sign: str) -> tuple[tuple[str], None]:
    """Return the part of a cache key that does not depend on the operands; no format is requested."""
    return (sign,), None


def _define(sign: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Define ``a sign b``, which is ``function``; calls that run a kernel are cached by their sign."""
    key = _cache_key(sign)
    is_sum, maps_values = sign in "+-", sign != "/"

    def run(input: Any, other: Any, **kwargs: Any) -> Any:
        if kwargs:
            return run_generally(function, input, other, **kwargs)
        if not isinstance(other, torch.Tensor) or not isinstance(input, torch.Tensor):
            is_scale = not is_sum and isinstance(input, SparseTensor) and _is_number(other)
            if is_scale and (other or sign == "*"):
                return map_values(input, function, other)
            return run_generally(function, input, other)
        if is_plain_inference(input, other):
            values = _values_on_one_pattern(input, other) if maps_values else None
            if values is not None:
                return map_values(input, function, values)  # type: ignore[arg-type]
            try:
                known = repeat_call(key, (input, other))
            except DensityError:  # the general rule allows results no larger than an operand
                known = None
            if known is not None:
                if (is_sum and type(known) is SparseTensor) or _is_format_right(sign, input, other):
                    return known
                return run_generally(function, input, other)
        return _run_kernel(sign, function, input, other)

    def repeat(input: SparseTensor, other: torch.Tensor) -> Any:
        values = _values_on_one_pattern(input, other) if maps_values else None
        if values is not None:
            return map_values(input, function, values) if is_plain_inference(input, other) else None
        is_sure = is_sum and type(other) is SparseTensor
        if not is_sure and other.device != HOST:
            return _repeat_on_device(sign, key, input, other)
        known = repeat_pair(key, input, other)
        if known is None or is_sure or _is_format_right(sign, input, other):
            return known
        return None

    operator = entry(getattr(torch.Tensor, f"__{METHODS[sign]}__"))
    operator.repeat = repeat
    if sign != "/":
        operator.repeats = key, _RULES[sign]
    return run


def _repeat_on_device(sign: str, key: tuple[Any, ...], input: SparseTensor, other: torch.Tensor) -> Any:
    """Repeat a call on a device, which says what the format depends on while it computes the result."""
    asked: list[Callable[[], bool]] = []
    known = repeat_pair(key, input, other, lambda: asked.append(_ask_format(sign, input, other)))
    answers = [is_right() for is_right in asked]
    return known if all(answers) else None


def _values_on_one_pattern(a: Any, b: Any) -> torch.Tensor | None:
    """Return the values of ``b`` if it has the pattern of ``a``, and PyTorch is faster than a kernel."""
    if type(a) is not SparseTensor or type(b) is not SparseTensor:
        return None
    pattern, values = a.storage.pattern, b.storage.values
    if pattern is not b.storage.pattern or a.storage.values.dtype is not values.dtype:
        return None
    if pattern.size < MIN_VALUES and values.device == HOST:
        return None
    if routines_for(values).repeats_calls:
        find_repeater()  # the next time, builtins combine them if they are not too many
    return values


METHODS = {"+": "add", "-": "sub", "*": "mul", "/": "truediv"}
PRODUCTS = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__, torch.multiply)
QUOTIENTS = (torch.div, torch.Tensor.div, torch.Tensor.__truediv__, torch.true_divide, torch.divide)
mul = implements(*PRODUCTS, differentiable=True)(_define("*", torch.mul))
div = implements(*QUOTIENTS, differentiable=True)(_define("/", torch.div))
for _scaled in (*PRODUCTS, *QUOTIENTS):
    entry(_scaled).maps_values = 2
for _scaled in PRODUCTS:
    entry(_scaled).routine = "scale"
add = implements(
    torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, differentiable=True
)(_define("+", torch.add))
sub = implements(torch.sub, torch.Tensor.sub, torch.Tensor.__sub__, torch.subtract, differentiable=True)(
    _define("-", torch.sub)
)


def _run_kernel(sign: str, function: Callable[..., Any], a: torch.Tensor, b: torch.Tensor) -> Any:
    """Compute ``a sign b`` by a kernel, or by the general rule where that would return another format."""
    statement = _statement(sign, a, b)
    if statement is None:
        return run_generally(function, a, b)
    text, form, left, right = statement
    refuse_freed(left, right)
    is_right, is_asked_first = _ask_format(sign, left, right), left.device == HOST
    if is_asked_first and not is_right():
        return run_generally(function, a, b)
    result = evaluate(text, A=left, B=right, format=form)
    if not is_asked_first and not is_right():  # which a device finds out while the host does the rest
        return run_generally(function, a, b)
    if left is a and right is b and is_plain_inference(a, b):
        keep_as(_cache_key(sign), (text, form, "A", "B"), (a, b))
    return result


def _statement(
    sign: str, a: torch.Tensor, b: torch.Tensor
) -> tuple[str, str | Format, torch.Tensor, torch.Tensor] | None:
    """Return ``C[a,b] = A[a,b] sign B[b]``, its format and its operands; None if no kernel computes that.

    Two sparse tensors have the same shape; a dense one may be broadcast to that of the sparse one.
    """
    sparse, other = (a, b) if isinstance(a, SparseTensor) else (b, a)
    if not isinstance(sparse, SparseTensor) or (sign == "/" and sparse is not a):
        return None
    form, shape, dtype = sparse.format, sparse.storage.pattern.shape, sparse.storage.values.dtype
    if dtype not in _FLOATS or not 0 < len(shape) <= len(_LETTERS):
        return None
    result_form: str | Format = form
    if isinstance(other, SparseTensor):
        if other.storage.values.dtype != dtype or form.is_blocked or sign == "/":
            return None
    elif other.layout != torch.strided or other.dtype != dtype:
        return None
    elif sign in "+-":
        result_form = "dense"
        if form.is_blocked or not is_within_budget(math.prod(shape) * dtype.itemsize, sparse.storage.device):
            return None
        if not other.is_contiguous():
            return None  # a result lies in memory as the dense operand does
    left, right = _access("A", undo_expand(a), shape), _access("B", undo_expand(b), shape)
    if left is None or right is None:
        return None
    text = f"C[{','.join(_LETTERS[: len(shape)])}] = {left[0]} {sign} {right[0]}"
    return text, result_form, left[1], right[1]


def _access(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> tuple[str, torch.Tensor] | None:
    """Return ``A[a,b]`` of a tensor broadcast to ``shape``: without dimensions of size 1, if it is dense."""
    sizes = tensor.storage.pattern.shape if isinstance(tensor, SparseTensor) else tuple(tensor.shape)
    if sizes == shape:
        return f"{name}[{','.join(_LETTERS[: len(shape)])}]", tensor
    if isinstance(tensor, SparseTensor) or 1 in shape or not _broadcasts(sizes, shape):
        return None
    skipped = len(shape) - len(sizes)
    kept_dims = [dim for dim, size in enumerate(sizes) if size != 1]
    indices = ",".join(_LETTERS[skipped + dim] for dim in kept_dims)
    return f"{name}[{indices}]", tensor.reshape([sizes[dim] for dim in kept_dims])


def _broadcasts(shape: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    """Whether a tensor of ``shape`` is broadcast to ``wide``."""
    sizes = zip(reversed(shape), reversed(wide), strict=False)
    return len(shape) <= len(wide) and all(size in (1, target) for size, target in sizes)


def _is_format_right(sign: str, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a kernel's result has the format that ``_ask_format`` asks for."""
    other = b if isinstance(a, SparseTensor) else a
    if sign == "*" and type(other) is torch.Tensor and not is_functorch_wrapped_tensor(other):
        return routines_for(other).are_finite((_untracked(other),))  # the usual case, shorter
    return _ask_format(sign, a, b)()


def _ask_format(sign: str, a: torch.Tensor, b: torch.Tensor) -> Callable[[], bool]:
    """Return what answers whether a result has the format, and lies in memory, as the general rule has it.

    A product is sparse unless a zero meets infinity or NaN, a quotient unless it meets zero, too. A sum with
    a dense tensor is dense unless that is zero everywhere, or the other one has no implicit zeros.
    """
    sparse, other = (a, b) if isinstance(a, SparseTensor) else (b, a)
    assert isinstance(sparse, SparseTensor)
    is_wrapped = is_functorch_wrapped_tensor(other)
    if isinstance(other, SparseTensor):
        return _yes if sign in "+-" else _ask_finite_values(sparse, other)
    if sign in "+-":
        is_full = sparse.storage.pattern.size >= sparse.numel()
        if is_full or is_wrapped or has_strides((sparse,)):
            return _no
        return routines_for(other).ask_nonzero(_untracked(other))
    if is_wrapped:
        return _yes if sign == "*" else lambda: bool(other.all())
    if sign == "/":
        return routines_for(other).ask_divisor(_untracked(other))
    return routines_for(other).ask_finite((_untracked(other),))


def _ask_finite_values(a: SparseTensor, b: SparseTensor) -> Callable[[], bool]:
    """Return what answers whether no implicit zero of a product meets infinity or NaN."""
    if a.storage.pattern is b.storage.pattern:
        return _yes  # implicit zeros meet each other only
    arrays = [array.detach() for array in (a.storage.values, b.storage.values)]
    known = [array for array in arrays if not is_functorch_wrapped_tensor(array)]
    return routines_for(known[0]).ask_finite(known) if known else _yes


def _untracked(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def _yes() -> bool:
    return True


def _no() -> bool:
    return False


# moving entries --------------------------------------------------------------------------------------


@implements(torch.Tensor.T.__get__)  # type: ignore[attr-defined]
def transpose(self: SparseTensor) -> Any:
    """``S.T``, which shares all arrays."""
    rank = len(self.storage.pattern.shape)
    if rank == 2:
        return t(self)
    return run_generally(torch.Tensor.T.__get__, self)  # type: ignore[attr-defined]


_SWAPPED = [Step(torch.ops.aten.t.default, (), {}, None, grad_mode) for grad_mode in (False, True)]


@implements(torch.t, torch.Tensor.t)
@ordinary_view
def t(input: SparseTensor) -> Any:
    if len(input.storage.pattern.shape) != 2:
        return run_generally(torch.t, input)
    view = swap(input)
    join_view(view, input, (_SWAPPED[torch.is_grad_enabled()],))
    return view


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
    if other is self and _is_connected_leaf(self):
        return _view_of_leaf(self)
    view = self.view(other.shape)
    if isinstance(view, SparseTensor) and any(is_called_from(DTENSOR, depth) for depth in (2, 3, 4)):
        view.is_inside_dtensor = True
        if self.requires_grad and self.is_leaf:
            keep_gradient_sparse(self)  # products of DTensors have dense gradients
    return view


@implements(torch.Tensor.reshape_as, differentiable=True)
def reshape_as(self: Any, other: torch.Tensor) -> Any:
    return self.reshape(other.shape)


@implements(torch.Tensor.expand_as, differentiable=True)
def expand_as(self: Any, other: torch.Tensor) -> Any:
    return _view_of_leaf(self) if other is self and _is_connected_leaf(self) else self.expand(other.shape)


def _is_connected_leaf(tensor: Any) -> bool:
    is_leaf = type(tensor) is SparseTensor and tensor.is_leaf and tensor.requires_grad
    return is_leaf and is_tracked_by_autograd_alone() and torch.is_grad_enabled()


def _view_of_leaf(leaf: Any) -> Any:
    """Return ``leaf.view_as(leaf)``, one step above its gradient, where hooks of torch look for that."""
    view = used(leaf)
    link_view(view, leaf, (Step(torch.ops.aten.view.default, (list(leaf.shape),), {}, None, True),))
    if any(is_called_from(DTENSOR, depth) for depth in (3, 4, 5)):
        view.is_inside_dtensor = True
        keep_gradient_sparse(leaf)  # products of DTensors have dense gradients
    return view


@implements(torch.Tensor.is_contiguous, differentiable=True)
def is_contiguous(self: SparseTensor, *args: Any, **kwargs: Any) -> bool:
    """Whether the same view of a dense tensor would be contiguous."""
    if has_strides((self,)):
        return self.storage.meta_tensor().is_contiguous(*args, **kwargs)
    with DisableTorchFunctionSubclass():
        return self.is_contiguous(*args, **kwargs)


@implements(torch.Tensor.stride, differentiable=True)
def stride(self: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """Return the strides of the same view of a dense tensor; to graph capture, those that torch stores.

    Graphs are guarded by these, and their tensors lie row by row.
    """
    is_view = has_strides((self,))
    if is_view and not is_called_from(FAKE_TENSOR_MAKER, 2) and not is_called_from(COMPILE_INPUTS, 2):
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
        if len(indices) <= len(self.storage.pattern.shape) and all(map(_is_plain_index, indices)):
            return _slice(self, indices)
    return run_generally(torch.Tensor.__getitem__, self, key)


def _is_plain_index(item: Any) -> bool:
    """Whether an index is a number, or a slice forwards, of numbers."""
    if type(item) is not slice:
        return type(item) is int
    numbers = (item.start, item.stop, item.step)
    is_forwards = item.step is None or (type(item.step) is int and item.step > 0)
    return is_forwards and all(number is None or type(number) is int for number in numbers)


@ordinary_view
def _slice(self: SparseTensor, indices: tuple[Any, ...]) -> Any:
    """Take the view at numbers and slices of the first dimensions, as torch does, one after the other."""
    selected, dim = self, 0
    for item in indices:
        if not isinstance(selected, SparseTensor):
            return run_generally(torch.Tensor.__getitem__, self, indices)
        if type(item) is int:
            args: tuple[Any, ...] = selected, dim, item
            selected = as_view(select(*args), torch.ops.aten.select.int, args)
        else:
            if item != slice(None):
                args = selected, dim, item.start, item.stop, item.step or 1
                selected = as_view(slice_(*args), torch.ops.aten.slice.Tensor, args)
            dim += 1
    return run_generally(torch.Tensor.__getitem__, self, indices) if selected is self else selected


@ordinary_view
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
