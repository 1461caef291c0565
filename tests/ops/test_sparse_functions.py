"""The functions of torch.sparse on our tensors give what they give on torch's own, and on dense ones."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from on_device import on_host
from properties.drawing import tensors
from scorch import SparseTensor
from scorch.errors import ArgumentError, CallError, IndexRangeError, OperandError, ShapeError

FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)", "sd"]
EXACT = ["csr", "csc", "coo", "dcsr"]  # formats that store nothing but what they are given


def matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    found = values * (torch.rand(shape, generator=generator) < 0.4)
    found[0] = 0  # a row without entries
    return found


# products ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_mm_reduces_stored_entries_as_torch_does(form, reduce):
    dense, x = matrix(6, 8), matrix(8, 3, seed=1) - 0.5
    found = torch.sparse.mm(scorch.from_torch(dense, format=form), x, reduce)
    wanted = on_host(lambda A, x: torch.sparse.mm(A.to_sparse_csr(), x, reduce), dense, x)
    assert type(found) is torch.Tensor and not found[0].any()
    torch.testing.assert_close(found, wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMATS)
def test_mm_with_dense_and_sparse(form):
    dense, other = matrix(6, 8), matrix(8, 4, seed=1)
    S = scorch.from_torch(dense, format=form)
    assert type(torch.sparse.mm(S, other)) is torch.Tensor
    torch.testing.assert_close(torch.sparse.mm(S, other), dense @ other)
    torch.testing.assert_close(torch.sparse.mm(other.T, S.T), other.T @ dense.T)
    for right in (scorch.from_torch(other, format="csc"), other.to_sparse_coo(), other.to_sparse_csr()):
        found = torch.sparse.mm(S, right)
        assert isinstance(found, SparseTensor)
        torch.testing.assert_close(found.to_dense(), dense @ other)


def test_mm_refuses_what_has_no_meaning():
    S = scorch.from_torch(matrix(6, 8), format="csr")
    with pytest.raises(ArgumentError, match="'sum', 'mean', 'amax' and 'amin'"):
        torch.sparse.mm(S, torch.ones(8, 2, dtype=torch.float64), "median")
    with pytest.raises(OperandError, match="a dense matrix on the right"):
        torch.sparse.mm(S, S.T, "amax")
    with pytest.raises(OperandError, match="expected a sparse tensor here"):
        torch.sparse.mm(torch.ones(2, 6, dtype=torch.float64), S, "amax")
    with pytest.raises(ShapeError, match="cannot be multiplied"):
        torch.sparse.mm(S, torch.ones(7, 2, dtype=torch.float64), "amax")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("beta", [1, 0, 0.5])
def test_addmm(form, beta):
    dense, other, added = matrix(6, 8), matrix(8, 4, seed=1), matrix(6, 4, seed=2)
    S = scorch.from_torch(dense, format=form)
    wanted = torch.sparse.addmm(added, dense.to_sparse_coo(), other, beta=beta, alpha=2)
    torch.testing.assert_close(torch.sparse.addmm(added, S, other, beta=beta, alpha=2), wanted)
    T, A = scorch.from_torch(other, format=form), scorch.from_torch(added, format=form)
    for start, right in ((A, T), (added.to_sparse_coo(), T), (A, other.to_sparse_csr())):
        found = torch.sparse.addmm(start, S, right, beta=beta, alpha=2)
        assert isinstance(found, SparseTensor)
        torch.testing.assert_close(found.to_dense(), wanted)


@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize("beta", [1, 0, 0.5])
def test_sampled_addmm(form, beta):
    dense, a, b = matrix(6, 8), matrix(6, 3, seed=1), matrix(3, 8, seed=2)
    S = scorch.from_torch(dense, format=form)
    wanted = torch.sparse.sampled_addmm(dense.to_sparse_csr(), a, b, beta=beta, alpha=2)
    sparse = [scorch.from_torch(a, format="csr"), b.to_sparse_csr()]
    for left, right in ((a, b), (sparse[0], b), sparse):
        found = torch.sparse.sampled_addmm(S, left, right, beta=beta, alpha=2)
        assert isinstance(found, SparseTensor) and found.format == S.format and found.nnz == S.nnz
        torch.testing.assert_close(found.to_dense(), wanted.to_dense())


def test_sampled_addmm_of_batches():
    dense = torch.stack([matrix(6, 8), matrix(6, 8, seed=3)])
    a, b = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    found = torch.sparse.sampled_addmm(scorch.from_torch(dense, format="csr"), a, b)
    torch.testing.assert_close(found.to_dense(), (dense + a @ b) * (dense != 0))


def test_sampled_addmm_ignores_what_is_multiplied_by_zero():
    nothing = scorch.from_torch(torch.full((2, 2), math.nan), format="csr")
    found = torch.sparse.sampled_addmm(nothing, torch.ones(2, 1), torch.ones(1, 2), beta=0)
    torch.testing.assert_close(found.to_dense(), torch.ones(2, 2))
    with pytest.raises(ShapeError, match="does not have the shape"):
        torch.sparse.sampled_addmm(nothing, torch.ones(2, 1), torch.ones(1, 3))


# sums --------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=1, max_size=4), st.data())
def test_sum_is_that_of_torchs_coo(sizes, data):
    drawn = data.draw(tensors(tuple(sizes), torch.float32))
    if not isinstance(drawn.given, SparseTensor):
        return
    S, coo = drawn.given, drawn.dense.to_sparse_coo()
    dims = data.draw(st.none() | st.sets(st.integers(0, len(sizes) - 1), min_size=1).map(sorted))
    dtype = data.draw(st.sampled_from([None, torch.float64]))
    found, wanted = torch.sparse.sum(S, dims, dtype=dtype), torch.sparse.sum(coo, dims, dtype=dtype)
    whole = dims is None or all(dim in dims for dim in range(len(sizes) - S.dense_dim()))
    assert isinstance(found, SparseTensor) == (not whole) and found.dtype == wanted.dtype
    torch.testing.assert_close(found.to_dense(), wanted.to_dense())


def test_sum_of_hybrid_tensors_keeps_dense_dimensions_dense():
    values = torch.randn(3, 2, dtype=torch.float64)
    coo = torch.sparse_coo_tensor([[0, 0, 2], [1, 3, 0]], values, (4, 5, 2))
    S = scorch.from_torch(coo)
    for dims in ([0], [1], [2], [0, 1], [1, 2], [0, 1, 2], [-1]):
        found, wanted = torch.sparse.sum(S, dims), torch.sparse.sum(coo, dims)
        assert isinstance(found, SparseTensor) == (wanted.layout == torch.sparse_coo)
        torch.testing.assert_close(found.to_dense(), wanted.to_dense())
    assert str(torch.sparse.sum(S, [1]).format) == "od"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_sum_has_the_dtype_of_torchs(dtype):
    coo = torch.tensor([[0, 3], [4, 5]]).to(dtype).to_sparse()
    S = scorch.from_torch(coo)
    for dims in (None, 0, [0, 1]):
        assert torch.sparse.sum(S, dims).dtype == torch.sparse.sum(coo, dims).dtype


def test_sum_over_what_is_not_there():
    S = scorch.from_torch(matrix(3, 4), format="csr")
    with pytest.raises(IndexRangeError, match="dimension 2 is out of range for a 2-D tensor"):
        torch.sparse.sum(S, 2)
    with pytest.raises(CallError, match="multiple times"):
        torch.sparse.sum(S, (0, -2))


# the others --------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", EXACT)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_is_that_of_torchs_coo(form, name):
    dense = matrix(6, 8)
    function = getattr(torch.sparse, name)
    for dim in (0, 1, -1):
        found = function(scorch.from_torch(dense.float(), format=form), dim, dtype=torch.float64)
        wanted = function(dense.float().to_sparse_coo(), dim, dtype=torch.float64)
        assert isinstance(found, SparseTensor)
        torch.testing.assert_close(found.to_dense(), wanted.to_dense())


@pytest.mark.parametrize("offsets", [[0], [0, 1, -2], [3, -3, 5]])  # torch's own may crash beyond
def test_spdiags(offsets):
    diagonals = torch.arange(1.0, 1 + 5 * len(offsets)).reshape(len(offsets), 5)
    wanted = on_host(lambda d: torch.sparse.spdiags(d, torch.tensor(offsets), (4, 6)).to_dense(), diagonals)
    for form in (None, "csr", "csc", "dcsr"):
        found = scorch.sparse.spdiags(diagonals, torch.tensor(offsets), (4, 6), format=form)
        assert isinstance(found, SparseTensor) and str(found.format) == (form or "coo")
        torch.testing.assert_close(found.to_dense(), wanted)


def test_a_large_matrix_of_diagonals():
    n = 200_000
    ones = torch.ones(3, n, dtype=torch.float64) * torch.tensor([[-1.0], [2.0], [-1.0]])
    L = scorch.sparse.spdiags(ones, torch.tensor([-1, 0, 1]), (n, n), format="csr")
    assert L.nnz == 3 * n - 2 and torch.sparse.sum(L).item() == 2.0


def test_the_rest_of_torch_sparse_is_torchs_own():
    assert scorch.sparse.mm is torch.sparse.mm and scorch.sparse.sum is torch.sparse.sum
    assert scorch.sparse.check_sparse_tensor_invariants is torch.sparse.check_sparse_tensor_invariants
    with scorch.sparse.check_sparse_tensor_invariants():
        S = scorch.from_torch(matrix(4, 4), format="csr")
        torch.testing.assert_close((S @ S).to_dense(), matrix(4, 4) @ matrix(4, 4))
        assert S.to_torch().layout == torch.sparse_csr


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr"])
def test_sum_stores_what_has_entries_even_where_they_cancel(form):
    coo = torch.sparse_coo_tensor([[0, 0, 2, 2], [0, 1, 1, 3]], [1.0, -1.0, 0.0, 2.0], (4, 5)).coalesce()
    S = scorch.from_torch(coo, format=form)
    for dim in (0, 1, -1):
        found, wanted = torch.sparse.sum(S, dim), torch.sparse.sum(coo, dim).coalesce()
        assert isinstance(found, scorch.SparseTensor)
        assert torch.equal(found.to_format("coo").indices(), wanted.indices())
        assert torch.equal(found.values(), wanted.values())


@pytest.mark.parametrize("reduce", ["amax", "amin", "mean"])
def test_repeated_products_look_at_the_rows_of_each_matrix(reduce):
    X = torch.tensor([[-1.0, 2.0], [3.0, -4.0], [5.0, 6.0]])
    full, gaps = torch.eye(3), torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 3.0]])
    for dense in (full, gaps, full, gaps):
        S = scorch.from_torch(dense, format="csr")
        for matrix in (X, X.T.contiguous().T, X.double().float(), X[:, :1].contiguous()):
            wanted = on_host(lambda A, B: torch.sparse.mm(A.to_sparse_csr(), B, reduce), dense, matrix)
            assert torch.equal(torch.sparse.mm(S, matrix, reduce), wanted)
