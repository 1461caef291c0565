"""Einsum equations with torch's whole grammar, read into one ``Assign``.

An equation is read twice. First its text alone (``_read``, remembered): one list of labels per operand,
where ``...`` is a label too, and perhaps one for the output. Then with the operands' shapes: ``...``
becomes as many indices ``b0, b1, ...`` as the batch dimensions of the longest operand, aligned right.

torch lets an index be 1 in one operand and n in another. Such a dimension says nothing about the index,
so it is left out of the access: ``Operand.squeeze`` lists the dimensions to drop before the access holds.
"""

from __future__ import annotations

import operator
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import lru_cache, reduce
from itertools import count

from scorch._src.dataclass import dataclass
from scorch._src.notation.nodes import Access, Assign, Expr, Op, Reduce
from scorch.errors import NotationError, ShapeError, counted, kind_of

Shape = tuple[int, ...]
ELLIPSIS = "..."


@dataclass(frozen=True)
class Operand:
    """How one operand is read: drop the dimensions ``squeeze``, all of size 1, then ``access`` fits it."""

    access: Access
    squeeze: tuple[int, ...]


@dataclass(frozen=True)
class Einsum:
    """An equation together with what the shapes say: one ``Operand`` each, and every index's size.

    ``statement.value`` is the product of the operands' accesses under at most one ``Reduce("sum", ...)``.
    No index shares its name with a tensor.
    """

    statement: Assign
    operands: tuple[Operand, ...]
    sizes: dict[str, int] = field(hash=False)

    @property
    def shape(self) -> Shape:
        """The result's shape."""
        return tuple(self.sizes[index] for index in self.statement.target.indices)


@dataclass(frozen=True)
class _Equation:
    """The labels of every operand; ``output`` is None where the equation has no arrow."""

    terms: tuple[tuple[str, ...], ...]
    output: tuple[str, ...] | None


def parse_einsum(equation: str, shapes: Sequence[Shape]) -> Einsum:
    """Read an equation for operands of these shapes.

    >>> from scorch._src.notation.show import show
    >>> show(parse_einsum("ij,jk->ik", [(2, 3), (3, 4)]).statement)
    'R[i,k] = sum(j, A[i,j] * B[j,k])'
    >>> parse_einsum("i,i", [(3,), (1,)]).operands[1]
    Operand(access=Access(tensor='B', indices=()), squeeze=(0,))
    """
    if not isinstance(equation, str):
        raise NotationError(f"an einsum equation must be a string such as 'ij,jk->ik', but got {equation!r}")
    shapes = [tuple(shape) for shape in shapes]
    indices, output, sizes = read_indices(equation, shapes)
    names = _tensor_names(frozenset(sizes))
    target = Access(next(names), output)
    operands = []
    for own, shape in zip(indices, shapes, strict=True):
        squeeze = tuple(dim for dim, index in enumerate(own) if shape[dim] != sizes[index])
        kept = tuple(index for dim, index in enumerate(own) if dim not in squeeze)
        operands.append(Operand(Access(next(names), kept), squeeze))

    factors: list[Expr] = [operand.access for operand in operands]
    value = reduce(lambda left, right: Op("mul", (left, right)), factors)
    reduced = tuple(index for index in sizes if index not in output)
    if reduced:
        value = Reduce("sum", reduced, value)
    return Einsum(Assign(target, value), tuple(operands), sizes)


def read_indices(
    equation: str, shapes: Sequence[Shape]
) -> tuple[list[tuple[str, ...]], tuple[str, ...], dict[str, int]]:
    """The indices of every operand and of the result, and their sizes."""
    parsed = _read(equation)
    _check_ranks(equation, parsed, shapes)
    batch = _batch_indices(parsed, shapes)
    indices = [_expand(term, len(shape), batch) for term, shape in zip(parsed.terms, shapes, strict=True)]
    return indices, _output_indices(parsed, batch), _sizes(parsed, indices, shapes)


