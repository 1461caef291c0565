"""This rank's rows of sharded arrays, as ``torch.distributed.checkpoint`` writes them.

A checkpoint describes an array by its global size and by pieces of it, which ranks write and read. Loading
with other cuts, or on another number of ranks, reads the pieces with the requested rows.
"""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.distributed.communication.collectives import rank_in
from scorch._src.torch_internals import look_up

Tensor = torch.Tensor
MOST_ELEMENTS = 1 << 24  # in one piece, which a rank that reads some of it has to load


class Run(Tensor):
    """Rows of an array that start at ``begin``, of ``extent`` over all ranks.

    PyTorch asks a tensor for ``size()``, and for pieces by three methods; those named with underscores are
    its protocol.
    """

    begin: int
    extent: int
    writes_nothing: bool  # the array has no elements, so that one rank says that there is none
    like: Any  # the sharded tensor that it belongs to, and
    along: str  # what of it is cut alike: "rows", "columns" or "entries"
    source: Any  # the tensor it was made of

    def __new__(cls, rows: Tensor, begin: int, extent: int, group: Any) -> Run:
        run = rows.detach().contiguous().as_subclass(cls)
        run.begin, run.extent = begin, extent
        run.writes_nothing = rank_in(group) == 0
        run.like, run.along, run.source = None, "", rows
        return run

    def belonging_to(self, like: Any, along: str) -> Run:
        """Set which sharded tensor the rows belong to."""
        self.like, self.along = like, along
        return self

    @property
    def rows(self) -> Tensor:
        """The rows as a plain tensor, which shares their memory."""
        return self.as_subclass(Tensor)

    def size(self, dim: int | None = None) -> Any:
        """Return the global size."""
        found = torch.Size([self.extent, *self.rows.shape[1:]])
        return found if dim is None else found[dim]

    def _pieces(self) -> list[tuple[int, int]]:
        """Return where pieces begin among the rows of this rank, and how many rows they have."""
        rows, count = self.rows, len(self.rows)
        if not rows.numel():
            return [(0, count)] if self.writes_nothing and not self.size().numel() else []
        each = max(MOST_ELEMENTS * count // rows.numel(), 1)
        return [(first, min(each, count - first)) for first in range(0, count, each)]

    def __create_write_items__(self, fqn: str, object: Any) -> list[Any]:
        planner, metadata = (
            look_up(f"torch.distributed.checkpoint.{name}") for name in ("planner", "metadata")
        )
        rows = self.rows
        return [
            planner.WriteItem(
                index=metadata.MetadataIndex(fqn, chunk.offsets),
                type=planner.WriteItemType.SHARD,
                tensor_data=planner.TensorWriteData(
                    chunk=chunk,
                    properties=metadata.TensorProperties.create_from_tensor(rows),
                    size=self.size(),
                ),
            )
            for chunk in (self._chunk(*piece) for piece in self._pieces())
        ]

    def __create_chunk_list__(self) -> list[Any]:
        return [self._chunk(*piece) for piece in self._pieces()]

    def __get_tensor_shard__(self, index: Any) -> Tensor:
        first = index.offset[0] - self.begin if self.extent else 0
        count = next(count for begin, count in self._pieces() if begin == first)
        return self.rows[first : first + count]

    def _chunk(self, first: int, count: int) -> Any:
        metadata = look_up("torch.distributed.checkpoint.metadata")
        inner = self.rows.shape[1:]
        begin = self.begin + first if self.extent else 0
        return metadata.ChunkStorageMetadata(
            offsets=torch.Size([begin, *[0] * len(inner)]), sizes=torch.Size([count, *inner])
        )
