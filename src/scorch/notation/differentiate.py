"""Derivatives of statements, as statements.

The gradient of an index expression with respect to a tensor is an index expression of the incoming gradient
and all tensors. For a tensor that is stored sparsely it is multiplied by a mask of its pattern, inside the
sum, so that only stored places are computed:

    C[i,k] = A[i,j] * B[j,k]       ->       dA[i,j] = sum(k, P[i,j] * dC[i,k] * B[j,k])

A tensor that is used several times has a gradient for each use, to be added up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scorch.errors import UnsupportedError
from scorch.notation.nodes import Access, Assign, Expr, Literal, Op, Reduce
from scorch.notation.trees import accesses, free_indices, walk, with_unique_binders

Partials = Callable[[Expr, tuple[Expr, ...]], Sequence[Expr | None]]


@dataclass(frozen=True)
class Gradient:
    """The gradient for one use of a tensor.

    ``dims`` are the dimensions of the tensor that the target has, in order; along all others the gradient is
    constant. It is to be multiplied by the sizes of ``repeated``, indices that were summed over although
    nothing depends on them. ``diagonals`` lists tensors that the statement needs besides those given: the
    identity matrix of the size of a dimension, for a use such as ``A[i,i]``.
    """

    statement: Assign
    dims: tuple[int, ...]
    repeated: tuple[str, ...]
    diagonals: tuple[tuple[str, int], ...]


def gradients(assign: Assign, tensor: str, incoming: str, mask: str | None) -> tuple[Gradient, ...]:
    """The gradients for every use of ``tensor``, of the result's gradient called ``incoming``.

    ``mask`` is the name of its pattern with ones, or None if the tensor is dense.
    """
    start = Access(incoming, assign.target.indices)
    names = {access.tensor for access in accesses(assign.value)} | {incoming, assign.target.tensor}
    names |= {index for node in walk(assign.value) for index in _indices(node)} | set(assign.target.indices)
    if mask is not None:
        names.add(mask)
    found = _uses(assign.value, tensor, start, ())
    return tuple(_gradient(access, value, scope, mask, names) for access, value, scope in found)


def uses_of(body: Expr, tensor: str, incoming: Access) -> tuple[tuple[Access, Expr], ...]:
    """Every use of ``tensor`` in ``body``, which holds no reduction, with what comes back to it.

    >>> from scorch.notation.show import show
    >>> product = Op("mul", (Access("A", ("i", "j")), Access("x", ("j",))))
    >>> [show(value) for _, value in uses_of(product, "x", Access("g", ("i",)))]
    ['g[i] * A[i,j]']
    """
    return tuple((access, value) for access, value, _ in _uses(body, tensor, incoming, ()))


def tangent(assign: Assign, tangents: Mapping[str, str], sizes: Mapping[str, int]) -> Assign | None:
    """How the result changes with the tensors: ``tangents`` names the change of each; None if it does not."""
    changed = _tangent(assign.value, tangents, sizes)
    if changed is None:
        return None
    return Assign(assign.target, _unique(changed, assign.target.indices))


# backward --------------------------------------------------------------------------------------------


def _uses(
    expr: Expr, tensor: str, incoming: Expr, scope: tuple[str, ...]
) -> Iterator[tuple[Access, Expr, tuple[str, ...]]]:
    """Every use of ``tensor`` in ``expr``: its gradient, and the indices that are summed over around it."""
    match expr:
        case Access(name, _) if name == tensor:
            yield expr, incoming, scope
        case Op(name, args):
            for part, value in zip(args, _partials(name)(incoming, args), strict=True):
                if value is not None:
                    yield from _uses(part, tensor, value, scope)
        case Reduce(op, indices, body):
            if any(access.tensor == tensor for access in accesses(body)):
                yield from _uses(body, tensor, _through(op, indices, body, incoming), (*scope, *indices))


def _gradient(
    access: Access, value: Expr, scope: tuple[str, ...], mask: str | None, names: set[str]
) -> Gradient:
    fresh = (name for n in range(10_000) for name in (f"d{n}",) if name not in names)
    target: list[str] = []
    factors: list[Expr] = []
    diagonals: list[tuple[str, int]] = []
    for dim, index in enumerate(access.indices):
        if index not in target:
            target.append(index)
            continue
        name, again = next(fresh), next(fresh)
        target.append(again)
        factors.append(Access(name, (index, again)))
        diagonals.append((name, dim))
    if mask is not None:
        factors.insert(0, Access(mask, tuple(target)))
    factors = sorted([*factors, *_factors(value)], key=lambda factor: isinstance(factor, Literal))
    free = free_indices(_product(factors))
    dims = tuple(dim for dim, index in enumerate(target) if index in free)
    kept = tuple(target[dim] for dim in dims)
    repeated = tuple(index for index in scope if index not in free and index not in target)
    statement = Assign(Access(next(fresh), kept), _unique(_summed(factors, kept), kept))
    return Gradient(statement, dims, repeated, tuple(diagonals))


def _summed(factors: Sequence[Expr], kept: tuple[str, ...]) -> Expr:
    """The product of ``factors`` summed over all indices but ``kept``.

    What has none of those stays outside if the sum is a vector or a number then; else the sum may have more
    places than are stored, and so the mask goes inside.
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
    names = {name for node in walk(expr) for name in _indices(node)}
    return with_unique_binders(expr, outer, names | {access.tensor for access in accesses(expr)})


