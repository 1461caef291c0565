"""The shortest way from arrays to a launch: what one call has looked up, the next one finds at hand."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from scorch._src.backends.cpu.launch import tensor_descriptor
from scorch._src.backends.cuda.device.driver import ALIGNMENT
from scorch._src.backends.cuda.device.kernel import LAUNCHES
from scorch._src.backends.cuda.executables.one_call import by_pattern, in_one_call
from scorch._src.backends.repeated_calls import Run, RunParts
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.torch_internals import cuda_device

if TYPE_CHECKING:
    from scorch._src.backends.cuda.executables.executable import CudaExecutable

MAX_SHAPES = 64  # of results that are remembered

# Of a dense operand its number among the arrays, shape, dtype and strides, None if without gaps.
Check = tuple[int, torch.Size, torch.dtype, tuple[int, ...] | None]
Fill = Callable[[Sequence[torch.Tensor], int], torch.Tensor | None]  # takes the number of the device, too
Call = Callable[..., torch.Tensor | None]


class Guard(NamedTuple):
    """What is checked of dense arrays in Python; and of all, from the last to the first, by the builtin."""

    checks: list[Check]
    facts: bytes


class CudaCall:
    """A kernel called on arrays as they are, after a look at the dense ones."""

    def __init__(self, executable: CudaExecutable) -> None:
        self.executable = executable

    @functools.cached_property
    def output(self) -> tuple[int, ...]:
        """The shape of a dense result as it lies in memory."""
        executable = self.executable
        return tuple(executable.shape[dim] for dim in executable.plan.result.order)

    def output_of(self, count: int, is_usual: bool = False) -> tuple[int, ...]:
        del is_usual
        return (count,)

    def guard(self, operands: Sequence[Any]) -> Guard:
        checks: list[Check] = []
        place, facts = 0, b""
        for operand in operands:
            if isinstance(operand, int):
                place += operand
                facts = tensor_descriptor() * operand + facts
                continue
            tensor, order = operand
            strides = None if tensor.is_contiguous() else tensor.stride()
            checks.append((place, tensor.shape, tensor.dtype, strides))
            facts = tensor_descriptor(type_of_dtype(tensor.dtype), tensor.shape, order) + facts
            place += 1
        return Guard(checks, facts)

    def bind(self, guard: Guard | None) -> Any:
        calls: dict[tuple[int, ...], Call] = {}

        def call(output: tuple[int, ...], *arrays: torch.Tensor) -> torch.Tensor | None:
            known = calls.get(output)
            if known is None:
                known = self.bind_output(guard, output)
                if len(calls) < MAX_SHAPES:
                    calls[output] = known
            return known(*arrays)

        return call

    def bind_output(self, guard: Guard | None, output: tuple[int, ...]) -> Call:
        call = self._bind_output(guard, output)
        if not only_launches(self.executable) or not math.prod(output):
            return call
        return in_one_call(self.executable, call, output, b"" if guard is None else guard.facts)

    def bind_run(self, guard: Guard, parts: RunParts) -> Run | None:
        del guard, parts  # a launch is bound to a pattern: ``in_one_call``
        return None

    def _bind_output(self, guard: Guard | None, output: tuple[int, ...]) -> Call:
        fill = quick_fill(self.executable, output)
        checks = [] if guard is None else guard.checks
        if not checks:
            return lambda *arrays: fill(arrays, arrays[0].get_device())
        if len(checks) == 1 and checks[0][3] is None:
            return _with_one_guard(fill, *checks[0][:3])

        def call(*arrays: torch.Tensor) -> torch.Tensor | None:
            device = arrays[0].get_device()
            for place, shape, dtype, strides in checks:
                array = arrays[place]
                if array.dtype is not dtype or array.shape != shape or array.get_device() != device:
                    return None
                if not (array.is_contiguous() if strides is None else array.stride() == strides):
                    return None
            return fill(arrays, device)

        return call


def _with_one_guard(fill: Fill, place: int, shape: torch.Size, dtype: torch.dtype) -> Call:
    """Return a call that looks at one dense operand without gaps, which is the usual case."""

    def call(*arrays: torch.Tensor) -> torch.Tensor | None:
        array, device = arrays[place], arrays[0].get_device()
        if array.dtype is not dtype or array.shape != shape or array.get_device() != device:
            return None
        return fill(arrays, device) if array.is_contiguous() else None

    return call


def only_launches(executable: CudaExecutable) -> bool:
    """Check whether a call does nothing but launch kernels, and takes nothing but arrays."""
    return executable.writes_everything and executable.takes_addresses


def quick_fill(executable: CudaExecutable, shape: tuple[int, ...]) -> Fill:
    """Return what ``executable.filled`` does for a shape, shorter for a call that only launches kernels.

    It takes the number of the device, too, and returns None where an array has no memory.
    """

    def filled(arrays: Sequence[torch.Tensor], device: int) -> torch.Tensor | None:
        if any([array._is_zerotensor() for array in arrays]):
            return None
        return executable.filled(arrays, shape)

    if not only_launches(executable):
        return filled
    aligned, header = executable.aligned, executable.header
    ready: dict[int, tuple[Callable[..., Any], ...]] = {}  # by device

    def fill(arrays: Sequence[torch.Tensor], device: int) -> torch.Tensor | None:
        known = ready.get(device)
        if known is None:
            values = filled(arrays, device)
            if values is not None and values.numel():
                ready[device] = _prepare(executable, values)
            return values
        if LAUNCHES or (device >= 0 and cuda_device() != device):
            return filled(arrays, device)
        allocate, find = known
        addresses = [array.data_ptr() for array in arrays]
        if 0 in addresses:
            return filled(arrays, device)
        if aligned and any([addresses[place] % ALIGNMENT for place in aligned]):
            return filled(arrays, device)
        launch, before, behind, allocate_sums = find(arrays)
        result: torch.Tensor = allocate()
        if allocate_sums is None:
            launch(*header, *addresses, result.data_ptr(), *before)
            return result
        sums = allocate_sums()
        launch(*header, *addresses, result.data_ptr(), *before, sums.data_ptr(), *behind)
        return result

    return fill


def _prepare(executable: CudaExecutable, values: torch.Tensor) -> tuple[Callable[..., Any], ...]:
    """Return what allocates a result like ``values``; and what finds the launch for a pattern.

    That is a function of all slots, those behind the result before and behind the sums of parts of rows, and
    what allocates these; None where no row is cut.
    """
    count, device = values.numel(), values.device

    def make(arrays: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        bound = executable.bind(arrays, count)
        slots = len(executable.header) + len(arrays) + 1 + len(bound.before) + len(bound.behind)
        launch = executable.launcher(bound.grids, slots + bool(bound.sums), device.index)
        return launch, bound.before, bound.behind, executable.allocator_of_sums(bound, device)

    allocate = executable.allocator(tuple(values.shape), device, executable.result_dtype)
    return allocate, by_pattern(executable, make)
