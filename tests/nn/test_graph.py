"""Graph layers against their formulas in dense torch: results and gradients, on any graph."""

from __future__ import annotations

import copy
import io
import types
from collections.abc import Callable
from typing import Any

import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from nn import dense_graphs as dense
from properties.drawing import FEWER
from scorch import nn
from scorch._src.ops.graph.graph import graph_of

NODES = 8


def edges(*pairs: tuple[int, int]) -> torch.Tensor:
    """From source to target."""
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()


@st.composite
def graphs(draw: Any, sources: int = NODES, targets: int = NODES) -> torch.Tensor:
    """An edge_index, perhaps empty, with loops and edges that repeat."""
    one = st.tuples(st.integers(0, sources - 1), st.integers(0, targets - 1))
    return edges(*draw(st.lists(one, max_size=30)))


def matrix(edge_index: torch.Tensor, rows: int = NODES, columns: int = NODES, format: str = "csr") -> Any:
    """Targets x sources, each pair once."""
    A = (dense.counts(edge_index, rows, columns) > 0).double()
    return scorch.from_torch(A, format=format)


def gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    direction = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    return list(torch.autograd.grad(out, inputs, direction, allow_unused=True, materialize_grads=True))


def assert_same(found: torch.Tensor, wanted: torch.Tensor, inputs: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, wanted)
    for mine, its in zip(gradients(found, inputs), gradients(wanted, inputs), strict=True):
        torch.testing.assert_close(mine, its)


def features(count: int = NODES, width: int = 5) -> torch.Tensor:
    torch.manual_seed(count + width)
    return torch.randn(count, width, dtype=torch.float64).requires_grad_()


@given(graphs(), st.booleans(), st.booleans(), st.sampled_from([2, 9]))
def test_gcn_is_its_formula(edge_index: torch.Tensor, loops: bool, bias: bool, width: int) -> None:
    layer = nn.GCNConv(5, width, add_self_loops=loops, bias=bias).double()
    x, A = features(), dense.counts(edge_index, NODES, NODES)
    whole = dense.with_loops(A) if loops else A
    assert_same(layer(x, edge_index), dense.gcn(layer, x, whole), [x, *layer.parameters()])


@given(graphs())
def test_gcn_weighs_edges(edge_index: torch.Tensor) -> None:
    layer = nn.GCNConv(5, 3, improved=True).double()
    edge_index = edge_index[:, edge_index[0] != edge_index[1]]
    x = features()
    weight = torch.rand(edge_index.shape[1], dtype=torch.float64).add_(0.1).requires_grad_()
    A = torch.zeros(NODES, NODES, dtype=torch.float64)
    A = A.index_put((edge_index[1], edge_index[0]), weight, accumulate=True)
    wanted = dense.gcn(layer, x, A + 2 * torch.eye(NODES, dtype=torch.float64))
    assert_same(layer(x, edge_index, weight), wanted, [x, weight, *layer.parameters()])
    S = scorch.from_torch(A.detach(), format="csc")
    torch.testing.assert_close(layer(x, S), wanted)


