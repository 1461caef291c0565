"""torch_sparse's names: what they mean there they mean here, compared with dense torch."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from fork_server import run_python
from properties.drawing import random_dense
from scorch.compat import torch_sparse as ts
from scorch.compat.torch_sparse import SparseTensor
from scorch.errors import IndexRangeError, MissingDeviceError, OperandError, ShapeError, UnsupportedError

PRODUCTS = importlib.import_module("scorch.compat.torch_sparse.matmul")  # not the function of this name
DTYPES = [torch.float32, torch.float64, torch.int64]


def dense_of(shape=(5, 7), dtype=torch.float64, density=0.4, seed=3) -> torch.Tensor:
    return random_dense(shape, dtype, density, seed)


def check(A: SparseTensor, wanted: torch.Tensor) -> None:
    """The entries are sorted, inside, and are those of ``wanted``."""
    row, col, value = A.coo()
    key = row * max(A.sparse_size(1), 1) + col
    assert bool((key[1:] >= key[:-1]).all())
    assert A.storage.rowptr().tolist() == [0, *torch.bincount(row, minlength=A.size(0)).cumsum(0).tolist()]
    assert tuple(A.sizes()) == tuple(wanted.shape)
    assert value is None or value.shape[0] == row.numel()
    assert torch.allclose(A.to_dense(wanted.dtype), wanted)


@st.composite
def matrices(draw, square: bool = False, dtype: torch.dtype = torch.float64):
    rows = draw(st.integers(0, 6))
    shape = (rows, rows if square else draw(st.integers(0, 6)))
    return dense_of(shape, dtype, draw(st.sampled_from([0.0, 0.3, 1.0])), draw(st.integers(0, 999)))


# made from -------------------------------------------------------------------------------------------


def test_entries_are_sorted():
    row, col = torch.tensor([2, 0, 1, 0]), torch.tensor([0, 2, 1, 0])
    A = SparseTensor(row=row, col=col, value=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert A.sparse_sizes() == (3, 3) and A.nnz() == 4
    assert A.coo()[0].tolist() == [0, 0, 1, 2] and A.coo()[1].tolist() == [0, 2, 1, 0]
    assert A.storage.value().tolist() == [4.0, 2.0, 3.0, 1.0]
    assert A.csr()[0].tolist() == [0, 2, 3, 4]
    assert [array.tolist() for array in A.csc()] == [[0, 2, 3, 4], [0, 2, 1, 0], [4.0, 1.0, 3.0, 2.0]]
    again = SparseTensor(rowptr=A.csr()[0], col=A.csr()[1], value=A.csr()[2], sparse_sizes=(3, 3))
    assert again == A and again != A.set_value(None) and A != 3
    edges = torch.stack([row, col])
    assert SparseTensor.from_edge_index(edges, sparse_sizes=(3, 4)).sizes() == [3, 4]


def test_transposed_edges_are_refused():
    edges = torch.tensor([[0, 1], [1, 2], [2, 0]])
    with pytest.raises(ShapeError, match=r"shape \(3, 2\); .* pass edge_index\.t\(\)"):
        SparseTensor.from_edge_index(edges)


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv", "GATv2Conv"])
def test_graph_layers_take_it(name):
    A = SparseTensor.from_dense((dense_of((4, 4)) != 0).float())
    layer, x = getattr(scorch.nn, name)(3, 2), torch.rand(4, 3)
    assert torch.equal(layer(x, A), layer(x, A.to_scorch()))
    for call in (
        lambda: scorch.einsum("ij,jk->ik", A, x),
        lambda: scorch.linalg.cg(A, x),
        lambda: scorch.from_torch(A),
        lambda: scorch.draw(A),
    ):
        with pytest.raises(
            OperandError, match=r"got a torch_sparse SparseTensor; convert it, as in A\.to_scorch\(\)"
        ):
            call()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's, of what crosses a break of a graph
def test_graph_layers_take_it_when_compiled():
    x = torch.rand(4, 3)
    for name in ("GCNConv", "SAGEConv", "GATConv"):
        A, layer = SparseTensor.from_dense((dense_of((4, 4)) != 0).float()), getattr(scorch.nn, name)(3, 2)
        torch._dynamo.reset()
        compiled = torch.compile(layer, backend="aot_eager")  # the first call looks for repeated edges
        torch.testing.assert_close(compiled(x, A), layer(x, A))


@given(matrices())
def test_made_from_other_libraries_and_back(dense):
    A = SparseTensor.from_dense(dense)
    check(A, dense)
    check(SparseTensor.from_torch_sparse_coo_tensor(A.to_torch_sparse_coo_tensor()), dense)
    check(SparseTensor.from_torch_sparse_csr_tensor(A.to_torch_sparse_csr_tensor()), dense)
    assert torch.equal(A.to_torch_sparse_csc_tensor().to_dense(), dense)
    assert torch.equal(A.to_scorch("dcsr").to_dense(), dense)
    check(SparseTensor.from_scorch(A.to_scorch("csc")), dense)
    pytest.importorskip("scipy.sparse")
    for layout in ("coo", "csr", "csc"):
        matrix = A.to_scipy(layout=layout)
        assert matrix.format == layout
        check(SparseTensor.from_scipy(matrix), dense)


def test_conversions_do_not_warn_of_the_layouts() -> None:
    code = (
        "import scorch.compat.torch_sparse as ts, torch; A = ts.SparseTensor.eye(3); "
        "A.to_torch_sparse_csc_tensor(), A.to_torch_sparse_csr_tensor()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)  # torch warns once a process


def test_identity():
    check(SparseTensor.eye(3), torch.eye(3))
    check(SparseTensor.eye(3, 5, dtype=torch.int64, fill_cache=True), torch.eye(3, 5).long())
    check(SparseTensor.eye(5, 3, has_value=False), torch.eye(5, 3))


def test_values_with_dimensions():
    dense = dense_of((4, 5)).unsqueeze(-1) * torch.tensor([1.0, 2.0, 3.0])
    A = SparseTensor.from_dense(dense)
    check(A, dense)
    assert A.dim() == 3 and A.size(2) == 3 and A.numel() == A.nnz() * 3
    check(A.t(), dense.transpose(0, 1))
    check(A[1:3, :, :2], dense[1:3, :, :2])
    check(A[..., torch.tensor([2, 0])], dense[..., [2, 0]])
    assert torch.equal(A.sum(dim=1), dense.sum(1)) and torch.equal(A.sum(dim=0), dense.sum(0))
    check(A.set_value(A.sum(dim=2)), dense.sum(2))


def test_facts():
    A = SparseTensor.from_dense(dense_of((4, 5)))
    assert A.has_value() and A.density() == A.nnz() / 20 and A.sparsity() == 1 - A.density()
    assert A.avg_row_length() == A.nnz() / 4 and A.avg_col_length() == A.nnz() / 5
    assert not A.is_quadratic() and not A.is_symmetric() and not A.is_cuda() and not A.requires_grad()
    assert A.dtype() == torch.float64 and A.is_floating_point() and A.device() == torch.device("cpu")
    names = {"float": torch.float32, "int": torch.int32, "bool": torch.bool, "byte": torch.uint8}
    for name, dtype in names.items():
        assert getattr(A, name)().dtype() == dtype
    assert A.to(torch.float32).dtype() == A.type_as(torch.ones(1)).dtype() == torch.float32
    assert A.to("cpu", non_blocking=True).cpu() == A and A.device_as(torch.ones(1)) == A
    assert A.set_value(None).dtype() == torch.float32 and A.set_value(None).numel() == A.nnz()
    assert A.clone() == A and A.copy() == A and A.clone().storage.value() is not A.storage.value()
    assert "nnz=" in repr(A) and "val=" in repr(A) and "val=" not in repr(A.set_value(None))


def test_storage_keeps_what_was_found():
    storage = SparseTensor.from_dense(dense_of()).storage
    assert storage.cached_keys() == []
    assert storage.fill_cache_().num_cached_keys() == 5
    assert torch.equal(storage.csr2csc()[storage.csc2csr()], torch.arange(storage.col().numel()))
    assert storage.colcount().sum() == storage.rowcount().sum() == storage.rowptr()[-1]
    assert storage.clear_cache_().cached_keys() == []
    by_column = storage.set_value(storage.value()[storage.csr2csc()], layout="csc")
    assert torch.equal(by_column.value(), storage.value())


# parts -----------------------------------------------------------------------------------------------


@given(matrices(), st.data())
def test_parts_are_those_of_the_dense_matrix(dense, data):
    A = SparseTensor.from_dense(dense)
    for dim in (0, 1):
        size = dense.shape[dim]
        mask = torch.tensor(
            data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=torch.bool
        )
        check(A.masked_select(dim, mask), dense[mask] if dim == 0 else dense[:, mask])
        if size:
            index = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), max_size=8)), dtype=torch.int64)
            check(A.index_select(dim, index), dense.index_select(dim, index))
            check(A.select(dim, size - 1), dense.narrow(dim, size - 1, 1))
        start = data.draw(st.integers(0, size))
        length = data.draw(st.integers(0, size - start))
        check(A.narrow(dim, start, length), dense.narrow(dim, start, length))
    check(A.t(), dense.t())
    check(A.set_value(None).t().t(), (dense != 0).double())


def test_brackets():
    dense = dense_of((6, 7))
    A = SparseTensor.from_dense(dense)
    check(A[2], dense[2:3])
    check(A[-1, 1:-2], dense[-1:, 1:-2])
    check(A[::2, 3:], dense[::2, 3:])
    check(A[torch.tensor([3, 3, -1])], dense[[3, 3, -1]])
    check(A[:, [0, 2]], dense[:, [0, 2]])
    check(A[..., 1:3], dense[:, 1:3])
    check(A[torch.arange(6) > 2, ...], dense[3:])
    with pytest.raises(IndexError, match="single ellipsis"):
        A[..., ...]
    with pytest.raises(IndexError, match=r"out of range 0\.\.5"):
        A[torch.tensor([6])]
    with pytest.raises(IndexError, match="cannot index with"):
        A[torch.tensor([0.5])]


def test_entries_by_number():
    A = SparseTensor.from_dense(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    check(A.index_select_nnz(torch.tensor([2, 0])), torch.tensor([[0.0, 1.0], [0.0, 3.0]]))
    check(A.index_select_nnz(torch.tensor([0]), layout="csc"), torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    check(A.masked_select_nnz(torch.tensor([True, False, True])), torch.tensor([[0.0, 1.0], [0.0, 3.0]]))


def test_permute_and_reshape():
    dense = dense_of((4, 4))
    order = torch.tensor([2, 0, 3, 1])
    check(ts.permute(SparseTensor.from_dense(dense), order), dense[order][:, order])
    check(SparseTensor.from_dense(dense).sparse_reshape(2, -1), dense.reshape(2, 8))
    check(SparseTensor.from_dense(dense).sparse_resize((4, 6)), torch.nn.functional.pad(dense, (0, 2)))


@pytest.mark.parametrize("k", [-7, -2, 0, 1, 3, 9])
@given(matrices())
def test_diagonals(k, dense):
    A = SparseTensor.from_dense(dense)
    on = torch.ones_like(dense).tril(k).triu(k)
    check(A.remove_diag(k), dense * (1 - on))
    check(A.fill_diag(2.0, k), dense * (1 - on) + 2 * on)
    check(A.set_diag(k=k), dense * (1 - on) + on)
    values = torch.arange(1.0, 1 + int(on.sum()), dtype=torch.float64)
    check(A.set_diag(values, k), dense * (1 - on) + on.masked_scatter(on.bool(), values))
    check(A.set_value(None).fill_diag(1.0, k), ((dense != 0) | on.bool()).double())
    assert torch.equal(A.get_diag(), dense.diagonal())


@pytest.mark.parametrize("dim", [0, 1, (0, 1), [0, 1], -1])
def test_joined(dim):
    a, b = dense_of((3, 4)), dense_of((3, 4), seed=8)
    found = ts.cat([SparseTensor.from_dense(a), SparseTensor.from_dense(b)], dim)
    check(found, torch.block_diag(a, b) if not isinstance(dim, int) else torch.cat([a, b], dim))
    assert not ts.cat([SparseTensor.eye(2, has_value=False)] * 2, dim).has_value()
    with pytest.raises(OperandError, match="either all matrices must have values"):
        ts.cat([SparseTensor.eye(2, has_value=False), SparseTensor.eye(2)], dim)


# arithmetic ------------------------------------------------------------------------------------------


@given(matrices(), st.integers(0, 99))
def test_sums_and_products(dense, seed):
    other = dense_of(tuple(dense.shape), seed=seed)
    A, B = SparseTensor.from_dense(dense), SparseTensor.from_dense(other)
    check(A + B, dense + other)
    check(A * B, dense * other)
    column, row = torch.randn(dense.shape[0], 1).double(), torch.randn(1, dense.shape[1]).double()
    check(A * column, dense * column)
    check(row * A, dense * row)
    check(A.add(column), torch.where(dense != 0, dense + column, 0.0))
    check(A * 2, dense * 2)
    check(A.mul_nnz(torch.tensor(3.0)), dense * 3)
    check(A.set_value(None) * column, (dense != 0) * column)


def test_in_place():
    dense = dense_of()
    A = SparseTensor.from_dense(dense)
    B = A
    A *= torch.full((5, 1), 2.0)
    assert A is B
    check(B, dense * 2)
    A.add_nnz_(torch.ones(A.nnz()))
    check(A, torch.where(dense != 0, dense * 2 + 1, 0.0))
    A.fill_value_(3.0)
    check(A, (dense != 0) * 3.0)


@pytest.mark.parametrize("name", ["sum", "mean", "min", "max"])
@given(matrices())
def test_reductions_are_over_stored_entries(name, dense):
    A = SparseTensor.from_dense(dense)
    for dim in (0, 1, -1):
        lines = dense.unbind(1 - dim if dim >= 0 else 0)
        wanted = [getattr(line[line != 0], name)() if bool((line != 0).any()) else 0.0 for line in lines]
        assert torch.allclose(getattr(A, name)(dim=dim), torch.tensor(wanted, dtype=torch.float64))
        assert torch.allclose(getattr(ts, name)(A, dim=dim), getattr(A, name)(dim))
    if A.nnz():
        assert torch.allclose(getattr(A, name)(), getattr(dense[dense != 0], name)())
        assert getattr(A.set_value(None), name)() == (A.nnz() if name == "sum" else 1)


def test_repeated_entries():
    row, col = torch.tensor([0, 1, 0, 0]), torch.tensor([1, 0, 1, 1])
    A = SparseTensor(row=row, col=col, value=torch.tensor([1.0, 5.0, 2.0, 6.0]))
    assert A.nnz() == 4 and not A.is_coalesced()
    for reduce, wanted in (("sum", 9.0), ("add", 9.0), ("mean", 3.0), ("min", 1.0), ("max", 6.0)):
        found = A.coalesce(reduce)
        assert found.is_coalesced() and found.storage.value().tolist() == [wanted, 5.0]
    x = torch.tensor([[1.0], [2.0]])
    assert (A @ x).tolist() == [[18.0], [5.0]]
    assert A.set_value(None).coalesce().nnz() == 2


@given(matrices())
def test_symmetric(dense):
    A = SparseTensor.from_dense(dense)
    size = max(dense.shape)
    padded = torch.zeros(size, size, dtype=dense.dtype)
    padded[: dense.shape[0], : dense.shape[1]] = dense
    found = A.to_symmetric()
    check(found, padded + padded.t())
    assert found.is_symmetric()


# products --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(st.data())
def test_products_with_dense_tensors(dtype, data):
    dense = data.draw(matrices(dtype=dtype))
    A = SparseTensor.from_dense(dense)
    x = dense_of((dense.shape[1], 3), dtype, 1.0, 5)
    assert torch.equal(A @ x, dense @ x)
    assert torch.equal(ts.matmul(A, x[:, 0]), dense @ x[:, 0])
    batch = torch.stack([x, 2 * x])
    assert torch.equal(A.matmul(batch), dense @ batch)
    assert torch.equal(A.set_value(None) @ x, (dense != 0).to(dtype) @ x)
    check(A.matmul(A.t()), dense @ dense.t())
    assert torch.equal(x.T @ A.t(), (A @ x).T)
    product = scorch.from_torch(dense, format="csr") @ A.t()
    assert isinstance(product, scorch.SparseTensor) and torch.equal(product.to_dense(), dense @ dense.t())


@pytest.mark.parametrize("columns", [3, 40])  # tiny, and by a kernel
def test_products_have_the_dtype_of_the_dense_tensor(columns):
    whole = SparseTensor.from_dense((4 * dense_of((9, 9), density=0.9)).round())
    for reduce in ("sum", "mean", "min", "max"):
        for dtype in (torch.float32, torch.float16, torch.float64):
            for value in (torch.float64, torch.float32, torch.int64):
                A = whole.clone().to(value).requires_grad_(value.is_floating_point)
                x = torch.randint(-4, 5, (9, columns)).to(dtype)
                out = A.matmul(x, reduce)
                assert out.dtype == dtype
                assert torch.allclose(out, A.to(dtype).matmul(x, reduce))
                if value.is_floating_point:
                    out.sum().backward()
                    assert A.storage.value().grad.dtype == value
    halves = SparseTensor.from_dense(torch.full((1, 1), 0.5))
    assert (halves @ torch.tensor([[3]])).tolist() == [[1.5]]  # whole numbers would lose the half


def test_tiny_products_round_like_message_passing(monkeypatch):
    monkeypatch.setattr(PRODUCTS, "einsum", None)  # whose kernels use fused multiply-adds, except at -O0
    generator = torch.Generator().manual_seed(0)
    edges, value = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]]), torch.randn(4, generator=generator)
    x = torch.randn(3, 4, 16, generator=generator)
    messages = value.view(-1, 1) * x[:, edges[0]]
    expected = torch.zeros(3, 4, 16).index_add(1, edges[1], messages)
    assert torch.equal(SparseTensor.from_edge_index(edges, value, (4, 4)).t() @ x, expected)


@pytest.fixture(params=["kernel", "tiny"])
def _products_of_both_sizes(request, monkeypatch):
    """Run a test with its small products computed by a kernel, and by PyTorch's operators."""
    if request.param == "kernel":
        monkeypatch.setattr(PRODUCTS, "_TINY", 0)


