"""Statements as objects: what all calls of one share, and the state of one call."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from scorch._src.bounded import BoundedCache
from scorch._src.formats import Format, as_format
from scorch._src.notation.differentiate import Gradient, Tangent, gradients, tangent
from scorch._src.notation.indexing import Statement
from scorch._src.notation.nodes import Assign
from scorch._src.notation.trees import accesses
from scorch._src.storage.storage import Pattern

MAX_FORMULAS = 4096
MAX_GRADIENTS = 64  # of one formula and kind: by operand, order, and the format of the result

Source = weakref.ref[torch.Tensor] | None
Formats = tuple[Format | None, ...]


@dataclass(eq=False)
class Formula:
    """A statement, the formats of its operands, None for dense ones, and the format of the result.

    There is one object for each, so that calls are cached by it and gradients are derived once.
    ``sparse_grad``: gradients of dense operands store only the rows that sparse operands reach.
    """

    statement: Statement
    names: tuple[str, ...]
    formats: Formats
    format: Any
    sparse_grad: bool

    def __post_init__(self) -> None:
        self.head = (self, None)  # the key that calls are cached by
        cached = functools.lru_cache(maxsize=MAX_GRADIENTS)
        self.gradients = cached(self._gradients)
        self.whole_gradients = cached(self._whole_gradients)
        self.tangent = cached(self._tangent)
        self.read_by_gradients = cached(self._read_by_gradients)

    @property
    def assign(self) -> Assign:
        return self.statement.assign

    @functools.cached_property
    def taken(self) -> tuple[str, ...]:
        """The names of its tensors and indices, which are taken."""
        target = self.assign.target
        used = accesses(self.assign.value)
        names = dict.fromkeys((target.tensor, *self.names, *target.indices))
        return tuple(names | dict.fromkeys(index for access in used for index in access.indices))

    @functools.cached_property
    def incoming(self) -> str:
        """The name of the gradient of the result in those of the operands."""
        return fresh("G", self.taken)

    @functools.cached_property
    def mask(self) -> str:
        """The name of the pattern, with ones, at which the gradient of a sparse operand is sampled."""
        return fresh("P", (*self.taken, self.incoming))

    def _gradients(
        self, place: int, create_graph: bool = False, result: Format | None = None
    ) -> tuple[GradientRule, ...]:
        """Derive the gradient of the operand at ``place``, a rule for each use of it, on its pattern.

        ``create_graph``: they are differentiated in their turn. ``result``: the format of a sparse result.
        """
        own = self.formats[place]
        mask = None if own is None else self.mask
        roles: dict[str | None, int | str] = {name: number for number, name in enumerate(self.names)}
        roles |= {self.incoming: INCOMING, mask: MASK}
        rules = []
        for gradient in gradients(self.assign, self.names[place], self.incoming, mask, create_graph):
            names = read_by(gradient.statement)
            own_roles = roles | dict(gradient.diagonals)
            takes = tuple(own_roles[name] for name in names)
            formats = tuple(self._format_of(taken, own, result) for taken in takes)
            form: Any = "dense" if own is None else own
            if own is None and self.sparse_grad and len(gradient.dims) == self._rank(place):
                form = _touched(gradient.statement, dict(zip(names, formats, strict=True)))
            statement = Statement(gradient.statement, sampled_at="" if mask is None else mask)
            formula = Formula(statement, names, formats, form, False)
            rules.append(GradientRule(formula, takes, gradient))
        return tuple(rules)

    def _whole_gradients(self, place: int) -> tuple[Gradient, ...]:
        """Derive the gradient of the operand at ``place`` everywhere, not only on its pattern."""
        return gradients(self.assign, self.names[place], self.incoming, None)

    def _format_of(self, taken: int | str, own: Format | None, result: Format | None) -> Format | None:
        if isinstance(taken, str):
            return CSR
        return result if taken == INCOMING else own if taken == MASK else self.formats[taken]

    def _rank(self, place: int) -> int:
        name = self.names[place]
        return next(len(access.indices) for access in accesses(self.assign.value) if access.tensor == name)

    def _tangent(
        self, changed: tuple[bool, ...], sizes: tuple[tuple[str, int], ...], create_graph: bool
    ) -> Tangent | None:
        """Derive the tangent of the result for the operands that are ``changed``; None if it is zero.

        The tangent of ``A`` has the name ``change_name("A")``.
        """
        changes = {name: self.change_name(name) for name in itertools.compress(self.names, changed)}
        return tangent(self.assign, changes, dict(sizes), create_graph)

    def change_name(self, operand: str) -> str:
        """Return the name of the tangent of an operand."""
        return fresh(f"{operand}_t", self.taken)

    def _read_by_gradients(self, needed: tuple[bool, ...]) -> tuple[bool, ...]:
        """Find the operands whose elements the gradients of the ``needed`` ones depend on."""
        read: set[str] = set()
        for name in itertools.compress(self.names, needed):
            for create_graph in (False, True):
                for rule in gradients(self.assign, name, self.incoming, None, create_graph):
                    read.update(read_by(rule.statement))
        return tuple(name in read for name in self.names)


CSR = Format("ds")  # of the identity matrices in gradients
INCOMING, MASK = -1, -2  # what a gradient takes besides operands, which are numbers, and identity matrices


class GradientRule(NamedTuple):
    """The gradient for one use of an operand: a formula, and what each of its operands is.

    That is ``INCOMING``, ``MASK``, the number of an operand, or the index that an identity matrix is for.
    """

    formula: Formula
    takes: tuple[int | str, ...]
    gradient: Gradient


_formulas: BoundedCache[Any, Formula] = BoundedCache(MAX_FORMULAS, "formulas")


def formula_of(
    statement: Statement, names: tuple[str, ...], formats: Formats, format: Any, sparse_grad: bool = False
) -> Formula:
    """Look up the one formula of a statement on operands of these formats."""
    if format is not None and not isinstance(format, str):
        format = as_format(format, len(statement.assign.target.indices))
    key = statement, names, formats, format, format.family if type(format) is Format else None, sparse_grad
    known = _formulas.get(key)
    if known is None:
        known = _formulas.setdefault(key, Formula(statement, names, formats, format, sparse_grad))
    return known


@dataclass(slots=True, eq=False)
class Call:
    """One run of a formula: the patterns of sparse operands, and the result's once it is known.

    ``sources`` are the differentiable leaves of operands: sparse tensors, or the values they were built from.
    ``operands`` are the tensors whose arrays are passed to the run, if they can be read as they are, and
    ``known`` a result that need not be computed; the run takes both, so that no graph keeps them. One that
    ``is_new`` is a dense tensor of its own.
    """

    formula: Formula
    patterns: Sequence[Pattern | None]
    sources: Sequence[Source] = ()
    operands: Sequence[Any] | None = None
    known: Any = None
    pattern: Pattern | None = None
    is_new: bool = False

    def shape(self, arrays: Sequence[torch.Tensor], place: int) -> tuple[int, ...]:
        """Return the shape of an operand."""
        pattern = self.patterns[place]
        return tuple(arrays[place].shape) if pattern is None else pattern.shape

    def sizes(self, arrays: Sequence[torch.Tensor]) -> dict[str, int]:
        """Return the size of every index."""
        sizes: dict[str, int] = {}
        for access in accesses(self.formula.assign.value):
            shape = self.shape(arrays, self.formula.names.index(access.tensor))
            sizes.update(zip(access.indices, shape, strict=True))
        return sizes


Compute = Callable[[Call, Sequence[torch.Tensor]], torch.Tensor]  # connects the result to the arrays


def fresh(name: str, names: Sequence[str]) -> str:
    """Lengthen ``name`` until it is none of ``names``."""
    while name in names:
        name += "_"
    return name


def read_by(statement: Assign) -> tuple[str, ...]:
    """Return the names of the tensors that a statement reads."""
    return tuple(dict.fromkeys(access.tensor for access in accesses(statement.value)))


def _touched(statement: Assign, formats: dict[str, Format | None]) -> Any:
    """Return the format of a gradient that stores only the rows, or columns, that a sparse tensor reaches.

    It reaches few coordinates of its sparse levels, and of a dense one, the rows of CSR, those with nonzeros.
    """
    sparse_indices: set[str] = set()
    dense_indices: set[str] = set()
    for access in accesses(statement.value):
        form = formats[access.tensor]
        if form is None or all(level.is_full for level in form.levels):
            continue
        for dim, level in zip(form.order, form.levels, strict=True):
            (dense_indices if level.is_full else sparse_indices).add(access.indices[dim])
    indices = statement.target.indices
    first = _first_of(sparse_indices, indices)
    if first is None:
        first = _first_of(dense_indices, indices)
    if first is None:
        return "dense"
    others = [dim for dim in range(len(indices)) if dim != first]
    return Format("s" + "d" * len(others), order=(first, *others))


def _first_of(chosen: set[str], indices: Sequence[str]) -> int | None:
    return next((dim for dim, index in enumerate(indices) if index in chosen), None)
