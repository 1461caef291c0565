"""Compiled kernels of groups of steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.base import GroupExecutable
from scorch._src.backends.cpu.executable import MAX_CACHED_OUTPUTS, SERIAL_WORK, Compiled
from scorch._src.backends.cpu.launch import MAX_SLOTS, builtins, pack, result_descriptor
from scorch._src.backends.cpu.memory import empty
from scorch._src.backends.cpu.print.c import print_kernel
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.fuse.group import Fused
from scorch._src.loops.nodes import Kernel
from scorch.errors import KernelError

Packed = BoundedCache[tuple[int, ...], bytes]


class CpuGroup(Compiled, GroupExecutable):
    """The kernel of a group in C."""

    def __init__(self, fused: Fused) -> None:
        GroupExecutable.__init__(self, fused)
        Compiled.__init__(self, ["scorch_compute"], fused.work, SERIAL_WORK)
        self.source = print_kernel(fused.kernel)
        self._headers: Packed = BoundedCache(MAX_CACHED_OUTPUTS)  # by threads and sizes
        self._outputs: Packed = BoundedCache(MAX_CACHED_OUTPUTS)  # of the last result, by its shape

    def loops(self) -> Kernel:
        return self.fused.kernel

    def run(
        self, arrays: Sequence[torch.Tensor], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        results = [empty(shape, self.dtype) for shape in shapes[:-1]]
        functions, engine = builtins(), self.engine
        if functions is None or 2 + len(sizes) + len(arrays) + len(results) >= MAX_SLOTS:
            results.append(torch.empty(shapes[-1], dtype=self.dtype, device="cpu"))
            slots = [self.parallel_for, self.workers(), *sizes, *map(engine.slot, (*arrays, *results))]
            if engine.call("scorch_compute", slots):
                raise KernelError(f"memory ran out while computing {self.label}")
            return results
        numbers, last = (self.workers(), *sizes), shapes[-1]
        header, output = self._headers.get(numbers), self._outputs.get(last)
        if header is None:
            header = self._headers[numbers] = pack([self.parallel_for, *numbers])
        if output is None:
            output = self._outputs[last] = result_descriptor(self.fused.group.element, last, zero=False)
        compute = engine.addresses["scorch_compute"]
        try:
            results.append(functions.fill(compute, header, output, None, *arrays, *results))
        except MemoryError as error:
            raise self.out_of_memory(error) from error
        return results
