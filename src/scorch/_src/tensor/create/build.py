"""Build a tensor from index arrays: coordinates, or pointers and coordinates, unsorted and with repeats.

The index arrays are checked and copied, so that nobody changes a pattern through an array of his own; values
are shared where they have the right form already. A kernel sorts entries and sums repeats where needed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.backends.base import routines_for
from scorch._src.backends.by_torch.rows import sum_rows
from scorch._src.backends.sort_entries import Sorted, is_sorted
from scorch._src.compiler.pipeline import index_type
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.engine.execute import convert, sorted_storage
from scorch._src.formats import Format, as_format
from scorch._src.grad_state import is_differentiable, refuse_jit, untracked
from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.coordinates import coordinates, keys_of
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.check import (
    MAX_SIZE,
    as_differentiable_values,
    as_indices,
    as_shape,
    check_all_coordinates,
    check_coordinates,
    check_pointers,
    is_sorted_below,
    own,
    own_rows,
)
from scorch._src.tensor.hooks import hooks
from scorch._src.tensor.sparse_tensor import SparseTensor, wrap
from scorch.errors import IndexRangeError, ShapeError

_ARRAYS = {"r": ("crow_indices", "col_indices", "rows"), "c": ("ccol_indices", "row_indices", "columns")}


# coordinates -----------------------------------------------------------------------------------------


@suggests_keywords
def from_coordinates(
    coordinates: Any,
    values: Any,
    shape: Any = None,
    format: str | Format | None = None,
    name: str = "indices",
) -> SparseTensor | torch.Tensor:
    """Build a sparse tensor from the coordinates and values of its entries.

    Args:
        coordinates: one row per sparse dimension and one column per entry, in any order; the values of
            repeated coordinates are summed.
        values: one value per entry. Values with more dimensions make the last dimensions of the tensor
            dense.
        shape: the shape; without it, the smallest that holds all coordinates.
        format: the storage format; ``coo`` without it.
        name: what error messages call ``coordinates``.

    Returns:
        A ``SparseTensor``, or a dense tensor if ``format`` is dense.

    Raises:
        ShapeError: coordinates, values and shape do not match.
        IndexRangeError: a coordinate is outside the shape.

    Example:

        >>> import scorch
        >>> scorch.from_coordinates([[0, 1], [2, 0]], [3.0, 4.0], (2, 3), format="csr").to_dense()
        tensor([[0., 0., 3.],
                [4., 0., 0.]])
    """
    checked = as_differentiable_values("values", values)
    return from_checked_values(coordinates, checked, shape, format, name)


def from_checked_values(
    coordinates: Any,
    values: torch.Tensor,
    shape: Any,
    format: str | Format | None,
    name: str = "indices",
) -> SparseTensor | torch.Tensor:
    """Build a tensor as ``from_coordinates`` does, of values that are a tensor of the right dtype."""
    refuse_jit("SparseTensor")
    if is_differentiable(values):
        return _connected(coordinates, values, shape, format, name)
    crd, count = _rows(name, coordinates, values.device)
    return _from_rows(crd, count, values, shape, format, name)


def _from_rows(
    crd: list[torch.Tensor],
    count: int,
    values: torch.Tensor,
    shape: Any,
    format: str | Format | None,
    name: str,
) -> SparseTensor | torch.Tensor:
    if shape is None:
        shape = (*(max(0, int(row.max()) + 1) if row.numel() else 0 for row in crd), *values.shape[1:])
    sizes = as_shape("size", shape)
    _check_coordinate_shapes(name, crd, values, sizes, count)
    if not crd:
        total = values.sum(0, dtype=values.dtype) if values.dtype != torch.bool else values.any(0)
        target_format = as_format("dense" if format is None else format, len(sizes))
        return wrap(convert(total.reshape(sizes), target_format))
    dense = sizes[len(crd) :]
    form = as_format("o" * len(crd) + "d" * len(dense), len(sizes))
    target_format = form if format is None else as_format(format, len(sizes))
    dtype = index_dtype(sizes, level_counts(form, sizes, [count] * len(crd)) if dense else (count,))
    routines = routines_for(crd[0])
    early: list[SparseTensor] = []  # torch's part of the result, made while the device works

    def wrap_early() -> None:
        if target_format is form:
            early.append(SparseTensor(Storage.__new__(Storage), sizes, values))

    coalesced = routines.coalesce(crd, sizes[: len(crd)], values, dtype, wrap_early)
    if coalesced is not None:
        listed = _listed(form, sizes, *coalesced)
        if not early:
            return wrap(convert(listed, target_format))
        early[0].__dict__["storage"] = listed
        return early[0]
    check_all_coordinates(name, crd, sizes)
    arrays = [own(array, dtype) for array in crd]
    sorting = routines.sort_entries(arrays, sizes[: len(crd)])
    if isinstance(sorting, Sorted):
        summed = routines.sum_entries(sorting, values)
        return wrap(convert(_listed(form, sizes, sorting.columns, summed), target_format))
    storage = _listed(form, sizes, arrays, values)
    if not sorting and not is_sorted(arrays):
        storage = sorted_storage(storage, form if target_format.is_dense else target_format)
    return wrap(convert(storage, target_format))


def _listed(
    form: Format,
    sizes: tuple[int, ...],
    columns: Sequence[torch.Tensor],
    values: torch.Tensor,
    pos: torch.Tensor | None = None,
) -> Storage:
    """Return the list of entries with these coordinates, and dense levels below.

    ``pos`` has where it begins and ends, if there is such an array.
    """
    first, *others = columns
    count = first.numel()
    if pos is None:
        pos = torch.zeros(2, dtype=first.dtype, device=first.device)
        pos[1:].fill_(count)
    below = (None,) * (len(sizes) - len(columns))
    counts = [count] * len(columns)
    if below:
        counts = level_counts(form, sizes, counts)
    pattern = Pattern(form, sizes, (pos, *[None] * len(others), *below), (*columns, *below), tuple(counts))
    return Storage(pattern, values if values.dim() == 1 else values.reshape(-1))


def _connected(
    coordinates: Any, values: torch.Tensor, shape: Any, format: str | Format | None, name: str
) -> SparseTensor | torch.Tensor:
    """Build a tensor as ``from_coordinates`` does, connected to the values."""
    with untracked():
        crd, count = _rows(name, coordinates, values.device)
        zeros = torch.zeros(values.shape, dtype=values.dtype, device=values.device)
        unconnected = _from_rows(crd, count, zeros, shape, None, name)
        place = None
        if isinstance(unconnected, SparseTensor):
            pattern = unconnected.storage.pattern
            sizes = pattern.shape[: len(crd)]
            own = keys_of([array for array in pattern.crd if array is not None], sizes, values.device)
            place = torch.searchsorted(own, keys_of(crd, sizes, values.device))
    if place is None:
        total = values.sum(0).reshape(unconnected.shape)
        form = as_format(format or "dense", total.dim())
        scalar: SparseTensor | torch.Tensor = total if form.is_dense else hooks.store(total, form)
        return scalar
    summed = sum_rows(place, values, own.numel())
    connected: SparseTensor = hooks.sparse_of(pattern, summed)
    return connected if format is None else connected.to_format(format)


def _rows(name: str, coordinates: Any, device: torch.device) -> tuple[list[torch.Tensor], int]:
    """Return the coordinates in each dimension, and the number of entries, for no dimensions too."""
    if isinstance(coordinates, (list, tuple)) and any(
        isinstance(row, (torch.Tensor, np.ndarray)) for row in coordinates
    ):
        rows = [as_indices(f"{name}[{dim}]", row, device) for dim, row in enumerate(coordinates)]
        for dim, row in enumerate(rows):
            if row.dim() != 1:
                raise ShapeError(
                    f"{name}[{dim}] must be a 1-D list of coordinates, but got shape {tuple(row.shape)}"
                )
            if row.numel() != rows[0].numel():
                raise ShapeError(
                    f"{name}[{dim}] has {row.numel()} coordinates, but {name}[0] has {rows[0].numel()}"
                )
        return rows, rows[0].numel()
    indices = as_indices(name, coordinates, device)
    if indices.dim() != 2:
        stacked = ": pass torch.stack([rows, columns]), or torch.stack([indices]) for a vector"
        cure = stacked if indices.dim() == 1 else ""
        raise ShapeError(
            f"{name} has shape {tuple(indices.shape)}; it must have one row for each dimension "
            f"and one column for each entry{cure}"
        )
    return list(indices.unbind()), indices.shape[1]


def check_edge_index(edges: torch.Tensor) -> None:
    """Check that the edges of a graph have one row for sources and one for targets."""
    if edges.dim() != 2 or edges.shape[0] != 2:
        is_transposed = edges.dim() == 2 and edges.shape[1] == 2
        cure = ": pass edge_index.t()" if is_transposed else ""
        if edges.dim() == 1:  # the sources alone
            cure = ": pass torch.stack([sources, targets])"
        raise ShapeError(f"edge_index must have shape (2, edges), but got {tuple(edges.shape)}{cure}")


def transposed_error(name: str, shape: tuple[int, int]) -> ShapeError:
    """Return the error for indices with one row for each entry."""
    return ShapeError(
        f"{name} has shape {shape}, one row for each entry; it must have one row for each dimension and one "
        f"column for each entry, shape {shape[::-1]}: pass {name}.t()"
    )


def _check_coordinate_shapes(
    name: str, crd: Sequence[torch.Tensor], values: torch.Tensor, sizes: tuple[int, ...], count: int
) -> None:
    if values.dim() and values.shape[0] == len(crd) != count:
        raise transposed_error(name, (len(crd), count))
    if values.dim() == 0 or values.shape[0] != count:
        number = "is a scalar" if values.dim() == 0 else f"has {values.shape[0]}"
        raise ShapeError(f"{name} has {count} entries, but values {number}: pass one value for each entry")
    dense = tuple(values.shape[1:])
    if len(crd) + len(dense) != len(sizes):
        raise ShapeError(
            f"size {sizes} has {len(sizes)} dimensions, but {name} has {len(crd)} rows and each value has "
            f"{len(dense)} dimensions"
        )
    if dense != sizes[len(crd) :]:
        raise ShapeError(f"each value has shape {dense}, but size {sizes} ends with {sizes[len(crd) :]}")


# pointers --------------------------------------------------------------------------------------------


def from_compressed(
    kind: str, pointers: Any, plain: Any, values: Any, shape: Any, format: str | Format | None = None
) -> SparseTensor | torch.Tensor:
    """Build a tensor from the arrays of torch's layout ``kind`` (csr, csc, bsr, bsc), batched or hybrid."""
    checked = as_differentiable_values("values", values)
    return from_checked_compressed(kind, pointers, plain, checked, shape, format)


