"""The demonstration runs, agrees with dense, and says so when it does not."""

from __future__ import annotations

import json

import pytest
import torch

from scorch._src.cli import demo, warm


def test_every_result_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(small=True, as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    large, small = (problem["rows"] for problem in found["problems"])
    assert len(large) == len(small) == 9
    assert all(row["truth"] == "dense" and row["error"] < 1e-5 for row in small)
    assert all(row["dense"] is None for row in large)
    results = {row["text"]: row["result"] for row in large}
    assert results["ij,jk->ik"] == results["D[i,j] = A[i,k]*B[k,j] + C[i,j]"] == "csr"
    assert results["ij,jk->ik (k=32)"] == "dense"
    assert results['A.to_format("csc")'] == "csc"


def test_table_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(small=True) == 0
    table, _, rest = capsys.readouterr().out.partition("Times are medians")
    assert max(map(len, table.splitlines())) <= 100
    assert table.count("yes") >= 17
    assert "kernels (" in rest and "rejected" in rest


def test_nothing_is_compiled_after_the_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "LARGE_PROBLEM", demo.SMALL_LARGE_PROBLEM)
    monkeypatch.setattr(demo, "MEDIUM_PROBLEM", demo.SMALL_PROBLEM)
    monkeypatch.setattr(warm, "warm", pytest.fail)
    assert demo.main() == 0
    assert capsys.readouterr().out.endswith("ahead of time: python -m scorch cache --warm\n")


def test_disagreement_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(problem: demo.Problem) -> list[demo.Case]:
        x = torch.ones(3)
        return [demo.Case("x", (x,), lambda: x, {}, lambda dtype: lambda: 2 * x.to(dtype))]

    monkeypatch.setattr(demo, "make_cases", wrong)
    assert demo.main(small=True) == 1
    said = capsys.readouterr()
    assert "NO" in said.out
    assert "disagrees" in said.err


def test_errors_are_measured_without_making_sparse_dense() -> None:
    from scorch._src.tensor.create.construct import from_torch

    coo = torch.eye(4).to_sparse_coo()
    assert demo._relative_error(from_torch(coo, format="csr"), coo) == 0.0
    other = torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0])).to_sparse_coo()
    assert demo._relative_error(from_torch(coo, format="csr"), other) == 1.0
