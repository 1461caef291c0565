"""The shortest way from arrays to a launch: what one call has looked up, the next one finds at hand."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from scorch._src.backends.cuda import driver
from scorch._src.backends.cuda.kernel import LAUNCHES
from scorch._src.torch_internals import cuda_device

if TYPE_CHECKING:
    from scorch._src.backends.cuda.executable import CudaExecutable

ALIGNMENT = 16  # bytes
MAX_SHAPES = 64  # of results that are remembered

# Of each dense operand its number among the arrays, shape, dtype and strides, None if without gaps.
Guard = list[tuple[int, torch.Size, torch.dtype, tuple[int, ...] | None]]
Fill = Callable[[Sequence[torch.Tensor], tuple[int, ...]], torch.Tensor]


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
        checks: Guard = []
        place = 0
        for operand in operands:
            if isinstance(operand, int):
                place += operand
                continue
            tensor, _ = operand
            strides = None if tensor.is_contiguous() else tensor.stride()
            checks.append((place, tensor.shape, tensor.dtype, strides))
            place += 1
        return checks

    def bind(self, guard: Guard | None) -> Any:
        filled = quick_fill(self.executable)
        if not guard:
            return lambda output, *arrays: filled(arrays, output)

        def call(output: tuple[int, ...], *arrays: torch.Tensor) -> torch.Tensor | None:
            device = arrays[0].device
            for place, shape, dtype, strides in guard:
                array = arrays[place]
                if array.dtype is not dtype or array.shape != shape or array.device != device:
                    return None
                if array._is_zerotensor():  # it has no memory
                    return None
                if not (array.is_contiguous() if strides is None else array.stride() == strides):
                    return None
            return filled(arrays, output)

        return call

    def bind_output(self, guard: Guard | None, output: tuple[int, ...]) -> Any:
        return functools.partial(self.bind(guard), output)


def quick_fill(executable: CudaExecutable) -> Fill:
    """Return what ``executable.filled`` does, shorter for a call that is one launch."""
    filled = executable.filled
    is_plain = executable.writes_everything and not executable.parents and executable.listed < 0
    if not is_plain or not executable.takes_addresses:
        return filled
    aligned, header, padding, pos = executable.aligned, executable.header, executable.padding, executable.pos
    ready: dict[tuple[int | None, tuple[int, ...]], tuple[Callable[..., Any], ...]] = {}
    uncut: weakref.ref[torch.Tensor] | None = None  # the last array of positions without long rows

    def fill(arrays: Sequence[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        nonlocal uncut
        device = arrays[0].device
        number = device.index
        known = ready.get((number, shape))
        if known is None:
            values = filled(arrays, shape)
            if len(ready) < MAX_SHAPES and values.numel():
                ready[number, shape] = _prepare(executable, values, len(arrays))
            return values
        if LAUNCHES or (number is not None and cuda_device() != number):
            return filled(arrays, shape)
        if pos >= 0 and (uncut is None or uncut() is not arrays[pos]):
            if executable.parts(arrays) is not None:
                return filled(arrays, shape)
            uncut = weakref.ref(arrays[pos])
        addresses = [array.data_ptr() for array in arrays]
        if 0 in addresses or any([addresses[place] % ALIGNMENT for place in aligned]):
            return filled(arrays, shape)
        allocate, launch = known
        result: torch.Tensor = allocate()
        launch(*header, *addresses, result.data_ptr(), *padding)
        return result

    return fill


def _prepare(executable: CudaExecutable, values: torch.Tensor, arrays: int) -> tuple[Callable[..., Any], ...]:
    """Return what allocates a result like ``values``, and what launches the kernel with as many arrays."""
    blocks = driver.blocks_for(executable.threads_of(values.numel(), None))
    slots = len(executable.header) + arrays + 1 + len(executable.padding)
    launch = functools.partial(executable.launcher(slots, values.device.index), blocks)
    return executable.allocator(tuple(values.shape), values.device), launch
