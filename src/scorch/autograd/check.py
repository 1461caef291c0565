"""Checks of gradients, as in ``torch.autograd``, that take sparse tensors.

>>> import torch, scorch
>>> S = scorch.rand(4, 5, density=0.5, format="csr", dtype=torch.float64, requires_grad=True)
>>> scorch.autograd.gradcheck(lambda S: S @ torch.ones(5, dtype=torch.float64), (S,))
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.tensor.autograd import sparse_of, values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import tree_map

__all__ = ["gradcheck", "gradgradcheck"]


def gradcheck(func: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> bool:
    """Check gradients by finite differences, like ``torch.autograd.gradcheck``, for sparse inputs and results
    too.

    Only stored values are perturbed and compared: entries outside the sparsity pattern get no gradient.

    Args:
        func: a function of tensors that returns a tensor or a tuple of them.
        inputs: the tensors to call it with, in float64; those that require gradients are checked.
        args, kwargs: the other arguments of ``torch.autograd.gradcheck``, such as ``eps`` and ``atol``.

    Returns:
        True if all gradients agree.

    Raises:
        torch.autograd.gradcheck.GradcheckError: a gradient differs, unless ``raise_exception=False``.

    Example:

        >>> import torch, scorch
        >>> S = scorch.rand(4, 5, density=0.5, format="csr", dtype=torch.float64, requires_grad=True)
        >>> scorch.autograd.gradcheck(lambda S: S @ torch.ones(5, dtype=torch.float64), (S,))
        True
    """
    function, given = _on_values(func, inputs)
    return torch.autograd.gradcheck(function, given, *args, **kwargs)


def gradgradcheck(
    func: Callable[..., Any], inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any
) -> bool:
    """Check second-order gradients by finite differences, like ``torch.autograd.gradgradcheck``.

    Of sparse inputs and results, the stored values are checked.

    Args:
        func: a function of tensors that returns a tensor or a tuple of them.
        inputs: the tensors to call it with, in float64; those that require gradients are checked.
        grad_outputs: the gradients of the results; random ones without it.
        args, kwargs: the other arguments of ``torch.autograd.gradgradcheck``, such as ``eps`` and
            ``atol``.

    Returns:
        True if all second-order gradients agree.

    Raises:
        torch.autograd.gradcheck.GradcheckError: a gradient differs, unless ``raise_exception=False``.

    Example:

        >>> import torch, scorch
        >>> S = scorch.rand(4, 5, density=0.5, format="csr", dtype=torch.float64, requires_grad=True)
        >>> scorch.autograd.gradgradcheck(lambda S: (S * S).sum(), (S,))
        True
    """
    function, given = _on_values(func, inputs)
    return torch.autograd.gradgradcheck(function, given, grad_outputs, *args, **kwargs)


def _on_values(func: Callable[..., Any], inputs: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """``func`` as a function of plain tensors, and what to call it with."""
    given = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    patterns = [tensor.storage.pattern if isinstance(tensor, SparseTensor) else None for tensor in given]
    plain = tuple(
        tensor.storage.values.clone().requires_grad_(tensor.requires_grad)
        if isinstance(tensor, SparseTensor)
        else tensor
        for tensor in given
    )

    def function(*arrays: Any) -> Any:
        tensors = [
            array if pattern is None else sparse_of(pattern, array)
            for array, pattern in zip(arrays, patterns, strict=True)
        ]
        return tree_map(_values, func(*tensors))

    return function, plain


def _values(result: Any) -> Any:
    return values_of(result) if isinstance(result, SparseTensor) else result
