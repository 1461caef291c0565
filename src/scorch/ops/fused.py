"""Recorded calls as one kernel, with gradients; or one by one where that cannot be.

A group is a function of arrays: dense tensors, and the values of sparse ones. For its gradients,
results of sums and softmaxes are kept, elementwise calls are run again, and torch goes back through both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from scorch.compiler.pipeline import as_statement
from scorch.compiler.plan import Step
from scorch.formats import as_format
from scorch.notation.nodes import Access, Op
from scorch.notation.show import show
from scorch.notation.trees import accesses, substitute
from scorch.ops.autograd import learned
from scorch.ops.later import Source, Value, mapped
from scorch.ops.softmax import connected_softmax
from scorch.tensor.fused import PATTERN, FusedKernel, Steps, fused_kernel
from scorch.tensor.learning import apply, sparse_of, values_at, values_of
from scorch.tensor.run import convert
from scorch.tensor.sparse_tensor import SparseTensor
from scorch.tensor.storage import Pattern, Storage
from scorch.tensor.tracking import is_learning

KNOWN = ("sum", "softmax", "log_softmax")  # kinds of values that are kept for gradients


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
    if len(order) == 1 and order[0].kind in ("elementwise", "sum"):
        _run_alone(order)  # nothing to join
        return [Recorded(calls, None, "a single call")]
    sources = _sources(order)
    learns = is_learning(*(_tensor(source) for source in sources))
    if learns and not any(value.kind in KNOWN for value in order):
        _run_alone(order)  # in one kernel they would be run again for gradients
        return [Recorded(calls, None, "elementwise calls whose gradients need the result of each")]
    wanted, tensors, walked = _steps(order, _kept(order, values, learns), pattern)
    kernel = walked
    if not isinstance(walked, str):
        kernel = fused_kernel(wanted, walked, {name: tensor.detach() for name, tensor in tensors.items()})
    if isinstance(kernel, str):
        _run_alone(order)
        return [Recorded(calls, None, kernel)]
    if learns:
        found = apply(_Group, _Call(kernel, walked, order, values, sources), *map(_array, sources))
    else:
        results = kernel(walked, tensors)
        found = tuple(results[value.access.tensor] for value in values)
    for value, array in zip(values, found, strict=True):
        value.result = array.view(value.shape) if value.pattern is None else sparse_of(value.pattern, array)
    return [Recorded(calls, kernel)]


def _kept(order: Sequence[Value], values: Sequence[Value], learns: bool) -> tuple[str, ...]:
    """The results that are asked for, and those that gradients need and are not quickly computed again."""
    found = dict.fromkeys(value.access.tensor for value in values)
    if learns:
        found |= dict.fromkeys(value.access.tensor for value in order if value.kind in KNOWN)
    return tuple(found)


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


def _steps(
    order: Sequence[Value], kept: tuple[str, ...], pattern: Pattern
) -> tuple[Steps, dict[str, torch.Tensor], Any]:
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

    mapped(collect, (args, kwargs))
    return found


def _array(source: Value | Source) -> torch.Tensor:
    tensor = _tensor(source)
    return values_of(tensor) if isinstance(tensor, SparseTensor) else tensor


def _tensor(source: Value | Source) -> torch.Tensor:
    found = source.result if isinstance(source, Value) else source.tensor
    assert found is not None
    return found


def _given(item: Any, made: dict[int, torch.Tensor]) -> Any:
    """What an argument of a recorded call is, where ``made`` has what takes the place of some tensors."""
    if isinstance(item, Value) and id(item) in made:
        return made[id(item)]
    if isinstance(item, Value | Source):
        tensor = _tensor(item)
        return made.get(id(tensor), tensor)
    return item


def _run_alone(order: Sequence[Value], env: dict[int, torch.Tensor] | None = None) -> None:
    """Every call as it would run outside; into ``env`` if there is one, else the values get their results."""
    made: dict[int, torch.Tensor] = {} if env is None else env
    for value in order:
        func, args, kwargs = mapped(lambda item: _given(item, made), value.call)
        made[id(value)] = func(*args, **kwargs)
        if env is None:
            value.result = made[id(value)]


@dataclass(eq=False)
class _Call:
    """One run of a group; ``known`` are results that its gradients need, by their names in steps."""

    kernel: FusedKernel
    pattern: Pattern | None
    order: Sequence[Value]
    values: Sequence[Value]
    sources: Sequence[Value | Source]
    known: dict[str, torch.Tensor] = field(default_factory=dict)

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
        kinds = {value.access.tensor: value.kind for value in self.order}
        self.known = {name: array.detach() for name, array in results.items() if kinds[name] in KNOWN}
        return tuple(results[value.access.tensor] for value in self.values)

    def connected(self, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results connected to ``arrays``: elementwise calls are run again, others are known."""
        made: dict[int, torch.Tensor] = {}
        for source, array in zip(self.sources, arrays, strict=True):
            tensor = _tensor(source)
            if isinstance(tensor, SparseTensor):
                array = sparse_of(tensor.storage.pattern, array)
            made[id(tensor)] = array
        for value in self.order:
            known = self.known.get(value.access.tensor)
            if known is None:
                _run_alone([value], made)
            else:
                made[id(value)] = self._known(value, known, made)
        found = []
        for value in self.values:
            tensor = made[id(value)]
            found.append(tensor if value.pattern is None else _at(tensor, value.pattern))
        return found

    def _known(self, value: Value, known: torch.Tensor, made: dict[int, torch.Tensor]) -> torch.Tensor:
        """A result that need not be computed again, connected to what it was computed from."""
        result = known if value.pattern is None else SparseTensor(Storage(value.pattern, known))
        parents = {name: _given(parent, made) for name, parent in value.parents.items()}
        if value.kind != "sum":
            (tensor,) = parents.values()
            assert isinstance(result, SparseTensor)
            return connected_softmax(_at(tensor, result.storage.pattern), result, 1, value.kind)
        (step,) = value.steps
        mask = None if value.pattern is None else Access(PATTERN, value.access.indices)
        if mask is not None and not any(access.indices == mask.indices for access in step.accesses):
            step = replace(step, body=Op("mul", (mask, step.body)))
            parents[PATTERN] = SparseTensor(Storage(value.walked, torch.ones_like(known)))
        names = tuple(access.tensor for access in step.accesses)
        names = tuple(dict.fromkeys(names))
        operands = [
            parents[name]
            if isinstance(parents[name], SparseTensor)
            else _viewed(parents[name], value.views.get(name))
            for name in names
        ]
        form = "dense" if value.pattern is None else value.pattern.format
        return learned(show(as_statement(step)), names, operands, form, lambda *_: result)


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
        # whoever asked for gradients may have come through __torch_function__, which is turned off inside
        with torch.enable_grad(), torch._C._EnableTorchFunction():
            arrays = [
                array if again and need else array.detach().requires_grad_(need)
                for array, need in zip(ctx.saved_tensors, needed, strict=True)
            ]
            if again:  # as tensors of their own, so that this part alone is differentiated
                arrays = [
                    array.view_as(array) if need else array
                    for array, need in zip(arrays, needed, strict=True)
                ]
            found = ctx.call.connected(arrays)
            pairs = [
                (out, g)
                for out, g in zip(found, incoming, strict=True)
                if out.requires_grad and g is not None
            ]
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
