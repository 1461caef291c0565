"""Recorded calls as one kernel, with gradients; or one by one where that cannot be.

A group is a function of arrays: dense tensors, and the values of sparse ones. Its gradients are those of
the calls it is made of, run one by one when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from scorch.formats import as_format
from scorch.compiler.plan import Step
from scorch.notation.nodes import Access
from scorch.notation.trees import accesses, substitute
from scorch.ops.later import Source, Value
from scorch.tensor.fused import FusedKernel, Steps, fused_kernel
from scorch.tensor.learning import apply, sparse_of, values_at, values_of
from scorch.tensor.run import convert
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern, Storage
from scorch.tensor.tracking import is_learning


@dataclass(frozen=True)
class Recorded:
    """What became of some recorded calls: one kernel, or a reason why they ran one by one."""

    calls: tuple[str, ...]
    kernel: FusedKernel | None
    reason: str = ""


def compute(values: Sequence[Value]) -> list[Recorded]:
    """Give every value its result; all walk one pattern."""
    order = _order(values)
    calls = tuple(_name(value.call[0]) for value in order)
    pattern = values[0].walked
    if len(order) == 1 and not order[0].steps[-1].reduced and len(order[0].steps) == 1:
        _run_alone(order)  # nothing to join: torch's own functions are as fast
        return [Recorded(calls, None, "a single call")]
    wanted, tensors, walked = _steps(order, values, pattern)
    if isinstance(walked, str):
        _run_alone(order)
        return [Recorded(calls, None, walked)]
    kernel = fused_kernel(wanted, walked, {name: tensor.detach() for name, tensor in tensors.items()})
    if isinstance(kernel, str):
        _run_alone(order)
        return [Recorded(calls, None, kernel)]
    sources = _sources(order)
    if is_learning(*(source.tensor for source in sources)):
        arrays = [_array(source) for source in sources]
        call = _Call(kernel, walked, order, values, sources)
        found = apply(_Group, call, *arrays)
    else:
        results = kernel(walked, tensors)
        found = tuple(results[value.access.tensor] for value in values)
    for value, array in zip(values, found, strict=True):
        value.result = array.view(value.shape) if value.pattern is None else sparse_of(value.pattern, array)
    return [Recorded(calls, kernel)]


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def _order(values: Sequence[Value]) -> list[Value]:
    """All values that must be computed, each after those it reads."""
    found: list[Value] = []
    seen: set[int] = set()

    def visit(value: Any) -> None:
        if id(value) in seen or not isinstance(value, Value) or value.result is not None:
            return
        seen.add(id(value))
        for parent in value.parents.values():
            visit(parent)
        found.append(value)

    for value in values:
        visit(value)
    return found


# steps and what they read ----------------------------------------------------------------------------


def _steps(order: Sequence[Value], values: Sequence[Value], pattern: Pattern) -> tuple[Steps, dict[str, Any], Any]:
    """The steps of all values, the arrays they read, and the pattern to walk (or why there is none)."""
    steps = tuple(step for value in order for step in value.steps)
    sizes: dict[str, int] = {}
    stored: set[str] = set()
    tensors: dict[str, torch.Tensor] = {}
    for value in order:
        sizes.update(value.sizes)
        for step in value.steps:
            if len(step.target.indices) == len(pattern.shape) and step.target.indices == letters_of(pattern):
                stored.add(step.target.tensor)
        for name, parent in value.parents.items():
            tensor = parent.result if isinstance(parent, Value) else parent.tensor
            if tensor is None:
                continue
            if isinstance(tensor, SparseTensor):
                stored.add(name)
                tensors[name] = tensor.storage.values
            else:
                tensors[name] = _viewed(tensor, value.views.get(name))
    kept = tuple(dict.fromkeys(value.access.tensor for value in values))
    names = {access.tensor for step in steps for access in step.accesses}
    if names <= stored and not any(step.reduced for step in steps):  # no coordinates are needed at all
        flat = tuple(_flattened(step) for step in steps)
        return Steps(flat, kept, ("p",), frozenset(stored), (("p", pattern.size),)), tensors, None
    wanted = Steps(steps, kept, letters_of(pattern), frozenset(stored), tuple(sizes.items()))
    return wanted, tensors, rows_of(pattern) or f"the pattern is {pattern.format}, which has no rows to walk"


def _flattened(step: Step) -> Step:
    def flat(access: Access) -> Access:
        return Access(access.tensor, ("p",))

    body = substitute(step.body, {access: flat(access) for access in accesses(step.body)})
    return replace(step, target=flat(step.target), body=body)


def letters_of(pattern: Pattern) -> tuple[str, ...]:
    return tuple(f"i{dim}" for dim in range(len(pattern.shape))) if len(pattern.shape) != 2 else ("i", "j")


def rows_of(pattern: Pattern) -> Pattern | None:
    """The same entries row by row, in the same order; None if the pattern has them in another one."""
    if pattern.format == as_format("csr", 2):
        return pattern
    if pattern.format == as_format("coo", 2):
        found = convert(Storage(pattern, pattern.present), as_format("csr", 2))
        assert isinstance(found, Storage)
        return found.pattern
    return None


def _viewed(tensor: torch.Tensor, dims: tuple[int, ...] | None) -> torch.Tensor:
    """``tensor`` with those dimensions only that are not broadcast."""
    if dims is None or len(dims) == tensor.dim():
        return tensor
    return tensor.reshape([tensor.shape[dim] for dim in dims])


# gradients -------------------------------------------------------------------------------------------


def _sources(order: Sequence[Value]) -> list[Value | Source]:
    """The tensors that were there before, each once: also values that have been computed."""
    found: dict[int, Value | Source] = {}
    for value in order:
        for item in _leaves(value):
            if isinstance(item, Source) or item.result is not None:
                found.setdefault(id(_tensor(item)), item)
    return list(found.values())


def _leaves(value: Value) -> list[Value | Source]:
    found: list[Value | Source] = []
    _, args, kwargs = value.call

    def collect(item: Any) -> Any:
        if isinstance(item, Value | Source):
            found.append(item)
        return item

    tree_map(collect, (args, kwargs))
    return found


def _array(source: Value | Source) -> torch.Tensor:
    tensor = _tensor(source)
    return values_of(tensor) if isinstance(tensor, SparseTensor) else tensor


def _tensor(source: Value | Source) -> torch.Tensor:
    found = source.result if isinstance(source, Value) else source.tensor
    assert found is not None
    return found


def _run_alone(order: Sequence[Value], env: dict[int, torch.Tensor] | None = None) -> None:
    """Every call as it would run outside; into ``env`` if there is one, else the values get their results."""
    made: dict[int, torch.Tensor] = {} if env is None else env

    def given(item: Any) -> Any:
        if isinstance(item, Value) and id(item) in made:
            return made[id(item)]
        return made.get(id(_tensor(item)), _tensor(item)) if isinstance(item, Value | Source) else item

    for value in order:
        func, args, kwargs = value.call
        made[id(value)] = func(*tree_map(given, args), **tree_map(given, kwargs))
        if env is None:
            value.result = made[id(value)]


@dataclass(eq=False)
class _Call:
    """One run of a group."""

    kernel: FusedKernel
    pattern: Pattern | None
    order: Sequence[Value]
    values: Sequence[Value]
    sources: Sequence[Value | Source]

    def forward(self, arrays: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        given = {
            id(_tensor(source)): array.detach() for source, array in zip(self.sources, arrays, strict=True)
        }
        tensors = {}
        for value in self.order:
            for name, parent in value.parents.items():
                if isinstance(parent, Source) or parent.result is not None:
                    tensors[name] = _viewed(given[id(_tensor(parent))], value.views.get(name))
        results = self.kernel(self.pattern, tensors)
        return tuple(results[value.access.tensor] for value in self.values)

    def one_by_one(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results as the calls give them outside, connected to ``arrays``."""
        made: dict[int, torch.Tensor] = {}
        for source, array in zip(self.sources, arrays, strict=True):
            tensor = _tensor(source)
            is_sparse = isinstance(tensor, SparseTensor)
            made[id(tensor)] = sparse_of(tensor.storage.pattern, array) if is_sparse else array
        _run_alone(self.order, made)
        found = []
        for value in self.values:
            tensor = made[id(value)]
            found.append(tensor if value.pattern is None else _at(tensor, value.pattern))
        return found


