"""The steps of a fused group, the arrays that they read, and the eager calls they replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scorch._src.compile.lazy_tensor import Call, Source, Value, map_leaves
from scorch._src.compiler.plan import Step
from scorch._src.engine.execute import convert
from scorch._src.engine.fused_executable import Steps
from scorch._src.formats import as_format
from scorch._src.notation.nodes import Access
from scorch._src.notation.trees import accesses, substitute
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.autograd import values_at, values_of
from scorch._src.tensor.sparse_tensor import SparseTensor

Items = Sequence[Value | Source]
InputView = tuple[int, tuple[int, ...] | None]  # a tensor's number, the dimensions read


# steps and their arrays ------------------------------------------------------------------------------


def find_stored_names(values: Sequence[Value], items: Items, letters: tuple[str, ...]) -> frozenset[str]:
    """Find the tensors of steps that have values at the entries of the pattern."""
    names = {
        step.target.tensor
        for value in values
        for step in value.recipe.steps
        if step.target.indices == letters and len(letters) > 1
    }
    for value in values:
        for name, number in value.recipe.parents.items():
            item = items[number]
            if item.recipe.is_sparse if isinstance(item, Value) else isinstance(item.result, SparseTensor):
                names.add(name)
    for value in values:
        if value.recipe.is_sparse:
            names.add(value.recipe.access.tensor)
    return frozenset(names)


def place_steps(
    pattern: Pattern,
    steps: tuple[Step, ...],
    outputs: tuple[str, ...],
    stored: frozenset[str],
    sizes: Mapping[str, int],
) -> tuple[Steps, bool]:
    """Place steps on a pattern; flat, over values in any format, where no coordinates are needed."""
    names = {access.tensor for step in steps for access in step.accesses}
    names |= {step.target.tensor for step in steps}
    if names <= stored and not any(step.reduced for step in steps):
        flat = tuple(_flatten_step(step) for step in steps)
        return Steps(flat, outputs, ("p",), stored & names, (("p", pattern.size),)), True
    indices = {index for step in steps for index in step.indices}
    indices |= {index for step in steps for access in step.accesses for index in access.indices}
    indices |= set(index_names(pattern))
    extents = tuple((index, size) for index, size in sizes.items() if index in indices)
    return Steps(steps, outputs, index_names(pattern), stored & names, extents), False


def find_names_read(steps: Sequence[Step], tensors: Mapping[str, Any]) -> list[str]:
    """Return the names among ``tensors`` that steps read."""
    return list(dict.fromkeys(a.tensor for step in steps for a in step.accesses if a.tensor in tensors))


def _flatten_step(step: Step) -> Step:
    def flat(access: Access) -> Access:
        return Access(access.tensor, ("p",))

    body = substitute(step.body, {access: flat(access) for access in accesses(step.body)})
    return replace(step, target=flat(step.target), body=body)


def index_names(pattern: Pattern) -> tuple[str, ...]:
    return tuple(f"i{dim}" for dim in range(len(pattern.shape))) if len(pattern.shape) != 2 else ("i", "j")


_CSR = as_format("csr", 2)


def as_row_pattern(pattern: Pattern) -> Pattern | None:
    """Return the same entries row by row, in the same order; None if the pattern has another order."""
    form = pattern.format
    if form.is_compressed_matrix and form.has_row_pointers:
        return pattern
    if not form.is_list or form.order != (0, 1):
        return None
    key = (_CSR, pattern.shape)
    rows = pattern.relatives.get(key)
    if rows is None:
        converted = convert(Storage(pattern, pattern.present), _CSR)
        assert isinstance(converted, Storage)
        rows = pattern.relatives[key] = converted.pattern
    return rows


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


def drop_broadcast_dims(tensor: torch.Tensor, dims: tuple[int, ...] | None) -> torch.Tensor:
    """Reshape ``tensor`` to the dimensions that are not broadcast."""
    if dims is None or len(dims) == tensor.dim():
        return tensor
    return tensor.reshape([tensor.shape[dim] for dim in dims])


# eager calls -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorRef:
    """A reference to a tensor among the arguments of a call."""

    number: int


def make_eager_call(value: Value, sources: Mapping[int, Source]) -> Call:
    """Return the eager call of a value, with references in place of tensors."""

    def as_reference(item: Any) -> Any:
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
