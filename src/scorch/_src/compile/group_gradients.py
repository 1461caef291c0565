"""Gradients of a group of recorded calls, as steps of their own.

Going back through the calls, the gradient of what a step reads is a step too (``notation.differentiate``).
Those whose results have rows of the pattern, at its entries or dense, are one kernel again:

    O[i,e] = sum(j, R[i,j] * V[j,e])        ->        dR[i,j] = sum(e, dO[i,e] * V[j,e])

Elementwise results that they need are computed again inside of that kernel; exponentials, sums and softmaxes
are kept from the way there. What is summed over rows, such as dV[j,e] = sum(i, R[i,j] * dO[i,e]), is a
statement by itself, of tensors that the kernel leaves.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from scorch._src.compile.group_arrays import names_read, rows_of, steps_on, viewed
from scorch._src.compile.lazy_tensor import Value
from scorch._src.compiler.plan import Step
from scorch._src.engine.fused_executable import FusedKernel, fused_kernel, without_gaps
from scorch._src.loops.operators import OPERATORS
from scorch._src.notation.differentiate import BUILD, uses_of
from scorch._src.notation.nodes import Access, Assign, Expr, Literal, Op, Reduce
from scorch._src.notation.show import show
from scorch._src.notation.trees import accesses, free_indices, walk
from scorch._src.statements.evaluate import evaluate
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.sparse_tensor import SparseTensor


@dataclass(frozen=True)
class Final:
    """The gradient of a tensor that is read as ``name``: what ``value`` sums up, over ``summed``."""

    name: str
    indices: tuple[str, ...]
    value: Expr
    summed: tuple[str, ...]


@dataclass(eq=False)
class Backward:
    """The way back through a group.

    ``known``: results of the group that are kept for it; ``steps`` give the tensors ``kept``, of which
    ``finals`` make the gradients. ``reason``: why it is not one kernel, if it is not.
    """

    steps: tuple[Step, ...]
    known: tuple[str, ...]
    incoming: tuple[str, ...]
    finals: tuple[Final, ...]
    reason: str = ""
    kernel: FusedKernel | None = None
    is_flat: bool = False
    kept: tuple[str, ...] = ()
    letters: tuple[str, ...] = ()
    stored: frozenset[str] = frozenset()
    numbers: dict[str, tuple[int, tuple[int, ...] | None]] = field(default_factory=dict)

    def prepare(
        self,
        order: Sequence[Value],
        pattern: Pattern,
        stored: frozenset[str],
        sizes: Mapping[str, int],
        read: Mapping[str, tuple[int, tuple[int, ...] | None]],
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        """Find the kernel; ``read`` are the tensors of the way there, and ``tensors`` what they are now."""
        self.numbers = dict(read)
        given = dict(tensors)
        own = {step.target.tensor for step in self.steps}
        indices = {value.recipe.access.tensor: value.recipe for value in order}
        marks = set(stored)
        for name in (*self.incoming, *self.known):
            recipe = indices[name.removeprefix(INCOMING)]
            shape = (pattern.size,) if recipe.is_sparse else recipe.shape
            given[name] = torch.empty(shape, dtype=recipe.dtype, device="meta")
            if recipe.is_sparse:
                marks.add(name)
        marks |= {step.target.tensor for step in self.steps if step.target.indices == self.letters}
        self.stored = frozenset(marks)
        finals = {access.tensor for final in self.finals for access in accesses(final.value)}
        self.kept = tuple(name for name in dict.fromkeys(finals) if name in own)
        if not self.kept:
            return
        wanted, self.is_flat = steps_on(pattern, self.steps, self.kept, self.stored, sizes)
        walked = None if self.is_flat else rows_of(pattern)
        used = {name: given[name] for name in names_read(self.steps, given)}
        found = fused_kernel(wanted, walked, used)
        if isinstance(found, str):
            self.reason = found
        else:
            self.kernel = found

    def run(
        self,
        pattern: Pattern,
        arrays: Mapping[int, torch.Tensor],
        known: Mapping[str, torch.Tensor],
        incoming: Sequence[torch.Tensor],
    ) -> dict[int, torch.Tensor]:
        """The gradients of tensors by their numbers, each shaped as the array that was given for it."""
        made = dict(known)
        made |= dict(zip(self.incoming, map(without_gaps, incoming), strict=True))
        for name, (number, dims) in self.numbers.items():
            made[name] = viewed(arrays[number], dims)
        if self.kernel is not None:
            given = [made[name] for name in self.kernel.inputs]
            found = self.kernel.run(None if self.is_flat else rows_of(pattern), given, pattern.size)
            made |= dict(zip(self.kept, found, strict=True))
        gradients: dict[int, torch.Tensor] = {}
        for final in self.finals:
            number, _ = self.numbers[final.name]
            gradient = self._final(final, pattern, made).reshape(arrays[number].shape)
            known_one = gradients.get(number)
            gradients[number] = gradient if known_one is None else known_one + gradient
        return gradients

    def explain(self) -> str:
        """How gradients are computed, in words."""
        if self.reason:
            return f"the calls one by one, again\n{self.reason}"
        lines = []
        if self.kernel is not None:
            lines.append("one kernel:")
            lines += [f"  {line}" for line in self.kernel.header.splitlines()]
        lines += [
            f"d{final.name} = {show(Reduce('sum', final.summed, final.value))}"
            for final in self.finals
            if final.summed
        ]
        return "\n".join(lines)

    def _final(self, final: Final, pattern: Pattern, made: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if isinstance(final.value, Access):
            array, is_stored = made[final.value.tensor], final.value.tensor in self.stored
            if not final.summed and is_stored == (final.name in self.stored):
                return array
            if final.summed and (not is_stored or not final.indices):
                dims = [final.value.indices.index(index) for index in final.summed]
                return array.sum() if not final.indices else array.sum(dims)
        used = accesses(final.value)
        operands: dict[str, Any] = {
            access.tensor: SparseTensor(Storage(pattern, made[access.tensor]))
            if access.tensor in self.stored
            else made[access.tensor]
            for access in used
        }
        value = Reduce("sum", final.summed, final.value) if final.summed else final.value
        text = show(Assign(Access("D", final.indices), value))
        found = evaluate(text, format="dense", **operands)
        assert isinstance(found, torch.Tensor)
        return found


INCOMING = "g"  # before the name of a result: its gradient, as it comes in


def _has_rule_by_result(name: str) -> bool:
    return OPERATORS[name].derivative_by_result is not None


def _by_result(name: str, u: Expr, y: Expr) -> Expr:
    """``u`` times the derivative of a function of one argument, by its result."""
    rule = OPERATORS[name].derivative_by_result
    assert rule is not None
    found: Expr = rule(BUILD, u, y)
    return found


def plan_backward(
    order: Sequence[Value], asked: Sequence[Value], needing: set[int], letters: tuple[str, ...]
) -> Backward:
    """The way back from ``asked`` to the tensors with the numbers ``needing``."""
    return _Planner(order, asked, needing, letters).plan()


class _Planner:
    """Goes back through the calls and collects steps."""

    def __init__(
        self, order: Sequence[Value], asked: Sequence[Value], needing: set[int], letters: tuple[str, ...]
    ) -> None:
        self.order = order
        self.asked = {value.recipe.access.tensor for value in asked}
        self.results = [value.recipe.access.tensor for value in asked]
        self.letters = letters
        self.values = {value.recipe.access.tensor: value for value in order}
        self.needs = set(needing)
        for value in order:
            if not self.needs.isdisjoint(value.recipe.parents.values()):
                self.needs.add(value.number)
        self.steps: list[Step] = []
        self.finals: list[Final] = []
        self.adjoints: dict[str, list[Expr]] = {}
        self.counter = 0

    def plan(self) -> Backward:
        for name in self.results:
            access = self.values[name].recipe.access
            self.adjoints.setdefault(name, []).append(Access(f"{INCOMING}{name}", access.indices))
        for value in reversed(self.order):
            name = value.recipe.access.tensor
            terms = self.adjoints.get(name)
            if value.number in self.needs and terms:
                self._through(value, self._named(terms, value.recipe.access.indices))
        sources = {
            name: number
            for value in self.order
            for name, number in value.recipe.parents.items()
            if name not in self.values
        }
        for name, terms in self.adjoints.items():
            if name in sources:
                gradient = self._named(terms, free_indices(terms[0]))
                self.finals.append(Final(name, gradient.indices, gradient, ()))
        again, known = self._again()
        incoming = tuple(f"{INCOMING}{name}" for name in self.results)
        steps = (*again, *self.steps)
        return Backward(steps, known, incoming, tuple(self.finals), letters=self.letters)

    # one call ----------------------------------------------------------------------------------------

    def _through(self, value: Value, u: Access) -> None:
        """What comes back to the tensors that a call reads."""
        recipe = value.recipe
        if recipe.kind in ("softmax", "log_softmax"):
            (name,) = recipe.parents
            return self._add(Access(name, recipe.access.indices), self._softmax(recipe, u))
        (step,) = recipe.steps
        for name, number in recipe.parents.items():
            if number not in self.needs:
                continue
            result = self._by_result(value, u)
            if result is not None:
                self._add(*result)
                continue
            for access, term in uses_of(step.body, name, u):
                self._add(access, term)

    def _by_result(self, value: Value, u: Access) -> tuple[Access, Expr] | None:
        """The gradient of a function of one tensor by its result, where that is there anyway."""
        y = value.recipe.access
        body = value.recipe.steps[0].body
        if y.tensor not in self.asked and not _is_slow(body):
            match body:
                case Op("relu", (Access() as x,)):  # by its argument it is the same
                    return x, _by_result("relu", u, x)
            return None
        match body:
            case Op(name, (Access() as x,)) if x.indices == y.indices and _has_rule_by_result(name):
                return x, _by_result(name, u, y)
            case Op("where", (Op("gt", (Access() as x, Literal(0))), same, below)) if x == same:
                # leaky_relu and elu: for them the result has the sign of the argument
                match below:
                    case Op("mul", (Literal(factor), Access() as z)) if z == x and factor > 0:
                        slope: Expr = Op("mul", (Literal(factor), u))
                    case Op("mul", (Literal(factor), Op("expm1", (z,)))) if z == x and factor > 0:
                        slope = Op("mul", (u, Op("add", (y, Literal(factor)))))
                    case _:
                        return None
                return x, Op("where", (Op("gt", (y, Literal(0.0))), u, slope))
        return None

    def _softmax(self, recipe: Any, u: Access) -> Expr:
        y = recipe.access
        q = self._fresh(y.indices[:1])
        if recipe.kind == "softmax":
            self.steps.append(Step(q, Op("mul", (y, u)), "sum", y.indices[1:]))
            return Op("mul", (y, Op("sub", (u, q))))
        self.steps.append(Step(q, u, "sum", y.indices[1:]))
        return Op("sub", (u, Op("mul", (Op("exp", (y,)), q))))

    # what is added to a gradient ---------------------------------------------------------------------

    def _add(self, access: Access, term: Expr) -> None:
        """``term`` is a part of the gradient of ``access``, to be summed over all indices that it lacks."""
        free = free_indices(term)
        summed = tuple(index for index in free if index not in access.indices)
        if access.indices[:1] == self.letters[:1] or access.indices == self.letters:
            if summed or access.tensor not in self.values:  # of a shape that is known
                target = self._fresh(access.indices)
                self.steps.append(Step(target, term, "sum", summed))
                term = target
            self.adjoints.setdefault(access.tensor, []).append(term)
            return
        factors = _factors(term)
        rest = [f for f in factors if isinstance(f, Access) and not set(f.indices) <= set(self.letters)]
        inside = [f for f in factors if f not in rest]
        walked = any(set(free_indices(f)) == set(self.letters) for f in inside)
        if not walked:  # a dense result: all of it, then the sum
            rest, inside = [], factors
        parts: list[Expr] = list(rest)
        if inside:
            indices = self.letters if walked else _ordered(free, self.letters)
            parts.insert(0, self._whole(inside, indices))
        self.finals.append(Final(access.tensor, access.indices, _product(parts), summed))

    def _whole(self, factors: Sequence[Expr], indices: tuple[str, ...]) -> Access:
        """The product of ``factors`` as a tensor."""
        if len(factors) == 1 and isinstance(factors[0], Access):
            return factors[0]
        target = self._fresh(indices)
        self.steps.append(Step(target, _product(factors), "sum", ()))
        return target

    def _named(self, terms: Sequence[Expr], indices: tuple[str, ...]) -> Access:
        """The sum of ``terms`` as a tensor."""
        if len(terms) == 1 and isinstance(terms[0], Access) and terms[0].indices == indices:
            return terms[0]
        target = self._fresh(indices)
        total = functools.reduce(lambda a, b: Op("add", (a, b)), terms)
        self.steps.append(Step(target, total, "sum", ()))
        return target

    def _fresh(self, indices: tuple[str, ...]) -> Access:
        self.counter += 1
        return Access(f"B{self.counter}", indices)

    # results of the way there ------------------------------------------------------------------------

    def _again(self) -> tuple[list[Step], tuple[str, ...]]:
        """The elementwise steps that are run again, and the names of results that are kept."""
        left = [access.tensor for step in self.steps for access in step.accesses]
        left += [access.tensor for final in self.finals for access in accesses(final.value)]
        again: set[str] = set()
        known: set[str] = set()
        while left:
            name = left.pop()
            if name not in self.values or name in again or name in known:
                continue
            recipe = self.values[name].recipe
            if name in self.asked or recipe.kind != "elementwise" or _is_slow(recipe.steps[0].body):
                known.add(name)
            else:
                again.add(name)
                left += recipe.parents
        steps = [step for name, value in self.values.items() if name in again for step in value.recipe.steps]
        return steps, tuple(name for name in self.values if name in known)


def _is_slow(body: Expr) -> bool:
    """Whether it takes longer to compute than to keep."""
    return any(isinstance(part, Op) and OPERATORS[part.name].is_slow for part in walk(body))


def _ordered(indices: Sequence[str], letters: tuple[str, ...]) -> tuple[str, ...]:
    """Indices with that of the rows first."""
    return tuple(sorted(indices, key=lambda index: index != letters[0]))


def _factors(expr: Expr) -> list[Expr]:
    match expr:
        case Op("mul", (left, right)):
            return [*_factors(left), *_factors(right)]
    return [expr]


def _product(factors: Sequence[Expr]) -> Expr:
    return functools.reduce(lambda a, b: Op("mul", (a, b)), factors)
