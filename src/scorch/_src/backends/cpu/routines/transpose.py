"""Copy dense tensors with their dimensions in another order.

Generated kernels read dense operands along the innermost loop, and one that lies across is copied first.
torch copies one element after the other on one thread; here 128 columns of four rows at a time are
transposed in registers, so that whole cache lines are read and what is written stays near; threads share
parts of both.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scorch._src.backends.cpu import jit, parallel
from scorch._src.backends.cpu.launch import BITS, builtins, pack, result_descriptor

MIN_ELEMENTS = 1 << 13  # from which on it pays to copy them here
MIN_ELEMENTS_PER_THREAD = 1 << 15

SOURCE = jit.read_source("squares.c") + jit.read_source("transpose.c")


def laid_out(tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Permute the dimensions of ``tensor`` to ``order``, without gaps in memory."""
    wanted = tensor.permute(*order)
    if wanted.is_contiguous():
        return wanted
    transposed = transposition(wanted)
    size = tensor.element_size()
    if (
        transposed is None
        or tensor.numel() < MIN_ELEMENTS
        or size not in BITS
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return wanted.contiguous()
    name, what = f"scorch_transpose_bits{8 * size}", "the copy of a dense operand laid out anew"
    address, functions = jit.function_address(SOURCE, what, name), builtins()
    if not address or functions is None:
        return wanted.contiguous()
    header = pack([*parallel.shared_by(tensor.numel(), MIN_ELEMENTS_PER_THREAD), *transposed])
    descriptor = result_descriptor(BITS[size], tuple(wanted.shape), zero=False)
    return functions.fill(address, header, descriptor, None, tensor.detach()).view(tensor.dtype)


def transposition(wanted: torch.Tensor) -> tuple[int, int, int] | None:
    """Return the number of matrices, and the rows and columns of each, whose transposes ``wanted`` holds.

    None where its dimensions, those adjacent in memory taken together, are not those of transposed matrices.
    """
    sizes: list[int] = []
    strides: list[int] = []
    for size, stride in zip(wanted.shape, wanted.stride(), strict=True):
        if size == 1:
            continue
        if sizes and strides[-1] == stride * size:
            sizes[-1], strides[-1] = sizes[-1] * size, stride
        else:
            sizes.append(size)
            strides.append(stride)
    match sizes, strides:
        case [columns, rows], [1, across] if across == columns:
            return 1, rows, columns
        case [batch, columns, rows], [apart, 1, across] if across == columns and apart == rows * columns:
            return batch, rows, columns
    return None
