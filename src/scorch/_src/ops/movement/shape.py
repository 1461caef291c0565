"""Operations that move entries: other shapes, orders and parts.

A permutation shares all arrays: only the order of the format changes. So does a part along the dimension
stored outermost (``storage.slices``). Everything else is arithmetic on the keys or coordinates of entries
(``tensor.entries``), so that time and memory follow the entries.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.devices import shares_memory
from scorch._src.engine.execute import convert
from scorch._src.formats import Format
from scorch._src.formats.compressed import Compressed
from scorch._src.ops.fallback import densely
from scorch._src.storage.budget import check_budget
from scorch._src.storage.slices import all_of, element, inner_format, one_of, outer_dim, part
from scorch._src.storage.storage import Storage
from scorch._src.tensor.broadcast import expanded
from scorch._src.tensor.entries import Entries, Shape, entries_of, format_for, from_entries
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import IndexRangeError, UnsupportedError

aten = torch.ops.aten


def shape_after(func: Any, tensor: SparseTensor, *args: Any, **kwargs: Any) -> Shape:
    """The shape that torch gives the result, or its error."""
    shell = torch.empty(tuple(tensor.shape), dtype=tensor.storage.values.dtype, device="meta")
    try:
        return tuple(func(shell, *args, **kwargs).shape)
    except AssertionError as error:  # of a dimension, before torch 2.13
        raise IndexRangeError(f"Dimension out of range: {error}") from None


def made(tensor: SparseTensor, keys: torch.Tensor, values: torch.Tensor, shape: Shape, in_order: bool) -> Any:
    """A tensor of other entries, stored as ``tensor`` is as far as that fits."""
    return from_entries(Entries(keys, values, shape), format_for(tensor, shape), in_order)


def made_at(
    tensor: SparseTensor,
    columns: Sequence[torch.Tensor],
    values: torch.Tensor,
    shape: Shape,
    in_order: bool,
) -> Any:
    """The same from coordinates in each dimension."""
    return from_entries(Entries(None, values, shape, columns), format_for(tensor, shape), in_order)


@implements(aten.zeros_like)
def zeros_like(self: SparseTensor, *, dtype: torch.dtype | None = None, **_: Any) -> SparseTensor:
    """A tensor of the same shape and format without entries."""
    values = torch.zeros(0, dtype=dtype or self.storage.values.dtype, device=self.storage.device)
    empty = Entries(torch.zeros(0, dtype=torch.int64, device=self.storage.device), values, tuple(self.shape))
    return from_entries(empty, self.format)


# the same entries in another shape -------------------------------------------------------------------


@implements(aten.view.default, aten._unsafe_view, aten.reshape)
def view(self: SparseTensor, size: Sequence[int]) -> Any:
    shape = shape_after(aten.view.default, self, size)
    if shape == tuple(self.shape):
        return SparseTensor(self.storage)
    if not shape:
        return self.to_dense().view(())
    entries = entries_of(self)
    return made(self, entries.keys, entries.values, shape, True)


@implements(aten._reshape_alias)
def reshape_alias(self: SparseTensor, size: Sequence[int], stride: Any) -> Any:
    return view(self, size)


@implements(aten.unsqueeze)
def unsqueeze(self: SparseTensor, dim: int) -> Any:
    return view(self, shape_after(aten.unsqueeze.default, self, dim))


@implements(aten.squeeze.default)
def squeeze(self: SparseTensor) -> Any:
    return view(self, shape_after(aten.squeeze.default, self))


@implements(aten.squeeze.dim, aten.squeeze.dims)
def squeeze_dims(self: SparseTensor, dim: Any) -> Any:
    func = aten.squeeze.dim if isinstance(dim, int) else aten.squeeze.dims
    return view(self, shape_after(func, self, dim))


@implements(aten.permute)
def permute(self: SparseTensor, dims: Sequence[int]) -> SparseTensor:
    """The same arrays; a dimension goes to another place."""
    pattern = self.storage.pattern
    rank = len(pattern.shape)
    order = tuple(dim % rank if -rank <= dim < rank else dim for dim in dims)
    if sorted(order) != list(range(rank)):
        shape_after(aten.permute.default, self, dims)  # says what is wrong
    shape = tuple(pattern.shape[dim] for dim in order)
    turned = pattern.carried(_turned(pattern.format, order), shape, len(pattern.format))
    return SparseTensor(Storage(turned, self.storage.values))


@functools.lru_cache(maxsize=256)
def _turned(form: Format, order: tuple[int, ...]) -> Format:
    """``form`` of a tensor whose dimension ``order[d]`` becomes its dimension d."""
    place = {old: new for new, old in enumerate(order)}
    return Format(
        form.levels,
        order=[place[dim] for dim in form.order],
        blocks={place[dim]: size for dim, size in form.blocks},
        dims=len(order),
    )


@implements(aten.transpose.int)
def transpose(self: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    order = list(range(len(self.storage.pattern.shape)))
    try:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    except IndexError:
        shape_after(aten.transpose.int, self, dim0, dim1)  # says what is wrong
    return permute(self, order)


@implements(aten.t)
def t(self: SparseTensor) -> SparseTensor:
    rank = len(self.storage.pattern.shape)
    if rank > 2:
        shape_after(aten.t.default, self)  # says what is wrong
    return permute(self, list(range(rank))[::-1])


@implements(aten.expand)
def expand(self: SparseTensor, size: Sequence[int], *, implicit: bool = False) -> Any:
    shape = shape_after(aten.expand.default, self, size)
    if shape == tuple(self.shape):
        return SparseTensor(self.storage)
    wide = expanded(entries_of(self), shape)
    return made(self, wide.keys, wide.values, shape, True)


@implements(aten.repeat)
def repeat(self: SparseTensor, repeats: Sequence[int]) -> Any:
    """Each dimension as one of copies and one of coordinates, broadcast and joined."""
    shape = shape_after(aten.repeat.default, self, repeats)
    own = (1,) * (len(repeats) - self.dim()) + tuple(self.shape)
    entries = entries_of(self)
    paired = tuple(size for pair in zip((1,) * len(own), own, strict=True) for size in pair)
    wanted = tuple(size for pair in zip(repeats, own, strict=True) for size in pair)
    wide = expanded(Entries(entries.keys, entries.values, paired), wanted)
    is_copy = not shares_memory(wide.values, self.storage.values)
    return made(self, wide.keys, wide.values if is_copy else wide.values.clone(), shape, True)


# parts -----------------------------------------------------------------------------------------------


@implements(aten.slice.Tensor)
def slice_(
    self: SparseTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    shape = shape_after(aten.slice.Tensor, self, dim, start, end, step)
    dim %= self.dim()
    if shape == tuple(self.shape):
        return SparseTensor(self.storage)
    first = slice(start, end, step).indices(self.shape[dim])[0]
    if step == 1 and dim == outer_dim(self.format):
        return SparseTensor(part(self.storage, first, first + shape[dim]))
    entries = entries_of(self)
    crd = entries.coordinates
    offset = crd[dim] - first
    kept = (offset >= 0) & (offset < shape[dim] * step) & (offset % step == 0)
    crd[dim] = offset // step
    return made_at(self, [c[kept] for c in crd], entries.values[kept], shape, True)


@implements(aten.select.int)
def select(self: SparseTensor, dim: int, index: int) -> Any:
    whole = self.storage.pattern.shape
    if not -len(whole) <= dim < len(whole) or not -whole[dim] <= index < whole[dim]:
        shape_after(aten.select.int, self, dim, index)  # says what is wrong
    dim %= len(whole)
    index %= whole[dim]
    shape = (*whole[:dim], *whole[dim + 1 :])
    if not shape and not self.format.is_blocked:
        return element(self.storage, (index,))
    if shape and dim == outer_dim(self.format) and not inner_format(self.format).is_dense:
        found = one_of(self.storage, index)
        if found is not None:
            return SparseTensor(found)
        nothing = (
            torch.zeros(0, dtype=torch.int64, device=self.storage.device),
            self.storage.values.new_zeros(0),
        )
        return from_entries(Entries(*nothing, shape), inner_format(self.format))
    entries = entries_of(self)
    crd = entries.coordinates
    kept = crd.pop(dim) == index
    if not shape:
        return entries.values[kept].sum(dtype=entries.values.dtype)
    return made_at(self, [c[kept] for c in crd], entries.values[kept], shape, True)


@implements(aten.unbind)
def unbind(self: SparseTensor, dim: int = 0) -> list[Any]:
    """Every part along ``dim``; the entries are gone through once for all of them."""
    if not -self.dim() <= dim < self.dim():
        aten.unbind(torch.empty(tuple(self.shape), device="meta"), dim)  # says what is wrong
    dim %= self.dim()
    shape = tuple(size for d, size in enumerate(self.shape) if d != dim)
    if not shape:
        entries = entries_of(self)
        check_budget(64 * self.shape[0], f"a tensor for each of {self.shape[0]} elements", "use .values()")
        dense = torch.zeros(self.shape[0], dtype=entries.values.dtype, device=entries.values.device)
        return list(dense.index_put_((entries.keys,), entries.values).unbind())
    storage: Any = self.storage
    if dim != outer_dim(self.format) or inner_format(self.format).is_dense:
        inside = format_for(self, shape)
        order = (dim, *(d + (d >= dim) for d in inside.order))
        storage = convert(storage, Format((Compressed(), *inside.levels), order=order))
    inner = inner_format(storage.pattern.format)
    nothing = torch.zeros(0, dtype=torch.int64, device=self.storage.device), self.storage.values.new_zeros(0)
    empty = from_entries(Entries(*nothing, shape), inner).storage
    return [SparseTensor(found or Storage(empty.pattern, empty.values)) for found in all_of(storage)]


@implements(aten.split.Tensor)
def split(self: SparseTensor, split_size: int, dim: int = 0) -> list[Any]:
    shell = torch.empty(self.shape[dim], device="meta")
    return split_with_sizes(self, [part.shape[0] for part in aten.split.Tensor(shell, split_size)], dim)


@implements(aten.split_with_sizes)
def split_with_sizes(self: SparseTensor, split_sizes: Sequence[int], dim: int = 0) -> list[Any]:
    aten.split_with_sizes(torch.empty(tuple(self.shape), device="meta"), split_sizes, dim)
    found, start = [], 0
    for size in split_sizes:
        found.append(slice_(self, dim, start, start + size))
        start += size
    return found


@implements(aten.tril)
def tril(self: SparseTensor, diagonal: int = 0) -> Any:
    return _triangle(aten.tril.default, self, diagonal, lambda rows, columns: columns - rows <= diagonal)


@implements(aten.triu)
def triu(self: SparseTensor, diagonal: int = 0) -> Any:
    return _triangle(aten.triu.default, self, diagonal, lambda rows, columns: columns - rows >= diagonal)


def _triangle(func: Any, self: SparseTensor, diagonal: int, is_kept: Any) -> Any:
    shape = shape_after(func, self, diagonal)
    entries = entries_of(self)
    crd = entries.coordinates
    kept = is_kept(crd[-2], crd[-1])
    return made(self, entries.keys[kept], entries.values[kept], shape, True)


@implements(aten.diagonal)
def diagonal(self: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    shape = shape_after(aten.diagonal.default, self, offset, dim1, dim2)
    dim1, dim2 = dim1 % self.dim(), dim2 % self.dim()
    entries = entries_of(self)
    crd = entries.coordinates
    kept = crd[dim2] - crd[dim1] == offset
    along = crd[dim1] if offset >= 0 else crd[dim2]
    columns = [c[kept] for d, c in enumerate(crd) if d not in (dim1, dim2)] + [along[kept]]
    return made_at(self, columns, entries.values[kept], shape, self.dim() == 2)


@implements(torch.Tensor.fill_diagonal_, differentiable=True)
def fill_diagonal_(self: SparseTensor, fill_value: Any, wrap: bool = False) -> SparseTensor:
    """The diagonal of a matrix set to a number; below a tall one it goes on only with ``wrap``."""
    if self.dim() != 2 or wrap:
        raise UnsupportedError("fill_diagonal_ works on sparse matrices without wrap; use S.setdiag(values)")
    self.diagonal().fill_(fill_value)
    return self


@implements(aten.as_strided)
def as_strided(self: SparseTensor, *_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "a sparse tensor has no strides; use slices, .diagonal(), .reshape() or .to_dense()"
    )


@implements(aten.diag_embed)
def diag_embed(self: SparseTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    shape = shape_after(aten.diag_embed.default, self, offset, dim1, dim2)
    dim1, dim2 = dim1 % len(shape), dim2 % len(shape)
    entries = entries_of(self)
    *outer, along = entries.coordinates
    columns: list[torch.Tensor] = []
    rest = iter(outer)
    for dim in range(len(shape)):
        if dim == dim1:
            columns.append(along + max(-offset, 0))
        elif dim == dim2:
            columns.append(along + max(offset, 0))
        else:
            columns.append(next(rest))
    return made_at(self, columns, entries.values, shape, False)


# other places ----------------------------------------------------------------------------------------


@implements(aten.flip)
def flip(self: SparseTensor, dims: Sequence[int]) -> Any:
    shape = shape_after(aten.flip.default, self, dims)
    entries = entries_of(self)
    crd = entries.coordinates
    for dim in {dim % self.dim() for dim in dims}:
        crd[dim] = shape[dim] - 1 - crd[dim]
    return made_at(self, crd, entries.values, shape, False)


@implements(aten.roll)
def roll(self: SparseTensor, shifts: Any, dims: Any = ()) -> Any:
    if not self.numel():  # torch does not look at dims then
        return self.clone()
    shape = shape_after(aten.roll.default, self, shifts, dims)
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [dims] if isinstance(dims, int) else list(dims)
    if not along:
        flat = view(self, [self.numel()])
        return view(roll(flat, moves, [0]), shape)
    entries = entries_of(self)
    crd = entries.coordinates
    for shift, dim in zip(moves, along, strict=True):
        if shape[dim]:
            crd[dim] = (crd[dim] + shift) % shape[dim]
    return made_at(self, crd, entries.values, shape, False)


@implements(aten.constant_pad_nd)
def constant_pad_nd(self: SparseTensor, pad: Sequence[int], value: Any = 0) -> Any:
    shape = shape_after(aten.constant_pad_nd.default, self, pad, value)
    if value != 0:
        return densely(aten.constant_pad_nd.default, (self, pad, value), {})
    entries = entries_of(self)
    crd = entries.coordinates
    kept = torch.ones_like(entries.keys, dtype=torch.bool)
    for number in range(len(pad) // 2):
        dim = self.dim() - 1 - number
        crd[dim] = crd[dim] + pad[2 * number]
        kept &= (crd[dim] >= 0) & (crd[dim] < shape[dim])
    return made_at(self, [c[kept] for c in crd], entries.values[kept], shape, True)
