"""The order in which an einsum of many operands is computed, a few of them at a time.

    "ab,bc,cd,...->az"    ->    "ab,bc->ac", then "ab,bc->ac" of that and the next, ...

Operands with the same indices are multiplied first, several at once; then, again and again, the two whose
product is smallest compared with its operands. That search is quick for any number of operands, and every
product is an einsum of a few operands, whose kernels are chosen and cached like any other's.
"""

from __future__ import annotations

import itertools
import math
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from scorch._src.dataclass import dataclass
from scorch.errors import NotationError

MAX_OPERANDS = 8  # of an einsum that is computed at once
MAX_CONTRACTED_OPERANDS = 1024  # of one that is computed in parts


@dataclass(frozen=True)
class Contraction:
    """One einsum of several: which operands it takes, by number, where results follow on the operands."""

    equation: str
    takes: tuple[int, ...]


def contractions(
    terms: Sequence[tuple[str, ...]], output: tuple[str, ...], sizes: Mapping[str, int]
) -> list[Contraction]:
    """Split the einsum of operands with indices ``terms`` into several, in order; the last is the result.

    >>> for part in contractions([("i", "j"), ("j", "k"), ("k", "l")], ("i", "l"), dict.fromkeys("ijkl", 2)):
    ...     print(part.equation, part.takes)
    ab,bc->ac (0, 1)
    ab,ca->cb (2, 3)
    """
    if len(terms) > MAX_CONTRACTED_OPERANDS:
        raise NotationError(
            f"einsum got {len(terms):,} operands, but at most {MAX_CONTRACTED_OPERANDS:,} are supported; "
            "multiply some of them first"
        )
    plan = _Plan(terms, output, sizes)
    plan.multiply_alike()
    plan.multiply_pairs()
    return plan.contractions


class _Plan:
    """The operands and results that are yet to be used, and the einsums so far."""

    def __init__(
        self, terms: Sequence[tuple[str, ...]], output: tuple[str, ...], sizes: Mapping[str, int]
    ) -> None:
        self.left = dict(enumerate(terms))
        self.output, self.sizes = output, sizes
        self.uses = Counter(index for term in terms for index in set(term))
        self.uses.update(output)
        self.contractions: list[Contraction] = []
        self.next = len(terms)

    def output_indices(self, taken: Sequence[int]) -> tuple[str, ...]:
        """Return the indices of a product that another operand, or the result, needs."""
        own = Counter(index for number in taken for index in dict.fromkeys(self.left[number]))
        if len(taken) == len(self.left):
            return self.output
        return tuple(index for index in own if self.uses[index] > own[index])

    def join(self, taken: Sequence[int]) -> int:
        remaining = self.output_indices(taken)
        terms = [self.left.pop(number) for number in taken]
        for term in terms:
            self.uses.subtract(set(term))
        self.contractions.append(Contraction(_equation(terms, remaining), tuple(taken)))
        self.left[self.next], number = remaining, self.next
        self.uses.update(remaining)
        self.next += 1
        return number

    def multiply_alike(self) -> None:
        """Multiply operands with the same indices, up to ``MAX_OPERANDS`` at once."""
        alike: dict[frozenset[str], list[int]] = {}
        for number, term in self.left.items():
            alike.setdefault(frozenset(term), []).append(number)
        for numbers in alike.values():
            while len(numbers) > 1 and len(self.left) > 1:
                numbers = [*numbers[MAX_OPERANDS:], self.join(numbers[:MAX_OPERANDS])]

    def multiply_pairs(self) -> None:
        """Multiply the cheapest pair that shares an index, or any two where none do, until one is left."""
        prices = {pair: self.price(pair) for pair in itertools.combinations(self.left, 2) if self.meet(*pair)}
        while len(self.left) > 1:
            pairs = prices or itertools.combinations(self.left, 2)
            pair = min(pairs, key=lambda pair: (prices[pair], pair)) if prices else next(iter(pairs))
            product = self.join(pair)
            prices = {other: price for other, price in prices.items() if not {*other} & {*pair}}
            for number in self.left:
                if number != product and self.meet(number, product):
                    prices[number, product] = self.price((number, product))

    def meet(self, a: int, b: int) -> bool:
        return not set(self.left[a]).isdisjoint(self.left[b])

    def price(self, pair: tuple[int, int]) -> float:
        """Return how much larger the product is than its factors, as if all were dense."""
        after, first, second = self.output_indices(pair), self.left[pair[0]], self.left[pair[1]]
        return self.size(after) - self.size(first) - self.size(second)

    def size(self, term: tuple[str, ...]) -> float:
        return math.prod(float(max(self.sizes[index], 1)) for index in set(term))


def _equation(terms: Sequence[tuple[str, ...]], output: tuple[str, ...]) -> str:
    """Write an equation whose letters come in order, so that like products share one text."""
    indices = dict.fromkeys(index for term in terms for index in term)
    if len(indices) > len(string.ascii_letters):
        raise NotationError(
            f"einsum: a product of two operands has {len(indices)} indices, but at most "
            f"{len(string.ascii_letters)} are supported; sum over some of them first"
        )
    letters = dict(zip(indices, string.ascii_letters, strict=False))
    words = ["".join(letters[index] for index in term) for term in (*terms, output)]
    return ",".join(words[:-1]) + "->" + words[-1]