def test_gcn_keeps_the_loops_of_a_matrix() -> None:
    layer = nn.GCNConv(5, 3).double()
    x, A = features(), torch.diag(torch.tensor([3.0, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64))
    A[1, 0] = 2
    whole = A + torch.diag((A.diagonal() == 0).double())
    torch.testing.assert_close(layer(x, scorch.from_torch(A)), dense.gcn(layer, x, whole))


def test_gcn_without_normalisation_is_a_product() -> None:
    layer = nn.GCNConv(5, 3, normalize=False, bias=False).double()
    x, A = features(), torch.randn(NODES, NODES, dtype=torch.float64)
    torch.testing.assert_close(layer(x, scorch.from_torch(A)), A @ x @ layer.lin.weight.t())


@given(
    graphs(), st.sampled_from(["mean", "max", "sum"]), st.booleans(), st.booleans(), st.sampled_from([2, 9])
)
def test_sage_is_its_formula(edge_index: torch.Tensor, aggr: str, more: bool, bias: bool, width: int) -> None:
    layer = nn.SAGEConv(5, width, aggr=aggr, normalize=more, project=more, root_weight=not more, bias=bias)
    layer, x = layer.double(), features()
    wanted = dense.sage(layer, x, x, dense.counts(edge_index, NODES, NODES))
    assert_same(layer(x, edge_index), wanted, [x, *layer.parameters()])


@given(graphs(sources=6, targets=9), st.sampled_from(["mean", "max", "sum"]))
def test_sage_between_two_kinds_of_nodes(edge_index: torch.Tensor, aggr: str) -> None:
    layer = nn.SAGEConv((4, 3), 2, aggr=aggr).double()
    x = (features(6, 4), features(9, 3))
    wanted = dense.sage(layer, *x, dense.counts(edge_index, 9, 6))
    assert_same(layer(x, edge_index), wanted, [*x, *layer.parameters()])


@given(graphs(), st.integers(1, 40))
def test_the_gradient_of_a_maximum_is_shared_by_ties(edge_index: torch.Tensor, width: int) -> None:
    layer = nn.SAGEConv(width, 2, aggr="max").double()
    x = torch.randint(-1, 2, (NODES, width)).double().requires_grad_()
    A = (dense.counts(edge_index, NODES, NODES) > 0).double()
    assert_same(layer(x, matrix(edge_index)), dense.sage(layer, x, x, A), [x])


def test_edges_that_repeat_share_the_gradient_of_a_maximum() -> None:
    layer = nn.SAGEConv(1, 1, aggr="max", root_weight=False, bias=False).double()
    x = torch.ones(2, 1, dtype=torch.float64).requires_grad_()
    (found,) = torch.autograd.grad(layer(x, edges((0, 0), (0, 0), (1, 0))).sum(), x)
    torch.testing.assert_close(
        found, layer.lin_l.weight * torch.tensor([[2 / 3], [1 / 3]], dtype=torch.float64)
    )


@given(graphs(), st.booleans())
def test_gin_is_its_formula(edge_index: torch.Tensor, train_eps: bool) -> None:
    layer = nn.GINConv(torch.nn.Linear(5, 3), eps=0.3, train_eps=train_eps).double()
    x = features()
    wanted = dense.gin(layer, x, dense.counts(edge_index, NODES, NODES))
    assert_same(layer(x, edge_index), wanted, [x, *layer.parameters()])


@FEWER
@given(graphs(), st.integers(1, 17), st.integers(1, 20), st.booleans(), st.booleans(), st.booleans())
def test_gat_is_its_formula(
    edge_index: torch.Tensor, heads: int, width: int, concat: bool, loops: bool, more: bool
) -> None:
    layer = nn.GATConv(5, width, heads, concat, add_self_loops=loops, residual=more, bias=more).double()
    x, A = features(), dense.counts(edge_index, NODES, NODES)
    wanted = dense.gat(layer, x, x, dense.with_loops(A) if loops else A)
    assert_same(layer(x, edge_index), wanted, [x, *layer.parameters()])


@given(graphs(sources=6, targets=9))
def test_gat_between_two_kinds_of_nodes(edge_index: torch.Tensor) -> None:
    layer = nn.GATConv((4, 3), 2, heads=2, add_self_loops=False, residual=True).double()
    x = (features(6, 4), features(9, 3))
    wanted = dense.gat(layer, *x, dense.counts(edge_index, 9, 6))
    assert_same(layer(x, edge_index), wanted, [*x, *layer.parameters()])


def test_gat_without_features_of_targets() -> None:
    layer = nn.GATConv((4, 3), 2, add_self_loops=False).double()
    x, S = features(6, 4), matrix(edges((0, 1), (5, 1), (2, 0)), 9, 6)
    zeros = torch.zeros(9, 3, dtype=torch.float64)
    torch.testing.assert_close(layer((x, None), S), layer((x, zeros), S))
    found = layer((x, None), edges((0, 1), (5, 1), (2, 0)), size=(6, 9))
    torch.testing.assert_close(found, layer((x, zeros), S))
    assert layer((x, None), edges((0, 1))).shape == (6, 2)  # without a size, as many as sources


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "GCN": lambda: nn.GCNConv(4, 3),
    "SAGE mean": lambda: nn.SAGEConv(4, 3),
    "SAGE max": lambda: nn.SAGEConv(4, 3, aggr="max"),
    "GIN": lambda: nn.GINConv(torch.nn.Linear(4, 3), train_eps=True),
    "GAT": lambda: nn.GATConv(4, 3, heads=2),
}


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> torch.nn.Module:
    torch.manual_seed(0)
    return LAYERS[request.param]()


