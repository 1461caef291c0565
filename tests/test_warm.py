"""The usual kernels compiled ahead are those that usual calls ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import scorch
from scorch._src.backends.cpu import jit, toolchain
from scorch._src.cli import warm
from scorch._src.cli.main import main


@pytest.fixture(scope="module")
def sources() -> set[str]:
    return set(warm.usual_sources())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The texts of kernels that calls ask for."""
    seen: set[str] = set()
    real = jit.load

    def spy(source: str, *rest: Any) -> jit.Library:
        seen.add(source)
        return real(source, *rest)

    monkeypatch.setattr(jit, "load", spy)
    return seen


X, Y, V = torch.rand(700, 32), torch.rand(700, 32), torch.rand(700)
CALLS: dict[str, Callable[[torch.Tensor], object]] = {
    "SpMV": lambda A: A @ V,
    "SpMM": lambda A: A @ X,
    "SpMM by einsum": lambda A: scorch.einsum("ij,jk->ik", A, X),
    "SDDMM": lambda A: scorch.einsum("ij,ik,jk->ij", A, X, Y),
    "SDDMM, other spelling": lambda A: scorch.einsum("ij,ik,kj->ij", A, X, Y.T.contiguous()),
    "SpMSpM": lambda A: A @ A,
    "sum": lambda A: scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=A),
    "product": lambda A: scorch.evaluate("C[i,j] = A[i,j] * B[i,j]", A=A, B=A),
    "to csr": lambda A: A.to_format("csr"),
    "to csc": lambda A: A.to_format("csc"),
    "to coo": lambda A: A.to_format("coo"),
    "to dense": lambda A: A.to_dense(),
}


@pytest.mark.long
@pytest.mark.sampled(12)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_usual_calls_find_their_kernels(form: str, call: str, sources: set[str], asked: set[str]) -> None:
    places = torch.randperm(700 * 700, generator=torch.Generator().manual_seed(0))[:5000]
    A = scorch.from_coordinates([places // 700, places % 700], torch.rand(5000), (700, 700), format=form)
    CALLS[call](A)
    assert asked <= sources


@pytest.mark.long
def test_dense_and_unsorted_tensors_find_their_kernels(sources: set[str], asked: set[str]) -> None:
    dense = torch.rand(700, 700) * (torch.rand(700, 700) < 0.01)
    for form in ("csr", "csc", "coo"):
        scorch.from_torch(dense.double(), format=form)
        scorch.from_torch(dense.to_sparse_coo(), format=form)
    assert asked and asked <= sources


def test_warm_from_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [f"long long f(long long *a) {{ return {n}; }}" for n in range(3)]
    monkeypatch.setenv("SCORCH_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(warm, "usual_sources", lambda: few)
    assert main(["cache", "--warm"]) == 0
    shown = capsys.readouterr().out
    assert "usual kernels" in shown
    assert len(list((tmp_path / "kernels").glob("*.so"))) == 3
    again = warm.warm()
    assert (again.kernels, again.compiled) == (3, 0)


def test_kernel_that_does_not_compile_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCORCH_CACHE_DIR", str(tmp_path / "kernels"))
    used = list(toolchain.find_toolchain().command)  # others are not asked: zig alone takes half a minute
    monkeypatch.setattr(toolchain, "_candidates", lambda: [("the only one", used)])
    seen = []
    built = jit.build(
        ["long long f(long long *a) { return 41; }", "rubbish", "long long g(long long *a) { return 42; }"],
        lambda done, total: seen.append((done, total)),
    )
    assert built == 2
    assert seen[-1] == (2, 3)
