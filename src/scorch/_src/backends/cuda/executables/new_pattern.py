"""Results with a new pattern: kernels that count their entries, and then fill them in (``lower.driven``)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.device.driver import in_context
from scorch._src.backends.cuda.device.kernel import Launch
from scorch._src.backends.cuda.device.streams import check_waiting
from scorch._src.backends.cuda.executables.executable import CudaExecutable
from scorch._src.backends.cuda.routines import levels
from scorch._src.backends.print.cuda import print_cuda
from scorch._src.compiler.lower.driven import COUNT, FILL, lower_driven
from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.plan import Plan
from scorch._src.compiler.schedule.choose_drivers import Drivers, drivers_of
from scorch._src.compiler.schedule.grid_facts import is_narrow
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.notation.nodes import Access

MAX_TURNS = 1 << 28  # without a nonzero to begin from
MIN_TURNS = 1 << 12  # of loops that run inside a turn: fewer would leave most of a device idle


def print_new_pattern(plan: Plan) -> str:
    """The CUDA source of a plan for a new pattern; "" where nothing drives its loops."""
    drivers = drivers_of(plan)
    if isinstance(drivers, str):
        return ""
    kernel = lower_driven(plan, drivers)
    return print_cuda(kernel, is_narrow(plan), is_apart=True) if len(kernel.slots) <= driver.MAX_SLOTS else ""


def functions_of(drivers: Drivers) -> list[str]:
    """The functions that fill in the entries of each driver, which take longer to compile, and that count."""
    return [f"{name}_{number}" for name in (FILL, COUNT) for number in range(drivers.count)]


class NewPatternExecutable(CudaExecutable):
    """Kernels that collect the entries of a result. The engine puts them together as levels."""

    direct = None
    _has_begun = False  # to have kernels compiled

    def __init__(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> None:
        drivers = drivers_of(schedule.planned.plan)
        assert isinstance(drivers, Drivers)
        self.drivers = drivers
        super().__init__(schedule, sizes)
        self.extents = dict(sizes)
        self.crds = _places_of_coordinates(self.plan)
        if self.is_needed(schedule.planned):
            self.begin()  # while operands are converted

    @classmethod
    def is_needed(cls, planned: Planned) -> bool:
        """Values of operands that share a pattern are combined on it: the engine says if they do not."""
        drivers = drivers_of(planned.plan)
        return bool(planned.conversions) or not (isinstance(drivers, Drivers) and drivers.is_located)

    @classmethod
    def first(cls, plan: Plan) -> Sequence[str]:
        drivers = drivers_of(plan)
        assert isinstance(drivers, Drivers)
        return functions_of(drivers)

    def is_ready(self) -> bool:
        """Without levels there is no result yet: ``collect`` has the kernels."""
        return False

    @property
    def collects(self) -> bool:
        return True

    def collect(self, arrays: Sequence[torch.Tensor]) -> base.Collected | None:
        turns = self._all_turns(arrays)
        if self._why_not(turns):
            return None
        self.load_sums()
        counting = [name for name in self.kernel.first if name.startswith(COUNT)]
        if not self.kernel.is_ready(needed=counting):
            return None
        device = arrays[0].device
        check_waiting(device, f"the size of {self.label}")
        with in_context(device):
            return self._collect(arrays, turns, device)

    def begin(self) -> None:
        """Have all kernels compiled: for the entries, the levels of the result, and its values."""
        if self._has_begun:
            return
        self._has_begun = True
        self.kernel.begin()  # which takes longest
        if self.drivers.is_located:
            super().begin()
        index = self.plan.index
        shape = levels.shape_of(self.plan.result, index, index)
        if shape is not None:
            text, functions = levels.print_levels(shape), levels.functions_of(shape)
            self.make_kernel(text, levels.LABEL, functions).begin()

    def _collect(
        self, arrays: Sequence[torch.Tensor], turns: Sequence[int], device: torch.device
    ) -> base.Collected:
        given = [*self.header, *self.slots(arrays)]
        for number in range(len(turns)):
            given += [turns[number], sum(turns[:number])]
        counts = self.empty(sum(turns), torch.int64, device)
        before = torch.zeros(sum(turns) + 1, dtype=torch.int64, device=device)
        given += [self.slot(counts), self.slot(before)]
        depth = len(self.plan.result)
        self._launch(COUNT, [*given, *[0] * (depth + len(self._result_dtypes))], turns, device)
        torch.cumsum(counts, 0, out=before[1:])
        count = int(before[-1])
        dtypes = [*[dtype_of_type(self.plan.index)] * depth, *self._result_dtypes]
        results = [self.empty(count, dtype, device) for dtype in dtypes]
        if count:
            self._launch(FILL, [*given, *map(self.slot, results)], turns, device)
        columns = [results[self.plan.result.order.index(dim)] for dim in range(depth)]
        found = results[depth:]
        if self.drivers.is_located:
            pairs = zip(found, self._are_full, strict=True)
            return base.Collected(columns, None, [base.Places(entry, is_full) for entry, is_full in pairs])
        return base.Collected(columns, found[0], [], self.drivers.is_sorted)

    def empty(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for as many elements."""
        return torch.empty(count, dtype=dtype, device=device)

    def _launch(self, name: str, slots: Sequence[int], turns: Sequence[int], device: torch.device) -> None:
        for number, count in enumerate(turns):
            if count:
                self.kernel.launch(f"{name}_{number}", slots, count, device.index)

    @functools.cached_property
    def _result_dtypes(self) -> list[torch.dtype]:
        """The dtypes of what is filled in besides coordinates."""
        if not self.drivers.is_located:
            return [self.dtype]
        operands = [self.plan.operand(access.tensor) for access in self.plan.step.accesses]
        return [dtype_of_type(operand.index) for operand in operands if operand.is_sparse]

    def _turns(self, access: Access, arrays: Sequence[torch.Tensor]) -> int:
        """Return the number of entries of a driver."""
        form, count = self.plan.operand(access.tensor).format, 1
        for level in range(self.drivers.depth):
            if form.levels[level].is_full:
                count *= self.extents[access.indices[form.order[level]]]
            else:
                count = arrays[self.crds[access.tensor, level]].numel()
        return count

    def _why_not(self, turns: Sequence[int]) -> str:
        """Say why the kernels are too slow for as many turns; "" if they are not."""
        if self.drivers.depth < len(self.plan.order) and sum(turns) < MIN_TURNS:
            return "too little to run in parallel"
        return "too many rows" if not self.drivers.accesses and sum(turns) > MAX_TURNS else ""

    def describe(self, call: base.Call) -> base.Description:
        order, depth = self.plan.order, self.drivers.depth
        names = " and ".join(dict.fromkeys(access.tensor for access in self.drivers.accesses))
        inner = f"one turn for each nonzero of {names}, which searches the other operands"
        if not names:
            inner = f"one turn for each {', '.join(order[:depth])}"
        inner += f"; {', '.join(order[depth:])} inside" if depth < len(order) else ""
        why = "" if call.arrays is None else self._why_not(self._all_turns(call.arrays))
        if why:
            return base.Description(inner, f"none: {why}; falls back to joins (PyTorch's sort and search)")
        how = "a CUDA thread for each turn; launches that count, then launches that fill; in between the "
        how += "host waits for the size"
        how += "; positions are cached: the next call is one kernel" if self.drivers.is_located else ""
        how += "" if self.drivers.is_sorted else "; then terms are sorted, and those of one position added up"
        said, seconds = self._cost(call)
        return base.Description(inner, f"{how}; {said}", seconds)

    def _all_turns(self, arrays: Sequence[torch.Tensor]) -> list[int]:
        if self.drivers.accesses:
            return [self._turns(access, arrays) for access in self.drivers.accesses]
        return [math.prod(self.extents[loop] for loop in self.plan.order[: self.drivers.depth])]

    def launches(self, call: base.Call) -> list[Launch]:
        if call.arrays is None:
            return []
        turns = self._all_turns(call.arrays)
        return [
            Launch(f"{name}_{number}", driver.blocks_for(count))
            for name in (COUNT, FILL)
            for number, count in enumerate(turns)
            if count
        ]


def _places_of_coordinates(plan: Plan) -> dict[tuple[str, int], int]:
    """Return which of the arrays of all operands are the coordinates of each level."""
    found: dict[tuple[str, int], int] = {}
    place = 0
    for name in dict.fromkeys(access.tensor for access in plan.step.accesses):
        form = plan.operand(name).format
        for level, kind in enumerate(form.levels):
            if not kind.is_full:
                place += form.starts_run(level)
                found[name, level] = place
                place += 1
        place += 1  # the values
    return found
