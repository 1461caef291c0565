"""PyG's own layers with Scorch's matrices, and PyG with torch_sparse's names installed."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import scorch
from fork_server import run_python
from nn.test_graph_pyg import pyg, random_graph
from scorch.compat import pyg as compat
from scorch.compat import torch_sparse
from scorch.errors import CallError, ShapeError, UnsupportedError

torch_geometric = pytest.importorskip("torch_geometric", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("ignore")  # what PyG warns of


N = 40
_x = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def _uninstalled():
    compat.uninstall()
    yield
    compat.install()


@pytest.fixture(params=[False, True], ids=["torch", "torch_sparse"])
def _both_kinds(request: pytest.FixtureRequest):
    """PyG without torch_sparse, and with Scorch's."""
    if request.param:
        torch_sparse.install()
    yield
    if request.param:
        torch_sparse.uninstall()


def graph_without_loops() -> torch.Tensor:
    edges = random_graph(N).unique(dim=1)
    return edges[:, edges[0] != edges[1]]


def graph_with_loops() -> torch.Tensor:
    return torch.cat([graph_without_loops(), torch.arange(5).expand(2, 5)], 1).unique(dim=1)


def matrix_of(edges: torch.Tensor, weight: torch.Tensor | None = None, form: str = "csr"):
    return scorch.from_edge_index(edges, weight, size=N, format="csr").T.to_format(form)


def results(layer: torch.nn.Module, call: Any, graph: Any) -> list[torch.Tensor]:
    """What a layer returns, and the gradients of its features and parameters."""
    torch.manual_seed(1)
    x = _x.clone().requires_grad_()
    result = call(layer, x, graph)
    if not result.requires_grad:
        return [result]
    inputs = [x, *layer.parameters()]
    return [result, *torch.autograd.grad(result.square().sum(), inputs, materialize_grads=True)]


def linear(inputs: int = 5) -> torch.nn.Module:
    return torch.nn.Linear(inputs, 3)


