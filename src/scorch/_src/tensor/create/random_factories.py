"""torch's random factory functions, with ``format`` and ``density``, at random places."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from scorch._src.formats import as_format
from scorch._src.storage.coordinates import coordinates_of
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.check import MAX_SIZE, as_shape, device_for
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.create.factories import (
    AnyFormat,
    AnyTensor,
    check_all_stored,
    dtype_of,
    factory,
    shape_of,
)
from scorch.errors import ArgumentError, DensityError, DtypeError, OperandError, ShapeError

Draw = Callable[..., torch.Tensor]

MIN_DENSITY_OF_PERMUTATION = 0.25  # from this share of places on, draw from a permutation


@factory(torch.rand)
def rand(*size: Any, density: float | None = None, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Draw uniform random numbers, like ``torch.rand``, optionally at random positions only.

    Args:
        size: the shape, as for ``torch.rand``.
        density: the fraction of elements to store, at positions drawn at random; without it, every element.
            The number of stored elements is ``round(density * numel)``.
        format: the storage format, such as ``"csr"``; without it, ``coo`` if ``density`` is given, else
            dense.
        options: the other arguments of ``torch.rand``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.rand`` returns without it.

    Raises:
        ArgumentError: ``density`` is not between 0 and 1.
        FormatError: ``format`` does not exist or does not match the shape.
        DtypeError: ``dtype`` is neither floating-point nor complex.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.rand(1000, 1000, density=0.01, format="csr").nnz
        10000
    """
    return drawn("rand", torch.rand, shape_of(size, options), density, format, options)


@factory(torch.randn)
def randn(*size: Any, density: float | None = None, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Draw normally distributed numbers, like ``torch.randn``, optionally at random positions only.

    Args:
        size: the shape, as for ``torch.randn``.
        density: the fraction of elements to store, at positions drawn at random; without it, every element.
        format: the storage format, such as ``"csr"``; without it, ``coo`` if ``density`` is given, else
            dense.
        options: the other arguments of ``torch.randn``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.randn`` returns without it.

    Raises:
        ArgumentError: ``density`` is not between 0 and 1.
        FormatError: ``format`` does not exist or does not match the shape.
        DtypeError: ``dtype`` is neither floating-point nor complex.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.randn(1000, 1000, density=0.01, format="csr").nnz
        10000
    """
    return drawn("randn", torch.randn, shape_of(size, options), density, format, options)


@factory(torch.randint)
def randint(
    *bounds_and_size: Any, density: float | None = None, format: AnyFormat = None, **options: Any
) -> AnyTensor:
    """Draw random integers, like ``torch.randint``, optionally at random positions only.

    Args:
        bounds_and_size: ``high, size`` or ``low, high, size``. A value drawn as 0 is stored as an explicit
            zero.
        density: the fraction of elements to store, at positions drawn at random; without it, every element.
        format: the storage format, such as ``"csr"``; without it, ``coo`` if ``density`` is given, else
            dense.
        options: the other arguments of ``torch.randint``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.randint`` returns without it.

    Raises:
        ArgumentError: ``low`` is not less than ``high``, or ``density`` is not between 0 and 1.
        OperandError: the bounds are not integers.
        FormatError: ``format`` does not exist or does not match the shape.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.randint(1, 10, (100, 100), density=0.05, format="csr").nnz
        500
    """
    low, high, size = _randint_arguments(bounds_and_size, options)
    draw = functools.partial(torch.randint, low, high)
    return drawn("randint", draw, as_shape("size", size), density, format, options, torch.int64)


def _randint_arguments(positional: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int, Any]:
    names = ("low", "high", "size")
    named = {name: options.pop(name) for name in names if name in options}
    free = [name for name in names if name not in named]
    if "low" in free and len(positional) < len(free):
        free.remove("low")
    if len(positional) != len(free):
        raise OperandError("randint expected (high, size) or (low, high, size)")
    arguments = {"low": 0, **named, **dict(zip(free, positional, strict=True))}
    try:
        low, high = operator.index(arguments["low"]), operator.index(arguments["high"])
    except TypeError:
        raise OperandError(
            f"randint expected integer bounds, but got {arguments['low']!r} and {arguments['high']!r}"
        ) from None
    if low >= high:
        raise ArgumentError(f"randint expected low to be less than high, but got low={low} and high={high}")
    return low, high, arguments["size"]


def drawn(
    name: str,
    draw: Draw,
    shape: tuple[int, ...],
    density: float | None,
    format: AnyFormat,
    options: dict[str, Any],
    default: torch.dtype | None = None,
) -> AnyTensor:
    """Draw values at random positions of ``shape``, or at all of them without a ``density``."""
    form = as_format("coo" if format is None else format, len(shape))
    generator = options.pop("generator", None)
    dtype, device = dtype_of(name, options, default), device_for(name, options.get("device"))
    if default is None and not (dtype.is_floating_point or dtype.is_complex):
        plain = str(dtype).removeprefix("torch.")
        raise DtypeError(f"{name} does not support {plain}; use scorch.randint")
    if density is None:
        check_all_stored(name, shape, dtype, form, device)
        return from_torch(draw(shape, dtype=dtype, generator=generator, device=device), form)
    places = math.prod(shape)
    if places > MAX_SIZE:
        raise ShapeError(
            f"a tensor of shape {shape} has too many elements: the product of its sizes must be "
            f"less than 2**63"
        )
    count = round(_checked_density(density) * places)
    try:
        keys = _draw_places(count, places, generator, device)
        values = draw((count,), dtype=dtype, generator=generator, device=device)
        if not shape:  # a number, stored or not
            return values.sum(dtype=dtype)
        return from_coordinates(coordinates_of(keys, shape), values, shape, form)
    except RuntimeError as error:  # the text of torch's allocators for each kind of memory
        if not re.search("[Tt]ried to allocate|not enough memory", str(error)):
            raise
        raise DensityError(
            f"{name} of shape {shape} with density {density:g} stores {count:,} elements, which need more "
            "memory than is available; pass a lower density"
        ) from None


def _checked_density(density: Any) -> float:
    try:
        if isinstance(density, (str, bytes, bool)):  # which float() would accept
            raise TypeError
        share = float(density)
    except (TypeError, ValueError):
        raise OperandError(f"density must be a number between 0 and 1, but got {density!r}") from None
    if not 0 <= share <= 1:
        raise ArgumentError(f"density must be between 0 and 1, but got {density!r}")
    return share


def _draw_places(
    count: int, places: int, generator: torch.Generator | None, device: torch.device
) -> torch.Tensor:
    """Draw ``count`` different numbers below ``places``, sorted; every choice is equally likely."""
    if count >= MIN_DENSITY_OF_PERMUTATION * places:
        all_places = torch.randperm(places, generator=generator, device=device)
        return all_places[:count].sort().values
    taken = torch.zeros(0, dtype=torch.int64, device=device)
    while taken.numel() < count:
        # As many as give the rest on average, since some fall on places that are taken, and some to spare.
        left = count - taken.numel()
        share = left / (places - taken.numel())
        tries = math.ceil(-math.log1p(-share) / share * left + 3 * math.sqrt(left)) + 1
        more = torch.randint(places, (tries,), generator=generator, device=device)
        taken = torch.unique(torch.cat([taken, more]))
    chosen = torch.randperm(taken.numel(), generator=generator, device=device)[:count]
    return taken[chosen.sort().values]