@pytest.mark.usefixtures("_products_of_both_sizes")
@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
@pytest.mark.parametrize("has_value", [True, False])
def test_reduced_products(reduce, has_value):
    dense, x = dense_of((6, 7)), torch.randn(7, 3).double()
    A = SparseTensor.from_dense(dense, has_value)
    found = ts.matmul(A, x, reduce=reduce)
    for i, line in enumerate(dense):
        stored = line != 0
        parts = (line[stored] if has_value else torch.ones(int(stored.sum())).double())[:, None] * x[stored]
        wanted = torch.zeros(3).double()
        if len(parts):
            wanted = {"min": parts.amin, "max": parts.amax}.get(reduce, getattr(parts, reduce))(dim=0)
        assert torch.allclose(found[i], wanted)


@pytest.mark.usefixtures("_products_of_both_sizes")
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("repeats", [False, True])
def test_gradients_of_products(reduce, repeats):
    row, col, value = SparseTensor.from_dense(dense_of((4, 5), density=0.6)).coo()
    if repeats:
        row, col = torch.cat([row, row[:3]]), torch.cat([col, col[:3]])
        value = torch.cat([value, value[:3] + 0.3])
    A = SparseTensor(row=row, col=col, sparse_sizes=(4, 5))
    value = (value + 0.1 * torch.rand(value.shape)).detach().requires_grad_()
    x = torch.randn(5, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda v, x: A.set_value(v).matmul(x, reduce), (value, x))


