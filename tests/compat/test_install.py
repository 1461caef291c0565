"""``scorch.compat.torch_sparse.install()``: names, operators, TorchScript; what upstream's tests found."""

from __future__ import annotations

import importlib
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tools.upstream.suites import KNOWN, PYG_EXCEPTIONS, RESULT, files_of, lost, outcomes, unexpected

from scorch.compat import torch_sparse as ts
from scorch.compat.torch_sparse import SparseTensor
from scorch.errors import CallError, UnsupportedError

# A graph by columns: in-neighbours of 0 are 1 and 2, of 1 is 2, of 2 is 0, of 3 are 0, 1 and 2.
COLPTR, ROW = torch.tensor([0, 2, 3, 4, 7]), torch.tensor([1, 2, 2, 0, 0, 1, 2])

# What each module of torch_sparse 0.6.18 defines, but for what prepares weights for METIS.
NAMES = {
    "add": "add add_ add_nnz add_nnz_",
    "bandwidth": "reverse_cuthill_mckee",
    "cat": "cat cat_first cat_second cat_diag",
    "coalesce": "coalesce",
    "convert": "to_torch_sparse from_torch_sparse to_scipy from_scipy",
    "diag": "remove_diag set_diag fill_diag get_diag",
    "eye": "eye",
    "index_select": "index_select index_select_nnz",
    "masked_select": "masked_select masked_select_nnz",
    "matmul": "spmm_sum spmm_add spmm_mean spmm_min spmm_max spmm spspmm_sum spspmm_add spspmm matmul",
    "metis": "partition",
    "mul": "mul mul_ mul_nnz mul_nnz_",
    "narrow": "narrow __narrow_diag__",
    "permute": "permute",
    "reduce": "reduction sum mean min max",
    "rw": "random_walk",
    "saint": "saint_subgraph",
    "sample": "sample sample_adj",
    "select": "select",
    "spadd": "spadd",
    "spmm": "spmm",
    "spspmm": "spspmm",
    "storage": "get_layout SparseStorage share_memory_ is_shared",
    "tensor": "SparseTensor share_memory_ is_shared to cpu cuda from_scipy to_scipy",
    "testing": "tensor",
    "transpose": "t transpose",
    "typing": "",
    "utils": "index_sort is_scalar",
}


@pytest.fixture
def installed() -> Iterator[types.ModuleType]:
    ts.install()
    yield importlib.import_module("torch_sparse")
    ts.uninstall()


def test_modules_have_torch_sparse_s_names(installed: types.ModuleType) -> None:
    assert installed is ts
    for module, name in [("transpose", "t"), ("transpose", "transpose"), ("spmm", "spmm"), ("cat", "cat")]:
        found = importlib.import_module(f"torch_sparse.{module}")
        assert getattr(found, name) is getattr(ts, name)
    assert importlib.import_module("torch_sparse.tensor") is sys.modules["scorch.compat.torch_sparse.tensor"]
    assert all(isinstance(getattr(installed, name), types.FunctionType) for name in ("transpose", "spmm"))
    assert installed.matmul is ts.matmul and callable(installed.sample)
    ts.install()  # again, which changes nothing
    assert importlib.import_module("torch_sparse") is ts


def test_modules_define_what_torch_sparse_s_define(installed: types.ModuleType) -> None:
    missing = []
    for module, names in NAMES.items():
        found = importlib.import_module(f"torch_sparse.{module}")
        missing += [
            f"{module}.{name}"
            for name in names.split()
            if not isinstance(getattr(found, name, None), types.FunctionType | type)
        ]
    assert not missing
    assert installed.__narrow_diag__ is SparseTensor.__narrow_diag__


