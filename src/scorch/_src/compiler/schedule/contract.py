"""Products of three or more tensors: in one kernel, or two at a time.

    R[i,l] = sum(j, k, A[i,j] * B[j,k] * C[k,l])    ->    T1[i,k] = sum(j, A[i,j] * B[j,k]);  R[i,l] = ...

A chain of products is much cheaper split, because the fused loops compute every partial product again for
each l; a sampled product (A[i,j] * B[i,k] * C[j,k]) is much cheaper fused, because A filters. The
cost model decides: every pair is tried, with the size of the partial result estimated, and the product is
split only if that is clearly cheaper.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import cast

from scorch._src.compiler.plan import Operand, Splits, Step
from scorch._src.compiler.schedule.cost import Problem, cost, estimated_counts
from scorch._src.compiler.schedule.infer_format import infer_format
from scorch._src.compiler.schedule.order_loops import algorithm_1
from scorch._src.dataclass import dataclass, replace
from scorch._src.loops.types import Type
from scorch._src.notation.nodes import Access, Expr, Literal, Op

CLEARLY = 0.5  # the share of the fused cost that splitting may reach
STEP_CALL = 20_000.0  # the call of one more kernel
MAX_FACTORS = 6


@dataclass(frozen=True)
class Way:
    """Steps and what they are expected to cost."""

    steps: tuple[Step, ...]
    total: float


def contract(
    step: Step, operands: Mapping[str, Operand], sizes: Mapping[str, int], element: Type
) -> tuple[Step, ...]:
    """``step``, or the cheaper steps that multiply two tensors at a time.

    ``element`` is the dtype of the result; 16-bit results are never split: partial ones would be rounded.
    """
    choices = ways(step, operands, sizes, element)
    if choices is None:
        return (step,)
    fused, best = choices
    return best.steps if best.total < CLEARLY * fused else (step,)


def ways(
    step: Step, operands: Mapping[str, Operand], sizes: Mapping[str, int], element: Type
) -> tuple[float, Way] | None:
    """What one kernel costs, and the cheapest way two at a time; None where there is no choice."""
    factors = factors_of(step.body)
    if factors is None or not 3 <= len(factors) <= MAX_FACTORS or step.reduction != "sum":
        return None
    if element.computes_in != element or any(o.format.is_blocked for o in operands.values()):
        return None
    taken = {step.target.tensor, *operands}
    names = [name for name in (f"P{n}" for n in range(1, 100)) if name not in taken]
    best = _pairwise(step, tuple(factors), dict(operands), sizes, tuple(names))
    total = best.total + STEP_CALL * (len(best.steps) - 1)
    return _price(step, operands, sizes), Way(best.steps, total)


def factors_of(expr: Expr, with_numbers: bool = False) -> list[Access] | None:
    """The factors of a plain product, or of one by numbers as well, else None."""
    match expr:
        case Access():
            return [expr]
        case Literal() if with_numbers:
            return []
        case Op("neg", (part,)) if with_numbers:
            return factors_of(part, with_numbers)
        case Op("mul", (a, b)):
            left, right = factors_of(a, with_numbers), factors_of(b, with_numbers)
            return None if left is None or right is None else left + right
    return None


def _product(factors: tuple[Access, ...]) -> Expr:
    return functools.reduce(lambda a, b: Op("mul", (a, b)), factors[1:], cast(Expr, factors[0]))


def _price(step: Step, operands: Mapping[str, Operand], sizes: Mapping[str, int]) -> float:
    """What ``step`` costs in the order of the paper's algorithm, which is quick to find."""
    given = {access: operands[access.tensor] for access in step.accesses}
    form = infer_format(step, given, sizes).format
    problem = Problem(step, given, form, Splits(()), sizes)
    return cost(problem, algorithm_1(problem)).total


def _pairwise(
    step: Step,
    factors: tuple[Access, ...],
    operands: dict[str, Operand],
    sizes: Mapping[str, int],
    names: tuple[str, ...],
) -> Way:
    """The cheapest way to multiply ``factors`` two at a time."""
    if len(factors) == 2:
        last = replace(step, body=_product(factors), reduction="sum")
        return Way((last,), _price(last, operands, sizes))
    best: Way | None = None
    for first in range(len(factors)):
        for second in range(first + 1, len(factors)):
            rest = tuple(f for n, f in enumerate(factors) if n not in (first, second))
            pair = (factors[first], factors[second])
            partial = _partial(step, pair, rest, names[0])
            if not partial.reduced:  # nothing is summed early: no gain
                continue
            price = _price(partial, operands, sizes)
            if best is not None and price >= best.total:
                continue
            known = {**operands, names[0]: _estimate(partial, operands, sizes)}
            left = tuple(i for i in step.reduced if i not in partial.reduced)
            after = replace(step, reduction="sum", reduced=left)
            inner = _pairwise(after, (partial.target, *rest), known, sizes, names[1:])
            if best is None or price + inner.total < best.total:
                best = Way((partial, *inner.steps), price + inner.total)
    return Way((step,), math.inf) if best is None else best


def _partial(step: Step, pair: tuple[Access, Access], rest: tuple[Access, ...], name: str) -> Step:
    """The product of a pair, summed over what nothing else needs."""
    mine = tuple(dict.fromkeys((*pair[0].indices, *pair[1].indices)))
    needed = {*step.target.indices, *(index for access in rest for index in access.indices)}
    kept = tuple(index for index in mine if index in needed)
    return Step(Access(name, kept), _product(pair), "sum", tuple(i for i in mine if i not in needed))


def _estimate(step: Step, operands: Mapping[str, Operand], sizes: Mapping[str, int]) -> Operand:
    """The result of a partial product as an operand: its format, and about how many entries it has."""
    given = {access: operands[access.tensor] for access in step.accesses}
    form = infer_format(step, given, sizes).format
    shape = tuple(sizes[index] for index in step.target.indices)
    products = 1.0
    for access in step.accesses:
        products *= max(1, given[access].nnz)
    for index in dict.fromkeys(step.indices):
        uses = sum(index in access.indices for access in step.accesses)
        products /= max(1, sizes[index]) ** (uses - 1)
    products = min(products, float(math.prod(shape)))
    first = next(iter(given.values()))
    counts = estimated_counts(form, shape, int(min(products, 2**62)))
    return Operand(step.target.tensor, form, first.element, first.index, shape, counts)