SOME = edges((0, 1), (1, 0), (2, 1), (3, 1), (4, 2), (2, 2), (5, 4), (6, 5), (7, 6), (0, 7))


def test_gradients_are_those_of_differences(layer: torch.nn.Module) -> None:
    layer.double()
    names = [name for name, _ in layer.named_parameters()]

    def call(x: torch.Tensor, *weights: torch.Tensor) -> Any:
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x, SOME))

    assert torch.autograd.gradcheck(call, (features(NODES, 4), *layer.parameters()))


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr", "bsr(2,2)"])
def test_matrices_of_any_format_are_graphs(layer: torch.nn.Module, format: str) -> None:
    x = torch.randn(NODES, 4)
    S = scorch.from_torch(dense.counts(SOME, NODES, NODES).float(), format="csr")
    torch.testing.assert_close(layer(x, S.to_format(format)), layer(x, SOME))


def test_torch_s_sparse_matrices_are_graphs(layer: torch.nn.Module) -> None:
    x, A = torch.randn(NODES, 4), dense.counts(SOME, NODES, NODES).float()
    for sparse in (A.to_sparse_csr(), A.to_sparse_csc(), A.to_sparse_coo()):
        torch.testing.assert_close(layer(x, sparse), layer(x, SOME))


def test_the_matrix_of_from_edge_index_is_transposed(layer: torch.nn.Module) -> None:
    x = torch.randn(NODES, 4)
    S = scorch.from_edge_index(SOME, size=NODES)
    torch.testing.assert_close(layer(x, S.T), layer(x, SOME))


def test_a_graph_that_changes_is_read_again(layer: torch.nn.Module) -> None:
    x, graph = torch.randn(NODES, 4), SOME.clone()
    before = layer(x, graph)
    torch.testing.assert_close(layer(x, graph), before)
    graph[1, 0] = 5
    torch.testing.assert_close(layer(x, graph), layer(x, graph.clone()))
    assert not torch.allclose(layer(x, graph), before)


def test_weights_that_change_are_read_again() -> None:
    layer, x = nn.GCNConv(4, 3), torch.randn(NODES, 4)
    weight = torch.rand(SOME.shape[1])
    before = layer(x, SOME, weight)
    weight[0] = 5
    torch.testing.assert_close(layer(x, SOME, weight), layer(x, SOME, weight.clone()))
    assert not torch.allclose(layer(x, SOME, weight), before)
    S = scorch.from_torch(dense.counts(SOME, NODES, NODES).float(), format="csr")
    before = layer(x, S)
    S.mul_(torch.linspace(1, 2, NODES))
    torch.testing.assert_close(layer(x, S), layer(x, S.clone()))
    assert not torch.allclose(layer(x, S), before)
    other = scorch.from_torch(torch.eye(NODES), format="csr")
    S.copy_(other)
    torch.testing.assert_close(layer(x, S), layer(x, other))


def test_a_graph_is_read_once() -> None:
    graph = SOME.clone()
    first, _ = graph_of(graph, (NODES, NODES))
    assert graph_of(graph, (NODES, NODES))[0] is first
    assert first.with_loops[0].transposed is first.with_loops[0].transposed
    S = scorch.from_edge_index(graph, size=NODES)
    assert graph_of(S, (NODES, NODES))[0] is graph_of(S * 2, (NODES, NODES))[0]  # one pattern


