"""Sparse attention of all heads in one call, forward and backward.

Memory follows queries, keys and values: nothing is kept for pairs. ``attention_source`` has the C text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scorch.runtime import invoke, jit
from scorch.runtime.attention_blocks import Blocks
from scorch.runtime.attention_source import source
from scorch.runtime.attention_tiles import CHUNK, ROWS

EACH = 1 << 12  # pairs for each thread
_ELEMENTS = {torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True)
class Heads:
    """What all heads of a call have in common, and which mask each has.

    ``skipped``: keys that nobody sees, as bools of shape (batch..., keys) that broadcast. ``dropout`` is the
    share of pairs left out; which ones follows from ``seed``.
    """

    blocks: Blocks | None
    batch: tuple[int, ...]
    matrices: torch.Tensor  # the number of the mask of each head
    scale: float
    dropout: float = 0.0
    seed: tuple[int, int] = (0, 0)
    skipped: torch.Tensor | None = None

    @property
    def count(self) -> int:
        return math.prod(self.batch)

    def bounds(self, threads: int) -> tuple[torch.Tensor, list[int]]:
        """The block of all heads with which each thread begins, and which of them are not a head's first."""
        blocks = self.blocks.count
        own = self.blocks.costs[self.matrices]  # before each block, head by head
        before = torch.cumsum(own[:, -1], 0) - own[:, -1]
        starts = (own[:, :-1] + before[:, None]).flatten()
        total = int(before[-1] + own[-1, -1])
        wanted = torch.tensor([total * thread // threads for thread in range(threads)])
        found = torch.searchsorted(starts, wanted)
        places = torch.cat([found, torch.tensor([self.count * blocks])])
        return places, [thread for thread, at in enumerate(found.tolist()) if at % blocks]


def is_able(dtype: torch.dtype) -> bool:
    """Whether this machine can compile the routines for ``dtype``."""
    return bool(_address(dtype, "forward"))


def forward(
    Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, heads: Heads
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the maximum and one by the sum of each query, for the backward pass."""
    rows, width = Q.shape[-2], V.shape[-1]
    out = torch.empty(*heads.batch, rows, width, dtype=Q.dtype, device="cpu")
    state = torch.empty(*heads.batch, rows, 2, dtype=Q.dtype, device="cpu")
    if heads.count and rows:
        threads = invoke.threads_for(_work(heads), EACH)
        bounds, _ = heads.bounds(threads[1])
        _call("forward", (Q, K, V), heads, threads, bounds, [out, state])
    return out, state


def backward(
    Q: torch.Tensor,
    K: torch.Tensor,
    V: torch.Tensor,
    heads: Heads,
    out: torch.Tensor,
    state: torch.Tensor,
    gradient: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of queries, keys and values, for each head."""
    keys, depth, width = K.shape[-2], Q.shape[-1], V.shape[-1]
    deep, wide = (-(-size // ROWS) * ROWS for size in (depth, width))
    dQ = torch.empty(*heads.batch, *Q.shape[-2:], dtype=Q.dtype, device="cpu")
    dK, dV = (torch.zeros(*heads.batch, keys, size, dtype=Q.dtype, device="cpu") for size in (deep, wide))
    if heads.count and Q.shape[-2]:
        threads = invoke.threads_for(_work(heads), EACH)
        bounds, inside = heads.bounds(threads[1])
        own = torch.zeros(len(inside), keys * (deep + wide), dtype=Q.dtype, device="cpu")
        places = torch.zeros(threads[1], dtype=torch.int64, device="cpu")
        for number, thread in enumerate(inside):
            places[thread] = own[number].data_ptr()
        made = [out, state, gradient.contiguous(), dQ, dK, dV, places]
        _call("backward", (Q, K, V), heads, threads, bounds, made)
        for number, thread in enumerate(inside):
            head = int(bounds[thread]) // heads.blocks.count
            more = own[number].split([keys * deep, keys * wide])
            dK.view(heads.count, -1)[head] += more[0]
            dV.view(heads.count, -1)[head] += more[1]
    return dQ, dK[..., :depth], dV[..., :width]


def _work(heads: Heads) -> int:
    return int(heads.blocks.costs[heads.matrices, -1].sum())


def _call(
    what: str,
    given: Sequence[torch.Tensor],
    heads: Heads,
    threads: tuple[int, int],
    bounds: torch.Tensor,
    made: Sequence[torch.Tensor],
) -> None:
    """Call a routine with its arguments in the order of ``attention_source.ARGUMENTS``."""
    blocks, (Q, K, V) = heads.blocks, (_in_rows(tensor) for tensor in given)
    numbers = [heads.scale / math.log(2), heads.scale, 1 / (1 - heads.dropout) if heads.dropout < 1 else 0.0]
    constants = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    skipped = heads.skipped
    skips = None if skipped is None else skipped.expand(*heads.batch, -1).contiguous().view(torch.uint8)
    deep, wide = (-(-tensor.shape[-1] // ROWS) * ROWS for tensor in (Q, V))
    size = ROWS * (2 * deep + 2 * wide + max(deep, wide) + 2 * CHUNK) + max(deep, wide)
    scratch = torch.empty(threads[1], size, dtype=Q.dtype, device="cpu")
    offsets = [_offsets(tensor, heads.batch) for tensor in (Q, K, V)]
    arrays = [bounds, heads.matrices, blocks.begin, blocks.columns, blocks.masks]
    key_places = torch.arange(heads.count) * blocks.keys
    slots = [*threads, blocks.queries, blocks.keys, Q.shape[-1], V.shape[-1], blocks.count]
    slots += [array.data_ptr() for array in arrays]
    slots += [int(blocks.pos.dtype == torch.int64), blocks.pos.data_ptr(), blocks.crd.data_ptr()]
    slots += [constants.data_ptr(), *heads.seed, math.ceil(heads.dropout * 2**32)]
    slots += [0 if skips is None else skips.data_ptr(), key_places.data_ptr()]
    for tensor, places in zip((Q, K, V), offsets, strict=True):
        slots += [tensor.data_ptr(), places.data_ptr(), tensor.stride(-2)]
    slots += [made[0].data_ptr(), made[1].data_ptr(), scratch.data_ptr(), size]
    slots += [tensor.data_ptr() for tensor in made[2:]] or [0] * 5
    invoke.make_caller().call(_address(Q.dtype, what), *slots)


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose rows have no gaps; rows and heads may lie anywhere."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def _offsets(tensor: torch.Tensor, batch: tuple[int, ...]) -> torch.Tensor:
    """Where each head begins, in elements."""
    spread = tensor.expand(*batch, *tensor.shape[-2:])
    found = torch.zeros(batch, dtype=torch.int64, device="cpu")
    for dim, size in enumerate(batch):
        steps = torch.arange(size, device="cpu") * spread.stride(dim)
        found += steps.view(-1, *[1] * (len(batch) - dim - 1))
    return found


def _address(dtype: torch.dtype, what: str) -> int:
    return jit.function_address(source(_ELEMENTS[dtype]), "sparse attention", f"scorch_attention_{what}")
