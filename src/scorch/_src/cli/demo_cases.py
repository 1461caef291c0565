"""The expressions of the demonstration: with Scorch, torch.sparse and dense tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.statements.einsum import einsum
from scorch._src.statements.evaluate import evaluate
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One expression: calls of Scorch, of torch.sparse by layout, and of dense torch (in a dtype)."""

    text: str
    operands: tuple[Any, ...]
    scorch: Call
    torch_sparse: dict[str, Call]
    dense: Callable[[torch.dtype], Call]


@dataclass(frozen=True)
class Problem:
    """Sizes: matrices of ``n`` x ``n`` and a tensor of ``m`` x ``m`` x ``m`` with ``entries`` each."""

    n: int
    m: int
    entries: int
    fits_dense: bool


def power_law(shape: tuple[int, ...], entries: int, seed: int) -> torch.Tensor:
    """Draw a random COO tensor in which few rows and columns have many of the entries, as in graphs."""
    generator = torch.Generator().manual_seed(seed)
    coordinates = []
    for size in shape:
        ranks = (size * torch.rand(entries, generator=generator, dtype=torch.float64) ** 1.5).long()
        coordinates.append(torch.randperm(size, generator=generator)[ranks.clamp(max=size - 1)])
    values = torch.rand(entries, generator=generator) + 0.5
    return torch.sparse_coo_tensor(torch.stack(coordinates), values, shape).coalesce()


@dataclass(frozen=True)
class Matrices:
    """Three random matrices, as Scorch's tensors and in torch's own layouts."""

    coo: list[torch.Tensor]
    csr: list[torch.Tensor]
    scorch_tensors: list[SparseTensor]

    @classmethod
    def random(cls, problem: Problem) -> Matrices:
        coo = [power_law((problem.n, problem.n), problem.entries, seed) for seed in range(3)]
        csr = [matrix.to_sparse_csr() for matrix in coo]
        return cls(coo, csr, [_as_csr(matrix) for matrix in csr])

    def calls_by_layout(self, call: Callable[[list[torch.Tensor]], Any]) -> dict[str, Call]:
        """Return ``call`` in each of torch's layouts."""
        return {name: _bind(call, tensors) for name, tensors in (("coo", self.coo), ("csr", self.csr))}


def make_cases(problem: Problem) -> Iterator[Case]:
    """Make the expressions of the demonstration, on operands of the sizes of ``problem``."""
    matrices = Matrices.random(problem)
    yield from _products(matrices, problem.n)
    yield from _sums(matrices)
    yield _tensor_product(problem)
    yield _conversion(matrices)


def _products(matrices: Matrices, n: int) -> Iterator[Case]:
    A, B, _ = matrices.scorch_tensors
    coo = matrices.coo
    x, X, Y = torch.rand(n), torch.rand(n, 32), torch.rand(n, 32)
    yield Case(
        "ij,j->i",
        (A, x),
        lambda: einsum("ij,j->i", A, x),
        matrices.calls_by_layout(lambda t: t[0] @ x),
        _dense(lambda a, v: a @ v, coo[0], x),
    )
    for width in (32, 128):
        D = torch.rand(n, width)
        yield Case(
            f"ij,jk->ik (k={width})",
            (A, D),
            _bind(einsum, "ij,jk->ik", A, D),
            matrices.calls_by_layout(lambda t, D=D: t[0] @ D),  # type: ignore[misc]
            _dense(lambda a, d: a @ d, coo[0], D),
        )
    yield Case(
        "ij,jk->ik",
        (A, B),
        lambda: einsum("ij,jk->ik", A, B),
        matrices.calls_by_layout(lambda t: t[0] @ t[1]),
        _dense(lambda a, b: a @ b, coo[0], coo[1]),
    )
    yield Case(
        "ij,ik,jk->ij (k=32)",
        (A, X, Y),
        lambda: einsum("ij,ik,jk->ij", A, X, Y),
        {"csr": lambda: _sampled(matrices.csr[0], X, Y)},
        _dense(lambda a, p, q: a * (p @ q.T), coo[0], X, Y),
    )


def _sums(matrices: Matrices) -> Iterator[Case]:
    A, B, C = matrices.scorch_tensors
    yield Case(
        "D[i,j] = A[i,j] + B[i,j]",
        (A, B),
        lambda: evaluate("D[i,j] = A[i,j] + B[i,j]", A=A, B=B),
        matrices.calls_by_layout(lambda t: t[0] + t[1]),
        _dense(lambda a, b: a + b, *matrices.coo[:2]),
    )
    yield Case(
        "D[i,j] = A[i,k]*B[k,j] + C[i,j]",
        (A, B, C),
        lambda: evaluate("D[i,j] = A[i,k] * B[k,j] + C[i,j]", A=A, B=B, C=C),
        matrices.calls_by_layout(lambda t: t[0] @ t[1] + t[2]),
        _dense(lambda a, b, c: a @ b + c, *matrices.coo),
    )


def _tensor_product(problem: Problem) -> Case:
    m = problem.m
    cube = power_law((m, m, m), problem.entries, 3)
    T = from_coordinates(cube.indices(), cube.values(), cube.shape, format="csf")
    P, Q = torch.rand(m, 16), torch.rand(m, 16)
    return Case(
        "ikl,kj,lj->ij (j=16)",
        (T, P, Q),
        lambda: einsum("ikl,kj,lj->ij", T, P, Q),
        {"coo": lambda: torch.einsum("ikl,kj,lj->ij", cube, P, Q)},
        _dense(lambda t, p, q: torch.einsum("ikl,kj,lj->ij", t, p, q), cube, P, Q),
    )


def _conversion(matrices: Matrices) -> Case:
    A = matrices.scorch_tensors[0]
    return Case(
        'A.to_format("csc")',
        (A,),
        lambda: A.to_format("csc"),
        {"csr": lambda: matrices.csr[0].to_sparse_csc()},
        _dense(lambda a: a.T.contiguous().T, matrices.coo[0]),
    )


def _as_csr(matrix: torch.Tensor) -> SparseTensor:
    converted = from_torch(matrix, format="csr")
    assert isinstance(converted, SparseTensor)
    return converted


def _dense(call: Callable[..., Any], *tensors: torch.Tensor) -> Callable[[torch.dtype], Call]:
    """Return ``call`` on dense copies of ``tensors``, in a dtype."""

    def with_dtype(dtype: torch.dtype) -> Call:
        return _bind(call, *(tensor.to_dense().to(dtype) for tensor in tensors))

    return with_dtype


def _bind(call: Callable[..., Any], *arguments: Any) -> Call:
    return lambda: call(*arguments)


def _sampled(A: torch.Tensor, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    """Sample at the pattern of A by torch, and multiply by its values here."""
    sampled = torch.sparse.sampled_addmm(A, X, Y.T, beta=0.0)
    values = sampled.values() * A.values()
    return torch.sparse_csr_tensor(sampled.crow_indices(), sampled.col_indices(), values, sampled.shape)
