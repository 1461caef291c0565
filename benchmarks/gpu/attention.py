"""Attention by a mask of windows and global tokens, 8 heads of 64 in bf16, beside torch's ways to say it.

Dense attention without a mask computes something else; it is what people use who have no better way, and it
is shown, and counted, for its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.gpu.cases import OURS, Case, Prepare
from benchmarks.gpu.matrices import generator_for
from benchmarks.gpu.timing import Call
from scorch._src.nn import masks

HEADS, FEATURES = 8, 64
RADIUS, GLOBAL = 256, 16
LENGTHS = (4_096, 16_384)
DTYPE = torch.bfloat16
TOLERANCE = 3e-2
ROWS = 1_024  # of the reference at a time

Attend = Callable[..., torch.Tensor]


def attention(device: str, directory: Path | None, tiny: bool) -> Iterator[Case]:
    """Forward passes alone, then with gradients, at each length."""
    for n in (64,) if tiny else LENGTHS:
        for kind in ("forward", "both"):
            yield _case(n, kind, device, tiny)


def _case(n: int, kind: str, device: str, tiny: bool) -> Case:
    radius, few = (8, 2) if tiny else (RADIUS, GLOBAL)
    draw = generator_for(f"attention {n}", device)
    *qkv, G = (torch.randn(1, HEADS, n, FEATURES, generator=draw, device=device).to(DTYPE) for _ in range(4))

    def sees(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return ((q - k).abs() <= radius) | (q < few) | (k < few)

    def sparse() -> Attend:
        mask = masks.window(n, radius, device=device) | masks.global_tokens(n, few, device=device)
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask)

    def dense_mask() -> Attend:
        places = torch.arange(n, device=device)
        mask = sees(places[:, None], places[None])
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask)

    def flex() -> Attend:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        blocks = create_block_mask(lambda b, h, q, k: sees(q, k), None, None, n, n, device=device)
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda q, k, v: compiled(q, k, v, block_mask=blocks)

    def prepared(make: Callable[[], Attend]) -> Prepare:
        return lambda: _call(make(), qkv, G, kind)

    ways: dict[str, Callable[[], Attend]] = {
        OURS: sparse,
        "torch dense": lambda: F.scaled_dot_product_attention,
        "torch dense, mask": dense_mask,
    }
    if not tiny or device.startswith("cuda"):  # on a processor compiling takes longer than all the rest
        ways["torch FlexAttention"] = flex

    def reference() -> list[torch.Tensor]:
        wide = [tensor.float().requires_grad_(kind == "both") for tensor in qkv]
        found = [_exact(*wide, sees)]
        if kind == "both":
            found += torch.autograd.grad(found[0], wide, G.float())
        return found

    return Case(
        "attention",
        f"{n:,} tokens, {kind}",
        f"window {radius} + {few}",
        {name: prepared(make) for name, make in ways.items()},
        reference,
        bytes=DTYPE.itemsize * HEADS * FEATURES * n * (4 if kind == "forward" else 9),
        tolerance=TOLERANCE,
        unchecked=frozenset({"torch dense"}),
    )


def _call(attend: Attend, qkv: list[torch.Tensor], G: torch.Tensor, kind: str) -> Call:
    if kind == "forward":
        return Call(lambda: [attend(*qkv)])
    leaves = [tensor.clone().requires_grad_() for tensor in qkv]

    def both() -> list[torch.Tensor]:
        out = attend(*leaves)
        return [out, *torch.autograd.grad(out, leaves, G)]

    return Call(both)


def _exact(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sees: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Attention in float32, some rows at a time."""
    places = torch.arange(k.shape[2], device=k.device)
    parts = []
    for at in range(0, q.shape[2], ROWS):
        scores = q[:, :, at : at + ROWS] @ k.transpose(2, 3) / FEATURES**0.5
        hidden = ~sees(places[at : at + ROWS, None], places[None])
        parts.append(scores.masked_fill(hidden, -torch.inf).softmax(3) @ v)
    return torch.cat(parts, 2)


SECTIONS = {"attention": attention}
