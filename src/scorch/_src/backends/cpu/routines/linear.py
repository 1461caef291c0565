"""A sparse weight times a batch, with the bias, in one call.

    out[b,o] = bias[o] + sum over entries (o,j) of W[o,j] * X[b,j]

Rows of the batch are copied next to each other, a tile of them at a time, so that an entry of the weight
meets neighbors in memory, whose sums stay in registers. An activation follows there, and a residual is added
where results are stored, so that nothing of them is read again. Both copies are transposed in registers.
Threads share tiles times parts of the weight's rows. Compared with a product of transposed copies, this saves
two passes, those of what follows, and much of the time of small calls. Values may be stored in bf16, or as
8-bit integers with a scale for each row; sums are in the type of the batch, and floats for a batch in bf16.
"""

from __future__ import annotations

import functools
from time import monotonic_ns
from typing import NamedTuple

import torch
from torch.nn.functional import gelu

from scorch._src.backends.by_torch.layers import BatchProduct, Layer
from scorch._src.backends.by_torch.rows import Matrix, Tensor
from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.jit import read_source
from scorch._src.backends.cpu.launch import builtins, empty, pack, result_descriptor, tensor_descriptor
from scorch._src.backends.cpu.routines import by_rows
from scorch._src.compiler.target import LINE, target
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.events import emits

SOURCE = "".join(
    read_source(f"{name}.c")
    for name in (
        *("tiles", "weights", "gathers", "squares", "wide_squares", "turn", "blocks", "activations"),
        *("windows", "bf16", "pairs", "expanded", "linear"),
    )
)
TILE_PARTS = 2  # of a core's cache, one of which holds a tile of a batch while rows of the weight pass
SHARED_TILE_PARTS = 8  # the same for a tile that several threads pack
MAX_SHARING = 4  # threads that pack the same tile, where a vector is a line and packing takes little
PAIRED = 16  # rows of a batch in bf16, beyond which two of them share the bits of a float in tiles
PAIRED_ROWS = 32  # whose numbers lie together in such tiles
MAX_EXPANDED = 128  # rows of a batch that dense tiles of the weight meet at a time
MAX_PANEL = 512  # rows of a panel whose features are in blocks
MAX_HIGH = 256  # rows of the weight whose sums are kept
PRODUCTS_BY_TILES = 18  # that an instruction for tiles does while one is done by vectors
PRODUCTS_PER_ENTRY = 140  # by tiles, in the time in which an entry is written to one
PRODUCTS_PER_ZERO = 40  # the same for a zero
MIN_POOLED = 1 << 20  # elements of threads' tiles from which on they are worth memory of a pool
STORED = {torch.bfloat16: "bf16", torch.int8: "int8"}  # values that are not of the batch's type
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}  # as c/activations.c counts them
MAX_NARROW_GELU = 1 << 15  # elements of a result, up to which GELU pays in registers of NARROW_BYTES
NARROW_BYTES = 16
MIN_WORK = 2 * by_rows.MIN_ELEMENTS_PER_THREAD  # products that several threads share
_NO_FACTS = tensor_descriptor()
_WHAT = "the product with a sparse weight"


@emits("product with a sparse weight")
def multiply_batch(layer: Layer) -> Tensor | None:
    """Multiply the rows of ``x`` by the weight; None where a kernel must."""
    if _has_faster_gelu(layer):
        product = _multiply(layer._replace(activation=None, residual=None))
        return None if product is None else _apply_gelu(product, layer.residual)
    return _multiply(layer)


def bind_batch(layer: Layer) -> BatchProduct | None:
    """Return ``multiply_batch`` by this pattern as a function of all else; None where a kernel must."""
    if not _has_faster_gelu(layer):
        return _bind(layer)
    product = _bind(layer._replace(activation=None, residual=None))

    def multiply(
        values: Tensor, scales: Tensor | None, bias: Tensor | None, residual: Tensor | None, x: Tensor
    ) -> Tensor | None:
        result = None if product is None else product(values, scales, bias, None, x)
        return None if result is None else _apply_gelu(result, residual)

    return multiply


def _has_faster_gelu(layer: Layer) -> bool:
    """Check whether PyTorch computes the GELU of a layer faster, in another pass."""
    if layer.activation != "gelu":
        return False
    x, outputs = layer.x, (layer.weight[0].numel() - 1) * layer.block[0]
    is_large = x.numel() * outputs > MAX_NARROW_GELU * x.shape[-1]
    return is_large and x.dtype == torch.float32 and target().vector_bytes <= NARROW_BYTES


def _apply_gelu(product: Tensor, residual: Tensor | None) -> Tensor:
    result = gelu(product)
    return result if residual is None else result.add_(residual)


