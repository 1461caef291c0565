"""The entries of a sparse tensor as two lists, for operations that move entries instead of computing.

The position of an entry is one number, its *key*: the index in the flattened dense tensor, which fits
in 64 bits because torch numbers elements so. Reshaping leaves keys as they are, slices and permutations are
arithmetic on them, and two patterns are united or intersected as sorted lists of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.sort_entries import stable_sort
from scorch._src.engine.execute import convert
from scorch._src.formats import Format, as_format
from scorch._src.storage.coordinates import coordinates_of, keys_of
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.build import from_coordinates, index_dtype
from scorch._src.tensor.sparse_tensor import SparseTensor

Shape = tuple[int, ...]


class Entries:
    """``values`` at the positions ``keys``, which increase, of a tensor of ``shape``.

    They are built from keys or from ``columns``, the coordinates in each dimension; the other is computed on
    first use.
    """

    def __init__(
        self,
        keys: torch.Tensor | None,
        values: torch.Tensor,
        shape: Shape,
        columns: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.values = values
        self.shape = shape
        self._keys = keys
        self._columns = columns

    @property
    def keys(self) -> torch.Tensor:
        if self._keys is None:
            assert self._columns is not None
            self._keys = keys_of(self._columns, self.shape, self.values.device)
        return self._keys

    @property
    def coordinates(self) -> list[torch.Tensor]:
        """The coordinates of all entries, by dimension."""
        if self._columns is None:
            self._columns = coordinates_of(self.keys, self.shape)
        return list(self._columns)

    def sorted(self) -> Entries:
        """Return the same entries sorted by position."""
        keys, order = stable_sort(self.keys)
        columns = None if self._columns is None else [column[order] for column in self._columns]
        return Entries(keys, self.values[order], self.shape, columns)

    def at(self, keys: torch.Tensor) -> torch.Tensor:
        """Return the values at the positions ``keys``, zero where nothing is stored."""
        return self.find(keys)[0]

    def find(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values at ``keys`` as ``at`` does, and whether something is stored there."""
        if not self.keys.numel():
            return self.values.new_zeros(keys.shape), torch.zeros_like(keys, dtype=torch.bool)
        place = torch.searchsorted(self.keys, keys).clamp_(max=self.keys.numel() - 1)
        stored = self.keys[place] == keys
        return torch.where(stored, self.values[place], self.values.new_zeros(())), stored


def as_sparse(tensor: SparseTensor | torch.Tensor) -> SparseTensor:
    """Return a tensor that is sparse, which its type does not say."""
    assert isinstance(tensor, SparseTensor)
    return tensor


def stored_as(storage: Storage, form: Format) -> Storage:
    """Convert a storage to a format that is not dense."""
    converted = convert(storage, form)
    assert isinstance(converted, Storage)
    return converted


def number_entries(pattern: Pattern, begin: int = 0) -> SparseTensor:
    """Return the tensor on ``pattern`` whose values are the positions of its entries, from ``begin``."""
    return SparseTensor(Storage(pattern, torch.arange(begin, begin + pattern.size, device=pattern.device)))


def entries_of(tensor: SparseTensor) -> Entries:
    """Return the stored entries sorted by position."""
    shape = tensor.storage.pattern.shape
    coo = stored_as(tensor.storage, as_format("coo", len(shape)))
    crd = [array.to(torch.int64) for array in coo.pattern.crd if array is not None]
    return Entries(None, coo.values.detach(), shape, crd)


def from_entries(entries: Entries, form: Format, in_order: bool = True) -> SparseTensor:
    """Return the tensor with these entries; sort them and sum repeats unless they are ``in_order``."""
    shape = entries.shape
    if not in_order:
        entries = entries.sorted()
        if bool((entries.keys[1:] == entries.keys[:-1]).any()):
            return as_sparse(from_coordinates(entries.coordinates, entries.values, shape, form))
    values, count = entries.values, entries.values.numel()
    dtype = index_dtype(shape, [count])
    crd = tuple(column.to(dtype) for column in entries.coordinates)
    pos = torch.tensor([0, count], dtype=dtype, device=values.device)
    is_vector = len(form) == 1 and form.levels[0].has_coordinates  # which has the same arrays
    listed = form if is_vector else as_format("coo", len(shape))
    pattern = Pattern(listed, shape, (pos, *(None,) * (len(crd) - 1)), crd, (count,) * len(crd))
    return SparseTensor(stored_as(Storage(pattern, values.contiguous()), form))


def format_for(tensor: SparseTensor, shape: Shape) -> Format:
    """Return the format of a result of ``shape`` with the entries of ``tensor``: its own where that fits."""
    form = tensor.format
    if form.dims == len(shape) and not form.is_blocked:
        return form
    if form.is_list or len(shape) > 2:
        return as_format("coo" if form.is_list else "csf", len(shape))
    return as_format("csr" if len(shape) == 2 else "s", len(shape))


def united(tensors: Sequence[Entries]) -> torch.Tensor:
    """Return the union of the keys of several tensors of one shape."""
    first, *others = (tensor.keys for tensor in tensors)
    if all(other is first for other in others):
        return first
    keys: torch.Tensor = torch.unique(torch.cat([first, *others]))
    return keys


def common(tensors: Sequence[Entries]) -> torch.Tensor:
    """Return the intersection of the keys of several tensors of one shape."""
    first, *others = (tensor.keys for tensor in tensors)
    for other in others:
        if other is not first:
            first = first[torch.isin(first, other, assume_unique=True)]
    return first
