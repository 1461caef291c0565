"""Citation graphs for ``benchmarks.graphs``: read from a directory, or made up in the same sizes.

A directory has ``planetoid/cora.npz``, ``planetoid/pubmed.npz`` and ``ogbn_arxiv/ogbn_arxiv.npz``: the
adjacency matrix as ``adj_indptr`` and ``adj_indices``, features as ``x_indptr``, ``x_indices`` and
``x_data``, classes ``y``, and the split as ``train_idx``, ``val_idx`` and ``test_idx``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import scorch

FILES = {
    "cora": Path("planetoid", "cora.npz"),
    "citeseer": Path("planetoid", "citeseer.npz"),
    "pubmed": Path("planetoid", "pubmed.npz"),
    "arxiv": Path("ogbn_arxiv", "ogbn_arxiv.npz"),
}
SIZES = {  # nodes, edges both ways, features, stored features of a node, classes
    "cora": (2_708, 10_556, 1_433, 18, 7),
    "citeseer": (3_327, 9_104, 3_703, 32, 6),
    "pubmed": (19_717, 88_648, 500, 50, 3),
    "arxiv": (169_343, 2_315_598, 128, 128, 40),
    "tiny": (200, 1_000, 24, 5, 3),
}


@dataclass(frozen=True)
class Data:
    """A graph with features and classes of its nodes; ``words`` are the features as a sparse matrix."""

    name: str
    edge_index: torch.Tensor
    x: torch.Tensor
    words: scorch.SparseTensor | None
    y: torch.Tensor
    train: torch.Tensor
    test: torch.Tensor
    is_made_up: bool

    @property
    def nodes(self) -> int:
        return self.x.shape[0]

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1

    @property
    def source(self) -> str:
        """Where the graph is from, in words."""
        return "made up" if self.is_made_up else FILES[self.name].name

    def matrix(self) -> scorch.SparseTensor:
        """The graph as layers of Scorch take it: targets x sources."""
        found = scorch.from_edge_index(self.edge_index.flip(0), size=self.nodes, format="csr")
        assert isinstance(found, scorch.SparseTensor)
        return found


def load(name: str, directory: Path | None) -> Data:
    """The graph ``name`` of a directory; made up where there is none, or it has no such file."""
    path = None if directory is None or name not in FILES else directory / FILES[name]
    return made_up(name) if path is None or not path.is_file() else read(name, path)


def read(name: str, path: Path) -> Data:
    with np.load(path) as file:
        arrays = {key: torch.from_numpy(file[key].astype(np.int64)) for key in file.files if key != "x_data"}
        values = torch.from_numpy(file["x_data"]) if "x_data" in file.files else None
    degrees = arrays["adj_indptr"].diff()
    rows = torch.arange(degrees.numel()).repeat_interleave(degrees)
    edges = torch.stack([arrays["adj_indices"], rows])
    edges = both_ways(edges, degrees.numel())  # citations count both ways
    if values is None:  # ogbn-arxiv comes without its features
        x, words = torch.randn(degrees.numel(), 128, generator=torch.Generator().manual_seed(0)), None
    else:
        shape = tuple(arrays["x_shape"].tolist())
        found = scorch.sparse_csr_tensor(arrays["x_indptr"], arrays["x_indices"], values, shape)
        assert isinstance(found, scorch.SparseTensor)
        x, words = found.to_dense(), found
    train, test = arrays["train_idx"], arrays["test_idx"]
    return Data(name, edges, x, words, arrays["y"], train, test, False)


def both_ways(edges: torch.Tensor, nodes: int) -> torch.Tensor:
    """Each edge and its reverse, once."""
    keys = torch.unique(torch.cat([edges[0] * nodes + edges[1], edges[1] * nodes + edges[0]]))
    return torch.stack([keys // nodes, keys % nodes])


def made_up(name: str) -> Data:
    """Communities whose nodes share edges and words; a few nodes have many edges."""
    nodes, edges, features, few, classes = SIZES[name]
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (nodes,), generator=draw)
    order = torch.argsort(y)
    begins = torch.searchsorted(y[order].contiguous(), torch.arange(classes + 1))
    half = edges // 2
    sources = (torch.rand(half, generator=draw, dtype=torch.float64) ** 2 * nodes).long()
    sizes = (begins[1:] - begins[:-1])[y[sources]]
    own = begins[y[sources]] + (torch.rand(half, generator=draw) * sizes).long()
    other = torch.randint(nodes, (half,), generator=draw)
    targets = torch.where(torch.rand(half, generator=draw) < 0.8, order[own.clamp(max=nodes - 1)], other)
    both = torch.stack([sources, targets])[:, sources != targets]
    edge_index = both_ways(both, nodes)
    if few == features:
        x, words = (
            torch.randn(nodes, features, generator=draw) + torch.randn(classes, features, generator=draw)[y],
            None,
        )
    else:
        rows = torch.arange(nodes).repeat_interleave(few)
        span = features // classes
        own = y[rows] * span + torch.randint(span, (rows.numel(),), generator=draw)
        anywhere = torch.randint(features, (rows.numel(),), generator=draw)
        columns = torch.where(torch.rand(rows.numel(), generator=draw) < 0.3, own, anywhere)
        x = torch.zeros(nodes, features).index_put_((rows, columns), torch.ones(()))
        found = scorch.from_torch(x, format="csr")
        assert isinstance(found, scorch.SparseTensor)
        words = found
    shuffled = torch.randperm(nodes, generator=draw)
    share = min(max(nodes // 20, 20 * classes), nodes // 2)
    return Data(name, edge_index, x, words, y, shuffled[:share], shuffled[share:], True)
