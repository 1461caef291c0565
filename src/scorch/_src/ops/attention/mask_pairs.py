"""The pairs of queries and keys that a mask lets attend, computed once for a mask and cached with it.

A mask lists them as stored ``True``; its format does not matter. The pairs depend on the pattern and on the
values: a ``False`` that is stored, as in a block that is not full, is no pair. They are cached as long as the
pattern lives, and computed anew when other values were written.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from scorch._src.backends.base import routines_for
from scorch._src.dataclass import dataclass
from scorch._src.grad_state import untracked
from scorch._src.storage.storage import Pattern
from scorch._src.tensor.sparse_tensor import SparseTensor


@dataclass(frozen=True)
class MaskPairs:
    """Pairs row by row: ``pos`` and ``crd`` of all masks of a batch of shape ``batch``, in turn.

    ``blocks`` is None without a compiler.
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
        """Return queries and keys of the pairs of one mask, as int64."""
        begin = mask * self.queries
        pos = self.pos[begin : begin + self.queries + 1].long()
        rows = torch.arange(self.queries, device=self.crd.device).repeat_interleave(pos.diff())
        return rows, self.crd[int(pos[0]) : int(pos[-1])].long()


@dataclass(frozen=True)
class _CachedPairs:
    values: weakref.ref[torch.Tensor]
    version: int
    pairs: MaskPairs


_cache: weakref.WeakKeyDictionary[Pattern, dict[bool, _CachedPairs]] = weakref.WeakKeyDictionary()


def find_pairs(mask: SparseTensor, is_causal: bool = False) -> MaskPairs:
    """Find the pairs of a boolean mask (..., queries, keys); with ``is_causal`` none after the query."""
    storage = mask.storage
    pattern, values = storage.pattern, storage.values
    version = -1 if values.is_inference() else values._version
    by_causality = _cache.setdefault(pattern, {})
    cached = by_causality.get(is_causal)
    if cached is not None and cached.values() is values and cached.version == version >= 0:
        return cached.pairs
    with untracked():
        pairs = _compute_pairs(mask, is_causal)
    by_causality[is_causal] = _CachedPairs(weakref.ref(values), version, pairs)
    return pairs


def _compute_pairs(mask: SparseTensor, is_causal: bool) -> MaskPairs:
    allowed = torch.tril(mask) if is_causal else mask
    assert isinstance(allowed, SparseTensor)
    rows = allowed.to_format("csr")
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
    return MaskPairs(batch, queries, keys, pos, crd, blocks)
