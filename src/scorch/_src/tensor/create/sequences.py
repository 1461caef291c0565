"""More of torch's factory functions, with ``format``: lists of numbers, diagonals, and arrays.

As in ``factories``: without ``format`` they return what torch returns, and tensors with few entries are never
dense on the way.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np
import torch

from scorch._src.compiler.typing import type_of_dtype
from scorch._src.devices import HOST
from scorch._src.formats import as_format
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.coordinates import coordinates_of
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.check import as_shape, check_tensor, device_for
from scorch._src.tensor.create.check import from_numpy as as_dense
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.create.factories import (
    AnyFormat,
    AnyTensor,
    check_all_stored,
    check_names,
    check_options,
    factory,
)
from scorch._src.tensor.create.random_factories import drawn
from scorch._src.tensor.interop.torch_layouts import from_scipy, is_scipy
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, IndexRangeError, OperandError, ShapeError, kind_of

# lists -----------------------------------------------------------------------------------------------


@factory(torch.linspace)
def linspace(start: Any, end: Any, steps: int, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create evenly spaced numbers, like ``torch.linspace``; a sparse tensor stores all but zeros.

    Args:
        start, end, steps: as for ``torch.linspace``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.linspace``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.linspace`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        ShapeError: ``steps`` is not a non-negative integer.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.linspace(0, 1, 5, format="s").nnz  # 0 is not stored
        4
    """
    return _listed("linspace", torch.linspace, (start, end), steps, format, options)


@factory(torch.logspace)
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, format: AnyFormat = None, **options: Any
) -> AnyTensor:
    """Create logarithmically spaced numbers, like ``torch.logspace``.

    Args:
        start, end, steps, base: as for ``torch.logspace``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.logspace``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.logspace`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        ShapeError: ``steps`` is not a non-negative integer.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.logspace(0, 2, 3, format="s").values()
        tensor([  1.,  10., 100.])
    """
    make = functools.partial(torch.logspace, base=base)
    return _listed("logspace", make, (start, end), steps, format, options)