_positions = _x[:, :3]
_degrees = torch.ones(10, dtype=torch.long)
CALLS: dict[str, Any] = {  # of modules that take more than features and a graph
    "GCN2Conv": lambda layer, x, graph: layer(x, x, graph),
    "FAConv": lambda layer, x, graph: layer(x, x, graph),
    "PointNetConv": lambda layer, x, graph: layer(x, _positions, graph),
    "PointTransformerConv": lambda layer, x, graph: layer(x, _positions, graph),
    "PPFConv": lambda layer, x, graph: layer(x, _positions, _positions, graph),
    "SignedConv": lambda layer, x, graph: layer(x, graph, graph),
    "DNAConv": lambda layer, x, graph: layer(torch.stack([x[:, :4]] * 2, 1), graph),
    "WLConv": lambda layer, x, graph: layer(torch.arange(N) % 4, graph),
    "LabelPropagation": lambda layer, x, graph: layer(torch.arange(N) % 3, graph),
    "LightGCN": lambda layer, x, graph: layer.get_embedding(graph),
    "TopKPooling": lambda layer, x, graph: layer(x, graph)[0],
    "SAGPooling": lambda layer, x, graph: layer(x, graph)[0],
    "ASAPooling": lambda layer, x, graph: layer(x, graph)[0],
    "EdgePooling": lambda layer, x, graph: layer(x, graph, torch.zeros(N, dtype=torch.long))[0],
    "pair of features": lambda layer, x, graph: layer((x, x[:, :2]), graph),
    "static graph": lambda layer, x, graph: layer(torch.stack([x, 2 * x]), graph),
    "by name": lambda layer, x, graph: layer(x=x, edge_index=graph),
}
SIMPLE = (  # that are created by the numbers of features
    "ARMAConv", "ClusterGCNConv", "FeaStConv", "FiLMConv", "GATConv", "GATv2Conv", "GCNConv", "GENConv",
    "GeneralConv", "GraphConv", "HypergraphConv", "LEConv", "MFConv", "MixHopConv", "PPFConv",
    "PointTransformerConv", "ResGatedGraphConv", "SAGEConv", "SGConv", "SuperGATConv", "TAGConv",
    "TransformerConv",
)  # fmt: skip
MODULES: dict[str, Any] = {
    **{name: lambda name=name: getattr(pyg, name)(5, 3) for name in SIMPLE if name != "PPFConv"},
    **{name: lambda name=name: getattr(pyg, name)(5) for name in ("AntiSymmetricConv", "CGConv", "FAConv")},
    **{name: lambda name=name: getattr(pyg, name)() for name in ("AGNNConv", "LGConv", "SimpleConv")},
    "WLConv": lambda: pyg.WLConv(),
    **{f"SAGEConv {aggr}": lambda aggr=aggr: pyg.SAGEConv(5, 3, aggr=aggr)
       for aggr in ("sum", "max", "min", "mul", "std", "median", "softmax", ["mean", "max"])},
    **{f"GraphConv {aggr}": lambda aggr=aggr: pyg.GraphConv(5, 3, aggr=aggr) for aggr in ("mean", "max")},
    **{name: lambda name=name: getattr(pyg, name)(5, 8, 2, 3, jk="cat") for name in ("GCN", "GAT", "GIN")},
    "GraphSAGE": lambda: pyg.GraphSAGE(5, 8, 2, 3, jk="max"),
    "EdgeCNN": lambda: pyg.EdgeCNN(5, 8, 2, 3),
    "APPNP": lambda: pyg.APPNP(2, 0.1),
    "ChebConv": lambda: pyg.ChebConv(5, 3, K=2),
    "DNAConv": lambda: pyg.DNAConv(4),
    "DirGNNConv": lambda: pyg.DirGNNConv(pyg.SAGEConv(5, 3)),
    "EGConv": lambda: pyg.EGConv(5, 4, num_heads=2),
    "EdgeConv": lambda: pyg.EdgeConv(linear(10)),
    "GCN2Conv": lambda: pyg.GCN2Conv(5, 0.1),
    "GINConv": lambda: pyg.GINConv(linear()),
    "GatedGraphConv": lambda: pyg.GatedGraphConv(5, 2),
    "LINKX": lambda: pyg.LINKX(N, 5, 4, 3, 1),
    "LabelPropagation": lambda: pyg.LabelPropagation(2, 0.9),
    "LightGCN": lambda: pyg.LightGCN(N, 4, 2),
    "PMLP": lambda: pyg.PMLP(5, 4, 3, 2).eval(),
    "PNAConv": lambda: pyg.PNAConv(5, 4, ["mean", "max"], ["identity"], deg=_degrees),
    "PPFConv": lambda: pyg.PPFConv(linear(9)),
    "PointNetConv": lambda: pyg.PointNetConv(linear(8)),
    "SSGConv": lambda: pyg.SSGConv(5, 3, 0.1),
    "Sequential": lambda: pyg.Sequential(
        "x, edges", [(pyg.SAGEConv(5, 4), "x, edges -> x"), (pyg.GraphConv(4, 3), "x, edges -> x")]
    ),
    "SignedConv": lambda: pyg.SignedConv(5, 3, first_aggr=True),
    "SimpleConv with loops": lambda: pyg.SimpleConv(combine_root="self_loop"),
    "WLConvContinuous": lambda: pyg.WLConvContinuous(),
    "TopKPooling": lambda: pyg.TopKPooling(5),
    "SAGPooling": lambda: pyg.SAGPooling(5),
    "ASAPooling": lambda: pyg.ASAPooling(5),
    "EdgePooling": lambda: pyg.EdgePooling(5, dropout=0.0),
    "GraphUNet": lambda: pyg.GraphUNet(5, 4, 3, 2),
    "pair of features": lambda: pyg.SAGEConv((5, 2), 3),
    "static graph": lambda: pyg.GCNConv(5, 3),
    "by name": lambda: pyg.SAGEConv(5, 3),
}  # fmt: skip


