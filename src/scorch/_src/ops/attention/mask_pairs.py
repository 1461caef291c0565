"""The pairs of queries and keys that a mask lets attend, found once for a mask and kept with it.

A mask lists them as stored ``True``; its format does not matter. What is found depends on the pattern and on
the values: a ``False`` that is stored, as in a block that is not full, is no pair. It is kept as long as the
pattern lives, and found anew when other values were written.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.backends.base import routines_for
from scorch._src.grad_state import untracked
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.sparse_tensor import SparseTensor


@dataclass(frozen=True)
class Pairs:
    """Pairs row by row: ``pos`` and ``crd`` of all masks of a batch of shape ``batch``, one after the other.

    ``blocks`` is None where there is no compiler to find them with.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    pos: torch.Tensor
    crd: torch.Tensor
    blocks: Any  # of ``Routines.attention_blocks``; None: pair by pair

    @property
    def masks(self) -> int:
        return math.prod(self.batch)

    @property
    def density(self) -> float:
        return self.crd.numel() / max(1, (self.pos.numel() - 1) * self.keys)

    def entries(self, mask: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys of the pairs of one mask, as int64."""
        begin = mask * self.queries
        pos = self.pos[begin : begin + self.queries + 1].long()
        rows = torch.arange(self.queries, device="cpu").repeat_interleave(pos.diff())
        return rows, self.crd[int(pos[0]) : int(pos[-1])].long()


@dataclass(frozen=True)
class _Known:
    values: weakref.ref[torch.Tensor]
    version: int
    pairs: Pairs


_known: weakref.WeakKeyDictionary[Pattern, dict[bool, _Known]] = weakref.WeakKeyDictionary()


def pairs_of(mask: SparseTensor, is_causal: bool = False) -> Pairs:
    """The pairs of a mask of bools of shape (..., queries, keys); with ``is_causal`` none after the query."""
    storage = mask.storage
    pattern, values = storage.pattern, storage.values
    version = -1 if values.is_inference() else values._version
    kept = _known.setdefault(pattern, {})
    known = kept.get(is_causal)
    if known is not None and known.values() is values and known.version == version >= 0:
        return known.pairs
    with untracked():
        found = _find(mask, is_causal)
    kept[is_causal] = _Known(weakref.ref(values), version, found)
    return found


def _find(mask: SparseTensor, is_causal: bool) -> Pairs:
    kept = torch.tril(mask) if is_causal else mask
    assert isinstance(kept, SparseTensor)
    rows = kept.to_format("csr")
    assert isinstance(rows, SparseTensor)
    if not bool(rows.storage.values.all()):
        rows = rows.eliminate_zeros()
    pos, crd = rows.storage.pattern.pos[-1], rows.storage.pattern.crd[-1]
    assert pos is not None and crd is not None
    if pos.dtype != crd.dtype:
        pos, crd = pos.long(), crd.long()
    queries, keys = mask.shape[-2:]
    batch = tuple(mask.shape[:-2])
    blocks = routines_for(pos).attention_blocks(pos, crd, math.prod(batch), queries, keys)
    return Pairs(batch, queries, keys, pos, crd, blocks)
