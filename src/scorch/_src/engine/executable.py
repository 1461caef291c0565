"""A planned step bound to its kernel: what a warm call runs.

All that follows from formats, shapes and dtypes is worked out once, when the step is prepared; a call
gathers addresses, allocates the result and runs the kernel.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from scorch._src.backends.base import Backend, Direct, Executable, Schedule, backend_named, routines_for
from scorch._src.compiler.plan import Plan
from scorch._src.devices import HOST
from scorch._src.engine.by_torch.run import run_without_kernel, warn_of_missing
from scorch._src.engine.by_torch.structure import is_elementwise, is_transposition
from scorch._src.engine.repeated_products import RepeatedProducts
from scorch._src.events import LISTENERS, emit
from scorch._src.formats import Format
from scorch._src.loops.types import LAST_INT32
from scorch._src.storage.budget import UNCHECKED_BYTES, check_budget
from scorch._src.storage.complete_levels import assembled
from scorch._src.storage.storage import Pattern, Storage
from scorch.settings import current

Tensor = Storage | torch.Tensor
Convert = Callable[[Storage, Format], Storage]


class Prepared:
    """A planned step with its kernel, ready to run on any tensors with the same keys."""

    def __init__(
        self,
        schedule: Schedule,
        backend: Backend,
        dtype: torch.dtype,
        sizes: Mapping[str, int],
        convert: Convert,
    ) -> None:
        planned = schedule.planned
        plan = planned.plan
        self.planned = planned
        self.backend = backend
        self.kernel = backend.build(schedule, sizes)
        self.dtype = dtype
        self.convert = convert
        self.sizes = dict(sizes)
        self.shape = self.kernel.shape
        self.count = math.prod(self.shape)
        self.assembly = plan.assembly
        self.format = plan.result
        self.row_counts = _row_counts(plan, self.shape)
        absent = (None,) * (len(plan.result) - 1)  # arrays of levels above rows or in step
        self.above, self.below = absent[: plan.row_levels or 0], absent[plan.row_levels or 0 :]
        self.is_cast = dtype != self.kernel.result_dtype
        converted = {conversion.name: conversion for conversion in planned.conversions}
        self.names = names = list(dict.fromkeys(access.tensor for access in plan.step.accesses))
        self.sources: list[tuple[str, Format | None]] = []
        for name in names:
            form = converted[name].format if name in converted else None
            while name in converted:  # converted twice: straight to the last format
                name = converted[name].tensor
            self.sources.append((name, form))
        self.converts = any(form is not None for _, form in self.sources)
        self.pattern_source = -1
        if plan.pattern is not None:
            self.pattern_source = names.index(plan.pattern.tensor)
        self.pattern_levels = plan.pattern_levels
        below = range(plan.pattern_levels, len(plan.result))
        self.pattern_tail = math.prod(plan.result.level_size(level, self.shape) for level in below)
        self.slots = [(names.index(name), level) for name, level in plan.slots]
        is_plain = not self.is_cast and not self.format.is_finished
        self.appends_rows = bool(self.slots) and not self.below and is_plain  # one array of coordinates
        self.stored_shape = [self.shape[dim] for dim in plan.result.order] if plan.result.is_dense else []
        order = list(plan.result.order)
        self.back = [] if order == sorted(order) else sorted(range(len(order)), key=lambda d: order[d])
        self.dense_bytes = _dense_bytes(plan, self.shape)
        self.is_large = self.dense_bytes > UNCHECKED_BYTES
        self.repeated: RepeatedProducts | None = None  # where patterns of results are cached

    @functools.cached_property
    def direct(self) -> Direct | None:
        """The kernel's direct call; None where its values are cast afterwards."""
        is_filled = self.assembly in ("dense", "shared")
        return None if self.is_cast and is_filled else self.kernel.direct

    @functools.cached_property
    def is_elementwise(self) -> bool:
        """Whether it computes a new pattern value by value, which without a kernel needs a fallback."""
        return is_elementwise(self)

    @functools.cached_property
    def is_transposition(self) -> bool:
        """Whether it is elementwise, and compressed rows become compressed columns."""
        return is_transposition(self)

    def __call__(self, sources: Sequence[Tensor], contiguous: bool = False) -> Tensor:
        """Run the compiled kernel on tensors in the order of ``sources``.

        ``contiguous``: the caller knows that all dense ones are.
        """
        if self.converts and self.kernel.is_at_work:
            self._begin_conversions(sources)
        if self.direct is None and not self.kernel.is_ready():
            return self._run_by_torch(sources)
        if LISTENERS:
            return self._run_and_emit(sources)
        operands = sources if contiguous and not self.converts else self._converted(sources)
        again = None if self.repeated is None else self.repeated.again(operands)
        return self._run(operands) if again is None else again

    def _begin_conversions(self, sources: Sequence[Tensor]) -> None:
        """Convert sparse operands, whose new patterns are cached, before waiting for the kernel itself.

        Conversions may wait for kernels, too, which are then compiled side by side with it.
        """
        self.check_budget()
        for tensor, (_, form) in zip(sources, self.sources, strict=True):
            if form is not None and not isinstance(tensor, torch.Tensor):
                self.convert(tensor, form)

    def _run_by_torch(self, sources: Sequence[Tensor]) -> Tensor:
        """Run the step by torch, without a kernel or with one that only collects entries."""
        warn_of_missing(self.backend)
        start = time.perf_counter()
        result = run_without_kernel(self, sources)
        if LISTENERS:
            emit("kernel", self, sources, result, start, 0.0)
        return result

    def _run_and_emit(self, sources: Sequence[Tensor]) -> Tensor:
        start = time.perf_counter()
        operands = self._converted(sources)
        converted = time.perf_counter() - start
        again = None if self.repeated is None else self.repeated.again(operands)
        if again is not None:  # which has emitted an event of its own
            return again
        result = self._run(operands)
        emit("kernel", self, sources, result, start, converted)
        return result

    def _run(self, operands: Sequence[Tensor]) -> Tensor:
        self.check_budget()
        if self.direct is None:
            result = self._result(self.kernel, operands)
        else:
            output = self.output_for(self.direct, operands)
            result = self.wrap(self._call(output, *arrays_of(operands)), operands)
        if self.repeated is not None:
            self.repeated.note(operands, result)
        return result

    @functools.cached_property
    def _call(self) -> Callable[..., Any]:
        assert self.direct is not None
        return self.direct.bind(None)

    def output_for(self, direct: Direct, operands: Sequence[Tensor]) -> Any:
        """Return what the kernel allocates; on a shared pattern as many values as that has."""
        if self.assembly != "shared":
            return direct.output
        source = operands[self.pattern_source]
        assert isinstance(source, Storage)
        return direct.output_of(self.shared_size(source))

    def shared_size(self, source: Storage) -> int:
        """Return the number of values of a result with the pattern of ``source``, or its first levels."""
        return source.pattern.counts[self.pattern_levels - 1] * self.pattern_tail

    def shared(self, source: Storage) -> Pattern:
        """Return the pattern of such a result."""
        return source.pattern.carried(self.format, self.shape, self.pattern_levels)

    def wrap(self, output: Any, sources: Sequence[Tensor]) -> Tensor:
        """Wrap what a builtin returned as a tensor."""
        if self.assembly == "shared":
            source = sources[self.pattern_source]
            assert isinstance(source, Storage)
            return Storage(self.shared(source), output)
        if self.assembly == "dense":
            dense: torch.Tensor = output
            return dense.permute(self.back) if self.back else dense
        return self.wrap_new(output)

    @functools.cached_property
    def wrap_new(self) -> Callable[[tuple[Any, ...]], Storage]:
        """The function that wraps the arrays of a new pattern, as builtins return them."""
        return self._row_wrapper() if self.appends_rows else self._wrap_new

    def _row_wrapper(self) -> Callable[[tuple[Any, ...]], Storage]:
        """Return the function for arrays of compressed rows; what is known beforehand is looked up once."""
        form, shape, above, counts = self.format, self.shape, self.above, self.row_counts

        def wrap(output: tuple[Any, ...]) -> Storage:
            pos, crd, values, nnz = output
            return Storage.of_new(Pattern(form, shape, (*above, pos), (*above, crd), (*counts, nnz)), values)

        return wrap

    def _wrap_new(self, output: tuple[Any, ...]) -> Storage:
        if self.slots:
            pos, *crds, values, nnz = output
        else:
            pos, *crds, values = output
            nnz = crds[0].numel()
            if nnz > LAST_INT32 and pos.dtype != crds[0].dtype:
                crds = [crds[0].to(pos.dtype)]
        above = self.above
        counts = (*self.row_counts, *(nnz for _ in crds)) if self.below else (*self.row_counts, nnz)
        all_pos, all_crd = (*above, pos, *self.below), (*above, *crds)
        if self.is_cast or self.format.is_finished:
            return self._assembled(all_pos, all_crd, counts, values)
        return Storage.of_new(Pattern(self.format, self.shape, all_pos, all_crd, counts), values)

    def _assembled(
        self,
        pos: tuple[torch.Tensor | None, ...],
        crd: tuple[torch.Tensor | None, ...],
        counts: tuple[int, ...],
        values: torch.Tensor,
    ) -> Storage:
        values = values.to(self.dtype) if self.is_cast else values
        return assembled(self.format, self.shape, pos, crd, counts, values)

    def interpret(self, sources: Sequence[Tensor]) -> Tensor:
        """Run the loops through the interpreter, which checks every access, as if on two threads.

        It reads memory of the host; other arrays are copied there, and the result back.
        """
        self.check_budget()
        kernel = backend_named("interpreter").build(self.kernel.schedule, self.sizes)
        operands = self._converted(sources)
        device = operands[0].device if operands else HOST
        return self._result(kernel, [operand.to(HOST) for operand in operands]).to(device)

    def _converted(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """Convert the operands to what the kernel reads; the list keeps copies alive until it has run."""
        operands: list[Tensor] = []
        for tensor, (_, form) in zip(sources, self.sources, strict=True):
            if isinstance(tensor, torch.Tensor):
                operands.append(as_stored(tensor) if form is None else laid_out(tensor, form))
            else:
                operands.append(tensor if form is None else self.convert(tensor, form))
        return operands

    def arrays(self, operands: Sequence[Tensor]) -> list[torch.Tensor]:
        """Return the arrays that the kernel reads, of operands whose sparse ones are converted."""
        read: list[Tensor] = []
        for tensor, (_, form) in zip(operands, self.sources, strict=True):
            if isinstance(tensor, torch.Tensor):
                tensor = as_stored(tensor) if form is None else laid_out(tensor, form)
            read.append(tensor)
        return arrays_of(read)

    def _result(self, kernel: Executable, operands: Sequence[Tensor]) -> Tensor:
        arrays = arrays_of(operands)
        if self.assembly == "dense":
            values = kernel.fill(arrays, self.count)
            if values.dtype != self.dtype:
                values = values.to(self.dtype)
            if len(self.shape) != 1:
                values = values.resize_(self.stored_shape)  # no view: autograd refuses writes to those
            return values.permute(self.back) if self.back else values
        if self.assembly == "shared":
            source = operands[self.pattern_source]
            assert isinstance(source, Storage)
            values = kernel.fill(arrays, self.shared_size(source))
            return Storage(self.shared(source), values.to(self.dtype))
        bound = sum(_entries(operands[source], level) for source, level in self.slots)
        new = kernel.build(arrays, self.check_bytes, bound)
        return self._assembled(new.pos, new.crd, new.counts, new.values)

    def check_budget(self) -> None:
        """Raise if the dense levels of the result need more than the budget, before they are allocated."""
        if self.is_large or (self.assembly == "dense" and current().dense_budget is not None):
            self.check_bytes(self.dense_bytes)

    def check_bytes(self, size: int) -> None:
        """Raise if ``size`` bytes of dense levels are beyond the budget."""
        plan = self.planned.plan
        is_copy = plan.step.body == replace(plan.step.target, tensor=plan.step.accesses[0].tensor)
        what = f"a tensor of shape {self.shape}" if is_copy else plan.header.splitlines()[0]
        what += f" in format {plan.result}"
        check_budget(size, self.backend.device, what, "use a sparser format such as 'coo' or 'dcsr'")


def arrays_of(operands: Sequence[Tensor]) -> list[torch.Tensor]:
    """Return the arrays of the operands, in the order that the kernel takes them."""
    arrays: list[torch.Tensor] = []
    for operand in operands:
        if isinstance(operand, Storage):
            arrays += operand.tensors
        else:
            arrays.append(operand)
    return arrays


def _row_counts(plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of each level above the entries of a result."""
    counts = [1]
    for level in range(plan.row_levels or 0):
        counts.append(counts[-1] * plan.result.level_size(level, shape))
    return tuple(counts[1:])


def _entries(tensor: Tensor, level: int) -> int:
    assert isinstance(tensor, Storage)
    return tensor.pattern.counts[level]


def _dense_bytes(plan: Plan, shape: Sequence[int]) -> int:
    """Return the bytes of the result's leading dense levels: its values, or the pointers below them."""
    if plan.assembly == "shared":
        return 0
    places = 1
    for level, kind in enumerate(plan.result.levels):
        if not kind.is_full:
            return 8 * places
        places *= plan.result.level_size(level, shape)
    return plan.element.bytes * places


def laid_out(tensor: torch.Tensor, form: Format) -> torch.Tensor:
    """Lay out a dense operand in memory in the order of the levels of ``form``."""
    return as_stored(routines_for(tensor).transpose(tensor, form.order))


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor whose values lie in the order of ``stride_order``, without gaps."""
    dense = tensor if tensor.is_contiguous() else tensor.permute(stride_order(tensor)).contiguous()
    return dense.resolve_conj().resolve_neg() if dense.is_complex() or dense.is_neg() else dense


def stride_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the order of dimensions in which a dense tensor lies, if without gaps; else the plain one."""
    plain = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return plain
    strides = tensor.stride()
    order = tuple(sorted(plain, key=lambda dim: (-strides[dim], dim)))
    return order if tensor.permute(order).is_contiguous() else plain


def has_no_gaps(tensor: torch.Tensor) -> bool:
    """Check whether a dense tensor can be read as it lies, in the order of ``stride_order``."""
    return tensor.is_contiguous() or tensor.permute(stride_order(tensor)).is_contiguous()
