"""A sparse weight times a batch, with the bias, in one call.

    out[b,o] = bias[o] + sum over entries (o,j) of W[o,j] * X[b,j]

Rows of the batch are copied next to each other, a tile of them at a time, so that an entry of the weight
meets neighbors in memory, whose sums stay in registers. An activation follows there, and a residual is added
where results are stored, so that nothing of them is read again. Both copies are transposed in registers.
Threads share tiles times parts of the weight's rows. Compared with a product of transposed copies, this saves
two passes, those of what follows, and much of the time of small calls. Values may be stored in bf16, or as
8-bit integers with a scale for each row; sums are in the type of the batch.
"""

from __future__ import annotations

import functools

import torch
from torch.nn.functional import gelu

from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.jit import read_source
from scorch._src.backends.cpu.launch import builtins, empty, pack, result_descriptor
from scorch._src.backends.cpu.routines import by_rows
from scorch._src.backends.routines import Matrix, Tensor
from scorch._src.compiler.target import LINE, target
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.events import emits

SOURCE = "".join(
    read_source(f"{name}.c")
    for name in ("tiles", "weights", "gathers", "squares", "blocks", "activations", "linear")
)
TILE_PARTS = 2  # of a core's cache, one of which holds a tile of a batch while rows of the weight pass
MIN_POOLED = 1 << 18  # elements of threads' tiles from which on they are worth memory of a pool
STORED = {torch.bfloat16: "bf16", torch.int8: "int8"}  # values that are not of the batch's type
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}  # as c/activations.c counts them
MAX_NARROW_GELU = 1 << 15  # elements of a result, up to which GELU pays in registers of NARROW_BYTES
NARROW_BYTES = 16
_WHAT = "the product with a sparse weight"


@emits("product with a sparse weight")
def multiply_batch(
    weight: Matrix,
    bias: Tensor | None,
    x: Tensor,
    scales: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    block: tuple[int, int] = (1, 1),
) -> Tensor | None:
    """Multiply the rows of ``x`` by the weight; None where a kernel must."""
    if activation != "gelu" or not _has_faster_gelu(x, (weight[0].numel() - 1) * block[0]):
        return _multiply(weight, bias, x, scales, activation, residual, block)
    product = _multiply(weight, bias, x, scales, None, None, block)
    result = None if product is None else gelu(product)
    return result if result is None or residual is None else result.add_(residual)


def _has_faster_gelu(x: Tensor, outputs: int) -> bool:
    """Check whether PyTorch computes GELU of ``outputs`` for each row of ``x`` faster, in another pass."""
    is_large = x.numel() * outputs > MAX_NARROW_GELU * x.shape[-1]
    return is_large and x.dtype == torch.float32 and target().vector_bytes <= NARROW_BYTES


def _multiply(
    weight: Matrix,
    bias: Tensor | None,
    x: Tensor,
    scales: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    block: tuple[int, int],
) -> Tensor | None:
    pos, crd, values = weight
    functions, dtype, shape = builtins(), x.dtype, x.shape
    if functions is None:
        return None
    source = _source(crd.dtype == torch.int16, STORED.get(values.dtype), block)
    at = by_rows.address(source, _WHAT, "linear", dtype, pos.dtype)
    if not at:
        return None
    features, size = shape[-1], x.numel()
    batch = size // features
    work = parallel.shared_by(batch * values.numel(), by_rows.MIN_ELEMENTS_PER_THREAD)
    width = _tile_width(batch, features, dtype.itemsize, work[1])
    tiles = work[1] * (width + block[0]) * features
    space = x if batch == 1 or tiles < MIN_POOLED else empty((tiles + LINE * work[1],), dtype)
    rows = pos.numel() - 1
    follows = (bias is not None, residual is not None, ACTIVATIONS[activation])
    header = pack([*work, rows, batch, features, width, *follows])
    result = _describe(dtype, (*shape[:-1], rows * block[0]))
    others = (values if other is None else other for other in (scales, bias, residual))
    return functions.fill(at, header, result, None, pos, crd, values, *others, x, space)


@functools.lru_cache(maxsize=64)
def _source(has_narrow_columns: bool, stored: str | None, block: tuple[int, int] = (1, 1)) -> str:
    """Return the text for columns of 16 bits, for values stored otherwise than the batch, and for blocks."""
    head = "#define NARROW\n" if has_narrow_columns else ""
    head += f"#define STORED_{stored}\n" if stored else ""
    if block != (1, 1):
        head += f"#define BLOCK_ROWS {block[0]}\n#define BLOCK_COLUMNS {block[1]}\n"
    return head + SOURCE


@functools.lru_cache(maxsize=256)
def _describe(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return result_descriptor(type_of_dtype(dtype), shape, zero=False)


@functools.lru_cache(maxsize=256)
def _tile_width(batch: int, features: int, size: int, threads: int) -> int:
    """Return how many rows of a batch make a tile: whole vectors of elements of ``size`` bytes.

    Tiles of two cache lines a feature are fastest where each thread has one of its own, and they fit.
    """
    bytes, cache = target().vector_bytes, target().cache_bytes
    lanes, line = bytes // size, max(LINE // bytes, 1)
    most = line if 2 * LINE * features * TILE_PARTS > cache else 2 * line
    vectors = -(-batch // lanes)
    most = max(line, min(most, -(-vectors // threads)))
    tiles = -(-vectors // most)
    return -(-vectors // tiles) * lanes
