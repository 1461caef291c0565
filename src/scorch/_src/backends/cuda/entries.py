"""Entries sorted and added up on CUDA devices: ``c/entries.cu`` and ``c/sum_runs.cu``.

What has no kernel is sorted by torch: more buckets than there is memory for, buckets with very many entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from scorch._src.backends.cuda import driver, nvrtc
from scorch._src.backends.cuda.executable import in_context
from scorch._src.backends.cuda.kernel import CudaKernel
from scorch._src.backends.cuda.streams import WaitingRoutines, check_waiting
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.routines import Sorted, Tensor
from scorch._src.loops.types import LAST_INT32

THREADS, MANY_THREADS = 128, 1024  # of blocks
WARPS = THREADS // 32
FEW = 512  # entries that a warp sorts
KEY_BYTES = 8
MAX_LARGEST = 1 << 14  # entries that a block sorts
MAX_BLOCKS, MAX_MANY_BLOCKS = 1 << 16, 264
FEW_TERMS = 64  # of a sum that a thread adds up
BUCKETS_OF_ENTRY = 8  # at most, or MIN_BUCKETS
MIN_BUCKETS = 1 << 16
UNSORTED, TOO_LARGE = 1, 2

_INDICES = {torch.int32: "i32", torch.int64: "i64"}
_NUMBERS = {torch.float32: "f32", torch.float64: "f64"}


def print_entries(index: torch.dtype) -> str:
    """The CUDA source of what sorts entries with coordinates of a dtype."""
    return _print("entries.cu", {"INDEX": _INDICES[index], "WARPS": WARPS, "FEW": FEW})


def print_sum_runs(dtype: torch.dtype, order: torch.dtype) -> str:
    """The CUDA source of what adds up entries."""
    return _print("sum_runs.cu", {"T": _NUMBERS[dtype], "ORDER": _INDICES[order], "FEW": FEW_TERMS})


def _print(name: str, words: dict[str, str | int]) -> str:
    text = (Path(__file__).parent / "c" / name).read_text(encoding="utf-8")
    lines = [f"#define {word} {meaning}" for word, meaning in words.items()]
    return "\n\n".join([print_prelude(), "\n".join(lines), text])


class CudaEntries(WaitingRoutines):
    """The routines, those that sort entries by kernels of their own."""

    make_kernel: Callable[[str, str], CudaKernel] = CudaKernel

    def __init__(self) -> None:
        super().__init__()
        self._sorting: dict[tuple[torch.dtype, ...], CudaKernel] = {}

    def has_kernels(self, device: torch.device) -> bool:
        """Check whether kernels can run on a device."""
        return device.type == "cuda" and nvrtc.is_there()

    def shared_memory(self, device: torch.device) -> int:
        """Return the bytes of shared memory that a block may have."""
        return driver.shared_memory(device.index or 0)

    def transpose_rows(self, pos: Tensor, crd: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        if self._can_sort(crd, columns) and pos.dtype == crd.dtype and pos.is_contiguous():
            with in_context(crd.device):
                found = _Buckets(self, crd, None, pos, columns).sorted()
            if isinstance(found, _Buckets):
                assert found.row is not None
                return found.begins.to(pos.dtype), found.row, found.order
        return super().transpose_rows(pos, crd, columns)

    def sort_entries(self, columns: Sequence[Tensor], sizes: Sequence[int]) -> Sorted | bool:
        first, *others = columns
        if not others or math.prod(sizes[1:]) > LAST_INT32 or not self._can_sort(first, sizes[0]):
            return super().sort_entries(columns, sizes)
        minor = others[0]
        for column, size in zip(others[1:], sizes[2:], strict=True):
            minor = minor * size + column
        with in_context(first.device):
            found = _Buckets(self, first, minor.contiguous(), None, sizes[0]).sorted()
            if found is None:
                return super().sort_entries(columns, sizes)
            if isinstance(found, bool):
                return found
            order = found.order
            begin = found.marked().nonzero().squeeze(1)
        if begin.numel() == order.numel():
            return Sorted(order, [column[order] for column in columns])
        chosen = order[begin]
        return Sorted(order, [column[chosen] for column in columns], begin)

    def sum_entries(self, found: Sorted, values: Tensor) -> Tensor:
        order, first = found.order, found.first
        if first is None or values.dtype not in _NUMBERS or not self.has_kernels(values.device):
            return super().sum_entries(found, values)
        kernel = self.kernel_for(values.dtype, order.dtype)
        if not values.numel() or not kernel.is_ready():
            return super().sum_entries(found, values)
        values, places = values.contiguous(), first.numel()
        sums = values.new_empty(places, *values.shape[1:])
        width = sums.numel() // places
        large = first.new_zeros(order.numel() // FEW_TERMS * width + 1)
        numbers = places, order.numel(), width
        given = [*map(address_of, (values, order, first)), *numbers, *map(address_of, (sums, large))]
        device = values.device
        with in_context(device):
            kernel.launch("scorch_sum_few", given, sums.numel(), device.index)
            if large.numel() > 1:
                kernel.launch("scorch_sum_many", given, (large.numel() - 1) * 32, device.index)
        return sums

    def kernel_for(self, dtype: torch.dtype, order: torch.dtype | None = None) -> CudaKernel:
        """Return what sorts entries with coordinates of a dtype, or sums values of one in an order."""
        key = (dtype,) if order is None else (dtype, order)
        known = self._sorting.get(key)
        if known is None:
            text = print_entries(dtype) if order is None else print_sum_runs(dtype, order)
            known = self._sorting[key] = self.make_kernel(text, "entries in order")
        return known

    def _can_sort(self, bucket: Tensor, buckets: int) -> bool:
        entries = bucket.numel()
        is_small = entries <= LAST_INT32 and buckets <= max(MIN_BUCKETS, BUCKETS_OF_ENTRY * entries)
        is_plain = bucket.dtype in _INDICES and bucket.is_contiguous()
        return bool(entries) and is_small and is_plain and self.has_kernels(bucket.device)


class _Buckets:
    """Entries in buckets, sorted by the number ``minor``, or staying in order.

    With ``pos`` it finds the ``row`` of each entry: that of rows which begin there.
    """

    def __init__(
        self, routines: CudaEntries, bucket: Tensor, minor: Tensor | None, pos: Tensor | None, buckets: int
    ) -> None:
        self.device, entries = bucket.device, bucket.numel()
        self.kernel = routines.kernel_for(bucket.dtype)
        self.given = (bucket, minor, pos)
        self.row = None if pos is None else torch.empty_like(bucket)
        numbers = torch.zeros(buckets + 1 + entries // FEW + 2, dtype=torch.int32, device=self.device)
        self.flags, self.counts, self.large = numbers.split([1, buckets, entries // FEW + 1 + 1])
        self.begins = torch.zeros(buckets + 1, dtype=torch.int32, device=self.device)
        self.rank, self.order = torch.empty(2, entries, dtype=torch.int32, device=self.device)
        keys = min(MAX_LARGEST, routines.shared_memory(self.device) // KEY_BYTES)
        self.largest = 1 << (keys.bit_length() - 1)
        self.is_first: Tensor | None = None

    def sorted(self) -> _Buckets | bool | None:
        """Sort; return None where there is no kernel, or a bucket is too large, and True if they are."""
        if not self.kernel.is_ready():
            return None
        check_waiting(self.device, "the order of entries")
        entries, buckets = self.order.numel(), self.counts.numel()
        self._launch("scorch_count", entries)
        flags = int(self.flags)
        if self.given[1] is not None and not flags & UNSORTED:
            return True
        if flags & TOO_LARGE:
            return None
        torch.cumsum(self.counts, 0, dtype=torch.int32, out=self.begins[1:])
        self._launch("scorch_scatter", entries)
        blocks = min(MAX_BLOCKS, -(-buckets // WARPS))
        self.kernel.launch_blocks("scorch_sort_few", self._slots(), blocks, THREADS, 0, self.device.index)
        if entries > FEW:
            blocks, shared = min(MAX_MANY_BLOCKS, entries // FEW), self.largest * KEY_BYTES
            slots = self._slots()
            self.kernel.launch_blocks(
                "scorch_sort_many", slots, blocks, MANY_THREADS, shared, self.device.index
            )
        return self

    def marked(self) -> Tensor:
        """Return which entries, in order, are the first of their place."""
        self.is_first = torch.empty(self.order.numel(), dtype=torch.bool, device=self.device)
        self._launch("scorch_mark", self.order.numel())
        return self.is_first

    def _launch(self, name: str, threads: int) -> None:
        self.kernel.launch(name, self._slots(), threads, self.device.index)

    def _slots(self) -> list[int]:
        bucket, minor, pos = self.given
        rows = 0 if pos is None else pos.numel() - 1
        numbers = [self.order.numel(), self.counts.numel(), rows, self.largest]
        arrays = [
            self.flags,
            self.counts,
            self.rank,
            self.begins,
            self.order,
            self.large,
            self.row,
            self.is_first,
        ]
        return [*map(_address, (bucket, minor, pos)), *numbers, *map(_address, arrays)]


def _address(array: Tensor | None) -> int:
    return 0 if array is None else address_of(array)