@pytest.mark.usefixtures("_both_kinds")
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_pyg_take_scorch_s_matrices(name: str) -> None:
    call = CALLS.get(name, lambda layer, x, graph: layer(x, graph))
    graphs = (graph_without_loops(), ("csr", "coo")), (graph_with_loops(), ("csc",))
    for edges, forms in graphs:
        torch.manual_seed(0)
        module = MODULES[name]()
        expected = results(module, call, edges)
        for form in forms:
            found = results(module, call, matrix_of(edges, form=form))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.whole
@pytest.mark.usefixtures("_both_kinds")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GCNConv", {}),
        ("GraphConv", {}),
        ("GraphConv", {"aggr": "mean"}),
        ("GraphConv", {"aggr": "max"}),
        ("SGConv", {"K": 2}),
        ("TAGConv", {}),
        ("ChebConv", {"K": 2}),
        ("ARMAConv", {}),
        ("SAGEConv", {}),  # takes no weights
        ("GATConv", {"edge_dim": 1}),
    ],
)
def test_values_are_weights_of_edges_with_gradients(name: str, options: dict[str, Any]) -> None:
    for edges in (graph_without_loops(), graph_with_loops()):
        torch.manual_seed(0)
        layer, weight = getattr(pyg, name)(5, 3, **options), torch.rand(edges.shape[1]) + 0.5
        matrix = matrix_of(edges, weight).requires_grad_()
        weight.requires_grad_()
        option = {"GATConv": "edge_attr", "SAGEConv": None}.get(name, "edge_weight")
        expected = layer(_x, edges, **({option: weight} if option else {}))
        found = layer(_x, matrix)
        torch.testing.assert_close(found, expected)
        found.square().sum().backward()
        if option is None:
            assert matrix.grad is None
            continue
        expected.square().sum().backward()
        dense = torch.zeros(N, N).index_put((edges[1], edges[0]), weight.grad)
        torch.testing.assert_close(matrix.grad.to_dense(), dense, rtol=1e-4, atol=1e-4)


def test_edges_may_have_types_and_features() -> None:
    edges = graph_with_loops()
    types, features = torch.arange(edges.shape[1]) % 3, torch.rand(edges.shape[1], 4)
    relations = pyg.RGCNConv(5, 3, num_relations=3)
    torch.testing.assert_close(relations(_x, matrix_of(edges, types)), relations(_x, edges, types))
    matrix = scorch.from_coordinates(edges.flip(0), features, (N, N, 4), format="dsd")
    for layer in (pyg.GINEConv(linear(), edge_dim=4), pyg.GATv2Conv(5, 3, edge_dim=4)):
        torch.testing.assert_close(layer(_x, matrix), layer(_x, edges, edge_attr=features))


def test_matrices_may_be_bipartite_or_of_another_dtype() -> None:
    edges, layer = torch.tensor([[0, 6, 3, 3], [0, 1, 1, 2]]), pyg.SAGEConv((5, 5), 3, root_weight=False)
    matrix = scorch.from_edge_index(edges, size=(7, 4), format="csr").T
    for aggr in (layer, pyg.GATConv((5, 5), 3, add_self_loops=False)):
        expected = aggr((_x[:7], None), edges, size=(7, 4))
        torch.testing.assert_close(aggr((_x[:7], None), matrix), expected)
    edges = graph_without_loops()
    for dtype in (torch.bool, torch.int64, torch.float64):
        for layer in (pyg.GCNConv(5, 3), pyg.SAGEConv(5, 3)):
            torch.testing.assert_close(layer(_x, matrix_of(edges).to(dtype)), layer(_x, edges))


def test_a_matrix_of_other_nodes_is_refused() -> None:
    x, adj = torch.ones(4, 3), scorch.eye(4, format="csr")
    expected = r"\(targets, sources\) = \(4, 4\), to match x, but got \(2, 4\)"
    for layer in (pyg.GCNConv(3, 2), pyg.SAGEConv(3, 2), pyg.GATConv(3, 2)):
        with pytest.raises(ShapeError, match=expected):
            layer(x, adj[:2])
        with pytest.raises(ShapeError, match=r"= \(3, 3\).*pass the number of nodes as size="):
            layer(x[:3], adj)
    assert pyg.SAGEConv(3, 2)((x, x[:2]), adj[:2]).shape == (2, 2)