def test_functions_of_modules_agree_with_those_of_the_package(installed: types.ModuleType) -> None:
    products, joined = (importlib.import_module(f"torch_sparse.{name}") for name in ("matmul", "cat"))
    A = SparseTensor.from_dense(torch.tensor([[0.0, 2.0, 1.0], [0.0, 0.0, 0.0], [3.0, 0.0, -1.0]]))
    x = torch.tensor([[1.0, -1.0], [2.0, 0.0], [3.0, 4.0]])
    for reduce in ("sum", "add", "mean"):
        assert torch.equal(getattr(products, f"spmm_{reduce}")(A, x), ts.matmul(A, x, reduce))
    for reduce, entries in (("min", [[1, 0], [4, 4], [3, 3]]), ("max", [[0, 1], [4, 4], [2, 2]])):
        out, entry = getattr(products, f"spmm_{reduce}")(A, x)
        assert torch.equal(out, ts.matmul(A, x, reduce))
        assert entry.tolist() == entries
    assert products.spspmm_sum(A, A) == products.spspmm_add(A, A) == A @ A
    for name, dim in (("first", 0), ("second", 1), ("diag", (0, 1))):
        assert getattr(joined, f"cat_{name}")([A, A]) == ts.cat([A, A], dim)
    testing = importlib.import_module("torch_sparse.testing")
    assert testing.tensor([1], torch.int64, testing.devices[0]).tolist() == [1]


def test_uninstalling_takes_everything_back(installed: types.ModuleType) -> None:
    assert torch.ops.torch_sparse.ptr2ind(torch.tensor([0, 2, 2, 3]), 3).tolist() == [0, 0, 2]
    ts.uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] == "torch_sparse"]
    assert not hasattr(torch.ops.torch_sparse, "ptr2ind")
    assert not hasattr(SparseTensor, "_jit_override_qualname")
    ts.install()
    assert torch.ops.torch_sparse.ind2ptr(torch.tensor([0, 0, 2]), 3).tolist() == [0, 2, 2, 3]


def test_another_torch_sparse_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_sparse", types.ModuleType("torch_sparse"))
    with pytest.raises(CallError, match="already been imported"):
        ts.install()


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_products_are_operators(installed: types.ModuleType, reduce: str) -> None:
    A = SparseTensor.from_dense((torch.rand(5, 4) < 0.5) * torch.randn(5, 4).double())
    rowptr, col, value = A.csr()
    assert value is not None
    value = value.clone().requires_grad_()
    x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    ops = torch.ops.torch_sparse
    if reduce in ("sum", "mean"):
        missing = (None, None) if reduce == "sum" else (None, None, None)
        found = getattr(ops, f"spmm_{reduce}")(None, rowptr, col, value, *missing, x)
    else:
        found, entry = getattr(ops, f"spmm_{reduce}")(rowptr, col, value, x)
        products = torch.cat([value.unsqueeze(1) * x[col], x.new_zeros(1, 2)])
        assert torch.equal(products.gather(0, entry), found)
    wanted = A.set_value(value).matmul(x, reduce)
    assert torch.equal(found, wanted)
    for a, b in zip(*(torch.autograd.grad(y.sum(), (value, x)) for y in (found, wanted)), strict=True):
        assert torch.equal(a, b)


def test_neighbours_are_sampled_hop_by_hop(installed: types.ModuleType) -> None:
    sample = torch.ops.torch_sparse.neighbor_sample
    nodes, row, col, edge = sample(COLPTR, ROW, torch.tensor([1, 3]), [-1, -1], False, True)
    assert nodes.tolist()[:2] == [1, 3] and sorted(nodes.tolist()) == [0, 1, 2, 3]
    assert torch.equal(ROW[edge], nodes[row]) and edge.unique().numel() == edge.numel()
    assert torch.equal(torch.bucketize(edge, COLPTR, right=True) - 1, nodes[col])
    nodes, row, col, edge = sample(COLPTR, ROW, torch.tensor([3]), [2], False, True)
    assert nodes.numel() == 3 and col.tolist() == [0, 0]
    nodes, row, col, edge = sample(COLPTR, ROW, torch.tensor([3]), [2], False, False)
    inside = sum(bool(torch.isin(ROW[COLPTR[n] : COLPTR[n + 1]], nodes).sum()) for n in nodes.tolist())
    assert edge.numel() >= inside >= 1  # all edges between the nodes
    nodes, *_ = sample(COLPTR, ROW, torch.tensor([1, 1]), [0], True, True)
    assert nodes.tolist() == [1, 1]  # seeds stay as they are


