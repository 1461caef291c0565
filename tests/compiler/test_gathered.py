"""Sums over stored entries that gather what dense operands have there, in lanes with a mask at the end."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

import scorch
from scorch._src.backends.cpu import jit
from scorch._src.backends.cpu.invoke import make_caller
from scorch._src.compiler import target
from scorch._src.engine import schedules

MACHINES = {
    "32 bytes": target.Target("", 32, 16, 4, 1 << 20, 8 << 20, 32),
    "64 bytes": target.Target("", 64, 32, 4, 1 << 20, 8 << 20, 64),
    "one by one": target.Target("", 64, 32, 4, 1 << 20, 8 << 20, 64, gathers_slowly=True),
}
# Rows of no entries, of one, of whole registers, of some left over.
LENGTHS = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 40)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[target.Target]:
    """Kernels planned for registers that gather; where there are none, loops stand for the instructions."""
    machine = MACHINES[request.param]
    monkeypatch.setattr("scorch._src.compiler.vector.vectorize.target", lambda: machine)
    schedules.forget()
    yield machine
    schedules.forget()


def matrix(dtype: torch.dtype, index: torch.dtype) -> tuple[scorch.SparseTensor, torch.Tensor]:
    dense = torch.zeros(len(LENGTHS), 48, dtype=dtype)
    for row, length in enumerate(LENGTHS):
        dense[row, torch.randperm(48)[:length]] = torch.randn(length, dtype=dtype)
    rows = torch.sparse_csr_tensor(*(part.to(index) for part in _csr(dense)), dense[dense != 0], dense.shape)
    return scorch.from_torch(rows), dense


def _csr(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    stored = dense != 0
    return torch.cat([torch.zeros(1, dtype=torch.int64), stored.sum(1).cumsum(0)]), stored.nonzero()[:, 1]


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_are_those_of_dense_tensors(dtype: torch.dtype, index: torch.dtype) -> None:
    torch.manual_seed(0)
    S, dense = matrix(dtype, index)
    x, y = torch.randn(48, dtype=dtype), torch.randn(48, dtype=dtype)
    calls = {
        "R[i] = A[i,j] * x[j]": dense @ x,
        "R[i] = A[i,j] * x[j] * y[j]": dense @ (x * y),
        "R[i] = A[i,j] * (x[j] - y[j])": dense @ (x - y),
        "R[i] = 3 * A[i,j] * x[j]": 3 * (dense @ x),
        "R[i] = -A[i,j] * x[j]": -(dense @ x),
    }
    for text, expected in calls.items():
        used = {name: value for name, value in (("x", x), ("y", y)) if f"{name}[" in text}
        assert "gather_" in scorch.explain(text, A=S, **used).source, text
        torch.testing.assert_close(scorch.evaluate(text, A=S, **used), expected)
    torch.testing.assert_close(S @ x[:, None], dense @ x[:, None])


@pytest.mark.usefixtures("machine")
def test_lanes_beyond_a_row_count_nothing() -> None:
    """A factor that is not finite must not meet lanes that stand for no entry."""
    S, dense = matrix(torch.float32, torch.int32)
    text, operands = "R[i] = A[i,j] * (x[j] + s)", {"x": torch.ones(48), "s": torch.tensor(torch.inf)}
    assert "keep_" in scorch.explain(text, A=S.abs(), **operands).source
    found = scorch.evaluate(text, A=S.abs(), **operands)
    assert torch.equal(found, torch.where(dense.any(1), torch.inf, 0.0))


@pytest.mark.usefixtures("machine")
def test_products_of_loads_under_a_mask_need_no_other() -> None:
    S, dense = matrix(torch.float32, torch.int32)
    x = torch.full((48,), torch.inf)
    assert "keep_" not in scorch.explain("R[i] = A[i,j] * x[j]", A=S.abs(), x=x).source
    found = scorch.evaluate("R[i] = A[i,j] * x[j]", A=S.abs(), x=x)
    assert torch.equal(found, torch.where(dense.any(1), torch.inf, 0.0))


def test_entries_left_over_are_loaded_under_a_mask(machine: target.Target) -> None:
    """The last row of a matrix may end where memory does."""
    S, dense = matrix(torch.float64, torch.int32)
    source = scorch.explain("ij,j->i", S, torch.ones(48, dtype=torch.float64)).source
    assert f"load_f64x{machine.gather_bytes // 8}" in source
    torch.testing.assert_close(S @ torch.ones(48, dtype=torch.float64), dense.sum(1))


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_of_short_rows_are_loaded_under_a_mask(dtype: torch.dtype) -> None:
    S, dense = matrix(dtype, torch.int32)
    for text, expected in {
        "R[i] = sum(j, A[i,j])": dense.sum(1),
        "R[i] = 2 * A[i,j]": 2 * dense.sum(1),
    }.items():
        explanation = scorch.explain(text, A=S)
        assert "load_f" in explanation.source and "gather" not in explanation.source
        assert "with a mask for the remainder" in str(explanation)
        torch.testing.assert_close(scorch.evaluate(text, A=S), expected)
    long = scorch.explain("ij->i", scorch.from_torch(torch.ones(3, 100, dtype=dtype), format="csr"))
    assert "load_f" not in long.source


@pytest.mark.whole
@pytest.mark.parametrize(("length", "ends"), [(2, 1), (8, 1), (14, 2), (40, 2)])
def test_rows_longer_than_a_register_end_in_two(machine: target.Target, length: int, ends: int) -> None:
    """A jump past the second would be predicted wrong as often as rows differ."""
    dense = torch.zeros(5, 60)
    dense[:, :length] = torch.randn(5, length)
    dense[1] = 0
    dense[2, length:] = 0
    dense[0, length // 2 : length] = 0
    dense[3, : length * 3 // 2] = 2
    S, x = scorch.from_torch(dense, format="csr"), torch.randn(60)
    source = scorch.explain("ij,j->i", S, x).source
    assert len(re.findall(r"gather_f32x\d_i32\(&", source)) == 1 + (ends if machine.gather_bytes == 64 else 1)
    torch.testing.assert_close(S @ x, dense @ x)


@pytest.mark.parametrize(
    ("name", "lanes"), [("x86-64-v2", 0), ("x86-64-v3", 8), ("x86-64-v4", 8), ("aarch64", 0)]
)
def test_processors_that_gather(monkeypatch: pytest.MonkeyPatch, name: str, lanes: int) -> None:
    monkeypatch.setenv("SCORCH_TARGET", name)
    found = target.host_target.__wrapped__()
    assert min(8, found.gather_bytes // 4) == lanes


@pytest.mark.whole
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("dtype", "index"), [(torch.float32, torch.int32), (torch.float64, torch.int64)])
def test_lanes_that_are_loaded_one_by_one_are_those_that_are_gathered(
    dtype: torch.dtype, index: torch.dtype
) -> None:
    """What those beyond the end of a row are loaded from may be infinite."""
    S, dense = matrix(dtype, index)
    x, y = torch.randn(48, dtype=dtype), torch.empty(2, len(LENGTHS), dtype=dtype)
    x[0] = torch.inf
    source = scorch.explain("ij,j->i", S, x).source
    assert "#if defined(GATHERS_SLOWLY)" in source
    arrays = S.crow_indices(), S.col_indices(), S.values(), x
    places = [array.data_ptr() for array in arrays]
    for line, result in zip(("#define GATHERS_SLOWLY", "#undef GATHERS_SLOWLY"), y, strict=True):
        address = jit.load(f"{line}\n{source}").address("scorch_compute")
        assert not make_caller().call(address, 0, 1, *dense.shape, *places, result.data_ptr())
    assert torch.equal(y[0], y[1])
    assert torch.equal(y[0].isfinite(), dense[:, 0] == 0)


def test_rows_of_few_entries_that_are_loaded_one_by_one_leave_few_lanes_empty(machine: target.Target) -> None:
    S = scorch.from_torch(torch.eye(9) + torch.eye(9).roll(1, 0), format="csr")
    lanes = 4 if machine.gathers_slowly else 8
    assert f"gather_f32x{lanes}_i32(&" in scorch.explain("ij,j->i", S, torch.ones(9)).source


@pytest.mark.whole
@pytest.mark.parametrize(
    ("vendor", "family", "model", "slow"),
    [
        ("GenuineIntel", "6", "85", True),  # Cascade Lake
        ("GenuineIntel", "6", "143", False),  # Sapphire Rapids
        ("GenuineIntel", "6", "63", False),  # Haswell, which gathers by what loads there are
        ("AuthenticAMD", "25", "85", False),
    ],
)
def test_processors_whose_gathers_are_held_back(vendor: str, family: str, model: str, slow: bool) -> None:
    assert target._has_slow_gathers({"vendor_id": vendor, "cpu family": family, "model": model}) == slow
    assert not target._has_slow_gathers({})
