"""Entries of a product of two sparse tensors are looked up where the other one noted them."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.explain.explain_statement import explain
from scorch.settings import enabled

PRODUCT = "C[i,j] = A[i,j] * B[i,j]"
needs_places = pytest.mark.skipif(not enabled("lookup"), reason="places are switched off")


def random(m: int, n: int, density: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 9, (m, n), generator=generator).float()
    return values * (torch.rand(m, n, generator=generator) < density)


def source(text: str, **tensors: torch.Tensor) -> str:
    return explain(text, **tensors).report(source=True)


@needs_places
def test_places_are_noted_where_rows_are_not_too_empty() -> None:
    A, B = (scorch.from_torch(random(30, 40, 0.3, seed), format="csr") for seed in (0, 1))
    assert "_places" in source(PRODUCT, A=A, B=B)
    assert "_places" not in source("C[i,j] = A[i,j] + B[i,j]", A=A, B=B)
    few = scorch.from_torch(random(3, 5000, 0.01, 0), format="csr")
    assert "_places" not in source(
        PRODUCT, A=few, B=scorch.from_torch(random(3, 5000, 0.01, 1), format="csr")
    )
    with scorch.settings(disable="lookup"):
        assert "_places" not in source(PRODUCT, A=A, B=B)


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(1, 1), (60, 90), (300, 12)])
def test_products_meet_at_the_same_entries(shape: tuple[int, int], threads: int) -> None:
    a, b = random(*shape, 0.4, 0), random(*shape, 0.2, 1)
    b[0] = a[0]  # rows that are alike, that begin alike, and that have nothing
    b[-1, :6] = a[-1, :6]
    a[shape[0] // 2] = 0
    A, B = scorch.from_torch(a, format="csr"), scorch.from_torch(b, format="csr")
    with scorch.settings(threads=threads, debug=True):
        for product in (A * B, B * A):
            assert torch.equal(product.to_dense(), a * b)
            assert product.nnz == torch.count_nonzero(a * b)


@pytest.mark.whole
def test_the_last_entry_that_does_not_meet_has_room() -> None:
    """What is not there is written too, and written over: never behind the slots of the result."""
    a, b = torch.zeros(4, 6), torch.ones(4, 6)
    a[:, 0] = 2.0  # the first entry of each row of b meets one, the others do not
    A, B = scorch.from_torch(a, format="csr"), scorch.from_torch(b, format="csr")
    with scorch.settings(debug=True):
        assert torch.equal(scorch.evaluate(PRODUCT, A=A, B=B).to_dense(), a * b)
        assert torch.equal(scorch.evaluate(PRODUCT, A=B, B=A).to_dense(), a * b)


def test_places_are_noted_inside_loops_that_merge() -> None:
    """The loop over j merges two compressed levels, too; only the one over k has places."""
    t, u = ((torch.rand(4, 5, 6) < 0.4).double() for _ in range(2))
    T = scorch.from_torch(t, format=scorch.Format("sds", order=(1, 0, 2)))
    U = scorch.from_torch(u, format="csf")
    found = scorch.evaluate("R[i,j] = sum(k, T[i,j,k] * U[i,j,k])", T=T, U=U, format="coo")
    torch.testing.assert_close(found.to_dense(), (t * u).sum(2))


@pytest.mark.whole
def test_rows_that_are_themselves_merged_are_looked_up_too() -> None:
    a, b = random(60, 12, 0.3, 0), random(60, 12, 0.5, 1)
    a[::3] = 0
    b[1::4] = 0
    A, B = scorch.from_torch(a, format="dcsr"), scorch.from_torch(b, format="dcsr")
    with scorch.settings(debug=True):
        total = scorch.einsum("ij,ij->i", A, B, format="s")
        assert torch.equal(total.to_dense(), (a * b).sum(1))


# rows that are noted once for all turns of a loop inside of them ---------------------------------------

MASKED = "R[i,k] = M[i,k] * A[i,j] * B[j,k]"


@needs_places
def test_a_mask_is_noted_before_the_loop_that_does_not_change_its_row() -> None:
    M, A, B = (scorch.from_torch(random(30, 30, 0.3, seed), format="csr") for seed in range(3))
    text = source(MASKED, M=M, A=A, B=B)
    note, loop = text.index("M_places[M2_crd[pM2]] = pM2;"), text.index("pA2 < pA2_stop")
    assert note < loop
    assert "noted before the loop over j" in text


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", ["csr", "dcsr", "csc", "coo"])
def test_masked_products_have_the_entries_where_all_factors_have_some(form: str, threads: int) -> None:
    m, a, b = random(40, 50, 0.3, 0), random(40, 30, 0.2, 1), random(30, 50, 0.1, 2)
    m[::7] = 0
    a[3] = 0
    b[::5] = 0
    expected, reached = m * (a @ b), m.bool() & ((a != 0).float() @ (b != 0).float()).bool()
    M, A, B = (scorch.from_torch(dense, format=form) for dense in (m, a, b))
    with scorch.settings(threads=threads, debug=True):
        result = scorch.evaluate(MASKED, M=M, A=A, B=B)
    assert torch.equal(result.to_dense(), expected)
    assert result.nnz == torch.count_nonzero(reached)


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 2])
def test_triangles_are_counted(threads: int) -> None:
    upper = random(60, 60, 0.2, 0).bool().double().triu(1)
    A = scorch.from_torch(upper, format="csr")
    with scorch.settings(threads=threads, debug=True):
        count = scorch.evaluate("n = A[i,j] * A[i,k] * A[j,k]", A=A)
    assert count.item() == ((upper @ upper) * upper).sum().item() == (upper @ upper @ upper.T).trace().item()


@pytest.mark.whole
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", ["csr", "dcsr", "csc", "coo"])
def test_gradients_of_sparse_products_lie_on_the_patterns_of_operands(form: str, threads: int) -> None:
    a, b = random(50, 40, 0.2, 0).double(), random(40, 60, 0.2, 1).double()
    a[5], b[7] = 0, 0
    A, B = (scorch.from_torch(dense, format=form).requires_grad_() for dense in (a, b))
    weights = random(50, 60, 0.5, 2).double()  # so that the gradient is zero at some entries
    with scorch.settings(threads=threads, debug=True):
        ((A @ B) * weights).sum().backward()
    for tensor, dense, gradient in ((A, a, weights @ b.T), (B, b, a.T @ weights)):
        assert isinstance(tensor.grad, scorch.SparseTensor)
        assert torch.equal(tensor.grad.to_dense(), gradient * (dense != 0))
        assert tensor.grad.nnz == tensor.nnz


@needs_places
def test_threads_add_to_copies_of_the_values_on_a_pattern() -> None:
    """Each has a copy as long as an operand has entries, and there are no more of them than operands need."""
    a, b = random(300, 200, 0.1, 0).double(), random(200, 300, 0.1, 1).double()
    gradients = []
    for threads in (1, 2, 7):
        A = scorch.from_torch(a, format="csr")
        B = scorch.from_torch(b, format="csr").requires_grad_()
        with scorch.settings(threads=threads):
            (A @ B).sum().backward()
        assert isinstance(B.grad, scorch.SparseTensor)
        gradients.append(B.grad.to_dense())
    expected = a.sum(0)[:, None].expand(200, 300) * (b != 0)
    assert all(torch.equal(gradient, expected) for gradient in gradients)


@pytest.mark.whole
def test_dense_factors_are_laid_out_beside_blocks() -> None:
    """The block loops of an index are there although the operand that had blocks is read without them."""
    a, b, m = random(32, 90, 0.3, 0), random(90, 74, 0.7, 1), random(32, 74, 0.3, 2)
    A, B = (scorch.from_torch(dense.double(), format="bsr(2,2)") for dense in (a, b))
    found = scorch.evaluate("T[i,j,k] = M[i,k] * A[i,j] * B[j,k]", M=m.double(), A=A, B=B)
    dense = found.to_dense() if isinstance(found, scorch.SparseTensor) else found
    assert torch.equal(dense, (m[:, None, :] * a[:, :, None] * b[None]).double())