def _multiply(layer: Layer) -> Tensor | None:
    weight, bias, x, scales, activation, residual, block = layer
    pos, crd, values = weight
    functions, at = builtins(), _address(weight, x, block)
    if functions is None or not at:
        return None
    size = _size(weight, x, block)
    work = parallel.shared_by(size[1] * values.numel(), by_rows.MIN_ELEMENTS_PER_THREAD)
    follows = (bias is not None, residual is not None, ACTIVATIONS[activation])
    header, elements = _plan(work, size, follows)
    space = empty((elements,), _computed(x.dtype)) if elements else x
    result = _describe(x.dtype, (*x.shape[:-1], size[0] * block[0]))
    others = (values if other is None else other for other in (scales, bias, residual))
    return functions.fill(at, header, result, None, pos, crd, values, *others, x, space)


def _bind(layer: Layer) -> BatchProduct | None:
    """Do as ``_multiply`` whenever the function is called; it checks the tensors it gets."""
    weight, bias, x, scales, activation, residual, block = layer
    pos, crd, values = weight
    functions, at, dtype = builtins(), _address(weight, x, block), x.dtype
    if functions is None or not at:
        return None
    computed = _computed(dtype)
    fill, size = functions.fill, _size(weight, x, block)
    work = size[1] * values.numel()
    follows = (bias is not None, residual is not None, ACTIVATIONS[activation])
    result = _describe(dtype, (*x.shape[:-1], size[0] * block[0]))
    others = (values if other is None else other for other in (scales, bias, residual))
    facts = (_facts(tensor.dtype, tensor.shape) for tensor in (values, *others, x))
    guard = _NO_FACTS + _NO_FACTS + b"".join(facts) + _NO_FACTS
    plans: dict[int, tuple[_Plan, _Plan, int]] = {}  # by allowed threads: quiet, busy, until when

    def multiply(
        values: Tensor, scales: Tensor | None, bias: Tensor | None, residual: Tensor | None, x: Tensor
    ) -> Tensor | None:
        allowed, is_busy = parallel.allowed_threads(), parallel.is_busy()
        found = plans.get(allowed)
        if found is None or (found[2] and monotonic_ns() >= found[2]):
            by_load = _plan_by_load(allowed, work, size, follows)
            plans[allowed] = found = *by_load, parallel.revisit_at(allowed, work, MIN_WORK)
        header, elements = found[1] if is_busy else found[0]
        space = empty((elements,), computed) if elements else x
        scales, bias = values if scales is None else scales, values if bias is None else bias
        rest = values if residual is None else residual
        return fill(at, header, result, guard, pos, crd, values, scales, bias, rest, x, space)

    return multiply


def _address(weight: Matrix, x: Tensor, block: tuple[int, int]) -> int:
    pos, crd, values = weight
    is_narrow = _computed(x.dtype) != x.dtype
    source = _source(crd.dtype, STORED.get(values.dtype), block, _count_in_window(weight, x), is_narrow)
    return by_rows.address(source, _WHAT, "linear", _computed(x.dtype), pos.dtype)


