"""Entries in any order, of which some may stand for one place: sorted once, and added up in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

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
    ordered, order = torch.sort(keys_in_levels(form, shape, columns), stable=True)
    values = source.values.detach()[numbers[order]].to(prepared.kernel.dtype)
    is_new = torch.ones(ordered.numel(), dtype=torch.bool, device=ordered.device)
    is_new[1:] = ordered[1:] != ordered[:-1]
    first = is_new.nonzero().squeeze(1)
    if first.numel() < ordered.numel():
        values = _sums(values, first)
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


def _sums(values: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Add up the values from each of ``first`` to the next, in order."""
    end = torch.cat([first[1:], first.new_full((1,), values.numel())])
    if values.dtype == torch.bool:
        return _sums(values.to(torch.int64), first) > 0
    if values.is_complex():
        parts = [_sums(part.contiguous(), first) for part in (values.real, values.imag)]
        return torch.complex(parts[0], parts[1])
    if values.is_floating_point():
        return torch.segment_reduce(values, "sum", lengths=end - first, unsafe=True)
    totals = torch.cat([values.new_zeros(1, dtype=torch.int64), values.cumsum(0, dtype=torch.int64)])
    return (totals[end] - totals[first]).to(values.dtype)
