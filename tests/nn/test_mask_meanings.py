"""Sparse masks mean in each call what torch documents for it, and what the dense mask means there.

True is masked out in ``MultiheadAttention``, ``TransformerEncoder`` and their like, attends in
``scaled_dot_product_attention`` and in ``pairs``; numbers are added to scores, zeros where none is stored.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import scorch
from scorch.errors import ArgumentError, DtypeError, OperandError

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")

N, H, E, L, T = 3, 2, 8, 6, 5  # batch, heads, features, source and target tokens


class Drawn:
    """The masks and options of one call."""

    def __init__(self, seed: int) -> None:
        self.rng, self.generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.is_bool, self.is_training = self.flip(), self.flip()
        self.batch_first, self.has_gradients = self.flip(), self.flip()
        self.masks: list[torch.Tensor | None] = []

    def flip(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def tokens(self, number: int) -> torch.Tensor:
        shape = (N, number, E) if self.batch_first else (number, N, E)
        return torch.randn(shape, generator=self.generator)

    def mask(self, queries: int, keys: int) -> torch.Tensor | None:
        """One for all heads or one for each; every query sees the first key, since torch gives NaN else."""
        shape = (N * H, queries, keys) if self.flip(0.3) else (queries, keys)
        hidden = torch.rand(shape, generator=self.generator) < 0.3
        if self.flip(0.2):
            hidden = torch.ones(shape, dtype=torch.bool).triu(1)
        hidden[..., 0] = False
        return self._kept(hidden)

    def padding(self, keys: int) -> torch.Tensor | None:
        hidden = torch.rand(N, keys, generator=self.generator) < 0.3
        hidden[:, 0] = False
        return self._kept(hidden)

    def _kept(self, hidden: torch.Tensor) -> torch.Tensor | None:
        if self.flip(0.3):
            return None
        if self.is_bool:
            return hidden
        return torch.zeros(hidden.shape).masked_fill(hidden, self.rng.choice([-math.inf, -1.5]))

    def sparse(self, mask: torch.Tensor | None) -> Any:
        forms = {2: ["csr", "coo", "csc"], 3: ["ooo", "sss"]}
        return None if mask is None else scorch.from_torch(mask, format=self.rng.choice(forms[mask.dim()]))


def attention(
    draw: Drawn, layer: type = nn.MultiheadAttention
) -> tuple[nn.Module, list[Any], Callable[..., Any]]:
    options = {"add_zero_attn": draw.flip(0.2), "bias": draw.flip(0.8), "batch_first": draw.batch_first}
    module, x = layer(E, H, **options), draw.tokens(L)
    with_weights, is_causal = draw.flip(), draw.flip(0.2)

    def call(mask: Any, padding: Any) -> Any:
        causal = is_causal and mask is not None
        return module(x, x, x, padding, need_weights=with_weights, attn_mask=mask, is_causal=causal)

    return module, [draw.mask(L, L), draw.padding(L)], call


def own_attention(draw: Drawn) -> tuple[nn.Module, list[Any], Callable[..., Any]]:
    return attention(draw, scorch.nn.MultiheadAttention)


def encoder(draw: Drawn) -> tuple[nn.Module, list[Any], Callable[..., Any]]:
    layer = nn.TransformerEncoderLayer(
        E, H, 16, dropout=0.0, batch_first=draw.batch_first, norm_first=draw.flip(0.3)
    )
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=draw.flip()) if draw.flip() else layer
    x = draw.tokens(L)
    return module, [draw.mask(L, L), draw.padding(L)], lambda mask, padding: module(x, mask, padding)


def decoder(draw: Drawn) -> tuple[nn.Module, list[Any], Callable[..., Any]]:
    layer = nn.TransformerDecoderLayer(E, H, 16, dropout=0.0, batch_first=draw.batch_first)
    module = nn.TransformerDecoder(layer, 2) if draw.flip() else layer
    target, memory = draw.tokens(T), draw.tokens(L)
    masks = [draw.mask(T, T), draw.mask(T, L), draw.padding(T), draw.padding(L)]
    return module, masks, lambda *given: module(target, memory, *given)


def transformer(draw: Drawn) -> tuple[nn.Module, list[Any], Callable[..., Any]]:
    module = nn.Transformer(E, H, 1, 1, 16, dropout=0.0, batch_first=draw.batch_first)
    source, target = draw.tokens(L), draw.tokens(T)
    masks = [draw.mask(L, L), draw.mask(T, T), draw.mask(T, L), draw.padding(L), draw.padding(T)]
    return module, masks, lambda *given: module(source, target, *given)


CALLS = [attention, own_attention, encoder, decoder, transformer]


@pytest.mark.parametrize("make", CALLS)
def test_sparse_masks_are_the_dense_ones(make: Callable[[Drawn], Any], cases: int) -> None:
    for seed in range(max(1, cases // 12)):
        draw = Drawn(seed)
        torch.manual_seed(seed)
        module, masks, call = make(draw)
        module.train(draw.is_training)
        with warnings.catch_warnings(), torch.set_grad_enabled(draw.has_gradients):
            warnings.simplefilter("ignore")
            wanted = call(*masks)
            found = call(*map(draw.sparse, masks))
        pairs = zip(_parts(found), _parts(wanted), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, msg=lambda text, seed=seed: f"seed {seed}: {text}")


def _parts(result: Any) -> list[torch.Tensor]:
    parts = result if isinstance(result, tuple) else (result,)
    return [part.to_dense() for part in parts if part is not None]


def test_pairs_attend_and_what_is_masked_does_not(cases: int) -> None:
    for seed in range(max(1, cases // 12)):
        draw = Drawn(seed)
        torch.manual_seed(seed)
        layer = scorch.nn.MultiheadAttention(E, H, batch_first=draw.batch_first)
        layer.train(draw.is_training)
        x, hidden = draw.tokens(L), torch.rand(L, L, generator=draw.generator) < 0.4
        hidden.fill_diagonal_(False)
        pairs = scorch.from_torch(~hidden, format=draw.rng.choice(["csr", "coo", "csc"]))
        found = layer(x, x, x, pairs=pairs)[0]
        torch.testing.assert_close(found, layer(x, x, x, attn_mask=hidden)[0])
        with pytest.warns(UserWarning, match="True elements are masked out.*pass pairs=mask"):
            same = layer(x, x, x, attn_mask=scorch.from_torch(hidden, format="csr"))[0]
        torch.testing.assert_close(same, found)
        q = torch.randn(N, H, L, E, generator=draw.generator)
        attend = F.scaled_dot_product_attention
        torch.testing.assert_close(attend(q, q, q, pairs), attend(q, q, q, ~hidden))


def test_pairs_are_checked() -> None:
    layer, x = scorch.nn.MultiheadAttention(E, H), torch.randn(L, N, E)
    pairs = scorch._src.nn.masks.window(L, 1)
    with pytest.raises(ArgumentError, match="pairs or attn_mask, not both"):
        layer(x, x, x, attn_mask=torch.zeros(L, L), pairs=pairs)
    with pytest.raises(OperandError, match=r"scorch\.from_torch\(mask, format='csr'\)"):
        layer(x, x, x, pairs=pairs.to_dense())
    with pytest.raises(DtypeError, match="to add values to the scores, pass attn_mask"):
        layer(x, x, x, pairs=pairs.float())


@pytest.mark.parametrize("needs_weights", [False, True])
def test_sparse_layers_refuse_the_masks_that_torch_refuses(needs_weights: bool) -> None:
    layer = scorch.sparsify(nn.MultiheadAttention(E, H, batch_first=True), sparsity=0.75, prefer="size")
    layers, x = [layer, layer.to_dense()], torch.ones(2, L, E)
    wrong = [
        {"attn_mask": torch.zeros(1, 1)},
        {"attn_mask": torch.zeros(L, 1) > 0},
        {"attn_mask": torch.zeros(1, L, L)},
        {"attn_mask": torch.zeros(2, H, L, L)},
        {"attn_mask": torch.zeros(L, L, dtype=torch.uint8)},
        {"attn_mask": torch.zeros(L, L, dtype=torch.float64)},
        {"key_padding_mask": torch.zeros(1, L) > 0},
        {"key_padding_mask": torch.zeros(L) > 0},
        {"key_padding_mask": torch.zeros(2, L, dtype=torch.int64)},
    ]
    for masks in wrong:
        for each in layers:
            with pytest.raises((RuntimeError, AssertionError, TypeError)):
                each(x, x, x, need_weights=needs_weights, **masks)
