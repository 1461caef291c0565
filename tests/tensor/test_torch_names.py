"""A ``SparseTensor`` answers to the names that torch's own sparse tensors have, with the same meaning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import scorch
from scorch._src.tensor import registry
from scorch.errors import ArgumentError, DtypeError, FormatError, OperandError, ShapeError
from validity import check_storage

DENSE = torch.tensor([[0.0, 1.5, 0.0, 4.0], [2.0, 0.0, 3.0, 0.0]])
FORMATS = ["coo", "csr", "csc", "dcsr", "dcsc", "bsr(2,2)", "bsc(2,3)", "sd", "csf"]
BATCH = torch.stack([DENSE, DENSE.flip(0), 2 * DENSE])  # the same number of entries in each


@pytest.fixture(params=FORMATS)
def S(request):
    return scorch.from_torch(DENSE, request.param)


# facts -----------------------------------------------------------------------------------------------


def test_every_tensor_is_coalesced(S):
    assert S.coalesce() is S and S.is_coalesced() and torch.Tensor.coalesce(S) is S


def test_its_layout_is_strided_to_torch(S):
    assert S.layout == torch.strided and not S.is_sparse_csr
    assert "``layout``" in scorch.SparseTensor.__doc__


@pytest.mark.parametrize(
    ("given", "format", "sparse", "dense"),
    [
        (DENSE, "coo", 2, 0),
        (DENSE, "csr", 2, 0),
        (DENSE, "csc", 2, 0),
        (DENSE, "bsr(2,2)", 2, 0),
        (DENSE, "sd", 1, 1),
        (DENSE, scorch.Format("sd", order=(1, 0)), 2, 0),
        (DENSE, "ss", 2, 0),
        (DENSE[0], "s", 1, 0),
        (BATCH, "csr", 2, 0),
        (BATCH, "ood", 2, 1),
        (BATCH, "odd", 1, 2),
        (BATCH, "dsd", 2, 1),
        (BATCH, "csf", 3, 0),
    ],
)
def test_sparse_and_dense_dimensions(given, format, sparse, dense):
    S = scorch.from_torch(given, format)
    assert (S.sparse_dim(), S.dense_dim()) == (sparse, dense)


@pytest.mark.parametrize(
    "theirs",
    [
        DENSE.to_sparse(),
        DENSE.to_sparse(1),
        BATCH.to_sparse(2),
        DENSE.to_sparse_csr(),
        DENSE.to_sparse_csc(),
        DENSE.to_sparse_bsr((2, 2)),
        DENSE.to_sparse_bsc((1, 2)),
        BATCH.to_sparse_csr(),
        BATCH.to_sparse_csc(),
        BATCH.to_sparse_bsr((1, 2)),
        BATCH.to_sparse_csr(dense_dim=1),
    ],
    ids=lambda t: f"{t.layout}-{t.dim()}-{t.dense_dim()}",
)
def test_arrays_are_those_of_torch(theirs):
    ours = scorch.from_torch(theirs)
    assert (ours.sparse_dim(), ours.dense_dim(), ours._nnz()) == (
        theirs.sparse_dim(),
        theirs.dense_dim(),
        ours.values().numel(),
    )
    assert torch.equal(ours.values(), theirs.values())
    names = {
        torch.sparse_coo: ["indices", "_indices", "_values"],
        torch.sparse_csr: ["crow_indices", "col_indices"],
        torch.sparse_bsr: ["crow_indices", "col_indices"],
        torch.sparse_csc: ["ccol_indices", "row_indices"],
        torch.sparse_bsc: ["ccol_indices", "row_indices"],
    }[theirs.layout]
    for name in names:
        found, wanted = getattr(ours, name)(), getattr(theirs, name)()
        assert found.shape == wanted.shape and found.tolist() == wanted.tolist(), name
        assert torch.equal(getattr(torch.Tensor, name)(ours), found), "as an unbound method too"


def test_values_are_shared():
    S = scorch.from_torch(DENSE, "csr")
    S.values().mul_(10)
    assert torch.equal(S.to_dense(), 10 * DENSE)


def test_arrays_of_another_format_are_refused():
    S = scorch.from_torch(DENSE, "csr")
    with pytest.raises(FormatError, match=r"indices\(\) is only available for coo tensors, but got csr"):
        S.indices()
    with pytest.raises(FormatError, match=r"ccol_indices\(\) is only available for csc tensors, but got csr"):
        S.ccol_indices()
    with pytest.raises(
        FormatError, match=r"crow_indices\(\) is only available for csr tensors, but got dcsr"
    ):
        S.to_format("dcsr").crow_indices()


def test_arrays_of_uneven_batches_are_refused_in_torchs_shape():
    uneven = torch.stack([DENSE, torch.eye(2, 4)])
    S = scorch.from_torch(uneven, "csr")
    with pytest.raises(FormatError, match=r"crow_indices\(\) is only available for batches of matrices"):
        S.crow_indices()
    assert S.values().tolist() == [1.5, 4.0, 2.0, 3.0, 1.0, 1.0]


def test_methods_are_found_where_torch_functions_are_off(S):
    with torch._C.DisableTorchFunctionSubclass():
        assert S.coalesce() is S and S._nnz() == S.nnz and S.values().numel() == S.nnz
        assert S.to_sparse_csr().format == scorch.Format("csr")


# other formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "format"),
    [
        (lambda t: t.to_sparse(), "coo"),
        (lambda t: t.to_sparse_coo(), "coo"),
        (lambda t: t.to_sparse(1), "od"),
        (lambda t: t.to_sparse(dense_dim=1), "od"),
        (lambda t: t.to_sparse(layout=torch.sparse_csc), "csc"),
        (lambda t: t.to_sparse(layout=torch.sparse_bsr, blocksize=(2, 2)), "bsr(2,2)"),
        (lambda t: t.to_sparse_csr(), "csr"),
        (lambda t: t.to_sparse_csc(), "csc"),
        (lambda t: t.to_sparse_bsr((2, 2)), "bsr(2,2)"),
        (lambda t: t.to_sparse_bsc(blocksize=(1, 4)), "bsc(1,4)"),
    ],
)
def test_conversions_by_torchs_names(S, call, format):
    found = call(S)
    assert type(found) is scorch.SparseTensor and found.format == scorch.Format(format)
    check_storage(found)
    assert torch.equal(found.to_dense(), DENSE)
    assert found.to_torch().layout == call(DENSE).layout


def test_conversions_of_batches():
    S = scorch.from_torch(BATCH, "csf")
    assert S.to_sparse_csr().format == scorch.Format("csr", dims=3)
    assert S.to_sparse_csr(dense_dim=1).format == scorch.Format("dsd")
    assert torch.equal(S.to_sparse_bsr((2, 2)).to_dense(), BATCH)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda S: S.to_sparse(3), ShapeError, "between 1 and 2, the number of dimensions, but got 3"),
        (lambda S: S.to_sparse(0), ShapeError, "but got 0"),
        (lambda S: S.to_sparse(layout=torch.strided), FormatError, "strided is not a sparse layout"),
        (lambda S: S.to_sparse(1, layout=torch.sparse_csr), ArgumentError, "but got both"),
        (lambda S: S.to_sparse(blocksize=(2, 2)), ArgumentError, "blocksize= is only supported for"),
        (lambda S: S.to_sparse(layout=torch.sparse_bsr), ArgumentError, "bsr needs blocksize="),
        (lambda S: S.to_sparse_bsr((2, 0)), ArgumentError, r"but got \(2, 0\)"),
        (lambda S: S.to_sparse_bsr((2,)), ArgumentError, "rows and columns of a block"),
        (lambda S: S.to_sparse_csr(dense_dim=1), ShapeError, "two sparse dimensions"),
    ],
)
def test_wrong_conversions_say_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call(scorch.from_torch(DENSE))


# transposes ------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    registry.look_up(torch.ops.aten.permute).run is None, reason="sparse tensors cannot permute yet"
)
def test_transposes_share_the_arrays(S):
    for found, wanted in ((S.T, DENSE.T), (S.mT, DENSE.mT), (S.H, DENSE.H), (S.t(), DENSE.t())):
        assert torch.equal(found.to_dense(), wanted)
        check_storage(found)
        assert found.storage.values.data_ptr() == S.storage.values.data_ptr()


# masks -----------------------------------------------------------------------------------------------


MASK = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]])


@pytest.mark.parametrize("format", [*FORMATS, "bsr(2,3)"])
def test_sparse_mask_takes_the_values_at_the_pattern(S, format):
    mask = scorch.from_torch(MASK, format)
    has_all = mask.format.is_blocked or format == "sd"  # every block and row has an entry
    stored = torch.ones_like(DENSE) if has_all else MASK
    for given in (S, DENSE, DENSE.to_sparse(), S.double()):
        found = given.sparse_mask(mask)
        check_storage(found)
        assert found.format == mask.format and found.storage.pattern is mask.storage.pattern
        assert found.dtype == given.dtype and torch.equal(found.to_dense(), DENSE.to(given.dtype) * stored)


def test_sparse_mask_by_one_of_torchs_tensors(S):
    found = S.sparse_mask(MASK.to_sparse_csr())
    assert found.format == scorch.Format("csr") and torch.equal(found.to_dense(), DENSE * MASK)


def test_sparse_mask_of_nothing():
    assert torch.equal(scorch.zeros(2, 4, format="csr").sparse_mask(MASK.to_sparse()).to_dense(), 0 * MASK)
    assert scorch.from_torch(DENSE).sparse_mask(scorch.zeros(2, 4, format="coo")).nnz == 0


def test_wrong_masks_are_refused():
    S = scorch.from_torch(DENSE)
    with pytest.raises(ShapeError, match=r"expected a mask of shape \(2, 4\), but got \(4, 2\)"):
        S.sparse_mask(torch.ones(4, 2).to_sparse())
    with pytest.raises(OperandError, match=r"but got a dense one; use mask\.to_sparse\(\)"):
        S.sparse_mask(MASK)
    with pytest.raises(OperandError, match="but got a list"):
        S.sparse_mask([1])


# entries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_eliminate_zeros(format):
    stored = scorch.sparse_coo_tensor([[0, 0, 1, 1], [0, 1, 1, 3]], [0.0, 2.0, -0.0, float("nan")], (2, 4))
    S = stored.to_format(format)
    found = S.eliminate_zeros()
    check_storage(found)
    assert found.format == S.format and found.nnz <= S.nnz
    assert torch.equal(found.to_dense().nan_to_num(7.0), S.to_dense().nan_to_num(7.0))
    if format in ("coo", "csr", "csc", "dcsr", "csf"):
        assert S.nnz == 4 and found.nnz == 2


def test_eliminate_zeros_drops_empty_blocks():
    S = scorch.from_torch(torch.ones(4, 4), "bsr(2,2)")
    S.values()[1:3] = 0
    assert S.eliminate_zeros().values().shape == (2, 2, 2)


def test_eliminate_zeros_leaves_the_operand_alone(S):
    found = S.eliminate_zeros()
    assert found is not S and torch.equal(found.to_dense(), DENSE) and torch.equal(S.to_dense(), DENSE)


@pytest.mark.parametrize("k", [-1, 0, 1, 3])
@pytest.mark.parametrize("values", [7.0, [5.0], [5.0, 0.0, 6.0, 8.0], np.arange(3.0)], ids=str)
def test_setdiag_is_that_of_scipy(S, k, values):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    wanted = scipy_sparse.lil_array(DENSE.cpu().numpy())
    length = min(2 + min(k, 0), 4 - max(k, 0))
    wanted.setdiag(values if np.isscalar(values) else list(values)[:length], k)
    found = S.setdiag(values, k)
    check_storage(found)
    assert found.format == S.format and torch.equal(found.to_dense(), torch.tensor(wanted.toarray()))
    assert torch.equal(S.to_dense(), DENSE)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda S: S.setdiag(1.0, k=4), ArgumentError, "between -1 and 3"),
        (lambda S: S.setdiag(1.0, k=-2), ArgumentError, "but got -2"),
        (lambda S: S.setdiag(1.0, k=0.5), OperandError, "must be an integer"),
        (lambda S: S.setdiag([[1.0]]), ShapeError, r"but got shape \(1, 1\)"),
        (lambda S: S.int().setdiag(0.5), DtypeError, "cannot be cast"),
        (lambda S: S.setdiag("x"), OperandError, "not an array of numbers"),
        (lambda S: scorch.from_torch(BATCH).setdiag(1.0), ShapeError, "setdiag expected a matrix"),
    ],
)
def test_wrong_diagonals_say_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call(scorch.from_torch(DENSE))


@pytest.mark.parametrize("format", ["csr", "coo", "csc", "dcsr", "bsr(1,2)", "sd"])
def test_a_pattern_gets_other_values(format):
    S = scorch.from_torch(DENSE, format)
    values = torch.arange(S.values().numel(), dtype=torch.float64).view(S.values().shape).requires_grad_()
    found = S.with_values(values)
    check_storage(found.detach())
    assert found.format == S.format and found.dtype == torch.float64
    assert torch.equal(found.values(), values) and torch.equal(S.to_dense(), DENSE)
    (found * found).sum().backward()
    assert torch.equal(values.grad, 2 * values.detach())
    for number, dtype in ((1, S.dtype), (0.5, S.dtype), (2j, torch.complex64)):
        filled = S.with_values(number)
        assert filled.dtype == dtype and bool((filled.values() == number).all())
    assert S.bool().with_values(1.0).dtype == torch.float32


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (torch.ones(2), ShapeError, r"have the shape of S.values\(\), .*, but got \(2,\)"),
        ([[1.0]], ShapeError, r"but got \(1, 1\)"),
        ("x", OperandError, "not an array of numbers"),
        (None, OperandError, "values"),
    ],
)
def test_wrong_values_say_what_is_wrong(S, values, error, message):
    with pytest.raises(error, match=message):
        S.with_values(values)


def test_all_of_it_on_a_large_matrix():
    S = scorch.rand(200_000, 200_000, density=5e-8, format="dcsr")
    assert S.nnz == 2000 and S.eliminate_zeros().nnz <= 2000
    assert S.setdiag([1.0, 2.0]).nnz in range(2000, 2003)
    assert torch.equal(S.sparse_mask(S).values(), S.values())
    assert S.to_sparse_csr().to_sparse_csc().nnz == 2000
