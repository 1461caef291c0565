"""A sparse weight times a batch, with the bias, in one call.

    out[b,o] = bias[o] + sum over entries (o,j) of W[o,j] * X[b,j]

Rows of the batch are copied next to each other, a tile of them at a time, so that an entry of the weight
meets neighbours in memory, whose sums stay in registers. Results are stored where they belong at once; both
copies are transposed in registers. Threads share tiles times parts of the weight's rows. Beside
a product of transposed copies this saves two passes, the addition of the bias, and much of the time of small
calls.
"""

from __future__ import annotations

import functools

import torch

from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.jit import read_source
from scorch._src.backends.cpu.launch import builtins, empty, pack, result_descriptor
from scorch._src.backends.cpu.routines import by_rows
from scorch._src.backends.routines import Matrix, Tensor
from scorch._src.compiler.target import target
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.events import emits

SOURCE = "".join(map(read_source, ("tiles.c", "gathers.c", "squares.c", "linear.c")))
NARROW_SOURCE = f"#define NARROW\n{SOURCE}"
TILE_PARTS = 2  # of a core's cache, one of which holds a tile of a batch while rows of the weight pass
MIN_POOLED = 1 << 18  # elements of a batch from which on its copy is worth memory of a pool
_WHAT = "the product with a sparse weight"


@emits("product with a sparse weight")
def multiply_batch(weight: Matrix, bias: Tensor | None, x: Tensor) -> Tensor | None:
    """Multiply the rows of ``x`` by the weight; None where a kernel must."""
    pos, crd, values = weight
    source = NARROW_SOURCE if crd.dtype == torch.int16 else SOURCE
    functions, dtype, shape = builtins(), x.dtype, x.shape
    if functions is None:
        return None
    at = by_rows.address(source, _WHAT, "linear", dtype, pos.dtype)
    if not at:
        return None
    features, size = shape[-1], x.numel()
    batch = size // features
    width = _tile_width(batch, features, dtype.itemsize)
    packed = x if size < MIN_POOLED else empty((-(-batch // width) * width * features,), dtype)
    work = parallel.shared_by(batch * crd.numel(), by_rows.MIN_ELEMENTS_PER_THREAD)
    rows = pos.numel() - 1
    header = pack([*work, rows, batch, features, width, bias is not None])
    result = _describe(dtype, (*shape[:-1], rows))
    bias = values if bias is None else bias
    return functions.fill(at, header, result, None, pos, crd, values, bias, x, packed)


@functools.lru_cache(maxsize=256)
def _describe(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return result_descriptor(type_of_dtype(dtype), shape, zero=False)


@functools.lru_cache(maxsize=256)
def _tile_width(batch: int, features: int, size: int) -> int:
    """Return how many rows of a batch make a tile: whole vectors of elements of ``size`` bytes."""
    bytes, cache = target().vector_bytes, target().cache_bytes
    lanes, most = bytes // size, 16 if bytes == 16 else 8
    most = max(2, min(most, cache // (TILE_PARTS * features * bytes)))
    vectors = -(-batch // lanes)
    tiles = -(-vectors // most)
    return -(-vectors // tiles) * lanes