def test_matrices_of_hyperedges_and_of_the_user_s_own_layers_may_be_rectangular() -> None:
    class Gather(pyg.MessagePassing):
        def forward(self, x: torch.Tensor, edge_index: Any, size: Any = None) -> torch.Tensor:
            return self.propagate(edge_index, x=(x, None), size=size or (4, 2))

    edges = torch.tensor([[0, 1, 2, 1, 2, 3], [0, 0, 0, 1, 1, 1]])
    x, matrix = torch.rand(4, 3), scorch.from_edge_index(edges, size=(4, 2), format="csr").T
    for layer in (pyg.HypergraphConv(3, 2), Gather()):
        torch.testing.assert_close(layer(x, matrix), layer(x, edges))


def test_heterogeneous_graphs_may_be_dicts_of_matrices() -> None:
    edges, kinds = graph_without_loops(), [("a", "to", "b"), ("b", "to", "a")]
    x, graphs = {"a": _x, "b": 2 * _x}, dict.fromkeys(kinds, edges)
    matrices = dict.fromkeys(kinds, matrix_of(edges))
    for layer in (
        pyg.HeteroConv({kind: pyg.SAGEConv(5, 3) for kind in kinds}),
        pyg.HGTConv(5, 4, (["a", "b"], kinds)),
        pyg.HANConv(5, 4, (["a", "b"], kinds)),
    ):
        torch.testing.assert_close(layer(x, matrices), layer(x, graphs))


class Doubled(pyg.MessagePassing):
    """A layer of the user's own, which only knows matrices of torch_sparse."""

    def forward(self, x, edge_index, edge_weight=None):
        return self.propagate(edge_index, x=x, edge_weight=edge_weight)

    def message(self, x_j, edge_weight):
        return 2 * (x_j if edge_weight is None else edge_weight.view(-1, 1) * x_j)

    def message_and_aggregate(self, adj_t, x):
        raise NotImplementedError


def test_layers_of_the_user_s_own_get_edges() -> None:
    edges, layer = graph_without_loops(), Doubled()
    torch.testing.assert_close(layer(_x, matrix_of(edges)), layer(_x, edges))
    weight = torch.rand(edges.shape[1])
    torch.testing.assert_close(layer(_x, matrix_of(edges, weight)), layer(_x, edges, weight))
    layer = Doubled(flow="target_to_source")
    torch.testing.assert_close(layer(_x, matrix_of(edges)), layer(_x, edges))


def test_layers_of_pyg_compile() -> None:
    edges, layer = graph_without_loops(), pyg.GCN(5, 4, 1, 3)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(_x, edges), layer(_x, edges))
    for graph in (matrix_of(edges), matrix_of(edges, torch.rand(edges.shape[1]))):
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend="aot_eager", dynamic=False, fullgraph=True)
        torch.testing.assert_close(compiled(_x, graph), layer(_x, graph))


def test_values_of_one_are_no_features_of_edges() -> None:
    edges, layer = graph_without_loops(), pyg.GATConv(5, 3, edge_dim=1)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", dynamic=False)
    torch.testing.assert_close(compiled(_x, matrix_of(edges)), layer(_x, edges))


