"""The backend of CUDA devices: kernels in CUDA C, compiled in this process by NVRTC."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda import nvrtc
from scorch._src.backends.cuda.executable import CudaExecutable
from scorch._src.backends.print.cuda import print_cuda
from scorch._src.compiler.fuse.group import Fused, FusionError
from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.target import GRID
from scorch._src.loops.grid import as_grid, why_no_grid


class CudaBackend(base.Backend):
    name = "cuda"
    target = GRID

    def write(self, planned: Planned) -> base.Schedule:
        """Print the kernel as a grid; a step that is none has no text, and runs by joins."""
        kernel, plan = planned.kernel(), planned.plan
        is_filled = plan.assembly in ("dense", "shared")
        has_grid = is_filled and not why_no_grid(kernel)
        source = print_cuda(as_grid(kernel, plan.result_loops)) if has_grid else ""
        return base.schedule_of(planned, kernel, source)

    def build(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> base.Executable:
        return CudaExecutable(schedule, sizes)

    def build_group(self, fused: Fused) -> base.GroupExecutable:
        raise FusionError("groups of calls have no kernel on CUDA devices yet")

    def missing(self) -> str | None:
        return nvrtc.why_missing()

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


if torch.backends.cuda.is_built():  # asks nobody: touching the driver at import would break fork
    base.register_backend("cuda", CudaBackend(), "kernels in CUDA C, compiled in this process")