def sublists_to_equation(args: Sequence[object]) -> tuple[str, tuple[object, ...]]:
    """The equation and the operands of torch's other calling form, ``einsum(A, [0, 1], B, [1, 2], [0, 2])``.

    >>> sublists_to_equation(["A", [0, 1], "B", [1, 2], [0, 2]])
    ('ab,bc->ac', ('A', 'B'))
    """
    pairs, rest = divmod(len(args), 2)
    lists = [_subscripts(f"operand {n}", args[2 * n + 1], missing=n) for n in range(pairs)]
    if rest:
        lists.append(_subscripts("the output", args[-1], missing=pairs))
    # Implicit outputs are sorted, so letters keep the order of the numbers: capitals come before small ones.
    letters = string.ascii_lowercase
    if any(number is not None and number >= 26 for sublist in lists for number in sublist):
        letters = string.ascii_uppercase + string.ascii_lowercase
    words = ["".join(ELLIPSIS if n is None else letters[n] for n in sublist) for sublist in lists]
    equation = ",".join(words[:pairs]) + ("->" + words[-1] if rest else "")
    return equation, tuple(args[: 2 * pairs : 2])


def _subscripts(owner: str, sublist: object, missing: int) -> list[int | None]:
    """The numbers of a sublist, with None for an ellipsis; ``missing`` is the operand that lacks one."""
    if isinstance(sublist, str) or not isinstance(sublist, Sequence):
        raise NotationError(
            f"einsum expected a list of subscripts but got {kind_of(sublist)}; follow operand {missing} "
            "with its subscripts, as in einsum(A, [0, 1], B, [1, 2], [0, 2]), or pass an equation first, as "
            "in einsum('ij,jk->ik', A, B)"
        )
    numbers: list[int | None] = []
    for entry in sublist:
        try:
            number = None if entry is Ellipsis else operator.index(entry)
        except TypeError:
            raise NotationError(
                f"subscript {entry!r} of {owner} is neither an integer nor an ellipsis"
            ) from None
        if number is not None and not 0 <= number < 52:
            raise NotationError(f"subscript {number} of {owner} is outside 0..51; number the indices from 0")
        numbers.append(number)
    return numbers


@lru_cache(maxsize=4096)
def _read(equation: str) -> _Equation:
    """The part of the grammar that needs no shapes."""
    left, arrow, right = equation.partition("->")
    if "->" in right:
        raise NotationError(f"einsum equation {equation!r} has more than one '->'; an einsum has one output")
    terms = tuple(_labels(equation, term, f"operand {n}") for n, term in enumerate(left.split(",")))
    if not arrow:
        return _Equation(terms, None)
    if "," in right:
        raise NotationError(f"einsum equation {equation!r} has a ',' after '->'; an einsum has one output")
    output = _labels(equation, right, "the output")
    _check_output(equation, terms, output)
    return _Equation(terms, output)


def _labels(equation: str, term: str, owner: str) -> tuple[str, ...]:
    """The letters of one term, with ``...`` as a label of its own."""
    where = f"{owner} ({term.strip()!r}) of einsum equation {equation!r}"
    labels = tuple(re.findall(r"\.\.\.|[^ ]", term))
    for label in labels:
        if label == ".":
            raise NotationError(
                f"{where} has a '.' that is not part of '...'; write three dots without spaces between them"
            )
        if label in "->":
            raise NotationError(
                f"einsum equation {equation!r} has a {label!r} that is not part of '->'; "
                "write the arrow once, without a space inside"
            )
        if label != ELLIPSIS and label not in string.ascii_letters:
            text = f"{where} contains {label!r}; an index is one letter, a to z or A to Z"
            is_expression = "[" in equation and "=" in equation
            raise NotationError(f"{text}; pass expressions to scorch.evaluate" if is_expression else text)
    if labels.count(ELLIPSIS) > 1:
        raise NotationError(f"{where} has more than one '...'; one stands for all batch dimensions")
    return labels


def _check_output(equation: str, terms: tuple[tuple[str, ...], ...], output: tuple[str, ...]) -> None:
    known = {label for term in terms for label in term}
    for label in output:
        if label == ELLIPSIS:
            continue
        if label not in known:
            raise NotationError(
                f"index {label!r} of the output of einsum equation {equation!r} does not occur in any "
                "operand, so its size is unknown; name it in an operand or drop it"
            )
        if output.count(label) > 1:
            raise NotationError(
                f"index {label!r} appears more than once in the output of einsum equation {equation!r}; "
                "to write onto a diagonal, compute it once and use diag_embed"
            )


