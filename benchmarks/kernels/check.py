"""Whether a contestant computed the right thing, before it is timed.

Results come in many layouts; those of sparse kernels are compared as places and values, where a place
that is not stored counts as zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import scorch

TOLERANCE = 3e-4  # of the largest value of the reference: sums of float32 in another order


@dataclass(frozen=True)
class Entries:
    """A sparse result: sorted places in the dense tensor, and the values there."""

    keys: np.ndarray
    values: np.ndarray

    @staticmethod
    def sorted(keys: np.ndarray, values: np.ndarray) -> Entries:
        if not bool(np.all(keys[1:] > keys[:-1])):
            order = np.argsort(keys, kind="stable")
            keys, values = keys[order], values[order]
        return Entries(keys, values)


@dataclass(frozen=True)
class Csr:
    """A result given as CSR arrays."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Coordinates:
    """A result given as coordinates, one row a dimension, that may have dense dimensions behind."""

    coordinates: torch.Tensor
    values: torch.Tensor
    shape: tuple[int, ...]


Reference = Entries | np.ndarray


def difference(found: Any, reference: Reference) -> str | None:
    """What is wrong with a result, or None."""
    if isinstance(reference, np.ndarray):
        dense = to_dense(found)
        if dense.shape != reference.shape:
            return f"shape {dense.shape} instead of {reference.shape}"
        return _distance(np.abs(dense - reference).max(initial=0.0), reference)
    entries = to_entries(found)
    if np.array_equal(entries.keys, reference.keys):
        return _distance(np.abs(entries.values - reference.values).max(initial=0.0), reference.values)
    keys = np.union1d(entries.keys, reference.keys)
    gap = np.zeros(len(keys))
    np.add.at(gap, np.searchsorted(keys, entries.keys), entries.values)
    np.subtract.at(gap, np.searchsorted(keys, reference.keys), reference.values)
    return _distance(np.abs(gap).max(initial=0.0), reference.values)


def _distance(distance: float, reference: np.ndarray) -> str | None:
    scale = np.abs(reference).max(initial=0.0)
    if not distance <= TOLERANCE * scale + 1e-30:  # also where it is not a number
        return f"wrong by {distance:.1e}, where the largest value is {scale:.1e}"
    return None


def to_dense(found: Any) -> np.ndarray:
    """A dense result as a NumPy array."""
    if isinstance(found, scorch.SparseTensor):
        found = found.to_dense()
    if isinstance(found, torch.Tensor):
        found = found.to_dense() if found.layout != torch.strided else found
        return found.numpy()
    return np.asarray(found)


def to_entries(found: Any) -> Entries:
    """A result in any layout as places and values."""
    if isinstance(found, scorch.SparseTensor):
        found = found.to_torch()
    if hasattr(found, "tocsr"):  # SciPy's
        if found.format not in ("csr", "csc"):
            found = found.tocsr()
        outer, inner = np.repeat(np.arange(len(found.indptr) - 1), np.diff(found.indptr)), found.indices
        rows, columns = (outer, inner) if found.format == "csr" else (inner, outer)
        return Entries.sorted(rows.astype(np.int64) * found.shape[1] + columns, found.data)
    if isinstance(found, Csr):
        rows = np.repeat(np.arange(len(found.indptr) - 1), np.diff(found.indptr))
        return Entries.sorted(rows * found.shape[1] + found.indices, found.data)
    if isinstance(found, np.ndarray):
        found = torch.from_numpy(found)
    if isinstance(found, Coordinates):
        return _from_coordinates(found.coordinates, found.values, found.shape)
    if found.layout == torch.sparse_coo:
        return _from_coordinates(found._indices(), found._values(), tuple(found.shape))
    if found.layout == torch.strided:
        flat = found.reshape(-1)
        keys = flat.nonzero().ravel()
        return Entries(keys.numpy(), flat[keys].numpy())
    by_row = found.layout == torch.sparse_csr
    pointers, inner = (
        (found.crow_indices(), found.col_indices()) if by_row else (found.ccol_indices(), found.row_indices())
    )
    outer = torch.repeat_interleave(torch.arange(len(pointers) - 1), pointers.diff())
    rows, columns = (outer, inner) if by_row else (inner, outer)
    return Entries.sorted((rows.long() * found.shape[1] + columns).numpy(), found.values().numpy())


def _from_coordinates(coordinates: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]) -> Entries:
    keys = torch.zeros(coordinates.shape[1], dtype=torch.int64)
    for row, size in zip(coordinates, shape, strict=False):
        keys = keys * size + row
    if values.dim() > 1:  # dense dimensions behind the sparse ones
        width = values[0].numel() if len(values) else 1
        keys = (keys[:, None] * width + torch.arange(width)).reshape(-1)
        values = values.reshape(-1)
    return Entries.sorted(keys.numpy(), values.numpy())
