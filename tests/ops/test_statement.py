"""Expressions on tensors: evaluate in its corners."""

import pytest
import torch

import scorch


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize(("dtype", "number"), [(torch.uint8, -1), (torch.uint8, 256), (torch.int8, 200)])
def test_numbers_are_compared_in_the_type_of_the_tensor(operator, dtype, number):
    """-1 is 255 as uint8, so that zeros, stored or not, are smaller."""
    dense = torch.tensor([0, 1, 0, 100], dtype=dtype)
    text = f"y[i] = B[i] {operator} {number}"
    wanted = scorch.evaluate(text, B=dense)
    found = scorch.evaluate(text, B=scorch.from_torch(dense, format="s"), format="dense")
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("form", ["dense", "csf", "coo"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_the_sum_of_a_sum_of_products_is_that_of_two_steps(form, dtype):
    """Products of narrow integers wrap around in their own sum, and only the outer sum is int64."""
    dense = torch.randint(0, 2, (3, 4, 5), generator=torch.Generator().manual_seed(1)).mul(13).to(dtype)
    A = dense if form == "dense" else scorch.from_torch(dense, format=form)
    inner = dense.int().square().sum((0, 1), dtype=torch.int32)
    inner = inner.bool() if dtype == torch.bool else inner.to(dtype)
    found = scorch.evaluate("y[] = sum(k, sum(i, l, A[i,l,k] * A[i,l,k]))", A=A)
    wanted = inner.sum()
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)


def test_nested_sums_of_floats_are_one_kernel():
    A = scorch.from_torch(torch.eye(6), format="csr")
    assert len(scorch.explain("y[] = sum(k, sum(i, A[i,k] * A[i,k]))", A=A).steps) == 1


def test_a_product_in_a_product_is_one_kernel_where_that_is_cheaper():
    T = scorch.from_torch(torch.rand(12, 10, 9) * (torch.rand(12, 10, 9) < 0.1), format="csf")
    B, C = torch.rand(10, 4), torch.rand(9, 4)
    text = "M[i,r] = T[i,j,k] * B[j,r] * C[k,r]"  # the sum over j stands inside the one over k
    assert len(scorch.explain(text, T=T, B=B, C=C).steps) == 1
    wanted = torch.einsum("ijk,jr,kr->ir", T.to_dense(), B, C)
    torch.testing.assert_close(scorch.evaluate(text, T=T, B=B, C=C, format="dense"), wanted)


def test_sums_of_single_factors_stay_apart():
    A = scorch.from_torch(torch.eye(6), format="csr")
    text = "y[] = sum(i, sum(j, A[i,j]) * sum(k, A[i,k]))"
    assert len(scorch.explain(text, A=A).steps) > 1
    assert float(scorch.evaluate(text, A=A)) == 6.0


@pytest.mark.parametrize("format", [None, "csr", "coo", "csc", "bsr(2,2)"])
def test_a_factor_that_is_absent_in_some_rows_of_a_sum(format):
    """The check that the factor is there was left out where only its term of the sum had an entry."""
    A, B, D, x = torch.eye(4), torch.ones(4, 4), torch.zeros(4, 4), torch.zeros(4)
    D[1], x[1] = 5.0, 5.0
    a, b, d, s = (scorch.from_torch(t, format=f) for t, f in ((A, "csr"), (B, "csr"), (D, "sd"), (x, "s")))
    with scorch.settings(debug=True):
        found = scorch.evaluate("C[i,j] = A[i,j] + B[i,j] * D[i,j]", A=a, B=b, D=d, format=format)
        assert torch.equal(found.to_dense(), A + B * D)
        found = scorch.evaluate("C[i,j] = A[i,j] + B[i,j] * x[i]", A=a, B=b, x=s, format=format)
        assert torch.equal(found.to_dense(), A + B * x[:, None])
