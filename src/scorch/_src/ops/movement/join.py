"""Concatenate tensors: ``cat``, ``stack``, ``block_diag``.

Along the dimension stored outermost the arrays are concatenated. Along another one each tensor is moved to
its offset, which changes one array, and all are added: no two have an entry at one position.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.devices import HOST
from scorch._src.formats import as_format
from scorch._src.ops.fallback import run_densely, run_torch
from scorch._src.ops.movement.shape import build_from_coordinates, split_entries
from scorch._src.statements.evaluate import evaluate
from scorch._src.storage.slices import concat_matrices, concat_outer, outer_dim, shift
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.entries import Shape
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import CallError, ShapeError

aten = torch.ops.aten
PYG_BATCHES = "torch_geometric.data.collate"
MAX_FRAMES_OF_CAT = 8  # between PyG's call of torch.cat and ours


@implements(torch.cat, torch.concat, torch.concatenate)
def cat_by_fast_path(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Concatenate matching sparse tensors without torch's dispatcher; everything else as torch does."""
    if PYG_BATCHES in sys.modules:
        _refuse_batch_of_matrices()
    dim = args[0] if args else kwargs.get("dim", 0)
    is_plain = len(args) + len(kwargs) <= 1 and kwargs.keys() <= {"dim"} and type(dim) is int
    if is_plain and isinstance(tensors, (list, tuple)) and tensors:
        result = _join_if_alike(tensors, dim)
        if result is not None:
            return result
    return run_torch(torch.cat, tensors, *args, **kwargs)


def _refuse_batch_of_matrices() -> None:
    """Refuse to stack the adjacency matrices of a batch, which PyG takes for features."""
    frame: Any = sys._getframe(2)
    for _ in range(MAX_FRAMES_OF_CAT):
        if frame is None:
            return
        if frame.f_globals.get("__name__") == PYG_BATCHES:
            key, caller = str(frame.f_locals.get("key")), frame.f_back.f_globals.get("__name__")
            if ("adj" in key or "edge_index" in key) and caller == PYG_BATCHES:
                raise CallError(
                    f"PyG does not batch the SparseTensor {key!r} as an adjacency matrix, but as features; "
                    "call scorch.compat.pyg.install() first, in every process that batches graphs"
                )
            return
        frame = frame.f_back


def _join_if_alike(tensors: Sequence[Any], dim: int) -> SparseTensor | None:
    """Join tensors of one format, dtype and shape but for ``dim``; None if they are not."""
    if not all([type(tensor) is SparseTensor for tensor in tensors]):
        return None
    storages = [tensor.storage for tensor in tensors]
    first = storages[0]
    form, shape, dtype = first.pattern.format, first.pattern.shape, first.values.dtype
    rank = len(shape)
    if not -rank <= dim < rank:
        return None
    dim %= rank
    length = 0
    for storage in storages:
        part_shape = storage.pattern.shape
        is_alike = part_shape[:dim] == shape[:dim] and part_shape[dim + 1 :] == shape[dim + 1 :]
        if storage.values.dtype != dtype or not is_alike:
            return None
        if storage.pattern.format is not form and storage.pattern.format != form:
            return None
        length += part_shape[dim]
    return _join_storages(storages, dim, (*shape[:dim], length, *shape[dim + 1 :]))


@implements(aten.cat)
def cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """Concatenate along ``dim``; sparse unless dense tensors fill most of it."""
    like = _joined_shell(tensors, dim)
    shape, dim = tuple(like.shape), dim % like.dim()
    nonempty = [tensor for tensor in tensors if tuple(tensor.shape) != (0,) or len(shape) == 1]
    sparse = [tensor for tensor in nonempty if isinstance(tensor, SparseTensor)]
    if sum(tensor.numel() for tensor in sparse) < math.prod(shape) / 2:  # most of it is dense
        return run_densely(aten.cat.default, (list(tensors), dim), {})
    if len(sparse) == len(nonempty) and len({tensor.format for tensor in sparse}) == 1:
        stored = [Storage(p.storage.pattern, p.storage.values.to(like.dtype)) for p in sparse]
        result = _join_storages(stored, dim, shape)
        if result is not None:
            return result
    return _place(tensors, nonempty, (dim,), like, dim == 0)