def test_gradients_of_sparse_products():
    A, B = SparseTensor.from_dense(dense_of((4, 5))), SparseTensor.from_dense(dense_of((5, 6), seed=4))
    values = [M.storage.value().clone().requires_grad_() for M in (A, B)]
    assert torch.autograd.gradcheck(
        lambda a, b: (A.set_value(a) @ B.set_value(b)).storage.value(), tuple(values)
    )
    C = A.set_value(values[0]) @ B
    assert C.requires_grad() and not C.detach().requires_grad()
    complex_value = torch.randn(A.nnz(), dtype=torch.complex128, requires_grad=True)
    x = torch.randn(5, 2, dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, x: A.set_value(v) @ x, (complex_value, x))


def test_patterns_multiply_to_patterns():
    A = SparseTensor.from_dense(dense_of((4, 5)), has_value=False)
    found = A @ A.t()
    assert not found.has_value()
    pattern = (dense_of((4, 5)) != 0).double()
    check(found, (pattern @ pattern.t() != 0).double())
    check(A.set_value(torch.ones(A.nnz()).double()) @ A.t(), pattern @ pattern.t())


# the older functions ---------------------------------------------------------------------------------


def test_functions_on_indices():
    a, b = dense_of((4, 5)), dense_of((5, 6), seed=4)
    (ia, va), (ib, vb) = ((M.nonzero().t(), M[tuple(M.nonzero().t())]) for M in (a, b))
    assert torch.allclose(ts.spmm(ia, va, 4, 5, b), a @ b)
    assert ts.spmm(ia, va, 4, 5, b[:, 0]).shape == (4, 1)
    index, value = ts.spspmm(ia, va, ib, vb, 4, 5, 6)
    assert torch.allclose(torch.sparse_coo_tensor(index, value, (4, 6)).to_dense(), a @ b)
    index, value = ts.transpose(ia, va, 4, 5)
    assert torch.equal(torch.sparse_coo_tensor(index, value, (5, 4)).to_dense(), a.t())
    index, value = ts.coalesce(torch.tensor([[1, 0, 1], [0, 1, 0]]), torch.tensor([1.0, 2.0, 3.0]), 2, 2)
    assert index.tolist() == [[0, 1], [1, 0]] and value.tolist() == [2.0, 4.0]
    _, value = ts.coalesce(
        torch.tensor([[1, 0, 1], [0, 1, 0]]), torch.tensor([1.0, 2.0, 3.0]), 2, 2, op="max"
    )
    assert value.tolist() == [2.0, 3.0]
    index, value = ts.eye(3)
    assert index.tolist() == [[0, 1, 2]] * 2 and value.tolist() == [1.0] * 3
    made = ts.to_torch_sparse(ia, va, 4, 5)
    assert torch.equal(made.to_dense(), a) and torch.equal(ts.from_torch_sparse(made)[1], va)
    pytest.importorskip("scipy.sparse")
    assert torch.equal(ts.from_scipy(ts.to_scipy(ia, va, 4, 5))[1], va)


