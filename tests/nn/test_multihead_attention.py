"""``scorch.nn.MultiheadAttention`` with pairs is torch's layer with the dense mask inverted."""

from __future__ import annotations

import copy

import pytest
import torch

import scorch
from scorch._src.nn import masks
from scorch.errors import DtypeError, ShapeError
from scorch.nn import MultiheadAttention

N, L, E, H = 2, 18, 16, 4


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pair(**options):
    """torch's layer and Scorch's, with the same parameters."""
    torch.manual_seed(0)
    plain = torch.nn.MultiheadAttention(E, H, dtype=torch.float64, **options)
    own = MultiheadAttention(E, H, dtype=torch.float64, **options)
    own.load_state_dict(plain.state_dict())
    return plain, own


def allowed(*shape: int) -> torch.Tensor:
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(3)) < 0.3
    mask[..., 0] = True  # torch has NaN where nobody is seen
    return mask


def compare(plain, own, tensors, mask, form="csr", dense=None, **options):
    """Results, weights, and gradients of inputs and parameters."""
    found, wanted = ([tensor.clone().requires_grad_() for tensor in tensors] for _ in range(2))
    first = plain(*(wanted * 3)[:3], attn_mask=~mask if dense is None else dense, **options)
    second = own(*(found * 3)[:3], pairs=scorch.from_torch(mask, format=form), **options)
    torch.testing.assert_close(second[0], first[0])
    if options.get("need_weights"):
        assert isinstance(second[1], scorch.SparseTensor)
        torch.testing.assert_close(second[1].to_dense(), first[1])
    weights = drawn(*first[0].shape, seed=8)
    for out in (first[0], second[0]):
        (out * weights).sum().backward()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    for (name, one), (same, other) in zip(own.named_parameters(), plain.named_parameters(), strict=True):
        assert name == same
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("form", ["csr", "coo", "bsr(2,2)"])
def test_self_attention(batch_first, form):
    plain, own = pair(batch_first=batch_first)
    x = drawn(N, L, E) if batch_first else drawn(L, N, E)
    compare(plain, own, [x], allowed(L, L), form, need_weights=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True},
        {"kdim": 10, "vdim": 7},
    ],
)
@pytest.mark.parametrize("per_head", [False, True])
def test_other_keys_and_padding(options, per_head):
    plain, own = pair(batch_first=True, **options)
    S = 13
    tensors = [
        drawn(N, L, E),
        drawn(N, S, options.get("kdim", E), seed=1),
        drawn(N, S, options.get("vdim", E), seed=2),
    ]
    padding = torch.zeros(N, S, dtype=torch.bool)
    padding[1, 9:] = True
    mask = allowed(N * H, L, S) if per_head else allowed(L, S)
    given = {"key_padding_mask": padding, "need_weights": True, "average_attn_weights": not per_head}
    compare(plain, own, tensors, mask, **given)


def test_without_a_batch():
    plain, own = pair()
    padding = torch.arange(L) > 14
    compare(plain, own, [drawn(L, E)], allowed(L, L), need_weights=True, key_padding_mask=padding)
    compare(plain, own, [drawn(L, E)], allowed(H, L, L), need_weights=True, average_attn_weights=False)


def test_sparse_tensors_of_pytorch_are_pairs_and_have_largest_elements():
    _, own = pair(batch_first=True)
    x, mask = drawn(N, L, E), scorch.from_torch(allowed(L, L), format="csr")
    torch.testing.assert_close(own(x, x, x, pairs=mask.to_torch())[0], own(x, x, x, pairs=mask)[0])
    sparse = scorch.from_torch(drawn(L, E) * allowed(L, E), format="csr")
    largest = scorch.topk_sparse(sparse.to_torch(), 2)
    torch.testing.assert_close(largest.to_dense(), scorch.topk_sparse(sparse, 2).to_dense())


def test_masks_that_broadcast_over_heads_or_batches():
    plain, own = pair(batch_first=True)
    for shape in ((N, 1), (1, H), (1, 1), (N, H)):
        mask = allowed(*shape, L, L)
        dense = ~mask.expand(N, H, L, L).reshape(N * H, L, L)
        compare(plain, own, [drawn(N, L, E)], mask, dense=dense)


