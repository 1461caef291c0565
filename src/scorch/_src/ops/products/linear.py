"""Functions of ``torch.nn.functional`` and others that are one expression, taken whole as users call them."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.base import routines_for
from scorch._src.backends.by_torch.layers import BatchProduct, Layer
from scorch._src.formats import Format, as_format
from scorch._src.grad_state import is_differentiable, is_grad_enabled, is_plain_inference, untracked
from scorch._src.ops.fallback import (
    are_all_sparse,
    as_dense,
    replace_value,
    run_densely,
    run_torch,
    store_like,
    write_out,
)
from scorch._src.ops.products.groups import Groups, find_groups, find_positions
from scorch._src.ops.products.matmul import matmul, prefers_transpose, transpose_contiguous
from scorch._src.statements.autocast import autocast_dtype, cast, is_autocast, without_autocast
from scorch._src.statements.autograd import repeat_differentiable
from scorch._src.statements.einsum import differentiable_einsum, einsum
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.check_call import check_call
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import any_requires_grad, is_any_autocast_enabled
from scorch.errors import CallError

_ROWS = "ij,kj->ik"  # the rows of an input by those of a weight
CSR = as_format("csr", 2)
MAX_NARROW_COLUMNS = 1 << 16
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_CAST = (torch.float32, torch.bfloat16, torch.float16)  # dtypes that autocast casts


@implements(F.linear, differentiable=True)
def linear(input: Any, weight: Any, bias: Any = None, *, out: Any = None) -> Any:
    """``input @ weight.T + bias``."""
    if out is not None:
        check_call(F.linear, input, weight, bias, out=out)
        return write_out(out, linear(input, weight, bias), "linear")
    if is_autocast():
        input, weight, bias = cast(input, weight, bias)
    if not _fits(input, weight, bias):
        check_call(F.linear, input, weight, bias)
    elif type(input) is torch.Tensor and is_plain_inference(input, weight, bias):
        found = multiply_batch(input, weight, bias)
        if found is not None:
            return found
    is_rows = isinstance(weight, SparseTensor) and not isinstance(input, SparseTensor) and input.dim()
    if is_rows and len(weight.storage.pattern.shape) == 2:  # asking the tensor itself takes longer
        product = _rows_by_weight(input, weight)
    elif isinstance(weight, SparseTensor) and input.dim() == 1 and weight.dim() != 1:
        product = matmul(weight, input)
    else:
        product = matmul(input, weight if weight.dim() == 1 else torch.transpose(weight, 0, 1))
    return _add_bias(product, bias)


def linear_of_parameter(
    input: torch.Tensor,
    weight: SparseTensor,
    bias: Any,
    scales: torch.Tensor | None = None,
    activation: str | None = None,
    residual: Any = None,
) -> Any:
    """Return ``linear`` of a dense input, connected to ``weight.parameter``; None in unusual cases.

    An activation and a residual follow. The values of ``weight`` may have fewer bits than the input, and
    ``scales`` for its rows; such a weight is connected to nothing.
    """
    if not input.dim():
        return None
    if is_any_autocast_enabled():
        return _linear_under_autocast(input, weight, bias, scales, activation, residual)
    is_connected = is_grad_enabled() and any_requires_grad(input, weight.parameter)
    is_followed = activation is not None or residual is not None
    if scales is not None or is_followed or weight.storage.values.dtype is not input.dtype:
        if is_connected or any(is_differentiable(other) for other in (bias, residual) if other is not None):
            return None
        return multiply_batch(input, weight, bias, scales, activation, residual)
    if not _fits(input, weight, bias):
        return None
    if is_connected and input.dim() == 2 and not prefers_transpose(input, weight):
        known = repeat_differentiable((_ROWS, "dense", False), (input, weight), bias)
        if known is not None:
            return known
    found = None if is_connected or is_differentiable(bias) else multiply_batch(input, weight, bias)
    return found if found is not None else _add_bias(_rows_by_weight(input, weight, is_connected), bias)


def _linear_under_autocast(
    input: torch.Tensor, weight: SparseTensor, bias: Any, scales: Any, activation: str | None, residual: Any
) -> Any:
    """Return ``linear_of_parameter`` of what autocast casts, where nothing is tracked; None otherwise."""
    dtype, values = autocast_dtype(input.device), weight.storage.values
    if scales is not None or residual is not None or dtype not in routines_for(input).batch_dtypes:
        return None
    if is_grad_enabled() and any_requires_grad(input, weight.parameter, bias):
        return None
    if not all(each is None or each.dtype in _CAST for each in (input, values, bias)):
        return None
    pattern, bias = weight.storage.pattern, None if bias is None else bias.to(dtype)
    narrow = SparseTensor(Storage(pattern, values.to(dtype)))
    return multiply_batch(input.to(dtype), narrow, bias, activation=activation)


def _add_bias(product: Any, bias: Any) -> Any:
    if bias is None:
        return product
    total = product + bias
    return total if total.shape == product.shape else total.reshape(product.shape)


def _fits(input: Any, weight: Any, bias: Any) -> bool:
    """Whether sizes and dtypes agree as in almost all calls; asking torch takes longer."""
    if not isinstance(weight, SparseTensor) or isinstance(input, SparseTensor):
        return False
    shape, dtype = weight.storage.pattern.shape, weight.storage.values.dtype
    sizes = input.shape
    if len(shape) != 2 or input.dtype is not dtype or not sizes or sizes[-1] != shape[1]:
        return False
    return bias is None or (bias.dtype is dtype and bias.shape == shape[:1])


def multiply_batch(
    input: torch.Tensor,
    weight: SparseTensor,
    bias: Any,
    scales: torch.Tensor | None = None,
    activation: str | None = None,
    residual: Any = None,
) -> torch.Tensor | None:
    """Multiply, and do what follows, in one routine, where nothing is tracked; None: it cannot.

    Unless all three have one dtype, the dtypes and sizes of the input, the bias and the residual are checked.
    """
    block = _find_batch_block(input, weight, bias, scales, activation, residual)
    if block is None:
        return None
    routines, pattern, values = routines_for(input), weight.storage.pattern, weight.storage.values
    own, read = None if bias is None else _as_read(bias), _as_read(input)
    rest = None if residual is None else _as_read(residual)
    groups = _find_groups(input, pattern, block)
    if groups is not None:
        grouped: Any = (pattern.pos[1], groups.codes, values)
        found = routines.multiply_groups(grouped, groups.table, own, read, scales, activation, rest)
        if found is not None:
            return found
    matrix: Any = (pattern.pos[1], _columns(input, pattern, block), values)
    return routines.multiply_batch(Layer(matrix, own, read, scales, activation, rest, block))


def bind_batch(
    input: torch.Tensor,
    weight: SparseTensor,
    bias: Any,
    scales: torch.Tensor | None = None,
    activation: str | None = None,
    residual: Any = None,
) -> BatchProduct | None:
    """Return ``multiply_batch`` for plain tensors of the same dtypes and shapes; None: it cannot be."""
    block = _find_batch_block(input, weight, bias, scales, activation, residual)
    pattern, values = weight.storage.pattern, weight.storage.values
    if block is None or _find_groups(input, pattern, block) is not None:
        return None
    matrix: Any = (pattern.pos[1], _columns(input, pattern, block), values)
    layer = Layer(matrix, bias, input, scales, activation, residual, block)
    return routines_for(input).bind_batch(layer)


def _find_batch_block(
    input: torch.Tensor, weight: SparseTensor, bias: Any, scales: Any, activation: str | None, residual: Any
) -> tuple[int, int] | None:
    """Return the size of the weight's blocks; None where ``multiply_batch`` takes no such tensors."""
    pattern, values = weight.storage.pattern, weight.storage.values
    block = (1, 1) if pattern.format is CSR else _find_block(pattern.format)
    if block is None:
        return None
    routines, dtype = routines_for(input), input.dtype
    if block != (1, 1) and (block not in routines.batch_blocks or not _is_divided(pattern, block)):
        return None
    if dtype not in routines.batch_dtypes or not input.numel() or not values.is_contiguous():
        return None
    if values.dtype is not dtype or activation is not None or residual is not None:
        is_stored = values.dtype is dtype or values.dtype in routines.stored_batch_dtypes.get(dtype, ())
        if not is_stored or not _agrees(input, pattern, bias, scales, residual):
            return None
    return block