# drawn at random -------------------------------------------------------------------------------------


def test_neighbours_are_drawn_from_the_row():
    A = SparseTensor.from_dense((torch.rand(20, 20) < 0.3).double() + torch.eye(20).double())
    dense = A.to_dense()
    drawn = A.sample(4)
    assert drawn.shape == (20, 4) and bool((dense.gather(1, drawn) != 0).all())
    assert ts.sample(A, 2, torch.tensor([3, 3])).shape == (2, 2)
    with pytest.raises(IndexRangeError, match="row 1 has no neighbors"):
        SparseTensor.eye(1, 1).sparse_resize((2, 3)).sample(1)
    assert SparseTensor.eye(1, 1).sparse_resize((2, 2)).sample(2).tolist() == [[0, 0], [1, 1]]
    nothing = torch.empty(0, dtype=torch.int64)
    assert SparseTensor(row=nothing, col=nothing, sparse_sizes=(2, 2)).sample(1).tolist() == [[0], [1]]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("most", [-1, 0, 2, 100])
def test_adjacency_is_drawn(most, replace):
    dense = dense_of((20, 20), density=0.3)
    A = SparseTensor.from_dense(dense)
    subset = torch.tensor([4, 0, 9])
    found, nodes = A.sample_adj(subset, most, replace)
    assert nodes[:3].tolist() == [4, 0, 9] and nodes.unique().numel() == nodes.numel()
    row, col, value = found.coo()
    assert torch.equal(value, dense[subset[row], nodes[col]]) and found.sparse_sizes() == (3, len(nodes))
    counts = (dense[subset] != 0).sum(1)
    drawn = found.storage.rowcount()
    if most < 0:
        assert torch.equal(drawn, counts)
    elif replace:
        assert torch.equal(drawn, torch.where(counts > 0, most, 0))
    else:
        assert torch.equal(drawn, counts.clamp(max=most)) and found.is_coalesced()


