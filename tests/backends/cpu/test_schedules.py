"""A step is planned once: for its class in a process, for its very numbers on disk."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import scorch
from fork_server import run_python
from scorch._src.backends import cache
from scorch._src.backends.cpu.backend import CpuBackend
from scorch._src.engine import execute, schedules
from scorch._src.formats import Format
from scorch._src.statements import call_cache
from scorch.errors import ScorchWarning
from scorch.settings import settings

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture(autouse=True)
def new_process() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    """As in a new process: only the disk knows."""
    schedules.forget()
    for kept in (execute._plans, execute._contractions, call_cache._known, call_cache._recent):
        kept.clear()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that were planned, by the tensor they make."""
    seen: list[str] = []
    real = schedules.plan_step

    def spy(step, *rest):  # type: ignore[no-untyped-def]
        seen.append(step.target.tensor)
        return real(step, *rest)

    monkeypatch.setattr(schedules, "plan_step", spy)
    return seen


def matrix(rows: int, columns: int, entries: int) -> scorch.SparseTensor:
    places = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(0))[:entries]
    found = scorch.from_coordinates(
        [places // columns, places % columns], torch.rand(entries), (rows, columns), format="csr"
    )
    assert isinstance(found, scorch.SparseTensor)
    forget()
    return found


def product(A: scorch.SparseTensor, width: int) -> None:
    X = torch.rand(A.shape[1], width)
    torch.testing.assert_close(scorch.einsum("ij,jk->ik", A, X), A.to_dense() @ X)


def test_tensors_of_one_class_share_a_schedule(planned: list[str]) -> None:
    first, second = matrix(70, 80, 400), matrix(100, 90, 300)
    planned.clear()
    product(first, 8)
    before = len(planned)
    product(second, 8)
    assert (before, len(planned)) == (2, 2)  # the product, and the way to dense to compare with


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rows", "columns", "entries", "width"),
    [(150, 80, 400, 8), (70, 200, 400, 8), (70, 80, 2000, 8), (70, 80, 400, 9)],
)
def test_another_magnitude_or_dense_extent_is_another_class(
    rows: int, columns: int, entries: int, width: int, planned: list[str]
) -> None:
    first, second = matrix(70, 80, 400), matrix(rows, columns, entries)
    X, Y = torch.rand(80, 8), torch.rand(columns, width)
    planned.clear()
    scorch.einsum("ij,jk->ik", first, X)
    scorch.einsum("ij,jk->ik", second, Y)
    assert len(planned) == 2


def test_format_of_a_result_does_not_depend_on_what_came_before() -> None:
    """csr @ csr is sparse or dense by what is expected of it, not by what the first of its class was."""

    def form(entries: int, after: int | None) -> Format:
        forget()
        if after is not None:
            scorch.einsum("ji,jk->ik", matrix(64, 64, after), matrix(64, 64, after))
        A = matrix(64, 64, entries)
        found = scorch.einsum("ji,jk->ik", A, A)
        return found.format if isinstance(found, scorch.SparseTensor) else Format("dense")

    for entries in (1030, 2040):
        assert form(entries, None) == form(entries, 1030) == form(entries, 2040)


def test_huge_sizes_share_nothing(planned: list[str]) -> None:
    for size in (2**40, 2**40 + 1):
        A = scorch.from_coordinates([torch.tensor([1]), torch.tensor([size - 1])], torch.ones(1), (3, size))
        before = len(planned)
        scorch.evaluate("B[i,j] = 2 * A[i,j]", A=A)
        assert len(planned) > before


def test_disk_answers_before_the_planner(planned: list[str]) -> None:
    A, X = matrix(70, 80, 400), torch.rand(80, 8)
    expected = scorch.einsum("ij,jk->ik", A, X)
    forget()
    planned.clear()
    assert torch.equal(scorch.einsum("ij,jk->ik", A, X), expected)
    assert planned == []


def test_contraction_is_found_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    A, X = matrix(70, 80, 400), torch.rand(70, 8)
    Y = torch.rand(80, 8)
    expected = scorch.einsum("ij,ik,jk->ij", A, X, Y).to_dense()
    forget()
    monkeypatch.setattr(schedules, "contract", lambda *_: pytest.fail("chosen again"))
    assert torch.equal(scorch.einsum("ij,ik,jk->ij", A, X, Y).to_dense(), expected)


