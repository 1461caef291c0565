"""Where the entries of elementwise results lie and come from, worked out once for the patterns of operands.

A result such as ``A[i,j] + B[i,j]`` or ``A`` in another format has entries wherever operands have them. Its
pattern, and the entry of every operand at each of its positions, follow from their patterns alone: they are
cached with the first one, so that the next call only computes values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from scorch._src.backends.base import Collected, Places
from scorch._src.backends.routines import Routines
from scorch._src.backends.sort_entries import stable_sort
from scorch._src.compiler import lattice
from scorch._src.compiler.plan import Step
from scorch._src.engine.by_torch.build_levels import pack
from scorch._src.engine.by_torch.joined_statement import Origins, Statement
from scorch._src.engine.by_torch.list_entries import keys_in_levels
from scorch._src.formats import Format
from scorch._src.grad_state import cached_outside_modes, outside_modes
from scorch._src.notation.nodes import Access
from scorch._src.storage.storage import Pattern, Storage

if TYPE_CHECKING:
    from scorch._src.engine.executable import Prepared

Tensor = Storage | torch.Tensor


@dataclass(eq=False)
class Structure:
    """The pattern of a result; of each value its coordinates, and the entry of each access."""

    pattern: Pattern
    columns: Mapping[str, torch.Tensor]
    places: Mapping[Access, Places]
    padding: torch.Tensor | None  # where no entry is, in blocks
    others: tuple[weakref.ref[Pattern], ...]  # of which it depends, besides the one that keeps it
    wait: Callable[[], None] | None = None  # to be called before it is read

    @cached_outside_modes
    def origins(self) -> Origins:
        """The entries of each access, as torch reads them."""
        found: dict[Access, tuple[torch.Tensor | None, torch.Tensor | None]] = {}
        for access, known in self.places.items():
            entry = known.entries
            is_there = None if entry is None or known.is_full else entry >= 0
            found[access] = None if entry is None else entry.clamp(min=0).long(), is_there
        return found

    def is_of(self, patterns: Sequence[Pattern]) -> bool:
        pairs = zip(self.others, patterns[1:], strict=True)
        return all(reference() is pattern for reference, pattern in pairs)


def is_elementwise(prepared: Prepared) -> bool:
    """Check whether a step computes a new pattern from operands with all of its indices, value by value."""
    plan = prepared.planned.plan
    step, wanted = plan.step, set(plan.step.target.indices)
    if step.reduced or plan.skip_zeros or plan.assembly in ("dense", "shared"):
        return False
    sparse = [a for a in step.accesses if plan.operand(a.tensor).is_sparse]
    is_plain = all(len(a.indices) == len(wanted) and set(a.indices) == wanted for a in sparse)
    return is_plain and bool(sparse) and (plan.assembly != "list" or plan.comes_sorted)


def run_elementwise(prepared: Prepared, tensors: Mapping[str, Tensor]) -> Storage:
    """Compute an elementwise step on the structure of its result."""
    step = prepared.planned.plan.step
    stored = [tensor for a in step.accesses if isinstance(tensor := tensors[a.tensor], Storage)]
    patterns = [tensor.pattern for tensor in stored]
    structure: Structure | None = patterns[0].structures.get(prepared)
    if structure is None or not structure.is_of(patterns):
        routines, device = prepared.backend.routines, stored[0].device
        routines.check_waiting(device, f"the places of {prepared.kernel.label}")
        structure = outside_modes(_make)(prepared, tensors, patterns)
        structure.wait = routines.record(device)
        patterns[0].structures[prepared] = structure
    elif structure.wait is not None:
        structure.wait()
    count = structure.pattern.size
    values: torch.Tensor | None = None
    if prepared.kernel.can_combine and structure.padding is None:
        given = [tensor.values.detach() for tensor in stored]
        dense = [
            _as_read(tensor) for a in step.accesses if not isinstance(tensor := tensors[a.tensor], Storage)
        ]
        columns = [structure.columns[index] for index in step.target.indices] if dense else []
        values = prepared.kernel.combine(list(structure.places.values()), given, count, columns, dense)
    if values is None:
        statement = Statement(step, tensors, prepared.sizes)
        statement.use(structure.columns, structure.origins, count)
        values = statement.value_at(slice(0, count), count, prepared.kernel.dtype).contiguous()
    if structure.padding is not None:
        values = values.masked_fill(structure.padding, 0)
    return Storage(structure.pattern, values.to(prepared.dtype))


def _as_read(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense operand as kernels read it that compute values one by one."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _make(prepared: Prepared, tensors: Mapping[str, Tensor], patterns: Sequence[Pattern]) -> Structure:
    step, form, shape = prepared.planned.plan.step, prepared.format, prepared.shape
    if prepared.is_transposition:
        prepared.kernel.begin()
        transposed, entries = transpose(patterns[0], form, shape, prepared.backend.routines)
        return Structure(
            transposed, {}, {step.accesses[0]: Places(entries.to(transposed.index_dtype))}, None, ()
        )
    others = tuple(weakref.ref(pattern) for pattern in patterns[1:])
    sparse = [access for access in step.accesses if isinstance(tensors[access.tensor], Storage)]
    has_dense = len(sparse) < len(step.accesses)  # whose values are read at coordinates
    if _is_on_one_pattern(step, sparse, patterns, form):
        same: Mapping[str, torch.Tensor] = {}
        if has_dense:
            stored = Statement(step, tensors, prepared.sizes).stored[sparse[0]]
            same = {index: column.long() for index, column in stored.columns.items()}
        return Structure(patterns[0], same, dict.fromkeys(sparse, Places()), None, others)
    if not form.is_padded:
        prepared.kernel.begin()
    found = _collected(prepared, tensors) or _joined(prepared, tensors, patterns)
    columns, places = found.columns, found.places
    numbers = columns[0]  # which are not read, unless some are padding
    if form.is_padded:
        numbers = torch.arange(1, columns[0].numel() + 1, device=columns[0].device)
    packed = pack(form, shape, columns, numbers, prepared.check_bytes)
    padding = None
    if form.is_padded:
        padding = packed.values == 0
        source = (packed.values - 1).clamp_(min=0)
        columns = [column[source] for column in columns]
        places = [replace(known, entries=_entries(known)[source]) for known in places]
    kept: dict[str, torch.Tensor] = {}
    if has_dense:
        kept = {index: column.long() for index, column in zip(step.target.indices, columns, strict=True)}
    index = packed.pattern.index_dtype
    read = [replace(known, entries=_entries(known).to(index)) for known in places]
    return Structure(packed.pattern, kept, dict(zip(sparse, read, strict=True)), padding, others)


def _entries(places: Places) -> torch.Tensor:
    assert places.entries is not None
    return places.entries


def _collected(prepared: Prepared, tensors: Mapping[str, Tensor]) -> Collected | None:
    """Return the entries of a result that kernels find, if there are some."""
    if not prepared.kernel.collects:
        return None
    return prepared.kernel.collect(prepared.arrays([tensors[name] for name in prepared.names]))


def _joined(prepared: Prepared, tensors: Mapping[str, Tensor], patterns: Sequence[Pattern]) -> Collected:
    """Return the entries of a result, found by joins."""
    step = prepared.planned.plan.step
    statement = Statement(step, tensors, prepared.sizes)
    points = statement.points
    columns = [points.columns[index] for index in step.target.indices]
    order = _order(prepared.format, prepared.shape, columns, patterns, statement)
    if order is not None:
        columns = [column[order] for column in columns]
    places = []
    for entry, is_there in (statement.entries_at_points[access] for access in statement.sparse):
        assert entry is not None
        entry = entry if is_there is None else torch.where(is_there, entry, -1)
        places.append(Places(entry if order is None else entry[order], is_there is None))
    return Collected(columns, None, places)


def is_transposition(prepared: Prepared) -> bool:
    """Check whether a matrix of compressed rows becomes one of compressed columns, or vice versa."""
    plan, form = prepared.planned.plan, prepared.format
    step = plan.step
    if len(step.accesses) != 1 or not plan.operands[0].is_sparse:
        return False
    source = plan.operands[0].format
    letters = source.letters == form.letters == "ds"
    is_plain = not source.blocks and not form.blocks and step.accesses[0].indices == step.target.indices
    return letters and is_plain and source.order != form.order


def transpose(
    pattern: Pattern, form: Format, shape: tuple[int, ...], routines: Routines
) -> tuple[Pattern, torch.Tensor]:
    """Return a matrix of compressed rows by columns, and the entry of each value."""
    pos, crd = pattern.pos[1], pattern.crd[1]
    assert pos is not None and crd is not None
    size = shape[form.order[0]]
    begins, line, order = routines.transpose_rows(pos, crd, size)
    return Pattern(form, shape, (None, begins), (None, line), (size, crd.numel())), order


def _is_on_one_pattern(
    step: Step, sparse: Sequence[Access], patterns: Sequence[Pattern], form: Format
) -> bool:
    """Check whether the result has an entry exactly where all operands, which share a pattern, have one."""
    pattern = patterns[0]
    if not all(other is pattern for other in patterns) or pattern.format != form or form.is_padded:
        return False
    support = lattice.support_by(step.body, sparse)
    return bool(support) and all(support) and all(a.indices == step.target.indices for a in sparse)


def _order(
    form: Format,
    shape: tuple[int, ...],
    columns: Sequence[torch.Tensor],
    patterns: Sequence[Pattern],
    statement: Statement,
) -> torch.Tensor | None:
    """Return the permutation that sorts points in the order of the levels; None if they are sorted.

    Points that are the entries of a lone operand are sorted by its levels: only one may have to come first.
    """
    source, step, access = patterns[0].format, statement.step, next(iter(statement.sparse))
    is_plain = not form.is_blocked and not source.is_blocked and access.indices == step.target.indices
    if is_plain and statement.support(step.body) == lattice.stored(access):
        wanted, given = list(form.order), list(source.order)
        if wanted == given:
            return None
        if wanted[1:] == [dim for dim in given if dim != wanted[0]]:
            first = columns[wanted[0]]
            narrow = first.to(torch.int32) if shape[wanted[0]] < 1 << 31 else first
            return stable_sort(narrow)[1]
    return stable_sort(keys_in_levels(form, shape, columns))[1]
