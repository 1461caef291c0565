"""Operands of several kinds: torch's own sparse tensors, sparse places, and entries broadcast to meet."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch import SparseTensor
from scorch.errors import DensityError, ScorchError

DENSE = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, -3.0], [0.0, 0.0, 4.0]], dtype=torch.float64)
LAYOUTS = {
    "coo": torch.Tensor.to_sparse_coo,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
}
CALLS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "maximum": torch.maximum,
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "kron": torch.kron,
    "where": lambda a, b: torch.where(DENSE > 0, a, b),
    "dist": torch.dist,
    "tensordot": lambda a, b: torch.tensordot(a, b, 1),
    "matmul": lambda a, b: a @ b,
    "mse_loss": torch.nn.functional.mse_loss,
    "block_diag": lambda a, b: torch.block_diag(a, b),
}


def dense_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if isinstance(tensor, SparseTensor) or tensor.is_sparse else tensor


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("call", CALLS)
def test_torchs_own_sparse_tensors_are_operands_too(call: str, layout: str) -> None:
    S = scorch.from_torch(DENSE, format="csr")
    other = DENSE.T.contiguous()
    T = LAYOUTS[layout](other)
    function = CALLS[call]
    torch.testing.assert_close(dense_of(function(S, T)), function(DENSE, other))
    torch.testing.assert_close(dense_of(function(T, S)), function(other, DENSE))


def test_torchs_own_are_never_written_to_a_copy() -> None:
    S, T = scorch.from_torch(DENSE, format="csr"), DENSE.to_sparse_coo()
    with pytest.raises((ScorchError, RuntimeError)):
        torch.mul(S, 2.0, out=T)
    S[:] = T
    assert torch.equal(S.to_dense(), DENSE)


def test_sparse_places() -> None:
    places = torch.tensor([[0, 1, 0], [2, 0, 1]])
    I = scorch.from_torch(places, format="csr")
    S = scorch.from_torch(DENSE, format="csr")
    for source in (DENSE, S):
        assert torch.equal(dense_of(source.gather(0, I)), DENSE.gather(0, places))
        assert torch.equal(dense_of(source.take(I)), DENSE.take(places))
        assert torch.equal(dense_of(source.index_select(0, I[1])), DENSE.index_select(0, places[1]))
        assert torch.equal(dense_of(source.scatter(0, I, 5.0)), DENSE.scatter(0, places, 5.0))
        ones = torch.ones(2, 3, dtype=torch.float64)
        assert torch.equal(dense_of(source.scatter_add(0, I, ones)), DENSE.scatter_add(0, places, ones))
        assert torch.equal(dense_of(source.index_add(0, I[1], DENSE)), DENSE.index_add(0, places[1], DENSE))
    written = DENSE.clone()
    written.scatter_(0, I, 7.0)
    assert torch.equal(written, DENSE.clone().scatter_(0, places, 7.0))


@pytest.mark.parametrize("form", ["csr", "coo", "dcsr", "bsr(2,2)"])
def test_entries_meet_by_broadcasting(form: str) -> None:
    drawn = torch.Generator().manual_seed(0)
    A = torch.randint(-2, 3, (4, 6), generator=drawn).double()
    B = torch.randint(-2, 3, (3, 6), generator=drawn).double()
    a, b = scorch.from_torch(A, format=form), scorch.from_torch(B, format=form)
    for x, y, X, Y in (
        (a[:, None, :], b[None], A[:, None, :], B[None]),
        (a[0][:, None], b[1][None], A[0][:, None], B[1][None]),
        (a[:, :1], b[0], A[:, :1], B[0]),
        (a, b[1], A, B[1]),
        (a[:, :, None], b[0][None, None, :], A[:, :, None], B[0][None, None, :]),
    ):
        assert torch.equal(dense_of(x * y), X * Y) and torch.equal(dense_of(y * x), Y * X)
        assert torch.equal(dense_of(torch.logical_and(x, y)), torch.logical_and(X, Y))
        assert torch.equal(dense_of(x + y), X + Y)
    assert torch.equal(dense_of(torch.outer(a[0], b[1])), torch.outer(A[0], B[1]))
    wide = a[:, :1] * b[0][None, :1] * torch.ones(4, 5, dtype=torch.float64)
    assert torch.equal(dense_of(wide), A[:, :1] * B[0][None, :1] * torch.ones(4, 5, dtype=torch.float64))


def test_pairs_of_huge_tensors_follow_the_entries() -> None:
    n = 200_000
    places = torch.randint(0, n, (300,), generator=torch.Generator().manual_seed(1)).unique()
    v = scorch.sparse_coo_tensor(places[None], torch.ones(len(places)), (n,))
    found = torch.outer(v, v)
    assert found.nnz == len(places) ** 2 and float(found.sum()) == len(places) ** 2
    S = scorch.from_coordinates([places, places.flip(0)], torch.ones(len(places)), (n, n), format="csr")
    assert (S[None] * S[:, None, :]).nnz == len(places)
    with pytest.raises(DensityError, match="each entry"):
        v[None, None, :] + S[:, :, None]
    unit = torch.matrix_power(S, 0)
    assert (
        unit.format == S.format and unit.nnz == n and torch.equal(unit.diagonal().to_dense(), torch.ones(n))
    )


def test_only_vdot_takes_the_conjugate() -> None:
    a, b = torch.tensor([3j, 1 + 2j, 0]), torch.tensor([1 + 0j, 2 - 1j, 5j])
    for function in (torch.dot, torch.vdot, torch.inner):
        wanted = function(a, b)
        for x in (a, scorch.from_torch(a, format="s")):
            for y in (b, scorch.from_torch(b, format="s")):
                torch.testing.assert_close(function(x, y), wanted)
