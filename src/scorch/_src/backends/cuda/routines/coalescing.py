"""Entries that repeat, added up on CUDA devices, by ``c/sort_entries.cu`` and ``c/coalesce.cu``.

The host waits once, for the number of positions, and goes on while a kernel already lists them:
arrays have room for as many positions as entries, and are copied to shorter ones only where much is left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from scorch._src.backends.by_torch.index_arrays import do_nothing
from scorch._src.backends.by_torch.rows import Tensor
from scorch._src.backends.cuda.device.builtins import Address, LaunchList, Slot
from scorch._src.backends.cuda.device.driver import in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, Launch, Text, read_text
from scorch._src.backends.cuda.device.streams import check_waiting, like_of, told_on
from scorch._src.backends.cuda.routines.entries import FEW, CudaEntries
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.sort_entries import Sorted
from scorch._src.bounded import BoundedCache
from scorch._src.loops.types import LAST_INT32

WARP = 32
MAX_DIMS = 8
BITS = 64  # of what is sorted: the coordinates of an entry, and its number
EACH = 8  # numbers of a thread in the sort of a bucket
SPREAD = 2  # numbers that a thread spreads to buckets at once
RANKED = 4  # numbers of the sample that a warp compares with all others at once
MAX_COUNTED = 1024  # buckets that the threads of a block count together
OVERSAMPLING = 14  # numbers of the sample for each bucket
FILLED = (
    5 / 16
)  # of the room of a bucket, on average; with this sample, one bucket of 10^7 needs more than all
APART = 8  # counts, that threads add to at once, from one to the next
STATES = 8
MAX_RANKED = (
    8 << 10
)  # of a sample, of which each number is compared with all; larger ones are sorted themselves
MAX_DRAWN = 4 << 10  # of a sample that each block draws for itself
# Entries, and the threads of a block that sorts a bucket if there are as many.
THREADS = ((1 << 18, 512), (1 << 16, 256), (0, 128))
FEW_THREADS = (128, 256, 512)  # of the block that sorts all entries
MAX_THREADS = 1024  # of a block
THREADS_OF_RANK = 512  # of a block that compares a sample
MAX_BLOCKS = 512  # that spread numbers to buckets; each reads all splitters first
MIN_FILLED = 0.75  # of an array that places are listed in, and that is kept as it is
MAX_KEPT = 4 << 10  # splitters in the shared memory of a block

IS_REFUSED = 1 << 62  # what the host is told instead of a number of places
MAX_PLANS = 256  # of launches, by dtypes, sizes and numbers of entries

FEW_ENTRIES = "scorch_few"  # the function that does all of it
LABEL = "entries that repeat"
# What is compiled ahead: for matrices of up to a million entries, those that take longest first.
USUAL_FUNCTIONS = "scorch_sort", "scorch_spread", "scorch_place", "scorch_rank", FEW_ENTRIES, "scorch_sample"

_NAMES = {torch.int32: "i32", torch.int64: "i64", torch.float32: "f32", torch.float64: "f64"}
_INDICES = (torch.int32, torch.int64)

Dtypes = tuple[torch.dtype, torch.dtype, torch.dtype]  # of coordinates that are given, of new ones, of values
Coalesced = tuple[Sequence[Tensor], Tensor, Tensor | None]  # coordinates, values, where they begin and end


def print_coalesce(column: torch.dtype, index: torch.dtype, T: torch.dtype, dims: int) -> str:
    """The CUDA source that lists entries once for each place."""
    words: dict[str, object] = {"COLUMN": _NAMES[column], "INDEX": _NAMES[index], "T": _NAMES[T]}
    words |= {"DIMS": dims, "FEW": FEW, "EACH": EACH, "SPREAD": SPREAD, "RANKED": RANKED}
    words |= {"OVERSAMPLING": OVERSAMPLING, "APART": APART, "MAX_COUNTED": MAX_COUNTED}
    words |= {"MAX_DRAWN": MAX_DRAWN, "IS_REFUSED": f"{IS_REFUSED}ll", "SUM": "u32"}
    lines = [f"#define {word} {meaning}" for word, meaning in words.items()]
    text = read_text("block_sums.cu", "sort_entries.cu", "coalesce.cu")
    return "\n\n".join([print_prelude(), "\n".join(lines), text])


class CudaCoalescing(CudaEntries):
    """The routines, coalescing by kernels of its own."""

    most_threads = 512  # of a block that sorts a bucket
    widest = MAX_THREADS  # of one where fewer, larger buckets spare the sort of a sample

    def __init__(self) -> None:
        super().__init__()
        self._coalesces: dict[tuple[Dtypes, int, tuple[str, ...]], CudaKernel] = {}
        self._plans: BoundedCache[tuple[Any, ...], _Plan] = BoundedCache(MAX_PLANS)

    def coalesce(
        self,
        columns: Sequence[Tensor],
        sizes: Sequence[int],
        values: Tensor,
        index: torch.dtype,
        meanwhile: Callable[[], object] = do_nothing,
    ) -> Coalesced | None:
        device, count = values.device, columns[0].numel()
        check_waiting(device, "the number of places of entries")
        with in_context(device):
            plan = self._plan_entries(columns, tuple(sizes), values, index, count)
            if plan is None:
                return None
            plain = [column.contiguous() for column in columns]
            return self._coalesce(plan, plain, values, index, meanwhile)

    def usual_texts(self, values: torch.dtype, index: torch.dtype) -> list[Text]:
        """Return the kernels that tensors with these dtypes often need, those that take longest last."""
        T = values if values in _NAMES else torch.float32
        return [Text(functools.partial(print_coalesce, torch.int64, index, T, 2), LABEL, USUAL_FUNCTIONS)]

    def _plan_entries(
        self,
        columns: Sequence[Tensor],
        sizes: tuple[int, ...],
        values: Tensor,
        index: torch.dtype,
        count: int,
    ) -> _Plan | None:
        """Return what is launched for as many entries; None without kernels, or until they are compiled."""
        device, column = values.device, columns[0].dtype
        for each in columns:
            if each.dtype != column or each.device != device:
                return None
        is_plain = values.dtype in _NAMES and values.dim() == 1 and values.is_contiguous()
        T = values.dtype if is_plain else torch.float32
        key = column, index, T, is_plain, sizes, count, device, self.most_threads
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        shifts = _shifts(column, sizes, count)
        if shifts is None or not self.has_kernels(device):
            return None
        coordinates = sizes, shifts
        fits = bytes_of_bucket(self.widest) <= self.shared_memory(device)
        threads = self.most_threads, self.widest if fits else self.most_threads
        plan = _Plan(threads, device, coordinates, count, is_plain)
        kernel = self._kernel_of_entries((column, index, T), len(sizes), plan.functions)
        if not kernel.is_ready(may_wait=False):  # torch's sort does it until then
            return None
        plan.launches = plan.with_kernel(kernel)
        self._plans[key] = plan
        return plan

    def _kernel_of_entries(self, dtypes: Dtypes, dims: int, functions: tuple[str, ...]) -> CudaKernel:
        kernel = self._coalesces.get((dtypes, dims, functions))
        if kernel is None:
            kernel = self.make_kernel(print_coalesce(*dtypes, dims), LABEL, functions)
            self._coalesces[dtypes, dims, functions] = kernel
        return kernel

    def _coalesce(
        self,
        plan: _Plan,
        columns: Sequence[Tensor],
        values: Tensor,
        index: torch.dtype,
        meanwhile: Callable[[], object],
    ) -> Coalesced | None:
        device, count = values.device, plan.count
        memory = torch.empty_like(plan.like_memory, memory_format=torch.contiguous_format)
        first_crd = torch.empty(count, dtype=index, device=device)
        crd = [first_crd, *[torch.empty_like(first_crd) for _ in columns[1:]]]  # which takes half as long
        pos = first_crd.new_empty(2)
        told = told_on(device, 1)
        if plan.is_plain:
            sums = torch.empty_like(values)
            self.launch_all(plan.launches, told.address, memory, *columns, *crd, pos, values, sums)
        else:
            order, first = _order_of(count, device)
            self.launch_all(plan.launches, told.address, memory, *columns, *crd, pos, first, order)
        meanwhile()
        (places,) = told.wait()
        if places in (0, IS_REFUSED):
            return None if places else _as_given(columns, values, index)
        for array in crd:
            array.resize_(places)
        if plan.is_plain:
            sums.resize_(places)
        if places < MIN_FILLED * count:
            crd = [array.clone() for array in crd]
        if plan.is_plain:
            return crd, sums if places >= MIN_FILLED * count else sums.clone(), pos
        return crd, self.sum_entries(Sorted(order, crd, first[:places]), values), pos


class _Numbers(NamedTuple):
    """Numbers that are sorted by blocks, as kernels take them behind coordinates."""

    entries: int
    bits: int
    source: Slot = 0
    sample: Slot = 0
    samples: int = 0
    spacing: int = 0
    buckets: int = 1
    capacity: int = 0
    splitters: Slot = 0
    stride: int = 1
    half: int = 0
    shift: int = 0
    state: Slot = 0
    before: Slot = 0
    begins: Slot = 0
    places: Slot = 0
    spread: Slot = 0
    sorted: Slot = 0
    told: Slot = 0


TOLD, MEMORY, COLUMNS = range(3)  # what ``_Plan.launches`` takes


class _Plan:
    """The launches that sort and list as many entries.

    ``launches`` takes where to tell the host of them, memory like ``like_memory``, columns, crd, pos, and two
    arrays: values and sums if ``is_plain``; otherwise those for where each place begins in the order, and for
    the order.
    """

    launches: LaunchList

    def __init__(
        self,
        threads: tuple[int, int],
        device: torch.device,
        coordinates: tuple[Sequence[int], Sequence[int]],
        count: int,
        is_plain: bool,
    ) -> None:
        (self.most_threads, self.widest), self.device = threads, device
        self.count, self.is_plain = count, is_plain
        self.sizes, self.shifts = coordinates
        self._words = 0  # of memory, 64 bits each
        self._sets: list[_Numbers] = []
        self._list: list[tuple[Launch, int]] = []
        if count <= EACH * self.most_threads:
            self._sort_few()
        else:
            sorting = self._sort(0, count, 0, Address(TOLD))
            buckets = self._sets[0].buckets
            self._launch(0, _name("scorch_place", buckets), buckets, min(MAX_THREADS, 4 * sorting))
        self.like_memory = like_of((self._words,), device, torch.int64)

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that are launched."""
        return tuple(dict.fromkeys(launch.name for launch, _ in self._list))

    def with_kernel(self, kernel: CudaKernel) -> LaunchList:
        """Return the launches of the functions of a kernel."""
        dims = len(self.sizes)
        arrays: list[Slot] = [Address(COLUMNS + number) for number in range(2 * dims + 3)]
        columns, placed, last = arrays[:dims], arrays[dims : 2 * dims + 1], arrays[2 * dims + 1 :]
        placed += [0, 0, *last] if self.is_plain else [*last, 0, 0]
        given = [*columns, *self.sizes, *self.shifts]
        nowhere: list[Slot] = [0] * len(placed)  # of a sample
        sets = [[*given, *numbers, *(nowhere if n else placed)] for n, numbers in enumerate(self._sets)]
        return LaunchList(kernel, self.device, sets, self._list)

    def _launch(self, number: int, name: str, blocks: int, threads: int, shared: int = 0) -> None:
        """Launch a function with the slots of a set, and with as many bytes of shared memory for a block."""
        self._list.append((Launch(name, blocks, threads, shared), number))

    def _take(self, *sizes: int) -> list[Address]:
        """Return where as many words of memory are."""
        starts = [*accumulate(sizes, initial=self._words)]
        self._words = starts.pop()
        return [Address(MEMORY, 8 * start) for start in starts]

    def _sort_few(self) -> None:
        threads = next(n for n in FEW_THREADS if self.count <= EACH * n)
        (at,) = self._take(self.count)
        numbers = _Numbers(self.count, self.shifts[-1], sorted=at, told=Address(TOLD))
        self._sets.append(numbers)
        self._launch(0, FEW_ENTRIES, 1, threads, bytes_of_bucket(threads))

    def _sort(self, number: int, count: int, source: Slot, told: Slot) -> int:
        """Sort entries, or a sample at ``source``, with the slots of set ``number``; return threads a block.

        The sample, unless it is small, is sorted first, in the same way.
        """
        threads = min(self.most_threads, next(n for least, n in THREADS if count >= least))
        if _samples(count, threads) > MAX_RANKED >= _samples(count, self.widest):
            threads = self.widest
        capacity, buckets, samples = EACH * threads, _buckets(count, threads), _samples(count, threads)
        begins = buckets // 2 + 1  # of 32 bits
        sizes = buckets * capacity, count, buckets, samples, (STATES + buckets * APART) // 2, begins, begins
        at = self._take(*sizes)
        numbers = _Numbers(
            count,
            self.shifts[-1],
            source,
            spread=at[0],
            sorted=at[1],
            splitters=at[2],
            sample=at[3],
            samples=samples,
            spacing=(count << 32) // samples,
            buckets=buckets,
            capacity=capacity,
            half=(1 << (buckets - 1).bit_length()) // 2,
            shift=(-(-buckets // MAX_KEPT) - 1).bit_length(),
            state=at[4],
            begins=at[5],
            places=at[6],
            told=told,
        )
        self._sets.append(numbers)
        if samples > MAX_DRAWN:
            self._launch(number, "scorch_sample", -(-samples // threads), threads)
        if samples <= MAX_RANKED:
            blocks = -(-samples // (RANKED * THREADS_OF_RANK // WARP))
            self._launch(number, "scorch_rank", blocks, THREADS_OF_RANK, 8 * samples)
        else:
            self._sort(number + 1, samples, at[3], 0)
            below = self._sets[number + 1]
            self._sets[number] = numbers._replace(
                splitters=below.sorted, stride=OVERSAMPLING, before=below.state
            )
        spreading = min(threads, self.most_threads)
        blocks = min(MAX_BLOCKS, -(-count // (SPREAD * spreading)))
        kept = 16 * (numbers.half >> numbers.shift)
        self._launch(number, _name("scorch_spread", buckets), blocks, spreading, kept)
        self._launch(number, _name("scorch_sort", buckets), buckets, threads, bytes_of_bucket(threads))
        return threads


def bytes_of_bucket(threads: int) -> int:
    """Return the bytes of shared memory that as many threads sort a bucket in."""
    return 8 * (EACH + 1) * threads


def _buckets(count: int, threads: int) -> int:
    """Return the buckets that as many numbers are spread to, where so many threads sort each."""
    return -(-count // int(FILLED * EACH * threads))


def _samples(count: int, threads: int) -> int:
    return OVERSAMPLING * _buckets(count, threads)


def _name(name: str, buckets: int) -> str:
    """Return which of two functions is for as many buckets: the threads of a block add up few, if need be."""
    return f"{name}_many" if buckets > MAX_COUNTED else name


def _order_of(entries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return memory for the order of entries, and for where each place begins in it."""
    order, first = (torch.empty(entries, dtype=torch.int64, device=device) for _ in range(2))
    return order, first


def _shifts(column: torch.dtype, sizes: Sequence[int], count: int) -> list[int] | None:
    """Return the bits below each coordinate in the number of an entry; None where it has too many."""
    if column not in _INDICES or len(sizes) > MAX_DIMS or not all(sizes):
        return None
    widths = [(size - 1).bit_length() for size in sizes]
    widths.append((count - 1).bit_length())
    shifts = [*accumulate(reversed(widths[1:]))][::-1]
    is_narrow = shifts[0] < BITS and shifts[0] + widths[0] <= BITS
    return shifts if is_narrow and 1 < count <= LAST_INT32 else None


def _as_given(columns: Sequence[Tensor], values: Tensor, index: torch.dtype) -> Coalesced:
    """Return entries that are sorted and differ; their coordinates are copied."""
    return [column.to(index, copy=True) for column in columns], values, None