def from_checked_compressed(
    kind: str, pointers: Any, plain: Any, values: torch.Tensor, shape: Any, format: str | Format | None
) -> SparseTensor | torch.Tensor:
    """Build a tensor as ``from_compressed`` does, of values that are a tensor of the right dtype."""
    refuse_jit("SparseTensor")
    with untracked():
        pattern, in_order = _compressed_pattern(kind, pointers, plain, values, shape)
    target_format = pattern.format if format is None else as_format(format, len(pattern.shape))
    flat = values if values.dim() == 1 and values.is_contiguous() else values.contiguous().reshape(-1)
    if is_differentiable(values):
        return _compressed_connected(pattern, flat, in_order, target_format)
    storage = Storage(pattern, flat)
    if not in_order:
        storage = sorted_storage(storage, pattern.format)
    return wrap(convert(storage, target_format))


def _compressed_connected(
    pattern: Pattern, values: torch.Tensor, in_order: bool, form: Format
) -> SparseTensor | torch.Tensor:
    if in_order:
        tensor: SparseTensor = hooks.sparse_of(pattern, values)
        return tensor.to_format(form)
    with untracked():
        columns = coordinates(pattern)
    return from_coordinates([columns[dim] for dim in range(len(columns))], values, pattern.shape, form)


def _compressed_pattern(
    kind: str, pointers: Any, plain: Any, values: torch.Tensor, shape: Any
) -> tuple[Pattern, bool]:
    """Return the pattern of these arrays, and whether its entries are sorted and differ."""
    pointer_name, plain_name, what = _ARRAYS[kind[-1]]
    pos, crd = (
        as_indices(array_name, array, values.device)
        for array_name, array in ((pointer_name, pointers), (plain_name, plain))
    )
    blocks: tuple[int, ...] = ()
    if _is_usual_matrix(kind, pos, crd, values, shape):  # what the general way would find, in less time
        batch, sizes, form = 0, tuple(shape), _plain_format(kind, 0, 0)
    else:
        batch = _check_compressed_arrays(kind, pos, crd, values)
        inner = 2 if kind[0] == "b" else 0
        blocks = tuple(values.shape[batch + 1 : batch + 1 + inner])
        sizes = _inferred_size(kind, pos, crd, values, blocks) if shape is None else as_shape("size", shape)
        dense = values.dim() - batch - 1 - inner
        form = compressed_format(kind, batch, blocks, dense) if blocks else _plain_format(kind, batch, dense)
        _check_compressed_size(form, sizes, batch, pos, values, inner)
    across, lines = form.order[batch + 1], form.level_size(batch, sizes)
    counts = level_counts(form, sizes, [crd.numel()])
    dtype = index_dtype(sizes, counts)
    place = batch + 1
    arrays = own_rows(pos, crd, lines, form.level_size(place, sizes), dtype)
    in_order = arrays is not None
    if arrays is None:
        unit = f"blocks of {what}" if blocks else what
        try:
            check_pointers(pointer_name, pos, lines, crd.shape[-1], unit)
        except (ShapeError, IndexRangeError) as error:
            raise type(error)(f"{error}{_hint_if_swapped(kind, pos, crd, values)}") from None
        check_coordinates(plain_name, crd, across, sizes[across], form.block(across))
        arrays = own(_joined_pointers(pos, crd.shape[-1]), dtype), own(crd.reshape(-1), dtype)
    before: tuple[None, ...] = (None,) * place
    after: tuple[None, ...] = (None,) * (len(form) - place - 1)
    pattern = Pattern(form, sizes, (*before, arrays[0], *after), (*before, arrays[1], *after), tuple(counts))
    return pattern, in_order or is_sorted_below(*arrays)


