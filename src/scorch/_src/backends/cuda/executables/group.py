"""Groups of steps on a CUDA device: one kernel with a unit of threads for each row.

Where rows are much longer than others, units with short ones would wait for those, and where rows are few
and long, most of the device would: then every step is a kernel of its own, which cuts long rows or has
threads for each entry, and nothing else is between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda.device.driver import ALIGNMENT, MAX_SLOTS, in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, kernel_of
from scorch._src.backends.cuda.executables.executable import CudaExecutable
from scorch._src.backends.cuda.routines.rows import longest_row
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_cuda
from scorch._src.compiler.fuse.group import Fused, FusionError
from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.schedule.grid_facts import facts_of, is_narrow
from scorch._src.dataclass import replace
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import walk
from scorch._src.loops.grid import FUNCTIONS, WARP, Facts, Grid, as_grid, why_no_grid
from scorch._src.loops.nodes import Kernel
from scorch._src.loops.stages import as_units

MAX_EVEN_ROW = 256  # entries: rows that are no longer than this are never too long for a unit
MAX_EVENNESS = 4  # times the mean of all, too, if they are many
MIN_ROWS = 4096  # fewer units leave a part of a device idle
# Entries that a thread takes at once where a row is for less than a warp, and a thread has two to four.
# NVRTC's own choice, four, makes code that few rows reach, and takes it longer.
AT_ONCE = 2


class CudaGroup(base.GroupExecutable):
    """The kernel of a group in CUDA C, and those of its steps."""

    make_kernel: Callable[[str, str], CudaKernel] = staticmethod(kernel_of)
    kind_of_steps: type[CudaExecutable] = CudaExecutable
    slot: Callable[[torch.Tensor], Any] = staticmethod(address_of)

    def __init__(self, fused: Fused) -> None:
        super().__init__(fused)
        sizes = [index for index, _ in fused.group.sizes]
        spread, self.grid = spread_group(fused)
        if len(spread.slots) > MAX_SLOTS:
            raise FusionError(f"one kernel would take more than {MAX_SLOTS} arguments")
        self.names = [slot.name for slot in spread.slots[2 + len(sizes) :]]
        self.aligned = [self.names.index(name) for name in self.grid.aligned]
        self.row = sizes.index(fused.group.outermost)
        self.is_one_step = len(fused.planned) == 1 and bool(self.steps)
        if self.is_one_step:
            self.source, self.kernel = self.steps[0].source, self.steps[0].kernel
        else:
            at_once = AT_ONCE if self.grid.threads < WARP else None
            is_all_narrow = all(is_narrow(each.plan) for each in fused.planned)
            self.source = print_cuda(spread, is_all_narrow, at_once=at_once)
            self.kernel = self.make_kernel(self.source, self.label)
            self.how = f"{self.grid.threads} threads to a row" if self.grid.threads > 1 else ""
            if fused.group.pattern is not None:
                self.how += f"{'; ' if self.how else ''}rows much longer than others: a kernel for each step"
        if not self.kernel.is_ready():
            raise FusionError("NVRTC could not compile the fused kernel")

    def is_ready(self) -> bool:
        return True

    def run(
        self, arrays: Sequence[torch.Tensor], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        rows = sizes[self.row]
        if self.is_one_step or self._has_long_rows(arrays, rows):
            return self._run_steps(arrays, shapes)
        device = arrays[0].device
        results = [self.allocate(shape, device) for shape in shapes]
        if rows:
            for place in self.aligned:
                if (
                    place < len(arrays) and arrays[place].data_ptr() % ALIGNMENT
                ):  # a view that begins anywhere
                    arrays = [array.clone() if n == place else array for n, array in enumerate(arrays)]
            slots = [0, 1, *sizes, *map(self.slot, (*arrays, *results))]
            with in_context(device):
                self.kernel.launch(FUNCTIONS[0], slots, rows * self.grid.threads, device.index)
        return results

    def allocate(self, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=device)

    # rows that are not even

    def _has_long_rows(self, arrays: Sequence[torch.Tensor], rows: int) -> bool:
        if self.fused.group.pattern is None or not rows:
            return False
        pos, crd, *_ = arrays
        even = MAX_EVENNESS * crd.numel() // rows if rows >= MIN_ROWS else 0
        return longest_row(pos) > max(MAX_EVEN_ROW, even) and bool(self.steps)

    @functools.cached_property
    def steps(self) -> list[CudaExecutable]:
        """The steps one by one; none if one of them has no grid of its own."""
        sizes = dict(self.fused.group.sizes)
        schedules = [schedule_of_step(each) for each in self.fused.planned]
        if not all(schedule is not None for schedule in schedules):
            return []
        return [self.kind_of_steps(schedule, sizes) for schedule in schedules if schedule is not None]

    def _run_steps(
        self, arrays: Sequence[torch.Tensor], shapes: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        """Run the kernels of the steps, one after another."""
        found = dict(zip(self.names, arrays, strict=False))
        known = dict(zip(self.names[len(arrays) :], shapes, strict=True))
        for step in self.steps:
            *names, result = step.schedule.slots[len(step.header) :]
            shape = known.get(result) or self._shape_of(step, arrays)
            found[result] = step.filled([found[name] for name in names], shape)
        return [found[name] for name in known]

    def _shape_of(self, step: CudaExecutable, arrays: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Return the shape of what a step computes for others."""
        is_dense = self.fused.indices_of(step.plan.step.target.tensor) is not None
        return step.shape if is_dense else (arrays[1].numel(),)


def spread_group(fused: Fused) -> tuple[Kernel, Grid]:
    """Return the kernel of a group with its rows spread over a grid, and how."""
    assert fused.rows is not None, "a group that was planned for processors"
    return as_units(fused.rows, _facts_of_group(fused))


def schedule_of_step(planned: Planned) -> base.Schedule | None:
    """Return the schedule of one step of a group by itself; None if it is no grid."""
    kernel = _with_own_slots(planned.kernel())
    if why_no_grid(kernel):
        return None
    spread, grid = as_grid(kernel, facts_of(planned.plan))
    if len(spread.slots) > MAX_SLOTS:
        return None
    return base.schedule_of(planned, kernel, print_cuda(spread, is_narrow(planned.plan)), grid)


def _with_own_slots(kernel: Kernel) -> Kernel:
    """Return a kernel that takes the arrays it uses, its result last, whatever its plan calls them."""
    (function,) = kernel.functions
    nodes = walk(function.body)
    used = dict.fromkeys(node for node in nodes if isinstance(node, ir.Array))
    (result,) = dict.fromkeys(node.array for node in nodes if isinstance(node, ir.Store))
    sizes = [slot for slot in kernel.slots if isinstance(slot, ir.Var)]
    arrays = [array for array in used if array != result]
    slots: tuple[ir.Var | ir.Array, ...] = (*sizes, *arrays, result)
    return replace(kernel, slots=slots, functions=(replace(function, params=slots),))


def _facts_of_group(fused: Fused) -> Facts:
    """Return what is known of the loops of all steps."""
    found = [facts_of(each.plan) for each in fused.planned]
    extents: dict[str, int] = {}
    lengths: dict[str, int] = {}
    for facts in found:
        extents |= facts.extents or {}
        lengths |= facts.lengths or {}
    inexact = {index for facts in found for index in (facts.extents or {}) if index not in facts.exact}
    bytes = min(facts.bytes for facts in found)
    return Facts((), extents, lengths, extents.keys() - inexact, bytes)
