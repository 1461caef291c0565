"""Recorded calls as one kernel, with gradients (``fused_gradients``); or one by one where that cannot be.

A group is a function of arrays: dense tensors, and the values of sparse ones. How it is computed depends only
on the calls and on what their arguments are, so that a ``GroupPlan`` serves all runs of the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scorch._src.compile.double_backward import Again
from scorch._src.compile.group_arrays import (
    Items,
    Read,
    array_of,
    connected_array,
    letters_of,
    names_read,
    outside,
    rows_of,
    run_alone,
    steps_on,
    stored_names,
    tensor_of,
    viewed,
)
from scorch._src.compile.group_gradients import Backward, plan_backward
from scorch._src.compile.lazy_tensor import Call, Recipe, Source, Value
from scorch._src.engine.fused_executable import FusedKernel, fused_kernel
from scorch._src.grad_state import is_learning
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import apply, sparse_of
from scorch._src.tensor.sparse_tensor import SparseTensor


@dataclass(eq=False)
class GroupPlan:
    """How some recorded calls are computed: by one kernel, or one by one for ``reason``.

    ``order`` and ``asked`` are the numbers of values, ``sources`` those of tensors that were there before;
    ``read``: what the kernel is given, in order; ``walked``: the number of the pattern. ``recipes`` and
    ``outside``, the calls one by one, are there for gradients.
    """

    calls: tuple[str, ...]
    order: tuple[int, ...]
    asked: tuple[int, ...]
    sources: tuple[int, ...]
    walked: int
    kernel: FusedKernel | None = None
    reason: str = ""
    read: tuple[Read, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    outside: tuple[Call, ...] = ()
    is_flat: bool = False
    backward: Backward | None = None
    kept: tuple[str, ...] = ()

    def run(self, record: Any) -> None:
        """Give all values that were asked for their results."""
        items: Items = record.items
        for number in self.sources:
            item = items[number]
            if type(item) is Source:
                item.check()
        if self.kernel is None:
            for number in self.order:
                value = items[number]
                assert isinstance(value, Value)
                value.result = run_alone(value)
            return
        pattern: Pattern = record.patterns[self.walked]
        if self.backward is not None:
            sources = [items[number] for number in self.sources]
            patterns = [_pattern_of(item) for item in sources]
            arrays = apply(_Group, self, pattern, patterns, *map(connected_array, sources))
        else:
            given = [viewed(array_of(items[number]), dims) for number, dims in self.read]
            arrays = self.compute(pattern, given)
        for number, array in zip(self.asked, arrays, strict=False):
            value = items[number]
            assert isinstance(value, Value)
            if not value.recipe.is_sparse:
                value.result = array
            elif self.backward is None:
                value.result = SparseTensor(Storage(pattern, array))
            else:
                value.result = sparse_of(pattern, array)

    def compute(self, pattern: Pattern, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results of the kernel: those that are asked for, then those that gradients need."""
        assert self.kernel is not None
        return self.kernel.run(None if self.is_flat else rows_of(pattern), arrays, pattern.size)


