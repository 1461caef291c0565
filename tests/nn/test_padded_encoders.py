"""Transformers on padded batches: sparse and dense layers return the same, in all modes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import scorch

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
PADDING = torch.arange(6)[None] >= torch.tensor([6, 4, 1])[:, None]


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, **options)


@pytest.mark.whole
@pytest.mark.parametrize("mode", ["eval", "train", "eval with gradients", "fast path off"])
@pytest.mark.parametrize(
    ("options", "padding"),
    [
        ({}, PADDING),
        ({}, torch.zeros_like(PADDING, dtype=torch.float32).masked_fill(PADDING, float("-inf"))),
        ({}, PADDING.flip(1)),
        ({"norm": nn.LayerNorm(16)}, PADDING),
        ({"enable_nested_tensor": False}, PADDING),
        ({"mask_check": False}, PADDING),
    ],
    ids=["bool", "float", "not left aligned", "norm", "not nested", "no check"],
)
def test_padded_batches_are_encoded_as_by_a_dense_model(
    options: dict[str, Any], padding: torch.Tensor, mode: str
) -> None:
    sparse = scorch.sparsify(encoder(**options), sparsity=0.5, prefer="size")
    x = torch.randn(3, 6, 16)
    dense = scorch.nn.load_sparse(encoder(**options), dense_state(sparse))
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(mode != "fast path off")
        with torch.set_grad_enabled(mode in ("train", "eval with gradients")):
            found, expected = (
                model.train(mode == "train")(x, src_key_padding_mask=padding) for model in (sparse, dense)
            )
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def dense_state(sparse: nn.Module) -> dict[str, torch.Tensor]:
    """The state of the dense model with the weights of a sparse one."""
    state = encoder().state_dict()
    modules = dict(sparse.named_modules())
    for name in [*state]:
        parent, _, last = name.rpartition(".")
        found: Any = getattr(modules[parent], last)
        state[name] = found.detach().to_dense() if isinstance(found, scorch.SparseTensor) else found.detach()
    if getattr(sparse, "norm", None) is not None:
        state.update({f"norm.{name}": value for name, value in sparse.norm.state_dict().items()})
    return state


@pytest.mark.whole
@pytest.mark.parametrize("prefer", ["speed", "size"])
def test_padded_examples_are_timed(prefer: str) -> None:
    model, x = encoder().eval(), torch.randn(3, 6, 16)
    for example in ((x, None, PADDING), {"src": x, "src_key_padding_mask": PADDING}):
        assert (
            scorch.sparsify(model, sparsity=0.5, prefer=prefer, example=example).sparsification.reached > 0.4
        )
    report = scorch.doctor(model, (x, None, PADDING), quiet=True)
    assert {layer.kind for layer in report.layers} >= {"Linear"}
    assert torch.backends.mha.get_fastpath_enabled()
