"""Sparse attention masks, whose time and memory depend only on the number of query-key pairs.

>>> mask = window(16, 2) | global_tokens(16, 1)
>>> mask.shape, mask.nnz
(torch.Size([16, 16]), 100)

Each mask is a bool ``SparseTensor`` of shape (queries, keys) in csr format that stores the pairs to compute.
``|`` is the union of masks and ``&`` the intersection. Pass them to ``F.scaled_dot_product_attention`` as
``attn_mask``, or to ``scorch.nn.MultiheadAttention`` as ``pairs``. What attention computes from a mask is
cached with it, so create it once.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Sequence

import torch
from torch.compiler import is_dynamo_compiling

from scorch._src.hint_tables import MASK_HINTS
from scorch._src.loops.types import LAST_INT32
from scorch._src.name_hints import missing_name, suggests_keywords
from scorch._src.storage.budget import check_budget
from scorch._src.tensor.create.build import rows_tensor
from scorch._src.tensor.create.check import device_for
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import ArgumentError, DtypeError, OperandError, ShapeError, add_note, kind_of

__all__ = ["bigbird", "causal", "from_function", "global_tokens", "random_blocks", "window"]


def __getattr__(name: str) -> object:
    """Say what to use instead of a mask that is not there."""
    raise missing_name(
        f"module 'scorch.nn.masks' has no attribute {name!r}", name, MASK_HINTS, lambda: __all__
    )


def __dir__() -> list[str]:
    return __all__


Device = torch.device | str | int | None  # None: torch's default device, as for torch's own functions
MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@suggests_keywords
def window(
    n: int, radius: int | tuple[int, int], m: int | None = None, *, device: Device = None
) -> SparseTensor:
    """Return a sliding-window mask: each token attends to itself and to ``radius`` tokens on either side.

    Args:
        n: the number of queries.
        radius: the number of tokens on either side, or a pair ``(before, after)``; ``(255, 0)`` is a causal
            window of 256 tokens.
        m: the number of keys, ``n`` by default.
        device: the device of the mask.

    Returns:
        A mask of shape (n, m), a sparse bool tensor.

    Raises:
        ArgumentError: a size or ``radius`` is negative.
        DensityError: the mask would need more memory than the dense budget.

    Example:

        >>> window(5, 1).to_dense().int()[2]
        tensor([0, 1, 1, 1, 0], dtype=torch.int32)
    """
    n, m = _sizes(n, m)
    sides = radius if isinstance(radius, tuple) else (radius, radius)
    if len(sides) != 2:
        raise ArgumentError(f"radius must be an integer or a pair (before, after), but got {radius}")
    before, after = (_count("radius", side) for side in sides)
    rows = torch.arange(n, device=device_for("window", device))
    return _intervals((rows - before).clamp(0, m), (rows + after + 1).clamp(0, m), m)


@suggests_keywords
def causal(n: int, m: int | None = None, *, device: Device = None) -> SparseTensor:
    """Return a causal mask: each token attends to itself and to all tokens before it.

    The mask stores half of all pairs. Full causal attention needs no mask, only ``is_causal=True``; and with
    ``is_causal=True``, ``pairs`` of ``scorch.nn.MultiheadAttention`` mean ``pairs & causal(n)`` without
    storing it.

    Args:
        n: the number of queries.
        m: the number of keys, ``n`` by default.
        device: the device of the mask.

    Returns:
        A mask of shape (n, m), a sparse bool tensor.

    Raises:
        ArgumentError: a size is negative.
        DensityError: the mask would need more memory than the dense budget.

    Example:

        >>> causal(4).nnz
        10
    """
    n, m = _sizes(n, m)
    rows = torch.arange(n, device=device_for("causal", device))
    return _intervals(torch.zeros_like(rows), (rows + 1).clamp(0, m), m)


@suggests_keywords
def global_tokens(
    n: int, tokens: int | Sequence[int] | torch.Tensor, *, device: Device = None
) -> SparseTensor:
    """Return a mask of global tokens, which attend to all tokens and which all tokens attend to.

    Args:
        n: the number of tokens.
        tokens: the number of global tokens, which are the first ones, or their indices.
        device: the device of the mask.

    Returns:
        A mask of shape (n, n), a sparse bool tensor.

    Raises:
        ArgumentError: a token is out of range.

    Example:

        >>> global_tokens(4, [2]).to_dense().int()
        tensor([[0, 0, 1, 0],
                [0, 0, 1, 0],
                [1, 1, 1, 1],
                [0, 0, 1, 0]], dtype=torch.int32)
    """
    n, _ = _sizes(n)
    if device is None and isinstance(tokens, torch.Tensor):
        device = tokens.device
    where = device_for("global_tokens", device)
    if isinstance(tokens, int):
        which = torch.arange(min(_count("tokens", tokens), n), device=where)
    else:
        which = torch.as_tensor(tokens, device=where)
        if which.numel() and (which.is_floating_point() or which.is_complex() or which.dtype == torch.bool):
            raise DtypeError(
                f"tokens must be integers, but got {which.dtype}; pass mask.nonzero() for a mask"
            )
        which = which.long().flatten()
        outside = which[(which < -n) | (which >= n)]
        if outside.numel():
            raise ArgumentError(f"token {int(outside[0])} is out of range; there are {n} tokens")
        which = torch.unique(which % n if n else which)
    is_global = torch.zeros(n, dtype=torch.bool, device=where)
    is_global[which] = True
    lengths = torch.where(is_global, n, which.numel())
    pos = row_pointers(lengths)
    crd = torch.empty(int(pos[-1]), dtype=torch.int64, device=where)
    in_full = is_global.repeat_interleave(lengths)
    crd[in_full] = torch.arange(n, device=where).repeat(which.numel())
    crd[~in_full] = which.repeat(n - which.numel())
    return _mask(pos, crd, n)


@suggests_keywords
def random_blocks(
    n: int,
    block: int,
    per_row: int,
    m: int | None = None,
    *,
    generator: torch.Generator | None = None,
    device: Device = None,
) -> SparseTensor:
    """Return a mask of random blocks: each block of tokens attends to ``per_row`` different random blocks.

    Args:
        n: the number of queries.
        block: the number of tokens in a block.
        per_row: the number of blocks to attend to; all, if there are no more.
        m: the number of keys, ``n`` by default.
        generator: the random number generator.
        device: the device of the mask.

    Returns:
        A mask of shape (n, m), a sparse bool tensor.

    Raises:
        ArgumentError: a size is negative, or ``block`` is not positive.

    Example:

        >>> random_blocks(8, block=2, per_row=2).nnz
        32
    """
    n, m = _sizes(n, m)
    block, per_row = _count("block", block, 1), _count("per_row", per_row)
    rows, columns = -(-n // block), -(-m // block)
    per_row = min(per_row, columns)
    columns_drawn = torch.empty(rows, per_row, dtype=torch.int64, device=device_for("random_blocks", device))
    for i in range(per_row):  # Floyd's algorithm: a repeated draw is replaced by the last block
        last = columns - per_row + i
        candidate = torch.randint(last + 1, (rows,), generator=generator, device=columns_drawn.device)
        columns_drawn[:, i] = torch.where(
            (columns_drawn[:, :i] == candidate[:, None]).any(1), last, candidate
        )
    return _blocks(list(columns_drawn.sort(1).values), block, n, m, columns_drawn.device)


@suggests_keywords
def bigbird(
    n: int,
    block: int = 16,
    num_global: int = 2,
    num_random: int = 2,
    num_sliding: int = 2,
    *,
    generator: torch.Generator | None = None,
    device: Device = None,
) -> SparseTensor:
    """Return BigBird's mask: global tokens, a window of blocks and random blocks (Zaheer et al. 2020).

    The defaults are those of Table 3 of the Scorch paper.

    Args:
        n: the number of tokens.
        block: the number of tokens in a block.
        num_global: the number of global tokens, which are the first ones.
        num_random: the number of random blocks that each block attends to.
        num_sliding: the number of neighboring blocks on either side that each block attends to.
        generator: the random number generator.
        device: the device of the mask.

    Returns:
        A mask of shape (n, n), a sparse bool tensor.

    Raises:
        ArgumentError: a number is negative, or ``block`` is not positive.

    Example:

        >>> bigbird(256).shape
        torch.Size([256, 256])
    """
    n, _ = _sizes(n)
    block, sliding = _count("block", block, 1), _count("num_sliding", num_sliding)
    count = -(-n // block)
    where = device_for("bigbird", device)
    near = [
        torch.arange(max(0, i - sliding), min(count, i + sliding + 1), device=where) for i in range(count)
    ]
    masks = [_blocks(near, block, n, n, where)]
    if _count("num_random", num_random):
        masks.append(random_blocks(n, block, num_random, generator=generator, device=where))
    if _count("num_global", num_global):
        masks.append(global_tokens(n, num_global, device=where))
    return functools.reduce(operator.or_, masks)


@suggests_keywords
def from_function(
    mask_mod: MaskMod,
    n: int,
    m: int | None = None,
    batch: int | None = None,
    heads: int | None = None,
    block: int = 128,
    *,
    device: Device = None,
) -> SparseTensor:
    """Return the mask of the pairs for which ``mask_mod(b, h, q_idx, kv_idx)`` is True, as in FlexAttention.

    ``mask_mod`` is called once per batch element, head and chunk of ``block`` queries, so that at most
    ``block * m`` pairs are in memory at a time.

    Args:
        mask_mod: a function of int64 tensors: ``b`` and ``h`` of shape ``()``, ``q_idx`` of shape
            ``(block, 1)`` (or less in the last chunk) and ``kv_idx`` of shape ``(1, m)``. It must return a
            bool tensor that broadcasts to ``(block, m)``, so write it with elementwise operations (``&``,
            ``|``, ``torch.where``), without ``if`` and ``and``.
        n: the number of queries.
        m: the number of keys, ``n`` by default.
        batch: the batch size; without it, the mask has no batch dimension and ``b`` is 0.
        heads: the number of heads; without it, the mask has no head dimension and ``h`` is 0.
        block: the number of queries in a chunk.
        device: the device of the mask.

    Returns:
        A mask of shape ``(n, m)``, preceded by ``batch`` and ``heads`` if given.

    Raises:
        DtypeError: ``mask_mod`` does not return a bool tensor.
        ShapeError: the result does not broadcast to ``(block, m)``.

    Example:

        >>> near = from_function(lambda b, h, q_idx, kv_idx: (q_idx - kv_idx).abs() <= h, 8, heads=2)
        >>> near.shape
        torch.Size([2, 8, 8])
    """
    n, m = _sizes(n, m)
    block = _count("block", block, 1)
    counts = [
        1 if count is None else _count(name, count) for name, count in (("batch", batch), ("heads", heads))
    ]
    where = device_for("from_function", device)
    keys = torch.arange(m, device=where)[None, :]
    lengths, columns = [], []
    for b, h, first in itertools.product(range(counts[0]), range(counts[1]), range(0, n, block)):
        queries = torch.arange(first, min(n, first + block), device=where)[:, None]
        place = torch.tensor([b, h], device=where)
        allowed = _call_mask_mod(mask_mod, place[0], place[1], queries, keys)
        is_allowed = _checked(allowed, (queries.shape[0], m))
        lengths.append(is_allowed.sum(1))
        columns.append(is_allowed.nonzero()[:, 1])
    none = torch.zeros(0, dtype=torch.int64, device=where)
    shape = tuple(count for count in (batch, heads) if count is not None)
    return _mask(row_pointers(torch.cat([none, *lengths])), torch.cat([none, *columns]), m, (*shape, n))


# arguments -------------------------------------------------------------------------------------------


def _count(name: str, value: int, minimum: int = 0) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        got = kind_of(value) if isinstance(value, torch.Tensor) or callable(value) else repr(value)
        raise ArgumentError(f"{name} must be an integer, but got {got}") from None
    if number < minimum:
        raise ArgumentError(f"{name} must be at least {minimum}, but got {number}")
    return number


def _sizes(n: int, m: int | None = None) -> tuple[int, int]:
    return _count("n", n), _count("n", n) if m is None else _count("m", m)


def _call_mask_mod(mask_mod: MaskMod, *indices: torch.Tensor) -> torch.Tensor:
    """Call a mask function; add its arguments to an error that it raises."""
    if not callable(mask_mod):
        raise OperandError(
            f"mask_mod must be a function of (b, h, q_idx, kv_idx) that returns a bool tensor, but got "
            f"{kind_of(mask_mod)}"
        )
    try:
        inspect.signature(mask_mod).bind(*indices)
    except TypeError:
        raise OperandError(
            "mask_mod is called with four arguments, (b, h, q_idx, kv_idx), but does not take four; write "
            "lambda b, h, q_idx, kv_idx: ..."
        ) from None
    except ValueError:  # a builtin, which has no signature
        pass
    try:
        return mask_mod(*indices)
    except Exception as error:
        shapes = [tuple(index.shape) for index in indices]
        add_note(
            error,
            "from_function called mask_mod(b, h, q_idx, kv_idx) with int64 tensors of shapes "
            f"{', '.join(map(str, shapes))}; it must take four arguments, use elementwise operations "
            "(& and | instead of and and or), and return a bool tensor",
        )
        raise


def _checked(allowed: object, shape: tuple[int, int]) -> torch.Tensor:
    """Return the result of a mask function as a bool matrix."""
    if not isinstance(allowed, torch.Tensor) or allowed.dtype != torch.bool:
        dtype = getattr(allowed, "dtype", None)
        kind = kind_of(allowed) + (f" of {dtype}" if dtype else "")
        raise DtypeError(
            f"mask_mod(b, h, q_idx, kv_idx) must return a bool tensor, such as q_idx >= kv_idx, not {kind}"
        )
    try:
        return allowed.expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"mask_mod returned shape {tuple(allowed.shape)} for q_idx of shape {(shape[0], 1)} and kv_idx "
            f"of shape {(1, shape[1])}; it must broadcast to {shape}"
        ) from None


# building --------------------------------------------------------------------------------------------


def row_pointers(lengths: torch.Tensor) -> torch.Tensor:
    """Return where rows of these lengths begin, and the end."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _intervals(begins: torch.Tensor, ends: torch.Tensor, m: int) -> SparseTensor:
    """Build a mask whose row ``i`` has the columns from ``begins[i]`` to before ``ends[i]``."""
    lengths = ends - begins
    pos = row_pointers(lengths)
    count, index = int(pos[-1]), torch.int64
    if not is_dynamo_compiling():  # inside of a graph sizes are unknown
        index = torch.int32 if max(count, m) <= LAST_INT32 else torch.int64
        size = count * (2 * index.itemsize + 1)  # two arrays of columns at a time, and the values
        hint = "keep fewer pairs, or pass is_causal=True for causal attention without a mask"
        check_budget(size, pos.device, f"a mask of {count:,} pairs", hint)
    crd = torch.arange(count, dtype=index, device=pos.device)
    crd += (begins - pos[:-1]).to(index).repeat_interleave(lengths)
    return _mask(pos, crd, m)