def test_causal_cuts_the_mask():
    _, own = pair(batch_first=True)
    x, mask = drawn(N, L, E), scorch.from_torch(allowed(L, L), format="csr")
    found = own(x, x, x, pairs=mask, is_causal=True)[0]
    torch.testing.assert_close(found, own(x, x, x, pairs=mask & masks.causal(L))[0])


def test_weights_only_where_asked_for():
    _, own = pair(batch_first=True)
    x = drawn(N, L, E)
    assert own(x, x, x, pairs=masks.window(L, 2))[1] is None
    assert own(x, x, x, pairs=masks.window(L, 2), need_weights=False)[1] is None
    assert own(x, x, x)[1].shape == (N, L, L)


def test_queries_that_see_nobody_give_the_bias():
    _, own = pair(batch_first=True)
    x = drawn(1, L, E)
    mask = scorch.from_torch(torch.zeros(L, L, dtype=torch.bool), format="csr")
    found = own(x, x, x, pairs=mask)[0]
    torch.testing.assert_close(found, own.out_proj.bias.expand(1, L, E))


def test_dropout_while_training_only():
    layer = MultiheadAttention(E, H, dropout=0.5, batch_first=True, dtype=torch.float64)
    x, mask = drawn(N, L, E), masks.window(L, 4)
    first, second = layer(x, x, x, pairs=mask)[0], layer(x, x, x, pairs=mask)[0]
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer(x, x, x, pairs=mask)[0], layer(x, x, x, pairs=mask)[0])


def test_dense_and_float_masks_mean_what_they_mean_in_torch():
    plain, own = pair(batch_first=True)
    x, mask = drawn(N, L, E), allowed(L, L)
    torch.testing.assert_close(own(x, x, x, attn_mask=~mask), plain(x, x, x, attn_mask=~mask))
    bias = drawn(L, L, seed=5) * mask
    found = own(x, x, x, attn_mask=scorch.from_torch(bias, format="csr"))
    torch.testing.assert_close(found, plain(x, x, x, attn_mask=bias))


@pytest.mark.parametrize("need_weights", [True, False])
def test_the_layer_of_torch_has_its_own_meaning(need_weights):
    """In torch's layer True is what does not attend, in sparse masks as in dense ones."""
    plain, _ = pair(batch_first=True)
    x, mask = drawn(N, L, E), ~allowed(L, L)
    found = plain(x, x, x, attn_mask=scorch.from_torch(mask, format="csr"), need_weights=need_weights)[0]
    torch.testing.assert_close(found, plain(x, x, x, attn_mask=mask, need_weights=need_weights)[0])


def test_it_is_a_layer_as_any_other():
    _, own = pair(batch_first=True)
    again = copy.deepcopy(own)
    x = drawn(N, L, E)
    torch.testing.assert_close(
        again(x, x, x, pairs=masks.window(L, 2)), own(x, x, x, pairs=masks.window(L, 2))
    )
    assert isinstance(own, torch.nn.MultiheadAttention)
    assert scorch.nn.MultiheadAttention is MultiheadAttention


def test_what_does_not_fit_is_refused():
    _, own = pair(batch_first=True)
    x = drawn(N, L, E)
    with pytest.raises(ShapeError, match=r"pairs must have shape \(18, 18\)"):
        own(x, x, x, pairs=masks.window(L - 1, 2))
    with pytest.raises(ShapeError, match="pairs must have shape"):
        own(x, x, x, pairs=masks.from_function(lambda b, h, q, k: q == k, L, heads=3))
    with pytest.raises(ShapeError, match="query must have 16 features"):
        own(x[..., :3], x, x, pairs=masks.window(L, 2))
    with pytest.raises(ShapeError, match="but got 18 and 17"):
        own(x, x, x[:, 1:], pairs=masks.window(L, 2))
    with pytest.raises(ShapeError, match="key_padding_mask must have shape"):
        own(x, x, x, pairs=masks.window(L, 2), key_padding_mask=torch.zeros(N, 3, dtype=torch.bool))
    with pytest.raises(DtypeError, match="must be a bool tensor"):
        own(x, x, x, pairs=masks.window(L, 2), key_padding_mask=torch.zeros(N, L))
