"""The expressions of the demonstration: with Scorch, torch.sparse and dense tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from scorch._src.dataclass import dataclass
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


def make_cases(problem: Problem) -> Iterator[Case]:
    """Make the expressions of the demonstration, on operands of the sizes of ``problem``."""
    n, m = problem.n, problem.m
    coo = [power_law((n, n), problem.entries, seed) for seed in range(3)]
    csr = [matrix.to_sparse_csr() for matrix in coo]
    A, B, C = (from_torch(matrix, format="csr") for matrix in csr)
    assert isinstance(A, SparseTensor)
    x, X, Y = torch.rand(n), torch.rand(n, 32), torch.rand(n, 32)
    both = {"coo": coo, "csr": csr}
    yield _make_case("ij,j->i", (A, x), both, lambda t, v: t[0] @ v)
    for width in (32, 128):
        D = torch.rand(n, width)
        yield _make_case(f"ij,jk->ik (k={width})", (A, D), both, lambda t, d: t[0] @ d)
    yield _make_case("ij,jk->ik", (A, B), both, lambda t: t[0] @ t[1])
    sampled = _make_case("ij,ik,jk->ij (k=32)", (A, X, Y), {}, lambda t, p, q: t[0] * (p @ q.T), coo)
    yield replace(sampled, torch_sparse={"csr": lambda: _sample(csr[0], X, Y)})
    yield _make_case("D[i,j] = A[i,j] + B[i,j]", (A, B), both, lambda t: t[0] + t[1])
    text = "D[i,j] = A[i,k]*B[k,j] + C[i,j]"
    yield _make_case(text, (A, B, C), both, lambda t: t[0] @ t[1] + t[2])
    cube = power_law((m, m, m), problem.entries, 3)
    T = from_coordinates(cube.indices(), cube.values(), cube.shape, format="csf")
    P, Q = torch.rand(m, 16), torch.rand(m, 16)
    product = functools.partial(torch.einsum, "ikl,kj,lj->ij")
    yield _make_case("ikl,kj,lj->ij (j=16)", (T, P, Q), {"coo": [cube]}, lambda t, p, q: product(t[0], p, q))
    converted = _make_case('A.to_format("csc")', (A,), {}, lambda t: t[0].T.contiguous().T, coo)
    to_csc = {"csr": lambda: csr[0].to_sparse_csc()}
    yield replace(converted, scorch=lambda: A.to_format("csc"), torch_sparse=to_csc)


def _make_case(
    text: str,
    operands: tuple[torch.Tensor, ...],
    layouts: dict[str, list[torch.Tensor]],
    call: Callable[..., Any],
    sparse: list[torch.Tensor] | None = None,
) -> Case:
    """Make a case of ``call``, which takes sparse tensors in a layout of torch's, and the dense operands."""
    dense = [operand for operand in operands if not isinstance(operand, SparseTensor)]
    sparse = layouts["coo"] if sparse is None else sparse

    def with_dtype(dtype: torch.dtype) -> Call:
        matrices = [tensor.to_dense().to(dtype) for tensor in sparse]
        return functools.partial(call, matrices, *(tensor.to(dtype) for tensor in dense))

    run: Call = functools.partial(einsum, text.partition(" ")[0], *operands)
    if "[" in text:
        named: dict[str, Any] = dict(zip("ABC", operands, strict=False))
        run = functools.partial(evaluate, text, **named)
    torch_sparse: dict[str, Call] = {
        name: functools.partial(call, tensors, *dense) for name, tensors in layouts.items()
    }
    return Case(text, operands, run, torch_sparse, with_dtype)


def _sample(A: torch.Tensor, X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    """Sample at the pattern of A by torch, and multiply by its values here."""
    sampled = torch.sparse.sampled_addmm(A, X, Y.T, beta=0.0)
    values = sampled.values() * A.values()
    return torch.sparse_csr_tensor(sampled.crow_indices(), sampled.col_indices(), values, sampled.shape)
