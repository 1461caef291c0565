"""Lazy updates: dense parameters whose gradients store a few rows, or columns, are updated only there.

A step gathers the rows that a gradient has, of the parameter and of its optimizer state, updates them, and
scatters them back; everything else stays as it is. This is the lazy meaning of ``torch.optim.SparseAdam``:
momentum, running averages and weight decay of a row move on only when the row has a gradient, while the count
of steps is that of the parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from scorch._src.tensor.sparse_tensor import SparseTensor


def has_sparse_rows_grad(parameter: torch.Tensor) -> bool:
    """Whether a dense parameter has a sparse gradient."""
    gradient = parameter.grad
    return isinstance(gradient, SparseTensor) and not isinstance(parameter, SparseTensor)


def split_rows(gradient: SparseTensor) -> tuple[int, torch.Tensor, torch.Tensor] | None:
    """Return the sparse dimension of a gradient, its coordinates, and the values; None in other formats."""
    pattern = gradient.storage.pattern
    form, order = pattern.format, pattern.format.order
    if form.dense_levels or form.dense_tail != len(form) - 1 or form.is_blocked:
        return None
    crd = pattern.crd[0]
    assert crd is not None
    inner = [pattern.shape[dim] for dim in order[1:]]
    stored = gradient.storage.values.detach().reshape(-1, *inner)
    to_dims = sorted(range(len(order)), key=lambda level: order[level])
    return order[0], crd.to(torch.int64), stored.permute(to_dims)


@dataclass
class LazyRows:
    """A parameter, and its gathered rows while a step runs."""

    parameter: torch.Tensor
    dim: int
    row_numbers: torch.Tensor
    rows_parameter: torch.Tensor
    full_state: dict[str, torch.Tensor] = field(default_factory=dict)

    @staticmethod
    def of(parameter: torch.Tensor) -> LazyRows | None:
        gradient = parameter.grad
        assert isinstance(gradient, SparseTensor)
        split = split_rows(gradient)
        if split is None:
            return None
        dim, row_numbers, values = split
        rows_parameter = (
            parameter.detach().index_select(dim, row_numbers).requires_grad_(parameter.requires_grad)
        )
        rows_parameter.grad = values.to(rows_parameter.dtype).contiguous()
        return LazyRows(parameter, dim, row_numbers, rows_parameter)

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Gather the rows of an optimizer state."""
        gathered = dict(state)
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == self.parameter.shape:
                self.full_state[name] = value
                gathered[name] = value.index_select(self.dim, self.row_numbers)
        return gathered

    def scatter_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Scatter the rows of an optimizer state back; new state is zero everywhere else."""
        with torch.no_grad():
            self.parameter.index_copy_(self.dim, self.row_numbers, self.rows_parameter.detach())
        scattered = dict(state)
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == self.rows_parameter.shape and value.dim():
                full = self.full_state.get(name)
                if full is None:
                    full = value.new_zeros(self.parameter.shape)
                scattered[name] = full.index_copy_(self.dim, self.row_numbers, value)
        return scattered
