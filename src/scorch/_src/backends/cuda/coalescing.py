"""Entries that repeat, added up on CUDA devices, by ``c/sort_entries.cu`` and ``c/coalesce.cu``.

The host waits once, for the number of positions, and goes on while a kernel already lists them:
arrays have room for as many positions as entries, and are copied to shorter ones only where much is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from scorch._src.backends.cuda.driver import Slots
from scorch._src.backends.cuda.entries import FEW, CudaEntries
from scorch._src.backends.cuda.executable import in_context
from scorch._src.backends.cuda.kernel import CudaKernel, read_text
from scorch._src.backends.cuda.streams import check_waiting, told_on
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.routines import Tensor, do_nothing
from scorch._src.backends.sort_entries import Sorted
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
# Entries, and the threads of a block that sorts a bucket if there are as many.
THREADS = ((1 << 18, 512), (1 << 16, 256), (0, 128))
MAX_THREADS = 1024  # of a block
THREADS_OF_RANK = 512  # of a block that compares a sample
MAX_BLOCKS = 512  # that spread numbers to buckets; each reads all splitters first
MIN_FILLED = 0.75  # of an array that places are listed in, and that is kept as it is
MAX_KEPT = 4 << 10  # splitters in the shared memory of a block

FUNCTIONS = [f"scorch_{name}" for name in ("sample", "rank", "spread", "sort", "place")]

_NAMES = {torch.int32: "i32", torch.int64: "i64", torch.float32: "f32", torch.float64: "f64"}
_INDICES = (torch.int32, torch.int64)

Dtypes = tuple[torch.dtype, torch.dtype, torch.dtype]  # of coordinates that are given, of new ones, of values
Coalesced = tuple[Sequence[Tensor], Tensor, Tensor | None]  # coordinates, values, where they begin and end


def print_coalesce(column: torch.dtype, index: torch.dtype, T: torch.dtype, dims: int) -> str:
    """The CUDA source that lists entries once for each place."""
    words: dict[str, object] = {"COLUMN": _NAMES[column], "INDEX": _NAMES[index], "T": _NAMES[T]}
    words |= {"DIMS": dims, "FEW": FEW, "EACH": EACH, "SPREAD": SPREAD, "RANKED": RANKED}
    words |= {"OVERSAMPLING": OVERSAMPLING, "APART": APART, "MAX_COUNTED": MAX_COUNTED}
    words["SUM"] = "u32"
    lines = [f"#define {word} {meaning}" for word, meaning in words.items()]
    text = read_text("block_sums.cu", "sort_entries.cu", "coalesce.cu")
    return "\n\n".join([print_prelude(), "\n".join(lines), text])


class CudaCoalescing(CudaEntries):
    """The routines, coalescing by kernels of its own."""

    most_threads = 512  # of a block that sorts a bucket

    def __init__(self) -> None:
        super().__init__()
        self._coalesces: dict[tuple[Dtypes, int], CudaKernel] = {}

    def coalesce(
        self,
        columns: Sequence[Tensor],
        sizes: Sequence[int],
        values: Tensor,
        index: torch.dtype,
        meanwhile: Callable[[], object] = do_nothing,
    ) -> Coalesced | None:
        device = values.device
        check_waiting(device, "the number of places of entries")
        shifts = _shifts(columns, sizes, device)
        if shifts is None or not self.has_kernels(device):
            return None
        T = values.dtype if values.dtype in _NAMES else torch.float32
        dtypes = columns[0].dtype, index, T
        with in_context(device):
            kernel = self._coalesces.get((dtypes, len(columns)))
            if kernel is None:
                text = print_coalesce(*dtypes, len(columns))
                kernel = self.make_kernel(text, "entries that repeat", FUNCTIONS)
                self._coalesces[dtypes, len(columns)] = kernel
            if not kernel.is_ready(may_wait=False):  # torch's sort does it until then
                return None
            plain = [column.contiguous() for column in columns]
            coordinates = [*map(address_of, plain), *sizes, *shifts]
            sort = _Sort(kernel, self.most_threads, device, coordinates, shifts[-1])
            is_plain = values.dtype == T and values.dim() == 1 and values.is_contiguous()
            return self._coalesce(sort, plain, values, index, is_plain, meanwhile)

    def _coalesce(
        self,
        sort: _Sort,
        columns: Sequence[Tensor],
        values: Tensor,
        index: torch.dtype,
        is_plain: bool,
        meanwhile: Callable[[], object],
    ) -> Coalesced | None:
        device, entries = values.device, len(columns[0])
        first_crd = torch.empty(entries, dtype=index, device=device)
        crd = [first_crd, *(torch.empty_like(first_crd) for _ in columns[1:])]  # which takes half as long
        pos = torch.empty(2, dtype=index, device=device)
        sums = values.new_empty(entries if is_plain else 0)
        told = told_on(device, 4)
        listed = [array.data_ptr() for array in (*crd, pos)]
        if is_plain:
            numbers = sort(entries, told.address, [*listed, 0, 0, address_of(values), sums.data_ptr()])
        else:
            order, first = sort.order_of(entries)
            numbers = sort(entries, told.address, [*listed, address_of(first), address_of(order), 0, 0])
        meanwhile()
        is_refused, is_unsorted, is_long, places = told.wait()
        if is_refused or not is_unsorted:
            return None if is_refused else _as_given(columns, values, index)
        if is_plain and is_long:
            order, first = sort.order_of(entries)
            sort.place(numbers, [*listed, address_of(first), address_of(order), 0, 0])
        is_filled = places >= MIN_FILLED * entries
        kept = [array.resize_(places) for array in ((*crd, sums) if is_plain and not is_long else crd)]
        if not is_filled:
            kept = [array.clone() for array in kept]
        if is_plain and not is_long:
            return kept[:-1], kept[-1], pos
        return kept, self.sum_entries(Sorted(order, kept, first[:places]), values), pos


class _Numbers(NamedTuple):
    """Numbers that are sorted by blocks of ``threads``, as kernels take them: addresses into ``memory``."""

    memory: Tensor
    threads: int
    entries: int
    bits: int
    source: int
    sample: int
    samples: int
    buckets: int
    capacity: int
    splitters: int
    stride: int
    half: int
    shift: int
    state: int
    before: int
    begins: int
    places: int
    spread: int
    sorted: int
    told: int


class _Sort:
    """The launches that sort entries by ``coordinates``, the slots that report them."""

    def __init__(
        self,
        kernel: CudaKernel,
        most_threads: int,
        device: torch.device,
        coordinates: Sequence[int],
        bits: int,
    ) -> None:
        self.kernel, self.most_threads, self.device = kernel, most_threads, device
        self.coordinates, self.bits = coordinates, bits
        self.unplaced = [0] * (len(coordinates) // 3 + 5)

    def __call__(self, count: int, told: int, placed: Sequence[int]) -> _Numbers:
        """Sort entries, and list their positions at ``placed``; ``told`` receives their number."""
        numbers, slots = self._sort(self._allocate(count, 0, told), placed)
        self._place(numbers, slots)
        return numbers

    def _sort(self, numbers: _Numbers, placed: Sequence[int]) -> tuple[_Numbers, Slots]:
        """Sort numbers, whose sample, unless it is small, is sorted first."""
        threads, samples = numbers.threads, numbers.samples
        if 0 < samples <= MAX_RANKED:
            slots = self._slots(numbers, placed)
            blocks = -(-samples // (RANKED * THREADS_OF_RANK // WARP))
            self._launch("scorch_rank", slots, blocks, THREADS_OF_RANK, 8 * samples)
        else:
            drawn = self._slots(numbers, placed)
            self._launch("scorch_sample", drawn, -(-max(samples, numbers.buckets) // threads), threads)
            if samples:
                sample, _ = self._sort(self._allocate(samples, numbers.sample, 0), self.unplaced)
                numbers = numbers._replace(splitters=sample.sorted, stride=OVERSAMPLING, before=sample.state)
            slots = self._slots(numbers, placed) if samples else drawn
        blocks = min(MAX_BLOCKS, -(-numbers.entries // (SPREAD * threads)))
        self._launch("scorch_spread", slots, blocks, threads, 16 * (numbers.half >> numbers.shift))
        self._launch("scorch_sort", slots, numbers.buckets, threads, 8 * (EACH + 1) * threads)
        return numbers, slots

    def _allocate(self, count: int, source: int, told: int) -> _Numbers:
        threads = min(self.most_threads, next((n for least, n in THREADS if count >= least)))
        capacity = EACH * threads
        buckets = 1 if count <= capacity else -(-count // int(FILLED * capacity))
        samples = OVERSAMPLING * buckets if buckets > 1 else 0
        state, begins = (STATES + buckets * APART) // 2, buckets // 2 + 1  # of 32 bits
        sizes = [buckets * capacity, count, buckets, samples, state, begins, begins]
        memory = torch.empty(sum(sizes), dtype=torch.int64, device=self.device)
        at = [memory.data_ptr() + 8 * before for before in accumulate(sizes[:-1], initial=0)]
        return _Numbers(
            memory,
            threads,
            count,
            self.bits,
            source,
            sample=at[3],
            samples=samples,
            buckets=buckets,
            capacity=capacity,
            splitters=at[2],
            stride=1,
            half=(1 << (buckets - 1).bit_length()) // 2,
            shift=(-(-buckets // MAX_KEPT) - 1).bit_length(),
            state=at[4],
            before=0,
            begins=at[5],
            places=at[6],
            spread=at[0],
            sorted=at[1],
            told=told,
        )

    def _slots(self, numbers: _Numbers, placed: Sequence[int]) -> Slots:
        return Slots((*self.coordinates, *numbers[2:], *placed))

    def _launch(self, name: str, slots: Slots, blocks: int, threads: int, shared: int = 0) -> None:
        """Run a function with as many blocks, each with as many bytes of shared memory."""
        self.kernel.launch_blocks(name, slots, blocks, threads, shared, self.device.index)

    def place(self, numbers: _Numbers, placed: Sequence[int]) -> None:
        """List the positions of sorted entries once more, at ``placed``."""
        self._place(numbers, self._slots(numbers, placed))

    def _place(self, numbers: _Numbers, slots: Slots) -> None:
        self._launch("scorch_place", slots, numbers.buckets, min(MAX_THREADS, 4 * numbers.threads))

    def order_of(self, entries: int) -> tuple[Tensor, Tensor]:
        """Return memory for the order of entries, and for where each place begins in it."""
        order, first = (torch.empty(entries, dtype=torch.int64, device=self.device) for _ in range(2))
        return order, first


def _shifts(columns: Sequence[Tensor], sizes: Sequence[int], device: torch.device) -> list[int] | None:
    """Return the bits below each coordinate in the number of an entry; None where it has too many."""
    first, count = columns[0], columns[0].numel()
    is_plain = all(column.dtype == first.dtype and column.device == device for column in columns)
    if not is_plain or first.dtype not in _INDICES or len(columns) > MAX_DIMS or not all(sizes):
        return None
    widths = [(size - 1).bit_length() for size in sizes]
    widths.append((count - 1).bit_length())
    shifts = [*accumulate(reversed(widths[1:]))][::-1]
    is_narrow = shifts[0] < BITS and shifts[0] + widths[0] <= BITS
    return shifts if is_narrow and 1 < count <= LAST_INT32 else None


def _as_given(columns: Sequence[Tensor], values: Tensor, index: torch.dtype) -> Coalesced:
    """Return entries that are sorted and differ; their coordinates are copied."""
    return [column.to(index, copy=True) for column in columns], values, None
