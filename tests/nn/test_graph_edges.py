"""Graph attention with features of edges, against its formula, however the features are given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import scorch
from scorch import errors, nn

NODES, WIDTH = 6, 2


def edge(sources: int, targets: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, sources - 1), st.integers(0, targets - 1))


@st.composite
def graphs(draw: Any, sources: int = NODES, targets: int = NODES) -> torch.Tensor:
    """An edge_index, perhaps empty, with loops and edges that repeat."""
    pairs = draw(st.lists(edge(sources, targets), max_size=20))
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()


def drawn(*shape: int) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def with_loops(edges: torch.Tensor, features: torch.Tensor, count: int, fill: Any) -> tuple[Any, Any]:
    """Loops replaced by one of each node, one edge after the other."""
    others = edges[0] != edges[1]
    edges, features = edges[:, others], features[others]
    loops = []
    for node in range(count):
        own = features[edges[1] == node]
        if not isinstance(fill, str):
            loops.append(torch.as_tensor(fill, dtype=features.dtype).expand(features.shape[1]))
        elif not len(own):
            loops.append(features.new_full((features.shape[1],), float(fill == "mul")))
        else:
            ways = {"mean": own.mean(0), "add": own.sum(0), "max": own.amax(0), "min": own.amin(0)}
            loops.append(own.prod(0) if fill == "mul" else ways[fill])
    return torch.cat([edges, torch.arange(count).repeat(2, 1)], 1), torch.cat([features, torch.stack(loops)])


def formula(layer: Any, x: Any, root: Any, edges: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """One softmax after the other; ``edges`` have their loops."""
    shape = (-1, layer.heads, layer.out_channels)
    sources = (layer.lin or layer.lin_src)(x).view(shape)
    targets = (layer.lin or layer.lin_dst)(root).view(shape)
    of_edges = (layer.lin_edge(features).view(shape) * layer.att_edge).sum(-1)
    scores = (sources * layer.att_src).sum(-1)[edges[0]] + (targets * layer.att_dst).sum(-1)[edges[1]]
    scores = F.leaky_relu(scores + of_edges, layer.negative_slope)
    rows = []
    for node in range(root.shape[0]):
        own = edges[1] == node
        weights = scores[own].softmax(0).unsqueeze(2)
        rows.append((weights * sources[edges[0][own]]).sum(0))
    out = torch.stack(rows)
    return (out.flatten(1) if layer.concat else out.mean(1)) + layer.bias


def assert_same(found: torch.Tensor, wanted: torch.Tensor, inputs: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, wanted)
    direction = torch.linspace(-1, 1, found.numel(), dtype=found.dtype).view_as(found)
    made = [
        torch.autograd.grad(out, inputs, direction, allow_unused=True, materialize_grads=True)
        for out in (found, wanted)
    ]
    for mine, its in zip(*made, strict=True):
        torch.testing.assert_close(mine, its)


@given(graphs(), st.integers(1, 3), st.sampled_from(["mean", "add", "max", "min", "mul", 0.5, None]))
def test_scores_have_a_term_of_features(edges: torch.Tensor, heads: int, fill: Any) -> None:
    loops = fill is not None
    torch.manual_seed(0)
    layer = nn.GATConv(
        3, 4, heads, concat=heads < 3, edge_dim=WIDTH, add_self_loops=loops, fill_value=fill or "mean"
    ).double()
    x, features = drawn(NODES, 3), drawn(edges.shape[1], WIDTH)
    whole = with_loops(edges, features, NODES, fill) if loops else (edges, features)
    inputs = [x, features, *layer.parameters()]
    assert_same(layer(x, edges, features), formula(layer, x, x, *whole), inputs)


@given(graphs(sources=4, targets=5))
def test_between_two_kinds_of_nodes(edges: torch.Tensor) -> None:
    layer = nn.GATConv((3, 2), 2, heads=2, edge_dim=1, add_self_loops=False).double()
    x, root, features = drawn(4, 3), drawn(5, 2), drawn(edges.shape[1])
    wanted = formula(layer, x, root, edges, features.unsqueeze(1))
    assert_same(layer((x, root), edges, features), wanted, [x, root, features])


EDGES = torch.tensor([[0, 1, 2, 3, 4, 2, 5, 1, 0], [1, 0, 1, 1, 2, 2, 4, 5, 5]])


@pytest.fixture
def layer() -> nn.GATConv:
    torch.manual_seed(0)
    return nn.GATConv(3, 2, heads=2, edge_dim=WIDTH).double()


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr"])
def test_features_of_a_matrix_are_in_the_order_of_its_values(layer: nn.GATConv, format: str) -> None:
    x, features = drawn(NODES, 3), drawn(EDGES.shape[1], WIDTH)
    numbers = torch.arange(1.0, EDGES.shape[1] + 1)
    A = scorch.sparse_coo_tensor(EDGES.flip(0), numbers, (NODES, NODES), format=format)
    order = A.values().long() - 1
    assert_same(layer(x, A, features[order]), layer(x, EDGES, features), [x, features])


@pytest.mark.parametrize("format", ["dsd", "ood", "ssd"])
def test_features_may_be_the_last_dimension_of_a_tensor(layer: nn.GATConv, format: str) -> None:
    x, features = drawn(NODES, 3).detach(), drawn(EDGES.shape[1], WIDTH).detach()
    dense = torch.zeros(NODES, NODES, WIDTH, dtype=torch.float64)
    dense[EDGES[1], EDGES[0]] = features
    A = scorch.from_torch(dense, format=format).requires_grad_()
    wanted = layer(x, EDGES, features.requires_grad_())
    torch.testing.assert_close(layer(x, A), wanted)
    (mine,) = torch.autograd.grad(layer(x, A).square().sum(), A)
    (its,) = torch.autograd.grad(wanted.square().sum(), features)
    torch.testing.assert_close(mine.to_dense()[EDGES[1], EDGES[0]], its)


def test_the_values_of_a_matrix_are_features_of_one_number() -> None:
    layer = nn.GATConv(3, 2, edge_dim=1).double()
    x, features = drawn(NODES, 3), drawn(EDGES.shape[1]).detach()
    A = scorch.sparse_coo_tensor(EDGES.flip(0), features, (NODES, NODES), format="csr")
    torch.testing.assert_close(layer(x, A), layer(x, EDGES, features))
    A.mul_(2)
    torch.testing.assert_close(layer(x, A), layer(x, EDGES, 2 * features))


def test_features_that_change_are_read_again(layer: nn.GATConv) -> None:
    x, features = drawn(NODES, 3), drawn(EDGES.shape[1], WIDTH).detach()
    before = layer(x, EDGES, features)
    torch.testing.assert_close(layer(x, EDGES, features), before, rtol=0, atol=0)
    features.mul_(3)
    torch.testing.assert_close(layer(x, EDGES, features), layer(x, EDGES, features.clone()))
    assert not torch.allclose(layer(x, EDGES, features), before)


def test_without_features_edges_have_no_term(layer: nn.GATConv) -> None:
    plain = nn.GATConv(3, 2, heads=2).double()
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = drawn(NODES, 3)
    torch.testing.assert_close(layer(x, EDGES), plain(x, EDGES))


def test_half_precision_is_computed_in_single(layer: nn.GATConv) -> None:
    x, features = drawn(NODES, 3).detach(), drawn(EDGES.shape[1], WIDTH).detach()
    wanted = layer(x, EDGES, features)
    found = layer.bfloat16()(x.bfloat16(), EDGES, features.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.05)


def test_wrong_features_are_refused(layer: nn.GATConv) -> None:
    x, features = drawn(NODES, 3), drawn(EDGES.shape[1], WIDTH)
    A: Any = scorch.sparse_coo_tensor(EDGES.flip(0), torch.ones(9).double(), (NODES, NODES), format="csr")
    with pytest.raises(errors.ShapeError, match=r"edge_attr has shape \(4, 2\), but the graph has 9 edges"):
        layer(x, EDGES, features[:4])
    with pytest.raises(errors.ShapeError, match=r"the graph has 9 stored entries"):
        layer(x, A, features[:4])
    with pytest.raises(errors.ShapeError, match=r"3 features, but edge_dim is 2"):
        layer(x, EDGES, drawn(EDGES.shape[1], 3))
    with pytest.raises(errors.ShapeError, match=r"1 features, but edge_dim is 2"):
        layer(x, A)
    with pytest.raises(errors.UnsupportedError, match=r"use \.to_format\('dsd'\)"):
        layer(x, scorch.from_torch(torch.ones(NODES, NODES, WIDTH).double(), format="sss"))
    with pytest.raises(errors.UnsupportedError, match=r"cannot be stored in blocks"):
        layer(x, A.to_format("bsr(2,2)"), features)
    with pytest.raises(errors.OperandError, match=r"edge_attr must be a dense tensor"):
        layer(x, EDGES, features.tolist())
    with pytest.raises(errors.ArgumentError, match=r"pass their number to GATConv as edge_dim"):
        nn.GATConv(3, 2).double()(x, EDGES, features)
    with pytest.raises(errors.ArgumentError, match=r"fill_value must be .* 'median'"):
        nn.GATConv(3, 2, edge_dim=2, fill_value="median")
    with pytest.raises(errors.ArgumentError, match=r"edge_dim must be a positive integer, but got 0"):
        nn.GATConv(3, 2, edge_dim=0)
    with pytest.raises(errors.ArgumentError, match=r"heads must be a positive integer, but got True"):
        nn.GATConv(3, 2, heads=True)


@pytest.mark.whole
@pytest.mark.parametrize("kind", [nn.GATv2Conv, nn.TransformerConv])
def test_targets_without_features_are_refused(kind: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=f"{kind.__name__} needs features of the targets"):
        kind((3, 2), 4)((torch.ones(NODES, 3), None), EDGES)
