"""Attention with sparse masks on CUDA devices, forward and backward, on tensor cores: ``c/attention.cu``.

Nothing is stored for pairs: backward computes the weights of tiles again, once for the gradients of queries
and once for those of keys and values. Masks whose tiles would be nearly empty take a warp for a query or key.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.cuda.device import nvrtc
from scorch._src.backends.cuda.device.cost import tells
from scorch._src.backends.cuda.device.driver import ALIGNMENT, in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, read_text, refuse
from scorch._src.backends.cuda.device.streams import check_waiting
from scorch._src.backends.cuda.routines.attention_blocks import MIN_PAIRS, ROWS, CudaBlocks, Work, make_work
from scorch._src.backends.cuda.routines.levels import CudaLevels
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.print.functions import helpers
from scorch._src.backends.routines import Heads
from scorch._src.loops.types import LAST_INT32

Tensor = torch.Tensor

THREADS = 128  # of a block
MAX_BLOCKS = 1 << 30
MAX_FEATURES = 128
STEP = 16  # to a multiple of which features are padded
BATCH_DIMS = 3  # that kernels take
MIN_CAPABILITY = (8, 0)  # for copies while others compute, and products of bfloat16

BACKWARD = [f"scorch_attention_{what}" for what in ("delta", "queries", "keys")]

# The type of elements, and the bits of their exponent, or of all of float32.
KINDS = {torch.float32: ("f32", 32), torch.float16: ("u16", 5), torch.bfloat16: ("u16", 8)}


def print_tiles(index: torch.dtype) -> str:
    """The CUDA source of what finds the tiles of masks."""
    return "\n\n".join([print_prelude(), f"#define INDEX {_index(index)}", read_text("attention_tiles.cu")])


def print_attention(
    dtype: torch.dtype, deep: int, wide: int, dropout: bool, stages: int, index: torch.dtype | None = None
) -> str:
    """The CUDA source of attention: by pairs with coordinates of a dtype ``index``, by tiles without."""
    element, kind = KINDS[dtype]
    lines = [f"#define T {element}", f"#define T_KIND {kind}"]
    lines += [f"#define DEEP {deep}", f"#define WIDE {wide}", f"#define INDEX {_index(index)}"]
    for name, size in (("K_ALIGN", deep), ("V_ALIGN", wide)):
        some = size // 8 * dtype.itemsize
        lines.append(f"#define {name} {min(ALIGNMENT, some & -some)}")
    lines += ["#define DROPOUT"] * dropout
    lines += [f"#define STAGES {stages}"] if index is None else []
    used = [helpers()[name] for name in ("from_bf16", "from_f16") if kind != 32]
    main = "attention.cu" if index is None else "attention_pairs.cu"
    return "\n\n".join([print_prelude(), *used, "\n".join(lines), read_text("attention_common.cu", main)])


def _index(dtype: torch.dtype | None) -> str:
    return "i64" if dtype == torch.int64 else "i32"


def shared_bytes(dtype: torch.dtype, deep: int, wide: int, stages: int, is_forward: bool) -> int:
    """Return the shared memory of a block: its own rows, and tiles of the other side."""
    deep_rows, wide_rows = (ROWS * (size + 8) * dtype.itemsize for size in (deep, wide))
    own = deep_rows if is_forward else deep_rows + wide_rows
    return own + stages * (deep_rows + wide_rows + ROWS * 16)


class CudaAttention(CudaLevels):
    """Attention by tiles, or pair by pair in a kernel. Without a kernel it runs in torch's operations."""

    attention_dtypes = tuple(KINDS)

    def __init__(self) -> None:
        super().__init__()
        self._kernels: dict[Any, CudaKernel] = {}

    def can_attend(self, device: torch.device) -> bool:
        """Check whether a device can run the kernels."""
        if device.type != "cuda" or not nvrtc.is_there():
            return False
        return torch.cuda.get_device_capability(device) >= MIN_CAPABILITY

    def attention_blocks(
        self, pos: Tensor, crd: Tensor, matrices: int, queries: int, keys: int
    ) -> CudaBlocks | None:
        if max(queries, keys) > LAST_INT32 or not self.can_attend(pos.device):
            return None
        device = pos.device
        check_waiting(device, "the tiles of a mask")
        pos, crd = pos.contiguous(), crd.contiguous()
        blocks = -(-queries // ROWS)
        count = matrices * blocks
        kernel = self._kernel(print_tiles, pos.dtype)
        with in_context(device):
            if not kernel.is_ready():
                return None
            counts = torch.zeros(count, dtype=torch.int64, device=device)
            given = [address_of(pos), address_of(crd), queries, blocks, count]
            launched = -(-count * 32 // THREADS)
            self._launch(kernel, "tiles", [*given, counts.data_ptr(), 0, 0, 0], launched, 0, device)
            begin = torch.zeros(count + 1, dtype=torch.int64, device=device)
            torch.cumsum(counts, 0, out=begin[1:])
            tiles = int(begin[-1])
            if tiles * ROWS * MIN_PAIRS > crd.numel():
                return CudaBlocks(queries, keys, matrices, pos, crd)
            across = torch.empty(tiles, dtype=torch.int32, device=device)
            words = torch.empty(tiles, ROWS, dtype=torch.int64, device=device)
            filled = [begin.data_ptr(), across.data_ptr(), words.data_ptr()]
            self._launch(kernel, "tiles", [*given, 0, *filled], launched, 0, device)
        work = make_work(begin, matrices, across, None)
        return CudaBlocks(queries, keys, matrices, pos, crd, words, begin, work)

    @tells("attention at the entries of a mask")
    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, heads: Heads
    ) -> tuple[Tensor, Tensor] | None:
        call = self._call(query, key, value, heads)
        if call is None:
            return None
        rows, width = query.shape[-2], value.shape[-1]
        out = query.new_empty(*heads.batch, rows, call.wide)
        L = query.new_empty(*heads.batch, rows, dtype=torch.float32)
        with in_context(query.device):
            call.run("forward", out=out, L=L)
        return out[..., :width].contiguous(), L

    @tells("gradients of attention at the entries of a mask")
    def attention_backward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: Heads,
        out: Tensor,
        state: Tensor,
        gradient: Tensor,
        /,
    ) -> tuple[Tensor, Tensor, Tensor]:
        call = self._call(query, key, value, heads, gradient)
        assert call is not None, "there is no attention without blocks"
        out = call.padded(out, call.wide).contiguous()
        delta = torch.empty_like(state)
        dQ, dK, dV = (
            query.new_empty(*heads.batch, like.shape[-2], size)
            for like, size in ((query, call.deep), (key, call.deep), (value, call.wide))
        )
        with in_context(query.device):
            call.kernel.prepare(BACKWARD, query.device.index or 0)
            call.run("delta", out=out, delta=delta)
            call.run("queries", L=state, delta=delta, dQ=dQ)
            call.run("keys", L=state, delta=delta, dK=dK, dV=dV)
        depth, width = query.shape[-1], value.shape[-1]
        return dQ[..., :depth], dK[..., :depth], dV[..., :width]

    def _call(
        self, query: Tensor, key: Tensor, value: Tensor, heads: Heads, gradient: Tensor | None = None
    ) -> _Call | None:
        """Prepare a call; None where no kernel is for it."""
        blocks, dtype, device = heads.blocks, query.dtype, query.device
        largest = max(query.shape[-1], value.shape[-1])
        if blocks is None or dtype not in KINDS or largest > MAX_FEATURES or blocks.pos.device != device:
            kind = str(dtype).removeprefix("torch.")
            refuse(f"{kind} has no kernel" if dtype not in KINDS else f"there are {largest} features")
            return None
        deep, wide = (max(STEP, -(-size // STEP) * STEP) for size in (query.shape[-1], value.shape[-1]))
        stages = 2
        index = blocks.pos.dtype if blocks.words is None else None
        if index is None:
            most = self.shared_memory(device)
            while stages and shared_bytes(dtype, deep, wide, stages, is_forward=False) > most:
                stages -= 1
            if not stages:
                return None
        kernel = self._kernel(print_attention, dtype, deep, wide, heads.dropout > 0, stages, index)
        with in_context(device):
            if not kernel.is_ready():
                return None
        return _Call(self, kernel, (query, key, value, gradient), heads, (deep, wide, stages))

    def _kernel(self, print_text: Any, *key: Any) -> CudaKernel:
        known = (print_text, *key)
        kernel = self._kernels.get(known)
        if kernel is None:
            first = "tiles" if print_text is print_tiles else "forward"
            names = [f"scorch_attention_{first}"]
            kernel = self.make_kernel(print_text(*key), "attention at the entries of a mask", names)
            self._kernels[known] = kernel
        return kernel

    def _launch(
        self,
        kernel: CudaKernel,
        name: str,
        slots: Sequence[int],
        blocks: int,
        shared: int,
        device: torch.device,
    ) -> None:
        if blocks:
            number = device.index or 0
            blocks = min(blocks, MAX_BLOCKS)
            kernel.launch_blocks(f"scorch_attention_{name}", slots, blocks, THREADS, shared, number)


class _Call:
    """The arguments that the kernels of a call share."""

    def __init__(
        self,
        routines: CudaAttention,
        kernel: CudaKernel,
        operands: Sequence[Tensor | None],
        heads: Heads,
        form: tuple[int, int, int],
    ) -> None:
        self.routines, self.kernel, self.heads = routines, kernel, heads
        self.deep, self.wide, self.stages = form
        self.blocks: CudaBlocks = heads.blocks
        query = operands[0]
        assert query is not None
        self.dtype, self.device = query.dtype, query.device
        self.kept: list[Tensor] = []  # alive until kernels are launched
        sizes = (self.deep, self.deep, self.wide, self.wide)
        self.views = [s for t, size in zip(operands, sizes, strict=True) for s in self._view(t, size)]
        batch = heads.batch if len(heads.batch) <= BATCH_DIMS else (heads.count,)
        rest = [*(1,) * (BATCH_DIMS - len(batch)), *batch, heads.count, self.blocks.queries, self.blocks.keys]
        scale = 1 / (1 - heads.dropout) if heads.dropout < 1 else 0.0
        rest += [_bits(number) for number in (heads.scale / math.log(2), heads.scale, scale)]
        self.rest = [*rest, *heads.seed, math.ceil(heads.dropout * 2**32)]
        self.visible = self.skipped = 0
        if heads.skipped is not None:
            self._mark(heads.skipped)

    def run(self, what: str, **arrays: Tensor) -> None:
        """Run the kernel ``what`` for all heads, and one that joins the parts of blocks that were cut."""
        outputs = [_address(arrays.get(name)) for name in ("out", "dQ", "dK", "dV", "L", "delta")]
        slots = [*self.views, *outputs, *self.rest]
        rows = self.heads.count * (self.blocks.keys if what == "keys" else self.blocks.queries)
        if what == "delta":
            self._launch(what, [*slots, rows, *[0] * 12], -(-rows * 8 // THREADS), 0)
        elif self.blocks.words is None:
            pos, crd = self.blocks.pairs_of_keys if what == "keys" else (self.blocks.pos, self.blocks.crd)
            masks = self.blocks.masks_of(self.heads.masks)
            pairs = [_address(masks), self.skipped, address_of(pos), address_of(crd)]
            self._launch(what, [*slots, rows, *[0] * 8, *pairs], -(-rows * 32 // THREADS), 0)
        else:
            self._run_tiles(what, slots, self.blocks.words)

    def _run_tiles(self, what: str, slots: Sequence[int], words: Tensor) -> None:
        is_forward = what == "forward"
        work = self.blocks.of_keys if what == "keys" else self.blocks.of_queries
        assert work is not None
        side = "keys" if what == "keys" else "queries"
        units, turns, cut_units, cut_turns = self.blocks.units_of(side, self.heads.masks)
        width = {"forward": self.wide + 2, "queries": self.deep, "keys": self.deep + self.wide}[what]
        size = self.heads.count * work.slots * ROWS * width
        parts = torch.empty(size, dtype=torch.float32, device=self.device)
        tail = self._tail(work, words, parts)
        shared = shared_bytes(self.dtype, self.deep, self.wide, self.stages, is_forward)
        given = [turns, _address(units), address_of(work.items), *tail]
        self._launch(what, [*slots, *given], turns, shared)
        given = [cut_turns, _address(cut_units), address_of(work.cut), *tail]
        self._launch(f"{what}_join", [*slots, *given], cut_turns, 0)

    def _tail(self, work: Work, words: Tensor, parts: Tensor) -> list[int]:
        tiles = [address_of(work.across), _address(work.numbers), address_of(words), self.visible]
        return [*tiles, parts.data_ptr(), work.slots, 0, 0, 0, 0]

    def _launch(self, name: str, slots: Sequence[int], blocks: int, shared: int) -> None:
        self.routines._launch(self.kernel, name, slots, blocks, shared, self.device)

    def _view(self, tensor: Tensor | None, size: int) -> list[int]:
        """Describe rows of all heads that begin at multiples of 16 bytes, in a copy where need be."""
        if tensor is None:
            return [0] * (2 + BATCH_DIMS)
        tensor, batch = self.padded(tensor, size), self.heads.batch
        run = ALIGNMENT // tensor.element_size()
        steps = [step for step, many in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True) if many > 1]
        is_aligned = tensor.data_ptr() % ALIGNMENT == 0 and not any(step % run for step in steps)
        if not is_aligned or tensor.stride(-1) != 1:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        tensor = tensor.expand(*batch, *tensor.shape[-2:])
        if len(batch) > BATCH_DIMS:
            tensor = tensor.reshape(-1, *tensor.shape[-2:])
        self.kept.append(tensor)
        jumps = tensor.stride()[:-2]
        return [address_of(tensor), tensor.stride(-2), *(0,) * (BATCH_DIMS - len(jumps)), *jumps]

    def padded(self, tensor: Tensor, size: int) -> Tensor:
        """Add features of zeros."""
        return tensor if tensor.shape[-1] == size else F.pad(tensor, (0, size - tensor.shape[-1]))

    def _mark(self, skipped: Tensor) -> None:
        """Mark the keys that are skipped: a byte for each, or for tiles a bit for each that is not."""
        batch, keys = self.heads.batch, self.blocks.keys
        if self.blocks.words is None:
            self.kept.append(skipped.expand(*batch, keys).contiguous().view(torch.uint8))
            self.skipped = address_of(self.kept[-1])
            return
        seen = F.pad(~skipped, (0, -keys % ROWS)).unflatten(-1, (-1, ROWS)).long()
        words = (seen << torch.arange(ROWS, device=seen.device)).sum(-1)
        self.kept.append(words.expand(*batch, words.shape[-1]).contiguous())
        self.visible = address_of(self.kept[-1])


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else address_of(tensor)


def _bits(number: float) -> int:
    """Return a float64 as the integer with the same bits."""
    bits: int = struct.unpack("q", struct.pack("d", number))[0]
    return bits
