"""Networks of well-known shapes with random weights: encoders, a decoder, convolutions, a perceptron.

Shapes are those of the papers; what does not take time (vocabularies, heads) is left out. Convolutions have a
bias, as they do once batch norms are folded into them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

Inputs = tuple[torch.Tensor, ...]


class Encoder(nn.Module):
    """Blocks of self-attention and a perceptron, each around a residual."""

    def __init__(self, blocks: int, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(EncoderBlock(width, heads, hidden) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.out(heads.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Decoder(nn.Module):
    """Blocks of Llama's shape that take one token; ``caches`` are the keys and values of each block.

    The last position of a cache is that of the token, which is written there, as into the static caches of
    Llama's own code. The angles of the rotary embedding are computed once, too.
    """

    def __init__(self, blocks: int, width: int, heads: int, hidden: int, tokens: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DecoderBlock(width, heads, hidden) for _ in range(blocks))
        half = width // heads // 2
        angles = torch.arange(tokens)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()], 1), persistent=False)
        self.register_buffer("positions", torch.arange(tokens), persistent=False)

    def forward(self, x: torch.Tensor, *caches: torch.Tensor) -> torch.Tensor:
        last = caches[0].shape[-2] - 1
        turn = self.turns[last].to(x.dtype)  # type: ignore[index]
        position: torch.Tensor = self.positions[last : last + 1]  # type: ignore[index]
        for number, block in enumerate(self.blocks):
            x = block(x, caches[2 * number], caches[2 * number + 1], turn, position)
        return x


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(
        self,
        x: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        turn: torch.Tensor,
        position: torch.Tensor,
    ) -> torch.Tensor:
        normed = self.norm1(x)
        q, k, v = (
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        keys.index_copy_(2, position, rotate(k, turn))
        values.index_copy_(2, position, v)
        heads = F.scaled_dot_product_attention(rotate(q, turn), keys, values)
        x = x + self.o(heads.transpose(1, 2).flatten(2))
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of one position, whose cosines and sines ``turn`` has."""
    cos, sin = turn
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class ResNet(nn.Module):
    """The convolutions of ResNet-50, ``width`` 64 and blocks (3, 4, 6, 3)."""

    def __init__(self, width: int, blocks: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3)
        stages: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                inner = width << stage
                stages.append(Bottleneck(channels, inner, 2 if stage and not number else 1))
                channels = 4 * inner
        self.stages = nn.Sequential(*stages)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stages(F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, 4 * inner, 1)
        self.middle = nn.Conv2d(inner, inner, 3, stride, 1)
        is_same = stride == 1 and channels == 4 * inner
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(channels, 4 * inner, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.middle(F.relu(self.reduce(x))))
        return F.relu(self.shortcut(x) + self.expand(inner))


def transformer(layers: int, width: int, heads: int, hidden: int) -> nn.Module:
    """The same as ``Encoder``, of torch's own layers, which have fused kernels for dense weights."""
    layer = nn.TransformerEncoderLayer(width, heads, hidden, 0.0, "gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def mlp(width: int, layers: int) -> nn.Module:
    modules: list[nn.Module] = []
    for _ in range(layers):
        modules += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


@dataclass(frozen=True)
class Shape:
    """A network, its inputs for a batch, and whether a call makes a token of every row."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    makes_tokens: bool = False


def shapes(layers: int, blocks: int, tiny: bool) -> dict[str, Shape]:
    """Return all networks, with ``layers`` of BERT and ``blocks`` of Llama; tiny ones are for tests."""
    width, heads, hidden, tokens = (16, 2, 32, 8) if tiny else (768, 12, 3072, 128)
    llama, llama_heads, llama_hidden, past = (32, 2, 64, 8) if tiny else (4096, 32, 11008, 128)
    vit = (16, 2, 32, 9) if tiny else (384, 6, 1536, 197)
    pixels, resnet = (32, (4, (1, 1))) if tiny else (224, (64, (3, 4, 6, 3)))
    perceptron = 32 if tiny else 4096
    return {
        "BERT-base": Shape(
            lambda: Encoder(layers, width, heads, hidden), lambda n: (torch.randn(n, tokens, width),)
        ),
        "Encoder": Shape(
            lambda: transformer(layers, width, heads, hidden), lambda n: (torch.randn(n, tokens, width),)
        ),
        "Llama-7B": Shape(
            lambda: Decoder(blocks, llama, llama_heads, llama_hidden, past),
            lambda n: (
                torch.randn(n, 1, llama),
                *torch.randn(2 * blocks, n, llama_heads, past, llama // llama_heads).unbind(),
            ),
            makes_tokens=True,
        ),
        "ViT-S": Shape(lambda: Encoder(1, *vit[:3]), lambda n: (torch.randn(n, vit[3], vit[0]),)),
        "ResNet-50": Shape(lambda: ResNet(*resnet), lambda n: (torch.randn(n, 3, pixels, pixels),)),
        "MLP": Shape(lambda: mlp(perceptron, 3), lambda n: (torch.randn(n, perceptron),)),
    }
