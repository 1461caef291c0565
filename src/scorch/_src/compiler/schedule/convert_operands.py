"""Operands stored in a way that the loops cannot walk are converted before the kernel runs.

Blocks that do not fit the other operands are taken apart, sparse operands stored in another order than the
loops are transposed, dense ones that the innermost loop would jump in are copied. Each conversion renames
the access, so that a tensor used twice may be converted for one use alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scorch._src.compiler.plan import Operand, Splits, Step
from scorch._src.compiler.schedule.cost import estimated_counts, is_against, rows_format, transposed_format
from scorch._src.dataclass import dataclass, replace
from scorch._src.formats import Format, Level, dense_format
from scorch._src.formats.compressed import Compressed
from scorch._src.formats.dense import Dense
from scorch._src.notation.nodes import Access
from scorch._src.notation.trees import substitute


@dataclass(frozen=True)
class Conversion:
    """An operand to be stored otherwise before the kernel runs: ``name`` is what the kernel calls it."""

    tensor: str
    name: str
    format: Format
    reason: str


def _convert(
    step: Step,
    operands: dict[Access, Operand],
    access: Access,
    form: Format,
    suffix: str,
    reason: str,
    conversions: list[Conversion],
) -> tuple[Step, dict[Access, Operand]]:
    """``step`` reading ``access`` from an operand in format ``form``, and the operands with that one."""
    taken = {operand.name for operand in operands.values()}  # a name that no operand has, nor had before
    taken |= {name for conversion in conversions for name in (conversion.tensor, conversion.name)}
    name = f"{access.tensor}{suffix}"
    while name in taken:
        name += suffix[-1]
    conversions.append(Conversion(access.tensor, name, form, reason))
    old, fresh = operands[access], Access(name, access.indices)
    new = replace(old, name=name, format=form, counts=estimated_counts(form, old.shape, old.nnz))
    operands = {fresh if a == access else a: new if a == access else o for a, o in operands.items()}
    return replace(step, body=substitute(step.body, {access: fresh})), operands


def unblock(
    step: Step, operands: Mapping[Access, Operand], conversions: list[Conversion]
) -> tuple[Step, dict[Access, Operand]]:
    """Convert blocked operands whose blocks do not fit the other operands of the same index."""
    converted = dict(operands)
    for access in step.accesses:
        form = converted[access].format
        clash = next((index for index in access.indices if _clashes(index, access, converted)), None)
        if clash is not None and form.is_blocked:
            reason = f"blocks over {clash} do not fit the other operands"
            new_form = unblocked_format(form)
            step, converted = _convert(step, converted, access, new_form, "_unblocked", reason, conversions)
    return step, converted


def _clashes(index: str, access: Access, operands: Mapping[Access, Operand]) -> bool:
    """Whether ``access`` splits ``index`` in a way that some sparse operand of the index does not."""
    mine = {operands[access].format.block(dim) for dim, i in enumerate(access.indices) if i == index}
    if mine == {None}:
        return False
    if len(mine) > 1:
        return True
    named = {i for other in operands for i in other.indices}
    if f"{index}_out" in named or f"{index}_in" in named:  # what the loops of the split would be called
        return True
    for other, operand in operands.items():
        for dim, i in enumerate(other.indices):
            if i != index or not operand.is_sparse:
                continue
            is_full = all(
                level.is_full
                for level, stored in zip(operand.format.levels, operand.format.order, strict=True)
                if stored == dim
            )
            block = operand.format.block(dim)
            if block not in mine and not (block is None and is_full):
                return True
    return False


def unblocked_format(form: Format) -> Format:
    """The format without blocks: a dimension is dense if both of its parts were."""
    order = list(dict.fromkeys(form.order))
    levels: list[Level] = []
    for dim in order:
        parts = [level for level, stored in zip(form.levels, form.order, strict=True) if stored == dim]
        is_single = len(parts) == 1 and (parts[0].is_full or parts[0].has_coordinates)
        is_full = all(part.is_full for part in parts)
        levels.append(parts[0] if is_single else Dense() if is_full else Compressed())
    return Format(levels, order=order)


def gather_rows(
    step: Step, operands: Mapping[Access, Operand], conversions: list[Conversion], root: str = ""
) -> tuple[Step, dict[Access, Operand]]:
    """Convert lists of entries to rows, whose positions are known without reading the entries before.

    ``root``: the level of the rows, if not as many as suit them.
    """
    converted = dict(operands)
    for access in step.accesses:
        operand = converted[access]
        if operand.format.is_list and len(operand.format) > 1 and not operand.format.is_blocked:
            form = rows_format(operand, operand.format.order, root)
            reason = "threads of a grid start at rows"
            step, converted = _convert(step, converted, access, form, "_rows", reason, conversions)
    return step, converted


def split_blocks(operands: Mapping[Access, Operand]) -> Splits:
    blocks: dict[str, int] = {}
    for access, operand in operands.items():
        for dim, index in enumerate(access.indices):
            block = operand.format.block(dim)
            if block is not None:
                blocks[index] = block
    return Splits(tuple(blocks.items()))


def transpose(
    step: Step,
    operands: Mapping[Access, Operand],
    order: Sequence[str],
    splits: Splits,
    conversions: list[Conversion],
) -> tuple[Step, dict[Access, Operand]]:
    """Convert the operands whose stored order conflicts with the order of loops."""
    converted = dict(operands)
    for access in step.accesses:
        operand = converted[access]
        uses = splits.uses(operand.format, access.indices, access.tensor, operand.index)
        if not operand.is_sparse or not is_against(order, operand.format, uses):
            continue
        form = transposed_format(order, access, operand, splits)
        stored = ", ".join(access.indices[dim] for dim in operand.format.order)
        reason = f"stored by {stored}, but the loops run {', '.join(order)}"
        step, converted = _convert(step, converted, access, form, "_t", reason, conversions)
    return step, converted


def lay_out(
    step: Step,
    operands: Mapping[Access, Operand],
    order: Sequence[str],
    splits: Splits,
    laid_out: Sequence[Access],
    conversions: list[Conversion],
    along: str = "",
) -> tuple[Step, dict[Access, Operand]]:
    """Copy dense operands so that a loop, the innermost if no other is named, runs along memory."""
    converted = dict(operands)
    for access in laid_out:
        x, _ = splits.origin(along or order[-1])
        last = access.indices.index(x)
        dims = (*(dim for dim in converted[access].format.order if dim != last), last)
        form, reason = dense_format(len(dims), dims), f"the loop over {x} strides through it"
        step, converted = _convert(step, converted, access, form, "_t", reason, conversions)
    return step, converted


def renamed_searches(
    searched: Sequence[tuple[Access, int]],
    operands: Mapping[Access, Operand],
    conversions: Sequence[Conversion],
) -> frozenset[tuple[Access, int]]:
    """Searched levels, by the names that accesses have after conversion."""
    searches = set()
    for access, level in searched:
        names = [access.tensor, *(c.name for c in conversions if c.tensor == access.tensor)]
        renamed = (Access(name, access.indices) for name in names)
        searches |= {(new, level) for new in renamed if new in operands}
    return frozenset(searches)
