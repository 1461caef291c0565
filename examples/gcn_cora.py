"""A graph network classifies papers by their words and citations: GCN on Cora, 200 epochs in seconds.

    python examples/gcn_cora.py --data DIR

``DIR`` has ``planetoid/cora.npz`` (the adjacency matrix as ``adj_indptr`` and ``adj_indices``, words as
``x_indptr``, ``x_indices`` and ``x_data``, classes ``y``, and ``train_idx`` and ``test_idx``). Without it the
script makes up a graph of the same size, and says so. Words and citations are sparse matrices throughout.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import scorch as torch
import scorch.nn.functional as F
from scorch import nn


class GCN(nn.Module):
    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.first = nn.GCNConv(words, 16)
        self.second = nn.GCNConv(16, classes)

    def forward(self, x: Any, graph: Any) -> Any:
        hidden = self.first(F.dropout(x, 0.5, self.training), graph).relu()
        return self.second(F.dropout(hidden, 0.5, self.training), graph)


def read(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    sizes = {part: tuple(arrays[f"{part}_shape"].tolist()) for part in ("adj", "x")}
    ones = torch.ones(arrays["adj_indices"].numel())
    graph = torch.sparse_csr_tensor(arrays["adj_indptr"], arrays["adj_indices"], ones, sizes["adj"])
    x = torch.sparse_csr_tensor(arrays["x_indptr"], arrays["x_indices"], arrays["x_data"], sizes["x"])
    return {"graph": graph, "x": x, **{name: arrays[name].long() for name in ("y", "train_idx", "test_idx")}}


def make_up(nodes: int = 2708, words: int = 1433, classes: int = 7, edges: int = 5278) -> dict[str, Any]:
    """Papers that cite and share words mostly within their class."""
    y = torch.randint(classes, (nodes,)).sort().values
    source = torch.randint(nodes, (edges,))
    near = (source + torch.randint(-100, 100, (edges,))).clamp(0, nodes - 1)
    target = torch.where(torch.rand(edges) < 0.9, near, torch.randint(nodes, (edges,)))
    pairs = torch.cat([torch.stack([source, target]), torch.stack([target, source])], 1)
    paper = torch.arange(nodes).repeat_interleave(18)
    own = y[paper] * (words // classes) + torch.randint(words // classes, (paper.numel(),))
    word = torch.where(torch.rand(paper.numel()) < 0.3, own, torch.randint(words, (paper.numel(),)))
    x = torch.sparse_coo_tensor(torch.stack([paper, word]), torch.ones(paper.numel()), (nodes, words))
    order = torch.randperm(nodes)
    graph = torch.from_edge_index(pairs, size=nodes, format="csr")
    return {"graph": graph, "x": x, "y": y, "train_idx": order[:140], "test_idx": order[-1000:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    torch.manual_seed(0)
    path = None if options.data is None else options.data / "planetoid" / "cora.npz"
    if path is None:
        print("No --data was given: this is a made up graph of Cora's size, not Cora.")
    data = make_up() if path is None else read(path)
    graph, y, train, test = data["graph"], data["y"], data["train_idx"], data["test_idx"]
    x = data["x"] / data["x"].sum(1, keepdim=True).to_dense().clamp(min=1)
    print(f"{graph.shape[0]:,} papers, {graph.nnz:,} citations, {x.nnz:,} words of {x.shape[1]:,}")

    model = GCN(x.shape[1], int(y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    start = time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, graph)[train], y[train])
        loss.backward()
        optimizer.step()
        if epoch % 50 == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    seconds = time.perf_counter() - start
    with torch.no_grad():
        right = model.eval()(x, graph)[test].argmax(1) == y[test]
    print(f"{options.epochs} epochs in {seconds:.1f} s; test accuracy {right.float().mean().item():.1%}")


if __name__ == "__main__":
    main()
