"""Attention of queries to the keys that a sparse mask has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.backends.by_torch.rows import Tensor
from scorch._src.dataclass import dataclass


@dataclass(frozen=True)
class Heads:
    """The parameters that all heads of a call of attention share, and the mask of each.

    ``skipped``: keys that nobody sees, as bools of shape (batch..., keys) that broadcast. ``dropout`` is the
    share of pairs left out; which ones follows from ``seed``.
    """

    blocks: Any  # the result of ``attention_blocks``; None: pair by pair
    batch: tuple[int, ...]
    masks: Sequence[int]  # the number of the mask of each head
    scale: float
    dropout: float = 0.0
    seed: tuple[int, int] = (0, 0)
    skipped: Tensor | None = None

    @property
    def count(self) -> int:
        return len(self.masks)


class AttentionRoutines:
    """Attention by blocks; PyTorch operators compute it pair by pair (``ops.attention.reference``)."""

    attention_dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)  # which it takes as they are

    def attention_blocks(self, pos: Tensor, crd: Tensor, matrices: int, queries: int, keys: int) -> Any:
        """Split masks in blocks for ``attention``; None: pair by pair (``ops.attention.reference``)."""
        return None

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, heads: Heads
    ) -> tuple[Tensor, Tensor] | None:
        """Return the result, and what the backward pass needs of each query; None: it runs pair by pair."""
        return None

    def attention_backward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: Heads,
        out: Tensor,
        state: Tensor,
        gradient: Tensor,
        /,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradients of queries, keys and values, for each head."""
        raise NotImplementedError("attention needs at least one block")
