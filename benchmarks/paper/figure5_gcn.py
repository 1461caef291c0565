"""Figure 5: inference of a graph convolutional network on Cora, Citeseer, PubMed and ogbn-arxiv.

    python -m benchmarks.paper.figure5_gcn --data DIR [--threads N] [--json FILE] [--plot FILE] [--quick]

Two layers, 128 hidden features, features as given: Cora's, Citeseer's and PubMed's are stored sparsely, and
every contestant takes them as it is fastest; ogbn-arxiv comes without features, they are drawn at random.
Weights are trained once (200 epochs of Adam, learning rate 0.01, weight decay 5e-4, dropout 0.5) and copied;
results are compared before they are timed. Normalising the graph is not timed, for anyone.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

import scorch
from benchmarks.graph_data import Data, load
from benchmarks.paper.download import fetch_graph
from benchmarks.paper.running import Report, Row, agreeing, contest, finished, parser, progress, started
from scorch import nn

warnings.filterwarnings("ignore", message="Sparse")

GRAPHS = ("cora", "citeseer", "pubmed", "arxiv")
HIDDEN = 128
MOST_DENSE = 1 << 30  # bytes of a dense adjacency matrix


class GCN(torch.nn.Module):
    """Two layers of ``library``: scorch.nn or torch_geometric.nn."""

    def __init__(self, library: Any, features: int, classes: int) -> None:
        super().__init__()
        self.first = library.GCNConv(features, HIDDEN, cached=True)
        self.second = library.GCNConv(HIDDEN, classes, cached=True)

    def forward(self, x: Any, graph: Any) -> torch.Tensor:
        hidden = F.dropout(self.first(x, graph).relu(), 0.5, self.training)
        found: torch.Tensor = self.second(hidden, graph)
        return found


def trained(data: Data, epochs: int) -> GCN:
    """A network that has learned the training nodes."""
    model = GCN(nn, data.x.shape[1], data.classes)
    x, graph = data.x if data.words is None else data.words, data.matrix()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in progress(range(epochs), f"{data.name}: training"):
        optimizer.zero_grad()
        F.cross_entropy(model(x, graph)[data.train], data.y[data.train]).backward()
        optimizer.step()
    return model.eval()


def by_hand(weights: Sequence[torch.Tensor], graph: Any, x: Any) -> torch.Tensor:
    """The network as one writes it without a library: products with the normalised adjacency matrix."""
    W1, b1, W2, b2 = weights
    hidden = torch.relu(graph @ (x @ W1) + b1)
    return graph @ (hidden @ W2) + b2


def normalised(graph: scorch.SparseTensor) -> scorch.SparseTensor:
    """D^-1/2 (A + I) D^-1/2."""
    looped = graph + scorch.eye(graph.shape[0], format="csr")
    scale = looped.sum(1).to_dense().rsqrt()
    found = (looped * scale[:, None] * scale[None, :]).to_format("csr")
    assert isinstance(found, scorch.SparseTensor)
    return found


def contestants(model: GCN, data: Data) -> dict[str, Callable[[], torch.Tensor]]:
    """Scorch's layers and by hand, torch.sparse, PyG and dense torch, all with the weights of ``model``."""
    graph, x, words = data.matrix(), data.x, data.words
    layers = (model.first, model.second)
    weights = [part for layer in layers for part in (layer.lin.weight.t().contiguous(), layer.bias)]
    hat = normalised(graph)
    given = x if words is None else words
    fused = scorch.compile(by_hand)
    found: dict[str, Callable[[], torch.Tensor]] = {
        "Scorch, by hand": lambda: by_hand(weights, hat, given),
        "Scorch, GCNConv": lambda: model(given, graph),
        "Scorch, compiled": lambda: fused(weights, hat, given),
    }
    csr = hat.to_torch()
    coo = csr.to_sparse_coo().coalesce()
    found["torch CSR"] = lambda: by_hand(weights, csr, x)
    found["torch COO"] = lambda: by_hand(weights, coo, x)
    if words is not None:
        sparse = words.to_torch()
        listed = sparse.to_sparse_coo().coalesce()
        found["torch CSR, x too"] = lambda: by_hand(weights, csr, sparse)
        found["torch COO, x too"] = lambda: by_hand(weights, coo, listed)
    if data.nodes**2 * 4 <= MOST_DENSE:
        dense = hat.to_dense()
        found["dense"] = lambda: by_hand(weights, dense, x)
    return found | pyg_contestants(model, data)


def pyg_contestants(model: GCN, data: Data) -> dict[str, Callable[[], torch.Tensor]]:
    """PyG with its ways to hold a graph and features, where it is installed."""
    try:
        import torch_geometric.nn as pyg
        from torch_geometric import EdgeIndex
    except ImportError:
        return {}
    edges = data.edge_index[:, torch.argsort(data.edge_index[1], stable=True)]
    size = (data.nodes, data.nodes)
    fast: Any = EdgeIndex(edges, sparse_size=size, sort_order="col", is_undirected=True)
    graphs = {"edge_index": edges, "EdgeIndex": fast.fill_cache_(), "torch.sparse": data.matrix().to_torch()}
    features = {"": data.x}
    if data.words is not None:
        features[", sparse x"] = data.words.to_torch()
    found: dict[str, Callable[[], torch.Tensor]] = {}
    for held, graph in graphs.items():
        for spelled, x in features.items():
            network = GCN(pyg, data.x.shape[1], data.classes).eval()
            network.load_state_dict(copy.deepcopy(model.state_dict()))
            found[f"PyG, {held}{spelled}"] = lambda network=network, graph=graph, x=x: network(x, graph)
    return found


def measure(name: str, options: argparse.Namespace, report: Report) -> None:
    if options.download:
        fetch_graph(name, options.data)
    data = load("tiny" if options.quick and (options.data is None or name == "arxiv") else name, options.data)
    report.sources[name] = data.source
    model = trained(data, 5 if options.quick else 200)
    with torch.no_grad():
        calls, left_out = agreeing(contestants(model, data))
        accuracies = {name: accuracy(call(), data) for name, call in calls.items()}
        times = contest(
            calls, 1 if options.quick else options.runs, 0 if options.quick else 5, f"{name}: timing"
        )
    if len(set(accuracies.values())) != 1:
        report.notes.append(f"{name}: accuracies differ: {accuracies}")
    facts = {"test accuracy": next(iter(accuracies.values()))}
    report.rows.append(Row(name, "inference", times, facts=facts, left_out=left_out))
    ours, pyg = report.rows[-1].best("Scorch"), report.rows[-1].best("PyG")
    if pyg is None:
        report.notes.append("left out: PyG is not installed (pip install torch_geometric)")
    if ours is not None and pyg is not None:
        report.notes.append(f"{name}: {pyg / ours:.2f} times as fast as the best of PyG")


def accuracy(scores: torch.Tensor, data: Data) -> float:
    right = scores[data.test].argmax(1) == data.y[data.test]
    return float(right.double().mean())


def main(arguments: Sequence[str] | None = None) -> int:
    options_of = parser(__doc__.splitlines()[0])
    options_of.add_argument("--graphs", nargs="+", default=list(GRAPHS), choices=GRAPHS)
    options = options_of.parse_args(arguments)
    report = started(options, "Figure 5: GCN inference")
    for name in options.graphs:
        measure(name, options, report)
    return finished(report, options)


if __name__ == "__main__":
    raise SystemExit(main())
