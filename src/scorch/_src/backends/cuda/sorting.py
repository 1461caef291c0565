"""Entries put in another order on CUDA devices: kernels before and after a stable sort by torch.

``c/transpose.cu`` makes compressed columns of compressed rows, and the host waits for nothing.
``c/coalesce.cu`` adds up entries that repeat; the host waits once, for the number of places. Numbers are
sorted in the narrowest dtype that holds them all: the sort takes a pass for each of their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from scorch._src.backends.cuda import driver
from scorch._src.backends.cuda.entries import FEW, CudaEntries
from scorch._src.backends.cuda.executable import in_context
from scorch._src.backends.cuda.kernel import CudaKernel
from scorch._src.backends.cuda.streams import check_waiting
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.routines import Tensor
from scorch._src.backends.sort_entries import MAX_KEYS, Sorted
from scorch._src.loops.types import LAST_INT32

WARP = 32
MAX_CHUNKS = 2048  # of entries; each block adds up how many places begin in those before its own
MIN_CHUNK = 2 * driver.THREADS  # entries of one
MAX_DIMS = 8
EACH = 4  # entries of which a thread finds the row
LAST_INT16 = (1 << 15) - 1
MIN_LOOKED_AT = 1 << 18  # entries, from which on a sort takes longer than to wait whether it is needed

_NAMES = {
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float32: "f32",
    torch.float64: "f64",
}
_INDICES = (torch.int32, torch.int64)
_SUMMED = (torch.float32, torch.float64, torch.int32, torch.int64)

Dtypes = tuple[torch.dtype, ...]
Coalesced = tuple[Sequence[Tensor], Tensor, Tensor | None]  # coordinates, values, where they begin and end


def _print(name: str, words: dict[str, object]) -> str:
    lines = [f"#define {word} {meaning}" for word, meaning in words.items()]
    text = (Path(__file__).parent / "c" / name).read_text(encoding="utf-8")
    return "\n\n".join([print_prelude(), "\n".join(lines), text])


def print_transpose(index: torch.dtype, key: torch.dtype) -> str:
    """The CUDA source that makes compressed columns."""
    bias = LAST_INT16 + 1 if key == torch.int16 else 0
    words: dict[str, object] = {"INDEX": _NAMES[index], "KEY": _NAMES[key], "BIAS": bias, "EACH": EACH}
    return _print("transpose.cu", words)


def print_coalesce(
    column: torch.dtype, key: torch.dtype, index: torch.dtype, T: torch.dtype, dims: int
) -> str:
    """The CUDA source that lists entries once for each place."""
    words: dict[str, object] = {"COLUMN": _NAMES[column], "KEY": _NAMES[key], "INDEX": _NAMES[index]}
    words |= {"T": _NAMES[T], "DIMS": dims, "FEW": FEW, "WARPS": driver.THREADS // WARP}
    return _print("coalesce.cu", words)


class CudaSorting(CudaEntries):
    """The routines, those that sort entries by kernels of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._transposes: dict[Dtypes, CudaKernel] = {}
        self._coalesces: dict[tuple[Dtypes, int], CudaKernel] = {}

    # compressed columns --------------------------------------------------------------------------------

    def transpose_rows(self, pos: Tensor, crd: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        is_able = bool(crd.numel()) and crd.dtype == pos.dtype and self.has_kernels(crd.device)
        if not is_able:
            return super().transpose_rows(pos, crd, columns)
        index, key = crd.dtype, _key_of_column(columns)
        with in_context(crd.device):
            kernel = self._transposes.get((index, key))
            if kernel is None:
                kernel = self.make_kernel(print_transpose(index, key), "compressed columns")
                self._transposes[index, key] = kernel
            if not kernel.is_ready():
                return super().transpose_rows(pos, crd, columns)
            return _transpose(kernel, pos, crd, columns, key)

    # entries that repeat -------------------------------------------------------------------------------

    def coalesce(
        self, columns: Sequence[Tensor], sizes: Sequence[int], values: Tensor, index: torch.dtype
    ) -> Coalesced | None:
        device = values.device
        if not _are_numbered(columns, sizes, device) or not self.has_kernels(device):
            return None
        key = torch.int32 if math.prod(sizes) <= LAST_INT32 else torch.int64
        T = values.dtype if values.dtype in _SUMMED else torch.float32
        dtypes = columns[0].dtype, key, index, T
        with in_context(device):
            kernel = self._coalesces.get((dtypes, len(columns)))
            if kernel is None:
                kernel = self.make_kernel(print_coalesce(*dtypes, len(columns)), "entries that repeat")
                self._coalesces[dtypes, len(columns)] = kernel
            if not kernel.is_ready():
                return None
            check_waiting(device, "the number of places of entries")
            plain = [column.contiguous() for column in columns]
            return self._coalesce(kernel, plain, sizes, values, dtypes)

    def _coalesce(
        self,
        kernel: CudaKernel,
        columns: Sequence[Tensor],
        sizes: Sequence[int],
        values: Tensor,
        dtypes: Dtypes,
    ) -> Coalesced | None:
        device, number, entries, (_, key, index, T) = (
            values.device,
            values.device.index,
            len(columns[0]),
            dtypes,
        )
        found = torch.zeros(4, dtype=torch.int64, device=device)
        keys = torch.empty(entries, dtype=key, device=device)
        given = [*map(address_of, columns), *sizes, entries, found.data_ptr(), keys.data_ptr()]
        rest = [0] * (len(columns) + 4)  # places, which are written last
        kernel.launch("scorch_number", [*given, 0, 0, 0, 0, 0, *rest], entries, number)
        if entries >= MIN_LOOKED_AT:
            is_outside, is_unsorted, *_ = found.tolist()
            if is_outside or not is_unsorted:
                return None if is_outside else _as_given(columns, values, index)
        ordered, order = torch.sort(keys, stable=True)
        chunk = -(-max(MIN_CHUNK, -(-entries // MAX_CHUNKS)) // driver.THREADS) * driver.THREADS
        chunks = -(-entries // chunk)
        counts = torch.empty(chunks, dtype=torch.int32, device=device)
        given += [ordered.data_ptr(), order.data_ptr(), chunk, chunks, counts.data_ptr()]
        threads = chunks * driver.THREADS
        kernel.launch("scorch_count", given + rest, threads, number)
        is_outside, is_unsorted, is_long, places = found.tolist()
        if is_outside or not is_unsorted:
            return None if is_outside else _as_given(columns, values, index)
        crd = [torch.empty(places, dtype=index, device=device) for _ in columns]
        pos = torch.empty(2, dtype=index, device=device)
        given += [array.data_ptr() for array in (*crd, pos)]
        if is_long or values.dtype != T or values.dim() > 1 or not values.is_contiguous():
            first = torch.empty(places, dtype=torch.int64, device=device)
            kernel.launch("scorch_place", [*given, first.data_ptr(), 0, 0], threads, number)
            return crd, self.sum_entries(Sorted(order, crd, first), values), pos
        sums = torch.empty(places, dtype=T, device=device)
        kernel.launch("scorch_place", [*given, 0, address_of(values), sums.data_ptr()], threads, number)
        return crd, sums, pos


def _are_numbered(columns: Sequence[Tensor], sizes: Sequence[int], device: torch.device) -> bool:
    """Check whether a kernel can number entries with these coordinates."""
    first = columns[0]
    is_plain = all(column.dtype == first.dtype and column.device == device for column in columns)
    is_numbered = 0 < math.prod(sizes) <= MAX_KEYS and first.numel() > 1
    return is_plain and is_numbered and first.dtype in _INDICES and len(columns) <= MAX_DIMS


def _key_of_column(columns: int) -> torch.dtype:
    """Return the narrowest dtype to sort as many columns by; int16 counts from -32,768."""
    if columns <= 2 * (LAST_INT16 + 1):
        return torch.int16
    return torch.int32 if columns <= LAST_INT32 else torch.int64


def _transpose(
    kernel: CudaKernel, pos: Tensor, crd: Tensor, columns: int, key: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    device, rows, entries = crd.device, pos.numel() - 1, crd.numel()
    row = torch.empty_like(crd)
    keys = crd if key == crd.dtype else torch.empty(entries, dtype=key, device=device)
    given = [address_of(pos), address_of(crd), rows, columns, entries, row.data_ptr()]
    given.append(0 if keys is crd else keys.data_ptr())
    kernel.launch("scorch_list_entries", [*given, 0, 0, 0, 0, 0], -(-entries // EACH), device.index)
    ordered, order = torch.sort(keys, stable=True)
    begins = torch.empty(columns + 1, dtype=pos.dtype, device=device)
    lines, places = torch.empty_like(crd), torch.empty_like(crd)
    given += [array.data_ptr() for array in (ordered, order, begins, lines, places)]
    kernel.launch("scorch_place_entries", given, max(entries, columns + 1), device.index)
    return begins, lines, places


def _as_given(columns: Sequence[Tensor], values: Tensor, index: torch.dtype) -> Coalesced:
    """Return entries that are sorted and differ; their coordinates are copied."""
    return [column.to(index, copy=True) for column in columns], values, None
