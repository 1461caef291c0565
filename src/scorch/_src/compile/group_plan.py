"""Fuse recorded calls into one kernel, with gradients (``group_gradients``); or run them one by one.

A group is a function of arrays: dense tensors, and the values of sparse ones. How it is computed depends only
on the calls and on the properties of their arguments, so a ``GroupPlan`` serves all runs of the same calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from scorch._src.compile.group_gradients import BackwardPlan, BackwardPlanner
from scorch._src.compile.group_kernel import GroupKernel, compile_group, drop_broadcast_dims, index_names
from scorch._src.compile.lazy_tensor import Call, Recipe, Source, Value, map_leaves
from scorch._src.compiler.pipeline import as_statement
from scorch._src.dataclass import dataclass
from scorch._src.engine.fused_executable import PATTERN
from scorch._src.grad_state import is_differentiable
from scorch._src.notation.indexing import Statement
from scorch._src.notation.nodes import Access, Op
from scorch._src.ops.reduction.softmax import connect_softmax
from scorch._src.statements.autograd import differentiable
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import apply, sparse_of, values_at, values_of
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import EnableTorchFunction

Items = Sequence[Value | Source]
InputView = tuple[int, tuple[int, ...] | None]  # a tensor's number, the dimensions read


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
    kernel: GroupKernel | None = None
    reason: str = ""
    inputs: tuple[InputView, ...] = ()
    recipes: tuple[Recipe, ...] = ()
    eager_calls: tuple[Call, ...] = ()
    backward: BackwardPlan | None = None
    outputs: tuple[str, ...] = ()
    constant: frozenset[int] = frozenset()  # values that depend on nothing that requires a gradient

    def seconds_saved(self, record: Any) -> float:
        """Return the time that a kernel of several calls saves: more than tracing ever takes."""
        del record
        return 0.0 if self.kernel is None else math.inf

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
            results = self.kernel.run(pattern, arrays)
        for number, array in zip(self.requested, results, strict=False):
            value = items[number]
            assert isinstance(value, Value)
            if not value.recipe.is_sparse:
                value.result = array
            elif self.backward is None:
                value.result = SparseTensor(Storage(pattern, array))
            else:
                value.result = sparse_of(pattern, array)


def plan_group(record: Any, values: Sequence[Value]) -> GroupPlan:
    """Plan how to compute ``values``, which share one pattern, with all that they need."""
    items: Items = record.items
    order = collect_values(items, values)
    calls = tuple(name_of_call(value.call[0]) for value in order)
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
        return replace(plan, reason="a product of dense tensors whose whole result was needed")
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
    kernel = compile_group(pattern, steps, outputs, stored, sizes, tensors)
    if isinstance(kernel, str):
        return replace(plan, reason=kernel)
    if backward is not None:
        eager_calls = tuple(make_eager_call(value, record.sources) for value in order)
        learned = set(differentiable)
        for value in order:
            if not learned.isdisjoint(value.recipe.parents.values()):
                learned.add(value.number)
        plan = replace(
            plan,
            recipes=tuple(value.recipe for value in order),
            eager_calls=eager_calls,
            constant=frozenset(own_numbers - learned),
        )
        backward.prepare(order, pattern, stored, sizes, inputs, tensors)
    reads = tuple(inputs[name] for name in kernel.fused.inputs)
    return replace(plan, kernel=kernel, inputs=reads, backward=backward, outputs=outputs)


def name_of_call(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_")


def collect_values(items: Items, values: Sequence[Value]) -> list[Value]:
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


def find_stored_names(values: Sequence[Value], items: Items, letters: tuple[str, ...]) -> frozenset[str]:
    """Find the tensors of steps that have values at the entries of the pattern."""
    targets = [step.target for value in values for step in value.recipe.steps]
    names = {target.tensor for target in targets if target.indices == letters and len(letters) > 1}
    for value in values:
        if value.recipe.is_sparse:
            names.add(value.recipe.access.tensor)
        for name, number in value.recipe.parents.items():
            item = items[number]
            if item.recipe.is_sparse if isinstance(item, Value) else isinstance(item.result, SparseTensor):
                names.add(name)
    return frozenset(names)


def kernel_array(item: Value | Source, connect: bool = False) -> torch.Tensor:
    """Return what kernels read of a tensor: its values at the entries of the pattern, or all of it.

    With ``connect`` the array is connected to the tensor for autograd.
    """
    tensor, pattern = item.result, item.pattern
    assert tensor is not None
    if not isinstance(tensor, SparseTensor):
        return tensor if type(item) is Source else tensor.contiguous()
    if pattern is not None and tensor.storage.pattern is not pattern:
        return values_at(tensor, pattern)
    return values_of(tensor) if connect else tensor.storage.values


def _pattern_of(item: Value | Source) -> Pattern | None:
    """Return the pattern at whose entries the array of a tensor has its values."""
    tensor = item.tensor()
    return item.pattern or tensor.storage.pattern if isinstance(tensor, SparseTensor) else None


# eager calls -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorRef:
    """A reference to a tensor among the arguments of a call."""

    number: int


def make_eager_call(value: Value, sources: Mapping[int, Source]) -> Call:
    """Return the eager call of a value, with references in place of tensors."""

    def as_reference(item: Any) -> Any:
        if isinstance(item, Value) and item.result is not None:  # computed before, and read as a source
            return TensorRef(sources.get(id(item.result), item).number)
        if isinstance(item, (Value, Source)):
            return TensorRef(item.number)
        return TensorRef(sources[id(item)].number) if isinstance(item, torch.Tensor) else item

    func, args, kwargs = value.call
    return func, map_leaves(as_reference, args), map_leaves(as_reference, kwargs)


def run_eager_call(call: Call, tensors: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Run an eager call, with tensors by their numbers for references; values and sources have theirs."""
    func, args, kwargs = call

    def resolve(item: Any) -> Any:
        if isinstance(item, (Value, Source)):
            return item.tensor()
        return tensors[item.number] if type(item) is TensorRef else item

    result: torch.Tensor = func(*map_leaves(resolve, args), **map_leaves(resolve, kwargs))
    return result


