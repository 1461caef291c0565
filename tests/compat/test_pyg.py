"""PyG's own layers with Scorch's matrices, and PyG with torch_sparse's names installed."""

from __future__ import annotations

import pytest
import torch

import scorch
from fork_server import run_python
from nn.test_graph_pyg import pyg, random_graph
from scorch.compat import pyg as compat
from scorch.compat import torch_sparse
from scorch.errors import CallError

torch_geometric = pytest.importorskip("torch_geometric", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("ignore")  # what PyG warns of


def graph_without_loops() -> torch.Tensor:
    edges = random_graph(40).unique(dim=1)
    return edges[:, edges[0] != edges[1]]


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv", "TransformerConv"])
def test_layers_of_pyg_take_scorch_s_matrices(name: str, form: str) -> None:
    edges = graph_without_loops()
    layer, x = getattr(pyg, name)(5, 3), torch.randn(40, 5)
    matrix = scorch.from_edge_index(edges, size=40).T.to_format(form)
    compat.install()
    compat.install()  # again, which changes nothing
    try:
        torch.testing.assert_close(layer(x, matrix), layer(x, edges))
        torch.testing.assert_close(layer(x, edge_index=matrix), layer(x, edges))
    finally:
        compat.uninstall()
    with pytest.raises(Exception, match=r"integer type|cat"):
        layer(x, matrix)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GCNConv", {}),
        ("SGConv", {"K": 2}),
        ("FAConv", None),  # takes features twice, and no weights
        ("ChebConv", {"K": 2}),  # takes edges only
        ("DirGNNConv", None),  # takes edges only, and is no MessagePassing
    ],
)
def test_self_loops_count_once_and_layers_of_edges_get_edges(name: str, options: dict | None) -> None:
    edges, x = random_graph(40).unique(dim=1), torch.randn(40, 5)
    edges = torch.cat([edges, torch.arange(5).expand(2, 5)], 1).unique(dim=1)
    torch.manual_seed(0)
    if options is not None:
        layer = getattr(pyg, name)(5, 3, **options)
    else:
        layer = pyg.FAConv(5) if name == "FAConv" else pyg.DirGNNConv(pyg.SAGEConv(5, 3))
    features = (x, x) if name == "FAConv" else (x,)
    compat.install()
    try:
        found = layer(*features, scorch.from_edge_index(edges, size=40).T)
        torch.testing.assert_close(found, layer(*features, edges))
        if name in ("GCNConv", "ChebConv"):
            weight = torch.rand(edges.shape[1])
            weighted = scorch.from_edge_index(edges, weight, size=40, format="csr").T.requires_grad_()
            weight.requires_grad_()
            layer(x, weighted).square().sum().backward()
            layer(x, edges, weight).square().sum().backward()
            dense = torch.zeros(40, 40).index_put((edges[1], edges[0]), weight.grad)
            torch.testing.assert_close(weighted.grad.to_dense(), dense)
    finally:
        compat.uninstall()
    assert "__call__" not in vars(pyg.DirGNNConv)


def test_weights_have_gradients_in_pyg_s_layers() -> None:
    edges = graph_without_loops()
    layer, x = pyg.GraphConv(5, 3), torch.randn(40, 5)
    weight = torch.rand(edges.shape[1], requires_grad=True)
    matrix = scorch.from_edge_index(edges, weight.detach(), size=40).T.to_format("csr").requires_grad_()
    compat.install()
    try:
        layer(x, matrix).square().sum().backward()
    finally:
        compat.uninstall()
    layer(x, edges, weight).square().sum().backward()
    dense = torch.zeros(40, 40).index_put((edges[1], edges[0]), weight.grad)
    torch.testing.assert_close(matrix.grad.to_dense(), dense)


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


def test_calls_of_layers_can_be_traced_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, seen = pyg.GCNConv(5, 3), []
    compat.install()
    with monkeypatch.context() as patch:  # as torch.fx does while it traces
        patch.setattr(torch.nn.Module, "__call__", lambda module, *args: seen.append(module))
        layer(torch.randn(40, 5), graph_without_loops())
    compat.uninstall()
    assert seen == [layer]
    assert "__call__" not in vars(pyg.MessagePassing)


@pytest.fixture
def _installed():
    compat.install()
    yield
    compat.uninstall()


def graph_of(nodes: int, form: str = "csr", key: str = "adj_t"):
    """A graph of PyG's with its adjacency matrix in one of Scorch's formats."""
    weight = torch.rand(nodes, nodes) * (torch.rand(nodes, nodes) < 0.5)
    matrix = scorch.tensor(weight, format=form)
    return torch_geometric.data.Data(x=torch.randn(nodes, 5), **{key: matrix})


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(("form", "key"), [("csr", "adj_t"), ("coo", "adj"), ("csc", "edge_index")])
def test_batches_of_graphs_have_a_block_diagonal_matrix(form: str, key: str) -> None:
    graphs = [graph_of(nodes, form, key) for nodes in (3, 1, 4)]
    batch = next(iter(torch_geometric.loader.DataLoader(graphs, batch_size=3)))
    blocks = [graph[key].to_dense() for graph in graphs]
    assert isinstance(batch[key], scorch.SparseTensor)
    assert torch.equal(batch[key].to_dense(), torch.block_diag(*blocks))
    for i, block in enumerate(blocks):
        assert torch.equal(batch[i][key].to_dense(), block)


@pytest.mark.usefixtures("_installed")
def test_a_layer_of_a_batch_is_that_of_its_graphs() -> None:
    graphs, layer = [graph_of(3), graph_of(5)], pyg.GraphConv(5, 2)
    weight = graphs[0].adj_t.requires_grad_()
    batch = torch_geometric.data.Batch.from_data_list(graphs)
    assert batch.num_edges == sum(graph.adj_t.nnz for graph in graphs)
    found = layer(batch.x, batch.adj_t)
    torch.testing.assert_close(found, torch.cat([layer(graph.x, graph.adj_t) for graph in graphs]))
    found.sum().backward()
    assert weight.grad.nnz == weight.nnz


@pytest.mark.usefixtures("_installed")
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


@pytest.mark.usefixtures("_installed")
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


@pytest.mark.usefixtures("_installed")
def test_a_graph_may_say_otherwise() -> None:
    graphs = [StackedGraph(adj_t=scorch.eye(3, format="csr"), num_nodes=3) for _ in range(2)]
    assert torch_geometric.data.Batch.from_data_list(graphs).adj_t.shape == (6, 3)


@pytest.mark.whole
@pytest.mark.parametrize(("key", "sizes"), [("adj_t", (3, 3)), ("edge_index", (3, 3)), ("adj", (3, 4))])
def test_matrices_are_not_batched_as_features(key: str, sizes: tuple[int, int]) -> None:
    graphs = [graph_of(nodes, key=key) for nodes in sizes]
    with pytest.raises(CallError, match=rf"'{key}' as an adjacency matrix.*scorch.compat.pyg.install"):
        torch_geometric.data.Batch.from_data_list(graphs)
    assert torch.cat([graphs[0][key]] * 2).shape == (6, 3)  # which only the batch is not
