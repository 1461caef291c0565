"""The format of a result (Algorithm 4 of the paper, made precise by ``lattice.support``).

An index of the result is stored sparse exactly if coordinates that no operand stores cannot matter. Where
the result is supported by one operand alone it keeps that operand's format, and its pattern is shared. The
outer ones of several sparse indices are stored dense nevertheless unless most of their coordinates are
expected to be empty: rows that are all stored are appended by several threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from scorch._src.compiler import lattice
from scorch._src.compiler.lattice import EVERYWHERE, NOWHERE, Support
from scorch._src.compiler.plan import Operand, Step
from scorch._src.compiler.target import target
from scorch._src.dataclass import dataclass
from scorch._src.formats import Format, dense_format
from scorch._src.notation.nodes import Access, Expr

SPARSE_WORTH = 4  # a dense result, or level, may be this many times larger than the bound of the sparse one


@dataclass(frozen=True)
class Inferred:
    format: Format
    reasons: tuple[str, ...]


def support_of(body: Expr, operands: Mapping[Access, Operand]) -> Support:
    """Where ``body`` can differ from zero, as a formula over the sparse operands."""
    return lattice.support_by(body, {access for access, operand in operands.items() if operand.is_sparse})


def carried_format(access: Access, form: Format, target: Access) -> Format | None:
    """The format of ``target`` with the very levels of ``access``, if both have the same indices."""
    if sorted(access.indices) != sorted(target.indices) or len(set(access.indices)) != len(access.indices):
        return None
    moved = {dim: target.indices.index(index) for dim, index in enumerate(access.indices)}
    return Format(
        form.levels,
        order=[moved[dim] for dim in form.order],
        blocks={moved[dim]: size for dim, size in form.blocks},
    )


def shared_levels(access: Access, form: Format, target: Access, result: Format) -> int | None:
    """How many levels of ``access`` are those of the result, if they hold all that it stores; else None.

    All of them for a mask, X[i,j] = A[i,j] * ...; the first ones where the others are summed and the result
    goes on with dense levels: R[i,j,r] = sum(k, T[i,j,k] * B[k,r]) has the i and j of T.
    """
    if carried_format(access, form, target) == result:
        return len(form)
    kept = [index for index in access.indices if index in target.indices]
    count = len(kept)
    if not count or len(set(access.indices)) != len(access.indices) or form.is_blocked or result.is_blocked:
        return None
    mine = [access.indices[dim] for dim in form.order]
    theirs = [target.indices[dim] for dim in result.order]
    if mine[:count] != theirs[:count] or form.levels[:count] != result.levels[:count]:
        return None
    is_found = all(form.is_unique(level) for level in range(count)) and not form.levels[count - 1].is_full
    return count if is_found and all(level.is_full for level in result.levels[count:]) else None


def shared_pattern(
    step: Step, operands: Mapping[Access, Operand], result: Format
) -> tuple[Access, int] | None:
    """The access whose pattern, or the first levels of it, is the result's: it alone supports the body.

    Or all that the others leave out of it are zeros that the result may have (``Step.sampled_at``).
    """
    where = support_of(step.body, operands)
    for access, operand in operands.items():
        if operand.is_sparse and where == lattice.stored(access):
            levels = shared_levels(access, operand.format, step.target, result)
            if levels is not None:
                return access, levels
    for access in () if target().is_grid else lattice.required(where):
        if access.tensor == step.sampled_at:
            form = operands[access].format
            return (access, len(form)) if carried_format(access, form, step.target) == result else None
    return None


def infer_format(step: Step, operands: Mapping[Access, Operand], sizes: Mapping[str, int]) -> Inferred:
    """The format of the result of ``step``, with the reason for each level."""
    target = step.target
    sparse = [access for access in step.accesses if operands[access].is_sparse]
    everywhere = support_of(step.body, operands)
    if not target.indices:
        return Inferred(dense_format(0), ("a scalar",))
    carried = {access: carried_format(access, operands[access].format, target) for access in sparse}
    for access in sparse:
        form = carried[access]
        if everywhere == lattice.stored(access) and form is not None:
            return Inferred(form, (f"nonzero only where {access.tensor} is: same sparsity pattern",))
    forms = set(carried.values())
    if everywhere not in (EVERYWHERE, NOWHERE) and len(forms) == 1 and None not in forms:
        names = ", ".join(dict.fromkeys(access.tensor for access in sparse))
        (common,) = forms
        assert common is not None
        return Inferred(common, (f"{names} all have this format",))
    return _by_index(step, operands, sizes, sparse)


def _by_index(
    step: Step, operands: Mapping[Access, Operand], sizes: Mapping[str, int], sparse: list[Access]
) -> Inferred:
    target = step.target
    kinds: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for index in target.indices:
        filters = [a for a in sparse if _filters(a, operands[a].format, index)]
        where = lattice.support_by(step.body, filters)
        kinds[index] = "dense" if where == EVERYWHERE else "sparse"
        names = ", ".join(dict.fromkeys(a.tensor for a in filters))
        reasons[index] = (
            f"{index} sparse: stored in {names}" if kinds[index] == "sparse" else f"{index} dense"
        )
    bound = _bound(operands, sparse, [i for i in target.indices if kinds[i] == "sparse"], sizes)
    room = math.prod(sizes[index] for index in target.indices)
    if all(kind == "dense" for kind in kinds.values()) and len(sparse) > 1:
        expected = _expected_entries(step, operands, sizes)
        is_smaller = room > SPARSE_WORTH * max(expected, 1)
        # Sums of sparse stay sparse: csr + csc, A + A.T.
        if (is_smaller or not step.reduced) and lattice.mentioned(support_of(step.body, operands)):
            last = target.indices[-1]
            kinds[last] = "sparse"
            reasons[last] = f"{last} sparse: all terms are sparse"
            if is_smaller:
                times = room / max(expected, 1)
                reasons[last] = f"{last} sparse: a dense result would be {times:.0f} times larger"
            bound = expected
    order = _stored_order(target, kinds, operands, sparse)
    seen_sparse = False
    for index in order:
        if kinds[index] == "sparse":
            seen_sparse = True
        elif seen_sparse:  # a sparse level above a dense one (rule 3)
            below = math.prod(sizes[i] for i in target.indices if kinds[i] == "dense")
            if room <= SPARSE_WORTH * bound * below:
                why = f"the dense result is at most {SPARSE_WORTH} times the bound of the sparse one"
                return Inferred(dense_format(len(target.indices)), (*reasons.values(), why))
            break
    if all(kind == "dense" for kind in kinds.values()):
        return Inferred(dense_format(len(target.indices)), tuple(reasons.values()))
    coordinate = all(operands[a].format.is_list for a in sparse)
    coordinate = coordinate and all(kind == "sparse" for kind in kinds.values())
    is_carried = any(support_of(step.body, operands) == lattice.stored(access) for access in sparse)
    if not coordinate and not is_carried:  # it has the outer levels of that operand
        outer = _outer_dense(step, operands, sizes, [index for index in order if kinds[index] == "sparse"])
        kinds |= dict.fromkeys(outer, "dense")
        reasons |= outer
    letter = {"dense": "d", "sparse": "o" if coordinate else "s"}
    letters = "".join(letter[kinds[index]] for index in order)
    found = Format(letters, order=[target.indices.index(index) for index in order])
    return Inferred(found, tuple(reasons.values()))


def _outer_dense(
    step: Step, operands: Mapping[Access, Operand], sizes: Mapping[str, int], indices: list[str]
) -> dict[str, str]:
    """Return which of the sparse ``indices`` to store dense, each with the reason.

    Those that together have few coordinates compared with the entries that are expected in the result, but
    never the last one. The counts of operands are rounded, as plans are cached by their magnitudes.
    """
    outer: dict[str, str] = {}
    entries, places = _expected_entries(step, operands, sizes, _round_down), 1
    for index in indices[:-1]:
        places *= sizes[index]
        if places > SPARSE_WORTH * entries:
            break
        outer[index] = f"{index} dense: at most {SPARSE_WORTH} coordinates for each expected entry"
    return outer


def _round_down(count: int) -> int:
    """Return the power of two that is at most ``count``, or 0."""
    return 1 << count.bit_length() >> 1


def _filters(access: Access, form: Format, index: str) -> bool:
    """Whether ``access`` stores ``index`` in a level that is not full."""
    return any(
        access.indices[dim] == index and not level.is_full
        for dim, level in zip(form.order, form.levels, strict=True)
    )


def _stored_order(
    target: Access, kinds: Mapping[str, str], operands: Mapping[Access, Operand], sparse: list[Access]
) -> list[str]:
    """Dense levels of sparse operands first, then sparse ones, then what only dense operands have.

    Inside each group the order of the operands is kept if they agree, else that of the target.
    """
    above: set[tuple[str, str]] = set()
    for access in sparse:
        stored = [access.indices[dim] for dim in operands[access].format.order]
        mine = [index for index in dict.fromkeys(stored) if index in target.indices]
        above |= {(first, second) for n, first in enumerate(mine) for second in mine[n + 1 :]}
    agree = not any((second, first) in above for first, second in above)

    def group(index: str) -> int:
        if kinds[index] == "sparse":
            return 1
        return 0 if any(index in access.indices for access in sparse) else 2

    def before(index: str) -> int:
        return sum((other, index) in above for other in target.indices) if agree else 0

    return sorted(target.indices, key=lambda i: (group(i), before(i), target.indices.index(i)))


def _bound(
    operands: Mapping[Access, Operand],
    sparse: list[Access],
    indices: list[str],
    sizes: Mapping[str, int],
) -> int:
    """At most how many coordinates of the sparse ``indices`` the result can store."""
    fibres = 1
    for access in sparse:
        operand = operands[access]
        levels = [
            level
            for level, dim in enumerate(operand.format.order)
            if access.indices[dim] in indices and not operand.format.levels[level].is_full
        ]
        if levels:
            fibres *= max(1, operand.counts[levels[-1]])
    return min(fibres, math.prod(sizes[index] for index in indices))


def _expected_entries(
    step: Step,
    operands: Mapping[Access, Operand],
    sizes: Mapping[str, int],
    rounded: Callable[[int], int] = lambda count: count,
) -> int:
    """About how many entries the result has if those of the operands lie anywhere."""
    total = 0.0
    for clause in support_of(step.body, operands):
        entries = float(math.prod(max(1, rounded(operands[access].nnz)) for access in clause))
        for index in step.indices:
            uses = sum(index in access.indices for access in clause)
            size = max(1, sizes[index])
            if uses == 0 and index in step.target.indices:  # repeated for every value of the index
                entries *= size
            entries /= size ** max(0, uses - 1)
        total += entries
    return int(min(total, 2**62))
