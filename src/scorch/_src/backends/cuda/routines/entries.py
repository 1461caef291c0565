"""Values of entries on CUDA devices: added up (``c/sum_runs.cu``), or searched for infinity and NaN."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from scorch._src.backends.by_torch.rows import Tensor
from scorch._src.backends.cuda.device import driver, nvrtc
from scorch._src.backends.cuda.device.builtins import CUDA, Address, LaunchList, Slot, find_launches
from scorch._src.backends.cuda.device.driver import in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, Launch, kernel_of, read_text
from scorch._src.backends.cuda.device.streams import (
    ANY_NONZERO,
    DIVISOR,
    FINITE,
    Told,
    WaitingRoutines,
    check_waiting,
    told_on,
)
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.sort_entries import Sorted, sum_short_runs
from scorch._src.bounded import BoundedCache
from scorch._src.grad_state import is_tracked_by_autograd_alone, untracked
from scorch._src.torch_internals import cuda_stream_of

is_deterministic = torch.are_deterministic_algorithms_enabled  # cuBLAS raises then, unless it is told how

WARP = 32
FEW = 64  # terms of a sum that a thread adds up
MAX_ONES, MAX_ALL_ONES = 1 << 20, 16  # ones that stay, and how many tensors of them
MAX_SEARCHING = 1 << 18  # threads that search for what is not finite

SUMS = "scorch_sum_few", "scorch_sum_many"
FIND_INFINITE = "scorch_find_infinite"
ODD, ZERO, NONZERO = 1, 2, 4  # kinds of numbers, as it knows them
CALLS = 8  # that are made before one builtin launches all
MAX_SEARCHES = 256  # that are planned, by dtype, sizes, kinds and stream

_TYPES = {torch.float32: "f32", torch.float64: "f64"}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def print_sum_runs(dtype: torch.dtype) -> str:
    """The CUDA source of sums of values."""
    words = f"#define T {_TYPES[dtype]}\n#define FEW {FEW}"
    return "\n\n".join([print_prelude(), words, read_text("sum_runs.cu")])


def print_finite(dtype: torch.dtype) -> str:
    """The CUDA source of the search for what is not finite."""
    words = f"#define T {_TYPES[dtype]}\n#define SUM u32"
    return "\n\n".join([print_prelude(), words, read_text("block_sums.cu", "finite.cu")])


class CudaEntries(WaitingRoutines):
    """The routines, those over all entries by kernels of their own."""

    make_kernel: Callable[..., CudaKernel] = staticmethod(kernel_of)
    find_builtin = staticmethod(find_launches)
    min_summed = 1 << 22

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0
        # Of the last matrices whose columns were summed, by device, stream, dtype and number.
        self._ones: BoundedCache[tuple[int, int, torch.dtype, int], Tensor] = BoundedCache(MAX_ALL_ONES)
        self._sums: dict[torch.dtype, CudaKernel] = {}
        self._finite: dict[torch.dtype, CudaKernel] = {}
        self._searches: BoundedCache[tuple[torch.dtype, int, int, int, int], LaunchList] = BoundedCache(
            MAX_SEARCHES
        )
        self._zeros: dict[tuple[str, int, int], Tensor] = {}  # by use, device and stream, 0 between calls

    def has_kernels(self, device: torch.device) -> bool:
        """Check whether kernels can run on a device."""
        return device.type == "cuda" and nvrtc.is_there()

    def place_of(self, device: torch.device) -> tuple[int, int]:
        """Return the kind of a device, as DLPack numbers it, and its number."""
        return CUDA, device.index

    def launch_all(self, launches: LaunchList, address: int, *tensors: Tensor) -> None:
        """Launch kernels, by one builtin where this has been done often."""
        if launches.builtin is None:
            self._calls += 1
            if self._calls >= CALLS:
                launches.bind(self.find_builtin(tensors[0].device), self.place_of(tensors[0].device))
        launches(address, *tensors)

    def shared_memory(self, device: torch.device) -> int:
        """Return the bytes of shared memory that a block may have."""
        return driver.shared_memory(device.index or 0)

    def are_finite(self, arrays: Sequence[Tensor]) -> bool:
        return self.ask_finite(arrays)()

    def ask_finite(self, arrays: Sequence[Tensor]) -> Callable[[], bool]:
        told = self._find(arrays, ODD, FINITE)
        return functools.partial(super().are_finite, arrays) if told is None else lambda: told.wait() == [0]

    def ask_divisor(self, array: Tensor) -> Callable[[], bool]:
        told = self._find((array,), ODD | ZERO, DIVISOR)
        return super().ask_divisor(array) if told is None else lambda: told.wait() == [0]

    def ask_nonzero(self, array: Tensor) -> Callable[[], bool]:
        told = self._find((array,), NONZERO, ANY_NONZERO)
        return super().ask_nonzero(array) if told is None else lambda: told.wait() == [1]

    def _find(self, arrays: Sequence[Tensor], kinds: int, what: str) -> Told | None:
        """Launch a search for numbers of some kinds, which tells 1 or 0; None if there is no kernel."""
        one, other = arrays[0], arrays[-1]
        dtype, device = one.dtype, one.device
        if dtype not in _TYPES or len(arrays) > 2 or not self.has_kernels(device):
            return None
        if other.dtype is not dtype or not (one.is_contiguous() and other.is_contiguous()):
            return None
        if not (_has_memory(one) and _has_memory(other)):
            return None
        check_waiting(device, what)
        with in_context(device):
            state = self.zero_on(device, "finite")
            key = dtype, one.numel(), other.numel() if len(arrays) > 1 else 0, kinds, state.data_ptr()
            search = self._searches.get(key)
            if search is None:
                search = self._search(key, device)
                if search is None:
                    return None
            told = told_on(device, 1)
            self.launch_all(search, told.address, one, other)
        return told

    def _search(self, key: tuple[torch.dtype, int, int, int, int], device: torch.device) -> LaunchList | None:
        """Return what searches two arrays of these dtype and sizes, unless there is no kernel."""
        dtype, length, other_length, kinds, state = key
        kernel = self._finite.get(dtype)
        if kernel is None:
            text = print_finite(dtype)
            kernel = self._finite[dtype] = self.make_kernel(text, "what is not finite", [FIND_INFINITE])
        if not kernel.is_ready():
            return None
        slots: list[Slot] = [Address(1), Address(2), length, other_length, kinds, state, Address(0)]
        blocks = driver.blocks_for(min(length + other_length, MAX_SEARCHING))
        search = LaunchList(kernel, device, [slots], [(Launch(FIND_INFINITE, blocks), 0)])
        self._searches[key] = search
        return search

    def zero_on(self, device: torch.device, use: str) -> Tensor:
        """Return two numbers on the current stream that are 0, and that whoever changes them makes 0 again.

        Threads of Python share streams, so that each ``use`` has its own.
        """
        stream = cuda_stream_of(device.index or 0) if device.type == "cuda" else 0
        place = use, device.index or 0, stream
        zero = self._zeros.get(place)
        if zero is None:
            with untracked():
                zero = self._zeros.setdefault(place, torch.zeros(2, dtype=torch.int32, device=device))
        return zero

    def sum_columns(self, matrix: Tensor) -> Tensor:
        """Return the sum of each column; cuBLAS takes a fifth of the time of torch's sum of a tall matrix."""
        is_plain = matrix.dtype in _TYPES and matrix.is_contiguous() and matrix.numel() > 0
        if not is_plain or torch.is_autocast_enabled(matrix.device.type) or is_deterministic():
            return super().sum_columns(matrix)
        return torch.mv(matrix.T, self._ones_for(matrix))

    def _ones_for(self, matrix: Tensor) -> Tensor:
        """Return a one for each row; they stay for the next matrix, unless a graph is captured or traced."""
        count = matrix.shape[0]
        if count > MAX_ONES or not is_tracked_by_autograd_alone():
            return matrix.new_ones(count)
        if matrix.is_cuda and torch.cuda.is_current_stream_capturing():
            return matrix.new_ones(count)
        number = matrix.get_device()
        place = number, cuda_stream_of(number) if matrix.is_cuda else 0, matrix.dtype, count
        ones = self._ones.get(place)
        if ones is None:
            with untracked():
                ones = self._ones[place] = torch.ones(count, dtype=matrix.dtype, device=matrix.device)
        return ones

    def sum_entries(self, found: Sorted, values: Tensor) -> Tensor:
        order, first, device = found.order, found.first, values.device
        is_able = values.dtype in _TYPES and order.dtype == torch.int64 and self.has_kernels(device)
        if first is None or not is_able or not values.numel():
            return super().sum_entries(found, values)
        with in_context(device):
            kernel = self._sums.get(values.dtype)
            if kernel is None:
                kernel = self.make_kernel(print_sum_runs(values.dtype), "sums of entries", SUMS)
                self._sums[values.dtype] = kernel
            if not kernel.is_ready(may_wait=False):
                sums = sum_short_runs(values, order, first)
                if sums is not None:
                    return sums
            if not kernel.is_ready():
                return super().sum_entries(found, values)
            return _sum(kernel, values.contiguous(), order, first)


def _has_memory(array: Tensor) -> bool:
    """Check whether the numbers of an array are at its address, which those of a subclass may not be."""
    return type(array) in _PLAIN and not array._is_zerotensor()


def _sum(kernel: CudaKernel, values: Tensor, order: Tensor, first: Tensor) -> Tensor:
    places, device = first.numel(), values.device.index
    sums = values.new_empty(places, *values.shape[1:])
    width = sums.numel() // places
    large = first.new_zeros(order.numel() // FEW * width + 1)
    numbers = places, order.numel(), width
    slots = [*map(address_of, (values, order, first)), *numbers, *map(address_of, (sums, large))]
    kernel.launch("scorch_sum_few", slots, sums.numel(), device)
    if large.numel() > 1:
        kernel.launch("scorch_sum_many", slots, (large.numel() - 1) * WARP, device)
    return sums