@pytest.mark.parametrize("order", ["scorch, torch_geometric", "torch_geometric, scorch"])
def test_importing_both_is_enough(order: str) -> None:
    program = f"""
import warnings
warnings.simplefilter("ignore")
import sys, importlib, torch
import {order}
import torch_geometric.nn as pyg
x, edges = torch.randn(4, 5), torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
layer, matrix = pyg.SAGEConv(5, 3), scorch.from_edge_index(edges, size=4).T
print(torch.allclose(layer(x, matrix), layer(x, edges), atol=1e-6))
print(type(torch_geometric.__loader__).__name__, type(torch_geometric.__spec__.loader).__name__)
print([type(finder).__name__ for finder in sys.meta_path if "scorch" in type(finder).__module__])
importlib.reload(scorch)
scorch.compat.pyg.uninstall()
try:
    layer(x, matrix)
except ValueError:
    print("PyG's error")
"""
    lines = run_python(["-c", program]).stdout.splitlines()
    assert lines == ["True", "SourceFileLoader SourceFileLoader", "['AliasFinder']", "PyG's error"]


def test_other_versions_of_pyg_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "torch_geometric.py").write_text("import torch\n", encoding="utf-8")
    program = f"""
import sys, scorch
try:
    import torch_geometric_missing
except ImportError:
    pass
sys.path.insert(0, {str(tmp_path)!r})
import torch_geometric
print(torch_geometric.torch.__name__)
try:
    scorch.compat.pyg.install()
except ImportError as error:
    print(error)
"""
    lines = run_python(["-c", program]).stdout.splitlines()
    assert lines[0] == "torch" and "torch_geometric" in lines[1]


class Multiplying(torch_geometric.nn.MessagePassing):
    """A layer of the user's own that needs no PyG to multiply."""

    def forward(self, x, edge_index):
        return edge_index.matmul(x)


def test_errors_about_matrices_of_torch_sparse_say_to_install_it() -> None:
    edges = graph_without_loops()
    matrix = torch_sparse.SparseTensor.from_scorch(matrix_of(edges))
    for layer in (pyg.GraphConv(5, 2), pyg.TopKPooling(5)):
        with pytest.raises((ValueError, AttributeError)) as caught:
            layer(_x, matrix)
        assert "scorch.compat.torch_sparse.install()" in "".join(traceback.format_exception(caught.value))
    torch.testing.assert_close(Multiplying()(_x, matrix), matrix_of(edges) @ _x)
    torch_sparse.install()
    try:
        with pytest.raises(RuntimeError) as caught:
            pyg.GraphConv(4, 2)(_x, matrix)  # wrong for another reason
        torch.testing.assert_close(pyg.SimpleConv()(_x, matrix), matrix_of(edges) @ _x)
    finally:
        torch_sparse.uninstall()
    assert "install()" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.usefixtures("_uninstalled")
def test_uninstall_takes_everything_back() -> None:
    edges = graph_without_loops()
    with pytest.raises(ValueError, match="integer type"):
        pyg.SAGEConv(5, 3)(_x, matrix_of(edges))
    with pytest.raises(CallError, match=r"cat.* after scorch\.compat\.pyg\.install\(\)"):
        pyg.GCNConv(5, 3)(_x, matrix_of(edges))
    for module in (pyg.MessagePassing, pyg.DirGNNConv, pyg.TopKPooling):
        assert "__call__" not in vars(module)
    compat.install()
    compat.install()  # again, which changes nothing
    assert pyg.SAGEConv(5, 3)(_x, matrix_of(edges)).shape == (N, 3)


def test_pyg_runs_on_scorch_s_kernels() -> None:
    program = """
import torch, warnings
warnings.simplefilter("ignore")
import scorch
from scorch.compat import pyg, torch_sparse
torch_sparse.install()
import torch_geometric
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GCNConv, SAGEConv
pyg.install()
edges = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
x, matrix = torch.randn(4, 5), scorch.from_edge_index(edges, size=4).T
for layer in (GCNConv(5, 3), SAGEConv(5, 3, aggr="max")):
    adj_t = torch_sparse.SparseTensor.from_scorch(matrix)
    print([torch.allclose(layer(x, graph), layer(x, edges), atol=1e-6) for graph in (matrix, adj_t)])
    torch.jit.script(layer)
data = torch_geometric.data.Data(x=x, edge_index=edges)
batch = next(iter(NeighborLoader(data, [-1, -1], batch_size=2)))
print(batch.n_id[:2].tolist(), torch.equal(batch.x, x[batch.n_id]))
torch_sparse.uninstall()
try:
    next(iter(NeighborLoader(data, [-1, -1], batch_size=2)))
except ImportError as error:
    print("requires" in str(error))
"""
    lines = run_python(["-c", program]).stdout.splitlines()
    assert lines == ["[True, True]", "[True, True]", "[0, 1] True", "True"]


