"""Dense operands laid out anew are torch's own copies, bit by bit."""

import itertools

import pytest
import torch

import scorch
from scorch._src.backends.cpu.routines import transpose
from scorch._src.backends.cpu.routines.transpose import laid_out, transposition
from torch_has import needs_builtins

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
DTYPES = (*FLOATS, torch.int8, torch.bool)


@pytest.fixture(autouse=True)
def also_small_ones(monkeypatch):
    monkeypatch.setattr(transpose, "MIN_ELEMENTS", 0)
    monkeypatch.setattr(transpose, "MIN_ELEMENTS_PER_THREAD", 1)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 7), (4, 131), (130, 3), (1, 9), (2, 3, 4), (6, 1, 130), (3, 2, 5, 4)])
def test_every_order_is_torchs_copy(shape, dtype, threads):
    x = (100 * torch.randn(shape)).to(dtype)
    for order in itertools.permutations(range(len(shape))):
        with scorch.settings(threads=threads):
            found = laid_out(x, order)
        assert found.is_contiguous() and found.dtype == dtype
        assert torch.equal(found, x.permute(order))


def test_views_with_gaps_and_conjugates_are_right():
    x = torch.randn(20, 30, dtype=torch.complex64)
    for view in (x[::2, 3:], x.conj(), x.T, x[:, :0], torch.ones(1, 1).expand(4, 5)):
        assert torch.equal(laid_out(view, (1, 0)), view.T)


@needs_builtins
def test_gradients_are_not_recorded_in_the_copy():
    assert not laid_out(torch.randn(8, 9, requires_grad=True), (1, 0)).requires_grad


def test_neighbours_in_memory_are_one_dimension():
    x = torch.empty(6, 5, 4)
    assert transposition(x.permute(2, 0, 1)) == (1, 30, 4)
    assert transposition(x.permute(1, 2, 0)) == (1, 6, 20)
    assert transposition(x.permute(0, 2, 1)) == (6, 5, 4)
    assert transposition(x.permute(1, 0, 2)) is None


def test_a_product_with_a_factor_that_lies_across():
    generator = torch.Generator().manual_seed(3)
    dense = torch.rand(300, 400, generator=generator)
    S = scorch.from_torch(torch.where(dense > 0.8, dense, 0.0), format="csr")
    X, Y = torch.rand(300, 64, generator=generator), torch.rand(64, 400, generator=generator)
    explained = scorch.explain("ij,ik,kj->ij", S, X, Y)
    assert "copied" in str(explained)
    found = scorch.einsum("ij,ik,kj->ij", S, X, Y)
    torch.testing.assert_close(found.to_dense(), S.to_dense() * (X @ Y))
