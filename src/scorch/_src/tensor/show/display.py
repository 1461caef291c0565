"""Describe a sparse tensor in one line."""

from __future__ import annotations

import math

from scorch._src.storage.storage import Storage


def describe(storage: Storage) -> str:
    """``SparseTensor(shape=(3, 4), dtype=float32, format=csr, nnz=5, density=41.7%)``."""
    pattern = storage.pattern
    places = math.prod(pattern.shape)
    density = f", density={pattern.size / places:.2%}" if places else ""
    dtype = str(storage.values.dtype).removeprefix("torch.")
    facts = f"shape={pattern.shape}, dtype={dtype}, format={pattern.format}, nnz={pattern.size}{density}"
    return f"SparseTensor({facts})"
