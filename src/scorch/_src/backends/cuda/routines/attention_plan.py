"""The launches of attention on CUDA devices, planned once for tensors of the same form and a mask."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from scorch._src.backends.by_torch.attention import Heads
from scorch._src.backends.cuda.device.builtins import Address, LaunchList, Slot
from scorch._src.backends.cuda.device.driver import ALIGNMENT
from scorch._src.backends.cuda.device.kernel import CudaKernel, Launch
from scorch._src.backends.cuda.device.streams import like_of
from scorch._src.backends.cuda.routines.attention_blocks import ROWS, CudaBlocks, Work
from scorch._src.backends.launcher import address_of

Tensor = torch.Tensor

THREADS = 128  # of a block
MAX_BLOCKS = 1 << 30
BATCH_DIMS = 3  # that kernels take
FORWARD = ("forward",)
BACKWARD = ("delta", "queries", "keys")
GRADIENTS = ("dQ", "dK", "dV")
OUTPUTS = ("out", *GRADIENTS, "L", "delta")


class Size(NamedTuple):
    """Features of queries and keys, and of values, as they are padded, and tiles that are loaded ahead."""

    deep: int
    wide: int
    stages: int

    @property
    def of_operands(self) -> tuple[int, ...]:
        """The features of queries, keys, values and gradients of the result."""
        return self.deep, self.deep, self.wide, self.wide

    def shared_bytes(self, dtype: torch.dtype, is_forward: bool) -> int:
        """Return the shared memory of a block: its own rows, and tiles of the other side."""
        deep_rows, wide_rows = (ROWS * (size + 8) * dtype.itemsize for size in (self.deep, self.wide))
        own = deep_rows if is_forward else deep_rows + wide_rows
        return own + self.stages * (deep_rows + wide_rows + ROWS * 16)


def readable(tensor: Tensor, size: int, batch: Sequence[int]) -> Tensor:
    """Return rows of ``size`` features that begin at multiples of 16 bytes, in a copy where need be."""
    if tensor.shape[-1] != size:
        tensor = F.pad(tensor, (0, size - tensor.shape[-1]))
    elif tensor.stride(-1) != 1 or not _is_aligned(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    if len(batch) <= BATCH_DIMS:
        return tensor
    return tensor.expand(*batch, *tensor.shape[-2:]).reshape(-1, *tensor.shape[-2:])


def _is_aligned(tensor: Tensor) -> bool:
    if tensor.data_ptr() % ALIGNMENT:
        return False
    run = ALIGNMENT // tensor.element_size()
    sizes = zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True)
    return not any([step % run and many > 1 for step, many in sizes])


def marked(skipped: Tensor, heads: Heads) -> Tensor:
    """Mark the keys that are skipped: a byte for each, or for tiles a bit for each that is not."""
    blocks: CudaBlocks = heads.blocks
    if blocks.words is None:
        bytes_of_keys: Tensor = skipped.expand(*heads.batch, blocks.keys).contiguous().view(torch.uint8)
        return bytes_of_keys
    seen = F.pad(~skipped, (0, -blocks.keys % ROWS)).unflatten(-1, (-1, ROWS)).long()
    words = (seen << torch.arange(ROWS, device=seen.device)).sum(-1)
    bits_of_keys: Tensor = words.expand(*heads.batch, words.shape[-1]).contiguous()
    return bits_of_keys


class AttentionPlan:
    """The launches of a pass over tensors of one form; each call passes the tensors.

    ``inputs`` are readable queries, keys, values, and in a backward pass gradients of the result.
    """

    def __init__(self, kernel: CudaKernel, inputs: Sequence[Tensor], heads: Heads, size: Size) -> None:
        self._heads, self._size, self._blocks = heads, size, heads.blocks
        self._dtype, self._device = inputs[0].dtype, inputs[0].device
        passes = BACKWARD if len(inputs) > 3 else FORWARD
        names = [*"QKVG"[: len(inputs)], "out", "L"]
        names += [] if passes is FORWARD else ["delta", *GRADIENTS]
        names += ["skipped"] * (heads.skipped is not None)
        works = (
            {}
            if self._blocks.words is None
            else {name: self._work(name) for name in passes if name != "delta"}
        )
        self.parts = {name: count for name, work in works.items() if (count := self._parts(name, work))}
        self._numbers = {name: number for number, name in enumerate([*names, *self.parts], 1)}
        views = [slot for name, each in zip("QKVG", inputs, strict=False) for slot in self._view(name, each)]
        views += [0] * (2 + BATCH_DIMS) * (4 - len(inputs))
        self._slots = [*views, *map(self._slot, OUTPUTS), *self._rest()]
        self._sets: list[list[Slot]] = []
        self._launches: list[tuple[Launch, int]] = []
        for name in passes:
            if name in works:
                self._add_tiles(name, works[name])
            else:
                self._add_rows(name)
        self.launches = (
            LaunchList(kernel, self._device, self._sets, self._launches) if self._launches else None
        )
        self._likes = [like_of((count,), self._device, torch.float32) for count in self.parts.values()]

    @property
    def functions(self) -> list[str]:
        """The functions that are launched."""
        return [launch.name for launch, _ in self._launches]

    def allocate_parts(self) -> list[Tensor]:
        """Return memory for the parts of blocks that are cut."""
        return [torch.empty_like(like, memory_format=torch.contiguous_format) for like in self._likes]

    def _slot(self, name: str) -> Slot:
        number = self._numbers.get(name)
        return 0 if number is None else Address(number)

    def _view(self, name: str, tensor: Tensor) -> list[Slot]:
        """Describe where rows of all heads begin."""
        batch = self._batch
        lacking = (0,) * (len(batch) - tensor.dim() + 2)
        given = zip(tensor.shape[:-2], tensor.stride()[:-2], strict=True)
        jumps = [*lacking, *(0 if many == 1 else step for many, step in given)]
        return [self._slot(name), tensor.stride(-2), *(0,) * (BATCH_DIMS - len(jumps)), *jumps]

    @property
    def _batch(self) -> tuple[int, ...]:
        batch = self._heads.batch
        return batch if len(batch) <= BATCH_DIMS else (self._heads.count,)

    def _rest(self) -> list[int]:
        heads, batch = self._heads, self._batch
        rest = [
            *(1,) * (BATCH_DIMS - len(batch)),
            *batch,
            heads.count,
            self._blocks.queries,
            self._blocks.keys,
        ]
        kept = 1 / (1 - heads.dropout) if heads.dropout < 1 else 0.0
        rest += [_bits(number) for number in (heads.scale / math.log(2), heads.scale, kept)]
        return [*rest, *heads.seed, math.ceil(heads.dropout * 2**32)]

    def _add_rows(self, name: str) -> None:
        """Launch a kernel that takes a few threads, or a warp, for a row."""
        rows = self._heads.count * (self._blocks.keys if name == "keys" else self._blocks.queries)
        if name == "delta":
            self._add(name, [rows, *[0] * 12], -(-rows * 8 // THREADS))
            return
        pos, crd = self._blocks.pairs_of_keys if name == "keys" else (self._blocks.pos, self._blocks.crd)
        masks = _address(self._blocks.masks_of(self._heads.masks))
        pairs: list[Slot] = [masks, self._slot("skipped"), address_of(pos), address_of(crd)]
        self._add(name, [rows, *[0] * 8, *pairs], -(-rows * 32 // THREADS))

    def _add_tiles(self, name: str, work: Work) -> None:
        """Launch a kernel for the tiles of all heads, and one that joins the parts of blocks that are cut."""
        side = "keys" if name == "keys" else "queries"
        units, turns, cut_units, cut_turns = self._blocks.units_of(side, self._heads.masks)
        tiles: list[Slot] = [address_of(work.across), _address(work.numbers), address_of(self._blocks.words)]
        tail = [*tiles, self._slot("skipped"), self._slot(name), work.slots, 0, 0, 0, 0]
        shared = self._size.shared_bytes(self._dtype, name == "forward")
        self._add(name, [turns, _address(units), address_of(work.items), *tail], turns, shared)
        self._add(f"{name}_join", [cut_turns, _address(cut_units), address_of(work.cut), *tail], cut_turns)

    def _add(self, name: str, more: Sequence[Slot], blocks: int, shared: int = 0) -> None:
        if blocks:
            launch = Launch(f"scorch_attention_{name}", min(blocks, MAX_BLOCKS), THREADS, shared)
            self._launches.append((launch, len(self._sets)))
            self._sets.append([*self._slots, *more])

    def _work(self, name: str) -> Work:
        work: Work | None = self._blocks.of_keys if name == "keys" else self._blocks.of_queries
        assert work is not None
        return work

    def _parts(self, name: str, work: Work) -> int:
        """Return how many numbers the parts of blocks have that are cut."""
        deep, wide, _ = self._size
        width = {"forward": wide + 2, "queries": deep, "keys": deep + wide}[name]
        return self._heads.count * work.slots * ROWS * width


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else address_of(tensor)


def _bits(number: float) -> int:
    """Return a float64 as the integer with the same bits."""
    bits: int = struct.unpack("q", struct.pack("d", number))[0]
    return bits
