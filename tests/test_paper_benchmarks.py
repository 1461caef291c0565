"""The scripts of the paper's figures: that they run on made up data, compare before they time, and report."""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.paper import beyond, download, figure5_gcn, figure6_autoencoder, figure7_bigbird
from benchmarks.paper.running import Report, Row, agreeing, contest, geometric_mean, plot

LONG = pytest.mark.long
SCRIPTS = {
    "gcn": (figure5_gcn.main, ["--graphs", "cora"], 1),
    "autoencoder": (figure6_autoencoder.main, ["--sets", "MNIST", "faces"], 2),
    "bigbird": (figure7_bigbird.main, ["--sets", "AG News"], 2),
    "beyond": (beyond.main, [], 8),
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")  # what PyG warns of, where it is installed
@pytest.mark.parametrize(
    "name", ["gcn", "beyond", *(pytest.param(n, marks=LONG) for n in ("autoencoder", "bigbird"))]
)
def test_scripts_run_on_made_up_data(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, given, rows = SCRIPTS[name]
    file, threads = tmp_path / "numbers.json", str(torch.get_num_threads())
    assert main([*given, "--quick", "--threads", threads, "--json", str(file)]) == 0
    found, shown = json.loads(file.read_text()), capsys.readouterr().out
    assert len(found["rows"]) >= rows and found["date"] and found["machine"]
    assert set(found["sources"].values()) == {"made up"}
    assert "made up" in shown and "losses:" in shown and "not for numbers" in shown
    for row in found["rows"]:
        assert any(name.startswith("Scorch") for name in row["times"])
        assert not [name for name in row["left_out"] if name.startswith("Scorch")]


def test_contestants_with_other_numbers_are_left_out() -> None:
    def fails() -> torch.Tensor:
        raise RuntimeError("not here\nmore")

    calls = {"a": lambda: torch.ones(2), "b": lambda: torch.ones(2) * 2, "c": fails}
    able, left_out = agreeing(calls)
    assert list(able) == ["a"]
    assert left_out == {"b": "differs from a by 1.0e+00", "c": "RuntimeError: not here"}


def test_reports_compare_the_best_and_name_losses() -> None:
    won = Row("x", "one", {"Scorch": 1.0, "Scorch, too": 2.0, "torch CSR": 4.0, "torch COO": 3.0})
    lost = Row("y", "two", {"Scorch": 2.0, "torch CSR": 1.0}, left_out={"dense": "too large"})
    report = Report("A title", 2, rows=[won, lost])
    assert won.ratio == 3 and lost.ratio == 0.5
    assert report.summary() == [
        f"geometric mean of the ratios: {geometric_mean([3, 0.5]):.2f}",
        "losses: y, two (0.50)",
        "left out: dense: too large",
    ]
    assert report.table().count("| data |") == 2


def test_ratios_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = Report("A title", 2, rows=[Row("x", "one", {"Scorch": 1.0, "torch CSR": 4.0})])
    plot(report, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 1000


def test_contestants_take_turns() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = contest(calls, runs=2, warm_ups=1)
    assert set(times) == {"a", "b"} and order[-1] == "b" and order.count("a") > 2


def test_images_and_texts_are_read_as_they_are_stored(tmp_path: Path) -> None:
    pixels = np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 28, 28)
    np.savez(tmp_path / "mnist.npz", train_x=pixels, test_x=pixels, train_y=[0, 1], test_y=[0, 1])
    images = figure6_autoencoder.read(tmp_path / "mnist.npz", 5000)
    assert images.test.shape == (2, 784) and images.test.max() <= 1
    texts = figure7_bigbird.numbered([(1, "A cat, a dog")], [(0, "The cat")], 2, "here")
    assert texts.train[0].tolist() == [1, 2, 1, 3] and texts.test[0].tolist() == [0, 2]
    assert figure7_bigbird.batch_of(texts.train, 6).tolist() == [[1, 2, 1, 3, 1, 2]]


def test_what_is_fetched_is_read_as_its_authors_wrote_it() -> None:
    file = io.StringIO()
    csv.writer(file).writerow(["3", "A title", "and, a text"])
    assert list(download._ag_news(file.getvalue().encode())) == [(2, "A title and, a text")]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, text in (("train/pos/0_9.txt", "good<br />film"), ("test/neg/1_2.txt", "bad")):
            info = tarfile.TarInfo(f"aclImdb/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    assert list(download._imdb(archive.getvalue(), "imdb_train")) == [(1, "good film")]
    assert list(download._imdb(archive.getvalue(), "imdb_test")) == [(0, "bad")]
    edges = np.array([[2, 0, 1], [0, 0, 2]])
    matrix = download._matrix("adj", edges, (3, 3))
    assert matrix["adj_indptr"].tolist() == [0, 2, 2, 3] and matrix["adj_indices"].tolist() == [0, 2, 1]


def test_download_needs_a_directory() -> None:
    with pytest.raises(SystemExit, match="--download needs --data DIR"):
        figure5_gcn.main(["--download", "--quick"])


def test_every_section_of_the_results_has_a_date() -> None:
    text = (Path(__file__).resolve().parent.parent / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        name, body = section.split("\n", 1)
        assert "\n|" not in body or re.search(r"\d+ \w+ 20\d\d", body), f"when was {name!r} measured?"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "/no/such/folder"], "there is no folder"),
        (["--plot", "picture.gif"], "a file that ends in"),
        (["--json", "/no/such/folder/numbers.json"], "there is no folder"),
        (["--threads", "0"], "from 1 on"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_measured(arguments: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        figure6_autoencoder.main(["--quick", *arguments])


def test_dense_that_is_faster_is_said() -> None:
    report = Report("Figure 0", 1, rows=[Row("A", "x", {"Scorch": 2.0, "torch": 4.0, "dense": 1.0})])
    assert report.rows[0].ratio == 2.0
    assert any("dense is faster: A, x (0.50)" in line for line in report.summary())
    assert "ratio: the best of torch over the best of Scorch" in report.show()
