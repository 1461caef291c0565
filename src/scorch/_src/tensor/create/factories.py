"""torch's factory functions, with ``format`` added (``random_factories`` has the random ones).

Without it they return what torch returns. With it a sparse tensor is built directly: one with few
entries is never dense on the way, and one with all entries is checked against the dense budget first.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from scorch._src.compiler.typing import type_of_dtype
from scorch._src.devices import HOST
from scorch._src.formats import Format, as_format
from scorch._src.name_hints import as_dtype, keywords_of, unknown_keyword
from scorch._src.storage.budget import check_budget
from scorch._src.storage.complete_levels import assembled
from scorch._src.storage.storage import Storage
from scorch._src.tensor.create.build import from_coordinates, index_dtype, level_counts
from scorch._src.tensor.create.check import as_shape, check_device, device_for, refuse_pinning
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.interop.torch_layouts import from_scipy, is_scipy
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import OperandError, UnsupportedError, add_note

AnyTensor = SparseTensor | torch.Tensor
AnyFormat = str | Format | None
Maker = TypeVar("Maker", bound=Callable[..., AnyTensor])

NOT_DOCUMENTED = ("pin_memory", "names", "requires_grad")  # which some of torch's factory functions take, too
_own_keywords: dict[str, dict[str, None]] = {}  # of Scorch's factory functions


def factory(dense: Callable[..., torch.Tensor]) -> Callable[[Maker], Maker]:
    """Let the PyTorch function ``dense`` answer without ``format`` and ``density``; add ``requires_grad``."""

    def register(maker: Maker) -> Maker:
        keywords = keywords_of(maker)
        own = {"format", "density"} & keywords.keys()
        _own_keywords[maker.__name__] = keywords

        @functools.wraps(maker)
        def make(*args: Any, requires_grad: bool = False, **options: Any) -> AnyTensor:
            given = {name: options.pop(name, None) for name in own}
            is_dense = all(value is None for value in given.values())
            try:
                tensor = dense(*args, **options) if is_dense else maker(*args, **given, **options)
            except TypeError as error:
                check_names(maker.__name__, options)
                share = next((value for value in args if type(value) is float and 0 <= value <= 1), None)
                if "density" in own and share is not None:
                    add_note(error, f"pass a density by name, density={share}")
                raise
            return tensor.requires_grad_() if requires_grad else tensor

        return make  # type: ignore[return-value]

    return register


# with one value --------------------------------------------------------------------------------------


@factory(torch.zeros)
def zeros(*size: Any, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create a tensor of zeros, like ``torch.zeros``; a sparse one stores nothing.

    Args:
        size: the shape, as for ``torch.zeros``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.zeros``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.zeros`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        ShapeError: a size is not a non-negative integer.
        DensityError: the row pointers of ``format`` would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.zeros(1_000_000, 1_000_000, format="coo").nnz
        0
    """
    return filled("zeros", size, 0, format, options)


