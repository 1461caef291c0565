"""Long statements cut into short ones, which are planned and compiled like any other.

    D[i] = A1[i] + ... + A300[i]    ->    C1[i] = A1[i] + ... + A16[i];  ...;  D[i] = C1[i] + C2[i] + ...

A kernel that merges many tensors takes long to plan and longer to compile, and the time grows faster than the
number of tensors. Parts are cut off that have an index of their own: a part without would be a scalar, which
promotes differently.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from scorch._src.dataclass import dataclass
from scorch._src.notation.indexing import Statement
from scorch._src.notation.nodes import Access, Assign, Expr, Op, Reduce
from scorch._src.notation.show import show
from scorch._src.notation.trees import accesses, children, free_indices, substitute, walk, with_children

MAX_ACCESSES = 12  # of one short statement


@dataclass(frozen=True)
class Short:
    """A statement to run, and the tensors it reads.

    ``text`` is the statement with tensors named by their place in ``reads``, A1, A2, ..., so that all
    statements that differ in names alone share a kernel.
    """

    statement: Statement
    reads: tuple[str, ...]
    text: str

    def named(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors that ``text`` reads, by their names in it."""
        return {name: tensors[read] for name, read in zip(self.names, self.reads, strict=True)}

    @property
    def target(self) -> str:
        """The name of the tensor that it computes."""
        return self.statement.assign.target.tensor

    @property
    def names(self) -> tuple[str, ...]:
        return _names(self.statement, len(self.reads))


def cut(statement: Statement, most: int = MAX_ACCESSES) -> tuple[Short, ...]:
    """The short statements that ``statement`` is run as, in order; the last one has its target.

    >>> from scorch._src.notation.indexing import parse
    >>> from scorch._src.notation.show import show
    >>> [show(short.statement) for short in cut(parse("y[i] = (a[i] + b[i]) + (c[i] + d[i])"), most=2)]
    ['C1[i] = a[i] + b[i]', 'C2[i] = c[i] + d[i]', 'y[i] = C1[i] + C2[i]']
    """
    target, value = statement.assign.target, statement.assign.value
    if len(accesses(value)) <= most:
        return (_short(statement),)
    taken = {target.tensor} | {access.tensor for access in accesses(value)}
    names = (name for name in (f"C{n}" for n in itertools.count(1)) if name not in taken)
    shorts: list[Short] = []
    if statement.accumulate:
        assert isinstance(value, Op)
        own, rest = value.args
        value = Op("add", (own, _shortened(rest, most - 1, names, shorts)))
    else:
        value = _shortened(value, most, names, shorts)
    return (*shorts, _short(Statement(Assign(target, value), statement.accumulate)))


def _short(statement: Statement) -> Short:
    target, value = statement.assign.target, statement.assign.value
    reads = tuple(dict.fromkeys(access.tensor for access in accesses(value)))
    names = dict(zip(reads, _names(statement, len(reads)), strict=True))
    renamed = {access: Access(names[access.tensor], access.indices) for access in accesses(value)}
    result = Access(names.get(target.tensor, "R" + "_" * _underscores(statement)), target.indices)
    plain = Statement(Assign(result, substitute(value, renamed)), statement.accumulate)
    return Short(statement, reads, show(plain))


def _names(statement: Statement, count: int) -> tuple[str, ...]:
    return tuple(f"A{n}" + "_" * _underscores(statement) for n in range(1, count + 1))


def _underscores(statement: Statement) -> int:
    """How many underscores make a name that is none of the indices'."""
    indices = {index for node in walk(statement.assign.value) for index in getattr(node, "indices", ())}
    return max((len(i) - len(i.rstrip("_")) + 1 for i in indices if re.match(r"A\d+_*$|R_*$", i)), default=0)


def _shortened(expr: Expr, most: int, names: Iterator[str], shorts: list[Short]) -> Expr:
    """``expr`` with at most ``most`` accesses where it can be: the largest parts are cut off."""
    if len(accesses(expr)) <= most:
        return expr
    parts = [_shortened(part, most, names, shorts) for part in children(expr)]
    while len(accesses(with_children(expr, tuple(parts)))) > most:
        place = max(range(len(parts)), key=lambda n: _gain(parts[n]))
        if _gain(parts[place]) == 0:
            break
        access = Access(next(names), free_indices(parts[place]))
        shorts.append(_short(Statement(Assign(access, parts[place]))))
        parts[place] = access
    return with_children(expr, tuple(parts))


def _gain(part: Expr) -> int:
    """How many accesses fewer there are when ``part`` is cut off."""
    return len(accesses(part)) - 1 if isinstance(part, Op | Reduce) and free_indices(part) else 0
