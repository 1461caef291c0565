"""Optimizers on dense parameters whose gradients store a few rows, or columns, only: these alone are updated.

A step gathers the rows that a gradient has, of the parameter and of all that the optimizer keeps for it, does
what the optimizer does to them, and puts them back; everything else stays as it is. This is the lazy meaning
of ``torch.optim.SparseAdam``: momentum, running averages and weight decay of a row move on only when the row
has a gradient, while the count of steps is that of the parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from scorch._src.tensor.sparse_tensor import SparseTensor


def is_lazy(parameter: torch.Tensor) -> bool:
    """Whether a dense parameter has a gradient of which rows are stored, with all of their elements."""
    gradient = parameter.grad
    return isinstance(gradient, SparseTensor) and not isinstance(parameter, SparseTensor)


def rows_of(gradient: SparseTensor) -> tuple[int, torch.Tensor, torch.Tensor] | None:
    """The dimension whose places are stored, which they are, and the values there; None in other formats."""
    pattern = gradient.storage.pattern
    form, order = pattern.format, pattern.format.order
    if form.dense_levels or form.dense_tail != len(form) - 1 or form.is_blocked:
        return None
    crd = pattern.crd[0]
    assert crd is not None
    inner = [pattern.shape[dim] for dim in order[1:]]
    stored = gradient.storage.values.detach().reshape(-1, *inner)
    back = sorted(range(len(order)), key=lambda level: order[level])
    return order[0], crd.to(torch.int64), stored.permute(back)


@dataclass
class Rows:
    """A parameter, and its rows while a step runs."""

    parameter: torch.Tensor
    dim: int
    places: torch.Tensor
    part: torch.Tensor
    whole: dict[str, torch.Tensor] = field(default_factory=dict)

    @staticmethod
    def of(parameter: torch.Tensor) -> Rows | None:
        gradient = parameter.grad
        assert isinstance(gradient, SparseTensor)
        found = rows_of(gradient)
        if found is None:
            return None
        dim, places, values = found
        part = parameter.detach().index_select(dim, places).requires_grad_(parameter.requires_grad)
        part.grad = values.to(part.dtype).contiguous()
        return Rows(parameter, dim, places, part)

    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """The rows of what an optimizer keeps."""
        found = dict(state)
        for name, kept in state.items():
            if isinstance(kept, torch.Tensor) and kept.shape == self.parameter.shape:
                self.whole[name] = kept
                found[name] = kept.index_select(self.dim, self.places)
        return found

    def put_back(self, state: dict[str, Any]) -> dict[str, Any]:
        """What an optimizer keeps, with the rows where they belong; what is new is zero everywhere else."""
        with torch.no_grad():
            self.parameter.index_copy_(self.dim, self.places, self.part.detach())
        found = dict(state)
        for name, kept in state.items():
            if isinstance(kept, torch.Tensor) and kept.shape == self.part.shape and kept.dim():
                whole = self.whole.get(name)
                if whole is None:
                    whole = kept.new_zeros(self.parameter.shape)
                found[name] = whole.index_copy_(self.dim, self.places, kept)
        return found
