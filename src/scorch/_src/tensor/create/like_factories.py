"""``zeros_like``, ``rand_like`` ... with ``format`` added, and ``density`` for the random ones.

Without these they are torch's functions (``ops.pointwise.random_like`` has those of sparse tensors). With
``density`` places are drawn at random; with ``format`` alone all places are stored, except that random
numbers like a sparse tensor keep its pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.create.factories import (
    AnyFormat,
    AnyTensor,
    check_tensor,
    factory,
    filled,
    full,
    rand,
    randint,
    randn,
)
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import OperandError


@factory(torch.zeros_like)
def zeros_like(input: torch.Tensor, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """As ``torch.zeros_like``; in a sparse ``format`` nothing is stored."""
    return filled("zeros_like", (), 0, format, _like("zeros_like", input, options))


@factory(torch.ones_like)
def ones_like(input: torch.Tensor, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """As ``torch.ones_like``; in a sparse ``format`` every place is stored."""
    return filled("ones_like", (), 1, format, _like("ones_like", input, options))


@factory(torch.full_like)
def full_like(input: torch.Tensor, fill_value: Any, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """As ``torch.full_like``; in a sparse ``format`` every place is stored, unless ``fill_value`` is 0."""
    return full(fill_value=fill_value, format=format, **_like("full_like", input, options))


@factory(torch.empty_like)
def empty_like(input: torch.Tensor, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """As ``torch.empty_like``; in a sparse ``format`` nothing is stored, so that all values are 0."""
    return filled("empty_like", (), 0, format, _like("empty_like", input, options))


@factory(torch.rand_like)
def rand_like(
    input: torch.Tensor, *, density: float | None = None, format: AnyFormat = None, **options: Any
) -> AnyTensor:
    """As ``torch.rand_like``; with ``density`` only that share of places is stored, drawn at random.

    Like a sparse tensor, without ``density``: random numbers where it has entries.
    """
    return _drawn_like(torch.rand_like, rand, input, (), density, format, options)


@factory(torch.randn_like)
def randn_like(
    input: torch.Tensor, *, density: float | None = None, format: AnyFormat = None, **options: Any
) -> AnyTensor:
    """As ``torch.randn_like``; with ``density`` only that share of places is stored, drawn at random."""
    return _drawn_like(torch.randn_like, randn, input, (), density, format, options)


@factory(torch.randint_like)
def randint_like(
    input: torch.Tensor,
    *bounds: int,
    density: float | None = None,
    format: AnyFormat = None,
    **options: Any,
) -> AnyTensor:
    """As ``torch.randint_like``; with ``density`` only that share of places is stored, drawn at random.

    ``randint_like(input, high)`` or ``randint_like(input, low, high)``.
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
    check_tensor(name, input)
    if "size" in options:
        raise OperandError(f"{name} has no argument 'size'")
    device = input.device if options.get("device") is None else options["device"]
    dtype = options.get("dtype") or input.dtype
    return {**options, "size": tuple(input.shape), "dtype": dtype, "device": device}
