"""The expressions of the paper and its slides, over several formats each, against dense torch."""

from __future__ import annotations

import pytest
import torch

import scorch
from properties.drawing import to_dense
from scorch import Format, SparseTensor
from scorch._src.engine.execute import from_dense
from validity import check_storage

MATRICES = ["csr", "csc", "coo", "dcsr", "bsr(2,3)"]
SUMMED = ["csr", "csc", "coo", "dcsr"]
TENSORS = ["coo", "csf", "csr", "dsd"]  # of order 3; csr is dds


def random(*shape: int, density: float = 0.3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return values * (torch.rand(*shape, generator=generator) < density)


def stored(dense: torch.Tensor, form: str) -> torch.Tensor:
    if form == "dense":
        return dense
    return SparseTensor(from_dense(dense, Format(form, dims=dense.dim())))


def assert_equals(result: torch.Tensor, truth: torch.Tensor, form: str | None = None) -> None:
    if isinstance(result, SparseTensor):
        check_storage(result.storage)
    if form is not None:
        found = result.format if isinstance(result, SparseTensor) else Format("dense", dims=result.dim())
        assert found == Format(form, dims=truth.dim()), f"{found} instead of {form}"
    torch.testing.assert_close(to_dense(result), truth)


# products --------------------------------------------------------------------------------------------


pytestmark = pytest.mark.sampled(2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", MATRICES)
@pytest.mark.parametrize("vector", ["dense", "s"])
def test_spmv(form: str, vector: str) -> None:
    A, x = random(7, 9), random(9, density=0.6, seed=1)
    result = scorch.einsum("ij,j->i", stored(A, form), stored(x, vector))
    assert_equals(result, A @ x)
    assert_equals(scorch.evaluate("y[i] = A[i,j] * x[j]", A=stored(A, form), x=stored(x, vector)), A @ x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", MATRICES)
def test_spmm(form: str) -> None:
    A, X = random(7, 9), random(9, 5, density=1.0, seed=1)
    assert_equals(scorch.einsum("ij,jk->ik", stored(A, form), X), A @ X, "dense")
    assert_equals(
        scorch.einsum("ki,ij->kj", X.T.contiguous()[:, :7], stored(A, form)), X.T[:, :7] @ A, "dense"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("left", MATRICES)
@pytest.mark.parametrize("right", MATRICES)
def test_spmspm(left: str, right: str) -> None:
    A, B = random(7, 9, density=0.2), random(9, 8, density=0.2, seed=1)
    result = scorch.einsum("ij,jk->ik", stored(A, left), stored(B, right))
    if right != "csc":  # its columns are dense; with dense rows too the result of so small a product is dense
        assert isinstance(result, SparseTensor), "a product of sparse is sparse"
    assert_equals(result, A @ B)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", MATRICES)
@pytest.mark.parametrize("equation", ["ij,ik,jk->ij", "ij,ik,kj->ij"])
def test_sddmm_keeps_the_pattern(form: str, equation: str) -> None:
    A, X, Y = random(7, 9), random(7, 4, density=1.0, seed=1), random(9, 4, density=1.0, seed=2)
    S = stored(A, form)
    result = scorch.einsum(equation, S, X, Y if equation == "ij,ik,jk->ij" else Y.T.contiguous())
    assert_equals(result, A * (X @ Y.T), form)
    assert all(a is b for a, b in zip(result.storage.pattern.arrays, S.storage.pattern.arrays, strict=True))


# tensors of order 3 ----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", TENSORS)
def test_mttkrp(form: str) -> None:
    B, C, D = random(4, 5, 6), random(5, 3, density=1.0, seed=1), random(6, 3, density=1.0, seed=2)
    truth = torch.einsum("ikl,kj,lj->ij", B, C, D)
    assert_equals(scorch.einsum("ikl,kj,lj->ij", stored(B, form), C, D), truth)
    sparse = scorch.einsum("ikl,kj,lj->ij", stored(B, form), stored(C, "csr"), stored(D, "csc"))
    assert_equals(sparse, truth)
    assert_equals(
        scorch.evaluate("A[i,j] = B[i,k,l] * C[k,j] * D[l,j]", B=stored(B, form), C=C, D=D, format="csr"),
        truth,
        "csr",
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", TENSORS)
@pytest.mark.parametrize("vector", ["dense", "s"])
@pytest.mark.parametrize("equation", ["ijk,k->ij", "ijk,j->ik", "ijk,i->jk"])
def test_ttv(form: str, vector: str, equation: str) -> None:
    B = random(4, 5, 6)
    v = random({"k": 6, "j": 5, "i": 4}[equation[4]], density=0.6, seed=1)
    assert_equals(scorch.einsum(equation, stored(B, form), stored(v, vector)), torch.einsum(equation, B, v))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", TENSORS)
@pytest.mark.parametrize("matrix", ["dense", "csr", "csc"])
@pytest.mark.parametrize("equation", ["ijk,lk->ijl", "ijk,lj->ilk", "ijk,li->ljk"])
def test_ttm(form: str, matrix: str, equation: str) -> None:
    B = random(4, 5, 6)
    M = random(3, {"k": 6, "j": 5, "i": 4}[equation[5]], density=0.5, seed=1)
    assert_equals(scorch.einsum(equation, stored(B, form), stored(M, matrix)), torch.einsum(equation, B, M))


# sums ------------------------------------------------------------------------------------------------


def test_product_plus_matrix_of_csr_csr_dcsr_is_csr() -> None:
    A, B, C = random(7, 7, density=0.2), random(7, 7, density=0.2, seed=1), random(7, 7, density=0.2, seed=2)
    tensors = {"A": stored(A, "csr"), "B": stored(B, "csr"), "C": stored(C, "dcsr")}
    elementwise = scorch.evaluate("D[i,j] = A[i,j] * B[i,j] + C[i,j]", **tensors)
    assert_equals(elementwise, A * B + C, "csr")
    product = scorch.evaluate("D[i,j] = A[i,k] * B[k,j] + C[i,j]", **tensors)
    assert_equals(product, A @ B + C, "csr")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", SUMMED)
@pytest.mark.parametrize("second", SUMMED)
@pytest.mark.parametrize("third", SUMMED)
def test_sum_of_three_matrices(first: str, second: str, third: str) -> None:
    forms = first, second, third
    dense = [random(6, 8, density=0.2, seed=seed) for seed in range(3)]
    A, B, C = (stored(matrix, form) for matrix, form in zip(dense, forms, strict=True))
    result = scorch.evaluate("D[i,j] = A[i,j] + B[i,j] - C[i,j]", A=A, B=B, C=C)
    assert isinstance(result, SparseTensor), "a sum of sparse is sparse"
    assert_equals(result, dense[0] + dense[1] - dense[2])
    if len(set(forms)) == 1:
        assert result.format == Format(forms[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("requested", [None, "csr", "csc", "coo", "dcsr", "bsr(2,2)", "dense"])
def test_csr_plus_csc(requested: str | None) -> None:
    A, B = random(6, 8, density=0.2), random(6, 8, density=0.2, seed=1)
    result = scorch.evaluate(
        "D[i,j] = A[i,j] + B[i,j]", A=stored(A, "csr"), B=stored(B, "csc"), format=requested
    )
    assert_equals(result, A + B, requested)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", MATRICES)
def test_matrix_plus_its_transpose(form: str) -> None:
    A = random(7, 7, density=0.2)
    result = scorch.evaluate("D[i,j] = A[i,j] + A[j,i]", A=stored(A, form))
    assert isinstance(result, SparseTensor)
    assert_equals(result, A + A.T)
    assert_equals(scorch.evaluate("D[i,j] = A[i,j] * A[j,i]", A=stored(A, form)), A * A.T)
    assert_equals(scorch.evaluate("D[i,j] = A[i,k] * A[j,k]", A=stored(A, form)), A @ A.T)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("requested", ["dcsr", "csr", "csc", "coo", "dcsc", "bsr(2,2)", "sd", "dense"])
def test_coo_times_csc_in_a_requested_format(requested: str) -> None:
    A, B = random(7, 9, density=0.2), random(9, 8, density=0.2, seed=1)
    result = scorch.einsum("ij,jk->ik", stored(A, "coo"), stored(B, "csc"), format=requested)
    assert_equals(result, A @ B, requested)


# chains ----------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "forms", [("csr",) * 4, ("csr", "csc", "coo", "dcsr"), ("coo", "dense", "csr", "dense")]
)
@pytest.mark.parametrize("length", [3, 4])
def test_chain_of_products(forms: tuple[str, ...], length: int) -> None:
    sizes = [6, 7, 5, 8, 4]
    dense = [random(sizes[n], sizes[n + 1], density=0.4, seed=n) for n in range(length)]
    equation = ",".join("ijklm"[n : n + 2] for n in range(length)) + f"->i{'ijklm'[length]}"
    operands = [stored(matrix, form) for matrix, form in zip(dense, forms, strict=False)]
    assert_equals(scorch.einsum(equation, *operands), torch.linalg.multi_dot(dense))


# mixture of experts ----------------------------------------------------------------------------------

GATES = ["csr", "csc", "coo", "dcsr", "dense"]


def experts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs (batch, in), weights (expert, in, out) and gates (batch, expert), of which few are open."""
    return (
        random(6, 5, density=1.0),
        random(4, 5, 3, density=1.0, seed=1),
        torch.softmax(random(6, 4, density=1.0, seed=2), 1) * (random(6, 4, density=0.5, seed=3) != 0),
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", GATES)
def test_mixture_of_experts_in_two_steps(form: str) -> None:
    x, weights, gates = experts()
    G = stored(gates, form)
    routed = scorch.einsum("bd,bn->bnd", x, G)  # what each expert is given
    assert_equals(routed, torch.einsum("bd,bn->bnd", x, gates))
    hidden = scorch.einsum("bnd,ndh->bnh", routed, weights)
    truth = torch.einsum("bd,bn,ndh->bnh", x, gates, weights)
    assert_equals(hidden, truth)
    assert_equals(scorch.einsum("bnd,bn->bd", hidden, G), torch.einsum("bnd,bn->bd", truth, gates))
    mixed = scorch.evaluate("y[b,h] = relu(H[b,n,h]) * G[b,n]", H=hidden, G=G)
    assert_equals(mixed, torch.einsum("bnh,bn->bh", torch.relu(truth), gates))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", GATES)
def test_mixture_of_experts_fused(form: str) -> None:
    x, weights, gates = experts()
    truth = torch.einsum("bd,ndh,bn->bh", x, weights, gates)
    assert_equals(scorch.einsum("bd,ndh,bn->bh", x, weights, stored(gates, form)), truth)
    text = "y[b,h] = relu(sum(d, x[b,d] * W[n,d,h])) * G[b,n]"
    fused = scorch.evaluate(text, x=x, W=weights, G=stored(gates, form))
    assert_equals(
        fused, torch.einsum("bnh,bn->bh", torch.relu(torch.einsum("bd,ndh->bnh", x, weights)), gates)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["csf", "coo", "ssd", "dsd", "csr"])
def test_mixture_of_experts_with_sparse_activations(form: str) -> None:
    _, weights, gates = experts()
    inputs = random(6, 4, 5, density=0.4, seed=4)
    hidden = scorch.einsum("bnd,ndh->bnh", stored(inputs, form), weights)
    assert_equals(hidden, torch.einsum("bnd,ndh->bnh", inputs, weights))
    assert_equals(
        scorch.einsum("bnd,bn->bd", stored(inputs, form), stored(gates, "csr")),
        torch.einsum("bnd,bn->bd", inputs, gates),
    )
