"""Padding by the tensor's own content: each dimension is indexed again as the mode says.

    reflect      2 1 | 0 1 2 3 | 2 1
    replicate    0 0 | 0 1 2 3 | 3 3
    circular     2 3 | 0 1 2 3 | 0 1

Time and memory follow the entries of the result. Padding with a number is in ``ops.movement.shape``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.ops.fallback import run_torch
from scorch._src.ops.movement.index import index_select
from scorch._src.ops.movement.shape import infer_shape
from scorch._src.tensor.registry import implements
from scorch._src.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


@implements(F.pad)
def pad(input: SparseTensor, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    """Pad circularly, which torch does in a dense tensor; everything else is an operator of its own."""
    if mode != "circular":
        return run_torch(F.pad, input, pad, mode, value)
    return _pad(mode, input, pad, value)


def _pad(mode: str, self: SparseTensor, padding: Sequence[int], value: Any = None) -> Any:
    infer_shape(F.pad, self, padding, mode, value)  # raises torch's error
    if not any(padding):
        return torch.clone(self)
    for number in range(len(padding) // 2):
        dim = self.dim() - 1 - number
        before, after = padding[2 * number], padding[2 * number + 1]
        if before or after:
            positions = _padded_indices(self.shape[dim], before, after, mode, self.storage.device)
            self = index_select(self, dim, positions)
    return self


def _padded_indices(size: int, before: int, after: int, mode: str, device: torch.device) -> torch.Tensor:
    """Return the indices of a padded dimension; a negative padding crops first."""
    if mode == "circular":
        first, last = max(-before, 0), size - max(-after, 0)
        index = torch.arange(-max(before, 0), last - first + max(after, 0), device=device)
        return index % (last - first) + first
    index = torch.arange(-before, size + after, device=device)
    if mode == "replicate":
        return index.clamp(0, size - 1)
    return size - 1 - (size - 1 - index.abs()).abs()


for _dims in ("1d", "2d", "3d"):
    for _kind, _mode in (("reflection", "reflect"), ("replication", "replicate")):
        implements(getattr(aten, f"{_kind}_pad{_dims}").default)(functools.partial(_pad, _mode))
