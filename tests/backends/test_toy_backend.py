"""A backend written outside of Scorch, added in one place: everything then runs on it, and says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import scorch
from scorch._src.backends import base
from scorch._src.backends.base import Backend, Executable, GroupExecutable, Schedule, register_backend
from scorch._src.backends.interpreter.executable import INTERPRETER
from scorch._src.backends.routines import Routines
from scorch._src.compiler.fuse.group import Fused
from scorch._src.compiler.pipeline import Planned
from scorch.errors import ArgumentError, DeviceError
from scorch.settings import BACKENDS


class CountingRoutines(Routines):
    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts

    def row_pointers(self, rows: torch.Tensor, count: int) -> torch.Tensor:
        self.counts["row_pointers"] += 1
        return super().row_pointers(rows, count)


class Toy(Backend):
    """Loops in Python, and counts of what was asked for."""

    name = "toy"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.routines = CountingRoutines(self.counts)

    def write(self, planned: Planned) -> Schedule:
        self.counts["write"] += 1
        return INTERPRETER.write(planned)

    def build(self, schedule: Schedule, sizes: Mapping[str, int]) -> Executable:
        self.counts["build"] += 1
        return INTERPRETER.build(schedule, sizes)

    def build_group(self, fused: Fused) -> GroupExecutable:
        self.counts["build_group"] += 1
        return INTERPRETER.build_group(fused)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        self.counts["empty"] += 1
        return super().empty(shape, dtype)


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    backend = Toy()
    register_backend("toy", backend, "a toy")
    try:
        with scorch.settings(backend="toy", cache_directory=str(tmp_path)):  # without plans of earlier runs
            yield backend
    finally:
        del base._BACKENDS["toy"], BACKENDS["toy"]


def drawn(rows: int, columns: int) -> torch.Tensor:
    return torch.rand(rows, columns, dtype=torch.float64) * (torch.rand(rows, columns) < 0.5)


def test_everything_runs_on_it(toy: Toy) -> None:
    a, b, x = drawn(5, 6), drawn(6, 5), torch.rand(6, 3, dtype=torch.float64)
    A, B = scorch.from_torch(a, format="csr"), scorch.from_torch(b, format="dcsr")
    torch.testing.assert_close(A @ x, a @ x)
    torch.testing.assert_close((A @ B).to_dense(), a @ b)
    torch.testing.assert_close((A + A).to_dense(), a + a)
    torch.testing.assert_close(A.sum(1), a.sum(1))
    torch.testing.assert_close(scorch.einsum("ij,jk->ki", A, x), (a @ x).T)
    assert toy.counts["write"] >= 4 and toy.counts["build"] >= 4


def test_gradients_run_on_it(toy: Toy) -> None:
    w, x = drawn(5, 6), torch.rand(6, 3, dtype=torch.float64)
    W = scorch.from_torch(w, format="csr").requires_grad_()
    (W @ x).square().sum().backward()
    wanted = w.clone().requires_grad_()
    (wanted @ x).square().sum().backward()
    assert W.grad is not None and wanted.grad is not None and toy.counts["build"]
    torch.testing.assert_close(W.grad.to_dense(), wanted.grad * (w != 0))


def test_fused_calls_run_on_it(toy: Toy) -> None:
    a, x = drawn(6, 6), torch.rand(6, 3, dtype=torch.float64)
    A = scorch.from_torch(a, format="csr")

    def chain(S: Any, x: Any) -> Any:
        return torch.relu(S * 2) @ x

    torch.testing.assert_close(scorch.compile(chain)(A, x), (a * 2).relu() @ x)
    assert toy.counts["build"] + toy.counts["build_group"] > 0


def test_routines_are_its_own(toy: Toy) -> None:
    A = scorch.from_torch(drawn(5, 6), format="coo")
    torch.testing.assert_close(A.to_format("csr").to_dense(), A.to_dense())
    assert toy.counts["row_pointers"] == 1


def test_a_backend_that_is_not_there_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"backend must be one of cpu, (cuda, )?interpreter"):
        scorch.settings(backend="toy")
    with pytest.raises(ArgumentError, match="backend must be one of"):
        scorch.settings(backend=3)


@pytest.mark.parametrize("name", ["cpu", "interpreter"])
def test_kernels_for_the_host_read_no_other_memory(name: str) -> None:
    elsewhere = torch.device("cuda", 0)
    with scorch.settings(backend=name):
        assert base.backend_for(torch.device("cpu")).name == base.backend_for().name == name
        with pytest.raises(DeviceError, match=rf"backend='{name}'.* a tensor is on cuda:0; remove"):
            base.backend_for(elsewhere)