def test_walks_and_subgraphs():
    dense = dense_of((10, 10), density=0.3)
    dense[4] = 0
    A = SparseTensor.from_dense(dense)
    walk = A.random_walk(torch.tensor([0, 4, 7]), 5)
    assert walk.shape == (3, 6) and walk[1].tolist() == [4] * 6
    for a, b in zip(walk[:, :-1].flatten().tolist(), walk[:, 1:].flatten().tolist(), strict=True):
        assert dense[a, b] != 0 or (a == b and not dense[a].any())
    nodes = torch.tensor([7, 2, 3])
    part, edges = A.saint_subgraph(nodes)
    check(part, dense[nodes][:, nodes])
    assert torch.equal(A.storage.value()[edges], part.storage.value())
    with pytest.raises(UnsupportedError, match="METIS"):
        A.partition(2)
    pytest.importorskip("scipy.sparse")
    for B in (A, A.to_symmetric()):
        moved, order = B.reverse_cuthill_mckee()
        assert sorted(order.tolist()) == list(range(10))
        assert moved == A.to_symmetric().permute(order) and moved.bandwidth() <= B.bandwidth()


def test_one_part_needs_no_metis():
    A = SparseTensor.from_dense(dense_of((4, 4)))
    same, begins, order = A.partition(num_parts=1, recursive=False)
    assert same is A and begins.tolist() == [0, 4] and order.tolist() == [0, 1, 2, 3]


