"""SciPy's sparse arrays and matrices, of every format, both ways."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scorch
from properties.drawing import DTYPES, formats, random_dense
from scorch._src.formats import Format
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.interop.torch_layouts import from_scipy, to_scipy
from scorch.errors import DtypeError, OperandError, ShapeError, UnsupportedError
from validity import check_storage, dense_of

sparse = pytest.importorskip("scipy.sparse")

pytestmark = pytest.mark.cpu("matrices of SciPy are there")

FORMATS = ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]
KEPT = {"csr": "csr", "csc": "csc", "bsr": "bsr(2,3)"}
WITHOUT = [torch.float16, torch.bfloat16]  # SciPy has neither


def made(name: str, dense: torch.Tensor, kind: str = "array"):
    if name == "bsr":
        return getattr(sparse, f"bsr_{kind}")(dense.numpy(), blocksize=(2, 3))
    return getattr(sparse, f"{name}_{kind}")(dense.numpy())


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_comes_in(name, kind):
    dense = random_dense((4, 6), torch.float64, 0.4, 2)
    found = from_scipy(made(name, dense, kind))
    assert found.format == Format(KEPT.get(name, "coo"))
    check_storage(found)
    assert torch.equal(dense_of(found), dense)
    assert from_scipy(made(name, dense, kind), "dcsr").format == Format("dcsr")


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in WITHOUT], ids=str)
@pytest.mark.parametrize("name", ["csr", "csc", "coo", "bsr"])
def test_formats_that_both_have_go_there_and_back(name, dtype):
    dense = random_dense((4, 6), dtype, 0.4, 2)
    given = made(name, dense)
    back = to_scipy(from_scipy(given))
    assert back.format == name and back.dtype == given.dtype and back.shape == given.shape
    assert np.array_equal(back.toarray(), dense.numpy())


@pytest.mark.parametrize("name", ["csr", "csc", "bsr"])
def test_values_are_shared_both_ways_and_patterns_are_not(name):
    given = made(name, random_dense((4, 6), torch.float32, 0.5, 1))
    found = from_scipy(given)
    assert np.shares_memory(given.data, found.storage.values.numpy())
    assert given.indices.dtype == np.int32
    assert not np.shares_memory(given.indices, found.storage.pattern.crd[1].numpy())
    back = to_scipy(found)
    assert np.shares_memory(back.data, given.data)
    for ours, theirs in (
        (found.storage.pattern.crd[1], back.indices),
        (found.storage.pattern.pos[1], back.indptr),
    ):
        assert np.array_equal(ours.numpy(), theirs) and not np.shares_memory(ours.numpy(), theirs)


@settings(max_examples=max(10, settings().max_examples // 4))
@given(st.data(), st.lists(st.sampled_from([0, 1, 3, 4]), min_size=1, max_size=2))
def test_any_format_of_vectors_and_matrices_goes_out(data, shape):
    dense = random_dense(tuple(shape), torch.float64, 0.5, data.draw(st.integers(0, 99)))
    form = data.draw(formats(len(shape)).filter(lambda form: not form.is_dense))
    found = to_scipy(from_torch(dense, form))
    assert found.shape == dense.shape and np.array_equal(found.toarray(), dense.numpy())
    again = from_scipy(found, form)
    check_storage(again)
    assert torch.equal(dense_of(again), dense)


def test_vectors():
    dense = torch.tensor([0.0, 2.0, 0.0, 1.0])
    for name, form in (("coo", "coo"), ("csr", "csr")):
        found = from_scipy(getattr(sparse, f"{name}_array")(dense.numpy()))
        assert found.format == Format(form, dims=1) and torch.equal(dense_of(found), dense)


def test_unsorted_and_repeated_entries():
    data, indices, pointers = np.array([1.0, 2.0, 3.0]), np.array([2, 0, 2]), np.array([0, 3, 3])
    given = sparse.csr_array((data, indices, pointers), shape=(2, 3))
    found = from_scipy(given)
    check_storage(found)
    assert found.to_dense().tolist() == [[2.0, 0.0, 4.0], [0.0, 0.0, 0.0]]
    listed = sparse.coo_array((data, (np.array([1, 0, 1]), indices)), shape=(2, 3))
    assert from_scipy(listed).to_dense().tolist() == listed.toarray().tolist()
    assert from_scipy(listed).nnz == 2


def test_arrays_longer_than_what_they_hold():
    given = sparse.csr_array((np.ones(5), np.array([0, 1, 9, 9, 9]), np.array([0, 1, 2])), shape=(2, 3))
    found = from_scipy(given)
    check_storage(found)
    assert found.nnz == 2


def test_blocks_that_do_not_divide_go_through_coo():
    found = to_scipy(from_torch(torch.ones(3, 3), "bsr(2,2)"))
    assert found.format == "coo" and found.nnz == 9


def test_what_is_refused():
    with pytest.raises(OperandError, match="from_scipy expected a SciPy sparse array, but got a NumPy array"):
        from_scipy(np.eye(3))
    with pytest.raises(OperandError, match=r"but got a Tensor; create one with scorch\.from_torch"):
        from_scipy(torch.eye(3))
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        with pytest.raises(DtypeError, match=rf"do not support {name}; convert with \.float\(\) first"):
            to_scipy(from_torch(torch.eye(2, dtype=dtype)))
    with pytest.raises(DtypeError, match="uint16 is not supported"):
        from_scipy(sparse.csr_array(np.eye(2, dtype=np.uint16)))
    with pytest.raises(DtypeError, match=r"longdouble|float128"):
        from_scipy(sparse.csr_array(np.eye(2, dtype=np.longdouble)))


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(UnsupportedError, match=r"needs SciPy, which is not installed; .*pip install scipy"):
        to_scipy(from_torch(torch.eye(2)))


def test_tensors_of_three_dimensions():
    dense = torch.tensor([[[0.0, 1.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 3.0]]])
    for form in ("coo", "csf", "csr"):
        try:
            found = to_scipy(from_torch(dense, form))
        except ShapeError as error:
            assert "1-D or 2-D" in str(error)  # SciPy before 1.15
            return
        assert np.array_equal(found.toarray(), dense.numpy())
        assert torch.equal(from_scipy(found).to_dense(), dense)


def test_tensor_and_as_tensor_take_arrays_of_scipy():
    A = sparse.csr_array(np.array([[1.0, 0.0], [0.0, 4.0]], np.float32))
    wanted = torch.from_numpy(A.toarray())
    for found in (scorch.tensor(A), scorch.as_tensor(A), scorch.tensor(A, format="dcsr")):
        assert isinstance(found, scorch.SparseTensor) and torch.equal(found.to_dense(), wanted)
    assert scorch.as_tensor(A, dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("call", [np.asarray, np.array, lambda S: S.numpy()])
def test_numpy_is_told_what_to_do(call):
    with pytest.raises(
        OperandError, match=r"cannot be converted to a NumPy array; use \.to_scipy\(\).*torch\.from_numpy"
    ):
        call(from_torch(torch.eye(2), "csr"))