def test_settings_and_default_dtype_are_part_of_a_schedule(planned: list[str]) -> None:
    A, X = matrix(70, 80, 400), torch.rand(80, 8)
    planned.clear()
    scorch.einsum("ij,jk->ik", A, X)
    with settings(disable="order"):
        scorch.einsum("ij,jk->ik", A, X)
    assert len(planned) == 2


class Hostile:
    """What a schedule must never become."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch hostile",)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("note", [b"", b"rubbish", pickle.dumps(Hostile()), pickle.dumps(3)])
def test_damaged_or_foreign_note_is_ignored(
    note: bytes, kernels: Path, planned: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    A, X = matrix(70, 80, 400), torch.rand(80, 8)
    expected = scorch.einsum("ij,jk->ik", A, X)
    for kept in kernels.glob("*.note"):
        cache.write_note(kept.stem, note)
    forget()
    planned.clear()
    assert torch.equal(scorch.einsum("ij,jk->ik", A, X), expected)
    assert len(planned) == 1
    assert not (tmp_path / "hostile").exists()


def test_note_with_a_flipped_bit_is_ignored(kernels: Path, planned: list[str]) -> None:
    A, X = matrix(70, 80, 400), torch.rand(80, 8)
    scorch.einsum("ij,jk->ik", A, X)
    for kept in kernels.glob("*.note"):
        content = bytearray(kept.read_bytes())
        content[len(content) // 2] ^= 1
        kept.write_bytes(content)
    forget()
    planned.clear()
    scorch.einsum("ij,jk->ik", A, X)
    assert len(planned) == 1


def test_changed_sources_plan_anew(planned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    A, X = matrix(70, 80, 400), torch.rand(80, 8)
    scorch.einsum("ij,jk->ik", A, X)
    forget()
    planned.clear()
    monkeypatch.setattr(schedules.sources, "version", lambda: "another")
    scorch.einsum("ij,jk->ik", A, X)
    assert len(planned) == 1


def test_directory_that_cannot_be_written_costs_planning_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    A, X = matrix(70, 80, 400), torch.rand(80, 8)
    with settings(cache_directory=blocked), pytest.warns(ScorchWarning):
        found = scorch.einsum("ij,jk->ik", A, X)
    torch.testing.assert_close(found, A.to_dense() @ X)


SCRIPT = """
import torch, scorch
from scorch._src.backends.cpu import toolchain
from scorch._src.compiler.schedule import order_loops
from scorch._src.engine import schedules
planned, ran = [], []
plan, run = schedules.plan_step, toolchain.subprocess.Popen
def spy_plan(*a): planned.append(1); return plan(*a)
def spy_run(*a, **k): ran.append(a); return run(*a, **k)
schedules.plan_step, toolchain.subprocess.Popen = spy_plan, spy_run
A = scorch.tensor(torch.eye(9), format="csr")
assert torch.equal(scorch.einsum("ij,jk->ik", A, torch.ones(9, 4)), torch.ones(9, 4))
C = scorch.evaluate("C[i,j] = A[i,j] + B[j,i]", A=A, B=A)
assert torch.equal(C.to_dense(), 2 * torch.eye(9))
print(len(planned), len(ran))
"""


def test_new_process_plans_nothing_and_starts_no_compiler(tmp_path: Path) -> None:
    def run_script() -> list[int]:
        done = run_python(["-c", SCRIPT])
        assert done.returncode == 0, done.stderr
        return [int(word) for word in done.stdout.split()]

    planned, ran = run_script()
    assert planned > 0 and ran > 0
    assert run_script() == [0, 0]


def test_kernels_that_need_no_other_are_compiled_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []
    monkeypatch.setattr(execute, "_seen", {})
    monkeypatch.setattr(CpuBackend, "build_ahead", lambda self, sources: together.append(len(set(sources))))
    A = matrix(70, 80, 400)
    found = scorch.evaluate("y[i] = max(j, A[i,j])", A=A)
    torch.testing.assert_close(found, A.to_dense().amax(1))
    scorch.evaluate("y[i] = max(j, A[i,j])", A=matrix(70, 80, 401))
    assert together == [2]  # the largest entries and their number; and not again
