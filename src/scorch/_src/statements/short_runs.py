"""Cached calls as short functions of their operands: what one call has looked up, the next one finds at hand.

Each checks its dense operands, runs one kernel and wraps the result; it returns None where an operand differs
from those that it was made for. The shortest are builtins of the backend (``RunParts``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.backends.base import Direct
from scorch._src.backends.repeated_calls import COMBINATIONS, RunParts
from scorch._src.engine.executable import Prepared, Tensor, arrays_of, stride_order
from scorch._src.engine.repeated_products import RepeatedProducts
from scorch._src.notation.nodes import Access, Op
from scorch._src.storage.budget import is_within_budget
from scorch._src.storage.storage import Storage
from scorch.settings import current

Run = Callable[[Sequence[Any]], Tensor | None]  # of storages and dense tensors
Call = Callable[..., Any]  # takes the output, and the arrays of the operands


def _ignore() -> None:
    """Do nothing."""


# called where a builtin is bound, before it runs: the cache of calls tells builtins, once, what they look at
prepare_builtins: Callable[[], None] = _ignore


def run_checked(prepared: Prepared, direct: Direct, places: list[int], sources: Sequence[Any]) -> Run:
    """Return a shorter way to run a call; its result is None if a dense operand does not match its guard."""
    run = _run_bound(prepared, direct, places, sources)
    if prepared.repeated is not None:
        run = _run_repeated(prepared.repeated, places, run)
    if not prepared.is_large:
        return run
    size = prepared.dense_bytes  # beyond the budget the long way raises the error
    device = prepared.backend.device
    return lambda sources: run(sources) if is_within_budget(size, device) else None


def _run_repeated(repeated: RepeatedProducts, places: list[int], run: Run) -> Run:
    """Compute values alone where the pattern of the result is known."""

    def shorten(sampled: Prepared, given: Sequence[Any]) -> Run:
        direct = sampled.direct
        return sampled if direct is None else run_checked(sampled, direct, [*range(len(given))], given)

    def run_or_repeat(sources: Sequence[Any]) -> Tensor | None:
        operands = [sources[place] for place in places]
        result: Tensor | None = repeated.again(operands, shorten)
        if result is None:
            result = run(sources)
            repeated.note(operands, result)
        return result

    return run_or_repeat


def run_converted(
    prepared: Prepared, direct: Direct, places: list[int], sources: Sequence[Any]
) -> Run | None:
    """Return a shorter way to run a call that converts sparse operands first; None if it converts others."""
    # one operand may be accessed twice, in two forms: each access has an array of its own
    changes = [(place, form) for place, (_, form) in zip(places, prepared.sources, strict=True)]
    is_stored = all(type(sources[place]) is Storage for place, form in changes if form is not None)
    if prepared.assembly != "dense" or not is_stored:
        return None

    def convert(sources: Sequence[Any]) -> list[Any]:
        return [
            sources[place] if form is None else prepared.convert(sources[place], form)
            for place, form in changes
        ]

    run = run_checked(prepared, direct, [*range(len(places))], convert(sources))
    # without it another kernel may need no conversion
    return lambda sources: run(convert(sources)) if current().deterministic else None


def _run_bound(prepared: Prepared, direct: Direct, places: list[int], sources: Sequence[Any]) -> Run:
    """Return that shorter way for results within the budget; the usual cases need no loop over operands."""
    guard = direct.guard([_guarded(sources[place]) for place in places])
    short = _bind_run(prepared, direct, places, sources, guard)
    if short is not None:
        return short
    call = direct.bind(guard)
    if prepared.assembly == "shared":
        pattern = sources[places[prepared.pattern_source]].pattern
        if pattern.format == prepared.format and pattern.shape == prepared.shape:
            return _run_on_pattern(prepared, direct, places, call)
    output = None if prepared.assembly == "shared" else direct.output
    is_dense = prepared.assembly == "dense" and not prepared.back
    is_stored = [type(source) is Storage for source in sources]
    if is_dense and places == [0] and is_stored[0]:  # such as a sum
        return lambda sources: call(output, *sources[0].tensors)
    if is_dense and places == [0, 1] and is_stored == [True, False]:  # a sparse tensor times a dense one
        return _run_with_dense(output, call, direct.bind_output(guard, output))
    is_new = bool(prepared.slots) or prepared.assembly == "rows"
    if is_new and places == [0, 1] and is_stored == [True, True]:
        return _run_sparse_pair(prepared, output, call, direct.bind_output(guard, output))
    if is_dense:
        return _run_dense(output, places, call, direct.bind_output(guard, output))
    return _run_any(prepared, direct, output, places, call)


def _bind_run(
    prepared: Prepared, direct: Direct, places: list[int], sources: Sequence[Any], guard: Any
) -> Run | None:
    """Return the shortest of those ways, a builtin from operands to result, if the backend has it."""
    is_dense, is_shared = prepared.assembly == "dense", prepared.assembly == "shared"
    if is_dense and prepared.back:
        return None
    if is_shared:
        pattern = sources[places[prepared.pattern_source]].pattern
        is_whole = prepared.pattern_levels == len(prepared.format)
        if not is_whole or pattern.format != prepared.format or pattern.shape != prepared.shape:
            return None
    is_new = not is_dense and not is_shared
    appended = (prepared.format, prepared.shape, prepared.above, prepared.row_counts)
    parts = RunParts(
        [(place, type(sources[place]) is Storage) for place in places],
        prepared.pattern_source if is_shared else -1,
        _combination(prepared, places, sources) if is_new else -1,
        prepared.wrap_new if is_new else None,
        appended if is_new and prepared.appends_rows else None,
    )
    run = direct.bind_run(guard, parts)
    if run is not None:
        prepare_builtins()
    return run


def _combination(prepared: Prepared, places: list[int], sources: Sequence[Any]) -> int:
    """Return how a sum, difference or product is computed of values on one pattern (``RunParts``), or -1."""
    step = prepared.planned.plan.step
    if places != [0, 1] or prepared.is_cast or step.reduced or not isinstance(step.body, Op):
        return -1
    if not all(isinstance(each, Access) and each.indices == step.target.indices for each in step.body.args):
        return -1
    if not all(type(source) is Storage and source.pattern.format == prepared.format for source in sources):
        return -1
    return COMBINATIONS.get(step.body.name, -1)


def _guarded(source: Any) -> int | tuple[torch.Tensor, tuple[int, ...]]:
    """Return what the guard checks of an operand: of a sparse one only its number of arrays."""
    if type(source) is Storage:
        return len(source.tensors)
    return source, stride_order(source)


def _run_with_dense(output: Any, call: Call, short_call: Call) -> Run:
    """Compute a dense result of a sparse tensor and a dense one."""

    def run(sources: Sequence[Any]) -> Tensor | None:
        first, second = sources
        try:
            result: Tensor | None = short_call(*first.tensors, second)
        except MemoryError:  # raised again, in words about the kernel
            result = call(output, *first.tensors, second)
        return result

    return run


def _run_sparse_pair(prepared: Prepared, output: Any, call: Call, short_call: Call) -> Run:
    """Compute a new pattern from two sparse tensors."""
    wrap = prepared.wrap_new

    def run(sources: Sequence[Any]) -> Tensor | None:
        first, second = sources
        try:
            arrays = short_call(*first.tensors, *second.tensors)
        except MemoryError:  # raised again, in words about the kernel
            arrays = call(output, *first.tensors, *second.tensors)
        return None if arrays is None else wrap(arrays)

    return run


def _run_on_pattern(prepared: Prepared, direct: Direct, places: list[int], call: Call) -> Run:
    """Compute values on the whole pattern of an operand, such as a sampled product."""
    shared, output_of = places[prepared.pattern_source], direct.output_of
    form, shape = prepared.format, prepared.shape
    same = form  # the last object that was equal: identity is faster to check than equality
    entries, output = -1, None  # the last number of them, and what was allocated

    def run(sources: Sequence[Any]) -> Tensor | None:
        nonlocal same, entries, output
        pattern = sources[shared].pattern
        if pattern.format is not same:
            if pattern.format != form:
                return None
            same = pattern.format
        if pattern.shape != shape:
            return None
        arrays: list[torch.Tensor] = []  # as ``arrays_of``
        for place in places:
            source = sources[place]
            if type(source) is Storage:
                arrays += source.tensors
            else:
                arrays.append(source)
        count = pattern.counts[-1]
        if count != entries:
            entries, output = count, output_of(count, True)
        values = call(output, *arrays)
        return None if values is None else Storage.of_new(pattern, values)

    return run


def _run_dense(output: Any, places: list[int], call: Call, short_call: Call) -> Run:
    """Compute a dense result, which lies row by row."""

    def run(sources: Sequence[Any]) -> Tensor | None:
        arrays: list[torch.Tensor] = []  # as ``arrays_of``
        for place in places:
            source = sources[place]
            if type(source) is Storage:
                arrays += source.tensors
            else:
                arrays.append(source)
        try:
            result: Tensor | None = short_call(*arrays)
        except MemoryError:  # raised again, in words about the kernel
            result = call(output, *arrays)
        return result

    return run


def _run_any(prepared: Prepared, direct: Direct, output: Any, places: list[int], call: Call) -> Run:
    is_in_order = places == [*range(len(places))]

    def run(sources: Sequence[Any]) -> Tensor | None:
        chosen = sources if is_in_order else [sources[place] for place in places]
        allocated = prepared.output_for(direct, chosen) if output is None else output
        result = call(allocated, *arrays_of(chosen))
        return None if result is None else prepared.wrap(result, chosen)

    return run
