"""Kernels on a CUDA device, each one grid; steps that are none run by joins in torch's operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.device.builtins import CUDA, find_builtin
from scorch._src.backends.cuda.device.cost import describe_cost
from scorch._src.backends.cuda.device.driver import ALIGNMENT, in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, Launch, kernel_of
from scorch._src.backends.cuda.device.streams import like_of
from scorch._src.backends.cuda.executables.direct import MAX_SHAPES, CudaCall
from scorch._src.backends.cuda.executables.pointwise import EVERYWHERE, SAME, SOMEWHERE, print_pointwise
from scorch._src.backends.cuda.routines.rows import Parts, joined_pos, parts_of, row_of_entry
from scorch._src.backends.launcher import address_of
from scorch._src.compiler import lattice
from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.plan import Plan
from scorch._src.compiler.schedule.choose_drivers import drivers_of
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.grad_state import untracked
from scorch._src.loops.grid import FUNCTIONS, WARP, Grid, describe_grid, why_no_grid
from scorch._src.loops.types import INT64
from scorch.errors import KernelError

SMALL = (
    1 << 20
)  # bytes of a result of which one is allocated to learn how; torch then looks at fewer arguments


class Bound(NamedTuple):
    """What calls on a pattern launch, one grid after the other, and the slots behind that of the result.

    ``sums``: how many sums the first grid leaves for the next one, in memory whose slot is between those
    ``before`` and ``behind``.
    """

    grids: Sequence[Launch]
    before: Sequence[Any]
    behind: Sequence[Any] = ()
    sums: int = 0


class CudaExecutable(base.Executable):
    """A kernel that fills values of a known sparsity pattern. Without a text there is none, and joins run."""

    slot: Callable[[torch.Tensor], Any] = staticmethod(address_of)  # how a kernel takes an array

    def slots(self, arrays: Sequence[torch.Tensor]) -> list[Any]:
        """Return what stands for arrays in argument slots."""
        addresses = [array.data_ptr() for array in arrays]
        return addresses if all(addresses) else [address_of(array) for array in arrays]

    make_kernel: Callable[..., CudaKernel] = staticmethod(kernel_of)
    find_builtin: Callable[[torch.device], Callable[..., Any] | None] = staticmethod(find_builtin)
    can_combine = True
    takes_addresses = True  # whether that is the address of an array

    def __init__(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> None:
        super().__init__(schedule, sizes)
        self.kernel = self.kernel_of(schedule)
        self._pointwise: dict[Hashable, CudaKernel] = {}
        self._likes: dict[Any, torch.Tensor] = {}  # tensors of one element, by shape and device
        self._is_refused = False
        self.grid = grid = schedule.grid or Grid()
        if grid.is_stored_narrow and schedule.planned.stored is not None:
            self.result_dtype = dtype_of_type(schedule.planned.stored)
        self.header = [0, 1, *self.sizes]
        arrays = schedule.slots[len(self.header) :]
        self.aligned = [arrays.index(name) for name in grid.aligned if name in arrays[:-1]]
        self.pos = arrays.index(grid.pos) if grid.pos else -1
        self.below = [arrays.index(name) for name in grid.below]
        self.listed = arrays.index(grid.listed) if grid.listed else -1
        self.parents = [arrays.index(name) for name in grid.parents]
        known = (self.pos, *self.below, *self.parents, self.listed)
        self.pattern_places = sorted({place for place in known if place >= 0})
        self.columns = sizes[grid.column] if grid.column else 1
        tiles = -(-self.columns // (grid.threads * grid.each)) if grid.column else 1
        self.threads_of_row = tiles * grid.threads
        self.threads_of_part = tiles * grid.part_threads
        self.threads_of_long_row = (
            -(-self.columns // grid.combined) * grid.part_threads if grid.column else WARP
        )
        entries = len(self.parents) + 1 if self.parents else 0  # slots: the rows of each, and their number
        self.padding = [0] * (grid.added_slots - entries)

    @classmethod
    def first(cls, plan: Plan) -> Sequence[str]:
        """Return the functions that a call needs, of a text of which they are parts."""
        return ()

    @classmethod
    def is_needed(cls, planned: Planned) -> bool:
        """Check whether the plan alone says that its kernel will be called."""
        return True

    @classmethod
    def kernel_of(cls, schedule: base.Schedule) -> CudaKernel:
        """Return the kernel of a schedule, which all that have it share."""
        plan = schedule.planned.plan
        return cls.make_kernel(schedule.source, base.label_of(plan), cls.first(plan))

    def is_ready(self) -> bool:
        return self.kernel.is_ready()

    @property
    def is_at_work(self) -> bool:
        return self.kernel.is_at_work

    @functools.cached_property
    def direct(self) -> base.Direct | None:
        return CudaCall(self) if self.is_ready() else None

    def launcher(self, grids: Sequence[Launch], slots: int, device: int) -> Callable[..., None]:
        """Return a function that launches kernels one after the other; it takes as many slots."""
        place = torch.device("cuda", device)
        launched = [(self.function_on(place, grid.name), grid.blocks) for grid in grids]
        return driver.launcher(launched, slots, device)

    def function_on(self, device: torch.device, name: str) -> Any:
        """Return a kernel as it is loaded on a device."""
        with in_context(device):
            return self.kernel.function(name, device.index)

    def place_of(self, device: torch.device) -> tuple[int, int]:
        """Return the kind of a device, as DLPack has it, and its number."""
        return CUDA, device.index

    def allocator(
        self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
    ) -> Callable[[], torch.Tensor]:
        """Return a function that allocates a result, or what its kernels leave for each other."""
        if math.prod(shape) * dtype.itemsize <= SMALL:
            with untracked():
                like = torch.empty(shape, dtype=dtype, device=device)
            like.untyped_storage().resize_(0)  # of which only the form is needed
            return functools.partial(torch.empty_like, like)
        like = like_of(shape, device, dtype)
        return functools.partial(torch.empty_like, like, memory_format=torch.contiguous_format)

    def allocator_of_sums(self, bound: Bound, device: torch.device) -> Callable[[], torch.Tensor] | None:
        """Return a function that allocates what the first grid leaves for the next one, if there is one."""
        return self.allocator((bound.sums,), device, self.dtype) if bound.sums else None

    def fill(self, arrays: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        return self.filled(arrays, (count,))

    def filled(self, arrays: Sequence[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        """Compute the values of a result in a tensor of a shape."""
        device = arrays[0].device
        values = self.allocate(shape, device, self.result_dtype)
        if not self.writes_everything:
            values.fill_(self.identity)
        count = values.numel()
        if not count:
            return values
        if device.index is None or driver.is_current(device.index):
            self._run(arrays, values, count, device)
        else:
            with torch.cuda.device(device):
                self._run(arrays, values, count, device)
        return values

    def _run(
        self, arrays: Sequence[torch.Tensor], values: torch.Tensor, count: int, device: torch.device
    ) -> None:
        """Launch the kernel; where rows are cut, one for all parts and one that puts them together."""
        slot, number = self.slot, device.index
        for place in self.aligned:
            if arrays[place].data_ptr() % ALIGNMENT:  # a view that begins anywhere
                arrays = [array.clone() if n == place else array for n, array in enumerate(arrays)]
        bound = self.bind(arrays, count)
        slots = [*self.header, *self.slots(arrays), slot(values), *bound.before]
        sums = self.allocate((bound.sums,), device) if bound.sums else None
        slots += bound.behind if sums is None else [slot(sums), *bound.behind]
        for grid in bound.grids:
            self.kernel.launch(grid.name, slots, grid.blocks * grid.threads, number)

    def bind(self, arrays: Sequence[torch.Tensor], count: int) -> Bound:
        """Return what a call that computes as many values launches.

        Where long rows are cut, a grid adds up parts of rows, and another puts those of long rows together.
        """
        parts = self.parts(arrays)
        if parts is None:
            blocks = driver.blocks_for(self.threads_of(count, arrays))
            return Bound([Launch(FUNCTIONS[0], blocks)], [*self._slots_of_parents(arrays), *self.padding])
        below = (row_of_entry(arrays[place]) for place in self.below)
        before = map(self.slot, (*below, parts.row, parts.start, parts.stop))
        behind = map(self.slot, (parts.long_row, parts.long_first))
        return Bound(
            [*self._launches_of(parts)],
            [*self._slots_of_parents(arrays), *before],
            [*behind, parts.count, parts.cut, parts.long],
            parts.cut * self.columns,
        )

    def _slots_of_parents(self, arrays: Sequence[torch.Tensor]) -> list[Any]:
        rows = [row_of_entry(arrays[place]) for place in self.parents]
        return [*map(self.slot, rows), rows[0].numel()] if rows else []

    def allocate(
        self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """Return memory for values; to name dtype and device takes torch twice as long."""
        like = self._likes.get((shape, device, dtype))
        if like is None:
            like = like_of(shape, device, dtype or self.dtype)
            if len(self._likes) < MAX_SHAPES:
                self._likes[shape, device, dtype] = like
        return torch.empty_like(like, memory_format=torch.contiguous_format)

    def load_sums(self) -> None:
        """Have torch load its kernels that sum counts, as it does at their first use, while NVRTC works."""
        if self.kernel.is_at_work and not torch.cuda.is_current_stream_capturing():
            torch.cumsum(torch.zeros(1, dtype=torch.int64, device="cuda"), 0)

    def begin(self) -> None:
        kinds = tuple([EVERYWHERE if is_full else SOMEWHERE for is_full in self._are_full])
        self._pointwise_kernel(kinds, self.plan.index == INT64).begin()

    @functools.cached_property
    def _are_full(self) -> list[bool]:
        """Which sparse operands have an entry wherever the result has one."""
        sparse = [access for access in self.plan.step.accesses if self.plan.operand(access.tensor).is_sparse]
        required = lattice.required(lattice.support_by(self.plan.step.body, sparse))
        return [access in required for access in sparse]

    def combine(
        self,
        places: Sequence[base.Places],
        values: Sequence[torch.Tensor],
        count: int,
        columns: Sequence[torch.Tensor] = (),
        dense: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor | None:
        device = values[0].device
        numbers = [known.entries for known in places if known.entries is not None]
        kinds = tuple(
            SAME if known.entries is None else EVERYWHERE if known.is_full else SOMEWHERE for known in places
        )
        is_wide = bool(numbers) and numbers[0].dtype == torch.int64
        kernel = self._pointwise_kernel(kinds, is_wide)
        if not kernel.is_ready():
            return None
        result = self.allocate((count,), device)
        if count:
            arrays = [*numbers, *values, *columns, *dense, result]
            slots = [count, *self.shape, *map(self.slot, arrays)]
            with in_context(device):
                kernel.launch(FUNCTIONS[0], slots, count, device.index)
        return result

    def _pointwise_kernel(self, kinds: tuple[str, ...], is_wide: bool) -> CudaKernel:
        kernel = self._pointwise.get((kinds, is_wide))
        if kernel is None:
            sparse = [a for a in self.plan.step.accesses if self.plan.operand(a.tensor).is_sparse]
            text = print_pointwise(self.plan, dict(zip(sparse, kinds, strict=True)), is_wide)
            kernel = self._pointwise[kinds, is_wide] = self.make_kernel(text, self.label)
        return kernel

    def describe(self, call: base.Call) -> base.Description:
        said, seconds = self._cost(call)
        return base.Description(describe_grid(self.plan.order, self.grid), f"{self._how()}; {said}", seconds)

    def _how(self) -> str:
        """Say which way the step takes, and why no better one."""
        if self.source:
            return f"a grid of CUDA threads, {self.grid.threads} to a unit"
        if self.plan.assembly in ("dense", "shared"):
            why = why_no_grid(self.schedule.planned.kernel())
            return f"none: {why}; falls back to joins (PyTorch's sort and search)"
        found = drivers_of(self.plan)
        why = found if isinstance(found, str) else "its kernels would take too many arguments"
        return (
            f"sparsity pattern by joins (PyTorch's sort and search): {why}; cached for elementwise operands; "
            "then a grid of CUDA threads computes values"
        )

    def _cost(self, call: base.Call) -> tuple[str, float | None]:
        """Say what the kernel takes of the device, where there is one, and the seconds."""
        kernel = self.kernel if self.source else next(iter(self._pointwise.values()), self.kernel)
        return describe_cost(kernel, self.launches(call), call)

    def launches(self, call: base.Call) -> list[Launch]:
        """Return what a call launches; where operands are converted first, as if no row were long."""
        if not self.source:
            is_known = any(kernel.source for kernel in self._pointwise.values())
            return [Launch(FUNCTIONS[0], driver.blocks_for(call.count))] if is_known else []
        parts = None if call.arrays is None else self.parts(call.arrays)
        if parts is None:
            threads = self.threads_of(call.count, call.arrays)
            return [Launch(FUNCTIONS[0], driver.blocks_for(threads))]
        return [*self._launches_of(parts)]

    def threads_of(self, count: int, arrays: Sequence[torch.Tensor] | None) -> int:
        """Return the threads that compute as many values."""
        turns = -(-count // self.columns)
        if arrays is not None and self.parents:
            turns = row_of_entry(arrays[self.parents[0]]).numel()
        elif arrays is not None and self.grid.listed:
            turns = arrays[self.listed].numel()
        return turns * self.threads_of_row

    def parts(self, arrays: Sequence[torch.Tensor]) -> Parts | None:
        """Return the parts that long rows are cut into, if some are."""
        if self.pos < 0:
            return None
        pos = arrays[self.pos]
        if self.below:
            pos = joined_pos(pos, [arrays[place] for place in self.below])
        return parts_of(pos, self.grid.part_threads, self.grid.is_few)

    def _launches_of(self, parts: Parts) -> Iterator[Launch]:
        """Return the grid that sums up parts of rows, and the one that puts them together."""
        threads = parts.count * self.threads_of_part, parts.long * self.threads_of_long_row
        for name, number in zip(FUNCTIONS[1:], threads, strict=True):
            yield Launch(name, driver.blocks_for(number))

    def build(self, arrays: Sequence[torch.Tensor], check: base.Check, bound: int = 0) -> base.Arrays:
        raise KernelError(f"no CUDA kernel is available for {self.label}")
