"""Kernels on a CUDA device, each one grid; steps that are none run by joins in torch's operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda import driver, nvrtc
from scorch._src.backends.cuda.rows import parts_of, row_of_entry
from scorch._src.backends.launcher import address_of
from scorch._src.loops.grid import FUNCTIONS, WARP, Grid
from scorch.errors import CompilationError, KernelError, warn

ALIGNMENT = 16  # bytes

# Of each dense operand its number among the arrays, shape, dtype and strides, None if without gaps.
Guard = list[tuple[int, torch.Size, torch.dtype, tuple[int, ...] | None]]


class CudaExecutable(base.Executable):
    """A kernel that fills values whose places are known. Without a text there is none, and joins run."""

    slot: Callable[[torch.Tensor], Any] = staticmethod(address_of)  # how a kernel takes an array

    def __init__(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> None:
        super().__init__(schedule, sizes)
        self._codes: dict[tuple[int, int], bytes] = {}  # by architecture
        self._functions: dict[tuple[str, int], int] = {}  # by name and device
        self._is_refused = False
        self.grid = grid = schedule.grid or Grid()
        self.header = [0, 1, *self.sizes]
        arrays = schedule.slots[len(self.header) :]
        self.aligned = [arrays.index(name) for name in grid.aligned if name in arrays[:-1]]
        self.pos = arrays.index(grid.pos) if grid.pos else -1
        self.columns = sizes[grid.column] if grid.column else 1
        tiles = -(-self.columns // (grid.threads * grid.each)) if grid.column else 1
        self.threads_of_row = tiles * grid.threads
        self.padding = [0] * grid.added_slots

    def is_ready(self) -> bool:
        if not self.source or self._is_refused or not nvrtc.is_there():
            return False
        if not self._codes:
            try:
                self._code(torch.cuda.current_device())
            except CompilationError as error:
                self._is_refused = True
                warn(f"{error}\nIt is computed by torch's own operations instead, which takes longer.")
                return False
        return True

    @functools.cached_property
    def direct(self) -> CudaCall | None:
        return CudaCall(self) if self.is_ready() else None

    def _code(self, device: int) -> bytes:
        capability = torch.cuda.get_device_capability(device)
        code = self._codes.get(capability)
        if code is None:
            code = nvrtc.compile_cuda(self.source, "sm_{}{}".format(*capability), self.label)
            self._codes[capability] = code
        return code

    def fill(self, arrays: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        return self.filled(arrays, (count,))

    def filled(self, arrays: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
        """Compute the values of a result in a tensor of a shape."""
        device = arrays[0].device
        values = self.allocate(shape, device)
        if not self.writes_everything:
            values.fill_(self.identity)
        count = values.numel()
        if not count:
            return values
        if device.index is None or driver.is_current(device.index):
            self._run(arrays, values, count, device)
        else:
            with torch.cuda.device(device):
                self._run(arrays, values, count, device)
        return values

    def _run(
        self, arrays: Sequence[torch.Tensor], values: torch.Tensor, count: int, device: torch.device
    ) -> None:
        """Launch the kernel; where rows are cut, one for all parts and one that puts them together."""
        slot, grid, number = self.slot, self.grid, device.index
        for place in self.aligned:
            if arrays[place].data_ptr() % ALIGNMENT:  # a view that begins anywhere
                arrays = [array.clone() if n == place else array for n, array in enumerate(arrays)]
        slots = [*self.header, *[slot(array) for array in arrays], slot(values)]
        if grid.row_of_entry:
            slots.append(slot(row_of_entry(arrays[self.pos])))
            self.launch(FUNCTIONS[0], slots, count * grid.threads, number)
            return
        parts = parts_of(arrays[self.pos], grid.threads) if grid.pos else None
        if parts is None:
            slots += self.padding
            self.launch(FUNCTIONS[0], slots, -(-count // self.columns) * self.threads_of_row, number)
            return
        sums = self.allocate((parts.cut * self.columns,), device)
        tensors = (parts.row, parts.start, parts.stop, sums, parts.long_row, parts.long_first)
        slots += [*map(slot, tensors), parts.count, parts.cut, parts.long]
        self.launch(FUNCTIONS[1], slots, parts.count * self.threads_of_row, number)
        of_long_row = self.threads_of_row if grid.column else WARP
        self.launch(FUNCTIONS[2], slots, parts.long * of_long_row, number)

    def allocate(self, shape: Sequence[int], device: torch.device) -> torch.Tensor:
        """Return memory for values, in that of torch's allocator."""
        return torch.empty(shape, dtype=self.dtype, device=device)

    def launch(self, name: str, slots: Sequence[Any], threads: int, device: int) -> None:
        """Run a function of the kernel with as many threads."""
        function = self._functions.get((name, device))
        if function is None:
            function = self._functions[name, device] = driver.load(self._code(device), name, device)
        driver.launch(function, slots, threads, device)

    def build(self, arrays: Sequence[torch.Tensor], check: base.Check, bound: int = 0) -> base.Arrays:
        raise KernelError(f"there is no kernel for {self.label}")


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
        filled = self.executable.filled
        if not guard:
            return lambda output, *arrays: filled(arrays, output)

        def call(output: tuple[int, ...], *arrays: torch.Tensor) -> torch.Tensor | None:
            device = arrays[0].device
            for place, shape, dtype, strides in guard:
                array = arrays[place]
                if array.dtype is not dtype or array.shape != shape or array.device != device:
                    return None
                if not (array.is_contiguous() if strides is None else array.stride() == strides):
                    return None
            return filled(arrays, output)

        return call