def _indices(expr: Expr) -> tuple[str, ...]:
    return expr.indices if isinstance(expr, Access | Reduce) else ()


# forward ---------------------------------------------------------------------------------------------


def _tangent(expr: Expr, tangents: Mapping[str, str], sizes: Mapping[str, int]) -> Expr | None:
    match expr:
        case Access(name, indices):
            return Access(tangents[name], indices) if name in tangents else None
        case Op(name, args):
            changes = [_tangent(part, tangents, sizes) for part in args]
            terms: list[Expr] = []
            for place, change in enumerate(changes):
                if change is not None:
                    value = _partials(name)(change, args)[place]
                    if value is not None:
                        terms.append(value)
            return functools.reduce(_plus, terms) if terms else None
        case Reduce(op, indices, body):
            change = _tangent(body, tangents, sizes)
            if change is None:
                return None
            change = _through(op, indices, body, change)
            free = free_indices(change)
            for index in indices:
                change = change if index in free else _times(Literal(sizes[index]), change)
            kept = tuple(index for index in indices if index in free)
            return Reduce("sum", kept, change) if kept else change
    return None


# rules -----------------------------------------------------------------------------------------------


def _through(op: str, indices: tuple[str, ...], body: Expr, incoming: Expr) -> Expr:
    """What ``incoming``, multiplied by the derivative of a reduction by its body, is for one place of it."""
    zero = Literal(0)
    match op:
        case "sum":
            return incoming
        case "max" | "min":  # shared evenly among all places that have the extreme value, as in torch
            is_extreme = Op("eq", (body, Reduce(op, indices, body)))
            count = Reduce("sum", indices, Op("where", (is_extreme, Literal(1.0), Literal(0.0))))
            return Op("where", (is_extreme, Op("div", (incoming, count)), zero))
        case "prod":
            is_zero = Op("eq", (body, zero))
            others = Reduce("prod", indices, Op("where", (is_zero, Literal(1), body)))
            zeros = Reduce("sum", indices, Op("where", (is_zero, Literal(1), Literal(0))))
            given = _times(incoming, others)
            without = Op("where", (Op("eq", (zeros, Literal(0))), Op("div", (given, body)), zero))
            alone = Op("where", (Op("eq", (zeros, Literal(1))), given, zero))
            return Op("where", (is_zero, alone, without))
    raise UnsupportedError(f"{op}(...) in an expression has no gradient; take .detach() of its tensors")


def _times(a: Expr, b: Expr) -> Expr:
    return Op("mul", (a, b))


def _plus(a: Expr, b: Expr) -> Expr:
    return Op("add", (a, b))


def _minus(a: Expr) -> Expr:
    return Op("neg", (a,))


def _call(name: str, *args: Expr) -> Expr:
    return Op(name, args)


def _selected(condition: str, u: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """The gradients of maximum and minimum: where both are equal, each gets half of it, as in torch."""
    half = _times(Literal(0.5), u)
    zero = Literal(0)
    mine = _call("where", _call(condition, a, b), u, _call("where", _call("eq", a, b), half, zero))
    other = _call("where", _call(condition, b, a), u, _call("where", _call("eq", a, b), half, zero))
    return mine, other


_ONE = Literal(1)
# For each operator what ``u``, multiplied by its derivative by each argument, is; None: it has none there.
_RULES: dict[str, Callable[..., Sequence[Expr | None]]] = {
    "add": lambda u, a, b: (u, u),
    "sub": lambda u, a, b: (u, _minus(u)),
    "mul": lambda u, a, b: (_times(u, b), _times(u, a)),
    "div": lambda u, a, b: (_call("div", u, b), _minus(_call("div", _times(u, a), _times(b, b)))),
    "neg": lambda u, a: (_minus(u),),
    "relu": lambda u, a: (_call("where", _call("gt", a, Literal(0)), u, Literal(0)),),
    "abs": lambda u, a: (_times(u, _call("sign", a)),),
    "sqrt": lambda u, a: (_call("div", u, _times(Literal(2), _call("sqrt", a))),),
    "tanh": lambda u, a: (_times(u, _call("sub", _ONE, _call("square", _call("tanh", a)))),),
    "sin": lambda u, a: (_times(u, _call("cos", a)),),
    "cos": lambda u, a: (_minus(_times(u, _call("sin", a))),),
    "exp": lambda u, a: (_times(u, _call("exp", a)),),
    "expm1": lambda u, a: (_times(u, _call("exp", a)),),
    "log": lambda u, a: (_call("div", u, a),),
    "log1p": lambda u, a: (_call("div", u, _plus(a, _ONE)),),
    "square": lambda u, a: (_times(u, _times(Literal(2), a)),),
    "sigmoid": lambda u, a: (
        _times(u, _times(_call("sigmoid", a), _call("sub", _ONE, _call("sigmoid", a)))),
    ),
    "maximum": lambda u, a, b: _selected("gt", u, a, b),
    "minimum": lambda u, a, b: _selected("lt", u, a, b),
    "where": lambda u, c, a, b: (
        None,
        _call("where", c, u, Literal(0)),
        _call("where", c, Literal(0), u),
    ),
}


def _partials(name: str) -> Partials:
    """The rule of an operator; those that jump between constants have the derivative zero: none."""
    rule = _RULES.get(name)
    if rule is None:
        return lambda u, args: (None,) * len(args)
    return lambda u, args: rule(u, *args)
