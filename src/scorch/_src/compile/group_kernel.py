"""The kernel of a fused group: steps, placed on a pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from scorch._src.compiler.plan import Step
from scorch._src.dataclass import dataclass
from scorch._src.engine.execute import convert
from scorch._src.engine.fused_executable import FusedKernel, Steps, fused_kernel
from scorch._src.formats import as_format
from scorch._src.grad_state import untracked
from scorch._src.notation.nodes import Access
from scorch._src.notation.trees import accesses, substitute
from scorch._src.storage.storage import Pattern, Storage


@dataclass(frozen=True)
class GroupKernel:
    """A kernel over the rows of a pattern; or flat, over values in any format."""

    fused: FusedKernel
    is_flat: bool

    def run(self, pattern: Pattern, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.fused.run(None if self.is_flat else as_row_pattern(pattern), arrays, pattern.size)


def compile_group(
    pattern: Pattern,
    steps: tuple[Step, ...],
    outputs: tuple[str, ...],
    stored: frozenset[str],
    sizes: Mapping[str, int],
    tensors: Mapping[str, torch.Tensor],
) -> GroupKernel | str:
    """Compile steps on a pattern, which read ``tensors``; a text says why they cannot be one kernel."""
    names = {access.tensor for step in steps for access in (step.target, *step.accesses)}
    rows: Pattern | None = None
    indices: tuple[str, ...] = ("p",)
    extents: tuple[tuple[str, int], ...] = (("p", pattern.size),)
    is_flat = names <= stored and not any(step.reduced for step in steps)  # no coordinates are needed
    if is_flat:
        steps = tuple(_flatten_step(step) for step in steps)
    else:
        rows, indices = as_row_pattern(pattern), index_names(pattern)
        if rows is None:
            return f"the pattern is {pattern.format}, which has no rows to walk"
        used = set(indices).union(*(step.indices for step in steps))
        used = used.union(*(access.indices for step in steps for access in step.accesses))
        extents = tuple((index, size) for index, size in sizes.items() if index in used)
    read = dict.fromkeys(a.tensor for step in steps for a in step.accesses if a.tensor in tensors)
    placed = Steps(steps, outputs, indices, stored & names, extents)
    devices = (tensor.device for tensor in tensors.values() if not tensor.is_meta)
    device = next(devices, pattern.device)
    kernel = fused_kernel(placed, rows, {name: tensors[name] for name in read}, device)
    return kernel if isinstance(kernel, str) else GroupKernel(kernel, is_flat)


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
        with untracked():
            converted = convert(Storage(pattern, pattern.present), _CSR)
        assert isinstance(converted, Storage)
        rows = pattern.relatives[key] = converted.pattern
    return rows


def drop_broadcast_dims(tensor: torch.Tensor, dims: tuple[int, ...] | None) -> torch.Tensor:
    """Reshape ``tensor`` to the dimensions that are not broadcast."""
    if dims is None or len(dims) == tensor.dim():
        return tensor
    return tensor.reshape([tensor.shape[dim] for dim in dims])
