"""``torch.optim.swa_utils.AveragedModel`` of models with sparse layers: it averages values of one pattern.

PyTorch averages parameters one after the other. Where a layer was rewired since the copy was made, it would
average numbers of different elements, or stop in the middle because there are more or fewer of them. As for
``DistributedDataParallel``, the class of an averaged model is replaced when its module is registered.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.optim.swa_utils import AveragedModel

from scorch._src.nn.data_parallel import fingerprint_of
from scorch._src.nn.sparse_linear import SparseLinear
from scorch.errors import CallError

MAX_CLASSES = 256


class _SparseMixin:
    """What an ``AveragedModel`` does in addition if its module has sparse layers."""

    module: torch.nn.Module

    def update_parameters(self, model: torch.nn.Module) -> None:
        """Average the parameters, after checking that they are of the same weights."""
        given = model.module if isinstance(model, AveragedModel) else model
        layers = dict(given.named_modules())
        for path, averaged in self.module.named_modules():
            layer = layers.get(path)
            if isinstance(averaged, SparseLinear) and isinstance(layer, SparseLinear):
                _check_patterns(path, averaged, layer)
        super().update_parameters(model)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain = type(self).__mro__[2]
        return _restore, (plain,), self.__dict__


def _check_patterns(path: str, averaged: SparseLinear, layer: SparseLinear) -> None:
    if fingerprint_of(averaged.pattern) != fingerprint_of(layer.pattern):
        name = f".{path}" if path else ""
        raise CallError(
            f"the sparsity pattern of {path or 'the layer'!r} differs from that of the averaged model, whose "
            f"values cannot be averaged with others, so nothing was averaged; change it, too: "
            f"averaged.module{name}.rewire(model{name}.weight, new=0.0)"
        )


@functools.lru_cache(maxsize=MAX_CLASSES)
def _sparse_class(kind: type) -> type:
    """Return the same class, which checks the patterns of sparse layers."""
    return type(kind.__name__, (_SparseMixin, kind), {"__module__": kind.__module__})


def _restore(kind: type) -> Any:
    restored: Any = _sparse_class(kind)
    return restored.__new__(restored)


def _on_registration(parent: torch.nn.Module, name: str, module: torch.nn.Module | None) -> None:
    """Replace the class of ``parent`` when PyTorch makes ``module`` its submodule."""
    if not isinstance(parent, AveragedModel) or name != "module" or module is None:
        return
    is_sparse = any(isinstance(each, SparseLinear) for each in module.modules())
    if is_sparse and not isinstance(parent, _SparseMixin):
        kind: Any = type(parent)
        parent.__class__ = _sparse_class(kind)


def install() -> None:
    """Register the hook for all averaged models created from now on."""
    register_module_module_registration_hook(_on_registration)
