"""What programs written for PyG pass to layers: empty graphs, pairs, weights, state_dicts; autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nn.test_graph_pyg import assert_same, both, pyg, random_graph
from nn.test_graph_pyg_layers import features_of
from scorch import nn
from scorch.errors import ArgumentError, IndexRangeError

pytestmark = pytest.mark.filterwarnings("ignore")  # what PyG warns of


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "sizes"), [("GCNConv", (20, 6)), ("SAGEConv", (20, 6)), ("SGConv", (20, 6)), ("APPNP", (2, 0.1))]
)
def test_layers_have_gradients_under_autocast(name: str, sizes: tuple[Any, ...]) -> None:
    theirs, ours = (layer.float() for layer in both(name, sizes, {}))
    edges, x = random_graph(60), features_of().detach().float()
    gradients = []
    for layer in (theirs, ours):
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(leaf, edges)
        gradients += torch.autograd.grad(out.float().square().sum(), leaf)
    assert gradients[1].dtype == torch.float32
    torch.testing.assert_close(gradients[1], gradients[0], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", ["GATv2Conv", "TransformerConv"])
def test_a_graph_may_have_no_nodes(name: str) -> None:
    layer = getattr(nn, name)(20, 6, heads=2)
    assert layer(torch.zeros(0, 20), torch.zeros(2, 0, dtype=torch.int64)).shape == (0, 12)


@pytest.mark.parametrize("name", ["SAGEConv", "GATConv"])
def test_targets_without_features_are_as_many_as_sources(name: str) -> None:
    theirs, ours = both(name, ((20, 20), 6), {"add_self_loops": False} if name == "GATConv" else {})
    x, edges = features_of(), random_graph(60)
    torch.testing.assert_close(ours((x, None), edges), theirs((x, None), edges))


@pytest.mark.parametrize("name", ["GCNConv", "SGConv"])
def test_weights_may_be_a_single_edge_feature(name: str) -> None:
    theirs, ours = both(name, (20, 6), {})
    edges = random_graph(60).unique(dim=1)
    weight = torch.rand(edges.shape[1], 1, dtype=torch.float64, requires_grad=True)
    assert_same(theirs, ours, features_of(), edges, weight)


def test_attention_weights_have_the_given_edges() -> None:
    layer, edges = nn.GATv2Conv(20, 6, add_self_loops=False).double(), random_graph(60).int()
    assert layer(features_of(), edges, return_attention_weights=True)[1][0] is edges


@pytest.mark.parametrize("aggr", ["median", ["mean", "median"]])
def test_medians_exchange_state_dicts(aggr: Any) -> None:
    _, ours = both("SAGEConv", (20, 6), {"aggr": aggr})
    fresh = pyg.SAGEConv(20, 6, aggr=aggr).double()
    fresh.load_state_dict(ours.state_dict())
    x, edges = features_of(), random_graph(60).clamp(max=29)
    torch.testing.assert_close(ours(x[:30], edges), fresh(x[:30], edges))


def test_a_transformer_with_edge_dim_needs_features() -> None:
    with pytest.raises(ArgumentError, match="edge_dim=3 needs edge_attr"):
        nn.TransformerConv(20, 6, edge_dim=3)(features_of().float(), random_graph(60))


def test_nodes_out_of_range_are_named() -> None:
    with pytest.raises(IndexRangeError, match=r"sources \(row 0\) from 0 to 29, but x has 3 rows"):
        nn.GCNConv(20, 6)(torch.zeros(3, 20), random_graph(60))
