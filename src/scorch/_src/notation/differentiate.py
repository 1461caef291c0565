"""Derivatives of statements, as statements.

The gradient of an index expression with respect to a tensor is an index expression of the incoming gradient
and all tensors. For a tensor that is stored sparsely it is multiplied by a mask of its pattern, inside the
sum, so that only stored elements are computed:

    C[i,k] = A[i,j] * B[j,k]       ->       dA[i,j] = sum(k, P[i,j] * dC[i,k] * B[j,k])

A tensor that is used several times has a gradient for each use, to be added up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

from scorch._src.dataclass import dataclass
from scorch._src.loops.operators import OPERATORS, Build
from scorch._src.notation.nodes import Access, Assign, Expr, Literal, Op, Reduce
from scorch._src.notation.trees import accesses, free_indices, rename, walk, with_unique_binders
from scorch.errors import UnsupportedError

Partials = Callable[[Expr, tuple[Expr, ...]], Sequence[Expr | None]]


@dataclass(frozen=True)
class Gradient:
    """The gradient for one use of a tensor.

    ``dims`` are the dimensions of the tensor that the target has, in order; along all others the gradient is
    constant. It is to be multiplied by the sizes of ``repeated``, indices that were summed over although
    nothing depends on them. ``diagonals`` lists tensors that the statement needs besides those given: the
    identity matrix of the size of an index, for a use such as ``A[i,i]``.
    """

    statement: Assign
    dims: tuple[int, ...]
    repeated: tuple[str, ...]
    diagonals: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Tangent:
    """How a result changes with its tensors; ``diagonals`` as those of a gradient."""

    statement: Assign
    diagonals: tuple[tuple[str, str], ...]


def gradients(
    assign: Assign, tensor: str, incoming: str, mask: str | None, again: bool = False
) -> tuple[Gradient, ...]:
    """The gradients for every use of ``tensor``, of the result's gradient called ``incoming``.

    ``mask`` is the name of its pattern with ones, or None if the tensor is dense. ``again``: the gradient is
    differentiated in its turn.
    """
    start = Access(incoming, assign.target.indices)
    work = _Work(again, _names(assign.target, assign.value) | {incoming, mask or incoming})
    uses = list(_uses(assign.value, tensor, start, (), work))
    return tuple(_gradient(access, value, scope, mask, work) for access, value, scope in uses)


def uses_of(body: Expr, tensor: str, incoming: Access) -> tuple[tuple[Access, Expr], ...]:
    """Every use of ``tensor`` in ``body``, which holds no reduction, with what comes back to it.

    >>> from scorch._src.notation.show import show
    >>> product = Op("mul", (Access("A", ("i", "j")), Access("x", ("j",))))
    >>> [show(value) for _, value in uses_of(product, "x", Access("g", ("i",)))]
    ['g[i] * A[i,j]']
    """
    return tuple(
        (access, value) for access, value, _ in _uses(body, tensor, incoming, (), _Work(False, set()))
    )


def tangent(
    assign: Assign, tangents: Mapping[str, str], sizes: Mapping[str, int], again: bool = False
) -> Tangent | None:
    """How the result changes with the tensors: ``tangents`` names the change of each; None if it does not."""
    work = _Work(again, _names(assign.target, assign.value) | set(tangents.values()))
    changed = _tangent(assign.value, tangents, sizes, work)
    if changed is None:
        return None
    statement = Assign(assign.target, _unique(changed, assign.target.indices))
    return Tangent(statement, tuple(work.diagonals))


@dataclass
class _Work:
    """Where derivatives are put together: the names in use, and the identity matrices that they need."""

    again: bool
    taken: set[str]
    diagonals: list[tuple[str, str]] = field(default_factory=list)

    def fresh(self) -> str:
        """A name that nothing has."""
        name = next(name for n in range(10_000) for name in (f"d{n}",) if name not in self.taken)
        self.taken.add(name)
        return name

    def diagonal(self, index: str) -> str:
        """The identity matrix of the size of ``index``."""
        name = self.fresh()
        self.diagonals.append((name, index))
        return name


def _names(*expressions: Expr) -> set[str]:
    """All names in expressions: of tensors and of indices."""
    nodes = [node for expr in expressions for node in walk(expr)]
    names = {node.tensor for node in nodes if isinstance(node, Access)}
    return names | {index for node in nodes if isinstance(node, Access | Reduce) for index in node.indices}


# backward --------------------------------------------------------------------------------------------


def _uses(
    expr: Expr, tensor: str, incoming: Expr, scope: tuple[str, ...], work: _Work
) -> Iterator[tuple[Access, Expr, tuple[str, ...]]]:
    """Every use of ``tensor`` in ``expr``: its gradient, and the indices that are summed over around it."""
    match expr:
        case Access(name, _) if name == tensor:
            yield expr, incoming, scope
        case Op(name, args):
            for part, value in zip(args, _partials(name)(incoming, args), strict=True):
                if value is not None:
                    yield from _uses(part, tensor, value, scope, work)
        case Reduce(op, indices, body):
            if any(access.tensor == tensor for access in accesses(body)):
                inner = _through(op, indices, body, incoming, work)
                yield from _uses(body, tensor, inner, (*scope, *indices), work)


def _gradient(access: Access, value: Expr, scope: tuple[str, ...], mask: str | None, work: _Work) -> Gradient:
    target: list[str] = []
    factors: list[Expr] = []
    for index in access.indices:
        if index not in target:
            target.append(index)
            continue
        again = work.fresh()
        target.append(again)
        factors.append(Access(work.diagonal(index), (index, again)))
    if mask is not None:
        factors.insert(0, Access(mask, tuple(target)))
    factors = sorted([*factors, *_factors(value)], key=lambda factor: isinstance(factor, Literal))
    free = free_indices(_product(factors))
    dims = tuple(dim for dim, index in enumerate(target) if index in free)
    kept = tuple(target[dim] for dim in dims)
    repeated = tuple(index for index in scope if index not in free and index not in target)
    statement = Assign(Access(work.fresh(), kept), _unique(_summed(factors, kept), kept))
    used = {part.tensor for part in accesses(statement.value)}
    diagonals = tuple((name, index) for name, index in work.diagonals if name in used)
    return Gradient(statement, dims, repeated, diagonals)


def _summed(factors: Sequence[Expr], kept: tuple[str, ...]) -> Expr:
    """The product of ``factors`` summed over all indices but ``kept``.

    What has none of those stays outside if the sum is a vector or a number then; else the sum may have more
    elements than are stored, and so the mask goes inside.
    """
    summed = tuple(index for index in free_indices(_product(factors)) if index not in kept)
    if not summed:
        return _product(factors)
    inside = [factor for factor in factors if not set(summed).isdisjoint(free_indices(factor))]
    outside = [factor for factor in factors if factor not in inside]
    if len(set(free_indices(_product(inside))) - set(summed)) > 1 or not outside:
        return Reduce("sum", summed, _product(factors))
    return _product([*outside, Reduce("sum", summed, _product(inside))])


def _factors(expr: Expr) -> list[Expr]:
    match expr:
        case Op("mul", (left, right)):
            return [*_factors(left), *_factors(right)]
        case Op("neg", (part,)):
            return [Literal(-1), *_factors(part)]
    return [expr]


def _product(factors: Sequence[Expr]) -> Expr:
    return functools.reduce(_times, factors)


def _unique(expr: Expr, outer: tuple[str, ...]) -> Expr:
    return with_unique_binders(expr, outer, _names(expr))


# forward ---------------------------------------------------------------------------------------------


def _tangent(expr: Expr, tangents: Mapping[str, str], sizes: Mapping[str, int], work: _Work) -> Expr | None:
    match expr:
        case Access(name, indices):
            return Access(tangents[name], indices) if name in tangents else None
        case Op(name, args):
            changes = [_tangent(part, tangents, sizes, work) for part in args]
            rule = _partials(name)
            terms = [rule(change, args)[n] for n, change in enumerate(changes) if change is not None]
            known = [term for term in terms if term is not None]
            return functools.reduce(_plus, known) if known else None
        case Reduce(op, indices, body):
            change = _tangent(body, tangents, sizes, work)
            if change is None:
                return None
            change = _through(op, indices, body, change, work)
            free = free_indices(change)
            for index in indices:
                change = change if index in free else _times(Literal(sizes[index]), change)
            kept = tuple(index for index in indices if index in free)
            return Reduce("sum", kept, change) if kept else change
    return None


# rules -----------------------------------------------------------------------------------------------


def _through(op: str, indices: tuple[str, ...], body: Expr, incoming: Expr, work: _Work) -> Expr:
    """What ``incoming``, multiplied by the derivative of a reduction by its body, is for one place of it."""
    zero = Literal(0)
    match op:
        case "sum":
            return incoming
        case "max" | "min":  # shared evenly among all places that have the extreme value, as in torch
            extreme = Reduce(op, indices, body)
            share = Op("div", (incoming, _ties(indices, body, extreme, work)))
            return Op("where", (Op("eq", (body, extreme)), share, zero))
        case "prod":
            return _times(incoming, _others(indices, body, work) if work.again else _divided(indices, body))
    raise UnsupportedError(f"{op}(...) is not differentiable in an expression; call .detach() on its tensors")


def _ties(indices: tuple[str, ...], body: Expr, extreme: Expr, work: _Work) -> Expr:
    """How many elements have the extreme value, counted where the body is not zero only.

    If it is zero, those are all elements but the others.
    """
    zero, one = Literal(0.0), Literal(1.0)
    is_zero = Op("eq", (extreme, zero))
    hit = Op("where", (Op("eq", (body, extreme)), one, zero))
    counted = Op("sub", (hit, Op("where", (is_zero, one, zero))))
    ties = Reduce("sum", indices, Op("where", (Op("ne", (body, zero)), counted, zero)))
    places = _product([_size(index, work) for index in indices])
    return _plus(ties, Op("where", (is_zero, places, zero)))


def _size(index: str, work: _Work) -> Expr:
    """The size of an index: the sum of its identity matrix."""
    name, own = work.diagonal(index), (work.fresh(), work.fresh())
    return Reduce("sum", own, Access(name, own))


def _divided(indices: tuple[str, ...], body: Expr) -> Expr:
    """The product over all other elements, by division; where the body is zero, not to be differentiated."""
    zero, one = Literal(0), Literal(1)
    is_zero = Op("eq", (body, zero))
    nonzero = Op("where", (is_zero, one, body))
    product = Reduce("prod", indices, nonzero)
    zeros = Reduce("sum", indices, Op("where", (is_zero, one, zero)))
    without = Op("where", (Op("eq", (zeros, zero)), Op("div", (product, nonzero)), zero))
    alone = Op("where", (Op("eq", (zeros, one)), product, zero))
    return Op("where", (is_zero, alone, without))


def _others(indices: tuple[str, ...], body: Expr, work: _Work) -> Expr:
    """The product over all other elements as such, which has derivatives everywhere, in quadratic time."""
    own = {index: work.fresh() for index in indices}
    is_same = _product([Access(work.diagonal(index), (index, other)) for index, other in own.items()])
    bodies = Op("where", (Op("ne", (is_same, Literal(0))), Literal(1), rename(body, own)))
    return Reduce("prod", tuple(own.values()), bodies)


def _times(a: Expr, b: Expr) -> Expr:
    return Op("mul", (a, b))


def _plus(a: Expr, b: Expr) -> Expr:
    return Op("add", (a, b))


BUILD = Build(lambda name, args: Op(name, tuple(map(_as_expr, args))))


def _as_expr(value: Expr | float) -> Expr:
    return Literal(value) if isinstance(value, (int, float)) else value


def _partials(name: str) -> Partials:
    """``u`` times the derivative of an operator by each argument; those that jump have none."""
    rule = OPERATORS[name].derivative
    if rule is None:
        return lambda u, args: (None,) * len(args)
    return lambda u, args: [None if part is None else _as_expr(part) for part in rule(BUILD, u, *args)]
