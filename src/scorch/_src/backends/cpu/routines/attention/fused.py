"""Sparse attention of all heads in one call, forward and backward.

Memory follows queries, keys and values: nothing is stored for pairs. ``source`` has the C text.
"""

from __future__ import annotations

import array
import bisect
import itertools
import math
from collections.abc import Sequence

import torch

from scorch._src.backends.by_torch.attention import Heads
from scorch._src.backends.cpu import invoke, jit, parallel
from scorch._src.backends.cpu.routines.attention.blocks import Blocks
from scorch._src.backends.cpu.routines.attention.source import CHUNK, ROWS, source
from scorch._src.backends.launcher import address_of
from scorch._src.dataclass import dataclass
from scorch._src.events import emits

MIN_PAIRS_PER_THREAD = 1 << 12
_ELEMENTS = {torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True)
class _Shares:
    """The blocks of all heads with which threads begin, and their end; ``parallel``: how to run them."""

    parallel: int
    bounds: list[int]
    inside: list[int]  # the threads that begin in the middle of a head

    @property
    def threads(self) -> int:
        return len(self.bounds) - 1


def _shares(heads: Heads, blocks: Blocks) -> _Shares:
    """Split the blocks into shares of about the same cost."""
    costs = blocks.costs
    before = [0, *itertools.accumulate(costs[mask][-1] for mask in heads.masks)]
    runtime, threads = parallel.shared_by(before[-1], MIN_PAIRS_PER_THREAD)
    bounds = [0]
    for thread in range(1, threads):
        wanted = before[-1] * thread // threads
        head = bisect.bisect_right(before, wanted) - 1
        block = bisect.bisect_left(costs[heads.masks[head]], wanted - before[head])
        bounds.append(head * blocks.count + block)
    inside = [thread for thread, at in enumerate(bounds) if at % blocks.count]
    return _Shares(runtime, [*bounds, heads.count * blocks.count], inside)


def is_able(dtype: torch.dtype) -> bool:
    """Check whether this machine can compile the routines for ``dtype``."""
    return bool(_address(dtype, "forward"))


@emits("attention at the entries of a mask")
def forward(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, heads: Heads
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result, and the maximum and one by the sum of each query, for the backward pass."""
    rows, width = Q.shape[-2], V.shape[-1]
    out = torch.empty(*heads.batch, rows, width, dtype=Q.dtype, device="cpu")
    state = torch.empty(*heads.batch, rows, 2, dtype=Q.dtype, device="cpu")
    if heads.count and rows:
        assert heads.blocks is not None
        _call("forward", (Q, K, V), heads, heads.blocks, _shares(heads, heads.blocks), [out, state])
    return out, state


@emits("gradients of attention at the entries of a mask")
def backward(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    heads: Heads,
    out: torch.Tensor,
    state: torch.Tensor,
    gradient: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of queries, keys and values, for each head."""
    keys, depth, width = K.shape[-2], Q.shape[-1], V.shape[-1]
    deep, wide = (-(-size // ROWS) * ROWS for size in (depth, width))
    dQ = torch.empty(*heads.batch, *Q.shape[-2:], dtype=Q.dtype, device="cpu")
    dK, dV = (torch.zeros(*heads.batch, keys, size, dtype=Q.dtype, device="cpu") for size in (deep, wide))
    if heads.count and Q.shape[-2]:
        assert heads.blocks is not None
        shares = _shares(heads, heads.blocks)
        own = torch.zeros(len(shares.inside), keys * (deep + wide), dtype=Q.dtype, device="cpu")
        places = [0] * shares.threads
        for memory, thread in zip(own, shares.inside, strict=True):
            places[thread] = memory.data_ptr()
        arrays = [out, state, gradient.contiguous(), dQ, dK, dV]
        _call("backward", (Q, K, V), heads, heads.blocks, shares, arrays, places)
        for memory, thread in zip(own, shares.inside, strict=True):
            head = shares.bounds[thread] // heads.blocks.count
            more = memory.split([keys * deep, keys * wide])
            dK.view(heads.count, -1)[head] += more[0]
            dV.view(heads.count, -1)[head] += more[1]
    return dQ, dK[..., :depth], dV[..., :width]


def _call(
    what: str,
    operands: Sequence[torch.Tensor],
    heads: Heads,
    blocks: Blocks,
    shares: _Shares,
    outputs: Sequence[torch.Tensor],
    own: Sequence[int] = (),
) -> None:
    """Call a routine with its arguments in the order of ``source.ARGUMENTS``."""
    Q, K, V = (_in_rows(tensor) for tensor in operands)
    dropout_scale = 1 / (1 - heads.dropout) if heads.dropout < 1 else 0.0
    numbers = array.array("d", [heads.scale / math.log(2), heads.scale, dropout_scale])
    skipped = heads.skipped
    skips = None if skipped is None else skipped.expand(*heads.batch, -1).contiguous().view(torch.uint8)
    deep, wide = (-(-tensor.shape[-1] // ROWS) * ROWS for tensor in (Q, V))
    size = ROWS * (2 * deep + 2 * wide + max(deep, wide) + 2 * CHUNK) + max(deep, wide)
    scratch = torch.empty(shares.threads, size, dtype=Q.dtype, device="cpu")
    keys = [] if skips is None else [head * blocks.keys for head in range(heads.count)]
    offsets = (_offsets(tensor, heads.batch) for tensor in (Q, K, V))
    lists = [array.array("q", some) for some in (shares.bounds, heads.masks, keys, own, *offsets)]
    bounds, masks, key_at, own_at, *heads_at = (some.buffer_info()[0] for some in lists)
    slots = [shares.parallel, shares.threads, blocks.queries, blocks.keys, Q.shape[-1], V.shape[-1]]
    slots += [blocks.count, bounds, masks, *blocks.addresses]
    slots += [numbers.buffer_info()[0], *heads.seed, math.ceil(heads.dropout * 2**32)]
    slots += [0 if skips is None else skips.data_ptr(), key_at]
    for tensor, places in zip((Q, K, V), heads_at, strict=True):
        slots += [address_of(tensor), places, tensor.stride(-2)]
    slots += [outputs[0].data_ptr(), outputs[1].data_ptr(), scratch.data_ptr(), size]
    slots += [*(tensor.data_ptr() for tensor in outputs[2:]), own_at] if own else [0] * 5
    invoke.make_caller().call(_address(Q.dtype, what), *slots)


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose rows have no gaps; rows and heads may lie anywhere."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def _offsets(tensor: torch.Tensor, batch: tuple[int, ...]) -> list[int]:
    """Return where each head begins, in elements."""
    steps = tensor.expand(*batch, *tensor.shape[-2:]).stride()
    offsets = [0]
    for size, step in zip(batch, steps, strict=False):
        offsets = [place + i * step for place in offsets for i in range(size)]
    return offsets


def _address(dtype: torch.dtype, what: str) -> int:
    return jit.function_address(source(_ELEMENTS[dtype]), "sparse attention", f"scorch_attention_{what}")
