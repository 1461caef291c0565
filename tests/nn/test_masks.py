"""Masks of sparse attention are the sets of pairs they say they are, in memory of those pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from scorch._src.nn import masks
from scorch.errors import ArgumentError, CallError, DtypeError, OperandError, ShapeError

SIZES = st.integers(0, 40)


def is_a_mask(mask: scorch.SparseTensor, *shape: int) -> None:
    assert isinstance(mask, scorch.SparseTensor)
    assert mask.dtype == torch.bool and tuple(mask.shape) == shape
    assert str(mask.format) == "csr"
    assert mask.nnz == mask.to_dense().sum()


@given(SIZES, SIZES, st.integers(0, 50), st.integers(0, 50))
def test_windows(n, m, before, after):
    i, j = torch.arange(n)[:, None], torch.arange(m)[None]
    mask = masks.window(n, (before, after), m)
    is_a_mask(mask, n, m)
    assert torch.equal(mask.to_dense(), (j >= i - before) & (j <= i + after))
    assert torch.equal(masks.window(n, before).to_dense(), (i - i.T).abs() <= before)


@given(SIZES, SIZES)
def test_causal(n, m):
    mask = masks.causal(n, m)
    is_a_mask(mask, n, m)
    assert torch.equal(mask.to_dense(), torch.ones(n, m, dtype=torch.bool).tril())


@given(st.integers(1, 40), st.lists(st.integers(-1, 0) | st.integers(0, 39), max_size=6), st.integers(0, 50))
def test_global_tokens(n, tokens, count):
    tokens = [token % n for token in tokens]
    is_global = torch.zeros(n, dtype=torch.bool)
    is_global[tokens] = True
    for given_as in (tokens, torch.tensor(tokens, dtype=torch.int64), [token - n for token in tokens]):
        mask = masks.global_tokens(n, given_as)
        is_a_mask(mask, n, n)
        assert torch.equal(mask.to_dense(), is_global[:, None] | is_global[None])
    first = torch.arange(n) < count
    assert torch.equal(masks.global_tokens(n, count).to_dense(), first[:, None] | first[None])


@given(SIZES, SIZES, st.integers(1, 9), st.integers(0, 9), st.integers(0, 99))
def test_random_blocks(n, m, block, per_row, seed):
    mask = masks.random_blocks(n, block, per_row, m, generator=torch.Generator().manual_seed(seed))
    is_a_mask(mask, n, m)
    dense = mask.to_dense()
    columns = -(-m // block)
    for first in range(0, n, block):
        rows = dense[first : first + block]
        assert torch.equal(rows, rows[:1].expand_as(rows))
        blocks = [rows[0, at : at + block] for at in range(0, m, block)]
        assert all(part.all() or not part.any() for part in blocks)
        assert sum(bool(part.any()) for part in blocks) == min(per_row, columns)
    again = masks.random_blocks(n, block, per_row, m, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(again.to_dense(), dense)


def test_random_blocks_are_spread_evenly():
    mask = masks.random_blocks(4000, 1, 3, 10, generator=torch.Generator().manual_seed(0)).to_dense()
    assert ((mask.sum(0) - 1200).abs() < 150).all()


def test_bigbird():
    n, block = 90, 8
    mask = masks.bigbird(n, block, num_global=3, num_random=2, num_sliding=1)
    is_a_mask(mask, n, n)
    dense = mask.to_dense()
    i = torch.arange(n)
    sure = ((i[:, None] // block - i // block).abs() <= 1) | (i < 3)[:, None] | (i < 3)
    assert (dense | ~sure).all()
    more = (dense & ~sure)[3:].sum(1)
    assert more.max() <= 2 * block and more.float().mean() > block
    plain = masks.bigbird(n, block, 0, 0, 0).to_dense()
    assert torch.equal(plain, i[:, None] // block == i // block)
    assert masks.bigbird(512).nnz < 512 * (16 * 7 + 2) + 2 * 512


@pytest.mark.parametrize("block", [1, 7, 128])
def test_functions_of_indices(block):
    def near(b, h, q_idx, kv_idx):
        return ((q_idx - kv_idx).abs() <= h + 2 * b) & (kv_idx != 3)

    i, j = torch.arange(20)[:, None], torch.arange(30)[None]
    mask = masks.from_function(near, 20, 30, batch=2, heads=3, block=block)
    is_a_mask(mask, 2, 3, 20, 30)
    for b in range(2):
        for h in range(3):
            assert torch.equal(mask.to_dense()[b, h], ((i - j).abs() <= h + 2 * b) & (j != 3))
    assert torch.equal(masks.from_function(near, 20, block=block).to_dense(), ((i - i.T) == 0) & (i.T != 3))
    is_a_mask(masks.from_function(near, 0, 5), 0, 5)
    is_a_mask(masks.from_function(lambda b, h, q, k: q >= 0, 4, heads=2), 2, 4, 4)


def test_functions_see_few_pairs_at_a_time():
    sizes = []

    def seen(b, h, q_idx, kv_idx):
        sizes.append((q_idx * kv_idx).numel())
        return q_idx == kv_idx

    assert masks.from_function(seen, 1000, block=16).nnz == 1000
    assert max(sizes) == 16 * 1000


def test_unions_and_intersections_stay_sparse():
    a, b = masks.window(100_000, 3), masks.global_tokens(100_000, [5])
    with scorch.settings(dense_budget=1 << 20):
        both, common = a | b, a & b
    is_sparse = (isinstance(both, scorch.SparseTensor), isinstance(common, scorch.SparseTensor))
    assert is_sparse == (True, True)
    assert both.nnz == a.nnz + b.nnz - common.nnz and common.nnz == 13


@given(st.data())
def test_set_operations_of_bools(data):
    shape = data.draw(st.sampled_from([(7,), (5, 6), (2, 3, 4)]))
    forms = ["csr", "coo", "csf"] if len(shape) > 1 else ["coo", "s"]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    a, b = (torch.rand(shape, generator=generator) < 0.4 for _ in range(2))
    A, B = (scorch.from_torch(t, format=data.draw(st.sampled_from(forms))) for t in (a, b))
    A.values()[: A.nnz // 2] = False  # stored, but no member
    a = A.to_dense()
    for name in ("__or__", "__and__", "__ror__", "__rand__", "logical_or", "logical_and", "bitwise_or"):
        found = getattr(A, name)(B)
        assert found.dtype == torch.bool
        assert torch.equal(found.to_dense(), getattr(a, name)(b))
    mixed = A | b
    assert torch.equal(mixed.to_dense() if isinstance(mixed, scorch.SparseTensor) else mixed, a | b)
    assert torch.equal((A.int() | B.int()).to_dense(), a.int() | b.int())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: masks.window(-1, 2), ArgumentError, "n must be at least 0, but got -1"),
        (lambda: masks.window(4, -2), ArgumentError, "radius must be at least 0"),
        (lambda: masks.window(4, 0.5), ArgumentError, "radius must be an integer, but got 0.5"),
        (lambda: masks.window(4, (1, 2, 3)), ArgumentError, "before, after"),
        (lambda: masks.global_tokens(4, [4]), ArgumentError, "token 4 is out of range; there are 4 tokens"),
        (lambda: masks.global_tokens(4, torch.tensor([0.5])), DtypeError, "tokens must be integers"),
        (lambda: masks.global_tokens(4, torch.ones(4).bool()), DtypeError, "nonzero"),
        (lambda: masks.random_blocks(4, 0, 1), ArgumentError, "block must be at least 1"),
        (lambda: masks.bigbird(4, num_random=-1), ArgumentError, "num_random must be at least 0"),
        (
            lambda: masks.from_function(lambda b, h, q, k: q - k, 4),
            DtypeError,
            "must return a bool tensor.* not a Tensor of torch.int64",
        ),
        (lambda: masks.from_function(lambda b, h, q, k: True, 4), DtypeError, r"bool tensor.* not a bool"),
        (
            lambda: masks.from_function(lambda b, h, q, k: (q == k)[None, :2], 4),
            ShapeError,
            "mask_mod returned",
        ),
    ],
)
def test_wrong_arguments(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert isinstance(caught.value, CallError | ValueError | TypeError | RuntimeError)


def test_an_error_of_the_function_says_what_it_was_called_with():
    with pytest.raises(RuntimeError, match="ambiguous") as caught:
        masks.from_function(lambda b, h, q, k: q >= k and q < 2, 4)
    told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert "mask_mod(b, h, q_idx, kv_idx) with int64 tensors of shapes (), (), (4, 1), (1, 4)" in told
    with pytest.raises(OperandError, match=r"mask_mod must be a function .* but got a Tensor"):
        masks.from_function(torch.ones(4, 4), 4)


def test_sizes_that_are_tensors_are_not_printed():
    with pytest.raises(scorch.errors.ArgumentError, match=r"n must be an integer, but got a Tensor$"):
        masks.window(torch.randn(3, 3), 1)
