"""New tensors made "like" a sparse one: they take its dtype, so none of its values is looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch.tensor.budget import check_budget
from scorch.tensor.dispatch import implements_operator
from scorch.tensor.sparse_tensor import SparseTensor

aten = torch.ops.aten


def _dense(name: str, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``S.new_zeros(size)`` and its like: a dense tensor, of the dtype of S."""

    def new(
        self: SparseTensor, size: Sequence[int], *args: Any, dtype: torch.dtype | None = None, **_: Any
    ) -> torch.Tensor:
        wanted = dtype or self.dtype
        shape = tuple(int(extent) for extent in size)
        check_budget(
            math.prod(shape) * wanted.itemsize,
            f"{name} of shape {shape}",
            "make a sparse one with scorch.zeros",
        )
        return make(shape, *args, dtype=wanted)

    return new


implements_operator(aten.new_empty.default)(_dense("new_empty", torch.empty))
implements_operator(aten.new_zeros.default)(_dense("new_zeros", torch.zeros))
implements_operator(aten.new_ones.default)(_dense("new_ones", torch.ones))
implements_operator(aten.new_full.default)(_dense("new_full", torch.full))
