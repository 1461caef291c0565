"""The memory of a call: the workspace of its kernel, its result, and copies of operands made for it.

What the kernel allocates follows from its loops (``compiler.bounds``); here is what callers of kernels
allocate around it: ``engine.executable``, ``backends.cpu.launch`` and the conversions of ``engine.execute``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from scorch._src.compiler.bounds import (
    Footprint,
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
from scorch._src.engine.result_bound import Points, most_points
from scorch._src.formats import Format
from scorch._src.notation.nodes import Access
from scorch._src.storage.storage import Storage
from scorch.settings import enabled


def footprint(prepared: Prepared, tensors: Mapping[str, Tensor]) -> Footprint:
    """What a call of ``prepared`` on ``tensors`` needs, beside patterns that earlier calls have kept."""
    plan, threads = prepared.planned.plan, prepared.kernel.workers()
    points = _points(prepared, tensors)
    counts = _result_counts(prepared, tensors, points)
    entries = min(points.places[-1], math.prod(prepared.shape)) if points.places else 1
    sizes = prepared.sizes
    limits = make_assembly(with_safe_names(plan)).limits(entries, points.values, points.in_row)
    kernel = workspace(prepared.planned.kernel(), sizes, threads, limits)
    arrays = result_arrays(plan, prepared.shape, counts, type_of_dtype(prepared.dtype))
    copies = sum(_copied(tensors[name], form) for name, form in prepared.sources)
    once = kernel.once + _around(prepared, counts, arrays)
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


def _points(prepared: Prepared, tensors: Mapping[str, Tensor]) -> Points:
    """How many entries there may be: as slots say, or as is counted, where the places are not known."""
    plan = prepared.planned.plan
    if plan.slots:
        bound = sum(_counts_as_read(prepared, tensors, source)[level] for source, level in prepared.slots)
        return Points(bound, bound, (bound,) * len(plan.result))
    if plan.assembly in ("dense", "shared"):
        return Points(0, 0, (0,) * len(plan.result))
    names = dict.fromkeys(access.tensor for access in plan.step.accesses)
    read = {new: tensors[old] for new, (old, _) in zip(names, prepared.sources, strict=True)}
    sizes = prepared.sizes
    return most_points(plan, read, sizes)


def _counts_as_read(prepared: Prepared, tensors: Mapping[str, Tensor], source: int) -> tuple[int, ...]:
    """How many positions each level of an operand has, at most where it is stored otherwise first."""
    name, form = prepared.sources[source]
    tensor = tensors[name]
    assert isinstance(tensor, Storage)
    pattern = tensor.pattern
    if form is None:
        return pattern.counts
    return most_counts(form, pattern.shape, (pattern.size,) * len(form))


def _result_counts(prepared: Prepared, tensors: Mapping[str, Tensor], points: Points) -> tuple[int, ...]:
    """How many positions each level of the result has at most."""
    plan, form = prepared.planned.plan, prepared.format
    if plan.pattern is None:
        return most_counts(form, prepared.shape, points.places)
    counts = list(_counts_as_read(prepared, tensors, prepared.pattern_source)[: plan.pattern_levels])
    for level in range(plan.pattern_levels, len(form)):
        counts.append(counts[-1] * form.level_size(level, prepared.shape))
    return tuple(counts)


def _is_exact(prepared: Prepared) -> bool:
    """Whether the size of the result follows from its shape, or from the entries of an operand."""
    plan = prepared.planned.plan
    if plan.assembly == "dense":
        return True
    if plan.assembly == "shared":
        return prepared.sources[prepared.pattern_source][1] is None
    body, target = plan.step.body, plan.step.target
    is_copy = isinstance(body, Access) and sorted(body.indices) == sorted(target.indices)
    return is_copy and bool(plan.slots) and not prepared.converts and not plan.result.is_padded


def _around(prepared: Prepared, counts: Sequence[int], arrays: Sequence[int]) -> int:
    """What the caller of a kernel allocates for a while beside the result."""
    plan, size = prepared.planned.plan, 0
    if prepared.is_cast:
        size += in_pages(plan.element.bytes * (counts[-1] if counts else 1))
    if plan.assembly != "shared":
        size += finishing_bytes(plan.result, prepared.shape, counts, plan.element)
    if plan.slots and not enabled("pool"):  # torch's memory cannot be cut: what is used is copied
        size += sum(arrays)
    if plan.assembly in ("rows", "list") and not plan.slots:  # kernels count in int64
        above = (1, *counts)
        size += sum(8 * (above[n] + 1) for n in range(len(plan.result)) if plan.result.starts_run(n))
    return size


def _copied(tensor: Tensor, form: Format | None) -> int:
    """What an operand takes that a kernel reads as ``form``, or as it is."""
    if isinstance(tensor, torch.Tensor):
        is_whole = tensor.permute(stride_order(tensor)).is_contiguous()
        times = int(form is not None or not is_whole) + int(tensor.is_conj() or tensor.is_neg())
        return times * in_pages(tensor.numel() * tensor.element_size())
    if form is None or form == tensor.pattern.format:
        return 0
    return _converted(tensor, form)


def _converted(source: Storage, form: Format) -> int:
    """A copy of ``source`` by ``engine.execute.convert_cached``: its values, and once the pattern."""
    pattern = source.pattern
    value = source.values.element_size()
    padded = (pattern.size + 1) * value if form.is_padded else 0
    if form in pattern.converted:
        return pattern.converted[form][0].size * value + padded
    numbered = Storage(pattern, torch.empty(pattern.size, dtype=torch.int64, device="meta"))
    found = footprint(prepare(copy_task(numbered, form)), {"A": numbered})
    numbers = 8 * pattern.size
    return numbers + found.result + found.workspace + found.values * value + padded
