"""Operations that move entries: other shapes, orders and slices.

A permutation shares all arrays: only the order of the format changes. So does a slice along the dimension
stored outermost (``storage.slices``). Everything else is arithmetic on the keys or coordinates of entries
(``tensor.entries``), so that time and memory follow the entries.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.devices import HOST, shares_memory
from scorch._src.engine.execute import convert
from scorch._src.formats import Format
from scorch._src.formats.compressed import Compressed
from scorch._src.grad_state import are_patterns_fixed
from scorch._src.ops.fallback import run_densely
from scorch._src.ops.movement.infer_shape import infer_shape
from scorch._src.storage.budget import check_budget
from scorch._src.storage.slices import (
    element,
    outer_dim,
    outer_slice,
    select_outer,
    unbind_outer,
)
from scorch._src.storage.storage import Storage
from scorch._src.tensor.broadcast import expanded
from scorch._src.tensor.entries import Entries, Shape, entries_of, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import UnsupportedError

aten = torch.ops.aten


def build_from_keys(
    tensor: SparseTensor, keys: torch.Tensor, values: torch.Tensor, shape: Shape, in_order: bool
) -> Any:
    """Build a tensor of other entries, in the format of ``tensor`` as far as possible."""
    return from_entries(Entries(keys, values, shape), format_for(tensor, shape), in_order)


def build_from_coordinates(
    tensor: SparseTensor,
    columns: Sequence[torch.Tensor],
    values: torch.Tensor,
    shape: Shape,
    in_order: bool,
) -> Any:
    """Build the same from coordinates in each dimension."""
    return from_entries(Entries(None, values, shape, columns), format_for(tensor, shape), in_order)


def split_entries(tensor: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return coordinates and values of the entries of a sparse tensor, or of the nonzeros of a dense one."""
    if isinstance(tensor, SparseTensor):
        entries = entries_of(tensor)
        return entries.coordinates, entries.values
    has_gradients = are_patterns_fixed() and (tensor.is_floating_point() or tensor.is_complex())
    is_stored = torch.ones_like(tensor, dtype=torch.bool) if has_gradients else tensor  # zeros have gradients
    coordinates = torch.nonzero(is_stored, as_tuple=True)
    return list(coordinates), tensor[coordinates]


@implements(aten.zeros_like)
def zeros_like(self: SparseTensor, *, dtype: torch.dtype | None = None, **_: Any) -> SparseTensor:
    """Return a tensor of the same shape and format without entries."""
    values = torch.zeros(0, dtype=dtype or self.storage.values.dtype, device=self.storage.device)
    return without_entries(values, tuple(self.shape), self.format)


def without_entries(no_values: torch.Tensor, shape: Shape, form: Format) -> SparseTensor:
    """Return a tensor without entries, with the dtype and on the device of ``no_values``."""
    no_keys = torch.zeros(0, dtype=torch.int64, device=no_values.device)
    return from_entries(Entries(no_keys, no_values, shape), form)


# reshaping -------------------------------------------------------------------------------------------


@implements(aten.view.default, aten._unsafe_view, aten.reshape, aten._reshape_alias)
def view(self: SparseTensor, size: Sequence[int], stride: Any = None) -> Any:
    shape = infer_shape(aten.view.default, self, size)
    if shape == tuple(self.shape):
        return SparseTensor(self.storage)
    if not shape:
        return self.to_dense().view(())
    entries = entries_of(self)
    return build_from_keys(self, entries.keys, entries.values, shape, True)


for _func in (aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims):
    implements(_func)(lambda self, *dim, func=_func: view(self, infer_shape(func, self, *dim)))


