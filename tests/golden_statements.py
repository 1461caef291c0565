"""The statements whose explanations and kernels ``golden/`` keeps, on operands that are always the same."""

from __future__ import annotations

from typing import Any

import torch

import scorch

# The text of a statement, with operands in order for ``einsum``, by name for ``evaluate``.
Statement = tuple[str, tuple[Any, ...], dict[str, Any]]


def sparse(rows: int, columns: int, format: str, step: int = 7) -> Any:
    """A matrix whose pattern depends on nothing but its arguments."""
    places = torch.arange(rows * columns).reshape(rows, columns)
    return scorch.from_torch(torch.where(places % step == 0, places + 1.0, 0.0), format=format)


def statements() -> dict[str, Statement]:
    A, B, C = sparse(200, 300, "csr"), sparse(300, 250, "csr"), sparse(200, 300, "csc", step=11)
    return {
        "spmm_csr_dense": ("ij,jk->ik", (A, torch.ones(300, 64)), {}),
        "spmspm_csr_csr": ("ij,jk->ik", (A, B), {}),
        "add_csr_csc": ("D[i,j] = A[i,j] + C[i,j]", (), {"A": A, "C": C}),
        "max_csr": ("y[i] = max(j, A[i,j])", (), {"A": A}),
    }


NAMES = ("spmm_csr_dense", "spmspm_csr_csr", "add_csr_csc", "max_csr")