def _find_groups(input: torch.Tensor, pattern: Pattern, block: tuple[int, int]) -> Groups | None:
    """Return the groups of an N:M sparse weight, where ``multiply_groups`` may take one row of input."""
    is_one_row = input.numel() == pattern.shape[1] and block == (1, 1)
    return find_groups(pattern) if is_one_row and input.dtype in routines_for(input).group_dtypes else None


def can_multiply_batch(input: Any, weight: SparseTensor, bias: Any, scales: Any, residual: Any) -> bool:
    """Whether ``multiply_batch`` takes tensors of these types, dtypes and sizes."""
    pattern, values = weight.storage.pattern, weight.storage.values
    if type(input) not in _PLAIN or input.layout is not torch.strided or not input.numel():
        return False
    routines, block = routines_for(input), _find_block(pattern.format)
    if block is None or block not in routines.batch_blocks or input.dtype not in routines.batch_dtypes:
        return False
    is_stored = values.dtype is input.dtype or values.dtype in routines.stored_batch_dtypes.get(
        input.dtype, ()
    )
    return is_stored and _is_divided(pattern, block) and _agrees(input, pattern, bias, scales, residual)


def _as_read(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of real numbers as a routine reads it: without gaps, its sign not left to a flag."""
    return tensor.detach().resolve_neg().contiguous()


@functools.lru_cache(maxsize=64)
def _find_block(form: Format) -> tuple[int, int] | None:
    """Return the size of the blocks whose rows are compressed; None for other formats."""
    if form == CSR:
        return 1, 1
    rows, columns = form.block(0) or 1, form.block(1) or 1
    return (rows, columns) if form == as_format(f"bsr({rows},{columns})", 2) else None


def _is_divided(pattern: Pattern, block: tuple[int, int]) -> bool:
    return all(size % part == 0 for size, part in zip(pattern.shape, block, strict=True))


def _agrees(input: torch.Tensor, pattern: Pattern, bias: Any, scales: Any, residual: Any) -> bool:
    """Whether what goes into a product are plain tensors with the dtype of the input, and their sizes fit."""
    rows, columns = pattern.shape
    shapes = ((bias, (rows,)), (scales, (rows,)), (residual, (*input.shape[:-1], rows)))
    return input.shape[-1] == columns and all(
        other is None
        or (type(other) in _PLAIN and other.dtype is input.dtype and tuple(other.shape) == shape)
        for other, shape in shapes
    )


def _columns(input: torch.Tensor, pattern: Pattern, block: tuple[int, int]) -> torch.Tensor | None:
    """Return the columns of a weight as the routine reads them; of N:M sparse ones, positions."""
    if block == (1, 1):
        positions = find_positions(input, pattern)
        if positions is not None:
            return positions
    return _narrow_columns(pattern)


def _narrow_columns(pattern: Pattern) -> torch.Tensor | None:
    """Return the columns as 16-bit integers without a sign, if they fit: less memory is read for a weight."""
    if pattern.shape[1] > MAX_NARROW_COLUMNS:
        return pattern.crd[1]
    narrow: torch.Tensor | None = pattern.structures.get("narrow columns")
    if narrow is None:
        columns = pattern.crd[1]
        assert columns is not None
        with untracked():
            narrow = pattern.structures["narrow columns"] = columns.to(torch.int16)
    return narrow


def _rows_by_weight(input: Any, weight: SparseTensor, is_connected: bool = False) -> Any:
    """``input @ weight.T`` for a dense input, its leading dimensions as one."""

    def multiply(*args: Any) -> Any:
        if is_connected:
            return differentiable_einsum(args, "dense")
        return einsum(*args, format="dense")

    if input.dim() == 1:
        return multiply("j,kj->k", input, weight)
    rows = input if input.dim() == 2 else input.flatten(0, -2)
    if prefers_transpose(rows, weight):
        found = transpose_contiguous(multiply("kj,ji->ki", weight, transpose_contiguous(rows)))
    else:
        found = multiply(_ROWS, rows, weight)
    return found if input.dim() == 2 else found.unflatten(0, input.shape[:-1])


@implements(F.bilinear, differentiable=True)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """``input1 @ weight[k] @ input2`` for every k."""
    check_call(F.bilinear, input1, input2, weight, bias)
    batch = "abcdefg"[: input1.dim() - 1]
    with without_autocast(weight.device):
        product = einsum(f"{batch}i,kij,{batch}j->{batch}k", input1, weight, input2)
    return product if bias is None else product + bias


@implements(torch.stft, torch.Tensor.stft, differentiable=True)
def stft(input: Any, *args: Any, **kwargs: Any) -> Any:
    """The transform of every window, which fills it; torch cuts windows by strides."""
    return run_densely(torch.stft, (input, *args), kwargs)


@implements(F.rrelu, torch.rrelu, differentiable=True)
def rrelu(
    input: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Any:
    """Apply the zero-preserving rrelu; in training draw a slope for every stored element that is negative."""
    given = values_of(input).clone() if inplace else values_of(input)  # gradients need it as it is
    values = torch.rrelu(given, lower, upper, training)
    found = sparse_of(input.storage.pattern, values)
    if not inplace:
        return found
    return input.copy_(found) if is_differentiable(input) else replace_value(input, found, "rrelu")


@implements(F.multi_head_attention_forward)
def multi_head_attention_forward(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """The result is sparse if all tensors are, above all the weights of the last projection."""
    output, weights = run_torch(F.multi_head_attention_forward, query, key, value, *args, **kwargs)
    inputs = (query, key, value, *args, *kwargs.values())
    floats = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()]
    is_sparse = are_all_sparse(floats) and output.dtype == query.dtype
    return store_like(output, query) if is_sparse else output, weights


@implements(F.one_hot)
def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """A row of zeros with a one for each class; only the ones are stored."""
    values = tensor.storage.values
    if values.numel() and values.dtype == torch.int64:
        least, most = (int(value) for value in torch.aminmax(values))
        if least < 0:
            raise CallError(f"one_hot: class values must be non-negative, but got {least}")
        if -1 != num_classes <= most:
            raise CallError(
                f"one_hot: class values must be smaller than num_classes={num_classes}, but got {most}"
            )
    return run_torch(F.one_hot, tensor, num_classes)


@implements(torch.ops.aten.native_batch_norm.default)
def native_batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, *numbers: float
) -> Any:
    """Normalize; in training update the running mean and variance in place, sparse ones too.

    A result scaled by a sparse weight is sparse, and so is one that is shifted by a sparse mean.
    """
    func, statistics = torch.ops.aten.native_batch_norm.default, (running_mean, running_var)
    dense = [as_dense(statistic) for statistic in statistics]
    result = run_densely(func, (input, weight, bias, *dense, training, *numbers), {})
    for statistic, changed in zip(statistics, dense, strict=True):
        if training and isinstance(statistic, SparseTensor):
            replace_value(statistic, changed, "batch_norm")
    is_sparse = are_all_sparse((input, weight, bias, *statistics)) and not (training and weight is None)
    return store_like(result, input) if is_sparse else result
