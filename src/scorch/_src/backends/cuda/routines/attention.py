"""Attention with sparse masks on CUDA devices, forward and backward, on tensor cores: ``c/attention.cu``.

Nothing is stored for pairs: backward computes the weights of tiles again, once for the gradients of queries
and once for those of keys and values. Masks whose tiles would be nearly empty take a warp for a query or key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from scorch._src.backends.by_torch.attention import Heads
from scorch._src.backends.cuda.device import nvrtc
from scorch._src.backends.cuda.device.cost import tells
from scorch._src.backends.cuda.device.driver import ALIGNMENT, in_context
from scorch._src.backends.cuda.device.kernel import CudaKernel, read_text, refuse
from scorch._src.backends.cuda.device.streams import check_waiting
from scorch._src.backends.cuda.routines.attention_blocks import MIN_PAIRS, ROWS, CudaBlocks, make_work
from scorch._src.backends.cuda.routines.attention_plan import (
    MAX_BLOCKS,
    THREADS,
    AttentionPlan,
    Size,
    marked,
    readable,
)
from scorch._src.backends.cuda.routines.levels import CudaLevels
from scorch._src.backends.launcher import address_of
from scorch._src.backends.print.cuda import print_prelude
from scorch._src.backends.print.functions import helpers
from scorch._src.loops.types import LAST_INT32

Tensor = torch.Tensor

MAX_FEATURES = 128
STEP = 16  # to a multiple of which features are padded
MIN_CAPABILITY = (8, 0)  # for copies while others compute, and products of bfloat16

# The type of elements, and the bits of their exponent, or of all of float32.
KINDS = {torch.float32: ("f32", 32), torch.float16: ("u16", 5), torch.bfloat16: ("u16", 8)}


def print_tiles(index: torch.dtype) -> str:
    """The CUDA source of what finds the tiles of masks."""
    return "\n\n".join([print_prelude(), f"#define INDEX {_index(index)}", read_text("attention_tiles.cu")])


def print_attention(
    dtype: torch.dtype, deep: int, wide: int, stages: int, dropout: bool, index: torch.dtype | None = None
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
        size = self._size(query, value, heads)
        if size is None:
            return None
        device = query.device
        with in_context(device):
            inputs = self._readable((query, key, value), size, heads)
            plan = self._plan(inputs, size, heads)
            if plan is None:
                return None
            rows, width = query.shape[-2], value.shape[-1]
            out = query.new_empty(*heads.batch, rows, size.wide)
            L = query.new_empty(*heads.batch, rows, dtype=torch.float32)
            self._run(plan, heads, [*inputs, out, L])
        return (out if width == size.wide else out[..., :width].contiguous()), L

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
        size = self._size(query, value, heads)
        assert size is not None, "there is no attention without blocks"
        with in_context(query.device):
            inputs = self._readable((query, key, value, gradient), size, heads)
            plan = self._plan(inputs, size, heads)
            assert plan is not None, "there is no attention without a kernel"
            if value.shape[-1] != size.wide:
                out = F.pad(out, (0, size.wide - value.shape[-1]))
            dQ, dK, dV = (
                query.new_empty(*heads.batch, like.shape[-2], features)
                for like, features in ((query, size.deep), (key, size.deep), (value, size.wide))
            )
            self._run(plan, heads, [*inputs, out, state, torch.empty_like(state), dQ, dK, dV])
        depth, width = query.shape[-1], value.shape[-1]
        return dQ[..., :depth], dK[..., :depth], dV[..., :width]

    def _size(self, query: Tensor, value: Tensor, heads: Heads) -> Size | None:
        """Return the features that kernels take; None where no kernel is for them."""
        blocks, dtype = heads.blocks, query.dtype
        largest = max(query.shape[-1], value.shape[-1])
        if (
            blocks is None
            or dtype not in KINDS
            or largest > MAX_FEATURES
            or blocks.pos.device != query.device
        ):
            kind = str(dtype).removeprefix("torch.")
            refuse(f"{kind} has no kernel" if dtype not in KINDS else f"there are {largest} features")
            return None
        deep, wide = (max(STEP, -(-size // STEP) * STEP) for size in (query.shape[-1], value.shape[-1]))
        size = Size(deep, wide, 2)
        if blocks.words is not None:
            most = self.shared_memory(query.device)
            while size.stages and size.shared_bytes(dtype, is_forward=False) > most:
                size = size._replace(stages=size.stages - 1)
        return size if size.stages else None

    def _readable(self, tensors: Sequence[Tensor], size: Size, heads: Heads) -> list[Tensor]:
        return [
            readable(each, features, heads.batch)
            for each, features in zip(tensors, size.of_operands, strict=False)
        ]

    def _plan(self, inputs: Sequence[Tensor], size: Size, heads: Heads) -> AttentionPlan | None:
        """Return the launches for tensors like these; None where there is no kernel."""
        if heads.dropout:  # each call has a seed of its own
            return self._make_plan(inputs, size, heads)
        blocks: CudaBlocks = heads.blocks
        forms = [(each.shape, each.stride()) for each in inputs]
        masks = () if blocks.matrices == 1 else (*heads.masks,)
        key = (inputs[0].dtype, *forms, size, heads.batch, masks, heads.scale, heads.skipped is None)
        plan = blocks.plans.get(key)
        if plan is None:
            plan = self._make_plan(inputs, size, heads)
            if plan is not None:
                blocks.plans[key] = plan
        return plan

    def _make_plan(self, inputs: Sequence[Tensor], size: Size, heads: Heads) -> AttentionPlan | None:
        blocks: CudaBlocks = heads.blocks
        index = blocks.pos.dtype if blocks.words is None else None
        kernel = self._kernel(print_attention, inputs[0].dtype, *size, heads.dropout > 0, index)
        if not kernel.is_ready():
            return None
        plan = AttentionPlan(kernel, inputs, heads, size)
        kernel.prepare(plan.functions, inputs[0].device.index or 0)
        return plan

    def _run(self, plan: AttentionPlan, heads: Heads, tensors: list[Tensor]) -> None:
        if heads.skipped is not None:
            tensors.append(marked(heads.skipped, heads))
        if plan.launches is not None:
            self.launch_all(plan.launches, 0, *tensors, *plan.allocate_parts())

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
