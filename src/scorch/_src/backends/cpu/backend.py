"""The CPU backend: kernels in C, compiled by this machine's C compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from scorch._src.backends import base
from scorch._src.backends.cpu import launch, parallel, toolchain
from scorch._src.backends.cpu.cpu_routines import CpuRoutines
from scorch._src.backends.cpu.executable import CpuExecutable, CpuGroup, build_together
from scorch._src.backends.print.c import print_kernel
from scorch._src.backends.repeated_calls import CallObjects, Repeater
from scorch._src.compiler.fuse.group import Fused
from scorch._src.compiler.pipeline import Planned
from scorch.errors import CompilerNotFoundError


class CpuBackend(base.Backend):
    name = "cpu"
    is_on_host = True
    routines = CpuRoutines()

    def write(self, planned: Planned) -> base.Schedule:
        kernel = planned.kernel()
        return base.schedule_of(planned, kernel, print_kernel(kernel))

    def build(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> base.Executable:
        return CpuExecutable(schedule, sizes)

    def build_group(self, fused: Fused) -> base.GroupExecutable:
        return CpuGroup(fused)

    def build_ahead(self, sources: Sequence[str]) -> None:
        build_together(sources)

    def missing(self) -> str | None:
        if toolchain.has_compiler():
            return None
        try:
            toolchain.find_toolchain()
        except CompilerNotFoundError as error:
            return str(error)
        return None

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return launch.empty(shape, dtype)

    def leave_cores(self) -> Callable[[], None] | None:
        return parallel.leave_cores()

    def repeater(self, objects: CallObjects) -> Repeater | None:
        return launch.repeater(objects)


base.register_backend("cpu", CpuBackend(), "kernels in C, compiled on this machine")
