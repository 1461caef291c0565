"""Several operations on one matrix, which ``scorch.compile`` joins, beside the same ones after each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import scorch
from benchmarks.gpu.cases import OURS, Case
from benchmarks.gpu.check import CHUNK, times
from benchmarks.gpu.matrices import Matrix
from benchmarks.gpu.timing import Call

WIDTH = 64
MOST_ENTRIES = 4_000_000  # of which torch's ways keep a row each


def softened(A: Matrix, scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax of scores over the entries of each row."""
    most = torch.full((A.shape[0],), -torch.inf, dtype=scores.dtype, device=A.device)
    most.scatter_reduce_(0, A.rows, scores, "amax")
    powers = (scores - most[A.rows]).exp()
    sums = torch.zeros(A.shape[0], dtype=scores.dtype, device=A.device).index_add_(0, A.rows, powers)
    return powers / sums[A.rows]


def fused(A: Matrix) -> Iterator[Case]:
    """Attention of the rows to the columns that a matrix stores: scores, softmax and their product."""
    m, n = A.shape
    if A.nnz > MOST_ENTRIES:
        return
    Q, K, V = A.random("Q", m, WIDTH), A.random("K", n, WIDTH), A.random("V", n, WIDTH)
    ones, columns = torch.ones_like(A.values), A.indices.long()

    def attend(S: Any, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
        return torch.sparse.softmax(scorch.einsum("ij,ik,jk->ij", S, Q, K) / 8.0, 1) @ V

    def ours(function: Any) -> Call:
        S = scorch.sparse_csr_tensor(A.indptr, A.indices, ones, A.shape)
        return Call(lambda: function(S, Q, K, V))

    def in_torch() -> Call:
        S = torch.sparse_csr_tensor(A.indptr, A.indices, ones, A.shape)

        def run() -> torch.Tensor:
            scores = torch.sparse.sampled_addmm(S, Q, K.T, beta=0.0).values() / 8.0
            weights = torch.sparse_csr_tensor(A.indptr, A.indices, softened(A, scores), A.shape)
            return weights @ V

        return Call(run)

    def reference() -> torch.Tensor:
        scores = torch.empty(A.nnz, dtype=torch.float64, device=A.device)
        for at in range(0, A.nnz, CHUNK // WIDTH):
            part = slice(at, at + CHUNK // WIDTH)
            scores[part] = (Q[A.rows[part]].double() * K[columns[part]].double()).sum(1)
        return times(A.rows, columns, softened(A, scores / 8.0), V, m)

    compiled = scorch.compile(attend)
    contestants = {
        OURS: lambda: ours(compiled),
        "scorch, one by one": lambda: ours(attend),
        "torch CSR int32": in_torch,
    }
    moved = 4 * A.nnz + 4 * (m + 1) + 4 * WIDTH * (2 * m + 2 * n)
    yield Case("fused", "scores, softmax, product", A.name, contestants, reference, bytes=moved)
