"""Where nothing is stored an expression has one value, in the arithmetic of its dtypes."""

from __future__ import annotations

import pytest
import torch

import scorch


def matrix(dtype: torch.dtype = torch.float64, format: str = "csr") -> scorch.SparseTensor:
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randint(-9, 9, (40, 300), generator=generator)
    found = numbers * (torch.rand(40, 300, generator=generator) < 0.02)
    return scorch.from_torch((found.abs() if dtype == torch.uint8 else found).to(dtype), format=format)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr", "bsr(4,4)"])
@pytest.mark.parametrize(
    ("text", "dense"),
    [
        ("relu(A[i,j] - 3)", lambda a: torch.relu(a - 3)),
        ("2 * A[i,j] + relu(A[i,j] - 3)", lambda a: 2 * a + torch.relu(a - 3)),
        ("exp(A[i,j]) - 1", lambda a: torch.exp(a) - 1),
        ("maximum(A[i,j] - 1, A[i,j] * 2) * 1", lambda a: torch.maximum(a - 1, a * 2)),
        ("where(A[i,j] + 1 > 2, A[i,j] + 5, 0)", lambda a: torch.where(a + 1 > 2, a + 5, 0.0)),
        ("minimum(square(A[i,j] - 2) - 4, 0)", lambda a: ((a - 2).square() - 4).clamp(max=0)),
    ],
)
def test_result_is_sparse_where_parts_are_not_zero(text, dense, format) -> None:
    A = matrix(format=format)
    found = scorch.evaluate(f"D[i,j] = {text}", A=A)
    assert isinstance(found, scorch.SparseTensor)
    assert found.nnz <= A.nnz
    torch.testing.assert_close(found.to_dense(), dense(A.to_dense()))


def test_parts_of_several_tensors_are_merged() -> None:
    A, B = matrix(), matrix(format="csc") * 2
    found = scorch.evaluate("D[i,j] = A[i,j] * 2 + relu(A[i,j] + B[i,j] - 3)", A=A, B=B)
    assert isinstance(found, scorch.SparseTensor)
    a, b = A.to_dense(), B.to_dense()
    torch.testing.assert_close(found.to_dense(), a * 2 + torch.relu(a + b - 3))


def test_huge_result_needs_no_dense_memory() -> None:
    A = scorch.eye(10_000_000, format="csr") * 5
    assert scorch.evaluate("D[i,j] = relu(A[i,j] - 3)", A=A).sum() == 20_000_000


def test_unsigned_numbers_wrap_around() -> None:
    A = matrix(torch.uint8)
    a = A.to_dense()
    found = scorch.evaluate("D[i,j] = relu(A[i,j] - 3)", A=A)
    assert not isinstance(found, scorch.SparseTensor)  # 0 - 3 is 253
    assert torch.equal(found, torch.relu(a - 3))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.float32, torch.complex64])
def test_sum_counts_what_stands_where_nothing_is_stored(dtype: torch.dtype) -> None:
    A = matrix(dtype)
    a = A.to_dense()
    assert torch.equal(scorch.evaluate("y[i] = sum(j, A[i,j] - 3)", A=A), (a - 3).sum(1))
    if not dtype.is_complex:
        assert torch.equal(scorch.evaluate("y[i] = sum(j, relu(A[i,j] - 3))", A=A), torch.relu(a - 3).sum(1))
        assert torch.equal(scorch.evaluate("y[i] = max(j, A[i,j] - 3)", A=A), (a - 3).amax(1))


def test_gradient_stays_on_the_pattern() -> None:
    A = matrix().requires_grad_()
    scorch.evaluate("D[i,j] = relu(A[i,j] - 3)", A=A).sum().backward()
    a = A.detach().to_dense().requires_grad_()
    torch.relu(a - 3).sum().backward()
    torch.testing.assert_close(A.grad.to_dense(), a.grad)


def test_divisions_are_not_hidden() -> None:
    A = matrix()
    found = scorch.evaluate("D[i,j] = relu(A[i,j] - 3) + A[i,j] / A[i,j]", A=A)
    assert found.to_dense().isnan().sum() == A.numel() - int((A.to_dense() != 0).sum())


def test_dense_tensor_beside_is_read_everywhere() -> None:
    A, x = matrix(), torch.linspace(0, 5, 300, dtype=torch.float64)
    found = scorch.evaluate("D[i,j] = relu(A[i,j] + x[j] - 3)", A=A, x=x)
    torch.testing.assert_close(found.to_dense(), torch.relu(A.to_dense() + x - 3))
