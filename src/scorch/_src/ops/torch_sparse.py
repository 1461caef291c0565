"""The functions of ``torch.sparse`` on sparse tensors of any format, mixed with torch's own layouts.

They have the meaning that torch gives them: sums, maxima and means over stored entries only, products
sampled at the stored entries. What is sparse with torch's tensors is sparse here. (``softmax`` has its own
file.)
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from scorch._src.compiler.plan import Step
from scorch._src.devices import HOST
from scorch._src.engine.execute import Task, execute, prepared_step
from scorch._src.formats import Format, as_format
from scorch._src.grad_state import is_differentiable, untracked
from scorch._src.name_hints import suggests_keywords
from scorch._src.notation.nodes import Access, Op
from scorch._src.ops.fallback import as_dense
from scorch._src.ops.products import matmul, products
from scorch._src.ops.reduction.reduce import sum_by_fast_path
from scorch._src.statements.autocast import without_autocast
from scorch._src.statements.call_cache import keep_call, repeat_call
from scorch._src.statements.einsum import einsum
from scorch._src.statements.operands import as_operand
from scorch._src.storage.budget import check_budget
from scorch._src.storage.coordinates import keys_of
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.autograd import sparse_of, values_at, values_of
from scorch._src.tensor.create.check import check_tensor, sparse_advice_on
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.entries import Entries, entries_of, format_for, from_entries
from scorch._src.tensor.registry import implements, implements_differentiable
from scorch._src.tensor.sparse_tensor import SparseTensor, with_values
from scorch._src.torch_internals import torch_sparse_sum
from scorch.errors import ArgumentError, CallError, IndexRangeError, OperandError, ShapeError, kind_of

aten = torch.ops.aten
EXTREMES = {"amax": "max", "amin": "min"}
_BATCH_INDICES = "abcdefgh"


def as_sparse(name: str, tensor: Any) -> SparseTensor:
    """Return ``tensor``, which must be sparse, as a ``SparseTensor``."""
    if isinstance(tensor, SparseTensor):
        return tensor
    if isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided:
        converted = from_torch(tensor)
        assert isinstance(converted, SparseTensor)
        return converted
    kind = "a dense tensor" if isinstance(tensor, torch.Tensor) else kind_of(tensor)
    raise OperandError(f"{name} expected a sparse tensor here, but got {kind}; {sparse_advice_on(tensor)}")


@implements(torch.sparse.mm, differentiable=True)
def mm(sparse: Any, dense: Any, reduce: str = "sum") -> Any:
    """Multiply two matrices; ``reduce`` says how the products of a row's stored entries are combined.

    ``sum``, ``mean``, ``amax`` or ``amin``; rows without entries are 0.
    """
    if reduce == "sum":
        return matmul.mm(sparse, dense)
    if reduce != "mean" and reduce not in EXTREMES:
        raise ArgumentError(f"unknown reduce {reduce!r}; choose from 'sum', 'mean', 'amax' and 'amin'")
    matrix = _check_factors(f"torch.sparse.mm with reduce={reduce!r}", sparse, dense)
    if reduce == "mean":
        total, count = matmul.mm(matrix, dense), _row_counts(matrix).divisors
        return total / count if total.is_floating_point() or total.is_complex() else total // count
    if is_differentiable(matrix, dense):
        return _differentiable_extremes(matrix, dense, reduce)
    extremes, is_empty = _extreme_products(matrix, dense, EXTREMES[reduce]), _row_counts(matrix).empty
    return extremes if is_empty is None else extremes.masked_fill(is_empty, 0)


def _check_factors(name: str, mat1: Any, mat2: Any) -> SparseTensor:
    """Return the left factor as a sparse matrix, if the right one is a dense matrix that fits."""
    matrix = as_sparse(name, mat1)
    is_dense = isinstance(mat2, torch.Tensor) and not isinstance(mat2, SparseTensor)
    if not is_dense or mat2.layout is not torch.strided:
        raise OperandError(f"{name} expected a dense matrix on the right; torch.mm accepts sparse ones too")
    shapes = tuple(matrix.shape), tuple(mat2.shape)
    if matrix.dim() != 2 or mat2.dim() != 2 or shapes[0][1] != shapes[1][0]:
        raise ShapeError(f"{name}: matrices of shapes {shapes[0]} and {shapes[1]} cannot be multiplied")
    return matrix


def _differentiable_extremes(matrix: SparseTensor, dense: torch.Tensor, how: str) -> torch.Tensor:
    """Compute ``_extreme_products``, connected to both; every product is saved for the gradient."""
    rows, columns, values = matrix.coo()
    size = rows.numel() * dense.shape[1] * dense.element_size()
    what = f"the gradient of torch.sparse.mm with reduce={how!r}"
    check_budget(size, values.device, what, "multiply by fewer columns")
    products = values.unsqueeze(1) * dense.index_select(0, columns)
    start = products.new_zeros(matrix.shape[0], dense.shape[1])
    positions = rows.unsqueeze(1).expand_as(products)
    return start.scatter_reduce(0, positions, products, reduce=how, include_self=False)


def _extreme_products(matrix: SparseTensor, dense: torch.Tensor, how: str) -> torch.Tensor:
    """Compute ``max(j, A[i,j] * B[j,k])`` over the stored entries of ``A``."""
    head, operands = (f"{how} of stored products", None, "A", "B"), (matrix, dense)
    cached: torch.Tensor | None = repeat_call(head, operands)
    if cached is not None:
        return cached
    tensors = {"A": matrix.storage, "B": as_operand("the matrix on the right", dense)}
    product = Op("mul", (Access("A", ("i", "j")), Access("B", ("j", "k"))))
    step = Step(Access("C", ("i", "k")), product, how, ("j",))
    sizes = {"i": matrix.shape[0], "j": matrix.shape[1], "k": dense.shape[1]}
    task = Task(step, tensors, sizes, as_format("dense", 2)).narrowed()
    prepared = prepared_step(task)
    result = execute(prepared, task.tensors)
    keep_call(head, operands, prepared, ["A", "B"])
    assert isinstance(result, torch.Tensor)
    return result


class RowCounts(NamedTuple):
    """What is known of the rows of a pattern: the divisors of means, and which rows are empty."""

    divisors: torch.Tensor
    empty: torch.Tensor | None


_cached_row_counts: weakref.WeakKeyDictionary[Pattern, RowCounts] = weakref.WeakKeyDictionary()


def _row_counts(matrix: SparseTensor) -> RowCounts:
    pattern = matrix.storage.pattern
    counts = _cached_row_counts.get(pattern)
    if counts is None:
        with untracked():
            count = _count_row_entries(matrix).unsqueeze(1)
            is_empty = None if bool(count.all()) else count == 0
            counts = _cached_row_counts[pattern] = RowCounts(count.clamp(min=1), is_empty)
    return counts


def _count_row_entries(matrix: SparseTensor) -> torch.Tensor:
    """Count the entries of each row of a matrix."""
    pattern = matrix.storage.pattern
    if pattern.format.has_row_pointers:
        pointers = pattern.pos[1]
        assert pointers is not None
        return torch.diff(pointers)
    return torch.bincount(entries_of(matrix).coordinates[0], minlength=matrix.shape[0])


@implements(torch.sparse.addmm, differentiable=True)
@implements(aten._sparse_addmm.default)
def addmm(mat: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Compute ``beta * mat + alpha * (mat1 @ mat2)``."""
    added = mat if mat.layout is torch.strided else from_torch(mat)
    return products.addmm(added, mat1, mat2, beta=beta, alpha=alpha)


