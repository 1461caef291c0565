"""The benchmark of graph networks and its made up graphs."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks.graph_data import made_up
from benchmarks.graphs import main, table


@pytest.mark.filterwarnings("ignore")  # what PyG warns of, where it is installed
def test_networks_are_compared_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    threads = str(torch.get_num_threads())
    assert main(["--graphs", "tiny", "--seconds", "0.01", "--threads", threads, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert len(said.err.splitlines()) == len(found["rows"])  # each as soon as it was measured
    assert said.err.startswith("tiny, GCN, training step: Scorch ")
    assert found["made up"] == ["tiny"]
    assert [(row["network"], row["what"]) for row in found["rows"][:2]] == [
        ("GCN", "training step"),
        ("GCN", "inference"),
    ]
    for row in found["rows"]:
        assert {"Scorch", "Scorch, edge_index"} <= set(row["times"])
        assert not [name for name in row["failed"] if name.startswith("Scorch")]
    assert table(found["rows"]).startswith("| graph | network | | Scorch |")


def test_unknown_graphs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--graphs", "coral"])
    assert "there is no 'coral'; there are cora, citeseer, pubmed, arxiv, tiny" in capsys.readouterr().err


def test_made_up_graphs_are_symmetric_and_have_no_loops() -> None:
    data = made_up("tiny")
    dense = data.matrix().to_dense()
    assert torch.equal(dense, dense.T) and not dense.diagonal().any()
    assert data.words is not None and torch.equal(data.words.to_dense(), data.x)
    assert not set(data.train.tolist()) & set(data.test.tolist())
