"""Networks of graph layers inside of ``torch.compile`` and ``torch.export``: one graph, the same numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import scorch
from fork_server import run_python
from scorch import nn
from scorch._src.ops.graph import graph as graphs

LAYERS: dict[str, Callable[[int, int], torch.nn.Module]] = {
    "GCN": lambda i, o: nn.GCNConv(i, o),
    "GCN, cached": lambda i, o: nn.GCNConv(i, o, cached=True),
    "SAGE mean": lambda i, o: nn.SAGEConv(i, o),
    "SAGE max": lambda i, o: nn.SAGEConv(i, o, aggr="max", project=True),
    "GIN": lambda i, o: nn.GINConv(torch.nn.Linear(i, o), train_eps=True),
    "GAT": lambda i, o: nn.GATConv(i, o, heads=2, concat=False, residual=True),
    "GATv2": lambda i, o: nn.GATv2Conv(i, o, heads=2, concat=False),
    "Transformer": lambda i, o: nn.TransformerConv(i, o, heads=2, concat=False),
    "GAT, weights of edges": lambda i, o: nn.GATConv(i, o, heads=2, concat=False, edge_dim=1),
}


class Network(torch.nn.Module):
    """Two layers; the graph is an argument or a buffer."""

    def __init__(self, kind: str, graph: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = LAYERS[kind](5, 8), LAYERS[kind](8, 3)
        self.register_buffer("adjacency", graph)

    def forward(self, x: torch.Tensor, graph: Any = None) -> torch.Tensor:
        given = self.adjacency if graph is None else graph
        hidden = F.dropout(torch.relu(self.first(x, given)), 0.5, self.training)
        found: torch.Tensor = self.second(hidden, given)
        return found


def drawn(nodes: int, edges: int, form: str, seed: int = 0) -> tuple[torch.Tensor, Any]:
    """Features and a graph as an edge_index or as a matrix of a format."""
    draw = torch.Generator().manual_seed(seed + nodes)
    x = torch.randn(nodes, 5, generator=draw)
    edge_index = torch.randint(nodes, (2, edges), generator=draw)
    if form == "edge_index":
        return x, edge_index
    return x, scorch.from_edge_index(edge_index, size=nodes, format=form).to(torch.float32)


def gradients(network: torch.nn.Module, call: Any, x: torch.Tensor, graph: Any) -> list[torch.Tensor]:
    """The result and all gradients; dropout draws the same numbers each time."""
    x = x.clone().requires_grad_()
    torch.manual_seed(7)
    out = call(x, graph)
    inputs = [x, *network.parameters()]
    found = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True, materialize_grads=True)
    return [out.detach(), *found]


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch.compiler.reset()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["csr", "coo", "edge_index"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_network_is_compiled_whole_and_learns_the_same(kind: str, form: str) -> None:
    network = Network(kind)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    x, graph = drawn(10, 30, form)
    for network_mode in (network.train, network.eval):
        network_mode()
        wanted, found = (gradients(network, call, x, graph) for call in (network, compiled))
        for mine, its in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, its)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
@pytest.mark.parametrize("kind", ["GCN", "SAGE max", "GAT"])
def test_a_network_compiled_to_machine_code_gives_the_same(kind: str) -> None:
    network = Network(kind).eval()
    x, graph = drawn(10, 30, "csr")
    compiled = torch.compile(network, fullgraph=True)
    wanted, found = (gradients(network, call, x, graph) for call in (network, compiled))
    for mine, its in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["csr", "edge_index"])
@pytest.mark.parametrize("kind", ["GCN", "SAGE mean", "SAGE max", "GIN", "GAT", "GAT, weights of edges"])
def test_other_graphs_are_compiled_once_more_at_most(kind: str, form: str) -> None:
    network, counter = Network(kind).eval(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(network, fullgraph=True, backend=counter)
    for nodes, edges in ((10, 30), (12, 41), (15, 50), (9, 22)):
        x, graph = drawn(nodes, edges, form)
        wanted, found = (gradients(network, call, x, graph) for call in (network, compiled))
        for mine, its in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, its)
    assert counter.frame_count <= 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", ["csr", "coo", "edge_index"])
def test_a_compiled_network_reads_a_graph_once(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = torch.nn.ModuleList([Network("GCN"), Network("GAT")])
    x, graph = drawn(10, 30, form)
    compiled = torch.compile(lambda: sum(part(x, graph).sum() for part in network), backend="aot_eager")
    compiled().backward()
    made: list[Any] = []
    before = graphs.Graph.__init__
    monkeypatch.setattr(
        graphs.Graph, "__init__", lambda self, *args: (made.append(1), before(self, *args))[1]
    )
    compiled().backward()
    assert not made


@pytest.mark.parametrize("kind", ["GCN", "SAGE max", "GAT"])
def test_a_whole_step_is_compiled(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compile(torch.relu, backend="eager")(torch.ones(1))  # loads torch's settings
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("this torch does not compile backward() itself")
    monkeypatch.setattr(torch._dynamo.config, "trace_autograd_ops", True)
    network = Network(kind).eval()
    x, graph = drawn(10, 30, "csr")

    def step() -> torch.Tensor:
        loss = network(x, graph).square().sum()
        loss.backward()
        return loss.detach()

    results = []
    for call in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        network.zero_grad()
        results.append([call(), *(weight.grad.clone() for weight in network.parameters())])
    for mine, its in zip(*results, strict=True):
        torch.testing.assert_close(mine, its)


def test_a_compiled_network_is_trained() -> None:
    results = []
    for is_compiled in (False, True):
        network = Network("GCN")
        call = torch.compile(network, fullgraph=True, backend="aot_eager") if is_compiled else network
        optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
        x, graph = drawn(10, 30, "csr")
        torch.manual_seed(3)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(call(x, graph), torch.arange(10) % 3)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        results.append(torch.stack(losses))
    torch.testing.assert_close(*results)


def test_weights_of_edges_are_learned_in_a_compiled_layer() -> None:
    layer = nn.GCNConv(5, 3)
    x, edge_index = drawn(10, 30, "edge_index")
    weight = torch.rand(30, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found, wanted = (
        torch.autograd.grad(call(x, edge_index, weight).square().sum(), [weight, layer.lin.weight])
        for call in (compiled, layer)
    )
    for mine, its in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, its)


def test_sparse_features_and_two_kinds_of_nodes_are_compiled() -> None:
    x, graph = drawn(10, 30, "csr")
    layer = nn.GCNConv(5, 3)
    words = scorch.from_torch(x * (x > 0), format="csr")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(words, graph), layer(words, graph))
    pair = nn.SAGEConv((5, 4), 3)
    others, edges = torch.randn(7, 4), torch.stack([torch.arange(10), torch.arange(10) % 7])
    compiled = torch.compile(pair, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled((x, others), edges), pair((x, others), edges))


def test_dropout_of_attention_is_drawn_anew_and_the_same_on_the_way_back() -> None:
    layer = nn.GATConv(1, 1, heads=4, dropout=0.5, add_self_loops=False, bias=False)
    with torch.no_grad():
        layer.lin.weight.fill_(1)
    loops = torch.arange(50).repeat(2, 1)  # one neighbour each, with weight 1
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.ones(50, 1, requires_grad=True)
    first, second = compiled(x, loops), compiled(x, loops)
    assert not torch.equal(first, second)
    (found,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(found, first.detach().sum(1, keepdim=True))


# export ------------------------------------------------------------------------------------------------

LOAD = """
import torch, scorch
program, inputs, wanted = torch.load({!r}, weights_only=False)
import io
found = torch.export.load(io.BytesIO(program)).module()(*inputs)
torch.testing.assert_close(found, wanted)
"""


def exports_tensors_of_other_kinds() -> bool:
    """Whether torch itself can export, with strict=False, what is called with wrappers such as ours."""
    from torch._export import non_strict_utils

    return "SubclassSymbolicContext" in inspect.getsource(non_strict_utils)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("way", ["argument", "buffer", "edge_index"])
@pytest.mark.parametrize("kind", ["GCN", "SAGE mean", "SAGE max", "GIN", "GAT"])
def test_a_network_is_exported(kind: str, way: str, strict: bool, tmp_path: Path) -> None:
    x, graph = drawn(10, 30, "edge_index" if way == "edge_index" else "csr")
    network = Network(kind, graph if way == "buffer" else None).eval()
    inputs = (x,) if way == "buffer" else (x, graph)
    if way == "argument" and not strict and not exports_tensors_of_other_kinds():
        pytest.skip("torch 2.8 exports tensors of other kinds than its own with strict=True only")
    program = torch.export.export(network, inputs, strict=strict)
    torch.export.save(program, tmp_path / "network.pt2")
    loaded = torch.export.load(tmp_path / "network.pt2").module()
    for made in (program.module(), loaded):
        torch.testing.assert_close(made(*inputs), network(*inputs))


@pytest.mark.long
@pytest.mark.parametrize("way", ["argument", "buffer"])
def test_an_exported_network_runs_in_another_process(way: str, tmp_path: Path) -> None:
    x, graph = drawn(10, 30, "csr")
    network = Network("GAT", graph if way == "buffer" else None).eval()
    inputs = (x,) if way == "buffer" else (x, graph)
    torch.export.save(torch.export.export(network, inputs), tmp_path / "network.pt2")
    program = (tmp_path / "network.pt2").read_bytes()
    torch.save((program, inputs, network(*inputs).detach()), tmp_path / "all.pt")
    run = run_python(["-W", "ignore", "-c", LOAD.format(str(tmp_path / "all.pt"))])
    assert run.returncode == 0, run.stderr


def test_an_exported_network_takes_graphs_of_any_size() -> None:
    x, edges = drawn(10, 30, "edge_index")
    network = Network("GAT").eval()
    nodes, count = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    program = torch.export.export(network, (x, edges), dynamic_shapes=({0: nodes}, {1: count})).module()
    for sizes in ((10, 30), (17, 60)):
        x, edges = drawn(*sizes, "edge_index")
        torch.testing.assert_close(program(x, edges), network(x, edges))