def test_a_symmetric_graph_is_not_kept_twice() -> None:
    both = torch.cat([SOME, SOME.flip(0)], 1).unique(dim=1)
    graph, _ = graph_of(both, (NODES, NODES))
    assert graph.transposed[0].pos is graph.pos and graph.transposed[0].crd is graph.crd
    assert graph_of(SOME, (NODES, NODES))[0].transposed[0].crd is not None


def test_a_graph_first_used_for_inference_is_learned_with(layer: torch.nn.Module) -> None:
    x, graph = torch.randn(NODES, 4), SOME.clone()
    with torch.inference_mode():
        before = layer(x, graph)
        torch.testing.assert_close(layer(x, graph.clone()), before)
        if isinstance(layer, nn.GCNConv):
            layer(x, graph, torch.ones(graph.shape[1]))
    found = layer(x.requires_grad_(), graph)
    torch.testing.assert_close(found, before.clone())
    found.sum().backward()
    if isinstance(layer, nn.GCNConv):
        layer(x, graph, torch.ones(graph.shape[1], requires_grad=True)).sum().backward()


@pytest.mark.parametrize("sizes", [(4, 3), (4, 9)])  # aggregated after and before the weight
@pytest.mark.parametrize("is_matrix", [False, True])
def test_what_is_known_of_a_warm_graph_is_not_taken_for_another(
    sizes: tuple[int, int], is_matrix: bool
) -> None:
    """Weights that change, that require gradients, or none; dtypes, grad modes and graphs that take turns."""
    torch.manual_seed(0)
    pairs = edges((0, 1), (1, 0), (2, 1), (3, 3), (5, 2))
    layer, x, other = nn.GCNConv(*sizes), torch.randn(NODES, 4), pairs.roll(1, 1)
    weight = torch.rand(5)
    given = matrix(pairs).to(torch.float32) if is_matrix else pairs

    def check() -> None:
        x.grad = weight.grad = layer.lin.weight.grad = None
        rest = () if is_matrix else (weight,)
        out = layer(x, given, *rest)
        A = given.to_dense() if is_matrix else None
        if A is None:
            A = torch.zeros(NODES, NODES, dtype=x.dtype).index_put(
                (pairs[1], pairs[0]), weight, accumulate=True
            )
        A = A + torch.diag((A.diagonal() == 0).to(A.dtype))
        factor = A.sum(1).pow(-0.5)
        expected = (factor[:, None] * A * factor) @ (x @ layer.lin.weight.T) + layer.bias
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        assert out.requires_grad is expected.requires_grad
        if not out.requires_grad:
            return
        wanted = [tensor for tensor in (x, weight, layer.lin.weight, layer.bias) if tensor.requires_grad]
        flow = torch.randn_like(out)
        found = torch.autograd.grad(out, wanted, flow, allow_unused=is_matrix)
        for one, two in zip(
            found, torch.autograd.grad(expected, wanted, flow, allow_unused=True), strict=True
        ):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)

    for change in (
        lambda: None,
        lambda: x.requires_grad_(),
        lambda: given.mul_(2) if is_matrix else weight.mul_(2),
        lambda: None if is_matrix else weight.requires_grad_(),
        lambda: weight.requires_grad_(False),
        lambda: layer(x.detach(), other),
        lambda: layer.requires_grad_(False),
        lambda: x.requires_grad_(False),
        lambda: layer.requires_grad_(True),
    ):
        change()
        for _ in range(3):
            check()
            with torch.no_grad():
                check()
    layer, x, weight = layer.double(), x.double(), weight.double()
    given = given.double() if is_matrix else given
    for _ in range(3):
        check()


def test_cached_keeps_the_first_graph() -> None:
    layer, x = nn.GCNConv(4, 3, cached=True), torch.randn(NODES, 4)
    first = layer(x, SOME)
    torch.testing.assert_close(layer(x, SOME.flip(0).contiguous()), first)
    layer.double()
    torch.testing.assert_close(layer(x.double(), SOME).float(), first)


