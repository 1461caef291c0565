"""One row of features by a weight that stores four of every eight columns, as 2:4 and 4:8 sparsity do.

The places of the values of a window are one of 70, so a code of eight bits stands for the coordinates of four
values, and a shuffle of vectors picks what they meet. See ``c/groups.c``.
"""

from __future__ import annotations

import functools
import platform

import torch

from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.jit import read_source
from scorch._src.backends.cpu.launch import builtins, pack, result_descriptor
from scorch._src.backends.cpu.routines import by_rows
from scorch._src.backends.cpu.routines.linear import ACTIVATIONS, STORED
from scorch._src.backends.routines import Matrix, Tensor
from scorch._src.compiler.target import target
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.events import emits

SOURCE = "".join(read_source(f"{name}.c") for name in ("weights", "gathers", "activations", "groups"))
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
    if functions is None or not is_able():
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


def is_able() -> bool:
    """Whether vectors hold four floats and are shuffled faster than elements are gathered."""
    return platform.machine() in ("aarch64", "arm64") and target().vector_bytes == 16
