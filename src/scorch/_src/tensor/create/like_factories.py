"""``zeros_like``, ``rand_like`` ... with ``format`` added, and ``density`` for the random ones.

Without these they are PyTorch's functions (``ops.pointwise.random_like`` has those of sparse tensors). With
``density`` positions are drawn at random; with ``format`` alone all elements are stored, except that random
numbers like a sparse tensor keep its pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.tensor.create.check import check_tensor
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.create.factories import AnyFormat, AnyTensor, factory, filled, full
from scorch._src.tensor.create.random_factories import rand, randint, randn
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import OperandError


@factory(torch.zeros_like)
def zeros_like(input: torch.Tensor, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create zeros with the shape of a tensor, like ``torch.zeros_like``; a sparse result stores nothing.

    Args:
        input: the tensor whose shape, dtype and device are used.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.zeros_like``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.zeros_like`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import torch, scorch
        >>> scorch.zeros_like(torch.ones(2, 3), format="csr").nnz
        0
    """
    return filled("zeros_like", (), 0, format, _like("zeros_like", input, options))


@factory(torch.ones_like)
def ones_like(input: torch.Tensor, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create ones with the shape of a tensor, like ``torch.ones_like``; every element is stored.

    Args:
        input: the tensor whose shape, dtype and device are used.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.ones_like``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.ones_like`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        FormatError: ``format`` does not exist or does not match the shape.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import torch, scorch
        >>> scorch.ones_like(torch.zeros(2, 3), format="csr").nnz
        6
    """
    return filled("ones_like", (), 1, format, _like("ones_like", input, options))


@factory(torch.full_like)
def full_like(input: torch.Tensor, fill_value: Any, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create a filled tensor with the shape of another, like ``torch.full_like``.

    Args:
        input: the tensor whose shape, dtype and device are used.
        fill_value: the value.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.full_like``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.full_like`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        FormatError: ``format`` does not exist or does not match the shape.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import torch, scorch
        >>> scorch.full_like(torch.zeros(2), 5.0, format="s").values()
        tensor([5., 5.])
    """
    return full(fill_value=fill_value, format=format, **_like("full_like", input, options))


@factory(torch.empty_like)
def empty_like(input: torch.Tensor, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create a tensor with the shape of another, like ``torch.empty_like``; a sparse one stores nothing.

    Args:
        input: the tensor whose shape, dtype and device are used.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.empty_like``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.empty_like`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import torch, scorch
        >>> scorch.empty_like(torch.ones(2, 3), format="csr").nnz
        0
    """
    return filled("empty_like", (), 0, format, _like("empty_like", input, options))


@factory(torch.rand_like)
def rand_like(
    input: torch.Tensor, *, density: float | None = None, format: AnyFormat = None, **options: Any
) -> AnyTensor:
    """Draw uniform numbers for the shape of a tensor, like ``torch.rand_like``.

    Args:
        input: the tensor whose shape, dtype and device are used.
        density: the fraction of elements to store, at positions drawn at random; without it, those of the
            sparsity pattern of a sparse ``input``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.rand_like``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.rand_like`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        ArgumentError: ``density`` is not between 0 and 1.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import torch, scorch
        >>> S = scorch.eye(3, format="csr")
        >>> scorch.rand_like(S).nnz, scorch.rand_like(S, density=1.0, format="csr").nnz
        (3, 9)
    """
    return _drawn_like(torch.rand_like, rand, input, (), density, format, options)


@factory(torch.randn_like)
def randn_like(
    input: torch.Tensor, *, density: float | None = None, format: AnyFormat = None, **options: Any
) -> AnyTensor:
    """Draw normally distributed numbers for the shape of a tensor, like ``torch.randn_like``.

    Args:
        input: the tensor whose shape, dtype and device are used.
        density: the fraction of elements to store, at positions drawn at random; without it, those of the
            sparsity pattern of a sparse ``input``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.randn_like``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.randn_like`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        ArgumentError: ``density`` is not between 0 and 1.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import torch, scorch
        >>> scorch.randn_like(torch.ones(100, 100), density=0.05, format="csr").nnz
        500
    """
    return _drawn_like(torch.randn_like, randn, input, (), density, format, options)


@factory(torch.randint_like)
def randint_like(
    input: torch.Tensor,
    *bounds: int,
    density: float | None = None,
    format: AnyFormat = None,
    **options: Any,
) -> AnyTensor:
    """Draw random integers for the shape of a tensor, like ``torch.randint_like``.

    Args:
        input: the tensor whose shape, dtype and device are used.
        bounds: ``high``, or ``low, high``.
        density: the fraction of elements to store, at positions drawn at random; without it, those of the
            sparsity pattern of a sparse ``input``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.randint_like``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.randint_like`` returns without it.

    Raises:
        OperandError: ``input`` is not a tensor.
        ArgumentError: ``low`` is not less than ``high``, or ``density`` is not between 0 and 1.
        FormatError: ``format`` does not exist or does not match the shape.

    Example:

        >>> import torch, scorch
        >>> scorch.randint_like(torch.ones(100, 100), 1, 10, density=0.05, format="csr").dtype
        torch.float32
    """
    return _drawn_like(torch.randint_like, randint, input, bounds, density, format, options)


def _drawn_like(
    like: Callable[..., torch.Tensor],
    draw: Callable[..., AnyTensor],
    input: torch.Tensor,
    bounds: tuple[int, ...],
    density: float | None,
    format: AnyFormat,
    options: dict[str, Any],
) -> AnyTensor:
    if density is None and isinstance(input, SparseTensor):
        return from_torch(like(input, *bounds, **options), format)
    return draw(*bounds, density=density, format=format, **_like(like.__name__, input, options))


def _like(name: str, input: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options for a tensor with the shape of ``input``, and its dtype and device by default."""
    check_tensor(f"the input of {name}", input)
    if "size" in options:
        raise OperandError(f"{name}() got an unexpected keyword argument 'size'")
    device = input.device if options.get("device") is None else options["device"]
    dtype = options.get("dtype") or input.dtype
    return {**options, "size": tuple(input.shape), "dtype": dtype, "device": device}
