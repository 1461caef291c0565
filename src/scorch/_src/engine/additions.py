"""Whether sums may be added in any order, and when that is worth it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from scorch._src.engine.executable import Prepared, Tensor
from scorch._src.storage.storage import Storage
from scorch.settings import current


def is_deterministic() -> bool:
    """Check whether results have to repeat bit for bit, by our settings or by torch's."""
    return current().deterministic or torch.are_deterministic_algorithms_enabled()


def without_conversion(find: Callable[[bool], Prepared], tensors: Mapping[str, Tensor]) -> Prepared:
    """Find what runs a step; where results may vary, without converting a pattern for the first time.

    ``find`` takes whether threads may add to one place, in any order.
    """
    prepared = find(False)
    if is_deterministic() or not prepared.planned.plan.is_grid:
        return prepared
    if not prepared.converts or _has_converted(prepared, tensors):
        return prepared
    other = find(True)
    return other if other.planned.plan.adds else prepared


def _has_converted(prepared: Prepared, tensors: Mapping[str, Tensor]) -> bool:
    """Check whether all patterns have been converted before to what a step reads."""
    for name, form in prepared.sources:
        tensor = tensors[name]
        if form is not None and isinstance(tensor, Storage) and form not in tensor.pattern.converted:
            return False
    return True
