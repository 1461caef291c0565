"""What torch_sparse offers to tests: reductions, dtypes and devices to test."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scorch._src.devices import HOST

reductions = ["sum", "add", "mean", "min", "max"]
grad_dtypes = [torch.float16, torch.float32, torch.float64, torch.bfloat16]
dtypes = [*grad_dtypes, torch.int32, torch.int64]
_accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
devices = [HOST] if _accelerator is None else [HOST, _accelerator]


def tensor(x: Any, dtype: torch.dtype, device: Any) -> Tensor | None:
    """Return ``x`` as a tensor, or None for None."""
    return None if x is None else torch.tensor(x, dtype=dtype, device=device)
