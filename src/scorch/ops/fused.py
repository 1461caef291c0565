"""Recorded calls as one kernel, with gradients (``fused_gradients``); or one by one where that cannot be.

A group is a function of arrays: dense tensors, and the values of sparse ones. How it is computed depends only
on the calls and on what their arguments are, so that a ``GroupPlan`` serves all runs of the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scorch.ops.fused_again import gradients_again
from scorch.ops.fused_gradients import Backward, plan_backward
from scorch.ops.groups import (
    Items,
    Read,
    array_of,
    letters_of,
    names_read,
    rows_of,
    run_alone,
    steps_on,
    stored_names,
    tensor_of,
    viewed,
)
from scorch.ops.later import Source, Value
from scorch.tensor.fused import FusedKernel, fused_kernel
from scorch.tensor.learning import apply, sparse_of, values_of
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern, Storage
from scorch.tensor.tracking import is_learning


@dataclass(eq=False)
class GroupPlan:
    """How some recorded calls are computed: by one kernel, or one by one for ``reason``.

    ``order`` and ``asked`` are the numbers of values, ``sources`` those of tensors that were there before;
    ``read``: what the kernel is given, in order; ``walked``: the number of the pattern.
    """

    calls: tuple[str, ...]
    order: tuple[int, ...]
    asked: tuple[int, ...]
    sources: tuple[int, ...]
    walked: int
    kernel: FusedKernel | None = None
    reason: str = ""
    read: tuple[Read, ...] = ()
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
                value.result = run_alone(value, {})
            return
        pattern: Pattern = record.patterns[self.walked]
        if self.backward is not None:
            values = [value for number in self.order if isinstance(value := items[number], Value)]
            sources = [items[number] for number in self.sources]
            call = Call(self, pattern, values, sources)
            arrays = apply(_Group, call, *map(_connected_array, sources))
        else:
            arrays = self.compute(pattern, [array_of(items[number], dims) for number, dims in self.read])
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
                tensors[name] = array_of(items[number], read[name][1]).detach()
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
        backward.prepare(order, pattern, stored, sizes, read, tensors)
    reads = tuple(read[name] for name in kernel.inputs)
    return replace(plan, kernel=kernel, read=reads, is_flat=is_flat, backward=backward, kept=kept)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_")


def _order(items: Items, values: Sequence[Value]) -> list[Value]:
    """All values that must be computed, each after those it reads."""
    found: list[Value] = []
    seen: set[int] = set()

    def visit(number: int) -> None:
        value = items[number]
        if number in seen or not isinstance(value, Value) or value.result is not None:
            return
        seen.add(number)
        for parent in value.recipe.parents.values():
            visit(parent)
        found.append(value)

    for value in values:
        visit(value.number)
    return found


def _connected_array(item: Value | Source) -> torch.Tensor:
    tensor = tensor_of(item)
    return values_of(tensor) if isinstance(tensor, SparseTensor) else tensor


# gradients -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Call:
    """One run of a group whose gradients are asked for."""

    plan: GroupPlan
    pattern: Pattern
    order: Sequence[Value]
    sources: Sequence[Value | Source]


class _Group(torch.autograd.Function):
    """A group as a function of arrays."""

    @staticmethod
    def forward(ctx: Any, call: Call, *arrays: torch.Tensor) -> Any:
        plan = call.plan
        places = {number: place for place, number in enumerate(plan.sources)}
        read = []
        for number, dims in plan.read:
            place = places[number]
            read.append(viewed(_own_array(call.sources[place], arrays[place]), dims))
        found = plan.compute(call.pattern, read)
        ctx.call, ctx.count = call, len(arrays)
        ctx.save_for_backward(*arrays, *found)
        ctx.mark_non_differentiable(*found[len(plan.asked) :])
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        call: Call = ctx.call
        plan, backward = call.plan, call.plan.backward
        assert backward is not None
        arrays, found = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        known = dict(zip(plan.kept, (array.detach() for array in found), strict=True))
        incoming, needed = incoming[: len(plan.asked)], ctx.needs_input_grad[1:]
        if torch.is_grad_enabled() or backward.reason:
            asked = [value for value in call.order if value.number in plan.asked]
            asked.sort(key=lambda value: plan.asked.index(value.number))
            return None, *gradients_again(call.order, asked, call.sources, known, arrays, incoming, needed)
        given = {
            number: _own_array(item, array)
            for number, item, array in zip(plan.sources, call.sources, arrays, strict=True)
        }
        gradients = backward.run(call.pattern, given, known, incoming)
        pairs = zip(plan.sources, needed, strict=True)
        return None, *(gradients.get(number) if need else None for number, need in pairs)


def _own_array(item: Value | Source, array: torch.Tensor) -> torch.Tensor:
    return array_of(item, None).detach() if isinstance(item, Value) else array.detach()
