"""Matrices as graphs: arrays of edges, accessors with torch_sparse's names, and networkx both ways."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import scorch
from properties.drawing import DTYPES, SIZES, formats, tensors
from scorch import Format
from scorch.errors import OperandError, ShapeError, UnsupportedError
from validity import check_storage, dense_of

DENSE = torch.tensor([[0.0, 1.5, 0.0], [2.0, 0.0, 3.0]])


# arrays of edges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["csr", "csc", "coo", "dcsr", "sd"])
def test_arrays_of_any_format(name):
    S = scorch.from_torch(DENSE, name)
    dense = torch.zeros(2, 3)
    row, column, value = S.coo()
    dense[row, column] = value
    assert torch.equal(dense, DENSE) and row.dtype == column.dtype == torch.int64
    pointers, column, value = S.csr()
    assert torch.equal(torch.sparse_csr_tensor(pointers, column, value, (2, 3)).to_dense(), DENSE)
    pointers, row, value = S.csc()
    assert torch.equal(torch.sparse_csc_tensor(pointers, row, value, (2, 3)).to_dense(), DENSE)
    assert S.sparse_sizes() == (2, 3) and S.sparse_size(0) == 2 and S.sparse_size(1) == 3


def test_edges_have_values_of_the_other_dimensions():
    S = scorch.from_torch(torch.arange(12.0).reshape(2, 2, 3), "ood")
    row, column, value = S.coo()
    assert row.tolist() == [0, 0, 1, 1] and column.tolist() == [0, 1, 0, 1]
    assert torch.equal(value, torch.arange(12.0).reshape(4, 3))
    assert S.csc()[2].shape == (4, 3)


@given(st.data())
def test_edge_index_goes_there_and_back(data):
    shape = tuple(data.draw(st.sampled_from(SIZES)) for _ in range(2))
    form = data.draw(formats(2))
    assume(not form.is_dense)
    drawn = data.draw(tensors(shape, data.draw(st.sampled_from(DTYPES)), form))
    edges, weights = drawn.given.to_edge_index()
    assert edges.shape == (2, weights.numel()) and edges.dtype == torch.int64
    back = scorch.from_edge_index(edges, weights, shape, "csr")
    check_storage(back)
    assert torch.equal(dense_of(back), drawn.dense)


def test_vectors_have_no_edges():
    with pytest.raises(ShapeError, match=r"expected a matrix, but got a tensor of shape \(3,\)"):
        scorch.from_torch(torch.ones(3)).coo()


# values for other libraries --------------------------------------------------------------------------


@pytest.mark.cpu("NumPy shares its memory")
def test_values_go_through_dlpack_without_a_copy():
    S = scorch.from_torch(DENSE, "csr")
    array = np.from_dlpack(S.values())
    assert array.tolist() == [1.5, 2.0, 3.0]
    assert np.shares_memory(array, S.storage.values.numpy())
    assert torch.from_dlpack(S.values()).data_ptr() == S.storage.values.data_ptr()


@pytest.mark.cpu("SciPy shares its memory")
@pytest.mark.parametrize("name", ["csr", "csc", "bsr(1,3)"])
def test_torch_and_scipy_share_values_with_the_tensor(name):
    S = scorch.from_torch(DENSE, name)
    assert S.to_torch().values().data_ptr() == S.storage.values.data_ptr()
    assert scorch.from_torch(S.to_torch()).storage.values.data_ptr() == S.storage.values.data_ptr()
    pytest.importorskip("scipy.sparse")
    matrix = S.to_scipy()
    back = scorch.from_scipy(matrix)
    for ours, theirs in ((S, matrix.data), (back, matrix.data)):
        assert np.shares_memory(ours.storage.values.numpy(), theirs)
        assert not np.shares_memory(ours.storage.pattern.crd[1].numpy(), matrix.indices)
        assert not np.shares_memory(ours.storage.pattern.pos[1].numpy(), matrix.indptr)


@pytest.mark.cpu("SciPy shares its memory")
def test_coordinates_are_copied_for_scipy():
    pytest.importorskip("scipy.sparse")
    S = scorch.from_torch(DENSE, "coo")
    matrix = S.to_scipy()
    assert np.shares_memory(matrix.data, S.storage.values.numpy())
    back = scorch.from_scipy(matrix)
    for dim in range(2):
        assert not np.shares_memory(matrix.coords[dim], S.storage.pattern.crd[dim].numpy())
        assert not np.shares_memory(matrix.coords[dim], back.storage.pattern.crd[dim].numpy())


def test_numpy_arrays_come_in():
    found = scorch.tensor(DENSE.cpu().numpy(), format="csr")
    assert torch.equal(dense_of(found), DENSE)
    on_host = scorch.from_torch(torch.from_numpy(DENSE.cpu().numpy()), "dcsr")
    assert torch.equal(dense_of(on_host), DENSE.cpu())


# networkx --------------------------------------------------------------------------------------------


@pytest.fixture
def networkx():
    return pytest.importorskip("networkx", reason="networkx is not installed")


@pytest.mark.parametrize("kind", ["Graph", "DiGraph", "MultiGraph", "MultiDiGraph"])
def test_every_kind_of_graph_comes_in(networkx, kind):
    graph = getattr(networkx, kind)()
    graph.add_nodes_from("abcd")
    graph.add_weighted_edges_from([("a", "b", 2.5), ("c", "b", 1.0), ("b", "c", 4.0), ("a", "a", 3.0)])
    graph.add_edge("b", "d")
    found = scorch.from_networkx(graph)
    check_storage(found)
    assert found.format == Format("csr") and found.dtype == torch.float32
    assert np.array_equal(found.to_dense().cpu().numpy(), networkx.to_numpy_array(graph))
    order = ["d", "b", "a"]
    part = scorch.from_networkx(graph, nodes=order, format="coo")
    wanted = networkx.to_numpy_array(graph.subgraph(order), nodelist=order)
    assert np.array_equal(part.to_dense().cpu().numpy(), wanted)
    ones = scorch.from_networkx(graph, weight=None, dtype=torch.float64)
    assert np.array_equal(ones.to_dense().cpu().numpy(), networkx.to_numpy_array(graph, weight=None))


def test_graphs_go_there_and_back(networkx):
    graph = networkx.gnp_random_graph(20, 0.2, seed=1, directed=True)
    S = scorch.from_networkx(graph)
    back = S.to_networkx()
    assert back.is_directed() and set(back.nodes) == set(graph.nodes) and set(back.edges) == set(graph.edges)
    again = scorch.from_networkx(back)
    assert torch.equal(dense_of(again), dense_of(S))
    whole = scorch.from_torch(torch.tensor([[0, 2], [2, 0]]), "csr")
    assert scorch.from_networkx(scorch.to_networkx(whole)).dtype == torch.int64
    undirected = scorch.to_networkx(whole, networkx.Graph, weight="cost")
    assert undirected.edges[0, 1] == {"cost": 2} and not undirected.is_directed()


def test_empty_graphs(networkx):
    found = scorch.from_networkx(networkx.empty_graph(3))
    check_storage(found)
    assert found.shape == (3, 3) and found.nnz == 0 and found.dtype == torch.float32
    assert scorch.from_networkx(networkx.Graph()).shape == (0, 0)


def test_what_is_no_graph(networkx):
    with pytest.raises(OperandError, match="expected a networkx graph, but got a Tensor"):
        scorch.from_networkx(torch.eye(3))
    with pytest.raises(OperandError, match="contains 7, which is not a node"):
        scorch.from_networkx(networkx.path_graph(3), nodes=[0, 7])
    with pytest.raises(OperandError, match="contains a node twice"):
        scorch.from_networkx(networkx.path_graph(3), nodes=[0, 0])
    with pytest.raises(ShapeError, match=r"square matrix, but got shape \(2, 3\)"):
        scorch.from_torch(DENSE).to_networkx()
    with pytest.raises(OperandError, match="to_networkx expected a sparse tensor, but got a Tensor"):
        scorch.to_networkx(torch.eye(3))


def test_without_networkx(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(UnsupportedError, match=r"pip install networkx"):
        scorch.from_networkx(None)
