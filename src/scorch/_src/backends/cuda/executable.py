"""Kernels on a CUDA device, each one grid; steps that are none run by joins in torch's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda import driver, nvrtc
from scorch._src.backends.cuda.rows import parts_of, row_of_entry
from scorch._src.backends.launcher import address_of
from scorch._src.loops.grid import FUNCTIONS, WARP, Grid
from scorch.errors import CompilationError, KernelError, warn

ALIGNMENT = 16  # bytes


class CudaExecutable(base.Executable):
    """A kernel that fills values whose places are known. Without a text there is none, and joins run."""

    slot = staticmethod(address_of)  # how a kernel takes an array

    def __init__(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> None:
        super().__init__(schedule, sizes)
        self._codes: dict[str, bytes] = {}  # by architecture
        self._functions: dict[tuple[str, torch.device], int] = {}
        self._is_refused = False
        self.grid = grid = schedule.grid or Grid()
        arrays = schedule.slots[2 + len(self.sizes) :]
        self.aligned = [arrays.index(name) for name in grid.aligned if name in arrays[:-1]]
        self.pos = arrays.index(grid.pos) if grid.pos else -1
        self.columns = sizes[grid.column] if grid.column else 1
        tiles = -(-self.columns // (grid.threads * grid.each)) if grid.column else 1
        self.threads_of_row = tiles * grid.threads
        self.slot_count = len(schedule.slots) + grid.added_slots

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

    def _code(self, device: torch.device | int) -> bytes:
        major, minor = torch.cuda.get_device_capability(device)
        architecture = f"sm_{major}{minor}"
        code = self._codes.get(architecture)
        if code is None:
            code = nvrtc.compile_cuda(self.source, architecture, self.label)
            self._codes[architecture] = code
        return code

    def _function(self, name: str, device: torch.device) -> int:
        known = self._functions.get((name, device))
        if known is None:
            known = self._functions[name, device] = driver.load(self._code(device), name, device)
        return known

    def fill(self, arrays: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        device = arrays[0].device
        values = self.allocate(count, device)
        if not self.writes_everything:
            values.fill_(self.identity)
        if count:
            with self.in_context(device):
                self._run(arrays, values, count, device)
        return values

    def _run(
        self, arrays: Sequence[torch.Tensor], values: torch.Tensor, count: int, device: torch.device
    ) -> None:
        """Launch the kernel; where rows are cut, one for all parts and one that puts them together."""
        if self.aligned:
            arrays = [*arrays]
            for number in self.aligned:
                if address_of(arrays[number]) % ALIGNMENT:  # a view that begins anywhere
                    arrays[number] = arrays[number].clone()
        slots = [0, 1, *self.sizes, *map(self.slot, arrays), self.slot(values)]
        grid = self.grid
        if grid.row_of_entry:
            rows = row_of_entry(arrays[self.pos])
            self.launch(FUNCTIONS[0], [*slots, self.slot(rows)], count * grid.threads, device)
            return
        parts = parts_of(arrays[self.pos], grid.threads) if grid.pos else None
        if parts is None:
            padding = [0] * (self.slot_count - len(slots))
            rows_of_threads = -(-count // self.columns)
            self.launch(FUNCTIONS[0], slots + padding, rows_of_threads * self.threads_of_row, device)
            return
        sums = self.allocate(parts.cut * self.columns, device)
        tensors = (parts.row, parts.start, parts.stop, sums, parts.long_row, parts.long_first)
        slots += [*map(self.slot, tensors), parts.count, parts.cut, parts.long]
        self.launch(FUNCTIONS[1], slots, parts.count * self.threads_of_row, device)
        of_long_row = self.threads_of_row if grid.column else WARP
        self.launch(FUNCTIONS[2], slots, parts.long * of_long_row, device)

    def allocate(self, count: int, device: torch.device) -> torch.Tensor:
        """Return memory for values, in that of torch's allocator."""
        return torch.empty(count, dtype=self.dtype, device=device)

    def in_context(self, device: torch.device) -> AbstractContextManager[None]:
        """Make ``device`` the current one."""
        return driver.in_context(device)

    def launch(self, function: str, slots: Sequence[int], threads: int, device: torch.device) -> None:
        """Run a function of the kernel with as many threads."""
        driver.launch(self._function(function, device), slots, threads, device)

    def build(self, arrays: Sequence[torch.Tensor], check: base.Check, bound: int = 0) -> base.Arrays:
        raise KernelError(f"there is no kernel for {self.label}")
