"""Groups of steps on a CUDA device: one kernel, with a unit of threads for each row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda.driver import MAX_SLOTS
from scorch._src.backends.cuda.executable import ALIGNMENT, in_context
from scorch._src.backends.cuda.facts import facts_of, is_narrow
from scorch._src.backends.cuda.kernel import CudaKernel, kernel_of
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_cuda
from scorch._src.compiler.fuse.group import Fused, FusionError
from scorch._src.loops.grid import FUNCTIONS, Facts, Grid
from scorch._src.loops.nodes import Kernel
from scorch._src.loops.stages import as_units


class CudaGroup(base.GroupExecutable):
    """The kernel of a group in CUDA C."""

    make_kernel: Callable[[str, str], CudaKernel] = staticmethod(kernel_of)

    def __init__(self, fused: Fused) -> None:
        super().__init__(fused)
        spread, self.grid = spread_group(fused)
        if len(spread.slots) > MAX_SLOTS:
            raise FusionError(f"one kernel would take more than {MAX_SLOTS} arguments")
        self.source = print_cuda(spread, all(is_narrow(each.plan) for each in fused.planned))
        self.kernel = self.make_kernel(self.source, self.label)
        if not self.kernel.is_ready():
            raise FusionError("NVRTC compiles no kernel of them here")
        names = [slot.name for slot in spread.slots[2 + len(fused.group.sizes) :]]
        self.aligned = [names.index(name) for name in self.grid.aligned]

    def is_ready(self) -> bool:
        return True

    def run(
        self, arrays: Sequence[torch.Tensor], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        device = arrays[0].device
        results = [self.allocate(shape, device) for shape in shapes]
        rows = sizes[self._row]
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

    slot: Callable[[torch.Tensor], Any] = staticmethod(address_of)

    @functools.cached_property
    def _row(self) -> int:
        """The place of the number of rows among the sizes."""
        group = self.fused.group
        return [index for index, _ in group.sizes].index(group.outermost)


def spread_group(fused: Fused) -> tuple[Kernel, Grid]:
    """Return the kernel of a group with its rows spread over a grid, and how."""
    assert fused.rows is not None, "a group that was planned for processors"
    return as_units(fused.rows, _facts_of_group(fused))


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
