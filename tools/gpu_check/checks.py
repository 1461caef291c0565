"""What checks of a device share: their names, small tensors, calls, and the comparison with the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import scorch

Check = Callable[[str], None]
CHECKS: dict[str, Check] = {}
N, K = 300, 16


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def matrix(
    device: str, rows: int = N, seed: int = 0, dtype: torch.dtype = torch.float32, form: str = "csr"
) -> torch.Tensor:
    """Return a sparse matrix, the same on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    places = torch.rand(rows, N, generator=generator, device="cpu") < 0.05
    values = torch.randn(rows, N, generator=generator, device="cpu", dtype=torch.float64)
    return scorch.from_torch((places * values).to(dtype), format=form).to(device)


def dense(device: str, *shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu").to(device)


def graph(device: str) -> torch.Tensor:
    """Return the adjacency matrix of a graph."""
    return scorch.from_torch((plain(matrix("cpu")) != 0).float(), format="csr").to(device)


def agree(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-4) -> None:
    """Compare a tensor with one on another device."""
    torch.testing.assert_close(
        plain(found).double(), plain(wanted).double(), rtol=tolerance, atol=tolerance, check_device=False
    )


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to_dense().cpu()


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.storage.values if isinstance(tensor, scorch.SparseTensor) else tensor


def arrays_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the arrays of a tensor, those of its pattern first."""
    if isinstance(tensor, scorch.SparseTensor):
        return [*tensor.storage.pattern.arrays, tensor.storage.values]
    return [tensor]


def like_the_cpu(function: Callable[[str], Any], device: str, tolerance: float = 1e-4) -> None:
    """Run a function on the device and on the CPU, and compare what it returns."""
    for found, wanted in zip(function(device), function("cpu"), strict=True):
        agree(found, wanted, tolerance)


def known_calls(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """Return calls that have the place of each nonzero of their results after they have run once."""
    S, B = matrix(device), matrix(device, seed=2)
    x, X, P, Q = dense(device, N), dense(device, N, K), dense(device, N, K), dense(device, N, K, seed=3)
    W, half = S * 0.5, S.to(torch.bfloat16)
    generator = torch.Generator("cpu").manual_seed(4)
    entries = torch.rand(20, 30, 25, generator=generator, device="cpu")
    T = scorch.from_torch(entries * (entries < 0.1), format="csf").to(device)
    F, G = dense(device, 30, K), dense(device, 25, K)
    return {
        "S @ x": lambda: S @ x,
        "S @ X": lambda: S @ X,
        "S * 2": lambda: S * 2.0,
        "relu": lambda: torch.relu(S),
        "S + S on one pattern": lambda: S + W,
        "S * S on one pattern": lambda: S * W,
        "sampled product": lambda: scorch.einsum("ij,ik,jk->ij", S, P, Q),
        "S.sum(1)": lambda: S.sum(1),
        "S @ X in bfloat16": lambda: half @ X.to(torch.bfloat16),
        "MTTKRP": lambda: scorch.einsum("ijk,jr,kr->ir", T, F, G),
        "S.T @ X": lambda: S.T @ X,
        "S.sum(0)": lambda: S.sum(0),
        "A + B": lambda: S + B,
        "softmax": lambda: torch.softmax(S, 1),
    }
