"""Tensors of three and four dimensions on a grid: products with matrices and vectors along their modes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import scorch
from grid_emulator import noting
from scorch._src.backends.cuda.device import nvrtc
from scorch._src.backends.cuda.routines import rows

SIZES = {"i": 6, "j": 5, "k": 90, "l": 4, "r": 32}
MTTKRP = ["ijk,jr,kr->ir", "ijk,ir,kr->jr", "ijk,ir,jr->kr", "ijkl,jr,kr,lr->ir", "ijkl,ir,kr,lr->jr"]
TTM = ["ijk,kr->ijr", "ijkl,lr->ijkr", "ijkl,lr,kr->ijr"]
TTV = ["ijk,k->ij", "ijk,j,k->i", "ijkl,l->ijk"]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Return the names of kernels that the emulator runs and their texts; long rows are short ones here."""
    monkeypatch.setattr(rows, "MIN_PART", 4)
    with noting(lambda source, name: (name, source)) as found, scorch.settings(backend="emulated"):
        yield found


def drawn(equation: str, is_skewed: bool, dtype: torch.dtype) -> list[torch.Tensor]:
    """Draw a tensor, of which one slice, and one fiber of that, have most of the entries, and its factors."""
    first, *others = equation.partition("->")[0].split(",")
    shape = [SIZES[x] for x in first]
    dense = torch.randint(-3, 4, shape) * (torch.rand(shape) < (0.05 if is_skewed else 0.3))
    if is_skewed:
        dense.select(0, 3).select(0, 2).fill_(2)
        dense.select(1, 2).select(-1, 1).fill_(1)
    return [dense.to(dtype), *(torch.randint(-3, 4, [SIZES[x] for x in o]).to(dtype) for o in others)]


def as_dense(result: Any) -> torch.Tensor:
    return result.to_dense() if isinstance(result, scorch.SparseTensor) else result


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("is_skewed", [False, True])
@pytest.mark.parametrize("form", ["csf", "coo", "dss"])
@pytest.mark.parametrize("equation", [*MTTKRP, *TTM, *TTV])
def test_products_along_modes(
    equation: str, form: str, is_skewed: bool, dtype: torch.dtype, ran: list[tuple[str, str]]
) -> None:
    dense, *others = drawn(equation, is_skewed, dtype)
    form = form.ljust(dense.dim(), "s") if form == "dss" else form
    expected = torch.einsum(equation, dense.double(), *(o.double() for o in others)).to(dtype)
    backends = ["emulated", "interpreted grid"][: 2 if dtype.itemsize > 2 else 1]  # that has no half results
    for backend in backends:
        with scorch.settings(backend=backend):
            found = scorch.einsum(equation, scorch.from_torch(dense, format=form), *others)
            torch.testing.assert_close(as_dense(found), expected)


@pytest.mark.sampled(2)
@pytest.mark.whole
@pytest.mark.parametrize("form", ["csf", "coo"])
@pytest.mark.parametrize("equation", [*MTTKRP[:2], *MTTKRP[3:], *TTM[:1]])
def test_long_slices_are_cut_at_entries_and_repeat(
    equation: str, form: str, ran: list[tuple[str, str]]
) -> None:
    """Whatever number of fibers they have; and sums have the same bits though threads come in any order."""
    dense, *others = drawn(equation, True, torch.float32)
    dense, others = dense * torch.rand(dense.shape), [torch.randn(other.shape) for other in others]
    A = scorch.from_torch(dense, format=form)
    results = [as_dense(scorch.einsum(equation, A, *others)) for _ in range(4)]
    assert {"scorch_cut", "scorch_combine"} <= {name for name, _ in ran}
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], torch.einsum(equation, dense, *others), rtol=1e-4, atol=1e-4)


def test_units_share_columns_and_load_them_in_runs(ran: list[tuple[str, str]]) -> None:
    for equation in (MTTKRP[0], MTTKRP[3], TTM[0]):
        dense, *others = drawn(equation, False, torch.float32)
        step = scorch.explain(equation, scorch.from_torch(dense, format="csf"), *others).steps[-1]
        assert "units share r, 4 of its values each, loaded in runs; rows much longer" in step.inner
        assert "a grid of CUDA threads, 8 to a unit" in step.threads


def test_fibers_have_a_unit_each(ran: list[tuple[str, str]]) -> None:
    for equation in (*TTM[:2], TTV[0], TTV[2]):
        dense, *others = drawn(equation, False, torch.float32)
        scorch.einsum(equation, scorch.from_torch(dense, format="csf"), *others)
        assert "row_of_entry[" in ran[-1][1]


def test_lists_are_gathered_where_the_result_has_their_fibers(ran: list[tuple[str, str]]) -> None:
    dense, other = drawn("ijk,kr->ijr", False, torch.float32)
    A = scorch.from_torch(dense, format="coo")
    found = scorch.einsum("ijk,kr->ijr", A, other, format="ssd")
    torch.testing.assert_close(found.to_dense(), torch.einsum("ijk,kr->ijr", dense, other))
    step = scorch.explain("ijk,kr->ijr", A, other, format="ssd").steps[-1]
    assert "a grid of CUDA threads" in step.threads


def test_positions_of_rows_below_rows_are_joined_once() -> None:
    pos, below = torch.tensor([0, 2, 2, 3]), torch.tensor([0, 5, 6, 9])
    joined = rows.joined_pos(pos, [below])
    assert joined.tolist() == [0, 6, 6, 9] and rows.joined_pos(pos, [below]) is joined
    assert rows.joined_pos(pos, []) is pos
    other = torch.tensor([0, 3])
    assert rows.joined_pos(other, [below]).tolist() == [0, 9]


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvrtc_compiles_products_along_modes_without_spills(
    architecture: str, ran: list[tuple[str, str]]
) -> None:
    if not nvrtc.is_there():
        pytest.skip("no NVRTC here: pip install nvidia-cuda-nvrtc")
    for equation in (*MTTKRP, *TTM, *TTV):
        for form in ("csf", "coo"):
            dense, *others = drawn(equation, True, torch.float32)
            scorch.einsum(equation, scorch.from_torch(dense, format=form), *others)
    for source in dict.fromkeys(source for _, source in ran):
        code, said = nvrtc.compile_text(source, architecture, "--ptxas-options=-v")
        assert code[:4] == b"\x7fELF", said
        used = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
        assert used and all(numbers == ("0", "0") for numbers in used), said
        assert all(int(number) <= 64 for number in re.findall(r"Used (\d+) registers", said)), said