# gradients -------------------------------------------------------------------------------------------


class _FusedGroup(torch.autograd.Function):
    """A fused group as a differentiable function of arrays."""

    @staticmethod
    def forward(
        ctx: Any, plan: GroupPlan, pattern: Pattern, patterns: list[Pattern | None], *arrays: torch.Tensor
    ) -> Any:
        tensors = dict(zip(plan.sources, (array.detach() for array in arrays), strict=True))
        assert plan.kernel is not None  # whose results are those requested, then those that gradients need
        inputs = [drop_broadcast_dims(tensors[number], dims) for number, dims in plan.inputs]
        results = plan.kernel.run(pattern, inputs)
        ctx.plan, ctx.pattern, ctx.patterns = plan, pattern, patterns
        ctx.save_for_backward(*arrays, *results)
        numbered = zip(plan.requested, results, strict=False)
        constant = (result for number, result in numbered if number in plan.constant)
        ctx.mark_non_differentiable(*constant, *results[len(plan.requested) :])
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


@dataclass(frozen=True)
class DoubleBackward:
    """Double backward of one run of a group: gradients that can be differentiated again.

    ``saved`` are results by their names in steps: those of sums and softmaxes are connected to their
    operands, all other calls run again, and autograd differentiates both.
    """

    plan: GroupPlan
    pattern: Pattern
    patterns: Sequence[Pattern | None]
    saved: Mapping[str, torch.Tensor]

    def gradients(
        self, arrays: Sequence[torch.Tensor], incoming: Sequence[torch.Tensor], needed: Sequence[bool]
    ) -> list[torch.Tensor | None]:
        """Return the gradients of ``arrays``, those of the sources, where ``needed``."""
        create_graph = torch.is_grad_enabled()
        # the call may come from inside __torch_function__, where it is disabled
        with torch.enable_grad(), EnableTorchFunction():
            inputs = []
            for array, need in zip(arrays, needed, strict=True):
                leaf = array if create_graph and need else array.detach().requires_grad_(need)
                inputs.append(leaf.view_as(leaf) if create_graph and need else leaf)  # autograd stops here
            results = self._rerun(inputs)
            connected = [(out, g) for out, g in zip(results, incoming, strict=True) if out.requires_grad]
            outputs, seeds = [out for out, _ in connected], [g for _, g in connected]
            differentiated = [array for array, need in zip(inputs, needed, strict=True) if need]
            gradients = torch.autograd.grad(
                outputs, differentiated, seeds, create_graph=create_graph, allow_unused=True
            )
        remaining = iter(gradients)
        return [next(remaining) if need else None for need in needed]

    def _rerun(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the requested results, connected to ``arrays``."""
        plan = self.plan
        tensors: dict[int, torch.Tensor] = {}
        for number, pattern, array in zip(plan.sources, self.patterns, arrays, strict=True):
            tensors[number] = array if pattern is None else sparse_of(pattern, array)
        recipes = dict(zip(plan.order, plan.recipes, strict=True))
        for (number, recipe), call in zip(recipes.items(), plan.eager_calls, strict=True):
            saved = self.saved.get(recipe.access.tensor)
            if saved is None or recipe.kind == "elementwise":
                tensors[number] = run_eager_call(call, tensors)
            else:
                tensors[number] = self._connect_saved(recipe, saved, tensors)
        return [
            self._values_on_pattern(tensors[n]) if recipes[n].is_sparse else tensors[n]
            for n in plan.requested
        ]

    def _connect_saved(
        self, recipe: Recipe, array: torch.Tensor, tensors: Mapping[int, torch.Tensor]
    ) -> torch.Tensor:
        """Connect a saved result to the tensors it was computed from."""
        pattern = self.pattern
        result = SparseTensor(Storage(pattern, array)) if recipe.is_sparse else array
        parents = {name: tensors[number] for name, number in recipe.parents.items()}
        if recipe.kind != "sum":
            (tensor,) = parents.values()
            assert isinstance(result, SparseTensor)
            return connect_softmax(self._values_on_pattern(tensor), result, 1, recipe.kind)
        (step,) = recipe.steps
        mask = Access(PATTERN, recipe.access.indices) if recipe.is_sparse else None
        if mask is not None and not any(access.indices == mask.indices for access in step.accesses):
            step = replace(step, body=Op("mul", (mask, step.body)))
            parents[PATTERN] = SparseTensor(Storage(pattern, torch.ones_like(array)))
        names = tuple(dict.fromkeys(access.tensor for access in step.accesses))
        operands = [drop_broadcast_dims(parents[name], recipe.views.get(name)) for name in names]
        form: Any = pattern.format if recipe.is_sparse else "dense"
        return differentiable(Statement(as_statement(step)), names, operands, form, known=result)

    def _values_on_pattern(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values of a tensor at the entries of the pattern, connected to it."""
        if isinstance(tensor, SparseTensor) and tensor.storage.pattern is self.pattern:
            return values_of(tensor)
        return values_at(tensor, self.pattern)
