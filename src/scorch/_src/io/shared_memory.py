"""The arrays of a sparse tensor in one piece of shared memory, which another process gets as a whole.

torch hands over every tensor with an open file of its own, which takes time, and a process may have only so
many. A batch that a worker of a data loader made is one piece, however many arrays it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.devices import HOST, shares_memory
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import new_shared_storage
from scorch.errors import FileError

ALIGNED = 64  # bytes; each array begins at a multiple

Piece = tuple[torch.dtype, int, int]  # of an array: dtype, where it begins in bytes, number of elements


def packed(tensor: SparseTensor) -> SparseTensor:
    """A copy of ``tensor`` whose arrays lie one after the other in shared memory."""
    pattern = tensor.storage.pattern
    arrays = (*pattern.entry_arrays, tensor.storage.values)
    pieces: list[Piece] = []
    size = 0
    for array in arrays:
        pieces.append((array.dtype, size, array.numel()))
        size += -(-array.numel() * array.element_size() // ALIGNED) * ALIGNED
    memory = torch.empty(0, dtype=torch.uint8, device=HOST).set_(new_shared_storage(size, device=HOST))
    copies = [_cut(memory, piece) for piece in pieces]
    for array, copied in zip(arrays, copies, strict=True):
        copied.copy_(array)
    pos, crd, values = _by_level(pattern, copies)
    own = Pattern(pattern.format, pattern.shape, pos, crd, pattern.counts)
    return SparseTensor(Storage(own, values))


def pieces_of(storage: Storage) -> tuple[torch.Tensor, list[Piece]] | None:
    """The one piece of shared memory that all arrays lie in, and where; None if there is none."""
    arrays = (*storage.pattern.entry_arrays, storage.values)
    memory = arrays[-1].untyped_storage()
    if len(arrays) < 2 or not memory.is_shared():
        return None
    if not all(shares_memory(array, arrays[-1]) for array in arrays):
        return None
    pieces = [(a.dtype, int(a.storage_offset()) * a.element_size(), a.numel()) for a in arrays]
    return torch.empty(0, dtype=torch.uint8, device=HOST).set_(memory), pieces


def cut(memory: torch.Tensor, pieces: Sequence[Piece]) -> list[torch.Tensor]:
    """The arrays in ``memory``, if they lie inside it."""
    for dtype, begin, count in pieces:
        is_piece = isinstance(dtype, torch.dtype) and type(begin) is type(count) is int
        is_inside = is_piece and 0 <= begin <= begin + count * dtype.itemsize <= memory.numel()
        if memory.dtype != torch.uint8 or memory.dim() != 1 or not is_inside or begin % dtype.itemsize:
            raise FileError(
                "an array of a sparse tensor does not lie in the memory that it is said to lie in"
            )
    return [_cut(memory, piece) for piece in pieces]


def _cut(memory: torch.Tensor, piece: Piece) -> torch.Tensor:
    dtype, begin, count = piece
    return memory[begin : begin + count * dtype.itemsize].view(dtype)


def _by_level(pattern: Pattern, arrays: Sequence[torch.Tensor]) -> tuple[Any, Any, torch.Tensor]:
    """Arrays in the order of kernels as ``pos``, ``crd`` and values."""
    given = iter(arrays)
    levels = [
        tuple(None if kept is None else next(given) for kept in level)
        for level in zip(pattern.pos, pattern.crd, strict=True)
    ]
    return tuple(pos for pos, _ in levels), tuple(crd for _, crd in levels), next(given)
