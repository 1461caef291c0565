"""The backend of CUDA devices: kernels in CUDA C, compiled in this process by NVRTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from scorch._src.backends import base
from scorch._src.compiler.fuse.group import Fused, FusionError
from scorch._src.compiler.pipeline import Planned
from scorch.errors import KernelError


class Joined(base.Executable):
    """A step that runs by joins: there is no kernel for it."""

    def is_ready(self) -> bool:
        return False

    def fill(self, arrays: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        raise KernelError(f"there is no kernel for {self.label}")

    def build(self, arrays: Sequence[torch.Tensor], check: base.Check, bound: int = 0) -> base.Arrays:
        raise KernelError(f"there is no kernel for {self.label}")


class CudaBackend(base.Backend):
    name = "cuda"

    def write(self, planned: Planned) -> base.Schedule:
        return base.schedule_of(planned, planned.kernel(), "")

    def build(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> base.Executable:
        return Joined(schedule, sizes)

    def build_group(self, fused: Fused) -> base.GroupExecutable:
        raise FusionError("groups of calls have no kernel on CUDA devices yet")

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


if torch.backends.cuda.is_built():  # asks nobody: touching the driver at import would break fork
    base.register_backend("cuda", CudaBackend(), "kernels in CUDA C, compiled in this process")
