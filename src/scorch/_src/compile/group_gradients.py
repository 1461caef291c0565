"""Gradients of a fused group, as steps of their own.

Going backward through the calls, the gradient of what a step reads is a step too
(``notation.differentiate``). Those whose results have rows of the pattern, at its entries or dense, become
one kernel:

    O[i,e] = sum(j, R[i,j] * V[j,e])        ->        dR[i,j] = sum(e, dO[i,e] * V[j,e])

Elementwise results that they need are recomputed inside that kernel; exponentials, sums and softmaxes are
saved by the forward pass. What is summed over rows, such as dV[j,e] = sum(i, R[i,j] * dO[i,e]), is a
statement of its own, of tensors that the kernel outputs.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from scorch._src.compile.group_kernel import GroupKernel, compile_group, drop_broadcast_dims
from scorch._src.compile.lazy_tensor import Value
from scorch._src.compiler.pipeline import as_statement
from scorch._src.compiler.plan import Step
from scorch._src.engine.fused_executable import without_gaps
from scorch._src.loops.operators import OPERATORS
from scorch._src.notation.differentiate import BUILD, uses_of
from scorch._src.notation.nodes import Access, Expr, Literal, Op
from scorch._src.notation.show import show
from scorch._src.notation.trees import free_indices, walk
from scorch._src.statements.evaluate import evaluate
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.sparse_tensor import SparseTensor


@dataclass(eq=False)
class BackwardPlan:
    """The backward pass of a fused group.

    ``saved``: results of the forward pass that it reads; ``steps`` compute the tensors ``outputs``, from
    which ``finals`` compute the gradients of the tensors that they target. ``reason``: why it is not one
    kernel, if it is not.
    """

    steps: tuple[Step, ...]
    saved: tuple[str, ...]
    incoming: tuple[str, ...]
    finals: tuple[Step, ...]
    reason: str = ""
    kernel: GroupKernel | None = None
    outputs: tuple[str, ...] = ()
    pattern_indices: tuple[str, ...] = ()
    stored: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()  # finals in index notation, with targets called D
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
        """Compile the kernel; ``read`` are the tensors of the forward pass, ``tensors`` what they are now."""
        self.numbers = dict(read)
        renamed = [replace(final, target=replace(final.target, tensor="D")) for final in self.finals]
        self.texts = tuple(show(as_statement(final)) for final in renamed)
        arrays = dict(tensors)
        targets = {step.target.tensor: step.target.indices == self.pattern_indices for step in self.steps}
        self.stored = stored | {name for name, is_on_pattern in targets.items() if is_on_pattern}
        recipes = {value.recipe.access.tensor: value.recipe for value in order}
        for name in (*self.incoming, *self.saved):
            recipe = recipes[name.removeprefix(INCOMING_PREFIX)]
            shape = (pattern.size,) if recipe.is_sparse else recipe.shape
            arrays[name] = torch.empty(shape, dtype=recipe.dtype, device="meta")
            if recipe.is_sparse:
                self.stored |= {name}
        names_read = dict.fromkeys(access.tensor for final in self.finals for access in final.accesses)
        self.outputs = tuple(name for name in names_read if name in targets)
        if not self.outputs:
            return
        kernel = compile_group(pattern, self.steps, self.outputs, self.stored, sizes, arrays)
        if isinstance(kernel, str):
            self.reason = kernel
        else:
            self.kernel = kernel

    def run(
        self,
        pattern: Pattern,
        arrays: Mapping[int, torch.Tensor],
        saved: Mapping[str, torch.Tensor],
        incoming: Sequence[torch.Tensor],
    ) -> dict[int, torch.Tensor]:
        """Compute the gradients of tensors by their numbers, each in the shape of its array."""
        tensors = dict(saved)
        tensors |= dict(zip(self.incoming, map(without_gaps, incoming), strict=True))
        for name, (number, dims) in self.numbers.items():
            tensors[name] = drop_broadcast_dims(arrays[number], dims)
        if self.kernel is not None:
            inputs = [tensors[name] for name in self.kernel.fused.inputs]
            tensors |= zip(self.outputs, self.kernel.run(pattern, inputs), strict=True)
        gradients: dict[int, torch.Tensor] = {}
        for final, text in zip(self.finals, self.texts, strict=True):
            number, _ = self.numbers[final.target.tensor]
            gradient = self._compute_final(final, text, pattern, tensors).reshape(arrays[number].shape)
            partial = gradients.get(number)
            gradients[number] = gradient if partial is None else partial + gradient
        return gradients

    def explain(self) -> str:
        """Describe how gradients are computed."""
        if self.reason:
            return f"by autograd of the separate calls\n{self.reason}"
        kernel = self.kernel
        lines = [] if kernel is None else ["one kernel:", textwrap.indent(kernel.fused.header, "  ")]
        lines += [
            f"d{final.target.tensor} = {show(as_statement(final).value)}"
            for final in self.finals
            if final.reduced
        ]
        return "\n".join(lines)

    def _compute_final(
        self, final: Step, text: str, pattern: Pattern, tensors: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        target, body = final.target, final.body
        if isinstance(body, Access):
            array, is_stored = tensors[body.tensor], body.tensor in self.stored
            if not final.reduced and is_stored == (target.tensor in self.stored):
                return array
            if final.reduced and (not is_stored or not target.indices):
                dims = [body.indices.index(index) for index in final.reduced]
                return array.sum(dims) if target.indices else array.sum()
        operands: dict[str, Any] = {access.tensor: tensors[access.tensor] for access in final.accesses}
        for name in self.stored & operands.keys():
            operands[name] = SparseTensor(Storage(pattern, operands[name]))
        gradient = evaluate(text, format="dense", **operands)
        assert isinstance(gradient, torch.Tensor)
        return gradient


INCOMING_PREFIX = "g"  # of a result's name: its incoming gradient


class BackwardPlanner:
    """Go backward through the calls, from ``requested`` to the tensors numbered ``differentiable``."""

    def __init__(
        self,
        order: Sequence[Value],
        requested: Sequence[Value],
        differentiable: set[int],
        pattern_indices: tuple[str, ...],
    ) -> None:
        self.order = order
        self.requested = [value.recipe.access.tensor for value in requested]
        self.pattern_indices = pattern_indices
        self.values = {value.recipe.access.tensor: value for value in order}
        self.differentiable = set(differentiable)
        for value in order:
            if not self.differentiable.isdisjoint(value.recipe.parents.values()):
                self.differentiable.add(value.number)
        self.steps: list[Step] = []
        self.finals: list[Step] = []
        self.adjoints: dict[str, list[Expr]] = {}
        # of the gradient of each tensor, which calls may name otherwise
        self.indices: dict[str, tuple[str, ...]] = {}
        self.counter = 0

    def plan(self) -> BackwardPlan:
        for name in self.requested:
            access = self.values[name].recipe.access
            self.adjoints.setdefault(name, []).append(Access(f"{INCOMING_PREFIX}{name}", access.indices))
        for value in reversed(self.order):
            name = value.recipe.access.tensor
            terms = self.adjoints.get(name)
            if value.number in self.differentiable and terms:
                self._backpropagate(value, self._add_up(terms, value.recipe.access.indices))
        for name, terms in self.adjoints.items():
            if name not in self.values:
                gradient = self._add_up(terms, free_indices(terms[0]))
                self.finals.append(Step(replace(gradient, tensor=name), gradient, "sum", ()))
        recomputed, saved = self._split_recomputed()
        incoming = tuple(f"{INCOMING_PREFIX}{name}" for name in self.requested)
        steps = (*recomputed, *self.steps)
        return BackwardPlan(steps, saved, incoming, tuple(self.finals), pattern_indices=self.pattern_indices)

    # one call ----------------------------------------------------------------------------------------

    def _backpropagate(self, value: Value, u: Access) -> None:
        """Propagate a gradient to the tensors that a call reads."""
        recipe = value.recipe
        if recipe.kind in ("softmax", "log_softmax"):
            (name,) = recipe.parents
            return self._accumulate(
                Access(name, recipe.access.indices), self._differentiate_softmax(recipe, u)
            )
        (step,) = recipe.steps
        for name, number in recipe.parents.items():
            if number not in self.differentiable:
                continue
            result = self._differentiate_by_result(value, u)
            if result is not None:
                self._accumulate(*result)
                continue
            for access, term in uses_of(step.body, name, u):
                self._accumulate(access, term)

    def _differentiate_by_result(self, value: Value, u: Access) -> tuple[Access, Expr] | None:
        """Return the gradient of a unary function by its result, where that is available anyway."""
        y, body = value.recipe.access, value.recipe.steps[0].body
        is_available = y.tensor in self.requested or _is_slow(body)
        match body:
            case Op(name, (Access() as x,)) if x.indices == y.indices if is_available else name == "relu":
                rule = OPERATORS[name].derivative_by_result
                # that of relu is the same by its argument
                return None if rule is None else (x, rule(BUILD, u, y if is_available else x))
            case _ if not is_available:
                return None
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

    def _differentiate_softmax(self, recipe: Any, u: Access) -> Expr:
        y = recipe.access
        if recipe.kind == "softmax":
            q = self._define(y.indices[:1], Op("mul", (y, u)), y.indices[1:])
            return Op("mul", (y, Op("sub", (u, q))))
        q = self._define(y.indices[:1], u, y.indices[1:])
        return Op("sub", (u, Op("mul", (Op("exp", (y,)), q))))

    # accumulating a gradient -------------------------------------------------------------------------

    def _accumulate(self, access: Access, term: Expr) -> None:
        """Add ``term``, summed over the indices that ``access`` lacks, to the gradient of ``access``."""
        free = free_indices(term)
        summed = tuple(index for index in free if index not in access.indices)
        if access.indices[:1] == self.pattern_indices[:1] or access.indices == self.pattern_indices:
            known = self.values.get(access.tensor)
            indices = self.indices.setdefault(
                access.tensor, known.recipe.access.indices if known else access.indices
            )
            if summed or known is None or access.indices != indices:  # of a known shape
                term = replace(self._define(access.indices, term, summed), indices=indices)
            self.adjoints.setdefault(access.tensor, []).append(term)
            return
        factors = _factors(term)
        outer = [
            f for f in factors if isinstance(f, Access) and not set(f.indices) <= set(self.pattern_indices)
        ]
        inside = [f for f in factors if f not in outer]
        is_on_pattern = any(set(free_indices(f)) == set(self.pattern_indices) for f in inside)
        if not is_on_pattern:  # a dense result: all of it, then the sum
            outer, inside = [], factors
        product: list[Expr] = list(outer)
        if inside:
            indices = self.pattern_indices if is_on_pattern else _rows_first(free, self.pattern_indices)
            value = _product(inside)
            product.insert(0, value if isinstance(value, Access) else self._define(indices, value))
        self.finals.append(Step(access, _product(product), "sum", summed))

    def _add_up(self, terms: Sequence[Expr], indices: tuple[str, ...]) -> Access:
        """Return the sum of ``terms`` as a tensor."""
        if len(terms) == 1 and isinstance(terms[0], Access) and terms[0].indices == indices:
            return terms[0]
        return self._define(indices, functools.reduce(lambda a, b: Op("add", (a, b)), terms))

    def _define(self, indices: tuple[str, ...], body: Expr, summed: tuple[str, ...] = ()) -> Access:
        """Return a new tensor, which a step computes: the sum of ``body`` over ``summed``."""
        self.counter += 1
        target = Access(f"B{self.counter}", indices)
        self.steps.append(Step(target, body, "sum", summed))
        return target

    # results of the forward pass ---------------------------------------------------------------------

    def _split_recomputed(self) -> tuple[list[Step], tuple[str, ...]]:
        """Return the elementwise steps to recompute, and the names of results to save."""
        remaining = [access.tensor for step in (*self.steps, *self.finals) for access in step.accesses]
        recomputed: set[str] = set()
        saved: set[str] = set()
        while remaining:
            name = remaining.pop()
            if name not in self.values or name in recomputed or name in saved:
                continue
            recipe = self.values[name].recipe
            if name in self.requested or recipe.kind != "elementwise" or _is_slow(recipe.steps[0].body):
                saved.add(name)
            else:
                recomputed.add(name)
                remaining += recipe.parents
        steps = [
            step for name, value in self.values.items() if name in recomputed for step in value.recipe.steps
        ]
        return steps, tuple(name for name in self.values if name in saved)


def _is_slow(body: Expr) -> bool:
    """Whether recomputing takes longer than saving."""
    return any(isinstance(node, Op) and OPERATORS[node.name].is_slow for node in walk(body))


def _rows_first(indices: Sequence[str], pattern_indices: tuple[str, ...]) -> tuple[str, ...]:
    """Sort indices, that of the rows first."""
    return tuple(sorted(indices, key=lambda index: index != pattern_indices[0]))


def _factors(expr: Expr) -> list[Expr]:
    match expr:
        case Op("mul", (left, right)):
            return [*_factors(left), *_factors(right)]
    return [expr]


def _product(factors: Sequence[Expr]) -> Expr:
    return functools.reduce(lambda a, b: Op("mul", (a, b)), factors)