def test_torch_sparse_may_be_installed_after_pyg() -> None:
    typing, placeholder = torch_geometric.typing, torch_geometric.typing.SparseTensor
    edges, x = graph_without_loops(), torch.randn(40, 5)
    data, layer = torch_geometric.data.Data(x=x, edge_index=edges), pyg.GCNConv(5, 3)
    torch_sparse.install()
    try:
        assert typing.SparseTensor is torch_sparse.SparseTensor and typing.torch_sparse is torch_sparse
        assert pyg.GCNConv.forward.__annotations__["edge_index"] == torch.Tensor | typing.SparseTensor
        assert pyg.GCNConv.__annotations__["_cached_adj_t"] == typing.SparseTensor | None
        adj_t = torch_geometric.transforms.ToSparseTensor()(data.clone()).adj_t
        assert isinstance(adj_t, torch_sparse.SparseTensor)
        torch.testing.assert_close(layer(x, adj_t), layer(x, edges))
        batch = next(iter(torch_geometric.loader.NeighborLoader(data, [-1], batch_size=2)))
        assert batch.n_id[:2].tolist() == [0, 1]
    finally:
        torch_sparse.uninstall()
    assert typing.SparseTensor is placeholder and not typing.WITH_TORCH_SPARSE
    assert pyg.GCNConv.forward.__annotations__["edge_index"] == torch.Tensor | placeholder


def test_calls_of_layers_can_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, seen = pyg.GCNConv(5, 3), []
    with monkeypatch.context() as patch:  # as torch.fx does while it traces
        patch.setattr(torch.nn.Module, "__call__", lambda module, *args: seen.append(module))
        layer(torch.randn(40, 5), graph_without_loops())
    assert seen == [layer]


def graph_of(nodes: int, form: str = "csr", key: str = "adj_t"):
    """A graph of PyG's with its adjacency matrix in one of Scorch's formats."""
    weight = torch.rand(nodes, nodes) * (torch.rand(nodes, nodes) < 0.5)
    matrix = scorch.tensor(weight, format=form)
    return torch_geometric.data.Data(x=torch.randn(nodes, 5), **{key: matrix})


@pytest.mark.parametrize(("form", "key"), [("csr", "adj_t"), ("coo", "adj"), ("csc", "edge_index")])
def test_batches_of_graphs_have_a_block_diagonal_matrix(form: str, key: str) -> None:
    graphs = [graph_of(nodes, form, key) for nodes in (3, 1, 4)]
    batch = next(iter(torch_geometric.loader.DataLoader(graphs, batch_size=3)))
    blocks = [graph[key].to_dense() for graph in graphs]
    assert isinstance(batch[key], scorch.SparseTensor)
    assert torch.equal(batch[key].to_dense(), torch.block_diag(*blocks))
    for i, block in enumerate(blocks):
        assert torch.equal(batch[i][key].to_dense(), block)


def test_a_layer_of_a_batch_is_that_of_its_graphs() -> None:
    graphs, layer = [graph_of(3), graph_of(5)], pyg.GraphConv(5, 2)
    weight = graphs[0].adj_t.requires_grad_()
    batch = torch_geometric.data.Batch.from_data_list(graphs)
    assert batch.num_edges == sum(graph.adj_t.nnz for graph in graphs)
    found = layer(batch.x, batch.adj_t)
    torch.testing.assert_close(found, torch.cat([layer(graph.x, graph.adj_t) for graph in graphs]))
    found.sum().backward()
    assert weight.grad.nnz == weight.nnz


