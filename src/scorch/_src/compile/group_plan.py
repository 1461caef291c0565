"""Fuse recorded calls into one kernel, with gradients (``group_gradients``); or run them one by one.

A group is a function of arrays: dense tensors, and the values of sparse ones. How it is computed depends only
on the calls and on the properties of their arguments, so a ``GroupPlan`` serves all runs of the same calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scorch._src.compile.double_backward import DoubleBackward
from scorch._src.compile.group_arrays import (
    InputView,
    Items,
    as_row_pattern,
    drop_broadcast_dims,
    find_names_read,
    find_stored_names,
    index_names,
    kernel_array,
    make_eager_call,
    place_steps,
    run_eager_call,
)
from scorch._src.compile.group_gradients import BackwardPlan, BackwardPlanner
from scorch._src.compile.lazy_tensor import Call, Recipe, Source, Value
from scorch._src.engine.fused_executable import FusedKernel, fused_kernel
from scorch._src.grad_state import is_differentiable
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import apply, sparse_of
from scorch._src.tensor.sparse_tensor import SparseTensor


@dataclass(eq=False)
class GroupPlan:
    """Compute some recorded calls by one kernel, or one by one for ``reason``.

    ``order`` and ``requested`` are the numbers of values, ``sources`` those of tensors that existed before;
    ``inputs``: the arrays of the kernel, in order; ``outputs``: the names of its results. ``recipes`` and
    ``eager_calls`` are kept for gradients.
    """

    calls: tuple[str, ...]
    order: tuple[int, ...]
    requested: tuple[int, ...]
    sources: tuple[int, ...]
    pattern_number: int
    kernel: FusedKernel | None = None
    reason: str = ""
    inputs: tuple[InputView, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    eager_calls: tuple[Call, ...] = ()
    is_flat: bool = False
    backward: BackwardPlan | None = None
    outputs: tuple[str, ...] = ()

    def run(self, record: Any) -> None:
        """Compute all requested values."""
        items: Items = record.items
        for number in self.sources:
            item = items[number]
            if type(item) is Source:
                item.check()
        if self.kernel is None:
            for number in self.order:
                value = items[number]
                assert isinstance(value, Value)
                value.result = run_eager_call(value.call, {})
            return
        pattern: Pattern = record.patterns[self.pattern_number]
        if self.backward is not None:
            sources = [items[number] for number in self.sources]
            patterns = [_pattern_of(item) for item in sources]
            arrays = [kernel_array(item, connect=True) for item in sources]
            results = apply(_FusedGroup, self, pattern, patterns, *arrays)
        else:
            arrays = [drop_broadcast_dims(kernel_array(items[number]), dims) for number, dims in self.inputs]
            results = self.compute(pattern, arrays)
        for number, array in zip(self.requested, results, strict=False):
            value = items[number]
            assert isinstance(value, Value)
            if not value.recipe.is_sparse:
                value.result = array
            elif self.backward is None:
                value.result = SparseTensor(Storage(pattern, array))
            else:
                value.result = sparse_of(pattern, array)

    def compute(self, pattern: Pattern, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the kernel: return the requested results, then those that gradients need."""
        assert self.kernel is not None
        return self.kernel.run(None if self.is_flat else as_row_pattern(pattern), arrays, pattern.size)