def _is_usual_matrix(
    kind: str, pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, shape: Any
) -> bool:
    """Whether these are arrays of a matrix without blocks, with one value for each entry, of a ``shape``."""
    if kind[0] == "b" or values.dim() != 1 or pos.dim() != 1 or values.shape != crd.shape:
        return False
    is_matrix = isinstance(shape, tuple) and len(shape) == 2 and type(shape[0]) is type(shape[1]) is int
    return is_matrix and min(shape) >= 0 and max(shape) <= MAX_SIZE


def _check_compressed_arrays(kind: str, pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor) -> int:
    """Check the shapes of the arrays, and return the number of batch dimensions."""
    pointer_name, plain_name, _ = _ARRAYS[kind[-1]]
    if pos.dim() == 0:
        raise ShapeError(f"{pointer_name} must list where each row or column begins, but got a scalar")
    batch = pos.dim() - 1
    if crd.dim() != pos.dim() or crd.shape[:-1] != pos.shape[:-1]:
        raise ShapeError(
            f"{plain_name} has shape {tuple(crd.shape)}, but {pointer_name} has shape {tuple(pos.shape)}: "
            "all dimensions but the last are batches and must agree"
        )
    if values.shape[: batch + 1] != crd.shape:
        raise ShapeError(
            f"values has shape {tuple(values.shape)}, but {plain_name} has shape {tuple(crd.shape)}: pass "
            f"one value for each entry{_hint_if_swapped(kind, pos, crd, values)}"
        )
    if kind[0] == "b" and values.dim() < batch + 3:
        raise ShapeError(
            f"values has shape {tuple(values.shape)}; in {kind} each value is a block, so the shape must "
            "end with the rows and columns of a block"
        )
    if kind[0] == "b" and 0 in values.shape[batch + 1 : batch + 3]:
        raise ShapeError(
            "values must have blocks with positive sizes, but got "
            f"{tuple(values.shape[batch + 1 : batch + 3])}"
        )
    return batch


