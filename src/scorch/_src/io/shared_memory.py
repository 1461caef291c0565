"""The arrays of a sparse tensor in one block of shared memory, which is sent to another process as a whole.

torch sends every tensor with an open file of its own, which takes time, and processes are limited in open
files. A batch of a data loader's worker is one block, however many arrays it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.devices import HOST, shares_memory
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.flatten import arrays_by_level
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import new_shared_storage
from scorch.errors import FileError

ALIGNMENT_BYTES = 64  # each array begins at a multiple

Piece = tuple[torch.dtype, int, int]  # of an array: dtype, where it begins in bytes, number of elements


def pack_shared(tensor: SparseTensor) -> SparseTensor:
    """Copy ``tensor`` so that its arrays lie one after the other in shared memory."""
    pattern = tensor.storage.pattern
    arrays = (*pattern.entry_arrays, tensor.storage.values)
    pieces: list[Piece] = []
    size = 0
    for array in arrays:
        pieces.append((array.dtype, size, array.numel()))
        size += -(-array.numel() * array.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    memory = torch.empty(0, dtype=torch.uint8, device=HOST).set_(new_shared_storage(size, device=HOST))
    copies = [_split_piece(memory, piece) for piece in pieces]
    for array, target in zip(arrays, copies, strict=True):
        target.copy_(array)
    by_level = arrays_by_level(pattern.format, copies[:-1])
    packed_pattern = Pattern(pattern.format, pattern.shape, *by_level, pattern.counts)
    return SparseTensor(Storage(packed_pattern, copies[-1]))


def find_pieces(storage: Storage) -> tuple[torch.Tensor, list[Piece]] | None:
    """Return the block of shared memory that all arrays lie in, and where; None if there is none."""
    arrays = (*storage.pattern.entry_arrays, storage.values)
    memory = arrays[-1].untyped_storage()
    if len(arrays) < 2 or not memory.is_shared():
        return None
    if not all(shares_memory(array, arrays[-1]) for array in arrays):
        return None
    pieces = [(a.dtype, int(a.storage_offset()) * a.element_size(), a.numel()) for a in arrays]
    return torch.empty(0, dtype=torch.uint8, device=HOST).set_(memory), pieces


def split_memory(memory: torch.Tensor, pieces: Sequence[Piece]) -> list[torch.Tensor]:
    """Return the arrays in ``memory``, after checking that they lie inside it."""
    for dtype, begin, count in pieces:
        is_piece = isinstance(dtype, torch.dtype) and type(begin) is type(count) is int
        is_inside = is_piece and 0 <= begin <= begin + count * dtype.itemsize <= memory.numel()
        if memory.dtype != torch.uint8 or memory.dim() != 1 or not is_inside or begin % dtype.itemsize:
            raise FileError("an array of a sparse tensor lies outside its shared memory")
    return [_split_piece(memory, piece) for piece in pieces]


def _split_piece(memory: torch.Tensor, piece: Piece) -> torch.Tensor:
    dtype, begin, count = piece
    return memory[begin : begin + count * dtype.itemsize].view(dtype)
