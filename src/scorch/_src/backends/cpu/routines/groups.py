"""A few rows of features by a weight with N:M sparsity: all windows of columns have as many values.

A shuffle of vectors picks the features that the values of a window meet, so their positions in it replace
columns. Those of four of eight columns, as 2:4 and 4:8 sparsity have, are one of 70 choices, a code of eight
bits: see ``c/groups.c``. In wider vectors each position is a number of four bits: see ``c/windows.c``, a part
of the routine of ``linear.py``.
"""

from __future__ import annotations

import functools
import platform

import torch

from scorch._src.backends.by_torch.rows import Matrix, Tensor
from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.jit import read_source
from scorch._src.backends.cpu.launch import builtins, pack, result_descriptor
from scorch._src.backends.cpu.routines import by_rows
from scorch._src.backends.cpu.routines.linear import ACTIVATIONS, STORED, window
from scorch._src.compiler.target import target
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.events import emits

SOURCE = "".join(read_source(f"{name}.c") for name in ("weights", "gathers", "activations", "groups"))
PACKED_LANES = (8, 16)  # of vectors that four bits pick elements from
_WHAT = "the product with an N:M sparse weight"


@emits("product with an N:M sparse weight")
def multiply_groups(
    weight: Matrix,
    table: Tensor,
    bias: Tensor | None,
    x: Tensor,
    scales: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor | None:
    """Multiply one row by a weight with codes in place of columns; None where another routine must."""
    pos, codes, values = weight
    functions = builtins()
    if functions is None or not has_fast_codes():
        return None
    stored = STORED.get(values.dtype)
    at = by_rows.address(_source(stored), _WHAT, "groups", x.dtype, pos.dtype)
    if not at:
        return None
    work = parallel.shared_by(values.numel(), by_rows.MIN_ELEMENTS_PER_THREAD)
    rows = pos.numel() - 1
    header = pack([*work, rows, bias is not None, residual is not None, ACTIVATIONS[activation]])
    result = _describe(x.dtype, (*x.shape[:-1], rows))
    others = (values if other is None else other for other in (scales, bias, residual))
    return functions.fill(at, header, result, None, pos, codes, values, *others, table, x)


@functools.lru_cache(maxsize=8)
def _source(stored: str | None) -> str:
    return "#define NARROW\n" + (f"#define STORED_{stored}\n" if stored else "") + SOURCE


@functools.lru_cache(maxsize=256)
def _describe(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return result_descriptor(type_of_dtype(dtype), shape, zero=False)


def has_fast_codes() -> bool:
    """Whether vectors hold four floats and are shuffled faster than elements are gathered."""
    return platform.machine() in ("aarch64", "arm64") and target().vector_bytes == 16


def reads_positions(dtype: torch.dtype, batch: int, density: float) -> bool:
    """Whether shuffled windows are faster than columns, for so many rows of a batch of ``dtype``.

    As measured, vectors of 16 floats gain with up to 16 rows; those of 8 with up to 8, but with one row only
    where windows have one value.
    """
    lanes = window()
    if dtype not in (torch.float32, torch.bfloat16) or lanes not in PACKED_LANES:
        return False
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return is_x86 and batch <= lanes and (lanes == 16 or batch > 1 or density * lanes <= 1)


def pack_positions(pos: Tensor, crd: Tensor, columns: int) -> Tensor | None:
    """Return what ``multiply_batch`` takes in place of columns; None where windows differ in their entries.

    Four bits say where in its window an entry is. A vector has the sums of as many rows as a window has
    columns; the positions of these rows are next to each other, entry by entry: of 16 rows all even ones
    before the odd ones, since ``c/windows.c`` takes them from two words of 32 bits.
    """
    lanes, rows, entries = window(), pos.numel() - 1, crd.numel()
    if lanes not in PACKED_LANES or columns % lanes or not entries or entries % (rows * columns // lanes):
        return None
    by_window = crd.view(rows, columns // lanes, -1)
    expected = torch.arange(columns // lanes, dtype=crd.dtype, device=crd.device)[:, None]
    is_even = (pos.diff() == entries // rows).all() & (by_window // lanes == expected).all()
    if not bool(is_even):
        return None
    positions = torch.zeros(-(-rows // lanes) * lanes, by_window[0].numel(), dtype=torch.uint8)
    positions[:rows] = (by_window % lanes).view(rows, -1)
    by_entry = positions.view(-1, lanes, positions.shape[1]).transpose(1, 2)
    if lanes == 16:
        by_entry = torch.cat([by_entry[..., ::2], by_entry[..., 1::2]], -1)
    return (by_entry[..., ::2] | by_entry[..., 1::2] << 4).reshape(-1)