def plan_group(record: Any, values: Sequence[Value]) -> GroupPlan:
    """How to compute ``values``, which walk one pattern, with all that they need."""
    items: Items = record.items
    order = _order(items, values)
    calls = tuple(_name(value.call[0]) for value in order)
    numbers = [number for value in order for number in value.recipe.parents.values()]
    own = {value.number for value in order}
    sources = tuple(number for number in dict.fromkeys(numbers) if number not in own)
    plan = GroupPlan(
        calls,
        tuple(value.number for value in order),
        tuple(value.number for value in values),
        sources,
        values[0].recipe.walked,
    )
    if plan.walked < 0:
        return replace(plan, reason="a product of dense tensors, which was needed whole")
    if len(order) == 1 and order[0].recipe.kind in ("elementwise", "sum"):
        return replace(plan, reason="a single call")
    pattern: Pattern = record.patterns[plan.walked]
    tensors: dict[str, torch.Tensor] = {}
    read: dict[str, Read] = {}
    for value in order:
        for name, number in value.recipe.parents.items():
            if number not in own:
                read[name] = number, value.recipe.views.get(name)
                tensors[name] = viewed(array_of(items[number]), read[name][1]).detach()
    kept = tuple(value.recipe.access.tensor for value in values)
    backward = None
    needing = {number for number in sources if is_learning(tensor_of(items[number]))}
    if needing:
        backward = plan_backward(order, values, needing, letters_of(pattern))
        kept = tuple(dict.fromkeys((*kept, *backward.known)))
    stored = stored_names(order, items, letters_of(pattern))
    sizes = {index: size for value in order for index, size in value.recipe.sizes.items()}
    steps = tuple(step for value in order for step in value.recipe.steps)
    wanted, is_flat = steps_on(pattern, steps, kept, stored, sizes)
    walked = None if is_flat else rows_of(pattern)
    if walked is None and not is_flat:
        return replace(plan, reason=f"the pattern is {pattern.format}, which has no rows to walk")
    kernel = fused_kernel(wanted, walked, {name: tensors[name] for name in names_read(steps, tensors)})
    if isinstance(kernel, str):
        return replace(plan, reason=kernel)
    if backward is not None:
        calls_outside = tuple(outside(value, record.sources) for value in order)
        plan = replace(plan, recipes=tuple(value.recipe for value in order), outside=calls_outside)
        backward.prepare(order, pattern, stored, sizes, read, tensors)
    reads = tuple(read[name] for name in kernel.inputs)
    return replace(plan, kernel=kernel, read=reads, is_flat=is_flat, backward=backward, kept=kept)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_")


def _order(items: Items, values: Sequence[Value]) -> list[Value]:
    """All values that must be computed, in the order in which they were recorded."""
    found: dict[int, Value] = {}
    left = [value.number for value in values]
    while left:
        number = left.pop()
        value = items[number]
        if number not in found and isinstance(value, Value) and value.result is None:
            found[number] = value
            left += value.recipe.parents.values()
    return [found[number] for number in sorted(found)]


def _pattern_of(item: Value | Source) -> Pattern | None:
    """Where the array of a tensor has its values."""
    tensor = tensor_of(item)
    if not isinstance(tensor, SparseTensor):
        return None
    return (item.walked if isinstance(item, Value) else None) or tensor.storage.pattern


# gradients -------------------------------------------------------------------------------------------


class _Group(torch.autograd.Function):
    """A group as a function of arrays."""

    @staticmethod
    def forward(
        ctx: Any, plan: GroupPlan, pattern: Pattern, patterns: list[Pattern | None], *arrays: torch.Tensor
    ) -> Any:
        given = dict(zip(plan.sources, (array.detach() for array in arrays), strict=True))
        found = plan.compute(pattern, [viewed(given[number], dims) for number, dims in plan.read])
        ctx.plan, ctx.pattern, ctx.patterns = plan, pattern, patterns
        ctx.save_for_backward(*arrays, *found)
        ctx.mark_non_differentiable(*found[len(plan.asked) :])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        plan: GroupPlan = ctx.plan
        backward = plan.backward
        assert backward is not None
        count = len(plan.sources)
        arrays, found = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        known = dict(zip(plan.kept, (array.detach() for array in found), strict=True))
        incoming, needed = incoming[: len(plan.asked)], ctx.needs_input_grad[3:]
        if torch.is_grad_enabled() or backward.reason:
            again = Again(plan, ctx.pattern, ctx.patterns, known)
            return None, None, None, *again.gradients(arrays, incoming, needed)
        given = dict(zip(plan.sources, (array.detach() for array in arrays), strict=True))
        gradients = backward.run(ctx.pattern, given, known, incoming)
        pairs = zip(plan.sources, needed, strict=True)
        return None, None, None, *(gradients.get(number) if need else None for number, need in pairs)