def test_hetero_graphs_and_datasets_in_memory_keep_their_matrices() -> None:
    graphs = [torch_geometric.data.HeteroData(user={"x": torch.randn(n, 2)}) for n in (2, 3)]
    for graph in graphs:
        graph["user", "likes", "item"].adj_t = scorch.ones(4, graph["user"].num_nodes, format="csr")
    batch = torch_geometric.data.Batch.from_data_list(graphs)
    assert batch["user", "likes", "item"].adj_t.shape == (8, 5)
    assert batch[1]["user", "likes", "item"].adj_t.shape == (4, 3)
    dataset = torch_geometric.data.InMemoryDataset()
    dataset.data, dataset.slices = dataset.collate([graph_of(3), graph_of(4)])
    assert [dataset[i].adj_t.shape for i in (0, 1)] == [(3, 3), (4, 4)]


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_loaders_sample_from_a_matrix(form: str) -> None:
    edges = graph_without_loops()
    matrix = matrix_of(edges, torch.rand(edges.shape[1]), form)
    data = torch_geometric.data.Data(x=_x, adj_t=matrix)
    torch_sparse.install()
    try:
        (whole,) = torch_geometric.loader.NeighborLoader(data, [-1, -1], batch_size=N)
        part = next(iter(torch_geometric.loader.NeighborLoader(data, [-1, -1], batch_size=3)))
        few = next(iter(torch_geometric.loader.NeighborLoader(data, [1], batch_size=3)))
    finally:
        torch_sparse.uninstall()
    assert whole.adj_t.format == part.adj_t.format == matrix.format
    assert torch.equal(whole.adj_t.to_dense(), matrix.to_dense())
    layer = pyg.GraphSAGE(5, 4, num_layers=2)
    torch.testing.assert_close(layer(part.x, part.adj_t)[:3], layer(_x, matrix)[:3])
    taken = matrix.to_dense()[few.n_id][:, few.n_id]
    assert few.adj_t.shape == taken.shape and 0 < few.adj_t.nnz <= 3
    assert torch.equal(few.adj_t.to_dense(), taken.where(few.adj_t.to_dense() != 0, 0.0))


def test_loaders_sample_from_matrices_of_hetero_graphs() -> None:
    data = torch_geometric.data.HeteroData(user={"x": torch.randn(4, 2)}, item={"x": torch.randn(3, 2)})
    data["user", "likes", "item"].adj_t = scorch.rand(3, 4, density=0.6, format="csr")
    torch_sparse.install()
    try:
        loader = torch_geometric.loader.NeighborLoader(data, [-1], batch_size=3, input_nodes="item")
        (batch,) = loader
    finally:
        torch_sparse.uninstall()
    found = batch["user", "likes", "item"].adj_t
    wanted = data["user", "likes", "item"].adj_t.to_dense()[:, batch["user"].n_id]
    assert torch.equal(found.to_dense(), wanted)


def test_the_loader_of_a_matrix_takes_one_of_scorch() -> None:
    matrix = matrix_of(graph_without_loops())
    options = {"sizes": [-1], "batch_size": 3}
    with pytest.raises(CallError, match=r"torch_sparse\.install\(\)"):
        torch_geometric.loader.NeighborSampler(matrix, **options)
    torch_sparse.install()
    try:
        _, nodes, found = next(iter(torch_geometric.loader.NeighborSampler(matrix, **options)))
    finally:
        torch_sparse.uninstall()
    assert torch.equal(found.adj_t.to_dense(), matrix.to_dense()[:3][:, nodes])