@pytest.mark.parametrize("name", ["GCN", "SAGE mean", "GAT"])
def test_sparse_features_give_the_same_with_gradients_of_weights(name: str) -> None:
    layer = LAYERS[name]().double()
    x = torch.randn(NODES, 4, dtype=torch.float64) * (torch.rand(NODES, 4) < 0.5)
    weights = list(layer.parameters())
    for format in ("csr", "coo"):
        assert_same(layer(scorch.from_torch(x, format=format), SOME), layer(x, SOME), weights)


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_weights_of_a_matrix_are_learned(format: str) -> None:
    layer, x = nn.GCNConv(5, 3).double(), features()
    A = dense.counts(SOME, NODES, NODES) * torch.linspace(1, 2, NODES, dtype=torch.float64)
    S = scorch.from_torch(A, format=format).requires_grad_()
    A.requires_grad_()
    wanted = dense.gcn(layer, x, A + torch.diag((A.detach().diagonal() == 0).double()))
    found = layer(x, S)
    torch.testing.assert_close(found, wanted)
    direction = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view_as(found)
    (mine,) = torch.autograd.grad(found, S, direction)
    (its,) = torch.autograd.grad(wanted, A, direction)
    torch.testing.assert_close(mine.to_dense(), its * (A != 0))
    blocks = scorch.from_torch(A.detach(), format="bsr(2,2)").requires_grad_()
    with pytest.raises(scorch.errors.UnsupportedError, match=r"cannot be stored in blocks"):
        layer(x, blocks)


@pytest.mark.parametrize("name", ["GCN", "SAGE mean", "GAT"])
def test_sparse_features_are_learned(name: str) -> None:
    layer = LAYERS[name]().double()
    x = torch.randn(NODES, 4, dtype=torch.float64) * (torch.rand(NODES, 4) < 0.5)
    S = scorch.from_torch(x, format="csr").requires_grad_()
    x.requires_grad_()
    (mine,) = torch.autograd.grad(layer(S, SOME).square().sum(), S)
    (its,) = torch.autograd.grad(layer(x, SOME).square().sum(), x)
    torch.testing.assert_close(mine.to_dense(), its * (x != 0))


def test_what_takes_dense_features_says_so() -> None:
    x = scorch.from_torch(torch.eye(NODES, 4))
    for name in ("SAGE max", "GIN"):
        with pytest.raises(scorch.errors.UnsupportedError, match=r"x\.to_dense\(\)"):
            LAYERS[name]()(x, SOME)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(layer: torch.nn.Module, dtype: torch.dtype) -> None:
    x = torch.randn(NODES, 4)
    wanted = layer(x, SOME)
    found = layer.to(dtype)(x.to(dtype), SOME)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.05)
    found.sum().backward()


def test_graphs_without_edges_or_nodes(layer: torch.nn.Module) -> None:
    x = torch.randn(NODES, 4, requires_grad=True)
    found = layer(x, edges())
    assert found.isfinite().all()
    found.sum().backward()
    nobody = torch.zeros(0, 4, requires_grad=True)
    empty = layer(nobody, edges())
    assert empty.shape[0] == 0
    empty.sum().backward()


def test_what_is_not_a_number_is_passed_on(layer: torch.nn.Module) -> None:
    x = torch.randn(NODES, 4)
    x[2] = torch.nan
    found = layer(x, SOME)
    assert found[[1, 2]].isnan().all()  # 2 is a source of 1 and 2
    assert found[[0, 5, 6]].isfinite().all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same(layer: torch.nn.Module, threads: int) -> None:
    torch.manual_seed(0)
    count = 3000
    graph = torch.stack([(torch.rand(40_000) ** 2 * count).long(), (torch.rand(40_000) ** 3 * count).long()])
    x = torch.randn(count, 4, requires_grad=True)
    results = []
    for number in (1, threads):
        with scorch.settings(threads=number):
            out = layer(x, graph)
            results.append((out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])))
    for one, many in zip(*results, strict=True):
        torch.testing.assert_close(one, many)


def test_layers_are_saved_and_copied(layer: torch.nn.Module) -> None:
    x = torch.randn(NODES, 4)
    wanted = layer(x, SOME)
    torch.testing.assert_close(copy.deepcopy(layer)(x, SOME), wanted)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x, SOME), wanted)
    state = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    layer.load_state_dict(state)
    torch.testing.assert_close(layer(x, SOME), wanted)