def _at(tensor: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The values of a tensor at the entries of ``pattern``, connected to it."""
    if isinstance(tensor, SparseTensor) and tensor.storage.pattern is pattern:
        return values_of(tensor)
    return values_at(tensor, pattern)


class _Group(torch.autograd.Function):
    """A group as a function of arrays."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *arrays: torch.Tensor) -> Any:
        ctx.call = call
        ctx.save_for_backward(*arrays)
        return call.forward(arrays)

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        again = torch.is_grad_enabled()
        needed = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            arrays = [
                array if again and need else array.detach().requires_grad_(need)
                for array, need in zip(ctx.saved_tensors, needed, strict=True)
            ]
            if again:  # as tensors of their own, so that this part alone is differentiated
                arrays = [
                    array.view_as(array) if need else array for array, need in zip(arrays, needed, strict=True)
                ]
            found = ctx.call.one_by_one(arrays)
            pairs = [(out, g) for out, g in zip(found, incoming, strict=True) if out.requires_grad and g is not None]
            wanted = [array for array, need in zip(arrays, needed, strict=True) if need]
            gradients = torch.autograd.grad(
                [out for out, _ in pairs],
                wanted,
                [g for _, g in pairs],
                create_graph=again,
                allow_unused=True,
            )
        left = iter(gradients)
        return None, *(next(left) if need else None for need in needed)