def _computed(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums for a batch of ``dtype``."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _count_in_window(weight: Matrix, x: Tensor) -> int:
    """Return how many entries of a row a window has, if the weight has positions; 0 if it has columns."""
    pos, crd, values = weight
    return values.numel() * window() // ((pos.numel() - 1) * x.shape[-1]) if crd.dtype == torch.uint8 else 0


def window() -> int:
    """Return how many columns are in a window of an N:M sparse weight: as many as a vector has floats."""
    return target().vector_bytes // torch.float32.itemsize


class _Panel(NamedTuple):
    """How many tiles of a batch are packed at a time, the rows of each, and the features that caches keep."""

    tiles: int
    width: int
    block: int


class _Size(NamedTuple):
    """What plans depend on; ``rows`` are those of blocks, ``bytes`` those of a number in a tile."""

    rows: int
    batch: int
    features: int
    block_rows: int
    bytes: int
    is_tiled: bool
    panel: _Panel | None  # where parts of the weight become dense tiles


def _size(weight: Matrix, x: Tensor, block: tuple[int, int]) -> _Size:
    features = x.shape[-1]
    batch, is_windowed = x.numel() // features, weight[1].dtype == torch.uint8
    is_tiled = batch > 1 and not is_windowed
    is_paired = is_tiled and x.dtype == torch.bfloat16 and block == (1, 1) and batch > PAIRED
    bytes = x.dtype.itemsize if is_paired else _computed(x.dtype).itemsize
    rows = weight[0].numel() - 1
    may_expand = is_paired and target().has_tiles and target().vector_bytes == LINE
    panel = _panel(weight[2].numel(), rows, batch, features) if may_expand else None
    return _Size(rows, batch, features, block[0], bytes, is_tiled, panel)


def _panel(entries: int, rows: int, batch: int, features: int) -> _Panel | None:
    """Return how a batch meets parts of the weight as dense tiles; None where single entries are faster.

    A panel of the batch takes half of the cache, or a block of its features does where they are many. For
    each panel, the entries are written between zeros again.
    """
    cache = target().cache_bytes // (2 * torch.bfloat16.itemsize)
    groups, most = -(-batch // PAIRED_ROWS), cache // features // PAIRED_ROWS
    is_split = most < min(groups, MAX_PANEL // PAIRED_ROWS)  # features, as they are many
    panels = -(-groups // (MAX_PANEL // PAIRED_ROWS if is_split else most))
    each = -(-groups // panels)
    tiles = -(-each * PAIRED_ROWS // MAX_EXPANDED)
    width = -(-each // tiles) * PAIRED_ROWS
    blocks = -(-features * tiles * width // cache) if is_split else 1
    block = -(-features // (blocks * PAIRED_ROWS)) * PAIRED_ROWS
    dense = rows * features * panels * (each * PAIRED_ROWS + PRODUCTS_PER_ZERO)
    saved = entries * (PRODUCTS_BY_TILES * batch - panels * PRODUCTS_PER_ENTRY)
    return _Panel(tiles, width, block) if saved > dense else None


_Plan = tuple[bytes, int]  # the numbers that the routine takes, the elements of memory that its threads need


@functools.lru_cache(maxsize=1024)
def _plan(work: tuple[int, int], size: _Size, follows: tuple[bool, bool, int]) -> _Plan:
    """Return the plan for what ``parallel.shared_by`` returns."""
    features, panel = size.features, size.panel
    width = panel.width if panel else _tile_width(size.batch, features, size.bytes, work[1])
    elements = (width + size.block_rows) * features
    if panel:  # and a strip of the weight, as in c/expanded.c
        batch = panel.tiles * width
        expanded = (batch + PAIRED_ROWS) * (features + 2 * PAIRED_ROWS) // 2 + MAX_HIGH * batch
        elements = max(elements, expanded)
    plan = (panel.tiles, panel.block) if panel else (0, 0)
    header = pack([*work, size.rows, size.batch, features, width, *follows, *plan])
    is_pooled = size.is_tiled and work[1] * elements >= MIN_POOLED
    return header, work[1] * (elements + 2 * LINE) if is_pooled else 0


def _plan_by_load(
    allowed: int, work: int, size: _Size, follows: tuple[bool, bool, int]
) -> tuple[_Plan, _Plan]:
    """Return the plans for a quiet machine and for a busy one."""
    loop = parallel.parallel_runtime()
    quiet, busy = parallel.threads_by_load(allowed, work, MIN_WORK) if loop else (1, 1)
    return _plan((loop, quiet), size, follows), _plan((loop, busy), size, follows)


@functools.lru_cache(maxsize=64)
def _source(
    columns: torch.dtype,
    stored: str | None,
    block: tuple[int, int] = (1, 1),
    in_window: int = 0,
    is_narrow: bool = False,
) -> str:
    """Return the text for columns of 16 bits, values in other types than sums, blocks, windows and bf16."""
    head = "#define NARROW\n" if columns == torch.int16 else ""
    head += f"#define PER_WINDOW {in_window}\n" if in_window else ""
    head += f"#define STORED_{stored}\n" if stored else ""
    head += "#define BATCH_bf16\n" if is_narrow else ""
    if block != (1, 1):
        head += f"#define BLOCK_ROWS {block[0]}\n#define BLOCK_COLUMNS {block[1]}\n"
    return head + SOURCE


@functools.lru_cache(maxsize=256)
def _describe(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return result_descriptor(type_of_dtype(dtype), shape, zero=False)


@functools.lru_cache(maxsize=256)
def _facts(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    return tensor_descriptor(type_of_dtype(dtype), shape, range(len(shape)))


def _tile_width(batch: int, features: int, size: int, threads: int) -> int:
    """Return how many rows of a batch make a tile: whole vectors of elements of ``size`` bytes.

    Tiles of two cache lines a feature are fastest where they fit, and not too many threads pack the same one.
    """
    bytes, cache = target().vector_bytes, target().cache_bytes
    bytes = LINE if size < torch.float32.itemsize else bytes  # whole groups of pairs, as in c/pairs.c
    lanes, line, tile_bytes = bytes // size, max(LINE // bytes, 1), 2 * LINE * features
    most = line if tile_bytes * TILE_PARTS > cache else 2 * line
    vectors = -(-batch // lanes)
    sharing = MAX_SHARING if bytes == LINE and tile_bytes * SHARED_TILE_PARTS <= cache else 1
    most = max(line, min(most, -(-sharing * vectors // threads)))
    tiles = -(-vectors // most)
    return -(-vectors // tiles) * lanes
