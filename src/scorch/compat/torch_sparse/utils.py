"""Small functions of torch_sparse that other packages import."""

from __future__ import annotations

from typing import Any

from torch import Tensor

WITH_PYG_LIB = WITH_INDEX_SORT = False


def index_sort(inputs: Tensor, max_value: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the sorted ``inputs`` and the order that sorts them."""
    values, order = inputs.sort()
    return values, order


def is_scalar(other: Any) -> bool:
    return isinstance(other, (int, float))