def _hint_if_swapped(kind: str, pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor) -> str:
    """Return the hint that the two arrays of indices are swapped, or nothing if that would not fit."""
    entries = pos.shape[-1]
    if crd.dim() != 1 or crd.numel() == 0 or values.shape[:1] != (entries,):
        return ""
    if int(crd[0]) != 0 or int(crd[-1]) != entries or bool((crd.diff() < 0).any()):
        return ""
    pointer_name, plain_name, _ = _ARRAYS[kind[-1]]
    return f"; {pointer_name} and {plain_name} seem to be swapped: {pointer_name} comes first"


@functools.lru_cache(maxsize=256)
def _plain_format(kind: str, batch: int, dense: int) -> Format:
    """Return a format without blocks, the same one again: it knows more of itself each time it is asked."""
    return compressed_format(kind, batch, (), dense)


def compressed_format(kind: str, batch: int, blocks: tuple[int, ...], dense: int) -> Format:
    row, column = batch, batch + 1
    outer = (row, column) if kind[-1] == "r" else (column, row)
    letters = "d" * batch + "ds" + "d" * len(blocks) + "d" * dense
    inner = (row, column) if blocks else ()
    order = (*range(batch), *outer, *inner, *range(batch + 2, batch + 2 + dense))
    return Format(letters, order=order, blocks=dict(zip(inner, blocks, strict=True)))


