"""The benchmark suite: what it reads, that it checks before it times, and what it writes."""

from __future__ import annotations

import functools
import gzip
import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from benchmarks import compare, first_calls, frames, model_parts, models, overhead, pruned
from benchmarks.kernels import data, generated, layouts, matrix_kernels, moving_kernels, tensor_kernels
from benchmarks.kernels.__main__ import main
from benchmarks.kernels.cases import Case
from benchmarks.kernels.check import Entries, difference
from benchmarks.kernels.measure import measure
from benchmarks.kernels.report import report, write_section
from benchmarks.kernels.results import Measured, Results, geometric_mean, load_all
from benchmarks.kernels.timing import Timing, interleaved

import scorch
from fork_server import run_python
from scorch._src.cli import bench


@pytest.fixture(autouse=True)
def without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loops take longer to compile than all tests here take to run."""
    real = layouts.module
    monkeypatch.setattr(layouts, "module", lambda name: None if "numba" in name else real(name))


def dense(matrix: data.Matrix) -> np.ndarray:
    return scipy.sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape).toarray()


def nothing_yet(mode: str = "kernels", machine: str = "a machine") -> Results:
    return Results(mode, machine, "aarch64", "2 matrices", "python -m benchmarks.kernels")


# reading ---------------------------------------------------------------------------------------------


def test_general_matrix_market_file_is_scaled(tmp_path: Path) -> None:
    path = tmp_path / "small.1.mtx"
    path.write_text(
        "%%MatrixMarket matrix coordinate real general\n% a note\n\n2 3 3\n2 1 -4\n1 3 2\n1 1 1\n"
    )
    found = data.read_mtx(path, "suitesparse")
    assert found.name == "small.1"
    assert found.nnz == 3
    np.testing.assert_allclose(dense(found), [[0.25, 0, 0.5], [-1, 0, 0]])


def test_symmetric_pattern_gets_both_triangles_and_random_values(tmp_path: Path) -> None:
    path = tmp_path / "graph.mtx.gz"
    text = b"%%MatrixMarket matrix coordinate pattern symmetric\n3 3 3\n1 1\n2 1\n3 2\n"
    path.write_bytes(gzip.compress(text))
    found = data.read_mtx(path, "suitesparse")
    assert found.keys.tolist() == [0, 1, 3, 5, 7]
    assert len(np.unique(found.data)) == 5


def test_skew_symmetric_values_change_sign(tmp_path: Path) -> None:
    path = tmp_path / "skew.mtx"
    path.write_text("%%MatrixMarket matrix coordinate integer skew-symmetric\n2 2 1\n2 1 3\n")
    np.testing.assert_allclose(dense(data.read_mtx(path, "suitesparse")), [[0, -1], [1, 0]])


def test_array_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dense.mtx"
    path.write_text("%%MatrixMarket matrix array real general\n1 1\n5\n")
    with pytest.raises(ValueError, match=r"dense\.mtx: not a real Matrix Market file in coordinate form"):
        data.read_mtx(path, "suitesparse")


def test_files_of_a_directory_are_found(tmp_path: Path) -> None:
    for folder in ("suitesparse", "dlmc", "ogbn_arxiv", "tensors"):
        (tmp_path / folder).mkdir()
    arrays = {"indptr": np.array([0, 1, 2]), "indices": np.array([1, 0]), "shape": np.array([2, 2])}
    np.savez(tmp_path / "dlmc" / "layer_0.9.npz", **arrays)
    graph = {"adj_" + name: array for name, array in arrays.items()}
    np.savez(tmp_path / "ogbn_arxiv" / "ogbn_arxiv.npz", **graph, y=np.arange(2))
    (tmp_path / "suitesparse" / "notes.txt").write_text("no matrix")
    (tmp_path / "tensors" / "small.tns").write_text("# indices from 1\n1 2 1 4\n2 1 1 1\n1 2 1 4\n")
    (tmp_path / "tensors" / "dims.json").write_text(json.dumps({"small": {"dims": [2, 3, 4]}}))
    matrices = [data.read_matrix(group, path) for group, path in data.matrix_files(tmp_path)]
    assert [(matrix.name, matrix.group, matrix.nnz) for matrix in matrices] == [
        ("layer_0.9", "dlmc", 2),
        ("ogbn_arxiv", "graph", 2),
    ]
    ((path, shape),) = data.tensor_files(tmp_path)
    tensor = data.read_tns(path, "tensors", shape)
    assert tensor.shape == (2, 3, 4)
    assert tensor.coordinates.tolist() == [[0, 1], [1, 0], [0, 0]]
    np.testing.assert_allclose(tensor.data, [1, 0.125])


def test_number_of_products_counts_pairs_of_entries() -> None:
    matrix = generated.make_matrix("made-mesh-tiny")
    pattern = (dense(matrix) != 0).astype(int)
    assert matrix.products == int((pattern @ pattern.T).sum())


@pytest.mark.parametrize("row", generated.MATRICES[:12], ids=lambda row: row[0])
def test_made_up_matrices_have_the_shape_they_promise(row: tuple[str, int, int, int, str]) -> None:
    name, m, n, nnz, _ = row
    found = generated.make_matrix("made-" + name)
    assert found.shape == (m, n)
    assert found.nnz == nnz
    assert bool(np.all(np.diff(found.keys) > 0))
    assert np.array_equal(found.data, generated.make_matrix("made-" + name).data)


def test_made_up_tensors_have_the_shape_they_promise() -> None:
    found = generated.make_tensor("made-relations-tiny")
    assert (found.shape, found.nnz) == ((14, 55, 14), 1_992)


# checking and timing ---------------------------------------------------------------------------------


def test_results_in_all_layouts_are_compared() -> None:
    exact = np.array([[0.0, 2.0], [3.0, 0.0]])
    reference = Entries(np.array([1, 2]), np.array([2.0, 3.0]))
    t = torch.from_numpy(exact)
    found = [t, t.to_sparse(), t.to_sparse_csr(), t.to_sparse_csc(), scipy.sparse.csc_array(exact), exact]
    found += [scorch.from_torch(t, format=form) for form in ("csr", "csc", "coo", "dcsr")]
    for result in found:
        assert difference(result, reference) is None
        assert difference(result * 2 if not isinstance(result, scorch.SparseTensor) else t * 2, reference)
    assert difference(t, exact) is None


def test_wrong_results_say_how_wrong() -> None:
    assert difference(torch.tensor([1.0, 2.5]), np.array([1.0, 2.0])) == (
        "wrong by 5.0e-01, where the largest value is 2.0e+00"
    )
    assert difference(torch.tensor([1.0, float("nan")]), np.array([1.0, 2.0])) is not None
    assert difference(torch.zeros(3), np.zeros(2)) == "shape (3,) instead of (2,)"


def test_wrong_and_missing_contestants_are_reported_and_not_timed() -> None:
    def missing() -> None:
        raise layouts.Skip("not installed")

    def failing() -> torch.Tensor:
        raise RuntimeError("not implemented")

    case = Case(
        "spmv",
        "SpMV",
        lambda: np.ones(2),
        {
            "Scorch": lambda: lambda: torch.ones(2),
            "liar": lambda: lambda: torch.zeros(2),
            "absent": missing,  # type: ignore[dict-item]
            "torch COO": lambda: failing,
        },
    )
    matrix, results = generated.make_matrix("made-tiny"), nothing_yet()
    measure(case, matrix, [1], 0.001, results)
    assert list(results.measured[0].times) == ["Scorch"]
    assert results.wrong == ["SpMV, made-tiny: liar is wrong by 1.0e+00, where the largest value is 1.0e+00"]
    assert list(results.skipped) == [
        "SpMV | absent | not installed",
        "SpMV | torch COO | raises: not implemented",
    ]


def test_slow_contestants_are_measured_a_few_times() -> None:
    found = interleaved({"quick": lambda: None, "slow": lambda: time.sleep(0.005)}, 0.05)
    assert found["slow"].samples == 2
    assert found["quick"].samples > 2
    assert found["slow"].median >= 0.005


# results and reports ---------------------------------------------------------------------------------


def measured(
    matrix: str, nnz: int, times: dict[str, float], label: str = "SpMM k=32", threads: int = 2
) -> Measured:
    timings = {name: Timing(seconds, 0.01, 5) for name, seconds in times.items()}
    return Measured(
        "spmm", label, matrix, "suitesparse", (9, 9), nnz, threads, timings, ("SciPy, rows unsorted",)
    )


def sample_results() -> Results:
    results = nothing_yet()
    results.measured += [
        measured(
            "large", 20_000, {"Scorch": 1e-3, "torch CSR int32": 3e-3, "torch COO": 4e-3, "SciPy": 2e-3}
        ),
        measured("hard", 50_000, {"Scorch": 1e-3, "torch CSR int32": 2e-3, "torch dense": 5e-4}),
        measured("tiny", 20, {"Scorch": 1e-5, "torch CSR int32": 1e-6, "SciPy, rows unsorted": 1e-7}),
    ]
    results.skip("SpMM k=32", "MKL", "sparse-dot-mkl is not installed")
    return results


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0, None]) == pytest.approx(4.0)
    assert geometric_mean([None]) is None


def test_rivals_are_ranked_without_extras_and_torch_without_dense() -> None:
    large, hard, tiny = sample_results().measured
    assert large.best_torch() == ("torch CSR int32", 3e-3)
    assert large.against_best() == pytest.approx(2.0)
    assert hard.against_torch() == pytest.approx(2.0)
    assert hard.best() == ("torch dense", 5e-4)
    assert tiny.best() == ("torch CSR int32", 1e-6)


def test_results_survive_a_file_and_are_merged(tmp_path: Path) -> None:
    results = sample_results()
    results.save(tmp_path / "a.json")
    assert Results.load(tmp_path / "a.json") == results
    later = nothing_yet()
    later.measured += [measured("large", 20_000, {"Scorch": 2e-3, "torch COO": 2e-3})]
    later.save(tmp_path / "b.json")
    (merged,) = load_all([tmp_path / "a.json", tmp_path / "b.json"])
    assert len(merged.measured) == 3
    assert merged.select("SpMM k=32", 2)[1].against_torch() == pytest.approx(1.0)
    other = nothing_yet(machine="another machine")
    other.save(tmp_path / "c.json")
    assert len(load_all([tmp_path / "a.json", tmp_path / "c.json"])) == 2


def test_report_names_goals_and_losses() -> None:
    text = report(sample_results())
    assert "| SpMM k=32 | torch | 2 | 2.45 | yes | 0.84 | 2.00 (hard) |" in text
    assert "| SpMM k=32 | 2 of 3 | tiny 0.10 (torch CSR int32); hard 0.50 (torch dense) |" in text
    assert "| hard | 9 x 9 | 50,000 | 1 ms, 2.00 / **0.50** |" in text
    assert "SciPy, rows unsorted, not counted 0.01 (on 1)" in text
    assert "- MKL: sparse-dot-mkl is not installed: SpMM k=32 (1)" in text


def test_report_by_threads_shows_speedups() -> None:
    results = nothing_yet("threads")
    for threads in (1, 2, 4):
        times = {"Scorch": 1e-2 / threads, "torch COO": 2e-2}
        results.measured.append(measured("large", 200_000, times, threads=threads))
    text = report(results)
    assert "| SpMM k=32 | Scorch | 1 | 10 ms | 1.00 | 2.00 | 4.00 |" in text
    assert "| SpMM k=32 | torch | 1 | 20 ms | 1.00 | 1.00 | 1.00 |" in text


def test_only_the_own_section_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n\nKept.\n")
    write_section(path, "kernels aarch64", "first\n")
    write_section(path, "kernels x86_64", "other\n")
    write_section(path, "kernels aarch64", "second\n")
    text = path.read_text()
    assert text.startswith("# Results\n\nKept.\n\n<!-- kernels aarch64: begin -->\nsecond\n")
    assert "first" not in text
    assert text.count("other") == 1
    before = text
    write_section(path, "kernels x86_64", "other\n")
    assert path.read_text() == before


def test_plots_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.kernels.plots import draw

    (image,) = draw(sample_results(), tmp_path)
    assert image.name == "aarch64-products-2.png"
    assert image.stat().st_size > 1000


# whole runs ------------------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    return main([*arguments, "--threads", "1", "--seconds", "0.0001"])


def test_all_contestants_are_right_on_a_matrix() -> None:
    matrix, results = generated.make_matrix("made-mesh-tiny"), nothing_yet()
    operands = matrix_kernels.Operands(matrix)
    kernels = [*matrix_kernels.KERNELS, *moving_kernels.KERNELS]
    for kernel in kernels:
        for case in kernel.cases(operands):
            measure(case, matrix, [1], 0.0001, results)
    assert results.wrong == []
    expected = {label for kernel in kernels for label in kernel.labels}
    assert set(results.labels()) == expected
    for case in results.measured:
        assert case.against_torch() is not None, case.label


@pytest.mark.long
def test_all_contestants_are_right_on_tensors() -> None:
    results = nothing_yet()
    random = data.generator_for("order 4")
    places = np.stack([random.integers(0, size, 40) for size in (5, 4, 6, 3)])
    fourth = data.tensor_from_coordinates("fourth", "tensors", (5, 4, 6, 3), places, random.random(40) + 1)
    for tensor in (generated.make_tensor("made-relations-tiny"), fourth):
        operands = tensor_kernels.Operands(tensor)
        for kernel in tensor_kernels.KERNELS:
            for case in kernel.cases(operands):
                measure(case, tensor, [1], 0.0001, results)
    assert results.wrong == []
    assert len(results.measured) == 6


def test_run_writes_report_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, numbers = tmp_path / "R.md", tmp_path / "numbers.json"
    where = ["--report", str(target), "--json", str(numbers)]
    assert run("--matrices", "made-tiny*", "--kernels", "spmv,add", *where) == 0
    text = target.read_text()
    assert "2 matrices and 0 tensors, made up, as no collections were given" in text
    assert "made-tiny-wide" in text
    assert str(tmp_path) not in text
    assert "numba: numba is not installed" in text
    assert main(["--from", str(numbers)]) == 0
    assert capsys.readouterr().out.strip() in text


def test_switches_show_what_each_optimisation_gives(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--switches", "--matrices", "made-tiny", "--kernels", "spmv") == 0
    shown = capsys.readouterr().out
    assert "| kernel | matrix | all on | order | contract |" in shown
    assert "| SpMV | made-tiny |" in shown
    assert "Wrong results" not in shown


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--kernels", "spmw"])
    assert "unknown kernel 'spmw'; there are spmv, spmm" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path)])
    assert "has none of the folders suitesparse" in capsys.readouterr().err
    assert main(["--matrices", "nobody"]) == 1


def test_without_scipy_its_contestants_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "module", lambda name: None)
    matrix, results = generated.make_matrix("made-tiny"), nothing_yet()
    for case in matrix_kernels.spmspm(matrix_kernels.Operands(matrix)):
        measure(case, matrix, [1], 0.0001, results)
    assert not any("SciPy" in name for name in results.measured[0].times)
    assert "SpMSpM A @ A.T | SciPy | SciPy is not installed" in results.skipped


def test_pruned_layers(tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "dlmc").mkdir()
    indptr, indices = np.array([0, 2, 3], dtype=np.int32), np.array([0, 2, 1], dtype=np.int32)
    np.savez(tmp_path / "dlmc" / "made_0.5_up.npz", indptr=indptr, indices=indices, shape=np.array([2, 3]))
    monkeypatch.setattr(pruned, "BATCHES", (1, 4))
    threads = str(torch.get_num_threads())
    common = ["--width", "32", "--seconds", "0", "--threads", threads, "--data", str(tmp_path)]
    pruned.main([*common, "--json"])
    found = json.loads(capsys.readouterr().out)["results"]
    assert [row["batch"] for row in found] == [1, 4] * 5 and found[-1]["layer"] == "dlmc made_0.5_up"
    assert found[-1]["density"] == 0.5 and all(row["sparse_ms"] > 0 for row in found)
    pruned.main(common)
    assert "| width 32, 90% magnitude | 10." in capsys.readouterr().out


def test_warm_calls_have_no_more_frames_than_asked() -> None:
    # in a process of its own: a traced tensor that another test keeps alive costs every call a check
    found = json.loads(run_python([Path(frames.__file__), "--json"], check=True).stdout)
    assert found.keys() == frames.BOUNDS.keys()
    assert {name: count for name, count in found.items() if count > frames.BOUNDS[name]} == {}


def test_quick_overhead_makes_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    for name, number in (("ROUNDS", 31), ("CALLS", 300)):
        monkeypatch.setattr(overhead, name, number)
    monkeypatch.setattr(overhead, "warm_calls", lambda: overhead.interleaved({"one": lambda: made.append(1)}))
    for name in ("layer_calls", "print_warm", "print_layers"):
        monkeypatch.setattr(overhead, name, lambda *_: [])
    monkeypatch.setattr("sys.argv", ["overhead", *bench.SUITES["overhead"].quick])
    overhead.main()
    assert 0 < len(made) <= 100


def test_overhead_of_calls_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(overhead, "ROUNDS", 1)
    monkeypatch.setattr(overhead, "interleaved", functools.partial(overhead.interleaved, calls=1))
    threads = torch.get_num_threads()
    try:
        rows, layers = overhead.warm_calls(size=16), overhead.layer_calls(size=16)
    finally:
        torch.set_num_threads(threads)
    assert len({row["case"] for row in rows}) == 16 and all(row["scorch"] > 0 for row in rows)
    assert len(layers) == 4 and all(row["ratio"] > 0 for row in layers)
    monkeypatch.setattr(overhead, "subprocess", SimpleNamespace(run=forked))
    cold = overhead._run(overhead.COLD, str(tmp_path))
    planning = overhead._run(overhead.PLANNING, str(tmp_path / "other"))
    assert cold.keys() == planning.keys() and all(planning[name] > 0 for name in ("SpMM", "SpMSpM", "MTTKRP"))


def forked(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
    return run_python(command[1:], env=env, check=True)


def test_first_calls_are_measured_in_processes_of_their_own() -> None:
    # from one that has called nothing
    program = [Path(first_calls.__file__), "--rounds", "1", "--json", "--only", "A.T @ x"]
    (row,) = json.loads(run_python(program, check=True).stdout)
    assert row["call"] == "A.T @ x" and 0 < row["least"] <= row["median"] and row["imports"] == []


@pytest.mark.long
def test_two_source_trees_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both are the same tree here, so one process answers for both.
    monkeypatch.setattr(compare, "Contestant", functools.cache(compare.Contestant))
    source = compare.HERE / "src"
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    rows = compare.compare(source, source, rounds=1, core=core, cache=os.environ.get("SCORCH_CACHE_DIR"))
    assert [name for name, *_ in rows] == list(compare.cases())
    assert all(before > 0 and after > 0 for _, before, after, _ in rows)
    with pytest.raises(SystemExit):
        compare.main(["no-such-folder"])


# whole networks --------------------------------------------------------------------------------------


def test_pruned_networks_are_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scorch._src.nn.timing, "MIN_SECONDS_PER_CANDIDATE", 0.0)
    monkeypatch.setattr(scorch._src.nn.timing, "MIN_ROUNDS", 1)
    options = ["--tiny", "--sparsity", "0.9", "--batch", "2", "--threads", "1", "--seconds", "0", "--json"]
    models.main([*options, "--blocks", "1", "--contestants", "torch.sparse,onnxruntime"])
    found = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in found["rows"]] == [
        "BERT-base",
        "Encoder",
        "Llama-7B",
        "ViT-S",
        "ResNet-50",
        "MLP",
    ]
    for row, file in zip(found["rows"], found["files"], strict=True):
        assert row["layers"] >= 3 and row["faster"] > 0 and file["bytes"]["scorch"] > 0
        # torch.sparse has no convolutions, and PyTorch's encoder layer reads the weights of its layers itself
        assert ("torch.sparse" in row["skipped"]) == (row["model"] in ("ResNet-50", "Encoder"))
        assert ("tokens_per_second" in row) == (row["model"] == "Llama-7B")
    models.main([*options[:-1], "--only", "MLP", "--contestants", "", "--plot", str(tmp_path / "models.png")])
    printed = capsys.readouterr().out
    assert "| MLP | 90% | 2 | 1 |" in printed and ("drawn to" in printed or "matplotlib" in printed)


def test_parts_of_pruned_networks_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tiny", "--sparsity", "0.9", "--threads", "1", "--seconds", "0"]
    model_parts.main(options)
    encoder, decoder = capsys.readouterr().out.split("Llama-7B")
    assert all(part in encoder for part in ("qkv ", "attention ", "norms ", "activation ", "else "))
    assert all(part in decoder for part in ("x dense", "gate ", "rotary ", "norms ", "else "))
    model_parts.main([*options, "--layers"])
    assert "768 x 768, 90%, 1 threads:" in capsys.readouterr().out
    model_parts.main([*options, "--patterns", "2:4,1:8"])
    printed = capsys.readouterr().out
    assert "768 x 768, 2:4, 1 threads: |" in printed and "768 x 768, 1:8, 1 threads: |" in printed


def run_on_tiny_graph(command: str, folder: Path) -> list[dict[str, Any]]:
    words = ["-m", *command.split(), "--graph", "tiny", "--json", folder / "found.json"]
    run_python(words, cwd=Path(__file__).parents[1], check=True)
    found: list[dict[str, Any]] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.long
def test_steps_on_sharded_graphs_are_measured(tmp_path: Path) -> None:
    one, given, label = run_on_tiny_graph("benchmarks.distributed --processes 1,2", tmp_path)
    assert one["loss"] == pytest.approx(given["loss"]) == pytest.approx(label["loss"])
    assert one["megabytes"] == 0 < label["megabytes"]


@pytest.mark.long
def test_training_on_sharded_graphs_ends_as_that_of_one_process(tmp_path: Path) -> None:
    command = "benchmarks.distributed --accuracy 3 --processes 1,2 --methods label"
    one, label = run_on_tiny_graph(command, tmp_path)
    assert one["last"] == pytest.approx(label["last"]) and one["last"] < one["first"]
    assert one["accuracy"] == label["accuracy"]


@pytest.mark.long
def test_hidden_exchanges_are_measured(tmp_path: Path) -> None:
    command = "benchmarks.distributed_overlap --processes 2 --methods given"
    (found,) = run_on_tiny_graph(command, tmp_path)
    assert min(found["hidden"], found["waiting"], found["exchange"]) > 0
