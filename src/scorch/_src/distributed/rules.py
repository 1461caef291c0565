"""What a statement over sharded tensors means for each rank, and what ranks exchange around it.

The entries of a sharded tensor ``A[i,j,...]`` are distributed over ranks: each has some coordinates of ``i``
and some of ``j``, and every entry is on exactly one rank. ``partition`` reads a statement and finds which
operands have to fetch rows of ``i`` or ``j``, and what becomes of the result: partial rows are folded, a
result without ``i`` and ``j`` is summed, entries in the sparsity pattern of ``A`` stay where they are. A
statement whose result would differ from that of one process is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from scorch._src.dataclass import dataclass
from scorch._src.loops.operators import OPERATORS, REDUCTIONS
from scorch._src.notation.nodes import Access, Assign, Expr, Literal, Op, Reduce
from scorch._src.notation.show import show
from scorch._src.notation.trees import accesses
from scorch.errors import UnsupportedError

LOCAL, FOLD_ROWS, FOLD_COLUMNS, SUM, SHARDED = "local", "fold rows", "fold columns", "sum", "sharded"


@dataclass(frozen=True)
class Partition:
    """How ranks compute a statement together.

    ``extend`` says for each dense operand which of its dimensions fetches rows from others, by the index that
    is sharded there. ``outcome`` is what becomes of a rank's result, whose sharded dimension is ``dim``.
    """

    row: str
    column: str
    extend: Mapping[str, tuple[tuple[int, str], ...]]
    outcome: str
    dim: int = 0


def partition(assign: Assign, sharded: frozenset[str], has_split_rows: bool) -> Partition:
    """Find how ranks compute a statement together, in which some tensors are sharded."""
    row, column = _sharded_indices(assign, sharded)
    extend: dict[str, tuple[tuple[int, str], ...]] = {}
    for access in accesses(assign.value):
        if access.tensor in sharded:
            continue
        found = tuple((dim, index) for dim, index in enumerate(access.indices) if index in (row, column))
        if len(found) > 1:
            raise _refusal(assign, f"{show(access)} would be dense over rows and columns of a sharded tensor")
        if extend.setdefault(access.tensor, found) != found:
            raise _refusal(assign, f"{access.tensor} is indexed by both sharded indices")
    outcome, dim = _outcome(assign, sharded, row, column, has_split_rows)
    return Partition(row, column, extend, outcome, dim)


def _sharded_indices(assign: Assign, sharded: frozenset[str]) -> tuple[str, str]:
    found = {access.indices[:2]: access for access in accesses(assign.value) if access.tensor in sharded}
    if len(found) != 1:
        different = " and ".join(show(access) for access in found.values())
        raise _refusal(assign, f"{different} have different indices; multiply two sharded tensors with A @ B")
    row, column = next(iter(found))
    if row == column:
        raise _refusal(assign, "the entries of a sharded tensor's diagonal are on different ranks")
    return row, column


def check_spelling(expression: str, assign: Assign, sharded: frozenset[str]) -> None:
    """Refuse a name that is a sharded index in one place and another index elsewhere.

    Dense operands have this rank's rows where an index is sharded: ``b[j]`` of the other index would have
    to be whole, although it looks as if it were sharded.
    """
    words = set(re.findall(r"\w+", expression))

    def spelled(index: str) -> str:  # the parser gives an index that is bound twice a fresh name
        return index if index in words else index.rpartition("_")[0]

    cut = _sharded_indices(assign, sharded)
    names = {spelled(index) for index in cut}
    for access in accesses(assign.value):
        for index in access.indices:
            if index not in cut and spelled(index) in names:
                name = spelled(index)
                raise _refusal(
                    assign,
                    f"{name} is a sharded index, but means another index in {show(access)}; rename one",
                )


def _outcome(
    assign: Assign, sharded: frozenset[str], row: str, column: str, has_split_rows: bool
) -> tuple[str, int]:
    target, value = assign.target.indices, assign.value
    kept = [index for index in (row, column) if index in target]
    if len(kept) == 2:
        if target[:2] != (row, column):
            raise _refusal(assign, f"{row} and {column} must come first in the result, in this order")
        if not vanishes(value, sharded):
            raise _refusal(assign, f"the result is nonzero where {_names(sharded)} has implicit zeros")
        _check_inner(assign, value, sharded, {row, column}, "" if has_split_rows else column)
        return SHARDED, 0
    if kept == [row] and not has_split_rows:
        _check_inner(assign, value, sharded, {row, column}, allowed=column)
        return LOCAL, target.index(row)
    # Each rank has some terms of the sum, so that nothing may be computed from it, nor added to it.
    _check_sum(assign, value, sharded, {row, column} - set(kept))
    if not kept:
        return SUM, 0
    return (FOLD_ROWS if kept == [row] else FOLD_COLUMNS), target.index(kept[0])


def _check_inner(
    assign: Assign, expr: Expr, sharded: frozenset[str], cut: set[str], allowed: str = ""
) -> None:
    """Check every reduction over a sharded index: only ``allowed``, of which a rank has all entries."""
    match expr:
        case Reduce(op, indices, body):
            for index in set(indices) & cut:
                if index != allowed:
                    raise _refusal(assign, f"the sum over {index} is used before it is complete")
                if not REDUCTIONS[op].skips_zero or not vanishes(body, sharded):
                    raise _refusal(
                        assign,
                        f"{op} over {index} depends on more than the stored entries of {_names(sharded)}",
                    )
            _check_inner(assign, body, sharded, cut, allowed)
        case Op(_, args):
            for part in args:
                _check_inner(assign, part, sharded, cut, allowed)


def _check_sum(assign: Assign, expr: Expr, sharded: frozenset[str], summed: set[str]) -> None:
    """Check that a value is a sum over the entries of sharded tensors, which ranks can add up in parts."""
    match expr:
        case Reduce("sum", indices, body):
            _check_sum(assign, body, sharded, summed - set(indices))
        case Op("add" | "sub", args):
            for part in args:
                _check_sum(assign, part, sharded, summed)
        case Op("neg", (part,)):
            _check_sum(assign, part, sharded, summed)
        case Op("mul", (factor, part)) if not _reads(factor, sharded):
            _check_sum(assign, part, sharded, summed)
        case Op("mul" | "div", (part, factor)) if not _reads(factor, sharded):
            _check_sum(assign, part, sharded, summed)
        case _ if not summed and vanishes(expr, sharded):
            _check_inner(assign, expr, sharded, set(_sharded_indices(assign, sharded)))
        case _:
            raise _refusal(assign, f"{show(expr)} needs complete sums, but each rank has only partial sums")


def _reads(expr: Expr, sharded: frozenset[str]) -> bool:
    return any(access.tensor in sharded for access in accesses(expr))


def vanishes(expr: Expr, sharded: frozenset[str]) -> bool:
    """Return whether an expression is zero wherever sharded tensors have implicit zeros."""
    match expr:
        case Access(tensor, _):
            return tensor in sharded
        case Literal(value):
            return value == 0
        case Reduce(op, _, body):
            return op != "prod" and vanishes(body, sharded)
        case Op(name, args):
            parts, operator = [vanishes(part, sharded) for part in args], OPERATORS[name]
            if operator.support == "all":
                return any(parts)
            if operator.support == "first":
                return parts[0]
            return operator.keeps_zero and all(parts)
    raise AssertionError(f"not an expression: {expr!r}")


def _names(sharded: frozenset[str]) -> str:
    return " or ".join(sorted(sharded))


def _refusal(assign: Assign, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{show(assign)} is not supported for sharded tensors: {why}. Split it into several statements, or "
        "gather the operands first (A.gather())"
    )
