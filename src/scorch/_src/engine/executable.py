"""A planned step bound to its kernel: what a warm call runs.

All that follows from formats, shapes and dtypes is worked out once, when the step is prepared; a call
gathers addresses, allocates the result and runs the kernel.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scorch._src.backends.cpu import invoke, toolchain
from scorch._src.backends.cpu.kernel import CompiledKernel, Engine, Schedule
from scorch._src.backends.cpu.launch import (
    MOST_DIMS,
    MOST_SLOTS,
    builtins,
    pack,
    result_facts,
    row_facts,
    slot_facts,
)
from scorch._src.backends.cpu.routines.transpose import laid_out
from scorch._src.compiler.plan import VALUES, Plan
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.engine.by_torch.run import run_without_kernel, warn_without_compiler
from scorch._src.events import LISTENERS, tell
from scorch._src.formats import Format
from scorch._src.storage.assemble import assembled
from scorch._src.storage.budget import LARGE, check_budget
from scorch._src.storage.storage import Pattern, Storage
from scorch.errors import KernelError
from scorch.settings import DEFAULT, current

Tensor = Storage | torch.Tensor
Convert = Callable[[Storage, Format], Storage]
LAST_INT32 = 2**31 - 1
SERIAL_WORK = 50_000  # below this many operations two threads cost more than they give, more for more
MOST_FACTS = 64  # sizes of results remembered for each kernel
MERGES_MORE = 4  # times as many where entries only move: memory is the limit, and parts move once more


class Prepared:
    """A planned step with its kernel, ready to run on any tensors with the same keys."""

    def __init__(
        self, schedule: Schedule, dtype: torch.dtype, sizes: Mapping[str, int], convert: Convert
    ) -> None:
        planned = schedule.planned
        plan = planned.plan
        self.planned = planned
        self.kernel = CompiledKernel(schedule)
        self.dtype = dtype
        self.convert = convert
        self.sizes = [sizes[index] for index in dict.fromkeys(plan.step.indices)]
        self.shape = tuple(sizes[index] for index in plan.step.target.indices)
        self.count = math.prod(self.shape)
        self.assembly = plan.assembly
        self.format = plan.result
        self.no_arrays = (None,) * (len(plan.result) - 1)  # of the levels above the rows
        self.above = self.no_arrays[: plan.row_levels or 0]
        self.below = self.no_arrays[plan.row_levels or 0 :]
        self.is_cast = dtype != dtype_of_type(plan.element)
        converted = {conversion.name: conversion for conversion in planned.conversions}
        names = dict.fromkeys(access.tensor for access in plan.step.accesses)
        self.sources: list[tuple[str, Format | None]] = []
        for name in names:
            form = converted[name].format if name in converted else None
            while name in converted:  # converted twice: straight to the last format
                name = converted[name].tensor
            self.sources.append((name, form))
        self.converts = any(form is not None for _, form in self.sources)
        self.pattern_source = -1
        if plan.pattern is not None:
            self.pattern_source = list(names).index(plan.pattern.tensor)
        self.pattern_levels = plan.pattern_levels
        below = range(plan.pattern_levels, len(plan.result))
        self.pattern_tail = math.prod(plan.result.level_size(level, self.shape) for level in below)
        self.slots = [(list(names).index(name), level) for name, level in plan.slots]
        self.work = planned.choice.chosen.total
        self.least_work = SERIAL_WORK * (MERGES_MORE if plan.slots else 1)
        self.is_serial = not plan.parallel or self.work < self.least_work
        self.parallel_for = 0 if self.is_serial else invoke.parallel_runtime()
        self.stored_shape = [self.shape[dim] for dim in plan.result.order] if plan.result.is_dense else []
        order = list(plan.result.order)
        self.back = [] if order == sorted(order) else sorted(range(len(order)), key=lambda d: order[d])
        self._facts: dict[int, bytes] = {}
        self._first: dict[int, bytes] = {}  # the first argument slots, by the number of threads
        self.dense_bytes = _dense_bytes(plan, self.shape)
        self.is_large = self.dense_bytes > LARGE

    def __call__(self, sources: Sequence[Tensor], contiguous: bool = False) -> Tensor:
        """Run the compiled kernel on tensors in the order of ``sources``.

        ``contiguous``: the caller knows that all dense ones are.
        """
        if not self.is_direct and not self.kernel.is_ready():
            return self._run_by_torch(sources)
        if LISTENERS:
            return self._watched(sources)
        operands = sources if contiguous and not self.converts else self._converted(sources)
        return self._run(operands)

    def _run_by_torch(self, sources: Sequence[Tensor]) -> Tensor:
        """The same without machine code: many times slower."""
        if not toolchain.has_compiler():
            warn_without_compiler()
        start = time.perf_counter()
        found = run_without_kernel(self, sources)
        if LISTENERS:
            tell("kernel", self, sources, found, start, 0.0)
        return found

    def _watched(self, sources: Sequence[Tensor]) -> Tensor:
        start = time.perf_counter()
        operands = self._converted(sources)
        converted = time.perf_counter() - start
        found = self._run(operands)
        tell("kernel", self, sources, found, start, converted)
        return found

    def _run(self, operands: Sequence[Tensor]) -> Tensor:
        threads = self.threads()
        if self.is_direct:
            return self._direct(operands, threads)
        inputs: list[Any] = [self.parallel_for, threads, *self.sizes]
        for tensor in operands:
            if isinstance(tensor, Storage):
                for array in tensor.pattern.arrays:
                    inputs.append(array.data_ptr())
                inputs.append(invoke.address_of(tensor.values))
            else:
                inputs.append(invoke.address_of(tensor))
        return self._result(self.kernel.native, inputs, operands)

    def _direct(self, sources: Sequence[Tensor], threads: int) -> Tensor:
        """The shortest way, through a builtin that reads the tensors and allocates the result."""
        self.check_budget()
        arguments: list[torch.Tensor] = []
        for tensor in sources:
            if isinstance(tensor, Storage):
                arguments += tensor.tensors
            else:
                arguments.append(tensor)
        facts = self.facts_for(sources)
        try:
            found = self.builtin(self.address, self.first_slots(threads), facts, None, *arguments)
        except MemoryError as error:
            raise self.out_of_memory(error) from error
        return self.wrap(found, sources)

    def out_of_memory(self, error: MemoryError) -> KernelError:
        """What users are told when a builtin finds no memory."""
        return KernelError(f"{error} while computing {self.planned.plan.header.splitlines()[0]}")

    def facts_for(self, sources: Sequence[Tensor]) -> bytes:
        """What the builtin allocates; on a shared pattern as many values as that has."""
        if self.assembly != "shared":
            return self.facts
        source = sources[self.pattern_source]
        assert isinstance(source, Storage)
        return self.facts_for_size(self.shared_size(source))

    def facts_for_size(self, size: int) -> bytes:
        """What the builtin allocates for ``size`` values."""
        known = self._facts.get(size)
        if known is None or current() is not DEFAULT:  # where results lie is a setting
            zero = not self.kernel.writes_everything
            known = self._facts[size] = result_facts(self.planned.plan.element, (size,), zero)
            if len(self._facts) > MOST_FACTS:
                self._facts.clear()
        return known

    def shared_size(self, source: Storage) -> int:
        """The number of values of a result that has the pattern of ``source``, or its first levels."""
        return source.pattern.counts[self.pattern_levels - 1] * self.pattern_tail

    def shared(self, source: Storage) -> Pattern:
        """The pattern of such a result."""
        return source.pattern.carried(self.format, self.shape, self.pattern_levels)

    def wrap(self, found: Any, sources: Sequence[Tensor]) -> Tensor:
        """What a builtin returned as a tensor."""
        if self.assembly == "shared":
            source = sources[self.pattern_source]
            assert isinstance(source, Storage)
            return Storage(self.shared(source), found)
        if self.assembly == "dense":
            dense: torch.Tensor = found
            return dense.permute(self.back) if self.back else dense
        if self.slots:
            return self.wrap_slots(found)
        pos, crd, values = found
        count = crd.numel()
        if count > LAST_INT32 and pos.dtype != crd.dtype:
            crd = crd.to(pos.dtype)
        nones, counts = self.no_arrays, (*self.row_counts, count)
        values = values.to(self.dtype) if self.is_cast else values
        return assembled(self.format, self.shape, (*nones, pos), (*nones, crd), counts, values)

    def wrap_slots(self, found: tuple[Any, ...]) -> Storage:
        """What the builtin ``slots`` returned."""
        pos, *crds, values, nnz = found
        above = self.above
        counts = (*self.row_counts, *(nnz for _ in crds)) if self.below else (*self.row_counts, nnz)
        values = values.to(self.dtype) if self.is_cast else values
        return assembled(self.format, self.shape, (*above, pos, *self.below), (*above, *crds), counts, values)

    @functools.cached_property
    def is_direct(self) -> bool:
        """Whether ``_direct`` may be used."""
        if self.kernel.slots > MOST_SLOTS or len(self.shape) > MOST_DIMS or builtins() is None:
            return False
        if not self.kernel.is_ready():
            return False
        begins_at_zero = self.kernel.identity == 0 or self.kernel.writes_everything
        plain = self.assembly in ("dense", "shared") and not self.is_cast and begins_at_zero
        return plain or self.assembly == "rows" or bool(self.slots)

    @functools.cached_property
    def builtin(self) -> Callable[..., Any]:
        found = builtins()
        assert found is not None
        if self.slots:
            return found.slots
        return found.rows if self.assembly == "rows" else found.fill

    @functools.cached_property
    def address(self) -> int | tuple[int, int]:
        """The kernel as the builtin takes it."""
        addresses = self.kernel.native.addresses
        if self.assembly == "rows" and not self.slots:
            return addresses["scorch_compute"], addresses["scorch_finish"]
        return addresses["scorch_compute"]

    @functools.cached_property
    def facts(self) -> bytes:
        """What the builtin allocates."""
        plan = self.planned.plan
        if self.assembly == "dense":
            return result_facts(plan.element, self.stored_shape, not self.kernel.writes_everything)
        rows = self.row_counts[-1] if self.row_counts else 1
        if not self.slots:
            return row_facts(rows, plan.index, plan.element)
        bounds = [self._place_of_crd(*bound) for bound in self.slots]
        crds = len(plan.result) - len(self.row_counts)
        return slot_facts(rows, plan.index, plan.element, crds, bounds)

    def _place_of_crd(self, source: int, level: int) -> int:
        """Where among the tensors that the builtin takes a level of ``source`` has its coordinates."""
        plan, place = self.planned.plan, 0
        for number, name in enumerate(dict.fromkeys(access.tensor for access in plan.step.accesses)):
            form = plan.operand(name).format
            for at in range(len(form)):
                if not form.levels[at].is_full:
                    place += int(form.starts_run(at))
                    if (number, at) == (source, level):
                        return place
                    place += 1
            if (source, level) == (number, VALUES):
                return place
            place += 1
        raise AssertionError(f"operand {source} keeps no coordinates in level {level}")

    @functools.cached_property
    def row_counts(self) -> tuple[int, ...]:
        """The positions of each level above the entries."""
        form, counts = self.planned.plan.result, [1]
        for level in range(self.planned.plan.row_levels or 0):
            counts.append(counts[-1] * form.level_size(level, self.shape))
        return tuple(counts[1:])

    def threads(self) -> int:
        """How many threads a call uses now: as many as there is work to wake them for."""
        return 1 if self.is_serial else threads_for(self.work, self.least_work)

    def first_slots(self, threads: int) -> bytes:
        """The argument slots before those of the tensors."""
        first = self._first.get(threads)
        if first is None:
            first = self._first[threads] = pack([self.parallel_for, threads, *self.sizes])
        return first

    def interpret(self, sources: Sequence[Tensor]) -> Tensor:
        """Run the loops through the interpreter, which checks every access, as if on two threads."""
        engine = self.kernel.interpreter()
        inputs: list[Any] = [self.parallel_for, 2, *self.sizes]
        operands = self._converted(sources)
        for tensor in operands:
            if isinstance(tensor, Storage):
                inputs += [engine.slot(array) for array in tensor.pattern.arrays]
                inputs.append(engine.slot(tensor.values))
            else:
                inputs.append(engine.slot(tensor.reshape(-1)))
        return self._result(engine, inputs, operands)

    def _converted(self, sources: Sequence[Tensor]) -> list[Tensor]:
        """The operands as the kernel reads them; keeps copies alive until it has run."""
        found: list[Tensor] = []
        for tensor, (_, form) in zip(sources, self.sources, strict=True):
            if isinstance(tensor, torch.Tensor):
                found.append(as_stored(tensor if form is None else laid_out(tensor, form.order, _threads())))
            else:
                found.append(tensor if form is None else self.convert(tensor, form))
        return found

    def _result(self, engine: Engine, inputs: list[Any], operands: Sequence[Tensor]) -> Tensor:
        plan = self.planned.plan
        self.check_budget()
        if self.assembly == "dense":
            values = self.kernel.fill(engine, inputs, self.count)
            if self.is_cast:
                values = values.to(self.dtype)
            if len(self.shape) != 1:
                values = values.view(self.stored_shape)
            return values.permute(self.back) if self.back else values
        if self.assembly == "shared":
            source = operands[self.pattern_source]
            assert isinstance(source, Storage)
            values = self.kernel.fill(engine, inputs, self.shared_size(source))
            return Storage(self.shared(source), values.to(self.dtype) if self.is_cast else values)
        bound = sum(_entries(operands[source], level) for source, level in self.slots)
        arrays = self.kernel.build(engine, inputs, self.shape, self.check_bytes, bound)
        values = arrays.values.to(self.dtype) if self.is_cast else arrays.values
        return assembled(plan.result, self.shape, arrays.pos, arrays.crd, arrays.counts, values)

    def check_budget(self) -> None:
        """Refuse what dense levels of the result would need beyond the budget, before it is allocated."""
        if self.is_large or (self.assembly == "dense" and current().dense_budget is not None):
            self.check_bytes(self.dense_bytes)

    def check_bytes(self, size: int) -> None:
        """Refuse so many bytes of dense levels if they are beyond the budget."""
        plan = self.planned.plan
        what = f"{plan.header.splitlines()[0]} in format {plan.result}"
        check_budget(size, what, "ask for a sparser format such as 'coo' or 'dcsr'")


def threads_for(work: float, least: float) -> int:
    """How many threads share ``work``, where two cost less than one from ``least`` on."""
    return max(1, min(_threads(), int(2 * work / least))) if least else _threads()


def _threads() -> int:
    """How many threads there are to use."""
    return current().threads or torch.get_num_threads()


def _entries(tensor: Tensor, level: int) -> int:
    assert isinstance(tensor, Storage)
    return tensor.pattern.counts[level]


def _dense_bytes(plan: Plan, shape: Sequence[int]) -> int:
    """What the result's leading dense levels need: its values, or the pointers below them."""
    if plan.assembly == "shared":
        return 0
    places = 1
    for level, kind in enumerate(plan.result.levels):
        if not kind.is_full:
            return 8 * places
        places *= plan.result.level_size(level, shape)
    return plan.element.bytes * places


def as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor with its values in memory in the order of ``stride_order``, without gaps."""
    found = tensor if tensor.is_contiguous() else tensor.permute(stride_order(tensor)).contiguous()
    return found.resolve_conj().resolve_neg() if found.is_complex() or found.is_neg() else found


def stride_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The order in which a dense tensor lies in memory, if it does without gaps; else the plain one."""
    plain = tuple(range(tensor.dim()))
    if tensor.is_contiguous():
        return plain
    strides = tensor.stride()
    order = tuple(sorted(plain, key=lambda dim: (-strides[dim], dim)))
    return order if tensor.permute(order).is_contiguous() else plain


def has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether a dense tensor can be read as it lies, in the order of ``stride_order``."""
    return tensor.is_contiguous() or tensor.permute(stride_order(tensor)).is_contiguous()
