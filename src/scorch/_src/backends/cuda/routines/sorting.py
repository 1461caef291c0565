"""Compressed columns on CUDA devices: kernels before and after a stable sort by torch (``c/transpose.cu``).

The host waits for nothing. Columns are sorted in the narrowest dtype that holds them all: the sort takes a
pass for each of their bytes.
"""

from __future__ import annotations

import functools

import torch

from scorch._src.backends.by_torch.rows import Tensor
from scorch._src.backends.cuda.device.driver import THREADS, in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, Text, read_text
from scorch._src.backends.cuda.routines.coalescing import CudaCoalescing
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.sort_entries import stable_sort
from scorch._src.loops.types import LAST_INT32

EACH = 4  # entries of which a thread finds the row
LAST_INT16 = (1 << 15) - 1
MANY = 1 << 20  # entries: torch sorts more in the same way

FUNCTIONS = "scorch_list_entries", "scorch_place_entries"
LABEL = "compressed columns"
USUAL_KEY = torch.int16  # for the columns of matrices with up to 65,536

_NAMES = {torch.int16: "i16", torch.int32: "i32", torch.int64: "i64"}


def print_transpose(index: torch.dtype, key: torch.dtype) -> str:
    """The CUDA source that makes compressed columns."""
    bias = LAST_INT16 + 1 if key == torch.int16 else 0
    words: dict[str, object] = {"INDEX": _NAMES[index], "KEY": _NAMES[key], "BIAS": bias}
    words["CHUNK"] = EACH * THREADS
    lines = [f"#define {word} {meaning}" for word, meaning in words.items()]
    return "\n\n".join([print_prelude(), "\n".join(lines), read_text("transpose.cu")])


class CudaSorting(CudaCoalescing):
    """The routines, those that sort entries by kernels of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._transposes: dict[tuple[torch.dtype, torch.dtype], CudaKernel] = {}

    def transpose_rows(self, pos: Tensor, crd: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        is_able = bool(crd.numel()) and crd.dtype == pos.dtype and self.has_kernels(crd.device)
        if not is_able:
            return super().transpose_rows(pos, crd, columns)
        index, key = crd.dtype, _key_of_column(columns)
        with in_context(crd.device):
            kernel = self._transposes.get((index, key))
            if kernel is None:
                kernel = self.make_kernel(print_transpose(index, key), LABEL, FUNCTIONS)
                self._transposes[index, key] = kernel
            _load_sort(kernel, crd, key)
            if not kernel.is_ready():
                return super().transpose_rows(pos, crd, columns)
            return _transpose(kernel, pos, crd, columns, key)

    def transpose_places(
        self, pos: Tensor, crd: Tensor, columns: int
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        return self.transpose_rows(pos, crd, columns)

    def usual_texts(self, values: torch.dtype, index: torch.dtype) -> list[Text]:
        text = functools.partial(print_transpose, index, USUAL_KEY)
        return [Text(text, LABEL, FUNCTIONS), *super().usual_texts(values, index)]


def _key_of_column(columns: int) -> torch.dtype:
    """Return the narrowest dtype to sort as many columns by; int16 counts from -32,768."""
    if columns <= 2 * (LAST_INT16 + 1):
        return torch.int16
    return torch.int32 if columns <= LAST_INT32 else torch.int64


def _load_sort(kernel: CudaKernel, crd: Tensor, key: torch.dtype) -> None:
    """Have torch load its kernels that sort columns, as it does at their first use, while NVRTC works."""
    kernel.begin()
    if kernel.is_at_work and not torch.cuda.is_current_stream_capturing():
        torch.sort(torch.empty(min(crd.numel(), MANY), dtype=key, device=crd.device), stable=True)


def _transpose(
    kernel: CudaKernel, pos: Tensor, crd: Tensor, columns: int, key: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    device, rows, entries = crd.device, pos.numel() - 1, crd.numel()
    row = torch.empty_like(crd)
    keys = crd if key == crd.dtype else torch.empty(entries, dtype=key, device=device)
    given = [address_of(pos), address_of(crd), rows, columns, entries, row.data_ptr()]
    given.append(0 if keys is crd else keys.data_ptr())
    kernel.launch("scorch_list_entries", [*given, 0, 0, 0, 0, 0], -(-entries // EACH), device.index)
    ordered, order = stable_sort(keys)
    begins = torch.empty(columns + 1, dtype=pos.dtype, device=device)
    lines, places = torch.empty_like(crd), torch.empty_like(crd)
    given += [array.data_ptr() for array in (ordered, order, begins, lines, places)]
    kernel.launch("scorch_place_entries", given, max(entries, columns + 1), device.index)
    return begins, lines, places