def randperm(n: int, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Draw a random permutation, like ``torch.randperm``; a sparse one stores all but the 0.

    Args:
        n: the length.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.randperm``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.randperm`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        ShapeError: ``n`` is not a non-negative integer.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.randperm(5, format="s").nnz  # 0 is not stored
        4
    """
    if format is None:
        return torch.randperm(n, **options)
    make = functools.partial(torch.randperm, generator=options.pop("generator", None))
    options = {"dtype": torch.int64, **options}
    return _listed("randperm", make, (), n, format, options)


def _listed(
    name: str, make: Any, bounds: tuple[Any, ...], count: Any, format: Any, options: dict[str, Any]
) -> AnyTensor:
    """Compute the vector ``make(*bounds, count)``, checked against the dense budget first."""
    form = as_format(format, 1)
    check_options(name, options)
    shape = as_shape("size", (count,))
    dtype = options.get("dtype") or make(*bounds, 0, device=HOST).dtype
    type_of_dtype(dtype)
    device = device_for(name, options.get("device"))
    check_all_stored(name, shape, dtype, form, device)
    return from_torch(make(*bounds, shape[0], dtype=dtype, device=device), form)


# at random -------------------------------------------------------------------------------------------


def bernoulli(input: torch.Tensor, *args: Any, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Draw zeros and ones, like ``torch.bernoulli``; a sparse tensor stores the ones.

    Args:
        input: the probabilities.
        args: ``p``, as for ``torch.bernoulli``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.bernoulli``, such as ``generator``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.bernoulli`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import torch, scorch
        >>> scorch.bernoulli(torch.tensor([0.0, 1.0, 1.0]), format="s").nnz
        2
    """
    if format is None:
        return torch.bernoulli(input, *args, **options)
    check_tensor("the input of bernoulli", input)
    form = as_format(format, input.dim())
    return from_torch(torch.bernoulli(input, *args, **options), form)


def _normal(mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> torch.Tensor:
    return torch.normal(mean, std, *(() if size is None else (size,)), **options)


@factory(_normal)
def normal(
    mean: Any, std: Any = 1.0, size: Any = None, *, density: Any = None, format: Any = None, **options: Any
) -> AnyTensor:
    """Draw normally distributed numbers, like ``torch.normal``, optionally at random positions only.

    Args:
        mean, std: numbers, or tensors, in which case every element is drawn.
        size: the shape, if both are numbers.
        density: the fraction of elements to store, at positions drawn at random; without it, every element.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.normal``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.normal`` returns without it.

    Raises:
        OperandError: ``density`` needs two numbers and ``size``.
        ArgumentError: ``density`` is not between 0 and 1.
        FormatError: ``format`` does not exist or does not match the shape.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.normal(5.0, 1.0, (100, 100), density=0.05, format="csr").nnz
        500
    """
    if size is None:
        if density is not None:
            raise OperandError("normal with density= expected two numbers and a size, but got tensors")
        return from_torch(torch.normal(mean, std, **options), format)

    draw = functools.partial(_normal, mean, std)
    return drawn("normal", draw, as_shape("size", size), density, format, options)


# diagonals -------------------------------------------------------------------------------------------


def diag(input: torch.Tensor, diagonal: int = 0, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Return the diagonal of a matrix, or the diagonal matrix of a vector, like ``torch.diag``.

    Args:
        input: a vector or a matrix.
        diagonal: the number of the diagonal; 0 is the main one.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.diag``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.diag`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import torch, scorch
        >>> scorch.diag(torch.ones(100_000), format="csr").nnz
        100000
    """
    if format is None:
        return torch.diag(input, diagonal, **options)
    check_tensor("the input of diag", input)
    check_options("diag", options)
    if input.dim() != 1:
        return from_torch(torch.diag(input, diagonal), format)
    return diag_embed(input, diagonal, format=format)


@suggests_keywords
def diagflat(input: torch.Tensor, offset: int = 0, *, format: AnyFormat = None) -> AnyTensor:
    """Create a diagonal matrix, like ``torch.diagflat``; a sparse one stores only the diagonal.

    Args:
        input: a tensor, which is flattened.
        offset: the number of the diagonal; 0 is the main one.
        format: the storage format, such as ``"csr"``; a dense tensor without it.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.diagflat`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import torch, scorch
        >>> scorch.diagflat(torch.ones(2, 2), format="csr").shape
        torch.Size([4, 4])
    """
    if format is None:
        return torch.diagflat(input, offset)
    check_tensor("the input of diagflat", input)
    return diag_embed(input.reshape(-1), offset, format=format)


@suggests_keywords
def diag_embed(
    input: torch.Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1, *, format: AnyFormat = None
) -> AnyTensor:
    """Create matrices with given diagonals, like ``torch.diag_embed``; sparse ones store the diagonals.

    Args:
        input: the diagonals, along the last dimension.
        offset: the number of the diagonal; 0 is the main one.
        dim1, dim2: the dimensions of the matrices.
        format: the storage format, such as ``"csr"``; a dense tensor without it.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.diag_embed`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        ShapeError: ``input`` is a scalar.
        IndexRangeError: ``dim1`` or ``dim2`` is out of range.
        ArgumentError: ``dim1`` and ``dim2`` are identical.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import torch, scorch
        >>> scorch.diag_embed(torch.ones(2, 3), format="coo").shape
        torch.Size([2, 3, 3])
    """
    if format is None:
        return torch.diag_embed(input, offset, dim1, dim2)
    check_tensor("the input of diag_embed", input)
    if input.dim() == 0:
        raise ShapeError("diag_embed expected a tensor with at least one dimension, but got a scalar")
    rank = input.dim() + 1
    form, dims = as_format(format, rank), [_checked_dim(dim, rank) for dim in (dim1, dim2)]
    if dims[0] == dims[1]:
        raise ArgumentError(f"diag_embed: dim1 and dim2 cannot be identical, but got {dim1} and {dim2}")
    if isinstance(input, SparseTensor) or input.layout != torch.strided:
        return from_torch(torch.diag_embed(input, offset, dim1, dim2), form)
    shape = tuple(input.shape)
    *batch, along = coordinates_of(torch.arange(math.prod(shape), device=input.device), shape)
    offset = operator.index(offset)
    size = shape[-1] + abs(offset)
    columns, sizes = list(batch), list(shape[:-1])
    for dim, shift in sorted(zip(dims, (max(-offset, 0), max(offset, 0)), strict=True)):
        columns.insert(dim, along + shift)
        sizes.insert(dim, size)
    return from_coordinates(columns, input.detach().reshape(-1), tuple(sizes), form)


def _checked_dim(dim: int, rank: int) -> int:
    if not -rank <= dim < rank:
        raise IndexRangeError(f"diag_embed: dimension {dim} is out of range for a {rank}-D tensor")
    return dim % rank


# arrays ----------------------------------------------------------------------------------------------


def asarray(obj: Any, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Convert data to a tensor, like ``torch.asarray``, in any storage format.

    Args:
        obj: the values. Sparse tensors and SciPy sparse arrays stay sparse.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.asarray``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.asarray`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        TypeError: ``obj`` cannot be converted to a tensor.

    Example:

        >>> import scorch
        >>> scorch.asarray([[0.0, 2.0], [0.0, 0.0]], format="csr").nnz
        1
    """
    check_names("asarray", options)
    if is_scipy(obj):
        obj = from_scipy(obj)
    if isinstance(obj, SparseTensor):
        is_copied = bool(options.pop("copy", False))
        check_options("asarray", options)
        return from_torch(obj.to(options.get("dtype") or obj.dtype, copy=is_copied), format)
    dense = torch.asarray(obj, **options)
    return dense if format is None else from_torch(dense, format)


@suggests_keywords
def from_numpy(array: np.ndarray[Any, Any], *, format: AnyFormat = None) -> AnyTensor:
    """Convert a NumPy array, like ``torch.from_numpy``, in any storage format.

    Args:
        array: the array; with a sparse ``format``, its nonzeros are stored.
        format: the storage format; a dense tensor that shares the array's memory without it.

    Returns:
        A ``SparseTensor`` in ``format``, or a dense tensor without it.

    Raises:
        OperandError: ``array`` is not a NumPy array.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import numpy, scorch
        >>> scorch.from_numpy(numpy.eye(3), format="csr").nnz
        3
    """
    if format is None:
        return torch.from_numpy(array)
    if not isinstance(array, np.ndarray):
        raise OperandError(f"from_numpy expected a numpy.ndarray, but got {kind_of(array)}")
    return from_torch(as_dense("the array", array), as_format(format, array.ndim))