def plan_group(record: Any, values: Sequence[Value]) -> GroupPlan:
    """Plan how to compute ``values``, which share one pattern, with all that they need."""
    items: Items = record.items
    order = _collect_values(items, values)
    calls = tuple(_name(value.call[0]) for value in order)
    numbers = [number for value in order for number in value.recipe.parents.values()]
    own_numbers = {value.number for value in order}
    sources = tuple(number for number in dict.fromkeys(numbers) if number not in own_numbers)
    plan = GroupPlan(
        calls,
        tuple(value.number for value in order),
        tuple(value.number for value in values),
        sources,
        values[0].recipe.pattern_number,
    )
    if plan.pattern_number < 0:
        return replace(plan, reason="a product of dense tensors, which was needed whole")
    if len(order) == 1 and order[0].recipe.kind in ("elementwise", "sum"):
        return replace(plan, reason="a single call")
    pattern: Pattern = record.patterns[plan.pattern_number]
    tensors: dict[str, torch.Tensor] = {}
    inputs: dict[str, InputView] = {}
    for value in order:
        for name, number in value.recipe.parents.items():
            if number not in own_numbers:
                inputs[name] = number, value.recipe.views.get(name)
                tensors[name] = drop_broadcast_dims(kernel_array(items[number]), inputs[name][1]).detach()
    outputs = tuple(value.recipe.access.tensor for value in values)
    backward = None
    differentiable = {number for number in sources if is_differentiable(items[number].tensor())}
    if differentiable:
        backward = BackwardPlanner(order, values, differentiable, index_names(pattern)).plan()
        outputs = tuple(dict.fromkeys((*outputs, *backward.saved)))
    stored = find_stored_names(order, items, index_names(pattern))
    sizes = {index: size for value in order for index, size in value.recipe.sizes.items()}
    steps = tuple(step for value in order for step in value.recipe.steps)
    placed, is_flat = place_steps(pattern, steps, outputs, stored, sizes)
    rows = None if is_flat else as_row_pattern(pattern)
    if rows is None and not is_flat:
        return replace(plan, reason=f"the pattern is {pattern.format}, which has no rows to walk")
    kernel = fused_kernel(placed, rows, {name: tensors[name] for name in find_names_read(steps, tensors)})
    if isinstance(kernel, str):
        return replace(plan, reason=kernel)
    if backward is not None:
        eager_calls = tuple(make_eager_call(value, record.sources) for value in order)
        plan = replace(plan, recipes=tuple(value.recipe for value in order), eager_calls=eager_calls)
        backward.prepare(order, pattern, stored, sizes, inputs, tensors)
    reads = tuple(inputs[name] for name in kernel.inputs)
    return replace(plan, kernel=kernel, inputs=reads, is_flat=is_flat, backward=backward, outputs=outputs)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_")


def _collect_values(items: Items, values: Sequence[Value]) -> list[Value]:
    """Collect all values that must be computed, in the order in which they were recorded."""
    collected: dict[int, Value] = {}
    remaining = [value.number for value in values]
    while remaining:
        number = remaining.pop()
        value = items[number]
        if number not in collected and isinstance(value, Value) and value.result is None:
            collected[number] = value
            remaining += value.recipe.parents.values()
    return [collected[number] for number in sorted(collected)]


def _pattern_of(item: Value | Source) -> Pattern | None:
    """Return the pattern at whose entries the array of a tensor has its values."""
    tensor = item.tensor()
    return item.pattern or tensor.storage.pattern if isinstance(tensor, SparseTensor) else None


# gradients -------------------------------------------------------------------------------------------


class _FusedGroup(torch.autograd.Function):
    """A fused group as a differentiable function of arrays."""

    @staticmethod
    def forward(
        ctx: Any, plan: GroupPlan, pattern: Pattern, patterns: list[Pattern | None], *arrays: torch.Tensor
    ) -> Any:
        tensors = dict(zip(plan.sources, (array.detach() for array in arrays), strict=True))
        results = plan.compute(
            pattern, [drop_broadcast_dims(tensors[number], dims) for number, dims in plan.inputs]
        )
        ctx.plan, ctx.pattern, ctx.patterns = plan, pattern, patterns
        ctx.save_for_backward(*arrays, *results)
        ctx.mark_non_differentiable(*results[len(plan.requested) :])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        plan: GroupPlan = ctx.plan
        backward = plan.backward
        assert backward is not None
        count = len(plan.sources)
        arrays, results = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        saved = dict(zip(plan.outputs, (array.detach() for array in results), strict=True))
        incoming, needed = incoming[: len(plan.requested)], ctx.needs_input_grad[3:]
        if torch.is_grad_enabled() or backward.reason:
            double_backward = DoubleBackward(plan, ctx.pattern, ctx.patterns, saved)
            return None, None, None, *double_backward.gradients(arrays, incoming, needed)
        tensors = dict(zip(plan.sources, (array.detach() for array in arrays), strict=True))
        gradients = backward.run(ctx.pattern, tensors, saved, incoming)
        numbered = zip(plan.sources, needed, strict=True)
        return None, None, None, *(gradients.get(number) if need else None for number, need in numbered)