@implements(aten.permute)
def permute(self: SparseTensor, dims: Sequence[int]) -> SparseTensor:
    """Return the same arrays with permuted dimensions."""
    pattern = self.storage.pattern
    rank = len(pattern.shape)
    order = tuple([dim % rank if -rank <= dim < rank else dim for dim in dims])
    if sorted(order) != list(range(rank)):
        infer_shape(aten.permute.default, self, dims)  # raises torch's error
    shape = tuple([pattern.shape[dim] for dim in order])
    permuted = pattern.carried(_permute_format(pattern.format, order), shape, len(pattern.format))
    return SparseTensor(Storage(permuted, self.storage.values))


def swap(self: SparseTensor) -> SparseTensor:
    """Return the same arrays as the transposed matrix."""
    pattern = self.storage.pattern
    form = _permute_format(pattern.format, (1, 0))
    swapped = pattern.carried(form, pattern.shape[::-1], len(pattern.format))
    return SparseTensor(Storage(swapped, self.storage.values))


@functools.lru_cache(maxsize=256)
def _permute_format(form: Format, order: tuple[int, ...]) -> Format:
    """Return ``form`` of a tensor whose dimension ``order[d]`` becomes its dimension d."""
    new_dim = {old: new for new, old in enumerate(order)}
    return Format(
        form.levels,
        order=[new_dim[dim] for dim in form.order],
        blocks={new_dim[dim]: size for dim, size in form.blocks},
        dims=len(order),
    )


