"""scaled_dot_product_attention with sparse masks and operands gives what it gives on dense ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import scorch
from on_device import on_host
from scorch.errors import CallError, DensityError, ShapeError

attention = F.scaled_dot_product_attention
FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)"]


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def mask_of(*shape: int, share: float = 0.15, seed: int = 7) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


@pytest.mark.parametrize("form", FORMATS)
def test_a_mask_of_any_format(form):
    q, k, v = drawn(2, 3, 12, 8), drawn(2, 3, 10, 8, seed=1), drawn(2, 3, 10, 4, seed=2)
    dense = mask_of(12, 10)
    dense[3] = False  # a query that attends to nothing gives zeros
    found = attention(q, k, v, scorch.from_torch(dense, format=form), scale=0.3)
    torch.testing.assert_close(found, attention(q, k, v, dense, scale=0.3))
    assert not found[:, :, 3].any()


@given(st.data())
def test_masks_of_any_batch(data):
    batch = data.draw(st.sampled_from([(), (2,), (2, 3), (1, 2)]))
    last = batch[data.draw(st.integers(0, len(batch))) :]
    own = tuple(data.draw(st.sampled_from([1, size])) for size in last)
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    dense = mask_of(*own, rows, columns, share=data.draw(st.sampled_from([0, 0.1, 0.5])))
    form = data.draw(st.sampled_from(["csr", "coo", "csf"]))
    q, k, v = drawn(*batch, rows, 4), drawn(*batch, columns, 4, seed=1), drawn(columns, 3, seed=2)
    found = attention(q, k, v, attn_mask=scorch.from_torch(dense, format=form))
    torch.testing.assert_close(found, attention(q, k, v.expand(*batch, -1, -1), attn_mask=dense))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    q, k, v = (drawn(1, 2, 20, 16, dtype=dtype, seed=seed) for seed in range(3))
    dense = mask_of(20, 20)
    found = attention(q, k, v, attn_mask=scorch.from_torch(dense, format="csr"))
    assert found.dtype == dtype
    wanted = on_host(
        attention, q, k, v, dense
    )  # on a GPU torch gives means to queries that attend to nothing
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1e-2)


def test_blocks_hold_pairs_that_do_not_attend():
    q, k, v = (drawn(6, 8, seed=seed) for seed in range(3))
    dense = mask_of(6, 6, share=0.1)
    mask = scorch.from_torch(dense, format="bsr(3,3)")
    assert mask.nnz > dense.sum()
    torch.testing.assert_close(attention(q, k, v, mask), attention(q, k, v, dense))


def test_stored_false_is_not_attended():
    q, k, v = (drawn(4, 8, seed=seed) for seed in range(3))
    places = torch.tensor([[0, 0, 1, 3], [0, 3, 2, 3]])
    mask = scorch.sparse_coo_tensor(places, torch.tensor([True, False, True, False]), (4, 4))
    torch.testing.assert_close(attention(q, k, v, mask), attention(q, k, v, mask.to_dense()))


def test_several_queries_share_a_key():
    q, k, v = drawn(1, 4, 9, 8), drawn(1, 2, 9, 8, seed=1), drawn(1, 2, 9, 8, seed=2)
    dense = mask_of(1, 4, 9, 9)
    found = attention(q, k, v, scorch.from_torch(dense, format="coo"), enable_gqa=True)
    torch.testing.assert_close(found, attention(q, k, v, dense, enable_gqa=True))


def test_a_mask_of_numbers_is_added():
    """What is not stored is attended, as zeros of a dense mask are."""
    q, k, v = (drawn(2, 6, 8, seed=seed) for seed in range(3))
    bias = drawn(6, 6, seed=4) * mask_of(6, 6)
    found = attention(q, k, v, attn_mask=scorch.from_torch(bias, format="csr"))
    torch.testing.assert_close(found, attention(q, k, v, attn_mask=bias))
    with scorch.settings(dense_budget=100), pytest.raises(DensityError, match="scaled_dot_product_attention"):
        attention(q, k, v, attn_mask=scorch.from_torch(bias, format="csr"))


@pytest.mark.parametrize("form", ["csr", "coo", "csf"])
def test_sparse_queries_keys_and_values(form):
    q, k, v = (drawn(6, 8, seed=seed) * mask_of(6, 8, share=0.5, seed=seed) for seed in range(3))
    sparse = [scorch.from_torch(tensor, format=form) for tensor in (q, k, v)]
    dense = mask_of(6, 6)
    torch.testing.assert_close(attention(*sparse), attention(q, k, v))
    torch.testing.assert_close(attention(q, sparse[1], v, is_causal=True), attention(q, k, v, is_causal=True))
    mask = scorch.from_torch(dense, format=form)
    torch.testing.assert_close(attention(*sparse, attn_mask=mask), attention(q, k, v, attn_mask=dense))


def test_a_padding_mask_of_keys():
    q, k, v = (drawn(2, 3, 6, 8, seed=seed) for seed in range(3))
    dense = mask_of(2, 1, 1, 6, share=0.5)
    found = attention(q, k, v, attn_mask=scorch.from_torch(dense, format="coo"))
    torch.testing.assert_close(found, attention(q, k, v, attn_mask=dense))


@pytest.mark.parametrize("heads", [(), (3,), (1,)])
def test_gradients(heads):
    inputs = [drawn(*heads, 6, 4, seed=1), drawn(6, 4, seed=2), drawn(*heads, 6, 5, seed=3)]
    dense = mask_of(6, 6, share=0.2)
    mask = scorch.from_torch(dense, format="csr")
    found, wanted = ([tensor.clone().requires_grad_() for tensor in inputs] for _ in range(2))
    weights = drawn(*heads, 6, 5, seed=9)
    (attention(*found, attn_mask=mask, scale=0.7) * weights).sum().backward()
    batched = [wanted[0], wanted[1].expand(*heads, 6, 4), wanted[2]]
    (attention(*batched, attn_mask=dense, scale=0.7) * weights).sum().backward()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_dropout_drops_pairs():
    q, k = drawn(50, 4), drawn(50, 4, seed=1)
    v = torch.eye(50, dtype=torch.float64)  # makes the probabilities of pairs visible
    mask = scorch.from_torch(mask_of(50, 50), format="csr")
    whole = attention(q, k, v, attn_mask=mask)
    torch.manual_seed(0)
    v.requires_grad_()
    found = attention(q, k, v, attn_mask=mask, dropout_p=0.4)
    kept = found != 0
    torch.testing.assert_close(found[kept], whole[kept] / 0.6)
    assert 0.5 < kept.sum() / (whole != 0).sum() < 0.7
    found.sum().backward()
    torch.testing.assert_close(v.grad[:, 0], found.detach().sum(0))
    assert not attention(q, k, v, attn_mask=mask, dropout_p=1.0).any()


def test_memory_follows_the_pairs():
    """16,384 tokens, each of which sees 128: dense scores would take 1 GB."""
    length, window = 16_384, 128
    begins = torch.arange(length).repeat_interleave(window)
    columns = begins - torch.arange(window).repeat(length)
    places = torch.stack([begins, columns])[:, columns >= 0]
    mask = scorch.sparse_coo_tensor(places, torch.ones(places.shape[1], dtype=torch.bool), (length, length))
    q, k, v = (drawn(1, 1, length, 64, dtype=torch.float32, seed=seed) for seed in range(3))
    with scorch.settings(dense_budget=16 << 20):
        found = attention(q, k, v, attn_mask=mask)
    row = 9_000
    seen = slice(row - window + 1, row + 1)
    wanted = attention(q[..., row : row + 1, :], k[..., seen, :], v[..., seen, :])
    torch.testing.assert_close(found[..., row : row + 1, :], wanted, rtol=1e-4, atol=1e-5)


def test_full_masks_and_empty_ones():
    q, k, v = (drawn(5, 8, seed=seed) for seed in range(3))
    full = torch.ones(5, 5, dtype=torch.bool)
    found = attention(q, k, v, attn_mask=scorch.from_torch(full, format="csr"))
    torch.testing.assert_close(found, attention(q, k, v, attn_mask=full))
    assert not attention(q, k, v, attn_mask=scorch.from_torch(~full, format="csr")).any()
    mask = scorch.from_torch(full[:, :0], format="csr")
    assert attention(q, k[:0], v[:0], attn_mask=mask).equal(torch.zeros(5, 8, dtype=torch.float64))


def test_masks_of_one_dimension_broadcast():
    q, k, v = drawn(2, 6, 4), drawn(2, 5, 4, seed=1), drawn(2, 5, 3, seed=2)
    dense = mask_of(5, share=0.6)
    torch.testing.assert_close(attention(q, k, v, scorch.from_torch(dense)), attention(q, k, v, dense))


def test_a_mask_with_is_causal_is_refused():
    q, dense = drawn(6, 4), mask_of(6, 6)
    for mask in (dense, scorch.from_torch(dense, format="csr")):
        with pytest.raises(RuntimeError, match="is_causal=True"):
            attention(q, q, q, mask, is_causal=True)


def test_what_does_not_fit_is_refused():
    q = drawn(2, 4, 8)
    mask = scorch.from_torch(mask_of(4, 4), format="csr")
    with pytest.raises(ShapeError, match=r"must end with \(4, 3\)"):
        attention(q, q[:, :3], q[:, :3], attn_mask=mask)
    with pytest.raises(ShapeError, match="do not match"):
        attention(q, q[..., :5], q, attn_mask=mask)
    with pytest.raises(ShapeError, match="at least 2-D"):
        attention(q[0, 0], q, q, attn_mask=mask)
    with pytest.raises(ShapeError, match="cannot be broadcast together"):
        attention(q, q, q, attn_mask=torch.stack([mask] * 3))
    with pytest.raises(ShapeError, match="must be a multiple"):
        attention(drawn(3, 4, 8), q, q, attn_mask=mask, enable_gqa=True)
    with pytest.raises(CallError, match="to have the same dtype"):
        attention(q, q.float(), q, attn_mask=mask)
    with pytest.raises(CallError, match="between 0 and 1"):
        attention(q, q, q, attn_mask=mask, dropout_p=1.5)
