"""What the groups of ``scorch.compile`` are made of: their steps, the arrays these read, and single calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scorch._src.compile.lazy_tensor import Call, Source, Value, mapped
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
Read = tuple[int, tuple[int, ...] | None]  # the number of a tensor, and which of its dimensions are read


# steps and what they read ----------------------------------------------------------------------------


def stored_names(order: Sequence[Value], items: Items, letters: tuple[str, ...]) -> frozenset[str]:
    """The tensors of steps that have values at the entries of the pattern."""
    found = {
        step.target.tensor
        for value in order
        for step in value.recipe.steps
        if step.target.indices == letters and len(letters) > 1
    }
    for value in order:
        for name, number in value.recipe.parents.items():
            item = items[number]
            if item.recipe.is_sparse if isinstance(item, Value) else isinstance(item.tensor, SparseTensor):
                found.add(name)
    for value in order:
        if value.recipe.is_sparse:
            found.add(value.recipe.access.tensor)
    return frozenset(found)


def steps_on(
    pattern: Pattern,
    steps: tuple[Step, ...],
    kept: tuple[str, ...],
    stored: frozenset[str],
    sizes: Mapping[str, int],
) -> tuple[Steps, bool]:
    """The steps on a pattern; flat, over values in any format, where no coordinates are needed at all."""
    names = {access.tensor for step in steps for access in step.accesses}
    names |= {step.target.tensor for step in steps}
    if names <= stored and not any(step.reduced for step in steps):
        flat = tuple(_flattened(step) for step in steps)
        return Steps(flat, kept, ("p",), stored & names, (("p", pattern.size),)), True
    used = {index for step in steps for index in step.indices}
    used |= {index for step in steps for access in step.accesses for index in access.indices}
    used |= set(letters_of(pattern))
    extents = tuple((index, size) for index, size in sizes.items() if index in used)
    return Steps(steps, kept, letters_of(pattern), stored & names, extents), False


def names_read(steps: Sequence[Step], given: Mapping[str, Any]) -> list[str]:
    """Those of ``given`` that steps read."""
    return list(dict.fromkeys(a.tensor for step in steps for a in step.accesses if a.tensor in given))


def _flattened(step: Step) -> Step:
    def flat(access: Access) -> Access:
        return Access(access.tensor, ("p",))

    body = substitute(step.body, {access: flat(access) for access in accesses(step.body)})
    return replace(step, target=flat(step.target), body=body)


def letters_of(pattern: Pattern) -> tuple[str, ...]:
    return tuple(f"i{dim}" for dim in range(len(pattern.shape))) if len(pattern.shape) != 2 else ("i", "j")


_CSR = as_format("csr", 2)


def rows_of(pattern: Pattern) -> Pattern | None:
    """The same entries row by row, in the same order; None if the pattern has them in another one."""
    form = pattern.format
    if form.is_compressed_matrix and form.has_row_pointers:
        return pattern
    if not form.is_list or form.order != (0, 1):
        return None
    key = (_CSR, pattern.shape)
    known = pattern.relatives.get(key)
    if known is None:
        found = convert(Storage(pattern, pattern.present), _CSR)
        assert isinstance(found, Storage)
        known = pattern.relatives[key] = found.pattern
    return known


def tensor_of(item: Value | Source) -> torch.Tensor:
    found = item.result if isinstance(item, Value) else item.tensor
    assert found is not None
    return found


def array_of(item: Value | Source) -> torch.Tensor:
    """What kernels read of a tensor: its values at the entries of the pattern, or all of it."""
    if type(item) is Source:
        tensor = item.tensor
        return tensor.storage.values if isinstance(tensor, SparseTensor) else tensor
    tensor, pattern = tensor_of(item), item.walked if isinstance(item, Value) else None
    if not isinstance(tensor, SparseTensor):
        return tensor.contiguous()
    same = pattern is None or tensor.storage.pattern is pattern
    return tensor.storage.values if same else values_at(tensor, pattern or tensor.storage.pattern)


def connected_array(item: Value | Source) -> torch.Tensor:
    """The same, connected to the tensor."""
    tensor, pattern = tensor_of(item), item.walked if isinstance(item, Value) else None
    if not isinstance(tensor, SparseTensor):
        return tensor if type(item) is Source else tensor.contiguous()
    if pattern is None or tensor.storage.pattern is pattern:
        return values_of(tensor)
    return values_at(tensor, pattern)


def viewed(tensor: torch.Tensor, dims: tuple[int, ...] | None) -> torch.Tensor:
    """``tensor`` with those dimensions only that are not broadcast."""
    if dims is None or len(dims) == tensor.dim():
        return tensor
    return tensor.reshape([tensor.shape[dim] for dim in dims])


# call by call ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ref:
    """The place of a tensor among the arguments of a call."""

    number: int


def outside(value: Value, sources: Mapping[int, Source]) -> Call:
    """The call that a value is outside, with the numbers of tensors in their place."""

    def place(item: Any) -> Any:
        if isinstance(item, (Value, Source)):
            return Ref(item.number)
        return Ref(sources[id(item)].number) if isinstance(item, torch.Tensor) else item

    func, args, kwargs = value.call
    return func, mapped(place, args), mapped(place, kwargs)


def run_outside(call: Call, tensors: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """A call as it is outside, with the tensors by their numbers."""
    func, args, kwargs = call

    def given(item: Any) -> Any:
        return tensors[item.number] if type(item) is Ref else item

    found: torch.Tensor = func(*mapped(given, args), **mapped(given, kwargs))
    return found


def run_alone(value: Value) -> torch.Tensor:
    """A value by itself, as it would be computed outside."""

    def given(item: Any) -> Any:
        if isinstance(item, Value):
            return item.tensor()
        return item.tensor if isinstance(item, Source) else item

    func, args, kwargs = value.call
    found: torch.Tensor = func(*mapped(given, args), **mapped(given, kwargs))
    return found