def _check_ranks(equation: str, parsed: _Equation, shapes: Sequence[Shape]) -> None:
    """One operand per term, each with a dimension for every label."""
    if not shapes:
        raise NotationError(f"einsum equation {equation!r} was given no operands; pass one tensor per term")
    if len(parsed.terms) != len(shapes):
        raise NotationError(
            f"einsum equation {equation!r} names {counted(len(parsed.terms), 'operand')}, but "
            f"{len(shapes)} {'was' if len(shapes) == 1 else 'were'} passed; separate terms with ','"
        )
    for n, (term, shape) in enumerate(zip(parsed.terms, shapes, strict=True)):
        named = len(term) - term.count(ELLIPSIS)
        if len(shape) < named or (len(shape) > named and ELLIPSIS not in term):
            cure = "; '...' stands for the dimensions not named" if len(shape) > named else ""
            raise ShapeError(
                f"operand {n} has {counted(len(shape), 'dimension')} (shape {shape}) "
                f"but its subscript {''.join(term)!r} names {named}{cure}"
            )


def _batch_indices(parsed: _Equation, shapes: Sequence[Shape]) -> tuple[str, ...]:
    """The indices that ``...`` stands for in the operand where it stands for most."""
    terms = zip(parsed.terms, shapes, strict=True)
    ranks = [len(shape) - len(term) + 1 for term, shape in terms if ELLIPSIS in term]
    return tuple(f"b{n}" for n in range(max(ranks, default=0)))


def _expand(term: tuple[str, ...], rank: int, batch: tuple[str, ...]) -> tuple[str, ...]:
    """One index per dimension: ``...`` of fewer dimensions takes the last batch indices."""
    if ELLIPSIS not in term:
        return term
    at = term.index(ELLIPSIS)
    dots = rank - len(term) + 1
    return term[:at] + batch[len(batch) - dots :] + term[at + 1 :]


def _output_indices(parsed: _Equation, batch: tuple[str, ...]) -> tuple[str, ...]:
    """Without an arrow: the batch, then the labels that occur once, capitals before small letters."""
    if parsed.output is None:
        labels = [label for term in parsed.terms for label in term if label != ELLIPSIS]
        return batch + tuple(sorted(label for label in labels if labels.count(label) == 1))
    if ELLIPSIS not in parsed.output:
        return parsed.output
    return _expand(parsed.output, len(parsed.output) - 1 + len(batch), batch)


def _sizes(parsed: _Equation, indices: Sequence[tuple[str, ...]], shapes: Sequence[Shape]) -> dict[str, int]:
    """The size of every index, in order of appearance; 1 yields to any other size, but not on a diagonal."""
    sizes: dict[str, int] = {}
    owner: dict[str, int] = {}

    def operand(n: int) -> str:
        return f"operand {n} ({''.join(parsed.terms[n])!r}, shape {shapes[n]})"

    for n, (own, shape) in enumerate(zip(indices, shapes, strict=True)):
        here: dict[str, int] = {}
        for index, size in zip(own, shape, strict=True):
            if here.setdefault(index, size) != size:
                raise ShapeError(
                    f"index {index!r} is both {here[index]} and {size} in {operand(n)}; "
                    "a diagonal needs equal sizes"
                )
        for index, size in here.items():
            if sizes.setdefault(index, size) == 1 or index not in owner:
                sizes[index], owner[index] = size, n
            elif size not in (1, sizes[index]):
                name = f"index {index!r}" if len(index) == 1 else f"batch dimension {index[1:]} of '...'"
                raise ShapeError(
                    f"{name} is {sizes[index]} in {operand(owner[index])} but {size} in {operand(n)}"
                )
    return sizes


def _tensor_names(indices: frozenset[str]) -> Iterator[str]:
    """The result's name, then the operands': capitals in order, none of them an index."""
    result = "R" if "R" not in indices else "Result"
    yield result
    yield from (letter for letter in string.ascii_uppercase if letter not in indices and letter != result)
    yield from (f"{letter}{suffix}" for suffix in count(1) for letter in string.ascii_uppercase)
