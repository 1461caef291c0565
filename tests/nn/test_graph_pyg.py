"""Graph layers beside PyG's with copied weights: results and gradients. Skipped where there is no PyG."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from benchmarks.graph_data import Data, load

from scorch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pyg = pytest.importorskip(
        "torch_geometric.nn", reason="PyG is not installed: pip install torch_geometric", exc_type=ImportError
    )

pytestmark = pytest.mark.filterwarnings("ignore")  # what PyG warns of
LAYERS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("GCNConv", (12,), {}),
    ("GCNConv", (40,), {"add_self_loops": False, "bias": False}),
    ("GCNConv", (12,), {"normalize": False}),
    ("SAGEConv", (12,), {}),
    ("SAGEConv", (40,), {"aggr": "sum", "normalize": True, "root_weight": False}),
    ("SAGEConv", (12,), {"aggr": "max", "project": True}),
    ("GATConv", (8,), {"heads": 8}),
    ("GATConv", (7,), {"heads": 3, "concat": False, "residual": True, "negative_slope": 0.1}),
    ("GATConv", (5,), {"add_self_loops": False, "bias": False}),
]


def random_graph(nodes: int) -> torch.Tensor:
    """With loops, edges that repeat, and nodes without any."""
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(nodes // 2, (2, 4 * nodes), generator=draw)
    return torch.cat([edges, edges[:, :20], torch.arange(9).repeat(2, 1)], 1)


def both(name: str, sizes: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, Any]:
    """The layer of PyG and ours with the same weights."""
    torch.manual_seed(0)
    theirs = getattr(pyg, name)(*sizes, **options).double()
    ours = getattr(nn, name)(*sizes, **options).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def assert_same(theirs: Any, ours: Any, x: Any, graph: Any, *more: torch.Tensor) -> None:
    inputs = [*([x] if isinstance(x, torch.Tensor) else x), *more]
    wanted, found = theirs(x, graph, *more), ours(x, graph, *more)
    torch.testing.assert_close(found, wanted)
    direction = torch.linspace(-1, 1, wanted.numel(), dtype=wanted.dtype).view_as(wanted)
    its = torch.autograd.grad(wanted, [*inputs, *theirs.parameters()], direction)
    mine = torch.autograd.grad(found, [*inputs, *ours.parameters()], direction)
    for a, b in zip(mine, its, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("name", "sizes", "options"), LAYERS)
def test_layers_give_pyg_s_numbers(name: str, sizes: tuple[int, ...], options: dict[str, Any]) -> None:
    theirs, ours = both(name, (20, *sizes), options)
    x = torch.randn(60, 20, dtype=torch.float64, requires_grad=True)
    assert_same(theirs, ours, x, random_graph(60))


def test_names_of_parameters_are_pyg_s() -> None:
    for name, sizes, options in LAYERS:
        theirs, ours = both(name, (20, *sizes), options)
        assert list(ours.state_dict()) == list(theirs.state_dict())
    for name in ("SAGEConv", "GATConv"):
        theirs, ours = both(name, ((5, 6), 4), {})
        assert {key: value.shape for key, value in ours.state_dict().items()} == {
            key: value.shape for key, value in theirs.state_dict().items()
        }


def test_weights_of_edges_give_pyg_s_numbers() -> None:
    theirs, ours = both("GCNConv", (20, 12), {"improved": True})
    edges = random_graph(60)
    weight = torch.rand(edges.shape[1], dtype=torch.float64).add_(0.1).requires_grad_()
    x = torch.randn(60, 20, dtype=torch.float64, requires_grad=True)
    assert_same(
        theirs, ours, x, edges.unique(dim=1), weight[: edges.unique(dim=1).shape[1]].detach().requires_grad_()
    )


@pytest.mark.parametrize("fill", ["mean", "add", "max", "min", "mul", 0.7, None])
def test_features_of_edges_give_pyg_s_numbers(fill: Any) -> None:
    options = {"edge_dim": 3, "heads": 2, "add_self_loops": fill is not None, "fill_value": fill or "mean"}
    theirs, ours = both("GATConv", (20, 6), options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    edges = random_graph(60)
    x = torch.randn(60, 20, dtype=torch.float64, requires_grad=True)
    features = torch.randn(edges.shape[1], 3, dtype=torch.float64, requires_grad=True)
    assert_same(theirs, ours, x, edges, features)


@pytest.mark.parametrize(
    ("name", "options"), [("SAGEConv", {}), ("GATConv", {"add_self_loops": False, "heads": 2})]
)
def test_two_kinds_of_nodes_give_pyg_s_numbers(name: str, options: dict[str, Any]) -> None:
    theirs, ours = both(name, ((5, 6), 4), options)
    x = (torch.randn(30, 5, dtype=torch.float64), torch.randn(40, 6, dtype=torch.float64))
    pair = tuple(tensor.requires_grad_() for tensor in x)
    draw = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.randint(30, (90,), generator=draw), torch.randint(40, (90,), generator=draw)])
    assert_same(theirs, ours, pair, edges)


def test_gin_gives_pyg_s_numbers() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).double()
    theirs = pyg.GINConv(network, eps=0.2, train_eps=True).double()
    ours = nn.GINConv(network, train_eps=True).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(60, 20, dtype=torch.float64, requires_grad=True)
    assert_same(theirs, ours, x, random_graph(60))


class Network(torch.nn.Module):
    def __init__(self, library: Any, kind: str, data: Data) -> None:
        super().__init__()
        features, classes = data.x.shape[1], data.classes
        if kind == "GAT":
            self.first = library.GATConv(features, 8, heads=8)
            self.second = library.GATConv(64, classes, heads=1, concat=False)
        elif kind == "GCN":
            self.first, self.second = library.GCNConv(features, 16), library.GCNConv(16, classes)
        else:
            aggr = kind.split()[1]
            self.first = library.SAGEConv(features, 16, aggr=aggr)
            self.second = library.SAGEConv(16, classes, aggr=aggr)

    def forward(self, x: Any, graph: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.first(x, graph).relu(), graph)
        return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["GCN", "GAT", "SAGE mean", "SAGE max"])
def test_networks_on_cora_give_pyg_s_numbers(kind: str, data_dir: Path) -> None:
    data = load("cora", data_dir)
    if data.is_made_up:
        pytest.skip("no planetoid/cora.npz in the data directory")
    torch.manual_seed(0)
    theirs, ours = Network(pyg, kind, data), Network(nn, kind, data)
    ours.load_state_dict(theirs.state_dict())
    wanted = theirs(data.x, data.edge_index)
    F.cross_entropy(wanted[data.train], data.y[data.train]).backward()
    matrix = data.matrix()
    ways = [(data.x, data.edge_index), (data.x, matrix)] + (
        [(data.words, matrix)] if kind != "SAGE max" else []
    )
    for x, graph in ways:
        ours.zero_grad()
        found = ours(x, graph)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        F.cross_entropy(found[data.train], data.y[data.train]).backward()
        for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, its.grad, rtol=1e-3, atol=1e-6)