@pytest.mark.parametrize("kind", [torch_sparse.SparseTensor.from_scorch, lambda matrix: matrix])
def test_loaders_that_need_edges_say_so(kind: Any) -> None:
    loader, edges = torch_geometric.loader, graph_without_loops()
    data = torch_geometric.data.Data(x=_x, adj_t=kind(matrix_of(edges)))
    with pytest.raises(UnsupportedError, match=r"ClusterData needs an edge_index"):
        loader.ClusterData(data, num_parts=2)
    with pytest.raises(UnsupportedError, match=r"the matrix adj_t instead.*data\.adj_t\.coo\(\)"):
        loader.GraphSAINTRandomWalkSampler(data, batch_size=2, walk_length=2)
    row, col, _ = data.adj_t.coo()  # what the error says
    data.edge_index = torch.stack([col, row])
    del data.adj_t
    torch_sparse.install()
    try:
        (part,) = loader.GraphSAINTRandomWalkSampler(data, batch_size=2, walk_length=2)
    finally:
        torch_sparse.uninstall()
    assert {tuple(edge) for edge in data.edge_index.T.tolist()} == {tuple(edge) for edge in edges.T.tolist()}
    assert part.edge_index.numel() == 0 or part.edge_index.max() < part.num_nodes <= N


def test_parts_of_graphs_have_part_of_the_matrix() -> None:
    data = graph_of(5)
    nodes = torch.tensor([3, 0, 4])
    dense = data.adj_t.to_dense()
    part = data.subgraph(nodes)
    assert torch.equal(part.adj_t.to_dense(), dense[nodes][:, nodes])
    assert part.adj_t.format == data.adj_t.format
    mask = torch.tensor([True, False, True, True, False])
    assert torch.equal(data.subgraph(mask).adj_t.to_dense(), dense[mask][:, mask])
    assert torch.equal(data.adj_t.to_dense(), dense)
    for batch in torch_geometric.loader.RandomNodeLoader(data, num_parts=2, shuffle=True):
        assert batch.adj_t.shape == (len(batch.x),) * 2


def test_parts_of_hetero_graphs_have_part_of_the_matrix() -> None:
    data = torch_geometric.data.HeteroData(user={"x": torch.randn(4, 2)}, item={"x": torch.randn(3, 2)})
    data["user", "likes", "item"].adj_t = likes = scorch.rand(3, 4, density=0.6, format="csr")
    part = data.subgraph({"user": torch.tensor([2, 0])})
    assert torch.equal(part["user", "likes", "item"].adj_t.to_dense(), likes.to_dense()[:, [2, 0]])
    assert data["user", "likes", "item"].adj_t is likes


@pytest.mark.parametrize("workers", [0, 1])
def test_sparse_features_are_concatenated(workers: int) -> None:
    features = [scorch.eye(nodes, 5, format="csr") for nodes in (2, 3)]
    graphs = [torch_geometric.data.Data(x=x, adj_t=scorch.eye(x.shape[0], format="csr")) for x in features]
    batch = next(iter(torch_geometric.loader.DataLoader(graphs, batch_size=2, num_workers=workers)))
    assert torch.equal(batch.adj_t.to_dense(), torch.eye(5))
    assert torch.equal(batch.x.to_dense(), torch.cat(features).to_dense())
    assert torch.equal(batch[1].x.to_dense(), features[1].to_dense())


class StackedGraph(torch_geometric.data.Data):
    """A graph whose matrix is to be stacked like features."""

    def __cat_dim__(self, key, value, *args, **kwargs):
        return 0


def test_a_graph_may_say_otherwise() -> None:
    graphs = [StackedGraph(adj_t=scorch.eye(3, format="csr"), num_nodes=3) for _ in range(2)]
    assert torch_geometric.data.Batch.from_data_list(graphs).adj_t.shape == (6, 3)


@pytest.mark.whole
@pytest.mark.usefixtures("_uninstalled")
@pytest.mark.parametrize(("key", "sizes"), [("adj_t", (3, 3)), ("edge_index", (3, 3)), ("adj", (3, 4))])
def test_matrices_are_not_batched_as_features(key: str, sizes: tuple[int, int]) -> None:
    graphs = [graph_of(nodes, key=key) for nodes in sizes]
    with pytest.raises(CallError, match=rf"'{key}' as an adjacency matrix.*scorch.compat.pyg.install"):
        torch_geometric.data.Batch.from_data_list(graphs)
    assert torch.cat([graphs[0][key]] * 2).shape == (6, 3)  # which only the batch is not