# errors ----------------------------------------------------------------------------------------------


def test_tensors_of_scorch_are_refused_with_a_hint():
    S = scorch.rand(5, 5, density=0.5, format="csr")
    nodes = torch.tensor([1, 2])
    calls = {
        "sample_adj": lambda A: ts.sample_adj(A, nodes, 2),
        "matmul": lambda A: ts.matmul(A, torch.rand(5, 2)),
        "reduction": lambda A: ts.sum(A, dim=1),
        "remove_diag": lambda A: ts.remove_diag(src=A),
    }
    for name, call in calls.items():
        with pytest.raises(
            OperandError, match=rf"^{name} takes a SparseTensor of scorch\.compat.*from_scorch"
        ):
            call(S)
        call(SparseTensor.from_scorch(S))


def test_what_is_refused():
    one = torch.tensor([0])
    with pytest.raises(OperandError, match="pass col, and either row or rowptr"):
        SparseTensor(row=one)
    with pytest.raises(OperandError, match="row must be a 1-D int64 tensor"):
        SparseTensor(row=one.int(), col=one)
    with pytest.raises(IndexRangeError, match=r"col is out of range 0\.\.1"):
        SparseTensor(row=one, col=one + 5, sparse_sizes=(1, 2))
    with pytest.raises(ShapeError, match="row has 2 entries, but col has 1"):
        SparseTensor(row=torch.tensor([0, 1]), col=one)
    with pytest.raises(IndexRangeError, match="rowptr must increase from 0 to 1"):
        SparseTensor(rowptr=torch.tensor([0, 2]), col=one)
    with pytest.raises(ShapeError, match="each of the 1 entries, but got shape"):
        SparseTensor(row=one, col=one, value=torch.ones(2))
    A = SparseTensor.eye(3)
    with pytest.raises(ShapeError, match="3 columns, 4 rows"):
        A @ torch.ones(4, 2)
    with pytest.raises(ShapeError, match="cannot be multiplied"):
        A @ SparseTensor.eye(4)
    with pytest.raises(OperandError, match="expected a tensor or a SparseTensor, but got a list"):
        A @ [1]
    with pytest.raises(UnsupportedError, match="only for products with dense tensors"):
        A.matmul(A, reduce="max")
    with pytest.raises(OperandError, match="'min' or 'max', but got 'product'"):
        A.matmul(torch.eye(3), reduce="product")
    with pytest.raises(ShapeError, match=r"goes with \(3, 1, ...\) or \(1, 3, ...\), not with \(3, 3\)"):
        A * torch.eye(3)
    with pytest.raises(ShapeError, match="each of the 3 entries, but got shape"):
        A.set_value(torch.ones(2))


