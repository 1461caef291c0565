"""Where an expression can differ from zero: the one question behind co-iteration and format inference.

Every operator knows where its result is zero when arguments are (``loops.operators``). Put together for a
whole expression this gives a *support*: a monotone formula over accesses, kept as the set of its
smallest sets of accesses (a sum of products). ``A * B`` has the support A and B, ``A + B`` has A or B,
``exp(A)`` is supported everywhere. A loop must visit a coordinate exactly if the accesses stored there
satisfy the formula; a result's level is sparse exactly if its formula is not ``EVERYWHERE``. The merge
lattice of TACO and Algorithm 4 of the paper are special cases for + and *.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from scorch._src.loops.operators import OPERATORS
from scorch._src.notation.nodes import Access, Expr, Literal, Op, Reduce
from scorch._src.notation.trees import accesses

Support = frozenset[frozenset[Access]]

EVERYWHERE: Support = frozenset({frozenset()})
NOWHERE: Support = frozenset()


def stored(access: Access) -> Support:
    """The support of an access by itself: where it is stored."""
    return frozenset({frozenset({access})})


def both(a: Support, b: Support) -> Support:
    return _smallest(x | y for x in a for y in b)


def either(a: Support, b: Support) -> Support:
    return _smallest((*a, *b))


def _smallest(clauses: object) -> Support:
    """Drop every clause that contains another: A or (A and B) is A."""
    found = set(clauses)  # type: ignore[call-overload]
    return frozenset(c for c in found if not any(other < c for other in found))


def required(support: Support) -> frozenset[Access]:
    """The accesses without which nothing is supported."""
    return frozenset.intersection(*support) if support else frozenset()


def mentioned(support: Support) -> frozenset[Access]:
    return frozenset().union(*support)


def constant(expr: Expr) -> float | None:
    """The value of an expression without tensors, else None."""
    match expr:
        case Literal(value):
            return value
        case Op(name, args) if name in OPERATORS:
            values = [constant(arg) for arg in args]
            if any(value is None for value in values):
                return None
            return OPERATORS[name].at(*(value for value in values if value is not None))
    return None


def support(expr: Expr, of: Callable[[Access], Support]) -> Support:
    """Where ``expr`` can differ from zero, given where each access can (``of``)."""
    match expr:
        case Access():
            return of(expr)
        case Literal(value):
            return NOWHERE if value == 0 else EVERYWHERE
        case Reduce(_, _, body) | Op("present", (body,)):
            return support(body, of)
        case Op("everywhere", _):
            return EVERYWHERE
        case Op("on", (pattern, body)):  # the body, where ``pattern`` is stored
            return both(support(pattern, of), support(body, of))
        case Op("vanishing", (body,)):  # zero where none of its accesses is stored (``at_zero``)
            found = NOWHERE
            for access in accesses(body):
                found = either(found, of(access))
            return found
        case Op(name, args):
            return _support_of_op(name, args, of)
    raise AssertionError(f"no support for {expr!r}")


def support_by(expr: Expr, filters: Container[Access]) -> Support:
    """Where ``expr`` can differ from zero if only ``filters`` leave anything out."""
    return support(expr, lambda access: stored(access) if access in filters else EVERYWHERE)


def _support_of_op(name: str, args: tuple[Expr, ...], of: Callable[[Access], Support]) -> Support:
    operator = OPERATORS[name]
    value = constant(Op(name, args))
    if value is not None:
        return NOWHERE if value == 0 else EVERYWHERE
    supports = [support(arg, of) for arg in args]
    match operator.support:
        case "all":
            found = EVERYWHERE
            for part in supports:
                found = both(found, part)
            return found
        case "first":  # 0 / 0 is not a number, so a divisor that may vanish is visited everywhere
            is_number = constant(args[0]) is not None
            return supports[0] if supports[1] == EVERYWHERE and not is_number else EVERYWHERE
        case "where":
            return either(both(supports[0], supports[1]), supports[2])
    constants = [constant(arg) for arg in args]
    if operator.at(*(0 if c is None else c for c in constants)) != 0:
        return EVERYWHERE
    found = NOWHERE
    for part, number in zip(supports, constants, strict=True):
        if number is None:
            found = either(found, part)
    return found