# dropout ---------------------------------------------------------------------------------------------


def test_dropout_keeps_the_mean_and_follows_the_seed() -> None:
    layer = nn.GATConv(4, 16, heads=8, dropout=0.4, bias=False).double()
    x = features(NODES, 4)
    torch.manual_seed(1)
    first = layer(x, SOME)
    torch.manual_seed(1)
    torch.testing.assert_close(layer(x, SOME), first, rtol=0, atol=0)
    assert not torch.allclose(layer(x, SOME), first)
    many = torch.stack([layer(x, SOME).detach() for _ in range(2000)]).mean(0)
    torch.testing.assert_close(many, layer.eval()(x, SOME).detach(), rtol=0.1, atol=0.05)


def test_dropout_drops_as_many_as_it_should() -> None:
    count, p = 400, 0.3
    layer = nn.GATConv(1, 1, heads=4, dropout=p, add_self_loops=False, bias=False)
    with torch.no_grad():
        layer.lin.weight.fill_(1)
    graph = torch.stack([torch.arange(count), torch.arange(count)])  # one neighbour each, with weight 1
    found = layer(torch.ones(count, 1), graph)
    kept = found != 0
    torch.testing.assert_close(found[kept], torch.full_like(found[kept], 1 / (1 - p)))
    assert abs(float(kept.float().mean()) - (1 - p)) < 0.05
    layer.dropout = 1.0
    assert not layer(torch.ones(count, 1), graph).any()


def test_the_way_back_drops_what_was_dropped() -> None:
    layer = nn.GATConv(4, 3, heads=2, dropout=0.5).double()
    names = [name for name, _ in layer.named_parameters()]

    def call(x: torch.Tensor, *weights: torch.Tensor) -> Any:
        torch.manual_seed(3)
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x, SOME))

    assert torch.autograd.gradcheck(call, (features(NODES, 4), *layer.parameters()))


# wrong calls -----------------------------------------------------------------------------------------


def test_wrong_calls_are_refused(layer: torch.nn.Module) -> None:
    x = torch.randn(NODES, 4)
    with pytest.raises(scorch.errors.IndexRangeError, match=r"sources .row 0. from 0 to 9"):
        layer(x, edges((0, 1), (9, 1)))
    with pytest.raises(scorch.errors.IndexRangeError, match=r"targets \(row 1\) from 1 to 8"):
        layer(x, edges((0, 1), (2, 8)))
    with pytest.raises(scorch.errors.ShapeError, match=r"\(2, edges\).* pass edge_index\.t\(\)"):
        layer(x, SOME.t())
    with pytest.raises(scorch.errors.ShapeError, match=r"must have shape \(2, edges\)"):
        layer(x, SOME[0])
    with pytest.raises(scorch.errors.ShapeError, match=r"the number of nodes as size=$"):
        layer(x, scorch.eye(NODES, NODES + 1, format="csr"))
    with pytest.raises(scorch.errors.OperandError, match=r"got a SciPy csr_array; create one"):
        layer(x, scipy.sparse.eye_array(NODES, format="csr"))
    for other, said in [
        (SOME.numpy(), r"got a NumPy array; create one with torch\.from_numpy"),
        ([[0], [1]], r"got a list; create one with torch\.tensor"),
        (types.SimpleNamespace(edge_index=SOME), r"got a SimpleNamespace; pass its edge_index"),
        (None, r"got None; create one with torch\.tensor or scorch\.from_scipy"),
    ]:
        with pytest.raises(scorch.errors.OperandError, match=f"{said}$"):
            layer(x, other)
    with pytest.raises(scorch.errors.DtypeError, match=r"dense matrix .* use scorch\.from_torch\("):
        layer(x, torch.eye(NODES))
    with pytest.raises(scorch.errors.DtypeError, match=r"got torch\.float32; use edge_index\.long\(\)$"):
        layer(x, SOME.float())
    with pytest.raises(scorch.errors.IndexRangeError, match=r"one for each node, and .* numbered from 0$"):
        layer(x, SOME - 1)
    with pytest.raises(
        scorch.errors.OperandError, match=r"x must be a tensor of node features, but got a float"
    ):
        layer(1.0, SOME)


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv", "GATv2Conv", "TransformerConv", "SGConv"])
def test_features_have_the_dtype_of_the_weights(name: str) -> None:
    layer, x = getattr(nn, name)(4, 3), torch.randn(NODES, 4)
    with pytest.raises(scorch.errors.CallError, match=r"use x\.to\(torch\.float32\) or layer\.to\("):
        layer(x.double(), SOME)
    with pytest.raises(scorch.errors.CallError, match=r"use x\.to\(torch\.float32\)$"):
        layer(x.long(), SOME)


