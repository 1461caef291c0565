"""Rows picked from compressed ones on CUDA devices, as in batches of neighbors: ``c/pick_rows.cu``.

The host waits once, for the number of entries. It learns the length of the longest row at the same time,
which products of the result with anything ask for.
"""

from __future__ import annotations

import torch

from scorch._src.backends.by_torch.rows import Tensor
from scorch._src.backends.cuda.device.cost import tells
from scorch._src.backends.cuda.device.driver import in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, read_text, refuse
from scorch._src.backends.cuda.device.streams import PICKED, check_waiting, told_on
from scorch._src.backends.cuda.routines.rows import know_longest_row
from scorch._src.backends.cuda.routines.sorting import CudaSorting
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.loops.types import LAST_INT32

EACH = 4  # entries that a thread copies
TILE = 512  # rows that a block counts at once, and its threads
MAX_BLOCKS = 1024  # that count rows
KEPT = 1024  # rows whose ends a block keeps in shared memory while it copies

FUNCTIONS = "scorch_count_rows", "scorch_copy_rows"

_INDICES = {torch.int32: "i32", torch.int64: "i64"}
_VALUES = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "c128"}  # by bytes: they are copied as they are

Key = tuple[torch.dtype, torch.dtype, int]  # of indices, of the numbers of rows, and the bytes of a value


def print_pick_rows(index: torch.dtype, picked: torch.dtype, size: int) -> str:
    """The CUDA source that copies rows."""
    words: dict[str, object] = {"INDEX": _INDICES[index], "PICKED": _INDICES[picked], "VALUE": _VALUES[size]}
    words |= {"SUM": "i64", "EACH": EACH, "TILE": TILE, "KEPT": KEPT}
    lines = [f"#define {word} {meaning}" for word, meaning in words.items()]
    return "\n\n".join([print_prelude(), "\n".join(lines), read_text("block_sums.cu", "pick_rows.cu")])


class CudaPicking(CudaSorting):
    """The routines, the copy of rows by kernels of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._picks: dict[Key, CudaKernel] = {}

    @tells("rows taken out")
    def pick_rows(
        self, pos: Tensor, crd: Tensor, values: Tensor, picked: Tensor, from_end: bool = True
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        check_waiting(crd.device, PICKED)
        found = None
        with in_context(crd.device):
            kernel = self._pick_kernel(pos, crd, values, picked)
            if kernel is not None:
                if values.is_complex() or values.is_neg():
                    values = values.resolve_conj().resolve_neg()
                found = self._pick(kernel, pos, crd, values.contiguous(), picked.contiguous(), from_end)
        return super().pick_rows(pos, crd, values, picked, from_end) if found is None else found

    def _pick_kernel(self, pos: Tensor, crd: Tensor, values: Tensor, picked: Tensor) -> CudaKernel | None:
        """Return the kernel for arrays; None where there is none yet, or never."""
        why = _why_not(pos, crd, values, picked)
        if why or not self.has_kernels(crd.device):
            refuse(why or "NVRTC has no code for it")
            return None
        key = pos.dtype, picked.dtype, values.element_size()
        kernel = self._picks.get(key)
        if kernel is None:
            kernel = self._picks[key] = self.make_kernel(print_pick_rows(*key), "rows taken out", FUNCTIONS)
        return kernel if kernel.is_ready(may_wait=False) else None  # torch's operations do it until then

    def _pick(
        self, kernel: CudaKernel, pos: Tensor, crd: Tensor, values: Tensor, picked: Tensor, from_end: bool
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Copy rows; None where one is out of range, or where entries become too many for their indices."""
        device, rows, count = crd.device, pos.numel() - 1, picked.numel()
        tiles, told = -(-count // TILE), told_on(device, 3)
        memory = torch.empty(2 * (count + tiles) + 1, dtype=torch.int64, device=device)
        shift = memory.data_ptr()
        end, before = shift + 8 * count, shift + 16 * count
        given = [*map(address_of, (pos, crd, values, picked)), rows, count, -rows if from_end else 0]
        given += [
            shift,
            end,
            before,
            before + 8 * (tiles + 1),
            self.zero_on(device, "rows").data_ptr(),
            told.address,
        ]
        blocks = min(tiles, MAX_BLOCKS)
        kernel.launch_blocks("scorch_count_rows", [*given, 0, 0, 0, 0], blocks, TILE, 0, device.index)
        new_pos = torch.empty(count + 1, dtype=pos.dtype, device=device)
        is_refused, longest, entries = told.wait()
        if is_refused or (entries > LAST_INT32 and pos.dtype == torch.int32):
            return None
        new_crd, new_values = crd.new_empty(entries), values.new_empty(entries)
        slots = [*given, *(array.data_ptr() for array in (new_pos, new_crd, new_values)), entries]
        kernel.launch("scorch_copy_rows", slots, max(count, -(-entries // EACH)), device.index)
        know_longest_row(new_pos, longest)
        return new_pos, new_crd, new_values


def _why_not(pos: Tensor, crd: Tensor, values: Tensor, picked: Tensor) -> str:
    if not picked.numel() or not values.numel():
        return "there is nothing to compute"
    if pos.dtype not in _INDICES or picked.dtype not in _INDICES or crd.dtype != pos.dtype:
        return "indices are neither int32 nor int64, or differ in dtype"
    if picked.device != crd.device:
        return "arrays differ in device"
    is_plain = pos.is_contiguous() and crd.is_contiguous() and not values._is_zerotensor()
    is_plain = is_plain and values.dim() == 1 and values.element_size() in _VALUES
    return "" if is_plain else "arrays have gaps, or no memory"