@factory(torch.empty)
def empty(*size: Any, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create a tensor, like ``torch.empty``; a sparse one stores nothing, so that all its elements are 0.

    Args:
        size: the shape, as for ``torch.empty``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.empty``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.empty`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        ShapeError: a size is not a non-negative integer.
        DensityError: the row pointers of ``format`` would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.empty(2, 3, format="csr").nnz
        0
    """
    return filled("empty", size, 0, format, options)


@factory(torch.ones)
def ones(*size: Any, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create a tensor of ones, like ``torch.ones``; every element is stored in any ``format``.

    Args:
        size: the shape, as for ``torch.ones``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.ones``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.ones`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        ShapeError: a size is not a non-negative integer.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.ones(2, 3, format="csr").nnz
        6
    """
    return filled("ones", size, 1, format, options)


@factory(torch.full)
def full(size: Any, fill_value: Any, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create a tensor filled with one value, like ``torch.full``; every element is stored unless it is 0.

    Args:
        size: the shape, as for ``torch.full``.
        fill_value: the value.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.full``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.full`` returns without it.

    Raises:
        OperandError: ``fill_value`` is not a number.
        FormatError: ``format`` does not exist or does not match the shape.
        ShapeError: a size is not a non-negative integer.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.full((2, 2), 7.0, format="csr").values()
        tensor([7., 7., 7., 7.])
    """
    try:
        inferred = torch.full((), fill_value, device=HOST).dtype
    except TypeError:
        raise OperandError(f"fill_value must be a number, but got {fill_value!r}") from None
    return filled("full", (as_shape("size", size),), fill_value, format, options, inferred)


def filled(
    name: str,
    size: tuple[Any, ...],
    value: Any,
    format: Any,
    options: dict[str, Any],
    default: torch.dtype | None = None,
) -> AnyTensor:
    """Store ``value`` at every place, and nothing where it is 0."""
    shape, dtype = shape_of(size, options), dtype_of(name, options, default)
    device = device_for(name, options.get("device"))
    form = as_format(format, len(shape))
    if value == 0 and not form.is_dense:
        return SparseTensor(_empty(name, form, shape, dtype, device))
    if value != 0:
        check_all_stored(name, shape, dtype, form, device)
    return from_torch(torch.full(shape, value, dtype=dtype, device=device), form)


def _empty(
    name: str, form: Format, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Storage:
    """Build a tensor in which nothing is stored; dense levels at the top still have all their positions."""
    counts = level_counts(form, shape, [0] * len(form))
    index = index_dtype(shape, counts)
    pointers = {
        level: (counts[level - 1] if level else 1) + 1 for level in range(len(form)) if form.starts_run(level)
    }
    check_budget(
        max(pointers.values(), default=0) * index.itemsize,
        device,
        f"{name} in format {form}",
        "use format='coo', which has no pointers",
    )
    none = torch.zeros(0, dtype=index, device=device)
    pos = [
        torch.zeros(pointers[level], dtype=index, device=device) if level in pointers else None
        for level in range(len(form))
    ]
    crd = [None if kind.is_full else none for kind in form.levels]
    return assembled(form, shape, pos, crd, counts, torch.zeros(counts[-1], dtype=dtype, device=device))


def check_all_stored(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, form: Format, device: torch.device
) -> None:
    """Refuse to store every place where that takes more than the dense budget."""
    places = math.prod(shape)
    sparse = sum(not level.is_full for level in form.levels)
    size = places * (dtype.itemsize + sparse * index_dtype(shape, [places]).itemsize)
    what = f"{name} of shape {shape}, which stores every element,"
    check_budget(size, device, what, "ask for fewer entries")


# some of the places ----------------------------------------------------------------------------------


@factory(lambda n, m=None, **options: torch.eye(n, n if m is None else m, **options))
def eye(n: int, m: int | None = None, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Create an identity matrix, like ``torch.eye``; a sparse one stores the diagonal.

    Args:
        n: the number of rows.
        m: the number of columns; ``n`` without it.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.eye``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.eye`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        ShapeError: a size is not a non-negative integer.

    Example:

        >>> import scorch
        >>> scorch.eye(100_000, format="csr").nnz
        100000
    """
    shape, dtype = as_shape("size", (n, n if m is None else m)), dtype_of("eye", options)
    diagonal = torch.arange(min(shape), device=device_for("eye", options.get("device")))
    values = torch.ones(min(shape), dtype=dtype, device=diagonal.device)
    return from_coordinates([diagonal, diagonal], values, shape, format)


@factory(torch.arange)
def arange(*bounds: Any, format: Any = None, **options: Any) -> AnyTensor:
    """Create a range of numbers, like ``torch.arange``; a sparse one stores all but zeros.

    Args:
        bounds: ``end``, or ``start, end[, step]``.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.arange``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.arange`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        DensityError: storing every element would exceed the dense budget.

    Example:

        >>> import scorch
        >>> scorch.arange(4, format="s").nnz  # 0 is not stored
        3
    """
    named = {name: options.pop(name) for name in ("start", "end", "step") if name in options}
    dtype = options.get("dtype")
    check_options("arange", options)
    planned = torch.arange(*bounds, **named, dtype=dtype, device="meta")  # torch computes length and dtype
    form = as_format(format, 1)
    type_of_dtype(planned.dtype)
    device = device_for("arange", options.get("device"))
    check_all_stored("arange", tuple(planned.shape), planned.dtype, form, device)
    return from_torch(torch.arange(*bounds, **named, dtype=dtype, device=device), form)


def as_tensor(data: Any, *, format: AnyFormat = None, **options: Any) -> AnyTensor:
    """Convert data to a tensor, like ``torch.as_tensor``, in any storage format.

    Args:
        data: the values. Sparse tensors and SciPy sparse arrays stay sparse; of others the nonzeros are
            stored.
        format: the storage format, such as ``"csr"``; a dense tensor without it.
        options: the other arguments of ``torch.as_tensor``: ``dtype``, ``device``, ``requires_grad``.

    Returns:
        A ``SparseTensor`` in ``format``, or what ``torch.as_tensor`` returns without it.

    Raises:
        FormatError: ``format`` does not exist or does not match the shape.
        TypeError: ``data`` cannot be converted to a tensor.

    Example:

        >>> import scorch
        >>> scorch.as_tensor([[0.0, 2.0], [0.0, 0.0]], format="csr").nnz
        1
    """
    check_names("as_tensor", options)
    if is_scipy(data):
        data = from_scipy(data)
    if isinstance(data, SparseTensor):
        dtype = dtype_of("as_tensor", options, data.dtype)
        return from_torch(data.to(dtype), format)
    if format is None:
        return torch.as_tensor(data, **options)
    check_options("as_tensor", options)
    device = options.get("device")
    if device is None and isinstance(data, torch.Tensor):
        device = data.device
    device = device_for("as_tensor", device)
    return from_torch(torch.as_tensor(data, dtype=options.get("dtype"), device=device), format)


# arguments -------------------------------------------------------------------------------------------


def shape_of(size: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, ...]:
    """Return the sizes, passed one by one, as one sequence or under the name ``size``."""
    if not size and "size" in options:
        return as_shape("size", options.pop("size"))
    is_sequence = len(size) == 1 and isinstance(size[0], (Sequence, torch.Tensor, np.ndarray))
    return as_shape("size", size[0] if is_sequence else size)


def dtype_of(name: str, options: Mapping[str, Any], default: torch.dtype | None = None) -> torch.dtype:
    """Return the dtype among the options; refuse options that sparse tensors do not have."""
    check_options(name, options)
    dtype = as_dtype("dtype", options.get("dtype")) or default or torch.get_default_dtype()
    type_of_dtype(dtype)
    return dtype


def check_options(name: str, options: Mapping[str, Any]) -> None:
    for option, value in options.items():
        match option:
            case "device":
                check_device(name, value)
            case "requires_grad":
                if value:
                    raise UnsupportedError(
                        f"{name} does not support requires_grad=; call .requires_grad_() on the result"
                    )
            case "pin_memory":
                refuse_pinning(value)
            case "dtype":
                as_dtype(option, value)
            case "memory_format":
                pass
            case "layout":
                if value not in (None, torch.strided):
                    word = str(value).removeprefix("torch.").removeprefix("sparse_")
                    raise OperandError(
                        f"{name} does not support layout= with a format or a density; use format={word!r}"
                    )
            case "out" | "names":
                if value is not None:
                    raise UnsupportedError(f"{name} with format= does not support {option}=")
            case _:
                raise unknown_keyword(name, option, keywords_of_factory(name))


def check_names(name: str, options: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that neither a factory function nor PyTorch's counterpart has."""
    keywords = keywords_of_factory(name) if options else {}
    for option in options:
        if option not in keywords and option not in NOT_DOCUMENTED:
            raise unknown_keyword(name, option, keywords) from None


@functools.cache
def keywords_of_factory(name: str) -> dict[str, None]:
    """Return the keyword arguments of a factory function: our own, and those that PyTorch documents."""
    documented = (getattr(torch, name).__doc__ or "").strip().partition("\n")[0]
    arguments = documented.partition("(")[2].rpartition(")")[0].split(",")
    words = (re.match(r"\W*(\w+)", argument) for argument in arguments)
    theirs = [word[1] for word in words if word is not None]
    return dict.fromkeys((*_own_keywords.get(name, ("format",)), *theirs))
