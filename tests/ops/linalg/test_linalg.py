"""Linear algebra of sparse matrices gives what torch.linalg gives on dense ones, with SciPy and without."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import scorch
from on_device import is_on_device
from scorch import SparseTensor
from scorch._src.ops.linalg import eigen, krylov, linear_operators, solve
from scorch.errors import (
    ArgumentError,
    CallError,
    ConvergenceError,
    DensityError,
    DeviceError,
    DtypeError,
    LinAlgError,
    OperandError,
    ShapeError,
    UnsupportedError,
)

FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)"]
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
LOOSE = {torch.float32: 1e-3, torch.complex64: 1e-3}


def matrix(rows: int, columns: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator, dtype=dtype)
    return values * (torch.rand(rows, columns, generator=generator) < 4 / max(columns, 1))


def regular(n: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return matrix(n, n, dtype) + 4 * torch.eye(n, dtype=dtype)


def definite(n: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    root = matrix(n, n, dtype)
    return root @ root.mH + torch.eye(n, dtype=dtype)


def laplacian(n: int, shift: float = 0.1) -> SparseTensor:
    lines = torch.tensor([[-1.0], [2 + shift], [-1.0]], dtype=torch.float64).expand(3, n)
    found = scorch.sparse.spdiags(lines, torch.tensor([-1, 0, 1]), (n, n), format="csr")
    assert isinstance(found, SparseTensor)
    return found


def close(found: Any, wanted: torch.Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, check_stride=False)


@pytest.fixture
def no_scipy(monkeypatch):
    for module in (solve, eigen):
        monkeypatch.setattr(module, "scipy_linalg", lambda: None)


@pytest.fixture
def iterative(no_scipy, monkeypatch):
    """As a large matrix is solved where SciPy is not installed."""
    monkeypatch.setattr(solve, "MAX_DENSE_ROWS", 0)
    monkeypatch.setattr(solve, "MAX_DENSE_ELEMENTS", 0)


# equations ---------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMATS)
def test_solve(form, dtype):
    A = regular(20, dtype)
    S = scorch.from_torch(A, format=form)
    for b in (matrix(20, 1, dtype)[:, 0] + 1, matrix(20, 3, dtype), matrix(20, 0, dtype)):
        close(torch.linalg.solve(S, b), torch.linalg.solve(A, b), LOOSE.get(dtype, 1e-8))
    b = matrix(3, 20, dtype)
    close(torch.linalg.solve(S, b, left=False), torch.linalg.solve(A, b, left=False), LOOSE.get(dtype, 1e-8))
    close(torch.sparse.spsolve(S, b[0]), torch.linalg.solve(A, b[0]), LOOSE.get(dtype, 1e-8))


@pytest.mark.parametrize("make", [regular, definite, lambda n: definite(n) - 5 * torch.eye(n)])
def test_solve_without_scipy(make, iterative):
    A = make(30)
    S = scorch.from_torch(A, format="csr")
    for b in (matrix(30, 1)[:, 0] + 1, matrix(30, 3)):
        close(torch.linalg.solve(S, b), torch.linalg.solve(A, b), 1e-6)


def test_small_matrices_without_scipy_are_solved_densely(no_scipy):
    A = regular(20)
    close(torch.linalg.solve(scorch.from_torch(A, format="csr"), A[0]), torch.linalg.solve(A, A[0]))
    singular = scorch.from_torch(torch.zeros(3, 3), format="csr")
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.solve(singular, torch.ones(3))


def test_symmetric_matrices_that_need_pivots():
    A = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 2.0, 1e-20]], dtype=torch.float64)
    b = torch.ones(3, dtype=torch.float64)
    close(torch.linalg.solve(scorch.from_torch(A, format="csr"), b), torch.linalg.solve(A, b))


def test_right_hand_sides_may_be_sparse_and_batches_are_solved_too():
    A, b = regular(10), matrix(10, 3)
    S, T = scorch.from_torch(A, format="csr"), scorch.from_torch(b, format="coo")
    close(torch.linalg.solve(S, T), torch.linalg.solve(A, b))
    close(torch.linalg.solve(S, b.to_sparse_csr()), torch.linalg.solve(A, b))
    close(torch.linalg.solve(A.to_sparse_csc(), T), torch.linalg.solve(A, b))
    close(torch.linalg.solve(A, T), torch.linalg.solve(A, b))
    batch = torch.stack([A, 2 * A])
    B = scorch.from_torch(batch, format="csr")
    close(torch.linalg.solve(B, b), torch.linalg.solve(batch, b))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
def test_solve_triangular(upper, unitriangular):
    A, b = regular(12), matrix(12, 2)
    S = scorch.from_torch(A, format="csr")
    options = {"upper": upper, "unitriangular": unitriangular}
    close(torch.linalg.solve_triangular(S, b, **options), torch.linalg.solve_triangular(A, b, **options))
    options["left"] = False
    close(torch.linalg.solve_triangular(S, b.T, **options), torch.linalg.solve_triangular(A, b.T, **options))


def test_what_cannot_be_solved():
    S = scorch.from_torch(regular(4), format="csr")
    b = torch.ones(4, dtype=torch.float64)
    with pytest.raises(LinAlgError, match=r"shape \(4, 4\) is singular.*lstsq") as caught:
        torch.linalg.solve(scorch.from_torch(torch.ones(4, 4, dtype=torch.float64), format="csr"), b)
    assert isinstance(caught.value, torch.linalg.LinAlgError)
    with pytest.raises(ShapeError, match="square matrix"):
        torch.linalg.solve(scorch.from_torch(matrix(4, 5), format="csr"), b)
    with pytest.raises(ShapeError, match=r"\(3,\), but the matrix has 4 rows"):
        torch.linalg.solve(S, b[:3])
    with pytest.raises(ShapeError, match=r"left=False expected B to be a matrix"):
        torch.linalg.solve(S, b, left=False)
    with pytest.raises(CallError, match=r"same dtype.*float32"):
        torch.linalg.solve(S, b.float())
    elsewhere = torch.empty(4, dtype=torch.float64, device="meta")
    for call in (torch.linalg.solve, scorch.linalg.cg, scorch.linalg.gmres):
        with pytest.raises(DeviceError, match=r"same device, but .* meta; create .* on (cpu|cuda)"):
            call(S, elsewhere)
    with pytest.raises((CallError, UnsupportedError), match="floating point or complex"):
        torch.linalg.solve(S.long(), b.long())
    with pytest.raises(LinAlgError, match="zero on its diagonal"):
        empty = scorch.from_torch(torch.zeros(3, 3), format="csr")
        torch.linalg.solve_triangular(empty, torch.ones(3, 1), upper=True)
    with pytest.raises(ShapeError, match=r"got shape \(3,\); pass B.unsqueeze\(1\)"):
        torch.linalg.solve_triangular(empty, torch.ones(3), upper=True)


# determinants, inverses --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", DTYPES)
def test_determinants(seed, dtype):
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    A = regular(9, dtype)[order]
    S = scorch.from_torch(A, format="csr")
    loose = LOOSE.get(dtype, 1e-9)
    close(torch.linalg.det(S), torch.linalg.det(A), loose * 1e4)
    close(S.det(), torch.det(A), loose * 1e4)
    close(tuple(torch.linalg.slogdet(S)), tuple(torch.linalg.slogdet(A)), loose)
    if not dtype.is_complex:
        torch.testing.assert_close(torch.logdet(S), torch.logdet(A), rtol=loose, atol=loose, equal_nan=True)


def test_determinants_of_singular_and_empty_matrices():
    for A in (torch.zeros(3, 3), torch.ones(4, 4), torch.zeros(0, 0)):
        S = scorch.from_torch(A, format="csr")
        close(torch.det(S), torch.det(A))
        close(tuple(torch.slogdet(S)), tuple(torch.slogdet(A)))


def test_numbers_that_are_not_finite():
    A = regular(5)
    A[2, 3] = math.nan
    S = scorch.from_torch(A, format="csr")
    assert torch.det(S).isnan() and torch.slogdet(S).logabsdet.isnan()
    with pytest.raises(LinAlgError, match="non-finite"):
        torch.linalg.solve(S, A[:, 0])


def test_determinants_without_scipy(no_scipy):
    A = regular(6)
    close(torch.linalg.det(scorch.from_torch(A, format="csr")), torch.linalg.det(A), 1e-6)


def test_inverses():
    A = regular(12)
    S = scorch.from_torch(A, format="csr")
    for found in (torch.linalg.inv(S), torch.inverse(S), S.inverse()):
        close(found, torch.linalg.inv(A))
    with pytest.raises(DensityError, match=r"use torch\.linalg\.solve"):
        torch.linalg.inv(laplacian(200_000))
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.inv(scorch.from_torch(torch.zeros(3, 3), format="csr"))


# least squares -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(30, 12), (12, 30), (20, 20)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_lstsq(shape, dtype, monkeypatch):
    A, b = matrix(*shape, dtype), matrix(shape[0], 3, dtype) + 1
    A[:, -1] = A[:, 0]  # of less than full rank
    S = scorch.from_torch(A, format="csr")
    wanted = torch.linalg.pinv(A) @ b
    if not is_on_device():  # where torch has but one driver, which needs full rank
        close(torch.linalg.lstsq(S, b, driver="gelsd").solution, wanted, 1e-6)
    monkeypatch.setattr(solve, "MAX_DENSE_ELEMENTS", 0)
    found = torch.linalg.lstsq(S, b)
    close(found.solution, wanted, 1e-6)
    close(torch.linalg.lstsq(S, b[:, 0]).solution, wanted[:, 0], 1e-6)
    if shape[0] > shape[1]:
        close(found.residuals, (A @ wanted - b).abs().square().sum(0))
    assert not torch.linalg.lstsq(S, torch.zeros_like(b)).solution.any()


def test_lstsq_says_when_it_does_not_converge(monkeypatch):
    A = matrix(30, 12)
    b = torch.ones(30, dtype=torch.float64)
    with pytest.raises(ConvergenceError, match="lstsq did not converge: after 2"):
        krylov.lsmr(lambda x: A @ x, lambda x: A.T @ x, b, 12, 1e-10, 2)


# iterations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["cg", "gmres"])
def test_iterative_methods(method, dtype):
    A = definite(25, dtype) if method == "cg" else regular(25, dtype)
    function = getattr(scorch.linalg, method)
    near = torch.diag(1 / A.diagonal())
    b = matrix(25, 3, dtype) + 1
    for given in (scorch.from_torch(A, format="csr"), A, A.to_sparse_csr(), lambda x: A @ x):
        for M in (None, scorch.from_torch(near, format="coo"), lambda x: near @ x):
            found = function(given, b, M=M)
            assert bool(((A @ found - b).norm(dim=0) <= 2e-5 * b.norm(dim=0)).all())
            if dtype in (torch.float64, torch.complex128):
                close(found, torch.linalg.solve(A, b), 1e-7)
    close(function(A, b[:, 0], x0=torch.linalg.solve(A, b[:, 0])), torch.linalg.solve(A, b[:, 0]), 1e-4)
    assert not function(A, torch.zeros_like(b)).any()


@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.whole
def test_callbacks_see_every_iteration(columns):
    A, b = definite(25), torch.ones(25, *columns, dtype=torch.float64)
    errors = {"cg": [], "gmres": []}
    solution = torch.linalg.solve(A, b)
    for method, seen in errors.items():
        target = solution if method == "cg" or not columns else solution[:, 0]
        options = {} if method == "cg" else {"restart": 5}
        callback = lambda x, target=target, seen=seen: seen.append((x - target).norm().item())  # noqa: E731
        close(getattr(scorch.linalg, method)(A, b, callback=callback, **options), solution, 1e-8)
        assert len(seen) > 1 and seen[-1] < 1e-6 * seen[0]
    assert len(errors["cg"]) <= 25 + 2  # as many as there are unknowns, but for rounding


def test_iterative_methods_say_what_is_wrong():
    A, b = definite(25), torch.ones(25, dtype=torch.float64)
    S = scorch.from_torch(A, format="csr")
    with pytest.raises(ConvergenceError, match=r"cg did not converge: after 2 iterations.*not 1e-10"):
        scorch.linalg.cg(S, b, maxiter=2)
    with pytest.raises(ConvergenceError, match="gmres did not converge"):
        scorch.linalg.gmres(S, b, maxiter=1, restart=2)
    with pytest.raises(ConvergenceError, match="use a better preconditioner M"):
        scorch.linalg.cg(S, b, maxiter=2, M=lambda x: x)
    with pytest.raises(LinAlgError, match="not positive definite"):
        scorch.linalg.cg(-S, b)
    for method in (scorch.linalg.cg, scorch.linalg.gmres):
        with pytest.raises(ShapeError, match=r"returned shape \(25, 25\) for columns of shape \(25,\)"):
            method(S, b, M=lambda x: x / b[:, None])
        with pytest.raises(OperandError, match="the function returned None; return a tensor"):
            method(lambda x: None, b)
        with pytest.raises(OperandError, match=r"M of \w+: .* returned a NumPy array; .*torch.from_numpy"):
            method(S, b, M=lambda x: x.cpu().numpy())
        with pytest.raises(DtypeError, match=r"^(cg|gmres): .*right-hand side .*float64 and torch.float32"):
            method(S, b.float())
        with pytest.raises(DtypeError, match=r"^M of (cg|gmres): .*float32 and torch.float64"):
            method(S, b, M=S.float())
        with pytest.raises(DtypeError, match="the matrix and x0 to have"):
            method(S, b, x0=b.float())
        with pytest.raises(
            OperandError, match=r"right-hand side .*NumPy array; create one with torch.from_numpy"
        ):
            method(S, b.cpu().numpy())
        with pytest.raises(ArgumentError, match="callback must be a function"):
            method(S, b, callback=[])
    with pytest.raises(LinAlgError, match="non-finite"):
        scorch.linalg.cg(S * math.nan, b)
    with pytest.raises(ConvergenceError, match="has non-finite values"):
        scorch.linalg.gmres(S * math.nan, b)
    singular = scorch.from_torch(torch.diag(torch.tensor([1.0, 0.0])), format="csr")
    with pytest.raises(ConvergenceError):
        scorch.linalg.cg(singular, torch.ones(2))
    with pytest.raises(ConvergenceError):
        scorch.linalg.gmres(singular, torch.ones(2))
    with pytest.raises(ShapeError, match="square matrix"):
        scorch.linalg.cg(S[:5], b)
    with pytest.raises(ShapeError, match="does not match 3 rows"):
        scorch.linalg.cg(S, b[:3])
    with pytest.raises(ShapeError, match="x0 must have the shape"):
        scorch.linalg.cg(S, b, x0=torch.ones(25, 2, dtype=torch.float64))
    with pytest.raises(DtypeError, match="int64"):
        scorch.linalg.cg(S, b.long())
    with pytest.raises(OperandError, match="but got a str"):
        scorch.linalg.gmres("S", b)
    with pytest.raises(OperandError, match="but got a list"):
        scorch.linalg.cg(S, [1.0])


# eigenvalues, norms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["scipy", "own"])
@pytest.mark.parametrize("which", ["LM", "LA", "SA"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_eigsh(way, which, dtype, monkeypatch):
    n = 300
    A = matrix(n, n, dtype)
    A = A + A.mH + torch.diag(torch.linspace(-30, 40, n, dtype=torch.float64)).to(dtype)
    if way == "own":
        monkeypatch.setattr(eigen, "scipy_linalg", lambda: None)
    values, vectors = scorch.linalg.eigsh(scorch.from_torch(A, format="csr"), 4, which)
    every = torch.linalg.eigvalsh(A)
    order = {
        "LM": every.abs().argsort(descending=True),
        "LA": torch.arange(n - 1, -1, -1),
        "SA": torch.arange(n),
    }
    close(values, every[order[which][:4]].sort().values, 1e-9)
    close(A @ vectors, vectors * values, 1e-5)
    close(vectors.mH @ vectors, torch.eye(4, dtype=dtype), 1e-8)


def test_small_and_multiple_eigenvalues(monkeypatch):
    small = scorch.from_torch(definite(20), format="csr")
    values, vectors = scorch.linalg.eigsh(small, 3, "SM")
    close(values, torch.linalg.eigvalsh(definite(20))[:3])
    close(small @ vectors, vectors * values)
    monkeypatch.setattr(eigen, "scipy_linalg", lambda: None)
    twice = scorch.from_torch(torch.diag(torch.tensor([5.0, 5.0] + [1.0] * 298)), format="csr")
    close(scorch.linalg.eigsh(twice, 2)[0], torch.tensor([5.0, 5.0]), 1e-5)


def test_eigenvalues_next_to_a_number():
    L = laplacian(400)
    every = torch.linalg.eigvalsh(L.to_dense())
    close(scorch.linalg.eigsh(L, 3, sigma=0)[0], every[:3], 1e-9)
    small = laplacian(20)
    near = torch.linalg.eigvalsh(small.to_dense())
    close(scorch.linalg.eigsh(small, 2, sigma=2.0)[0], near[(near - 2).abs().argsort()[:2]].sort().values)


def test_eigsh_says_what_is_wrong(no_scipy):
    L = laplacian(400)
    with pytest.raises(LinAlgError, match="not symmetric"):
        scorch.linalg.eigsh(scorch.from_torch(regular(20), format="csr"))
    with pytest.raises(ArgumentError, match="LM, SM, LA, SA"):
        scorch.linalg.eigsh(L, which="BE")
    with pytest.raises(ArgumentError, match="but got 0"):
        scorch.linalg.eigsh(L, 0)
    with pytest.raises(ArgumentError, match="sigma= needs SciPy"):
        scorch.linalg.eigsh(L, sigma=0)
    with pytest.raises(ConvergenceError, match="of 6 eigenvalues"):
        scorch.linalg.eigsh(L, maxiter=1)


def test_eigsh_takes_as_many_restarts_as_in_scipy():
    pytest.importorskip("scipy")
    size = 400  # its largest eigenvalues are close together and need more than 300 restarts
    largest = 2.1 + 2 * math.cos(math.pi / (size + 1))
    with pytest.raises(ConvergenceError, match="increase maxiter"):
        scorch.linalg.eigsh(laplacian(size), k=2, maxiter=300)
    assert scorch.linalg.eigsh(laplacian(size), k=2)[0][-1].item() == pytest.approx(largest, abs=1e-9)


ORDERS = ["fro", 1, -1, math.inf, -math.inf, 2, -2, "nuc"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("order", ORDERS)
def test_norms(form, order):
    A = matrix(8, 6)
    A[3] = 0
    S = scorch.from_torch(A, format=form)
    close(torch.linalg.matrix_norm(S, order), torch.linalg.matrix_norm(A, order))
    close(torch.linalg.matrix_norm(S, order, keepdim=True), torch.linalg.matrix_norm(A, order, keepdim=True))
    close(torch.linalg.norm(S, order), torch.linalg.norm(A, order))
    if not isinstance(order, str):
        close(torch.linalg.vector_norm(S, order), torch.linalg.vector_norm(A, order))
        close(torch.linalg.vector_norm(S, order, dim=1), torch.linalg.vector_norm(A, order, dim=1))
        close(torch.linalg.norm(S, order, dim=0), torch.linalg.norm(A, order, dim=0))
    close(torch.linalg.norm(S), torch.linalg.norm(A))


@pytest.mark.parametrize("shape", [(400, 300), (300, 400)])
def test_the_largest_singular_value_of_large_matrices(shape):
    A = matrix(*shape)
    S = scorch.from_torch(A, format="csr")
    close(torch.linalg.matrix_norm(S, 2), torch.linalg.matrix_norm(A, 2))
    close(torch.linalg.norm(S, 2, keepdim=True), torch.linalg.norm(A, 2, dim=(0, 1), keepdim=True))


# large -------------------------------------------------------------------------------------------------


def test_large_matrices_cost_their_entries(iterative, monkeypatch):
    n = 200_000
    L = laplacian(n, 1.0)
    b = torch.ones(n, dtype=torch.float64)
    inner = torch.linalg.solve(L, b)  # by cg
    assert float((L @ inner - b).norm() / b.norm()) < 1e-9
    monkeypatch.setattr(solve, "scipy_linalg", linear_operators.scipy_linalg)
    close(torch.linalg.solve(L, b), inner, 1e-7)
    close(scorch.linalg.gmres(L, b), inner, 1e-7)
    close(torch.linalg.lstsq(L, b).solution, inner, 1e-6)
    assert float(torch.linalg.slogdet(L).logabsdet) == pytest.approx(n * math.log((3 + 5**0.5) / 2), rel=1e-5)
    assert torch.linalg.matrix_norm(L, 1) == torch.linalg.matrix_norm(L, math.inf) == 5
    assert torch.linalg.matrix_norm(L, -1) == 4 and torch.linalg.norm(L).item() > 0
    with pytest.raises(DensityError):
        torch.linalg.matrix_norm(L, "nuc")


def test_the_names_are_those_of_torch_and_three_more():
    assert set(dir(torch.linalg)) <= set(dir(scorch.linalg))
    assert scorch.linalg.solve is torch.linalg.solve and not hasattr(torch.linalg, "cg")


def scaled_grid(side: int, scales: torch.Tensor) -> SparseTensor:
    """A positive definite matrix of a grid, whose rows and columns are scaled."""
    line, eye = laplacian(side), scorch.eye(side, dtype=torch.float64, format="csr")
    grid = torch.kron(line, eye) + torch.kron(eye, line)
    return (grid * scales * scales[:, None]).to_format("csr")


@pytest.mark.skipif(solve.scipy_linalg() is None, reason="SciPy is not installed")
def test_scales_of_rows_do_not_fill_the_factors():
    side = 24
    one = scaled_grid(side, torch.ones(side * side, dtype=torch.float64))
    scales = 10 ** (6 * torch.rand(side * side, dtype=torch.float64))
    scaled = scaled_grid(side, scales)
    assert solve.factorize(scaled).nnz == solve.factorize(one).nnz
    b = torch.randn(side * side, dtype=torch.float64)
    found = torch.linalg.solve(scaled, b * scales) * scales
    torch.testing.assert_close(found, torch.linalg.solve(one.to_dense(), b))


@pytest.mark.parametrize("small", [1e-20, 1e-9, 1.0])
def test_matrices_that_need_other_pivots_are_solved(small: float):
    beside = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    dense = torch.diag(beside, 1) + torch.diag(beside, -1) + small * torch.eye(4, dtype=torch.float64)
    b = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    found = torch.linalg.solve(scorch.from_torch(dense, format="csr"), b)
    torch.testing.assert_close(dense @ found, b)


def test_cg_of_one_column_calls_no_dot_product_of_torch() -> None:
    """Which shares short vectors among threads, and waits milliseconds for one on a busy machine."""
    dense = torch.eye(40, dtype=torch.float64) * 4 - torch.ones(40, 40, dtype=torch.float64) / 40
    A, b = scorch.from_torch(dense, format="csr"), torch.arange(40.0, dtype=torch.float64)
    with torch.profiler.profile(acc_events=True) as profile:
        x = scorch.linalg.cg(A, b)
    torch.testing.assert_close(dense @ x, b)
    called = {event.name for event in profile.events() or ()}
    assert "aten::mul" in called
    assert not called & {"aten::dot", "aten::vdot"}


@pytest.mark.parametrize("size", [10, 300])  # eigenvalues of small matrices are computed densely
def test_iterative_methods_say_that_they_are_not_differentiable(size):
    A, b = laplacian(size, shift=2.0), torch.ones(size, dtype=torch.float64)
    solutions = {
        "cg": lambda A, b: scorch.linalg.cg(A, b),
        "gmres": lambda A, b: scorch.linalg.gmres(A, x0=b, b=b),
        "eigsh": lambda A, b: scorch.linalg.eigsh(A, k=2, v0=b, tol=0.1)[1].square(),
    }
    for name, solve_for in solutions.items():
        plain = solve_for(A, b)
        for operands in [(A.clone().requires_grad_(), b), (A, b.clone().requires_grad_())]:
            solution = solve_for(*operands)
            close(solution.detach(), plain)
            assert not plain.requires_grad
            with pytest.raises(UnsupportedError, match=f"{name} is not differentiable; use torch.linalg"):
                solution.sum().backward()
            with torch.no_grad():
                assert not solve_for(*operands).requires_grad


def test_iterative_method_of_a_function_records_no_graph():
    A, b = laplacian(10), torch.ones(10, dtype=torch.float64)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    assert not scorch.linalg.cg(lambda x: A @ x * scale, b).requires_grad
