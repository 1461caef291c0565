"""Run prepared steps without their kernels: by torch where it has the operations, else the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from scorch._src.backends.base import Backend
from scorch._src.backends.sort_entries import Sorted, stable_sort
from scorch._src.engine.by_torch import relations
from scorch._src.engine.by_torch.build_levels import pack
from scorch._src.engine.by_torch.joined_statement import Places, Statement, all_places
from scorch._src.engine.by_torch.list_entries import is_list, keys_in_levels, run_list
from scorch._src.engine.by_torch.relations import Relation
from scorch._src.engine.by_torch.structure import run_elementwise
from scorch._src.storage.coordinates import coordinates
from scorch._src.storage.storage import Storage
from scorch.errors import warn

if TYPE_CHECKING:
    from scorch._src.engine.executable import Prepared

Tensor = Storage | torch.Tensor

_warned: set[str] = set()


def warn_of_missing(backend: Backend) -> None:
    """Warn, once in a process, of what a backend lacks to run kernels and how to get it."""
    reason = None if backend.name in _warned else backend.missing()
    if reason is None:
        return
    _warned.add(backend.name)
    warn(
        f"{reason}\nUntil then, Scorch falls back to PyTorch operators, with the same results but "
        f"much slower."
    )


def run_without_kernel(prepared: Prepared, sources: Sequence[Tensor]) -> Tensor:
    """Run a prepared step by torch on tensors in the order of its ``sources``."""
    prepared.check_budget()
    plan = prepared.planned.plan
    operands = _converted(prepared, sources)
    tensors = dict(zip(prepared.names, operands, strict=True))
    try:
        if prepared.is_elementwise:
            return run_elementwise(prepared, tensors)
        if is_list(prepared):
            return run_list(prepared, operands[0])
        if (collected := _collected(prepared, operands)) is not None:
            return collected
        device = operands[0].device
        prepared.backend.routines.check_waiting(device, f"the places of {prepared.kernel.label}")
        statement = Statement(plan.step, tensors, prepared.sizes)
        places = statement.run(prepared.kernel.dtype, prepared.kernel.identity)
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "not implemented" not in str(error):
            raise
        return prepared.interpret(sources)
    if prepared.assembly == "dense":
        return _as_dense(prepared, places)
    if prepared.assembly == "shared":
        return _on_pattern(prepared, places, operands)
    return _as_sparse(prepared, places)


def _converted(prepared: Prepared, sources: Sequence[Tensor]) -> list[Tensor]:
    """Convert sparse operands to the formats that the kernel reads: it stores zeros where they do."""
    return [
        tensor if form is None or isinstance(tensor, torch.Tensor) else prepared.convert(tensor, form)
        for tensor, (_, form) in zip(sources, prepared.sources, strict=True)
    ]


def _collected(prepared: Prepared, operands: Sequence[Tensor]) -> Storage | None:
    """Pack the entries that kernels collect; None where there are no such kernels."""
    if not prepared.kernel.collects:
        return None
    found = prepared.kernel.collect(prepared.arrays(operands))
    if found is None or found.values is None:
        return None
    columns, values = found.columns, found.values
    if not found.is_sorted:
        columns, values = _summed(prepared, columns, values)
    packed = pack(prepared.format, prepared.shape, columns, values, prepared.check_bytes)
    return Storage(packed.pattern, packed.values.to(prepared.dtype))


def _summed(
    prepared: Prepared, columns: Sequence[torch.Tensor], values: torch.Tensor
) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    """Sort entries in the order of the levels, and add up those of one position."""
    order, routines = prepared.format.order, prepared.backend.routines
    crds = [columns[dim] for dim in order]
    sizes = [prepared.shape[dim] for dim in order]
    coalesced = routines.coalesce(crds, sizes, values, crds[0].dtype)
    if coalesced is not None:
        crds, values = list(coalesced[0]), coalesced[1]
    else:
        found = routines.sort_entries(crds, sizes)
        assert found, "entries that repeat are added up here"
        if isinstance(found, Sorted):
            crds, values = found.columns, routines.sum_entries(found, values)
    return [crds[order.index(dim)] for dim in range(len(order))], values


def _as_dense(prepared: Prepared, places: Places) -> torch.Tensor:
    target = prepared.planned.plan.step.target.indices
    first = [index for index in target if index not in places.trailing]
    order = [*first, *places.trailing]
    dense = torch.full(
        [prepared.sizes[index] for index in order],
        prepared.kernel.identity,
        dtype=prepared.kernel.dtype,
        device=places.values.device,
    )
    if first:
        dense[tuple(places.columns[index] for index in first)] = places.values
    elif places.values.shape[0]:
        dense.copy_(places.values[0])
    stored = [target[dim] for dim in prepared.format.order]
    laid_out = dense.permute([order.index(index) for index in stored]).contiguous().to(prepared.dtype)
    return laid_out.permute(prepared.back) if prepared.back else laid_out


def _on_pattern(prepared: Prepared, places: Places, operands: Sequence[Tensor]) -> Storage:
    """Compute the values on the pattern of an operand."""
    source = operands[prepared.pattern_source]
    assert isinstance(source, Storage)
    pattern = prepared.shared(source)
    target = prepared.planned.plan.step.target.indices
    crds = coordinates(pattern)
    wanted = {index: crds[dim] for dim, index in enumerate(target)}
    columns, values = all_places(places, target, prepared.sizes)
    known = Relation(dict(zip(target, columns, strict=True)), {}, values.numel(), values.device)
    row, is_there = relations.find(wanted, pattern.size, known, prepared.sizes)
    zero = torch.tensor(prepared.kernel.identity, dtype=values.dtype, device=values.device)
    placed = torch.where(is_there, values[row], zero) if values.numel() else zero.repeat(pattern.size)
    return Storage(pattern, placed.to(prepared.dtype))


def _as_sparse(prepared: Prepared, places: Places) -> Storage:
    """Build a new pattern: the positions in the order of the levels of the result."""
    plan = prepared.planned.plan
    target = plan.step.target.indices
    columns, values = all_places(places, target, prepared.sizes)
    if plan.skip_zeros:
        nonzero = values != 0
        columns, values = [column[nonzero] for column in columns], values[nonzero]
    order = _order_of_levels(prepared, columns)
    columns, values = [column[order] for column in columns], values[order]
    packed = pack(prepared.format, prepared.shape, columns, values, prepared.check_bytes)
    return Storage(packed.pattern, packed.values.to(prepared.dtype))


def _order_of_levels(prepared: Prepared, columns: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the permutation that sorts entries with these coordinates in stored order."""
    return stable_sort(keys_in_levels(prepared.format, prepared.shape, columns))[1]