def test_neighbours_of_several_types_are_sampled(installed: types.ModuleType) -> None:
    kinds = [("a", "to", "b"), ("b", "to", "a")]
    keys = ["__".join(kind) for kind in kinds]
    arrays = {keys[0]: COLPTR, keys[1]: COLPTR}, {keys[0]: ROW, keys[1]: ROW}, {"b": torch.tensor([3])}
    ops = torch.ops.torch_sparse
    counts = {key: [-1, -1] for key in keys}
    drawn = ops.hetero_neighbor_sample(["a", "b"], kinds, *arrays, counts, 2, False, True)
    weighted = ops.hgt_sample(*arrays, {"a": [2, 2], "b": [2, 2]}, 2)
    for nodes, row, col, edge in (drawn, weighted):
        assert nodes["b"][0] == 3 and nodes["a"].unique().numel() == nodes["a"].numel() > 1
        for key, (source, _, target) in zip(keys, kinds, strict=True):
            assert torch.equal(ROW[edge[key]], nodes[source][row[key]])
            assert torch.equal(torch.bucketize(edge[key], COLPTR, right=True) - 1, nodes[target][col[key]])
    assert sorted(drawn[0]["a"].tolist()) == [0, 1, 2] and drawn[3][keys[0]].numel() == 3


def test_other_operators(installed: types.ModuleType) -> None:
    ops = torch.ops.torch_sparse
    rowptr, col = COLPTR, ROW  # the same arrays as rows
    number, nodes = ops.relabel(torch.tensor([3, 1, 3]), torch.tensor([1]))
    assert number.tolist() == [1, 0, 1] and nodes.tolist() == [1, 3]
    pointers, number, value, nodes = ops.relabel_one_hop(rowptr, col, None, torch.tensor([3]), False)
    assert pointers.tolist() == [0, 3, 3, 3, 3] and number.tolist() == [1, 2, 3] and value is None
    assert nodes.tolist() == [3, 0, 1, 2]
    row = ops.ptr2ind(rowptr, 7)
    assert [a.tolist() for a in ops.saint_subgraph(torch.tensor([2, 0]), rowptr, row, col)] == [
        [0, 1],
        [1, 0],
        [3, 1],
    ]
    assert ops.non_diag_mask(torch.tensor([0, 1]), torch.tensor([1, 0]), 2, 2, 0).tolist() == [
        False,
        True,
        True,
        False,
    ]
    walk = ops.random_walk(rowptr, col, torch.tensor([1, 2]), 2)
    assert walk[:, 1].tolist() == [2, 0]
    pointers, number, nodes, edges = ops.sample_adj(rowptr, col, torch.tensor([0]), -1, False)
    assert pointers.tolist() == [0, 2] and nodes.tolist() == [0, 1, 2] and edges.tolist() == [0, 1]
    with pytest.raises(UnsupportedError, match="METIS"):
        ops.partition(rowptr, col, None, 2, True)


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_torchscript_takes_a_matrix(installed: types.ModuleType) -> None:
    @torch.jit.script
    def scripted(A: SparseTensor, x: torch.Tensor):  # type: ignore[no-untyped-def]
        A = ts.fill_diag(ts.set_diag(A), 2.0)
        A = ts.mul(A, ts.sum(A, dim=1).view(-1, 1))
        return ts.matmul(A, x, "mean")

    A = SparseTensor.from_dense((torch.rand(4, 4) < 0.5) * torch.rand(4, 4).double())
    x = torch.rand(4, 2).double()
    B = A.set_diag().fill_diag(2.0)
    wanted = (B * B.sum(1).view(-1, 1)).matmul(x, "mean")
    assert torch.allclose(scripted(A, x), wanted)


