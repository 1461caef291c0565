"""``torch.smm``, ``sspaddmm``, ``saddmm``, ``hspmm`` and ``hsmm``: products that torch stores sparse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scorch
from properties.drawing import random_dense
from scorch.errors import ScorchError
from validity import check_storage, dense_of

FORMATS = ["csr", "coo"]


def matrix(shape, dtype, seed, form):
    dense = random_dense(shape, dtype, 0.4, seed)
    return dense, scorch.from_torch(dense, format=form)


@settings(max_examples=40)
@given(st.data())
def test_products_stored_sparse(data):
    """The same values as the dense product, in a tensor that is sparse as torch's own is."""
    sizes = [data.draw(st.sampled_from([0, 1, 3, 4])) for _ in range(3)]
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    seed, form = data.draw(st.integers(0, 99)), data.draw(st.sampled_from(FORMATS))
    dense, sparse = matrix(sizes[:2], dtype, seed, form)
    right = random_dense(sizes[1:], dtype, 1.0, seed + 1)
    start, first = matrix([sizes[0], sizes[2]], dtype, seed + 2, form)
    beta, alpha = data.draw(st.sampled_from([(1, 1), (0, 2), (0.5, -1)]))
    want = torch.addmm(start, dense, right, beta=beta, alpha=alpha)
    calls = {
        "smm": (lambda: torch.smm(sparse, right), dense @ right),
        "method smm": (lambda: sparse.smm(right), dense @ right),
        "hspmm": (lambda: torch.hspmm(sparse, right), dense @ right),
        "hsmm": (lambda: torch.hsmm(sparse, right), dense @ right),
        "sspaddmm": (lambda: torch.sspaddmm(first, sparse, right, beta=beta, alpha=alpha), want),
        "saddmm": (lambda: torch.saddmm(first, sparse, right, beta=beta, alpha=alpha), want),
    }
    call, expected = calls[data.draw(st.sampled_from(list(calls)))]
    found = call()
    assert isinstance(found, scorch.SparseTensor)
    check_storage(found)
    assert torch.equal(dense_of(found), expected)


@pytest.mark.parametrize("name", ["smm", "hspmm", "hsmm"])
def test_what_torch_refuses_is_refused_in_our_words(name):
    _, sparse = matrix([3, 4], torch.float32, 0, "csr")
    call = getattr(torch, name)
    for right in (torch.ones(3, 2), torch.ones(4), torch.ones(4, 2).double(), sparse.T):
        with pytest.raises((RuntimeError, TypeError)) as caught:
            call(sparse, right)
        assert isinstance(caught.value, ScorchError) and "backend" not in str(caught.value)
    with pytest.raises(RuntimeError, match="sspaddmm"):
        torch.sspaddmm(torch.ones(3, 2), sparse, torch.ones(4, 2))


def test_gradients_of_smm():
    dense, sparse = matrix([3, 4], torch.float64, 0, "csr")
    right = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    torch.smm(sparse.requires_grad_(), right).sum().backward()
    assert torch.equal(dense_of(sparse.grad), 2.0 * (dense != 0))
    assert torch.equal(right.grad, dense.sum(0)[:, None].expand(4, 2))