# programs written for torch_sparse -------------------------------------------------------------------

PROGRAM = """
import sys, torch
import scorch.compat.torch_sparse
sys.modules["torch_sparse"] = scorch.compat.torch_sparse
import torch_sparse
from torch_sparse import SparseTensor, fill_diag, matmul, mul, sum as sparsesum

def normalise(adj):
    adj = fill_diag(adj.fill_value(1.0), 1.0)
    degree = sparsesum(adj, dim=1)
    root = degree.pow(-0.5)
    root.masked_fill_(root == float("inf"), 0.0)
    return mul(mul(adj, root.view(-1, 1)), root.view(1, -1))

class Convolution(torch.nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, outputs)

    def forward(self, x, adj_t):
        return matmul(adj_t, self.linear(x), reduce="sum")

torch.manual_seed(0)
edges = torch.randint(0, 30, (2, 120))
adj = SparseTensor.from_edge_index(edges, sparse_sizes=(30, 30)).coalesce().to_symmetric()
adj_t = normalise(adj.t())
model = torch.nn.ModuleList([Convolution(8, 16), Convolution(16, 3)])
x, y = torch.randn(30, 8), torch.randint(0, 3, (30,))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
losses = []
for _ in range(30):
    optimizer.zero_grad()
    out = model[1](model[0](x, adj_t).relu(), adj_t)
    loss = torch.nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
assert losses[-1] < 0.8 * losses[0], losses
print("learned")
"""