def test_caches_are_filled_as_in_torch_sparse() -> None:
    A = SparseTensor.eye(3)
    assert A.storage.rowptr().tolist() == [0, 1, 2, 3] and A.storage.num_cached_keys() == 0
    full = SparseTensor(row=torch.tensor([0, 0, 1]), col=torch.tensor([0, 1, 2])).fill_cache_()
    assert full.remove_diag().storage.cached_keys() == ["rowcount", "colcount"]
    below, beside, both = (ts.cat([full, full], dim) for dim in (0, 1, (0, 1)))
    assert below.storage.cached_keys() == ["rowcount"] and below.storage.has_rowptr()
    assert beside.storage.cached_keys() == ["colptr", "colcount"] and not beside.storage.has_rowptr()
    assert both.storage.num_cached_keys() == 5
    for joined in (below, beside, both):
        found = {name: getattr(joined.storage, name)() for name in joined.storage.cached_keys()}
        joined.clear_cache_()
        for name, array in found.items():
            assert torch.equal(getattr(joined.storage, name)(), array)


def test_storage_has_torch_sparse_s_methods() -> None:
    storage = SparseTensor.from_dense(torch.eye(2, 4)).storage
    assert storage.sparse_reshape(4, -1).sparse_sizes() == (4, 2)
    assert storage.sparse_resize((3, 5)).rowptr().tolist() == [0, 1, 2, 2]
    assert storage.type(torch.float64).value().dtype == torch.float64  # type: ignore[union-attr]
    assert storage.copy().col() is storage.col() and storage.clone().col() is not storage.col()
    assert storage.cpu() is storage.device_as(torch.ones(1)) is storage and not storage.is_pinned()
    assert type(storage).empty().sparse_sizes() == (0, 0) and storage.has_row() and not storage.has_colptr()
    narrowed = SparseTensor.eye(4).__narrow_diag__((1, 2), (2, 2))
    assert narrowed.to_dense().tolist() == [[0.0, 0.0], [1.0, 0.0]]
    index, value = ts.spadd(*ts.eye(2), *ts.eye(2), 2, 2)
    assert index.tolist() == [[0, 1], [0, 1]] and value.tolist() == [2.0, 2.0]


# the command that runs upstream's suites ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated
def test_only_torchscript_and_metis_may_fail_upstream(installed: types.ModuleType) -> None:
    assert set(KNOWN.values()) == {"TorchScript", "METIS"}
    with pytest.raises(UnsupportedError, match="METIS"):
        SparseTensor.eye(3).partition(2)
    with pytest.raises(RuntimeError, match="of type 'Tensor'"):  # of two matrices

        @torch.jit.script
        def product(A: SparseTensor, B: SparseTensor) -> SparseTensor:
            return ts.mul(A, B)


def test_outcomes_of_suites_are_compared() -> None:
    report = """<testsuites><testsuite>
        <testcase classname="test.test_add" name="test_add[a]"><failure/></testcase>
        <testcase classname="test.test_cat" name="test_cat"><error/></testcase>
        <testcase classname="test.test_eye" name="test_eye"><skipped/></testcase>
        <testcase classname="test.test_mul" name="test_mul"/></testsuite></testsuites>"""
    found = outcomes(report)
    assert list(found.values()) == ["failed", "failed", "skipped", "passed"]
    assert unexpected(found) == ["test.test_cat::test_cat"]
    assert lost({"a": "passed", "b": "passed", "c": "failed"}, {"a": "passed", "b": "skipped"}) == ["b"]
    assert lost(dict.fromkeys(PYG_EXCEPTIONS, "passed"), dict.fromkeys(PYG_EXCEPTIONS, "failed")) == []


def test_files_of_tests_are_found(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    for name in ("a", "b"):
        (tmp_path / "test" / f"test_{name}.py").touch()
    names = ["test.test_a::test_one[1]", "test.test_a::test_two", "test.test_b.TestClass::test_three"]
    assert files_of(tmp_path, names) == ["test/test_a.py", "test/test_b.py"]


def test_recorded_suites_lost_nothing() -> None:
    recorded = json.loads(RESULT.read_text(encoding="utf-8"))
    sparse, graphs = recorded["pytorch_sparse"], recorded["pyg"]
    assert sparse["lost"] == [] and sparse["on Scorch"]["passed"] > 130
    assert {name.partition("[")[0] for name in sparse["known"]} <= set(KNOWN)
    for run in (graphs, graphs.get("again", graphs)):  # perhaps of a part of the files
        assert run["lost"] == [] and all(run["fails only with it"].values())
