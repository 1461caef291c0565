"""Several tensors put together: ``cat``, ``stack``, ``block_diag``.

Along the dimension stored outermost the arrays of all are put one after the other. Along another one each is
moved to its place, which changes one array, and all are added: no two have an entry at one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.formats import as_format
from scorch._src.grad_state import are_patterns_fixed
from scorch._src.ops.fallback import densely
from scorch._src.ops.movement.shape import made_at
from scorch._src.statements.evaluate import evaluate
from scorch._src.storage.slices import in_a_row, matrices_joined, moved, outer_dim
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.entries import Shape, entries_of
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import DisableTorchFunctionSubclass

aten = torch.ops.aten


@implements(torch.cat, torch.concat, torch.concatenate)
def quick_cat(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Sparse tensors that fit together, without asking torch; everything else as torch takes it."""
    dim = args[0] if args else kwargs.get("dim", 0)
    is_plain = len(args) + len(kwargs) <= 1 and kwargs.keys() <= {"dim"} and type(dim) is int
    if is_plain and isinstance(tensors, (list, tuple)) and tensors:
        found = _like_parts(tensors, dim)
        if found is not None:
            return found
    with DisableTorchFunctionSubclass():
        return torch.cat(tensors, *args, **kwargs)


def _like_parts(tensors: Sequence[Any], dim: int) -> SparseTensor | None:
    """Tensors of one format, dtype and shape but for ``dim``, joined; None if they are not."""
    if not all([type(part) is SparseTensor for part in tensors]):
        return None
    stored = [part.storage for part in tensors]
    first = stored[0]
    form, shape, dtype = first.pattern.format, first.pattern.shape, first.values.dtype
    rank = len(shape)
    if not -rank <= dim < rank:
        return None
    dim %= rank
    length = 0
    for part in stored:
        own = part.pattern.shape
        if part.values.dtype != dtype or own[:dim] != shape[:dim] or own[dim + 1 :] != shape[dim + 1 :]:
            return None
        if part.pattern.format is not form and part.pattern.format != form:
            return None
        length += own[dim]
    return _joined(stored, dim, (*shape[:dim], length, *shape[dim + 1 :]))


@implements(aten.cat)
def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """One after the other along ``dim``; sparse unless dense ones fill most of it."""
    shells = [torch.empty(tuple(part.shape), dtype=part.dtype, device="meta") for part in tensors]
    like = aten.cat.default(shells, dim)
    shape, dim = tuple(like.shape), dim % like.dim()
    parts = [part for part in tensors if tuple(part.shape) != (0,) or len(shape) == 1]
    if _mostly_dense(parts, math.prod(shape)):
        return densely(aten.cat.default, (list(tensors), dim), {})
    sparse = [part for part in parts if isinstance(part, SparseTensor)]
    if len(sparse) == len(parts) and len({part.format for part in sparse}) == 1:
        stored = [Storage(p.storage.pattern, p.storage.values.to(like.dtype)) for p in sparse]
        found = _joined(stored, dim, shape)
        if found is not None:
            return found
    columns: list[list[torch.Tensor]] = [[] for _ in shape]
    values, start = [], 0
    for part in parts:
        crd, own = _entries_of_any(part)
        for number, column in enumerate(crd):
            columns[number].append(column + start if number == dim else column)
        values.append(own.to(like.dtype))
        start += part.shape[dim]
    first = next(part for part in tensors if isinstance(part, SparseTensor))
    return made_at(first, [torch.cat(column) for column in columns], torch.cat(values), shape, dim == 0)


def _joined(parts: Sequence[Storage], dim: int, shape: Shape) -> SparseTensor | None:
    """Tensors of one format along ``dim``; None where their entries must be moved one by one."""
    whole = matrices_joined(parts, dim, shape)
    if whole is not None:
        return SparseTensor(whole)
    if dim == outer_dim(parts[0].pattern.format):
        return SparseTensor(in_a_row(parts, shape))
    placed: list[SparseTensor] = []
    start = 0
    for part in parts:
        there = moved(part, dim, start, shape)
        if there is None:
            return None
        placed.append(SparseTensor(there))
        start += part.pattern.shape[dim]
    while len(placed) > 1:  # two and two
        pairs = [_sum(a, b) for a, b in zip(placed[::2], placed[1::2], strict=False)]
        placed = [*pairs, *(placed[-1:] if len(placed) % 2 else [])]
    return placed[0]


def _sum(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    indices = ",".join(f"i{dim}" for dim in range(a.dim()))
    found = evaluate(f"C[{indices}] = A[{indices}] + B[{indices}]", A=a, B=b, format=a.format)
    assert isinstance(found, SparseTensor)
    return found


def _mostly_dense(parts: Sequence[torch.Tensor], places: int) -> bool:
    filled = sum(part.numel() for part in parts if not isinstance(part, SparseTensor))
    return 2 * filled > places


def _entries_of_any(part: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
    if isinstance(part, SparseTensor):
        entries = entries_of(part)
        return entries.coordinates, entries.values
    is_learned = are_patterns_fixed() and (part.is_floating_point() or part.is_complex())
    is_taken = torch.ones_like(part, dtype=torch.bool) if is_learned else part  # zeros have gradients too
    crd = torch.nonzero(is_taken, as_tuple=True)
    return list(crd), part[crd]


@implements(aten.stack)
def stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    found = _stacked_rows(tensors) if dim == 0 else None
    if found is not None:
        return found
    return cat([torch.unsqueeze(part, dim) for part in tensors], dim)


def _stacked_rows(vectors: Sequence[Any]) -> SparseTensor | None:
    """Vectors of compressed entries as the rows of a csr matrix; None if they are not that, or not alike."""
    if not all([type(vector) is SparseTensor for vector in vectors]):
        return None
    stored = [vector.storage for vector in vectors]
    shape, dtype, form = stored[0].pattern.shape, stored[0].values.dtype, as_format("csr", 2)
    rows = []
    for vector in stored:
        own = vector.pattern
        if own.format.levels != form.levels[1:] or own.shape != shape or vector.values.dtype != dtype:
            return None
        row = Pattern(form, (1, *shape), (None, *own.pos), (None, *own.crd), (1, *own.counts))
        rows.append(Storage(row, vector.values))
    return _joined(rows, 0, (len(rows), *shape))


@implements(aten.block_diag)
def block_diag(tensors: Sequence[torch.Tensor]) -> Any:
    shells = [torch.empty(tuple(part.shape), dtype=part.dtype, device="meta") for part in tensors]
    like = aten.block_diag.default(shells)
    shape = tuple(like.shape)
    first = next(part for part in tensors if isinstance(part, SparseTensor))
    columns: list[list[torch.Tensor]] = [[], []]
    values: list[torch.Tensor] = []
    row = column = 0
    for part in tensors:
        matrix = part.reshape(1, -1) if part.dim() < 2 else part
        crd, stored = _entries_of_any(matrix)
        columns[0].append(crd[0] + row)
        columns[1].append(crd[1] + column)
        values.append(stored.to(like.dtype))
        row, column = row + matrix.shape[0], column + matrix.shape[1]
    return made_at(first, [torch.cat(part) for part in columns], torch.cat(values), shape, True)
