"""The memory of a call: the workspace of its kernel, its result, and copies of operands.

What the kernel allocates follows from its loops (``compiler.bounds``); here is what callers of kernels
allocate around it: ``engine.executable``, ``backends.cpu.launch`` and the conversions of ``engine.execute``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from scorch._src.backends.base import backend_for
from scorch._src.compiler.bounds import (
    HUGE_PAGE,
    Footprint,
    Workspace,
    finishing_bytes,
    in_pages,
    most_counts,
    operand_bytes,
    result_arrays,
    workspace,
)
from scorch._src.compiler.lower.assemble import make_assembly
from scorch._src.compiler.names import with_safe_names
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.engine.executable import Prepared, Tensor, stride_order
from scorch._src.engine.execute import copy_task, operand_of, prepare
from scorch._src.engine.result_bound import ResultBound, bound_result
from scorch._src.formats import Format
from scorch._src.notation.nodes import Access
from scorch._src.storage.relevel import swaps_levels
from scorch._src.storage.storage import Storage
from scorch.settings import enabled

LEAST_POOLED = HUGE_PAGE // 4  # bytes of an array that is copied to pages of its own
LISTS_OF_ENTRIES = 4  # besides coordinates: keys or counts, their order or sums, and the entries of operands


def footprint(prepared: Prepared, tensors: Mapping[str, Tensor]) -> Footprint:
    """Return the memory of a call of ``prepared`` on ``tensors``, without patterns that are cached."""
    plan, threads = prepared.planned.plan, prepared.kernel.workers()
    bound = _bound(prepared, tensors)
    counts = _result_counts(prepared, tensors, bound)
    kernel = _workspace(prepared, bound, threads)
    arrays = result_arrays(plan, prepared.shape, counts, type_of_dtype(prepared.dtype))
    copies = sum(_copied_bytes(tensors[name], form) for name, form in prepared.sources)
    once = kernel.once + _bytes_around_kernel(prepared, counts, arrays, threads)
    return Footprint(
        operands=sum(operand_bytes(operand_of(name, tensor)) for name, tensor in tensors.items()),
        result=sum(arrays) if plan.assembly == "list" else sum(map(in_pages, arrays)),
        exact=_is_exact(prepared),
        workspace=kernel.each_thread * threads + once + copies,
        each_thread=kernel.each_thread,
        threads=threads,
        copies=copies,
        values=counts[-1] if counts else 1,
    )


def _workspace(prepared: Prepared, bound: ResultBound, threads: int) -> Workspace:
    """Return what computing the result allocates: arrays of the kernel; on a grid, lists of new entries."""
    plan = prepared.planned.plan
    if plan.is_grid and plan.assembly not in ("dense", "shared"):
        return Workspace(0, 8 * (len(plan.step.indices) + LISTS_OF_ENTRIES) * bound.values)
    entries = min(bound.places[-1], math.prod(prepared.shape)) if bound.places else 1
    limits = make_assembly(with_safe_names(plan)).limits(entries, bound.values, bound.in_row)
    return workspace(prepared.planned.kernel(), prepared.sizes, threads, limits)


def _bound(prepared: Prepared, tensors: Mapping[str, Tensor]) -> ResultBound:
    """Bound the entries of the result: by slots, or by counting, where its pattern is not known."""
    plan = prepared.planned.plan
    if plan.slots:
        bound = sum(_counts_as_read(prepared, tensors, source)[level] for source, level in prepared.slots)
        return ResultBound(bound, bound, (bound,) * len(plan.result))
    if plan.assembly in ("dense", "shared"):
        return ResultBound(0, 0, (0,) * len(plan.result))
    names = dict.fromkeys(access.tensor for access in plan.step.accesses)
    read = {new: tensors[old] for new, (old, _) in zip(names, prepared.sources, strict=True)}
    return bound_result(plan, read, prepared.sizes)


def _counts_as_read(prepared: Prepared, tensors: Mapping[str, Tensor], source: int) -> tuple[int, ...]:
    """Return the positions of each level of an operand, a bound where it is converted first."""
    name, form = prepared.sources[source]
    tensor = tensors[name]
    assert isinstance(tensor, Storage)
    pattern = tensor.pattern
    if form is None:
        return pattern.counts
    return most_counts(form, pattern.shape, (pattern.size,) * len(form))


def _result_counts(prepared: Prepared, tensors: Mapping[str, Tensor], bound: ResultBound) -> tuple[int, ...]:
    """Bound the positions of each level of the result."""
    plan, form = prepared.planned.plan, prepared.format
    if plan.pattern is None:
        return most_counts(form, prepared.shape, bound.places)
    counts = list(_counts_as_read(prepared, tensors, prepared.pattern_source)[: plan.pattern_levels])
    for level in range(plan.pattern_levels, len(form)):
        counts.append(counts[-1] * form.level_size(level, prepared.shape))
    return tuple(counts)


def _is_exact(prepared: Prepared) -> bool:
    """Check whether the size of the result follows from its shape, or from the entries of an operand."""
    plan = prepared.planned.plan
    if plan.assembly == "dense":
        return True
    if plan.assembly == "shared":
        return prepared.sources[prepared.pattern_source][1] is None
    body, target = plan.step.body, plan.step.target
    is_copy = isinstance(body, Access) and sorted(body.indices) == sorted(target.indices)
    return is_copy and bool(plan.slots) and not prepared.converts and not plan.result.is_padded


def _bytes_around_kernel(
    prepared: Prepared, counts: Sequence[int], arrays: Sequence[int], threads: int
) -> int:
    """Return the bytes that the caller of a kernel allocates temporarily in addition to the result."""
    plan, size = prepared.planned.plan, 0
    if prepared.is_cast:
        size += in_pages(plan.element.bytes * (counts[-1] if counts else 1))
    if plan.assembly != "shared":
        size += finishing_bytes(plan.result, prepared.shape, counts, plan.element)
    leaves_gaps = plan.assembly == "rows" and plan.parallel and threads > 1
    if plan.slots and (leaves_gaps or not enabled("pool")):  # those, and torch's memory: copied to the result
        size += sum(in_pages(array, LEAST_POOLED) for array in arrays)
    if plan.assembly in ("rows", "list") and not plan.slots:  # kernels count in int64
        above = (1, *counts)
        size += sum(8 * (above[n] + 1) for n in range(len(plan.result)) if plan.result.starts_run(n))
    return size


def _copied_bytes(tensor: Tensor, form: Format | None) -> int:
    """Return the bytes of the copy of an operand that a kernel reads as ``form``, or as it is."""
    if isinstance(tensor, torch.Tensor):
        is_whole = tensor.permute(stride_order(tensor)).is_contiguous()
        times = int(form is not None or not is_whole) + int(tensor.is_conj() or tensor.is_neg())
        return times * in_pages(tensor.numel() * tensor.element_size())
    if form is None or form == tensor.pattern.format:
        return 0
    return _converted_bytes(tensor, form)


def _converted_bytes(source: Storage, form: Format) -> int:
    """Return the bytes of ``engine.execute.convert_cached``: the values, and once the pattern."""
    pattern = source.pattern
    value = source.values.element_size()
    padded = (pattern.size + 1) * value if form.is_padded else 0
    if form in pattern.converted:
        return pattern.converted[form][0].size * value + padded
    numbered = Storage(pattern, torch.empty(pattern.size, dtype=torch.int64, device="meta"))
    copy = footprint(prepare(copy_task(numbered, form)), {"A": numbered})
    numbers = 8 * pattern.size
    if swaps_levels(pattern.format, form):
        numbers += backend_for(source.values.device).routines.transposition_bytes(pattern.size)
    return numbers + copy.result + copy.workspace + copy.values * value + padded
