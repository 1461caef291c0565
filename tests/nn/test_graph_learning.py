"""Graph networks learn: a made up graph, and Cora where there is data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.graph_data import Data, load, made_up

from scorch import nn


def accuracy(first: Any, second: Any, data: Data, x: Any, epochs: int, rate: float = 0.01) -> float:
    """The share of test nodes that two layers classify rightly, trained as the paper of GCN does."""
    layers = torch.nn.ModuleList([first, second])
    optimizer = torch.optim.Adam(layers.parameters(), lr=rate, weight_decay=5e-4)
    graph = data.matrix()

    def logits() -> torch.Tensor:
        hidden = F.relu(first(F.dropout(x, 0.5, layers.training), graph))
        found: torch.Tensor = second(F.dropout(hidden, 0.5, layers.training), graph)
        return found

    for _ in range(epochs):
        layers.train()
        optimizer.zero_grad()
        F.cross_entropy(logits()[data.train], data.y[data.train]).backward()
        optimizer.step()
    with torch.no_grad():
        layers.eval()
        right = logits()[data.test].argmax(1) == data.y[data.test]
    return float(right.float().mean())


@pytest.mark.parametrize("kind", ["GCN", "SAGE mean", "SAGE max", "GIN", "GAT"])
def test_a_small_graph_is_learned(kind: str) -> None:
    data = made_up("tiny")
    torch.manual_seed(0)
    features, classes = data.x.shape[1], data.classes
    layers = {
        "GCN": lambda i, o: nn.GCNConv(i, o),
        "SAGE mean": lambda i, o: nn.SAGEConv(i, o),
        "SAGE max": lambda i, o: nn.SAGEConv(i, o, aggr="max"),
        "GIN": lambda i, o: nn.GINConv(torch.nn.Linear(i, o)),
        "GAT": lambda i, o: nn.GATConv(i, o, heads=2, concat=False, dropout=0.2),
    }
    make = layers[kind]
    found = accuracy(make(features, 16), make(16, classes), data, data.x, 60, rate=0.02)
    assert found > 0.6


@pytest.mark.long
def test_gcn_on_cora_reaches_eighty_percent(data_dir: Path) -> None:
    data = load("cora", data_dir)
    if data.is_made_up:
        pytest.skip("no planetoid/cora.npz in the data directory")
    assert data.words is not None
    totals = (data.words.sum(1, keepdim=True)).to_dense().clamp(min=1)
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        first, second = nn.GCNConv(data.x.shape[1], 16), nn.GCNConv(16, data.classes)
        found.append(accuracy(first, second, data, data.words / totals, 200))
    assert sum(found) / 3 >= 0.8
