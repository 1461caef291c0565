"""Entries in any order, of which some may stand for one place: sorted once, and added up in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from scorch._src.backends.sort_entries import Sorted, begins_of_runs, stable_sort
from scorch._src.engine.by_torch import relations
from scorch._src.engine.by_torch.build_levels import level_coordinates, pack
from scorch._src.formats import Format
from scorch._src.notation.nodes import Access
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.storage.storage import Storage

if TYPE_CHECKING:
    from scorch._src.engine.executable import Prepared


def is_list(prepared: Prepared) -> bool:
    """Check whether a step copies the entries of a lone sparse operand, which may repeat."""
    plan = prepared.planned.plan
    body, wanted = plan.step.body, plan.step.target.indices
    is_copy = isinstance(body, Access) and sorted(body.indices) == sorted(wanted)
    return is_copy and plan.assembly == "list" and not plan.skip_zeros and plan.operands[0].is_sparse


def run_list(prepared: Prepared, source: Storage | torch.Tensor) -> Storage:
    """Sort the entries of ``source``, and add up those of one place."""
    assert isinstance(source, Storage)
    form, shape, step = prepared.format, prepared.shape, prepared.planned.plan.step
    (access,) = step.accesses
    by_dim, numbers = numbered_entries(source.pattern)
    columns = [by_dim[access.indices.index(index)] for index in step.target.indices]
    ordered, order = stable_sort(keys_in_levels(form, shape, columns))
    first = begins_of_runs(ordered)
    repeats = first.numel() < ordered.numel()
    found = Sorted(numbers[order], [], first if repeats else None)
    given = source.values.detach().to(prepared.kernel.dtype)
    values = prepared.backend.routines.sum_entries(found, given)
    if repeats:
        order = order[first]
    packed = pack(form, shape, [column[order] for column in columns], values, prepared.check_bytes)
    return Storage(packed.pattern, packed.values.to(prepared.dtype))


def keys_in_levels(form: Format, shape: tuple[int, ...], columns: Sequence[torch.Tensor]) -> torch.Tensor:
    """Number entries with these coordinates in the order in which a format stores them."""
    crds = level_coordinates(form, columns)
    names = [str(level) for level in range(len(form))]
    sizes = {name: form.level_size(level, shape) for level, name in enumerate(names)}
    (key,) = relations.keys([dict(zip(names, crds, strict=True))], names, sizes)
    return key
