"""The benchmarks for GPUs, on the processor: that they compare, then time, and go on where one fails."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import goals, host, kernels, matrices, report, tensors, timing
from benchmarks.gpu.cases import Case, Measured, measure
from benchmarks.gpu.check import error, sketch
from benchmarks.gpu.timing import Call, Device
from benchmarks.kernels.timing import Timing

import scorch


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MOST_ROUNDS", 1)
    monkeypatch.setattr(host, "ROUNDS", 1)
    monkeypatch.setattr(Device, "bandwidth", lambda self: 1e9)


def run(*arguments: str) -> int:
    return command.main(["--device", "cpu", "--tiny", "--seconds", "0.01", *arguments])


@pytest.mark.long
def test_sections_give_right_results(quick: None, tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "found.json"
    sections = [name for name in command.SECTIONS if name != "compile"]
    assert run("--only", ",".join(sections), "--json", str(file)) == 0
    found = json.loads(file.read_text())
    assert {row["section"] for row in found["rows"]} == set(sections)
    assert all(row["errors"] == {} and "scorch" in row["milliseconds"] for row in found["rows"])
    assert all(row["geometric_mean"] > 0 for row in found["summary"].values())
    shown = capsys.readouterr().out
    assert "| spmv: S @ x | 1 |" in shown and "## attention" in shown


def test_what_is_there_is_kept(quick: None, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    assert run("--only", "spmv", "--json", str(file)) == 0
    before = json.loads(file.read_text())["rows"]
    assert run("--only", "add", "--json", str(file), "--add") == 0
    assert [row["section"] for row in json.loads(file.read_text())["rows"]] == ["spmv", "add", "add"]
    assert [Measured.unpacked(row).packed()["milliseconds"] for row in before] == [
        row["milliseconds"] for row in before
    ]


def test_wrong_and_failing_contestants_are_named(quick: None) -> None:
    def fail() -> Call:
        raise RuntimeError("not on this device")

    right = torch.ones(3, dtype=torch.float64)
    ways = {"scorch": lambda: Call(lambda: torch.tensor([1.0, 1.0, 2.0])), "torch": fail}
    ways["torch CSR"] = lambda: Call(lambda: torch.ones(3))
    case = Case("spmv", "S @ x", "M", ways, lambda: right, bytes=8e9)
    found = measure(case, Device("cpu"), 0.01, bandwidth=1e9)
    assert found.errors["scorch"] == pytest.approx(1 / 3**0.5)
    assert found.failed == {"torch": "RuntimeError: not on this device"}
    assert found.floor == 8.0 and found.times.keys() == {"scorch", "torch CSR"}
    shown = command.shown(found)
    assert "WRONG scorch: relative error 5.8e-01" in shown
    assert command.summary([found])["spmv: S @ x"]["wrong"] == ["M"]


def test_ratios_are_to_the_best_other_way() -> None:
    times = {"scorch": 1.0, "scorch, edge_index": 0.1, "torch CSR": 4.0, "torch COO": 3.0}
    row = Measured("spmv", "S @ x", "M", {name: Timing(time, 0, 1) for name, time in times.items()})
    assert row.best() == ("torch COO", 3.0) and row.ratio() == 3.0


def test_sketches_of_all_layouts_agree() -> None:
    A = matrices.TINY[0].make("cpu")
    exact = sketch(A.csr(torch.int64).to_dense())
    for found in (A.csr(torch.int32), A.coo(), A.csc(), A.scorch(), A.scorch().to_format("csc")):
        assert error(found, exact, is_sketch=True) < 1e-6
        assert error(found * 1.01, exact, is_sketch=True) > 1e-3


def test_made_up_matrices_are_what_they_promise() -> None:
    pruned, mesh, graph = (source.make("cpu") for source in matrices.TINY)
    assert mesh.nnz == 4 * 36 - 4 * 6 and mesh.shape == (36, 36)
    for matrix in (pruned, mesh, graph):
        assert bool((matrix.keys.diff() > 0).all()) and int(matrix.indptr[-1]) == matrix.nnz
        assert matrix.transposed().transposed().keys.equal(matrix.keys)
    dense = (graph.csr(torch.int64).to_dense() != 0).double()
    assert graph.products == int((dense @ dense).sum())


def test_matrices_of_a_directory_are_those_with_many_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "LEAST_ENTRIES", 3)
    (tmp_path / "suitesparse").mkdir()
    text = "%%MatrixMarket matrix coordinate pattern {}\n% a note\n3 3 2\n2 1\n3 2\n"
    for kind in ("general", "symmetric"):
        (tmp_path / "suitesparse" / f"{kind}.mtx.gz").write_bytes(gzip.compress(text.format(kind).encode()))
    (tmp_path / "ogbn_arxiv").mkdir()
    arrays = {"indptr": np.array([0, 4, 4, 4, 4]), "indices": np.arange(4), "shape": np.array([4, 4])}
    graph = {"adj_" + name: array for name, array in arrays.items()}
    np.savez(tmp_path / "ogbn_arxiv" / "ogbn_arxiv.npz", **graph)
    first, *found, last = matrices.sources(tmp_path, tiny=False)
    assert [first.name, last.name] == ["pruned 512 90%", "power law 1M"]
    assert [(source.name, source.make("cpu").nnz) for source in found] == [
        ("ogbn_arxiv", 7),
        ("symmetric", 4),
    ]


def test_tensors_of_a_directory_are_those_with_many_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "LEAST_ENTRIES", 3)
    monkeypatch.setattr(tensors, "made_up", lambda name, *rest: name)
    (tmp_path / "tensors").mkdir()
    for name, text in {"few": "1 1 1 5\n2 2 2 5\n", "many": "2 1 4 1\n1 1 1 1\n1 3 1 1\n"}.items():
        (tmp_path / "tensors" / f"{name}.tns.gz").write_bytes(gzip.compress(text.encode()))
    found, *made = tensors.tensors("cpu", tmp_path, tiny=False)
    assert (found.name, found.shape, found.nnz) == ("many", (2, 3, 4), 3)
    assert found.scorch("csf").to_dense().count_nonzero() == 3 and len(made) == 3


def test_events_are_around_the_call_and_not_around_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            happened.append("event")

        def elapsed_time(self, end: Event) -> float:
            return 2.0

    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    device = Device("cpu")
    device.is_cuda, device._cache = True, torch.ones(1)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: happened.append("wait"))
    call = Call(lambda given: happened.append(given), lambda: happened.append("fresh") or "call")
    assert device.batch(call, 2) == [2e-3, 2e-3]
    assert happened == ["fresh", "event", "call", "event"] * 2 + ["wait"]
    assert device._cache == 0


def test_a_broken_device_is_left_to_another_process(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(Device, "is_broken", lambda self: True)
    monkeypatch.setattr(command.subprocess, "run", lambda words, check: started.append(words))
    assert run("--only", "spmv,add,mul", "--matrices", "pruned") == 1
    assert started[0][-3:] == ["--add", "--only", "add,mul"]
    assert "spmv broke the device" in capsys.readouterr().out


def test_first_results_are_measured_in_two_processes(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[str] = []
    chosen: list[list[str]] = []

    def found(device: str, cache: str, names: list[str]) -> tuple[dict[str, Any], dict[str, list[float]]]:
        caches.append(cache)
        chosen.append(names)
        spent = {"S @ x": float(len(caches)), "S + S": "UnsupportedError: not there"}
        return {**spent, host.COALESCING: 10.0 * len(caches)}, {host.COALESCING: [3.5, 0.5]}

    monkeypatch.setattr(host, "first_results", found)
    product, behind, first, failed = host.compile_times(Device("cpu"), 0.0, tiny=True)
    assert [row.label for row in (product, behind, first)] == ["S @ x", "coalescing", "first: coalescing"]
    medians = [{name: time.median for name, time in row.times.items()} for row in (product, behind, first)]
    busy = {"CPU time": 3.5, "of it the system": 0.5}
    assert medians[0] == {"empty cache": 1.0, "full cache": 2.0}
    assert medians[1] == {"empty cache": 10.0, "full cache": 20.0, **busy}
    assert medians[2] == {"empty cache": 30.0, "full cache": 40.0, **busy}
    assert failed.failed["S + S, full cache"] == "UnsupportedError: not there"
    assert chosen == [[], [], ["coalescing"], ["coalescing"]] and len({*caches}) == 2


def test_first_results_are_those_of_a_process(tmp_path: Path) -> None:
    spent, busy = host.first_results("cpu", str(tmp_path), [host.COALESCING])
    assert isinstance(spent[host.COALESCING], float) and {*busy} == {host.COALESCING}


def test_patterns_of_conversions_are_new_each_time() -> None:
    A = matrices.TINY[0].make("cpu")
    (case,) = kernels.transpose(A)
    call = case.contestants["scorch"]()
    assert call.fresh is not None
    one, other = call.fresh(), call.fresh()
    assert isinstance(one, scorch.SparseTensor)
    assert one.storage.pattern is not other.storage.pattern
    assert one.storage.pattern.arrays[0].data_ptr() != other.storage.pattern.arrays[0].data_ptr()


def test_unknown_sections_and_missing_gpus_are_refused(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        run("--only", "spmw")
    assert "there is no section 'spmw'; there are spmv, spmm32" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        command.main([])
    assert "torch finds no GPU here" in capsys.readouterr().err


def test_results_are_printed_as_tables(tmp_path: Path) -> None:
    row = {"section": "spmv", "label": "S @ x", "matrix": "mesh", "floor_ms": 0.001}
    row["milliseconds"] = {"scorch": 0.5, "torch CSR": 1.0, "torch COO": 2.0}
    slow = {**row, "matrix": "graph", "milliseconds": {"scorch": 1.0, "torch CSR": 0.5}}
    found = {"date": "2026-01-01", "machine": {"device": "a GPU"}, "rows": [row, slow]}
    (tmp_path / "found.json").write_text(json.dumps(found))
    lines = report.lines(*report.read([str(tmp_path / "found.json")]))
    assert lines[0] == "a GPU, 2026-01-01"
    assert "| S @ x | 2 | 1.00 | 0.50 (graph) |" in lines
    assert "| S @ x | mesh | 0.5 | 1 (torch CSR) | x 2.00 | 0.0010 |" in lines


def test_results_are_compared_with_what_is_asked(tmp_path: Path) -> None:
    def row(section: str, label: str, matrix: str, **times: float) -> dict[str, Any]:
        named = {name.replace("_", " "): time for name, time in times.items()}
        place = {"section": section, "label": label, "matrix": matrix}
        return {**place, "milliseconds": named, "errors": {}, "failed": {}}

    product, step = ("spmv", "S @ x"), ("gcn", "GCN step, 128 to 40")
    rows = [
        row(*product, "even", scorch=1.0, torch_CSR=2.0, torch_scatters=0.1),
        row(*product, "skewed", scorch=1.0, torch_COO=0.8),
        row("sddmm64", "S * (P @ Q.T), 64", "small", scorch=1.0, torch_CSR=3.0),
        row("sddmm64", "S * (P @ Q.T), 64", "large", scorch=1.0, torch_CSR=9.0),
        {**row("transpose", "CSR to CSC", "even", torch_CSR=1.0), "failed": {"scorch": "no"}},
        row("host", "S @ x", "even", scorch=0.0162),
        {
            **row(*step, "graph", scorch=1.0),
            "milliseconds": {"scorch": 1.0, "torch CSR int32": 2.0, "torch CSR int32, symmetric": 0.9},
        },
    ]
    found = {"rows": rows, "entries": {"large": 1_000_000, "small": 10}}
    (tmp_path / "found.json").write_text(json.dumps(found))
    lines = goals.table(goals.read([str(tmp_path / "found.json")])).splitlines()[2:]
    cells = {cell[0]: cell[1:] for cell in (line.strip("| ").split(" | ") for line in lines)}
    asked = "mean 1.3, worst 0.9"
    assert cells["S @ x, vs. torch.sparse"] == [
        "2", "1.26", "0.80 (skewed)", asked, "NO", "below: skewed 0.80",
    ]  # fmt: skip
    sampled = "S * (P @ Q.T), 64"
    assert cells[f"{sampled}, vs. torch.sparse"][1:5] == ["5.20", "3.00 (small)", "mean 5", "yes"]
    assert cells[f"{sampled}, from 1,000,000 entries on, vs. torch.sparse"][:2] == ["1", "9.00"]
    assert cells["CSR to CSC, vs. torch.sparse"][-2:] == ["NO", "WRONG OR FAILED: even"]
    assert cells["host, S @ x"][1:5] == ["16.2 us", "", "at most 15 us", "NO"]
    assert cells["GCN step, 128 to 40, vs. torch CSR int32"][1] == "2.00"
    assert len(cells) == 6
