"""Compiled kernels of groups of steps."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from scorch._src.backends.base import GroupExecutable
from scorch._src.backends.cpu import invoke, jit
from scorch._src.backends.cpu.executable import (
    MAX_CACHED_OUTPUTS,
    SERIAL_WORK,
    build_together,
    warn_not_compiled,
)
from scorch._src.backends.cpu.launch import MAX_SLOTS, builtins, pack, result_descriptor
from scorch._src.backends.cpu.memory import empty
from scorch._src.backends.cpu.print.c import print_kernel
from scorch._src.backends.cpu.print.scalar import print_scalar
from scorch._src.compiler.fuse.group import Fused
from scorch.errors import CompilationError, KernelError


class CpuGroup(GroupExecutable):
    """The kernel of a group in C; compiled when it is first called."""

    def __init__(self, fused: Fused) -> None:
        super().__init__(fused)
        self.source = print_kernel(fused.kernel)
        self.is_serial = fused.work < SERIAL_WORK
        self.parallel_for = 0 if self.is_serial else invoke.parallel_runtime()
        self._failed = False
        self._headers: dict[tuple[int, ...], bytes] = {}
        self._outputs: dict[tuple[int, ...], bytes] = {}  # of the last result, by its shape

    @functools.cached_property
    def address(self) -> int:
        build_together([self.source])
        library = jit.load(self.source, self.label, lambda: print_scalar(self.fused.kernel))
        return library.address("scorch_compute")

    def is_ready(self) -> bool:
        if "address" in self.__dict__:
            return True
        if not self._failed:
            try:
                return bool(self.address)
            except CompilationError as error:
                self._failed = True
                warn_not_compiled(error)
        return False

    def workers(self) -> int:
        return 1 if self.is_serial else invoke.threads_for(self.fused.work, SERIAL_WORK)

    def run(
        self, arrays: Sequence[torch.Tensor], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        results = [empty(shape, self.dtype) for shape in shapes[:-1]]
        functions = builtins()
        if functions is None or 2 + len(sizes) + len(arrays) + len(results) >= MAX_SLOTS:
            results.append(torch.empty(shapes[-1], dtype=self.dtype, device="cpu"))
            slots = [self.parallel_for, self.workers(), *sizes]
            slots += map(invoke.address_of, (*arrays, *results))
            if invoke.make_caller().call_back(self.address, slots):
                raise KernelError(f"memory ran out while computing {self.label}")
            return results
        header = self._header((self.workers(), *sizes))
        try:
            results.append(
                functions.fill(self.address, header, self._output(shapes[-1]), None, *arrays, *results)
            )
        except MemoryError as error:
            raise KernelError(f"{error} while computing {self.label}") from error
        return results

    def _header(self, numbers: tuple[int, ...]) -> bytes:
        header = self._headers.get(numbers)
        if header is None:
            header = pack([self.parallel_for, *numbers])
            if len(self._headers) < MAX_CACHED_OUTPUTS:
                self._headers[numbers] = header
        return header

    def _output(self, shape: tuple[int, ...]) -> bytes:
        output = self._outputs.get(shape)
        if output is None:
            output = result_descriptor(self.fused.group.element, shape, zero=False)
            if len(self._outputs) < MAX_CACHED_OUTPUTS:
                self._outputs[shape] = output
        return output