def _inferred_size(
    kind: str, pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, blocks: tuple[int, ...]
) -> tuple[int, ...]:
    """Infer the size as torch does: a row for each pointer, and columns up to the last one used."""
    lines, across = pos.shape[-1] - 1, int(crd.max()) + 1 if crd.numel() else 0
    rows, columns = (lines, across) if kind[-1] == "r" else (across, lines)
    height, width = blocks or (1, 1)
    dense = values.shape[pos.dim() + len(blocks) :]
    return (*pos.shape[:-1], max(rows, 0) * height, max(columns, 0) * width, *dense)


def _check_compressed_size(
    form: Format, sizes: tuple[int, ...], batch: int, pos: torch.Tensor, values: torch.Tensor, inner: int
) -> None:
    dense = tuple(values.shape[batch + 1 + inner :])
    wanted = batch + 2 + len(dense)
    if len(sizes) != wanted:
        raise ShapeError(
            f"size {sizes} has {len(sizes)} dimensions, but the arrays describe {wanted}: {batch} batch, 2 "
            f"sparse and {len(dense)} dense"
        )
    if sizes[:batch] != tuple(pos.shape[:-1]):
        raise ShapeError(
            f"size {sizes} begins with {sizes[:batch]}, but the arrays have batches {tuple(pos.shape[:-1])}"
        )
    if sizes[batch + 2 :] != dense:
        raise ShapeError(
            f"each value has dense dimensions {dense}, but size {sizes} ends with {sizes[batch + 2 :]}"
        )
    for dim, block in form.blocks:
        if sizes[dim] % block:
            raise ShapeError(
                f"dimension {dim} has size {sizes[dim]}, which is not divisible by the block size {block}"
            )


def _joined_pointers(pos: torch.Tensor, entries: int) -> torch.Tensor:
    """Join the pointers of all batches in one row."""
    if pos.dim() == 1:
        return pos
    flat = pos.reshape(-1, pos.shape[-1]).to(torch.int64)
    begins = torch.arange(flat.shape[0] + 1, device=flat.device) * entries
    return torch.cat([(flat[:, :-1] + begins[:-1, None]).reshape(-1), begins[-1:]])


def rows_pattern(pos: torch.Tensor, crd: torch.Tensor, shape: tuple[int, ...]) -> Pattern:
    """Return the pattern of compressed rows, those of all matrices of a batch one after the other."""
    form = Format("d" * (len(shape) - 1) + "s")
    absent: tuple[None, ...] = (None,) * (len(shape) - 1)
    counts = tuple(level_counts(form, shape, [crd.shape[0]]))
    return Pattern(form, shape, (*absent, pos), (*absent, crd), counts)


def rows_tensor(
    pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]
) -> SparseTensor:
    """Return the tensor with these rows, connected to ``values``; ``torch.compile`` can trace it."""
    if is_dynamo_compiling():
        order = ",".join([str(dim) for dim in range(len(shape))])
        text = "d" * (len(shape) - 1) + f"s:{order}:"  # as ``flatten.spelled`` writes the format
        return torch.ops.scorch.assemble(text, list(shape), [pos, crd], values)  # type: ignore[no-any-return]
    tensor: SparseTensor = hooks.sparse_of(rows_pattern(pos, crd, shape), values)
    return tensor


def level_counts(form: Format, sizes: tuple[int, ...], entries: Sequence[int]) -> list[int]:
    """Count the positions of each level; ``entries`` has those of the levels that store coordinates."""
    left, counts, positions = list(entries), [], 1
    for number, level in enumerate(form.levels):
        own = 0 if level.is_full else left.pop(0)
        positions = level.count(positions, form.level_size(number, sizes), own)
        counts.append(positions)
    return counts


def index_dtype(sizes: Sequence[int], counts: Sequence[int] = ()) -> torch.dtype:
    """Return the dtype of the index arrays of a tensor whose levels have these positions."""
    return dtype_of_type(index_type(sizes, max(counts, default=0)))