def _blocks(
    neighbours: Sequence[torch.Tensor], block: int, n: int, m: int, device: torch.device
) -> SparseTensor:
    """Build a mask whose block ``i`` of rows has the columns of the sorted blocks ``neighbours[i]``."""
    offsets = torch.arange(block, device=device)
    lengths, coordinates = [], []
    for i, blocks in enumerate(neighbours):
        columns = (blocks[:, None] * block + offsets).flatten()
        columns = columns[columns < m]
        rows = min(block, n - i * block)
        lengths.append(torch.full((rows,), columns.numel(), device=device))
        coordinates.append(columns.to(torch.int32 if m <= LAST_INT32 else torch.int64).repeat(rows))
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return _mask(
        row_pointers(torch.cat([none, *lengths])), torch.cat(coordinates) if coordinates else none, m
    )


def _mask(pos: torch.Tensor, crd: torch.Tensor, m: int, rows: tuple[int, ...] | None = None) -> SparseTensor:
    """Build a csr tensor of True; with several dimensions of ``rows``, a batch of them."""
    shape = (*(rows or (pos.numel() - 1,)), m)
    return csr_from_rows(pos, crd, torch.ones(crd.numel(), dtype=torch.bool, device=crd.device), shape)


def csr_from_rows(
    pos: torch.Tensor, crd: torch.Tensor, values: torch.Tensor, shape: tuple[int, ...]
) -> SparseTensor:
    """Build a csr tensor of this shape, whose rows are those of all matrices of the batch in turn."""
    # inside of a graph sizes are unknown
    is_small = not is_dynamo_compiling() and max(crd.numel(), shape[-1]) <= LAST_INT32
    index = torch.int32 if is_small else torch.int64
    return rows_tensor(pos.to(index), crd.to(index), values, shape)