@implements(aten.transpose.int)
def transpose(self: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    order = list(range(len(self.storage.pattern.shape)))
    try:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    except IndexError:
        infer_shape(aten.transpose.int, self, dim0, dim1)  # raises torch's error
    return permute(self, order)


@implements(aten.t)
def t(self: SparseTensor) -> SparseTensor:
    rank = len(self.storage.pattern.shape)
    if rank > 2:
        infer_shape(aten.t.default, self)  # raises torch's error
    return swap(self) if rank == 2 else permute(self, range(rank))


@implements(aten.expand)
def expand(self: SparseTensor, size: Sequence[int], *, implicit: bool = False) -> Any:
    shape = infer_shape(aten.expand.default, self, size)
    if shape == tuple(self.shape):
        return SparseTensor(self.storage)
    wide = expanded(entries_of(self), shape)
    return build_from_keys(self, wide.keys, wide.values, shape, True)


@implements(aten.repeat)
def repeat(self: SparseTensor, repeats: Sequence[int]) -> Any:
    """Repeat by broadcasting each dimension as one of copies and one of coordinates."""
    shape = infer_shape(aten.repeat.default, self, repeats)
    shape_of_self = (1,) * (len(repeats) - self.dim()) + tuple(self.shape)
    entries = entries_of(self)
    source_shape = tuple(size for extent in shape_of_self for size in (1, extent))
    target_shape = tuple(size for pair in zip(repeats, shape_of_self, strict=True) for size in pair)
    wide = expanded(Entries(entries.keys, entries.values, source_shape), target_shape)
    is_copy = not shares_memory(wide.values, self.storage.values)
    return build_from_keys(self, wide.keys, wide.values if is_copy else wide.values.clone(), shape, True)


# slices ----------------------------------------------------------------------------------------------


@implements(aten.slice.Tensor)
def slice_(
    self: SparseTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    shape = infer_shape(aten.slice.Tensor, self, dim, start, end, step)
    dim %= self.dim()
    if shape == tuple(self.shape):
        return SparseTensor(self.storage)
    first = slice(start, end, step).indices(self.shape[dim])[0]
    if step == 1 and dim == outer_dim(self.format):
        return SparseTensor(outer_slice(self.storage, first, first + shape[dim]))
    entries = entries_of(self)
    crd = entries.coordinates
    offset = crd[dim] - first
    is_kept = (offset >= 0) & (offset < shape[dim] * step) & (offset % step == 0)
    crd[dim] = offset // step
    return build_from_coordinates(self, [c[is_kept] for c in crd], entries.values[is_kept], shape, True)


@implements(aten.select.int)
def select(self: SparseTensor, dim: int, index: int) -> Any:
    full_shape = self.storage.pattern.shape
    if not -len(full_shape) <= dim < len(full_shape) or not -full_shape[dim] <= index < full_shape[dim]:
        infer_shape(aten.select.int, self, dim, index)  # raises torch's error
    dim %= len(full_shape)
    index %= full_shape[dim]
    shape = (*full_shape[:dim], *full_shape[dim + 1 :])
    if not shape and not self.format.is_blocked:
        return element(self.storage, (index,))
    if shape and dim == outer_dim(self.format) and not self.format.inner.is_dense:
        return SparseTensor(select_stored(self.storage, index))
    entries = entries_of(self)
    crd = entries.coordinates
    is_kept = crd.pop(dim) == index
    if not shape:
        return entries.values[is_kept].sum(dtype=entries.values.dtype)
    return build_from_coordinates(self, [c[is_kept] for c in crd], entries.values[is_kept], shape, True)


def select_stored(storage: Storage, index: int) -> Storage:
    """Select coordinate ``index`` of the outermost dimension, where that leaves a sparse tensor."""
    selected = select_outer(storage, index)
    if selected is not None:
        return selected
    form, shape = storage.pattern.format, storage.pattern.shape
    left = tuple([size for dim, size in enumerate(shape) if dim != form.order[0]])
    return without_entries(storage.values.new_zeros(0), left, form.inner).storage


@implements(aten.unbind)
def unbind(self: SparseTensor, dim: int = 0) -> list[Any]:
    """Return every slice along ``dim``; the entries are traversed once for all of them."""
    if not -self.dim() <= dim < self.dim():
        aten.unbind(torch.empty(tuple(self.shape), device="meta"), dim)  # raises torch's error
    dim %= self.dim()
    shape = tuple(size for d, size in enumerate(self.shape) if d != dim)
    if not shape:
        entries = entries_of(self)
        check_budget(
            64 * self.shape[0], HOST, f"a tensor for each of {self.shape[0]} elements", "use .values()"
        )
        dense = torch.zeros(self.shape[0], dtype=entries.values.dtype, device=entries.values.device)
        return list(dense.index_put_((entries.keys,), entries.values).unbind())
    storage: Any = self.storage
    if dim != outer_dim(self.format) or self.format.inner.is_dense:
        inside = format_for(self, shape)
        order = (dim, *(d + (d >= dim) for d in inside.order))
        storage = convert(storage, Format((Compressed(), *inside.levels), order=order))
    no_values = self.storage.values.new_zeros(0)
    empty = without_entries(no_values, shape, storage.pattern.format.inner).storage
    return [
        SparseTensor(slice_storage or Storage(empty.pattern, empty.values))
        for slice_storage in unbind_outer(storage)
    ]


@implements(aten.split.Tensor)
def split(self: SparseTensor, split_size: int, dim: int = 0) -> list[Any]:
    meta = torch.empty(self.shape[dim], device="meta")
    return split_with_sizes(self, [chunk.shape[0] for chunk in aten.split.Tensor(meta, split_size)], dim)


@implements(aten.split_with_sizes)
def split_with_sizes(self: SparseTensor, split_sizes: Sequence[int], dim: int = 0) -> list[Any]:
    aten.split_with_sizes(torch.empty(tuple(self.shape), device="meta"), split_sizes, dim)
    ends = itertools.accumulate(split_sizes)
    return [slice_(self, dim, end - size, end) for size, end in zip(split_sizes, ends, strict=True)]


def _triangle(func: Any, is_kept: Any, self: SparseTensor, diagonal: int = 0) -> Any:
    shape = self.storage.pattern.shape
    if len(shape) < 2:
        infer_shape(func, self, diagonal)  # raises torch's error
    entries = entries_of(self)
    rows, columns = entries.coordinates[-2:]
    mask = is_kept(columns - rows, diagonal)
    return build_from_keys(self, entries.keys[mask], entries.values[mask], shape, True)


implements(aten.tril)(functools.partial(_triangle, aten.tril.default, operator.le))
implements(aten.triu)(functools.partial(_triangle, aten.triu.default, operator.ge))


@implements(aten.diagonal)
def diagonal(self: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    shape = infer_shape(aten.diagonal.default, self, offset, dim1, dim2)
    dim1, dim2 = dim1 % self.dim(), dim2 % self.dim()
    entries = entries_of(self)
    crd = entries.coordinates
    is_kept = crd[dim2] - crd[dim1] == offset
    along = crd[dim1] if offset >= 0 else crd[dim2]
    columns = [c[is_kept] for d, c in enumerate(crd) if d not in (dim1, dim2)] + [along[is_kept]]
    return build_from_coordinates(self, columns, entries.values[is_kept], shape, self.dim() == 2)


@implements(torch.Tensor.fill_diagonal_, differentiable=True)
def fill_diagonal_(self: SparseTensor, fill_value: Any, wrap: bool = False) -> SparseTensor:
    """Set the diagonal of a matrix to a number; below a tall one only with ``wrap``."""
    if self.dim() != 2 or wrap:
        raise UnsupportedError(
            "fill_diagonal_ supports only sparse matrices, without wrap; use S.setdiag(values)"
        )
    self.diagonal().fill_(fill_value)
    return self


@implements(aten.as_strided)
def as_strided(self: SparseTensor, *_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "a sparse tensor has no strides; use slices, .diagonal(), .reshape() or .to_dense()"
    )


@implements(aten.diag_embed)
def diag_embed(self: SparseTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    shape = infer_shape(aten.diag_embed.default, self, offset, dim1, dim2)
    dim1, dim2 = dim1 % len(shape), dim2 % len(shape)
    entries = entries_of(self)
    *columns, along = entries.coordinates
    for dim, shift in sorted([(dim1, max(-offset, 0)), (dim2, max(offset, 0))]):
        columns.insert(dim, along + shift)
    return build_from_coordinates(self, columns, entries.values, shape, False)


@implements(aten.flip)
def flip(self: SparseTensor, dims: Sequence[int]) -> Any:
    shape = infer_shape(aten.flip.default, self, dims)
    entries = entries_of(self)
    crd = entries.coordinates
    for dim in {dim % self.dim() for dim in dims}:
        crd[dim] = shape[dim] - 1 - crd[dim]
    return build_from_coordinates(self, crd, entries.values, shape, False)


@implements(aten.roll)
def roll(self: SparseTensor, shifts: Any, dims: Any = ()) -> Any:
    if not self.numel():  # torch ignores dims then
        return self.clone()
    shape = infer_shape(aten.roll.default, self, shifts, dims)
    shifts, dims = ([each] if isinstance(each, int) else each for each in (shifts, dims))
    if not dims:
        return view(roll(view(self, [self.numel()]), shifts, [0]), shape)
    entries = entries_of(self)
    crd = entries.coordinates
    for shift, dim in zip(shifts, dims, strict=True):
        if shape[dim]:
            crd[dim] = (crd[dim] + shift) % shape[dim]
    return build_from_coordinates(self, crd, entries.values, shape, False)


@implements(aten.constant_pad_nd)
def constant_pad_nd(self: SparseTensor, pad: Sequence[int], value: Any = 0) -> Any:
    shape = infer_shape(aten.constant_pad_nd.default, self, pad, value)
    if value != 0:
        return run_densely(aten.constant_pad_nd.default, (self, pad, value), {})
    entries = entries_of(self)
    crd = entries.coordinates
    is_kept = torch.ones_like(entries.keys, dtype=torch.bool)
    for number in range(len(pad) // 2):
        dim = self.dim() - 1 - number
        crd[dim] = crd[dim] + pad[2 * number]
        is_kept &= (crd[dim] >= 0) & (crd[dim] < shape[dim])
    return build_from_coordinates(self, [c[is_kept] for c in crd], entries.values[is_kept], shape, True)
