"""Products of several dtypes are computed in the dtype of the result, partial ones and sums too."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch

import scorch
from scorch import SparseTensor

EQUATIONS = ["ij,j->i", "ij,j->ij", "ij,i->", "ij,jk,kl->il", "ij,jk->ik", "ij,->ij", "i,ij,j->"]
DTYPES = [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.complex64]
KERNELS = 12  # pairs of equations and dtypes; each is compiled


def operand(rng: random.Random, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    numbers = torch.rand(shape, dtype=torch.float64, generator=generator) + 1 / 3
    if dtype == torch.int64:
        return (numbers * 2**26).to(dtype)  # more digits than float32 has
    return numbers.to(dtype)


def drawn(seed: int) -> tuple[str, list[torch.Tensor], list[Any]]:
    """An equation, dense operands, and the same with some of them sparse; some indices have size 1."""
    rng = random.Random(seed)
    equation = rng.choice(EQUATIONS)
    terms = equation.split("->")[0].split(",")
    dtypes = [rng.choice(DTYPES) for _ in terms]
    sizes = {index: rng.choice([1, 3]) for index in "ijkl"}
    dense = [
        operand(rng, [sizes[i] if rng.random() < 0.8 else 1 for i in term], dtype)
        for term, dtype in zip(terms, dtypes, strict=True)
    ]
    dense = [part[..., :1].reshape([1] * part.dim()) if rng.random() < 0.1 else part for part in dense]
    is_sparse = [bool(part.dim()) and rng.random() < 0.7 for part in dense]
    is_sparse[terms.index("ij")] = True
    given = [
        scorch.from_torch(part, format="csr" if part.dim() == 2 else "s") if sparse else part
        for part, sparse in zip(dense, is_sparse, strict=True)
    ]
    return equation, dense, given


@pytest.mark.parametrize("learns", [False, True])
def test_einsum(learns: bool, cases: int) -> None:
    for seed in range(max(KERNELS, cases // 4 if cases > 200 else KERNELS)):
        equation, dense, given = drawn(seed)
        dtype = functools.reduce(torch.promote_types, [part.dtype for part in dense])
        wide = torch.complex128 if dtype.is_complex else torch.float64
        wanted = torch.einsum(equation, *(part.to(wide) for part in dense))
        if learns and any(part.is_floating_point() for part in dense):
            given = [part.clone().requires_grad_() if part.is_floating_point() else part for part in given]
        found: Any = scorch.einsum(equation, *given)
        found = found.to_dense() if isinstance(found, SparseTensor) else found
        about = f"seed {seed}: {equation} of {[(part.dtype, tuple(part.shape)) for part in dense]}"
        assert found.dtype == dtype, about
        tolerance = {torch.bfloat16: 5e-2, torch.float32: 1e-5, torch.complex64: 1e-5}.get(dtype, 1e-12)
        torch.testing.assert_close(
            found.detach().to(wide),
            wanted,
            rtol=tolerance,
            atol=0,
            msg=lambda text, about=about: f"{about}\n{text}",
        )


@pytest.mark.parametrize(
    "expression",
    [
        "y[] = A[i,j] * x[i]",
        "y[j] = z[j] * A[i,j] * x[i]",
        "y[] = -2 * A[i,j] * x[i]",
        "y[j] = exp(A[i,j] * x[i] / 1000) + z[j]",
    ],
)
def test_partial_sums_in_evaluate(expression: str) -> None:
    """The sum of A over j is not one in float32 where the result is in float64."""
    A = torch.rand(50, 40) + 0.1
    x, z = torch.rand(50, dtype=torch.float64), torch.rand(40)
    given = {"A": scorch.from_torch(A, format="csr"), "x": x} | ({"z": z} if "z" in expression else {})
    wide = {name: value.to_dense().double() for name, value in given.items()}
    found, wanted = scorch.evaluate(expression, **given), scorch.evaluate(expression, **wide)
    torch.testing.assert_close(found.to_dense(), wanted.to_dense(), rtol=1e-12, atol=0)


def test_a_call_is_repeated_in_its_own_dtypes() -> None:
    """What is kept of a call for the next one does not depend on what was converted in it."""
    A = scorch.from_torch(torch.rand(4, 3), format="csr")
    for _ in range(3):
        for x in (torch.rand(1, dtype=torch.float64), torch.rand(3), torch.rand(3, dtype=torch.float64)):
            found = scorch.einsum("ij,j->i", A, x)
            wanted = torch.einsum("ij,j->i", A.to_dense().double(), x.double())
            assert found.dtype == x.dtype
            torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=0)


@pytest.mark.whole
@pytest.mark.parametrize("text", ["B[] += A[k] * B", "y = B + sum(k, A[k] * B)", "y = B * max(k, A[k])"])
def test_a_reduction_over_all_indices_promotes_as_a_scalar(text: str) -> None:
    """As in torch, whose ``sum()`` has no dimensions: float32 and a scalar in float64 are float64."""
    A = scorch.from_torch(torch.tensor([1.0, 0.0, 2.0]), format="s")
    B = torch.tensor(1.0, dtype=torch.float64)
    assert scorch.evaluate(text, A=A, B=B).dtype == torch.float64