def _joined_shell(tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """Return a meta tensor like the result; of meta tensors, torch would import its compiler."""
    nonempty = [tensor for tensor in tensors if tuple(tensor.shape) != (0,)] or tensors
    rank = nonempty[0].dim() if nonempty else 0
    shapes = [list(tensor.shape) for tensor in nonempty]
    if -rank <= dim < rank and all(len(shape) == rank for shape in shapes):
        length = sum(shape.pop(dim) for shape in shapes)
        if all(shape == shapes[0] for shape in shapes):
            shapes[0].insert(dim % rank, length)
            return torch.empty(shapes[0], dtype=_common_dtype(tensors), device="meta")
    stand_ins = [torch.zeros((), dtype=tensor.dtype, device=HOST).expand(tensor.shape) for tensor in tensors]
    aten.cat.default(stand_ins, dim)  # raises before it allocates anything
    raise AssertionError(f"cannot concatenate shapes {[tuple(tensor.shape) for tensor in tensors]}")


def _common_dtype(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """Return the dtype of tensors that are joined, to which 0-d tensors contribute as much as others."""
    return functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])


def _join_storages(parts: Sequence[Storage], dim: int, shape: Shape) -> SparseTensor | None:
    """Join tensors of one format along ``dim``; None where their entries must be moved one by one."""
    joined = concat_matrices(parts, dim, shape)
    if joined is not None:
        return SparseTensor(joined)
    if dim == outer_dim(parts[0].pattern.format):
        return SparseTensor(concat_outer(parts, shape))
    shifted: list[SparseTensor] = []
    start = 0
    for part in parts:
        moved_part = shift(part, dim, start, shape)
        if moved_part is None:
            return None
        shifted.append(SparseTensor(moved_part))
        start += part.pattern.shape[dim]
    while len(shifted) > 1:  # pairwise
        sums = [_sum(a, b) for a, b in zip(shifted[::2], shifted[1::2], strict=False)]
        shifted = [*sums, *(shifted[-1:] if len(shifted) % 2 else [])]
    return shifted[0]


def _sum(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    indices = ",".join(f"i{dim}" for dim in range(a.dim()))
    total = evaluate(f"C[{indices}] = A[{indices}] + B[{indices}]", A=a, B=b, format=a.format)
    assert isinstance(total, SparseTensor)
    return total


@implements(aten.stack)
def stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    result = _stack_vectors(tensors) if dim == 0 else None
    if result is not None:
        return result
    return cat([torch.unsqueeze(tensor, dim) for tensor in tensors], dim)


def _stack_vectors(vectors: Sequence[Any]) -> SparseTensor | None:
    """Stack compressed vectors as the rows of a csr matrix; None if they are not that, or not alike."""
    if not all([type(vector) is SparseTensor for vector in vectors]):
        return None
    storages = [vector.storage for vector in vectors]
    shape, dtype, form = storages[0].pattern.shape, storages[0].values.dtype, as_format("csr", 2)
    rows = []
    for vector in storages:
        pattern = vector.pattern
        if pattern.format.levels != form.levels[1:] or pattern.shape != shape or vector.values.dtype != dtype:
            return None
        row = Pattern(form, (1, *shape), (None, *pattern.pos), (None, *pattern.crd), (1, *pattern.counts))
        rows.append(Storage(row, vector.values))
    return _join_storages(rows, 0, (len(rows), *shape))


@implements(aten.block_diag)
def block_diag(tensors: Sequence[torch.Tensor]) -> Any:
    for position, tensor in enumerate(tensors):
        if tensor.dim() > 2:
            raise ShapeError(
                f"block_diag: tensors must have at most 2 dimensions, but tensor {position} has shape "
                f"{tuple(tensor.shape)}"
            )
    matrices = [tensor.reshape(1, -1) if tensor.dim() < 2 else tensor for tensor in tensors]
    shape = [sum(sizes) for sizes in zip(*[matrix.shape for matrix in matrices], strict=True)]
    like = torch.empty(shape, dtype=_common_dtype(tensors), device="meta")
    return _place(tensors, matrices, (0, 1), like, True)


def _place(tensors: Any, parts: Any, dims: Sequence[int], like: torch.Tensor, in_order: bool) -> Any:
    """Build a tensor like ``like`` of all parts, each of which begins in ``dims`` where the last one ends.

    It has the format of the first sparse one of ``tensors``.
    """
    columns: list[list[torch.Tensor]] = [[] for _ in like.shape]
    values, start = [], dict.fromkeys(dims, 0)
    for part in parts:
        crd, stored = split_entries(part)
        for dim, column in enumerate(crd):
            columns[dim].append(column + start[dim] if dim in start else column)
        values.append(stored.to(like.dtype))
        start = {dim: begin + part.shape[dim] for dim, begin in start.items()}
    first = next(tensor for tensor in tensors if isinstance(tensor, SparseTensor))
    joined = [torch.cat(column) for column in columns]
    return build_from_coordinates(first, joined, torch.cat(values), tuple(like.shape), in_order)