def test_size_is_a_pair() -> None:
    with pytest.raises(scorch.errors.OperandError, match=r"must be a pair, .* but got a Tensor$"):
        nn.SAGEConv(4, 3)(torch.randn(NODES, 4), SOME, torch.ones(SOME.shape[1]))


@pytest.mark.parametrize("name", ["GCN", "SAGE max", "GAT"])
def test_features_must_be_as_many_as_the_layer_takes(name: str) -> None:
    with pytest.raises(scorch.errors.ShapeError, match=r"must have shape \(nodes, 4\)"):
        LAYERS[name]()(torch.randn(NODES, 5), SOME)
    with pytest.raises(scorch.errors.ShapeError, match=r"must have shape \(nodes, 4\)"):
        LAYERS[name]()(torch.randn(4), SOME)


def test_wrong_arguments_are_refused() -> None:
    x = torch.randn(NODES, 4)
    for make in (lambda: nn.GCNConv(-2, 3), lambda: nn.SAGEConv((4, -2), 3), lambda: nn.GATConv(4, 0)):
        with pytest.raises(scorch.errors.ArgumentError, match=r"positive integer"):
            make()
    with pytest.raises(scorch.errors.ArgumentError, match=r"'lstm'"):
        nn.SAGEConv(4, 3, aggr="lstm")
    with pytest.raises(scorch.errors.ArgumentError, match=r"requires normalize=True"):
        nn.GCNConv(4, 3, normalize=False, add_self_loops=True)
    with pytest.raises(scorch.errors.ArgumentError, match=r"between 0 and 1"):
        nn.GATConv(4, 3, dropout=2)
    with pytest.raises(scorch.errors.ArgumentError, match=r"pass their number to GATConv as edge_dim"):
        nn.GATConv(4, 3)(x, SOME, torch.ones(SOME.shape[1], 1))
    with pytest.raises(scorch.errors.UnsupportedError, match=r"use SAGEConv for a pair"):
        nn.GCNConv(4, 3)((x, x), SOME)
    with pytest.raises(
        scorch.errors.ShapeError, match=r"edge_weight has shape \(3,\), but edge_index has 10"
    ):
        nn.GCNConv(4, 3)(x, SOME, torch.ones(3))
    with pytest.raises(scorch.errors.ArgumentError, match=r"only supported with an edge_index"):
        nn.GCNConv(4, 3)(x, matrix(SOME).float(), torch.ones(10))
    with pytest.raises(scorch.errors.ShapeError, match=r"size=\(3, 4\) does not match"):
        nn.SAGEConv(4, 3)(x, SOME, size=(3, 4))


def test_node_features_in_the_layouts_of_torch() -> None:
    dense = torch.randn(5, 6).relu()
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    layers = [nn.GCNConv(6, 3), nn.SAGEConv(6, 3), nn.GATConv(6, 3), nn.SGConv(6, 3), nn.GATv2Conv(6, 3)]
    for layer in layers:
        assert torch.allclose(layer(dense.to_sparse_csr(), edges), layer(dense, edges), atol=1e-5)


def test_a_gin_layer_needs_a_module() -> None:
    with pytest.raises(scorch.errors.OperandError, match=r"nn must be a module, such as .* but got an int"):
        nn.GINConv(3, 4)