@implements(torch.smm, torch.Tensor.smm, differentiable=True)
@implements(aten.smm.default)
def smm(input: Any, mat: Any) -> SparseTensor:
    """Multiply a sparse and a dense matrix, stored sparse, as ``coo``."""
    return _multiply_to_format("smm", input, mat, as_format("coo", 2))


@implements(torch.sspaddmm, torch.Tensor.sspaddmm, torch.saddmm, differentiable=True)
@implements(aten.sspaddmm.default)
def sspaddmm(
    input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> SparseTensor:
    """Compute ``beta * input + alpha * (mat1 @ mat2)`` for sparse ``input`` and ``mat1``, dense ``mat2``."""
    _refuse_out("sspaddmm", out)
    added = as_sparse("sspaddmm", input)
    product = _multiply_to_format("sspaddmm", mat1, mat2, as_format(added.format, 2))
    shapes = tuple(product.shape), tuple(added.shape)
    if shapes[0] != shapes[1]:
        raise ShapeError(
            f"sspaddmm cannot add a product of shape {shapes[0]} to a tensor of shape {shapes[1]}"
        )
    total = products.add_scaled(added, product, beta, alpha)
    assert isinstance(total, SparseTensor)
    return total


@implements(torch.hspmm, torch.hsmm, differentiable=True)
@implements(aten.hspmm.default)
def hspmm(mat1: Any, mat2: Any, *, out: Any = None) -> SparseTensor:
    """Multiply a sparse and a dense matrix to a hybrid tensor: sparse rows of dense columns."""
    _refuse_out("hspmm", out)
    return _multiply_to_format("hspmm", mat1, mat2, Format("sd"))


def _refuse_out(name: str, out: Any) -> None:
    if out is not None:
        raise OperandError(f"{name} does not support out=; use the result instead")


def _multiply_to_format(name: str, mat1: Any, mat2: Any, form: Format) -> SparseTensor:
    """Compute ``mat1 @ mat2`` of a sparse and a dense matrix, stored as ``form``."""
    matrix = _check_factors(name, mat1, mat2)
    if matrix.dtype != mat2.dtype:
        raise CallError(
            f"{name} expected matrices of the same dtype, but got {matrix.dtype} and {mat2.dtype}"
        )
    with without_autocast(matrix.device):
        product = einsum("ij,jk->ik", matrix, mat2, format=form)
    assert isinstance(product, SparseTensor)
    return product


@implements(torch.sparse.sampled_addmm, differentiable=True)
@implements(aten.sparse_sampled_addmm.default)
def sampled_addmm(
    input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> SparseTensor:
    """Compute ``beta * input + alpha * (mat1 @ mat2)`` at the stored entries of ``input``, nowhere else."""
    pattern = as_sparse("sampled_addmm", input)
    shape, dims = tuple(pattern.shape), pattern.dim()
    is_matching = (
        dims >= 2 and mat1.dim() == mat2.dim() == dims and mat1.shape[:-2] == mat2.shape[:-2] == shape[:-2]
    )
    if not is_matching or (mat1.shape[-2], mat2.shape[-1]) != shape[-2:] or mat1.shape[-1] != mat2.shape[-2]:
        raise ShapeError(
            f"sampled_addmm: the product of {tuple(mat1.shape)} and {tuple(mat2.shape)} "
            f"does not have the shape {shape} of the sparse tensor"
        )
    for name, factor in (("mat1", mat1), ("mat2", mat2)):
        if factor.dtype != pattern.dtype:
            raise CallError(
                f"sampled_addmm: {name} has dtype {factor.dtype}, but the sparse tensor {pattern.dtype}; "
                f"convert one, as in {name}.to(S.dtype)"
            )
    _refuse_out("sampled_addmm", out)
    own_pattern, is_tracked = pattern.storage.pattern, is_differentiable(input, mat1, mat2)
    batch = _BATCH_INDICES[: dims - 2]
    ones = with_values(pattern, torch.ones_like(pattern.storage.values))
    with without_autocast(pattern.device):
        product = einsum(f"{batch}ij,{batch}ik,{batch}kj->{batch}ij", ones, mat1, mat2, format=pattern.format)
    assert isinstance(product, SparseTensor)
    is_moved = is_tracked or product.nnz != pattern.nnz
    values = (values_at(product, own_pattern) if is_moved else product.storage.values) * alpha
    if is_tracked or beta != 0:
        values = values_of(pattern) * beta + values
    return sparse_of(own_pattern, values.to(pattern.dtype))


@implements(torch_sparse_sum)
@implements(aten._sparse_sum)
def sum(input: SparseTensor, dim: Any = None, *, dtype: torch.dtype | None = None) -> Any:
    """Sum over dimensions: sparse as long as a sparse dimension is left, else dense."""
    values, shape = input.storage.values, input.storage.pattern.shape
    dims = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    reduced = _check_dims(len(shape), dims)
    if len(reduced) == len(shape):
        return values.sum(dtype=dtype)
    kept_dims = [d for d in range(len(shape)) if d not in reduced]
    if dtype is None and _is_kernel_faster(input, math.prod(shape[d] for d in kept_dims)):
        return _sum_by_kernel(input, sorted(reduced), kept_dims)
    entries = entries_of(input)
    crd = entries.coordinates
    kept_shape = tuple(shape[d] for d in kept_dims)
    keys = keys_of([crd[d] for d in kept_dims], kept_shape)
    summed_entries = Entries(keys, entries.values.to(dtype or values.dtype), kept_shape)
    sparse_kept = len([d for d in kept_dims if d < len(shape) - input.dense_dim()])
    if not sparse_kept:
        return from_entries(summed_entries, Format("s" * len(kept_shape)), in_order=False).to_dense()
    form = format_for(input, kept_shape)
    if input.dense_dim() and sparse_kept < len(kept_dims):
        form = Format("o" * sparse_kept + "d" * (len(kept_dims) - sparse_kept))
    return from_entries(summed_entries, form, in_order=False)


@implements_differentiable(torch_sparse_sum)
def differentiable_sum(input: Any, dim: Any = None, *, dtype: torch.dtype | None = None) -> Any:
    """Compute ``sum``, connected to its input."""
    tensor = input if dtype is None else input.to(dtype)
    with torch.no_grad():
        like: Any = torch_sparse_sum(tensor) if dim is None else torch_sparse_sum(tensor, dim)
    dims = dim if dim is not None else tuple(range(input.dim()))
    total = torch.sum(tensor, dims if isinstance(dims, int) else tuple(dims))
    if not isinstance(like, SparseTensor):
        return total
    return sparse_of(like.storage.pattern, values_at(total, like.storage.pattern))


def _is_kernel_faster(input: SparseTensor, elements: int) -> bool:
    """Whether sums of all elements, stored or not, are no more work than those of the entries."""
    pattern, dtype = input.storage.pattern, input.storage.values.dtype
    is_plain = not pattern.format.is_blocked and not pattern.format.levels[-1].is_full
    return is_plain and dtype in (torch.float32, torch.float64) and elements <= max(4 * pattern.size, 4096)


def _sum_by_kernel(input: SparseTensor, reduced: list[int], kept_dims: list[int]) -> SparseTensor:
    """Sum by the kernel of ``S.sum``, and store the sums of positions that have entries."""
    shape = tuple(input.storage.pattern.shape[d] for d in kept_dims)
    sums = sum_by_fast_path(input, tuple(reduced))
    dense = as_dense(sums).reshape(-1)
    keys = _has_entries(input, kept_dims, shape).nonzero().squeeze(1)
    columns = [keys] if len(kept_dims) == 1 else None
    entries = Entries(keys, dense.index_select(0, keys), shape, columns)
    return from_entries(entries, format_for(input, shape))


def _has_entries(input: SparseTensor, kept_dims: list[int], shape: tuple[int, ...]) -> torch.Tensor:
    """Whether each position of ``kept_dims``, numbered row by row, has entries below."""
    pattern = input.storage.pattern
    if kept_dims == [0] and pattern.format.has_row_pointers:
        return _count_row_entries(input) > 0
    level = pattern.format.order.index(kept_dims[0])
    column = pattern.crd[level] if len(kept_dims) == 1 else None
    if column is None or column.numel() != pattern.size:
        crd = entries_of(input).coordinates
        column = keys_of([crd[d] for d in kept_dims], shape)
    has_entries = torch.zeros(math.prod(shape), dtype=torch.bool, device=column.device)
    return has_entries.index_fill_(0, column.to(torch.int64), True)


def _check_dims(rank: int, dims: Sequence[int]) -> set[int]:
    for dim in dims:
        if not -rank <= dim < rank:
            raise IndexRangeError(f"torch.sparse.sum: dimension {dim} is out of range for a {rank}-D tensor")
    reduced = {dim % rank for dim in dims}
    if len(reduced) != len(dims):
        raise ArgumentError(f"torch.sparse.sum: a dimension appears twice in {tuple(dims)}")
    return reduced or set(range(rank))


@suggests_keywords
def spdiags(
    diagonals: torch.Tensor,
    offsets: torch.Tensor,
    shape: Any,
    layout: torch.layout | None = None,
    format: str | Format | None = None,
) -> SparseTensor | torch.Tensor:
    """Build a sparse matrix from its diagonals, like ``torch.sparse.spdiags``.

    Args:
        diagonals: one diagonal per row.
        offsets: the number of each diagonal; 0 is the main one.
        shape: the shape of the matrix.
        layout: one of PyTorch's sparse layouts, instead of ``format``.
        format: the storage format; ``coo`` without it.

    Returns:
        A ``SparseTensor``.

    Raises:
        RuntimeError: an offset occurs twice, or there are more or fewer offsets than diagonals.

    Example:

        >>> import torch, scorch
        >>> scorch.sparse.spdiags(torch.ones(2, 3), torch.tensor([0, 1]), (3, 3), format="csr").nnz
        5
    """
    check_tensor("diagonals", diagonals)
    dense = as_dense(diagonals)
    offsets = torch.as_tensor(offsets, device=HOST)
    matrix = torch.sparse.spdiags(dense.to(HOST), offsets, shape, layout)  # which torch has only there
    return from_torch(matrix.to(dense.device), format)
