"""Small questions and rewrites over expression trees, shared by the parsers and the compiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from scorch._src.notation.nodes import Access, Expr, Literal, Op, Reduce


def children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Access() | Literal():
            return ()
        case Op(_, args):
            return args
        case Reduce(_, _, body):
            return (body,)
    raise AssertionError(f"not an expression: {expr!r}")


def with_children(expr: Expr, parts: tuple[Expr, ...]) -> Expr:
    """The same node over other parts."""
    match expr:
        case Access() | Literal():
            return expr
        case Op(name, _):
            return Op(name, parts)
        case Reduce(op, indices, _):
            return Reduce(op, indices, parts[0])
    raise AssertionError(f"not an expression: {expr!r}")


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node, parents before children and left before right."""
    yield expr
    for part in children(expr):
        yield from walk(part)


def accesses(expr: Expr) -> tuple[Access, ...]:
    """The distinct accesses in order of first appearance.

    >>> accesses(Op("mul", (Access("A", ("i",)), Op("add", (Access("A", ("i",)), Access("b", ()))))))
    (Access(tensor='A', indices=('i',)), Access(tensor='b', indices=()))
    """
    return tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, Access)))


def free_indices(expr: Expr) -> tuple[str, ...]:
    """The indices that no ``Reduce`` inside ``expr`` binds, in order of first appearance.

    >>> free_indices(Reduce("sum", ("k",), Op("mul", (Access("A", ("i", "k")), Access("B", ("k", "j"))))))
    ('i', 'j')
    """
    match expr:
        case Access(_, indices):
            return tuple(dict.fromkeys(indices))
        case Reduce(_, bound, body):
            return tuple(index for index in free_indices(body) if index not in bound)
        case _:
            return tuple(dict.fromkeys(index for part in children(expr) for index in free_indices(part)))


def rename(expr: Expr, mapping: Mapping[str, str]) -> Expr:
    """Give indices other names, where they are bound as well as where they are used.

    >>> rename(Reduce("sum", ("k",), Access("A", ("i", "k"))), {"k": "l"})
    Reduce(op='sum', indices=('l',), body=Access(tensor='A', indices=('i', 'l')))
    """
    match expr:
        case Access(tensor, indices):
            return Access(tensor, tuple(mapping.get(index, index) for index in indices))
        case Reduce(op, indices, body):
            return Reduce(op, tuple(mapping.get(index, index) for index in indices), rename(body, mapping))
        case _:
            return with_children(expr, tuple(rename(part, mapping) for part in children(expr)))


def with_unique_binders(expr: Expr, outer: Iterable[str], names: Iterable[str]) -> Expr:
    """Give each ``Reduce`` indices of its own, different from ``outer``; fresh ones avoid ``names`` too.

    A[i,j] / sum(j, A[i,j])   ->   A[i,j] / sum(j_1, A[i,j_1])      where outer is (i, j)
    """
    bound = set(outer)
    avoid = frozenset(names)

    def unique(index: str) -> str:
        fresh, n = index, 0
        while fresh in bound or (n and fresh in avoid):
            n += 1
            fresh = f"{index}_{n}"
        bound.add(fresh)
        return fresh

    def visit(expr: Expr, scope: Mapping[str, str]) -> Expr:
        match expr:
            case Access(tensor, indices):
                return Access(tensor, tuple(scope.get(index, index) for index in indices))
            case Reduce(op, indices, body):
                own = {index: unique(index) for index in indices}
                return Reduce(op, tuple(own.values()), visit(body, {**scope, **own}))
            case _:
                return with_children(expr, tuple(visit(part, scope) for part in children(expr)))

    return visit(expr, {})


def substitute(expr: Expr, replacements: Mapping[Access, Expr]) -> Expr:
    """Put other expressions in the place of accesses.

    >>> substitute(Op("neg", (Access("A", ("i",)),)), {Access("A", ("i",)): Literal(0)})
    Op(name='neg', args=(Literal(value=0),))
    """
    if isinstance(expr, Access):
        return replacements.get(expr, expr)
    return with_children(expr, tuple(substitute(part, replacements) for part in children(expr)))
