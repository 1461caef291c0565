"""GATv2Conv, TransformerConv, SGConv, APPNP, HeteroConv, aggregations and attention weights beside PyG's."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch

import scorch
from nn.test_graph_pyg import assert_same, both, pyg, random_graph
from scorch import nn
from scorch.errors import ArgumentError, DtypeError, OperandError, ShapeError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore")  # what PyG warns of
LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("GATv2Conv", (20, 6), {"heads": 2, "residual": True}),
    ("GATv2Conv", (20, 6), {"concat": False, "heads": 2, "share_weights": True, "add_self_loops": False}),
    ("TransformerConv", (20, 6), {"heads": 2, "beta": True}),
    ("TransformerConv", (20, 6), {"heads": 3, "concat": False, "bias": False}),
    ("SGConv", (20, 6), {"K": 3}),
    ("SGConv", (20, 40), {"K": 2, "add_self_loops": False, "cached": True}),
    ("APPNP", (4, 0.1), {}),
    ("APPNP", (2, 0.3), {"normalize": False}),
]
AGGREGATIONS = ["add", "sum", "mean", "max", "min", "mul", "var", "std", "softmax", "median"]


def features_of(nodes: int = 60, features: int = 20) -> torch.Tensor:
    return torch.randn(nodes, features, dtype=torch.float64, requires_grad=True)


def matrix_of(edges: torch.Tensor, nodes: int, form: str) -> torch.Tensor:
    """Return the matrix of targets x sources."""
    found: torch.Tensor = scorch.from_edge_index(edges, size=nodes).T.to_format(form).double()
    return found


@pytest.mark.whole
@pytest.mark.parametrize(("name", "sizes", "options"), LAYERS)
def test_layers_give_pyg_s_numbers(name: str, sizes: tuple[Any, ...], options: dict[str, Any]) -> None:
    theirs, ours = both(name, sizes, options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert_same(theirs, ours, features_of(), random_graph(60))


def test_a_transformer_may_leave_its_root_out() -> None:
    theirs, ours = both("TransformerConv", (20, 6), {"root_weight": False, "beta": True})
    x, edges = features_of(), random_graph(60)
    torch.testing.assert_close(ours(x, edges), theirs(x, edges))


@pytest.mark.parametrize("name", ["GATv2Conv", "TransformerConv", "SGConv"])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_matrices_give_the_numbers_of_an_edge_index(name: str, form: str) -> None:
    torch.manual_seed(0)
    layer = getattr(nn, name)(20, 6).double()
    x, edges = features_of(), random_graph(60).unique(dim=1)
    torch.testing.assert_close(layer(x, matrix_of(edges, 60, form)), layer(x, edges))


@pytest.mark.whole
@pytest.mark.parametrize("name", ["GATv2Conv", "TransformerConv"])
def test_features_of_edges_give_pyg_s_numbers(name: str) -> None:
    theirs, ours = both(name, (20, 6), {"heads": 2, "edge_dim": 3})
    assert list(ours.state_dict()) == list(theirs.state_dict())
    edges = random_graph(60)
    features = torch.randn(edges.shape[1], 3, dtype=torch.float64, requires_grad=True)
    assert_same(theirs, ours, features_of(), edges, features)
    with pytest.raises(ArgumentError, match="edge_dim"):
        getattr(nn, name)(20, 6)(features_of().float(), edges, features)
    with pytest.raises(ShapeError, match="edge_dim is 3"):
        ours(features_of(), edges, features[:, :2])


@pytest.mark.parametrize("name", ["GATv2Conv", "TransformerConv"])
def test_two_kinds_of_nodes_give_pyg_s_numbers(name: str) -> None:
    options = {"add_self_loops": False} if name == "GATv2Conv" else {}
    theirs, ours = both(name, ((5, 6), 4), {"heads": 2, **options})
    draw = torch.Generator().manual_seed(0)
    edges = torch.stack([torch.randint(30, (90,), generator=draw), torch.randint(40, (90,), generator=draw)])
    assert_same(theirs, ours, (features_of(30, 5), features_of(40, 6)), edges)


@pytest.mark.whole
@pytest.mark.parametrize("aggr", [*AGGREGATIONS, ["mean", "max", "std"]])
def test_aggregations_give_pyg_s_numbers(aggr: Any) -> None:
    torch.manual_seed(0)
    theirs, ours = both("SAGEConv", (20, 6), {"aggr": aggr})
    assert_same(theirs, ours, features_of(), random_graph(60))


def test_gin_has_aggregations_too() -> None:
    network = torch.nn.Linear(20, 3).double()
    theirs, ours = pyg.GINConv(network, aggr="max"), nn.GINConv(network, aggr="max")
    x, edges = features_of(), random_graph(60)
    torch.testing.assert_close(ours(x, edges), theirs(x, edges))
    with pytest.raises(ArgumentError, match="'lstm'; it may be one of sum"):
        nn.SAGEConv(20, 6, aggr="lstm")


@pytest.mark.whole
@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_attention_weights_are_pyg_s(name: str, edge_dim: int | None) -> None:
    theirs, ours = both(name, (20, 6), {"heads": 2, "edge_dim": edge_dim})
    x, edges = features_of(), random_graph(60)
    more = () if edge_dim is None else (torch.randn(edges.shape[1], 3, dtype=torch.float64),)
    wanted, (wanted_edges, wanted_weights) = theirs(x, edges, *more, return_attention_weights=True)
    found, (found_edges, found_weights) = ours(x, edges, *more, return_attention_weights=True)
    torch.testing.assert_close(found, wanted)
    assert torch.equal(found_edges, wanted_edges)
    torch.testing.assert_close(found_weights, wanted_weights)
    its, mine = (torch.autograd.grad(w.square().sum(), x)[0] for w in (wanted_weights, found_weights))
    torch.testing.assert_close(mine, its)


def test_attention_weights_of_a_matrix_are_a_tensor() -> None:
    edges = random_graph(60).unique(dim=1)
    layer = nn.GATConv(20, 6, heads=2).double()
    x = features_of()
    out, weights = layer(x, matrix_of(edges, 60, "csc"), return_attention_weights=True)
    torch.testing.assert_close(out, layer(x, edges))
    assert isinstance(weights, scorch.SparseTensor) and weights.shape == (60, 60, 2)
    torch.testing.assert_close(weights.to_dense().sum(1), torch.ones(60, 2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("GCNConv", -1),
        ("SGConv", -1),
        ("SAGEConv", (-1, -1)),
        ("GATConv", -1),
        ("GATConv", (-1, -1)),
        ("GATv2Conv", -1),
        ("TransformerConv", (-1, -1)),
    ],
)
def test_sizes_are_taken_from_the_first_input(name: str, channels: Any) -> None:
    torch.manual_seed(0)
    options = {"add_self_loops": False} if "GAT" in name else {}
    theirs, ours = getattr(pyg, name)(channels, 6, **options), getattr(nn, name)(channels, 6, **options)
    x, edges = features_of().float().detach(), random_graph(60)
    nodes: Any = x if channels == -1 else (x, x)
    wanted = theirs(nodes, edges)
    ours(nodes, edges)
    fresh = getattr(nn, name)(channels, 6, **options)
    for layer in (ours, fresh):  # before and after its sizes are known
        layer.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(layer(nodes, edges), wanted)
    assert not any(torch.nn.parameter.is_lazy(parameter) for parameter in fresh.parameters())
    with pytest.raises(ShapeError):
        ours(x[:, :3] if channels == -1 else (x[:, :3], x), edges)


def test_types_of_nodes_give_pyg_s_numbers() -> None:
    torch.manual_seed(0)
    kinds = [("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "by.", "author")]
    x = {"author": features_of(9, 3).detach().float(), "paper": features_of(12, 5).detach().float()}
    writes = torch.stack([torch.arange(9), torch.arange(9) + 2])
    graphs = {kinds[0]: writes, kinds[1]: random_graph(8).unique(dim=1), kinds[2]: writes.flip(0)}
    weight = {kinds[1]: torch.rand(graphs[kinds[1]].shape[1])}
    for aggr in ("sum", "mean", "min", "max", None):
        layers = [
            library.HeteroConv(
                {
                    kinds[0]: library.SAGEConv((-1, -1), 4),
                    kinds[1]: library.GCNConv(-1, 4),
                    kinds[2]: library.GATConv((-1, -1), 4, add_self_loops=False),
                },
                aggr=aggr,
            )
            for library in (pyg, nn)
        ]
        theirs, ours = layers
        wanted = theirs(x, graphs, edge_weight_dict=weight)
        ours.load_state_dict(theirs.state_dict())
        found = ours(x, graphs, edge_weight_dict=weight)
        assert found.keys() == wanted.keys()
        for kind, tensor in found.items():
            torch.testing.assert_close(tensor, wanted[kind])
    with pytest.raises(ArgumentError, match="add_self_loops=False"):
        nn.HeteroConv({kinds[0]: nn.GATConv((3, 5), 4)})
    with pytest.raises(ArgumentError, match="end in '_dict'"):
        ours(x, graphs, edge_weight=weight)


def test_what_is_missing_for_a_type_is_said() -> None:
    to, back = ("a", "to", "b"), ("b", "to", "a")
    layer = nn.HeteroConv({kind: nn.SAGEConv((3, 3), 4) for kind in (to, back)})
    x, edges = torch.rand(5, 3), random_graph(5)[:, :4] % 5
    both, graphs = {"a": x, "b": x}, {to: edges, back: edges}
    assert layer(both, {to: edges}).keys() == {"b"} and layer(both, {}) == {}
    with pytest.raises(
        ArgumentError, match=r"no features for 'b', the source of \('b', 'to', 'a'\), but for a"
    ):
        layer({"a": x}, graphs)
    with pytest.raises(ArgumentError, match=r"no edge type of the layers, .*, but \('a', 'too', 'b'\)"):
        layer(both, {("a", "too", "b"): edges})
    with pytest.raises(
        OperandError, match="x_dict must be a dictionary, the features by node type, but got a Te"
    ):
        layer(x, graphs)
    with pytest.raises(OperandError, match=r"edge_index_dict must be a dictionary, .* but got None"):
        layer(both, None)
    with pytest.raises(DtypeError, match="edge_index must be int64") as caught:
        layer(both, {to: edges, back: edges.float()})
    assert "in the layer for ('b', 'to', 'a')" in "".join(traceback.format_exception(caught.value))


def test_dropout_is_random_in_training_alone() -> None:
    torch.manual_seed(0)
    x, edges = features_of().detach().float(), random_graph(60)
    layers = [nn.APPNP(3, 0.1, dropout=0.5), nn.GATv2Conv(20, 6, dropout=0.5)]
    for layer in [*layers, nn.TransformerConv(20, 6, dropout=0.5)]:
        assert not torch.equal(layer(x, edges), layer(x, edges))
        layer.eval()
        assert torch.equal(layer(x, edges), layer(x, edges))


def test_what_layers_refuse() -> None:
    x, edges = features_of().float(), random_graph(60)
    with pytest.raises(UnsupportedError, match="to_dense"):
        nn.APPNP(2, 0.1)(scorch.tensor(x.detach(), format="csr"), edges)
    with pytest.raises(ArgumentError, match="but got -1"):
        nn.SGConv(3, 4, K=-1)
    with pytest.raises(ArgumentError, match="features of the targets"):
        nn.TransformerConv(20, 6)((x, None), edges.clone(), None)
    with pytest.raises(ArgumentError, match="project=True needs"):
        nn.SAGEConv(-1, 4, project=True)
