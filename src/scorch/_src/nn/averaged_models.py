"""``torch.optim.swa_utils.AveragedModel`` of models with sparse layers: it averages values of one pattern.

PyTorch averages parameters one after the other. Where a layer was rewired since the copy was made, it would
average numbers of different elements, or stop in the middle because there are more or fewer of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from scorch._src.nn.data_parallel import fingerprint_of
from scorch._src.nn.module_mixin import WrapperMixin
from scorch._src.nn.sparse_linear import SparseLinear
from scorch.errors import CallError


def _restore(kind: type) -> Any:
    """Return an averaged model without attributes; pickles name this function."""
    return AveragedModelMixin.new(kind)


class AveragedModelMixin(WrapperMixin):
    """What an ``AveragedModel`` does in addition if its module has sparse layers."""

    restore, wrapper = staticmethod(_restore), AveragedModel
    module: torch.nn.Module

    @staticmethod
    def is_needed(wrapper: Any, module: torch.nn.Module) -> bool:
        """Whether a module has sparse layers."""
        return any(isinstance(each, SparseLinear) for each in module.modules())

    def update_parameters(self, model: torch.nn.Module) -> None:
        """Average the parameters, after checking that they are of the same weights."""
        given = model.module if isinstance(model, AveragedModel) else model
        layers = dict(given.named_modules())
        for path, averaged in self.module.named_modules():
            layer = layers.get(path)
            if isinstance(averaged, SparseLinear) and isinstance(layer, SparseLinear):
                _check_patterns(path, averaged, layer)
        super().update_parameters(model)  # type: ignore[misc]


def _check_patterns(path: str, averaged: SparseLinear, layer: SparseLinear) -> None:
    if fingerprint_of(averaged.pattern) != fingerprint_of(layer.pattern):
        name = f".{path}" if path else ""
        raise CallError(
            f"the sparsity pattern of {path or 'the layer'!r} differs from that of the averaged model, whose "
            f"values cannot be averaged with others, so nothing was averaged; change it, too: "
            f"averaged.module{name}.rewire(model{name}.weight, new=0.0)"
        )
