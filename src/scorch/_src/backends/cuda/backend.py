"""The backend of CUDA devices: kernels in CUDA C, compiled in this process by NVRTC."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from scorch._src.backends import base, cache, sources
from scorch._src.backends.cuda.device import nvrtc
from scorch._src.backends.cuda.device.driver import MAX_SLOTS, in_context
from scorch._src.backends.cuda.device.kernel import Ahead, Text
from scorch._src.backends.cuda.executables import product
from scorch._src.backends.cuda.executables.executable import CudaExecutable
from scorch._src.backends.cuda.executables.group import CudaGroup
from scorch._src.backends.cuda.executables.new_pattern import NewPatternExecutable, print_new_pattern
from scorch._src.backends.cuda.executables.product import ProductExecutable, is_product, print_product
from scorch._src.backends.cuda.routines.cuda_routines import CudaRoutines
from scorch._src.backends.print.cuda import print_cuda
from scorch._src.compiler.fuse.group import Fused
from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.schedule.grid_facts import facts_of, is_narrow
from scorch._src.compiler.target import GRID
from scorch._src.dataclass import replace
from scorch._src.loops.analysis import walk, with_array
from scorch._src.loops.grid import as_grid, why_no_grid
from scorch._src.loops.nodes import Array, Kernel, Load
from scorch._src.loops.types import FLOAT32, Type
from scorch.settings import enabled

AHEAD = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # for which kernels are compiled ahead


class CudaBackend(base.Backend):
    name = "cuda"
    target = GRID
    routines = CudaRoutines()

    def write(self, planned: Planned) -> base.Schedule:
        """Print the kernel as a grid, and begin to compile it.

        A step that is no grid has no text, and runs by joins.
        """
        schedule = self._print(planned)
        kind = self.kind_of(schedule)
        if kind.is_needed(planned):
            kind.kernel_of(schedule).begin()
        return schedule

    def _print(self, planned: Planned) -> base.Schedule:
        plan = planned.plan
        if is_product(plan):
            return base.Schedule(planned, print_product(plan), (), ())
        if plan.assembly not in ("dense", "shared"):
            return base.Schedule(planned, print_new_pattern(plan), (), ())
        kernel = planned.kernel()
        if why_no_grid(kernel):
            return base.schedule_of(planned, kernel, "")
        spread, grid = as_grid(kernel, facts_of(plan))
        if planned.stored is not None and plan.element == FLOAT32:
            narrow = stored_as(spread, planned.stored)
            if narrow is not None:
                spread, grid = narrow, replace(grid, is_stored_narrow=True)
        if len(spread.slots) > MAX_SLOTS:
            return base.schedule_of(planned, kernel, "")
        return base.schedule_of(planned, kernel, print_cuda(spread, is_narrow(plan)), grid)

    def build(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> base.Executable:
        return self.kind_of(schedule)(schedule, sizes)

    def kind_of(self, schedule: base.Schedule) -> type[CudaExecutable]:
        plan = schedule.planned.plan
        if is_product(plan):
            return ProductExecutable
        is_new = schedule.source and plan.assembly not in ("dense", "shared")
        return NewPatternExecutable if is_new else CudaExecutable

    def build_group(self, fused: Fused) -> base.GroupExecutable:
        return CudaGroup(fused)

    def expect(self, device: torch.device, values: torch.dtype, index: torch.dtype) -> bool:
        """Have kernels compiled that depend on dtypes alone, before a call waits for them."""
        if not torch.cuda.is_initialized() or not enabled("ahead"):  # a tensor without memory, say
            return False
        if values in AHEAD:
            with in_context(device):
                Ahead(self.usual_texts(values, index), functools.partial(_mark_of, values, index))
        return True

    def usual_texts(self, values: torch.dtype, index: torch.dtype) -> list[Text]:
        """Return what is compiled ahead, in this order: nobody waits long for the last of the routines."""
        levels, transposition, coalescing = self.routines.usual_texts(values, index)
        return [transposition, levels, product.usual_text(values, index), coalescing]

    def missing(self) -> str | None:
        return nvrtc.why_missing()

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


def _mark_of(values: torch.dtype, index: torch.dtype, architecture: str) -> str:
    """Return the key of the note that says that kernels for dtypes were compiled ahead."""
    known = sources.version(), nvrtc.identity(), architecture
    return cache.make_key("compiled ahead", *known, str(values), str(index))


def stored_as(kernel: Kernel, element: Type) -> Kernel | None:
    """Return the kernel with its result stored as ``element``; None if it reads that."""
    result = next(slot for slot in reversed(kernel.slots) if slot.name.endswith("_vals"))
    assert isinstance(result, Array)
    if any(isinstance(node, Load) and node.array == result for node in walk(kernel)):
        return None
    return with_array(kernel, result, Array(result.name, element))


def describe() -> dict[str, str]:
    """Describe what torch finds of CUDA, for ``python -m scorch env``."""
    if not torch.backends.cuda.is_built():
        return {"cuda": "none: this build of PyTorch has no CUDA"}
    if not torch.cuda.is_available():
        return {"cuda": f"{torch.version.cuda}, but no GPU is visible"}
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    found = {"cuda": str(torch.version.cuda), "gpus": f"{', '.join(names)}; compute capability {capability}"}
    missing = nvrtc.why_missing()
    return found if missing is None else {**found, "nvrtc": f"none: {missing}"}


NEEDS = base.Needs(
    "A GPU needs a CUDA build of PyTorch (https://pytorch.org/get-started), an NVIDIA driver and a visible "
    "device (CUDA_VISIBLE_DEVICES); `python -m scorch env` shows what is there",
    (
        "not compiled with CUDA",
        "no NVIDIA driver",
        "No CUDA GPUs",
        "NVIDIA driver on your system is too old",
        "accelerator device when none is available",
    ),
    ("CUDA graph capture", "stream is capturing"),
    torch.cuda.is_available,
)
base.register_needs("cuda", NEEDS)
if torch.backends.cuda.is_built():  # asks nobody: touching the driver at import would break fork
    base.register_backend("cuda", CudaBackend(), "kernels in CUDA C, compiled in this process")
