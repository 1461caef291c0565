"""``full_like``, ``rand_like`` ... with ``format`` added, and ``density`` for the random ones.

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
    empty,
    full,
    leaf,
    rand,
    randint,
    randn,
)
from scorch._src.tensor.sparse_tensor import SparseTensor


@leaf
def full_like(input: torch.Tensor, fill_value: Any, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """As ``torch.full_like``; in a sparse ``format`` every place is stored, unless ``fill_value`` is 0."""
    if format is None:
        return torch.full_like(input, fill_value, **options)
    check_tensor("full_like", input)
    return full(tuple(input.shape), fill_value, format=format, **_like(input, options))


@leaf
def empty_like(input: torch.Tensor, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """As ``torch.empty_like``; in a sparse ``format`` nothing is stored, so that all values are 0."""
    if format is None:
        return torch.empty_like(input, **options)
    check_tensor("empty_like", input)
    return empty(tuple(input.shape), format=format, **_like(input, options))


@leaf
def rand_like(
    input: torch.Tensor, *, density: float | None = None, format: AnyFormat = None, **options: Any
) -> AnyTensor:
    """As ``torch.rand_like``; with ``density`` only that share of places is stored, drawn at random.

    Like a sparse tensor, without ``density``: random numbers where it has entries.
    """
    return _drawn_like("rand_like", torch.rand_like, rand, input, (), density, format, options)


@leaf
def randn_like(
    input: torch.Tensor, *, density: float | None = None, format: AnyFormat = None, **options: Any
) -> AnyTensor:
    """As ``torch.randn_like``; with ``density`` only that share of places is stored, drawn at random."""
    return _drawn_like("randn_like", torch.randn_like, randn, input, (), density, format, options)


@leaf
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
    bounds = (*bounds, *(options.pop(name) for name in ("low", "high") if name in options))
    return _drawn_like("randint_like", torch.randint_like, randint, input, bounds, density, format, options)


def _drawn_like(
    name: str,
    like: Callable[..., torch.Tensor],
    draw: Callable[..., AnyTensor],
    input: torch.Tensor,
    bounds: tuple[int, ...],
    density: float | None,
    format: AnyFormat,
    options: dict[str, Any],
) -> AnyTensor:
    if density is None and format is None:
        return like(input, *bounds, **options)
    check_tensor(name, input)
    if density is None and isinstance(input, SparseTensor):
        return from_torch(like(input, *bounds, **options), format)
    sizes = (*bounds, tuple(input.shape))
    return draw(*sizes, density=density, format=format, **_like(input, options))


def _like(input: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
    device = input.device if options.get("device") is None else options["device"]
    return {**options, "dtype": options.get("dtype") or input.dtype, "device": device}
