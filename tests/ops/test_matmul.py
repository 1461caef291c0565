"""Products under torch's own names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import scorch
from scorch.errors import CallError, ScorchError, ShapeError


@pytest.fixture
def dense() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(5, 6, dtype=torch.float64) * (torch.rand(5, 6) < 0.5)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr", "bsr(2,2)"])
def test_product_with_dense_is_dense(dense: torch.Tensor, format: str) -> None:
    S = scorch.from_torch(dense, format=format)
    x, v = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    y, w = torch.randn(2, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    for found, truth in [
        (S @ x, dense @ x),
        (torch.matmul(S, v), dense @ v),
        (torch.mm(S, x), dense @ x),
        (S.mv(v), dense @ v),
        (y @ S, y @ dense),
        (w @ S, w @ dense),
        (torch.einsum("ij,jk->ik", S, x), dense @ x),
    ]:
        assert type(found) is torch.Tensor or isinstance(found, scorch.SparseTensor)
        torch.testing.assert_close(found.to_dense(), truth)
    assert type(S @ x) is torch.Tensor


def test_product_of_sparse_is_sparse(dense: torch.Tensor) -> None:
    S = scorch.from_torch(dense, format="csr")
    T = scorch.from_torch(dense.T.contiguous(), format="csr")
    found = S @ T
    assert isinstance(found, scorch.SparseTensor)
    torch.testing.assert_close(found.to_dense(), dense @ dense.T)


SPARSE_FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)", "sd", "do"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", SPARSE_FORMATS)
@pytest.mark.parametrize("second", SPARSE_FORMATS)
def test_products_of_sparse_are_sparse_however_full(first: str, second: str) -> None:
    torch.manual_seed(1)
    dense = torch.randn(6, 6, dtype=torch.float64) * (torch.rand(6, 6) < 0.6)
    S, T = scorch.from_torch(dense, format=first), scorch.from_torch(dense, format=second)
    for found, wanted in [
        (S @ T, dense @ dense),
        (S @ T.T, dense @ dense.T),
        (torch.mm(S.T, T), dense.T @ dense),
        (torch.sparse.mm(S, T), dense @ dense),
        (torch.matrix_power(S, 3), dense @ dense @ dense),
        (torch.linalg.multi_dot([S, T.T, S]), dense @ dense.T @ dense),
        (torch.addmm(S, S, T), dense + dense @ dense),
        (S @ T[0], dense @ dense[0]),
        (S @ dense.to_sparse_csr(), dense @ dense),
        (dense.to_sparse_coo() @ T, dense @ dense),
    ]:
        assert isinstance(found, scorch.SparseTensor)
        torch.testing.assert_close(found.to_dense(), wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", ["csr", "coo", "csf", "dsd"])
@pytest.mark.parametrize("second", ["csr", "coo", "csf", "dds"])
def test_products_of_sparse_batches_are_sparse(first: str, second: str) -> None:
    torch.manual_seed(2)
    a = torch.randn(3, 4, 5, dtype=torch.float64) * (torch.rand(3, 4, 5) < 0.6)
    b = torch.randn(3, 5, 2, dtype=torch.float64) * (torch.rand(3, 5, 2) < 0.6)
    A, B = scorch.from_torch(a, format=first), scorch.from_torch(b, format=second)
    one = scorch.from_torch(a[:1], format=first)
    for found, wanted in [(torch.bmm(A, B), a @ b), (A @ B, a @ b), (one @ B, a[:1] @ b)]:
        assert isinstance(found, scorch.SparseTensor)
        torch.testing.assert_close(found.to_dense(), wanted)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", SPARSE_FORMATS)
def test_kronecker_products_are_sparse(dense: torch.Tensor, form: str) -> None:
    S = scorch.from_torch(dense, format=form)
    other = dense[:2, :3].contiguous()
    T, v = scorch.from_torch(other, format="csc"), scorch.from_torch(dense[0], format="s")
    for found, wanted in [
        (torch.kron(S, T), torch.kron(dense, other)),
        (torch.kron(S, other), torch.kron(dense, other)),
        (torch.kron(other, S), torch.kron(other, dense)),
        (torch.kron(S, v), torch.kron(dense, dense[0])),
        (torch.kron(S, torch.tensor(2.0, dtype=torch.float64)), 2 * dense),
        (S.kron(S[:0]), torch.kron(dense, dense[:0])),
    ]:
        assert isinstance(found, scorch.SparseTensor)
        torch.testing.assert_close(found.to_dense(), wanted)


def test_kronecker_products_of_lists_of_coordinates_are_lists(dense: torch.Tensor) -> None:
    for left, right in [(dense, dense[0]), (dense[0], dense[1]), (dense[None], dense)]:
        first, second = (scorch.from_torch(part, format="coo") for part in (left, right))
        for found in (torch.kron(first, second), torch.kron(first, right)):
            assert found.format == scorch.Format("coo", dims=left.dim())
            torch.testing.assert_close(found.to_dense(), torch.kron(left, right))
        assert not torch.kron(first, second.to_format("s" * right.dim())).format.is_list


def test_batches_are_broadcast(dense: torch.Tensor) -> None:
    S = scorch.from_torch(dense, format="csr")
    batch = torch.randn(4, 2, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(S.matmul(batch), dense @ batch)
    stacked = torch.stack([dense, 2 * dense])
    B = scorch.from_torch(stacked, format="csr")
    torch.testing.assert_close(torch.bmm(B, batch[0]), stacked @ batch[0])


def test_shapes_that_do_not_fit_are_named(dense: torch.Tensor) -> None:
    S = scorch.from_torch(dense, format="csr")
    with pytest.raises(ShapeError, match="5x6 and 5x2"):
        S @ torch.randn(5, 2, dtype=torch.float64)
    with pytest.raises(ShapeError, match="at least 1D"):
        S @ torch.tensor(2.0)


def test_names_of_arguments_are_those_of_torch(dense: torch.Tensor) -> None:
    S = scorch.from_torch(dense, format="csr")
    x, v = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    torch.testing.assert_close(torch.mm(S, mat2=x), dense @ x)
    torch.testing.assert_close(torch.mv(S, vec=v), dense @ v)
    out = torch.empty(5, 3, dtype=torch.float64)
    assert torch.matmul(S, x, out=out) is out
    torch.testing.assert_close(out, dense @ x)


def test_what_torch_refuses_is_refused(dense: torch.Tensor) -> None:
    S = scorch.from_torch(dense, format="csr")
    v = torch.randn(6, dtype=torch.float64)
    for other, advice in (
        (torch.ones(6, 2), r"S\.to\(x\.dtype\)"),
        (torch.ones(6, dtype=torch.int64), r"x\.to\(S\.dtype\)"),
    ):
        with pytest.raises(CallError, match=f"(same d|scalar )type.*; convert one, as in {advice}"):
            S @ other
    with pytest.raises(ShapeError, match="mm: mat2 must be a matrix"):
        torch.mm(S, v)
    with pytest.raises(ShapeError, match="mv: vector"):
        torch.mv(S, dense.T)
    with pytest.raises(ShapeError, match="bmm: batch1 must be a 3D tensor"):
        torch.bmm(S, dense.T)
    with pytest.raises(TypeError, match="ndarray"):
        torch.mm(S, np.ones((6, 2)))


def test_repeated_products_under_torchs_names_are_checked_again():
    S = scorch.rand(6, 5, density=0.5, format="csr", dtype=torch.float64)
    dense, B, v = S.to_dense(), torch.rand(5, 4, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    for _ in range(3):
        torch.testing.assert_close(torch.mm(S, B), dense @ B)
        torch.testing.assert_close(S @ B, dense @ B)
        torch.testing.assert_close(S @ v, dense @ v)
        torch.testing.assert_close(S @ B[:, :2], dense @ B[:, :2])
        torch.testing.assert_close((S @ S.T).to_dense(), dense @ dense.T)
        with pytest.raises(ScorchError, match="matrix"):
            torch.mm(S, v)
        with pytest.raises(ScorchError, match="dtype"):
            torch.mm(S, B.float())
        with pytest.raises(ScorchError):
            S @ torch.rand(6, 4, dtype=torch.float64)
        with pytest.raises(ScorchError):
            scorch.einsum("matmul", S, B)
