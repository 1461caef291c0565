"""Layers of ``scorch.nn`` inside of one graph: results and gradients are those without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import scorch
from scorch import SparseTensor
from torch_has import needs_export_of_sparse_arguments, needs_sizes_of_numbers

MASK = scorch._src.nn.masks.window(16, 2)


def attention(**options: Any) -> torch.nn.Module:
    return scorch.nn.MultiheadAttention(8, 2, batch_first=True, **options).double()


def self_attention(layer: Any, x: torch.Tensor, **options: Any) -> Any:
    return layer(x, x, x, pairs=MASK, **options)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


LAYERS: dict[str, tuple[Callable[[], Any], Callable[..., Any], torch.Tensor]] = {
    "attention": (attention, self_attention, drawn(2, 16, 8)),
    "attention with more keys": (
        lambda: attention(add_zero_attn=True, add_bias_kv=True),
        lambda layer, x: self_attention(layer, x, key_padding_mask=torch.zeros(2, 16) > 0, is_causal=True),
        drawn(2, 16, 8),
    ),
    "attention with weights": (
        attention,
        lambda layer, x: self_attention(layer, x, need_weights=True),
        drawn(2, 16, 8),
    ),
    "autoencoder": (
        lambda: scorch.nn.TopKAutoencoder(8, 32, 4, dtype=torch.float64),
        lambda layer, x: layer(x),
        drawn(5, 8),
    ),
    "gate": (
        lambda: scorch.nn.TopKGate(8, 6, 2, dtype=torch.float64),
        lambda layer, x: (layer(x), layer.balance_loss),
        drawn(5, 8),
    ),
}


def embedding() -> torch.nn.Module:
    table: Any = scorch.rand(20, 6, density=0.3, format="csr", dtype=torch.float64)
    return scorch.nn.SparseEmbedding.from_weight(table, padding_idx=1)


LAYERS["embedding"] = (embedding, lambda layer, x: layer(x), torch.randint(0, 20, (4, 5)))

BAGS: Any = scorch.rand(4, 20, density=0.3, format="csr", dtype=torch.float64)
for _mode in ("sum", "mean", "max"):
    LAYERS[f"bags of a matrix, {_mode}"] = (
        lambda mode=_mode: scorch.nn.SparseEmbeddingBag(20, 3, mode, padding_idx=2, dtype=torch.float64),
        lambda layer, x: layer(x),
        BAGS,
    )
LAYERS["bags of rows"] = (
    lambda: scorch.nn.SparseEmbeddingBag(20, 3, dtype=torch.float64),
    lambda layer, x: layer(x, torch.tensor([0, 2, 5], device=x.device)),
    torch.randint(0, 20, (8,)),
)


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if isinstance(tensor, SparseTensor) else tensor


def results(function: Callable[..., Any], layer: Any, x: Any) -> list[torch.Tensor]:
    """All tensors that come out, and all gradients of the sum of their squares."""
    found = [tensor for tensor in tree_leaves(function(layer, x)) if tensor is not None]
    kinds = [type(tensor) for tensor in found]
    loss = sum((dense(tensor).square().sum() for tensor in found), torch.zeros(()))
    wanted = list(layer.parameters())
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    numbers = [dense(tensor).detach() for tensor in (*found, *gradients) if tensor is not None]
    return [torch.tensor([kind is SparseTensor for kind in kinds]), *numbers]


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:sparse_grad")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_a_graph_gives_and_learns_the_same(name: str) -> None:
    make, function, x = LAYERS[name]
    layer = make()
    wanted = results(function, layer, x)
    found = results(torch.compile(function, fullgraph=True, backend="aot_eager"), layer, x)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@needs_export_of_sparse_arguments
def test_attention_with_a_sparse_mask_is_exported() -> None:
    layer, x = attention(), drawn(2, 16, 8)
    program = torch.export.export(layer, (x, x, x), {"pairs": MASK})
    found = program.module()(x, x, x, pairs=MASK)[0]
    torch.testing.assert_close(found, self_attention(layer, x)[0])


@needs_sizes_of_numbers
def test_a_mask_is_made_inside_of_a_graph() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=scorch._src.nn.masks.window(16, 2))

    q = drawn(2, 16, 8)
    torch.testing.assert_close(torch.compile(attend, fullgraph=True, backend="aot_eager")(q), attend(q))


def test_a_sparse_embedding_is_exported() -> None:
    layer, rows = embedding(), torch.randint(0, 20, (4, 5))
    program = torch.export.export(layer, (rows,)).module()
    torch.testing.assert_close(program(rows.flip(0)), layer(rows.flip(0)))
    with pytest.raises(IndexError, match="indices must be from 0 to 19"):
        program(rows + 20)


def test_a_dense_gradient_in_place_of_a_sparse_one_is_told() -> None:
    layer = scorch.nn.Linear(20, 3, sparse_grad=True, dtype=torch.float64)
    layer(BAGS).sum().backward()
    wanted: Any = layer.weight.grad
    layer.weight.grad = None
    with pytest.warns(UserWarning, match="sparse_grad=True"):
        torch.compile(layer, fullgraph=True, backend="aot_eager")(BAGS).sum().backward()
    torch.testing.assert_close(layer.weight.grad, wanted.to_dense())


def test_a_mixture_of_experts_says_that_it_cannot_be_exported() -> None:
    with pytest.raises(scorch.errors.UnsupportedError, match="cannot be exported"):
        torch.export.export(scorch.nn.MoE(8, 4, 2), (torch.randn(3, 8),))