def test_a_graph_network_learns():
    done = run_python(["-c", PROGRAM])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "learned"


def test_it_is_another_class_than_scorchs_own():
    assert not issubclass(SparseTensor, torch.Tensor) and SparseTensor is not scorch.SparseTensor
    assert set(ts.__all__) <= set(dir(ts))


def test_entries_in_shared_memory():
    A = SparseTensor(row=torch.tensor([0, 1]), col=torch.tensor([1, 0]), value=torch.ones(2))
    assert not A.is_shared() and not A.is_pinned()
    assert A.share_memory_() is A and A.is_shared()
    assert torch.equal(A.to_dense(), torch.eye(2).flip(0))


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    A = SparseTensor.from_dense(torch.eye(3))
    if not torch.cuda.is_available():
        with pytest.raises(MissingDeviceError, match="needs a CUDA build of PyTorch"):
            A.cuda()
        with pytest.raises(MissingDeviceError, match="needs a CUDA build of PyTorch"):
            SparseTensor.eye(3, device="cuda")
    for name in ("scipy.sparse", "scipy.sparse.csgraph"):
        monkeypatch.setitem(sys.modules, name, None)
    for call in (A.to_scipy, lambda: ts.reverse_cuthill_mckee(A)):
        with pytest.raises(UnsupportedError, match=r"needs SciPy.*pip install scipy"):
            call()
