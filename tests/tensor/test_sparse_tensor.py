"""A sparse tensor is a ``torch.Tensor``: facts, copies, pickles; and it refuses what it cannot be."""

from __future__ import annotations

import _thread
import copy
import io
import math
import os
import pickle
import sys
import threading
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch.multiprocessing  # registers how tensors go to other processes

import scorch
from fork_server import run_python
from on_device import is_on_device
from properties.drawing import DTYPES
from scorch._src.formats import Format
from scorch._src.storage.storage import Storage
from scorch._src.tensor import registry
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import (
    DeviceError,
    DtypeError,
    FormatError,
    MissingDeviceError,
    OperandError,
    ScorchError,
    UnsupportedError,
)
from validity import check_storage

DENSE = torch.tensor([[0.0, 1.5, 0.0], [2.0, 0.0, 3.0]])


@pytest.fixture
def S():
    return from_torch(DENSE, "csr")


# facts -----------------------------------------------------------------------------------------------


def test_facts_of_a_tensor(S):
    assert isinstance(S, torch.Tensor) and torch.is_tensor(S)
    assert S.shape == (2, 3) and S.size() == (2, 3) and S.size(0) == 2 and S.size(-1) == 3 and len(S) == 2
    assert S.dtype == torch.float32 and S.device == DENSE.device
    assert S.dim() == S.ndim == 2 and S.numel() == 6 and S.element_size() == 4
    assert (
        S.is_floating_point() and not S.is_complex() and not S.requires_grad and S.is_leaf and S.grad is None
    )
    assert S.is_sparse and S.layout == torch.strided  # strided to torch's C++, which knows no other wrappers
    assert torch.is_same_size(S, DENSE) and not torch.is_same_size(S, DENSE.t())
    assert not S.is_pinned()


def test_facts_of_a_sparse_tensor(S):
    assert S.format == Format("csr") and S.nnz == S._nnz() == 3 and S.density == 0.5
    assert S.values().tolist() == [1.5, 2.0, 3.0]
    assert S.crow_indices().tolist() == [0, 1, 3] and S.col_indices().tolist() == [1, 0, 2]
    assert [level["kind"] for level in S.levels] == ["dense", "compressed"]
    assert [level["dim"] for level in S.levels] == [0, 1] and [level["size"] for level in S.levels] == [2, 3]
    assert S.to_format("coo").indices().tolist() == [[0, 1, 1], [1, 0, 2]]
    columns = S.to_format("csc")
    assert columns.ccol_indices().tolist() == [0, 1, 2, 3] and columns.row_indices().tolist() == [1, 0, 1]
    assert from_torch(DENSE, "bsr(2,3)").values().shape == (1, 2, 3)
    assert from_torch(torch.zeros(0, 3)).density == 0.0


def test_arrays_of_another_format_are_refused(S):
    with pytest.raises(
        FormatError,
        match=r"indices\(\) is only available for coo tensors, but got csr; use \.to_format\('coo'\)",
    ):
        S.indices()
    with pytest.raises(FormatError, match=r"ccol_indices\(\) is only available for csc tensors, but got csr"):
        S.ccol_indices()


@pytest.mark.cpu("other devices are named")
def test_it_shows_what_it_is(S):
    text = (
        "SparseTensor(shape=(2, 3), dtype=float32, format=csr, nnz=3, density=50.00%,\n"
        "             indices=[[0, 1, 1],\n"
        "                      [1, 0, 2]],\n"
        "             values=[1.5000, 2.0000, 3.0000])"
    )
    assert repr(S) == str(S) == f"{S}" == text
    assert repr(from_torch(torch.zeros(0))) == "SparseTensor(shape=(0,), dtype=float32, format=o, nnz=0)"


@pytest.mark.cpu("other devices are named")
def test_it_shows_its_place_in_the_graph_of_autograd(S):
    assert "density=50.00%, requires_grad=True," in repr(S.requires_grad_())
    assert "grad_fn=<MulBackward0>," in repr(S * 2) and "requires_grad" not in repr(S * 2)
    assert "grad_fn=<EvaluateBackward>," in repr(S + S)
    assert "grad" not in repr(S.detach())


@pytest.mark.cpu("other devices are named")
def test_values_are_printed_as_torch_is_told_to(S):
    with torch._tensor_str.printoptions(precision=1):
        assert "values=[1.5, 2.0, 3.0])" in repr(S)
    large = scorch.rand(100, 100, density=0.1, format="csr")
    assert repr(large).count("\n") == 0 and repr(large).endswith("density=10.00%)")
    few = scorch.sparse_coo_tensor([[0], [0]], [1.0], (2**20, 2**20))
    assert "nnz=1, density=9.1e-11%" in repr(few)  # not 0.00%
    with torch._tensor_str.printoptions(threshold=math.inf):
        assert repr(large).count(".") > 1000
    with torch._tensor_str.printoptions(threshold=2):
        assert "values" not in repr(S)


@pytest.mark.cpu("other devices are named")
def test_inside_of_a_transform_only_facts_are_shown(S):
    shown = []

    def scaled(x):
        shown.append(repr(S * 2))
        return x

    torch.vmap(scaled)(torch.ones(2))
    assert shown == ["SparseTensor(shape=(2, 3), dtype=float32, format=csr, nnz=3, density=50.00%)"]


# copies ----------------------------------------------------------------------------------------------


def same(a, b):
    assert type(a) is scorch.SparseTensor and a.format == b.format
    check_storage(a)
    assert torch.equal(a.to_dense(), b.to_dense())


def test_clone_has_its_own_values_and_shares_the_pattern(S):
    for copied in (S.clone(), torch.clone(S), copy.deepcopy(S)):
        same(copied, S)
        assert copied.storage.pattern is S.storage.pattern
        copied.storage.values.zero_()
    assert torch.equal(S.to_dense(), DENSE)


def test_repeat_has_its_own_values(S):
    for made in (S.repeat(1, 1), S.tile(1, 1), torch.transpose_copy(S, 0, 1)):
        made.values().mul_(2)
    assert torch.equal(S.to_dense(), DENSE)


@pytest.mark.parametrize("form", ["csr", "coo", "csc", "dcsr"])
@pytest.mark.parametrize("other", ["csr", "coo", "csc", "dcsr"])
def test_changing_a_converted_tensor_leaves_the_other_alone(form, other):
    S = scorch.from_torch(DENSE, format=form)
    T = S.to_format(other)
    T.mul_(2)
    assert torch.equal(S.to_dense(), DENSE) and torch.equal(T.to_dense(), 2 * DENSE)
    S.zero_()
    assert torch.equal(T.to_dense(), 2 * DENSE)
    T = T.eliminate_zeros()
    T[0, 0] = 7
    assert T.to_dense()[0, 0] == 7 and torch.equal(S.to_dense(), torch.zeros_like(DENSE))


def test_detach_shares_everything(S):
    for found in (S.detach(), S.data, copy.copy(S), torch.ops.aten.alias(S)):
        same(found, S)
        assert found is not S and found.storage.values.data_ptr() == S.storage.values.data_ptr()


def test_deepcopy_of_a_list_keeps_one_tensor_one(S):
    first, second = copy.deepcopy([S, S])
    assert first is second


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_to_another_dtype(S, dtype):
    found = S.to(dtype)
    assert found.dtype == dtype and found.storage.pattern is S.storage.pattern
    check_storage(found)
    assert torch.equal(found.to_dense(), DENSE.to(dtype))
    assert S.to_dense(dtype).dtype == dtype


def test_conversions_by_name(S):
    assert S.double().dtype == torch.float64 and S.half().dtype == torch.float16
    assert (
        S.bool().dtype == torch.bool and S.int().dtype == torch.int32 and S.bfloat16().dtype == torch.bfloat16
    )
    assert S.float() is S and S.to(DENSE.device) is S and (is_on_device() or S.cpu() is S) and S.to(S) is S
    same(S.to(torch.float32, copy=True), S)
    assert S.to(torch.float64).float().format == S.format


def test_to_dense_under_torchs_names(S):
    assert torch.equal(torch.Tensor.to_dense(S), DENSE)
    assert torch.Tensor.to_dense(S, dtype=torch.float64).dtype == torch.float64


def test_other_dtypes_and_devices_are_refused(S):
    with pytest.raises(DtypeError, match="float8_e5m2 is not supported"):
        S.to(torch.float8_e5m2)
    with pytest.raises(DeviceError, match="device meta, because Scorch supports only the devices cpu"):
        S.to("meta")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_told_with_what_it_needs(S):
    words = r"A GPU needs a CUDA build of PyTorch .* an NVIDIA driver .*python -m scorch env"
    for call in (S.cuda, lambda: S.to("cuda")):
        with pytest.raises(MissingDeviceError, match=words) as caught:
            call()
        assert isinstance(caught.value, AssertionError)
    with pytest.raises(MissingDeviceError, match=words):
        scorch.eye(3, device="cuda", format="csr")


# pickles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["coo", "csr", "csc", "bsr(2,2)", "sd"])
def test_pickle_and_save(name):
    S = from_torch(DENSE, name)
    S.storage.key, S.storage.pattern.key, hash(S.format)  # what is kept on the way must not travel
    same(pickle.loads(pickle.dumps(S)), S)
    for weights_only in (False, True):
        file = io.BytesIO()
        torch.save({"weight": S}, file)
        file.seek(0)
        same(torch.load(file, weights_only=weights_only)["weight"], S)


def test_a_pickle_works_in_another_process(S, tmp_path):
    """Hashes of strings differ between processes, so a kept one must not travel."""
    hash(S.format)
    (tmp_path / "S.pickle").write_bytes(pickle.dumps(S))
    script = (
        "import pickle, sys, scorch; S = pickle.load(open(sys.argv[1], 'rb')); "
        "assert S.format in {scorch.Format('csr')}; print(S.to_dense().tolist())"
    )
    paths = os.pathsep.join(sys.path)
    done = run_python(["-c", script, tmp_path / "S.pickle"], env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(DENSE.tolist())


@pytest.mark.cpu("shared memory is there")
def test_a_tensor_sent_to_another_process_still_works_here(S):
    assert torch.equal(S.to_dense(), DENSE)
    before = [array.data_ptr() for array in S.storage.pattern.arrays]
    ForkingPickler.dumps(S)  # moves the arrays to shared memory
    assert [array.data_ptr() for array in S.storage.pattern.arrays] != before
    assert torch.equal(S.to_dense(), DENSE)


@pytest.mark.cpu("shared memory is there")
def test_share_memory(S):
    assert not S.is_shared()
    assert S.share_memory_() is S and S.is_shared()
    assert torch.equal(S.to_dense(), DENSE)


# what it is not --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "cure"),
    [
        (lambda S: S.numpy(), OperandError, r"use \.to_scipy\(\), or \.to_dense\(\)\.numpy\(\)"),
        (lambda S: np.asarray(S), OperandError, r"use \.to_scipy\(\)"),
        (lambda S: S.data_ptr(), OperandError, r"\.values\(\)\.data_ptr\(\)"),
        (lambda S: S.__dlpack__(), OperandError, r"pass \.values\(\)"),
        (lambda S: S.int().requires_grad_(), RuntimeError, "floating point"),
        (lambda S: setattr(S, "data", torch.ones(2, 3)), UnsupportedError, r"use S\.copy_\(other\)"),
        (lambda S: bool(S), RuntimeError, "ambiguous"),
        (lambda S: S.set_(), UnsupportedError, "use copy_"),
        (lambda S: S.set_(DENSE), UnsupportedError, "use copy_"),
        (lambda S: S.set_(DENSE.untyped_storage()), UnsupportedError, "use copy_"),
        (lambda S: DENSE.clone().set_(S), UnsupportedError, "use copy_"),
        (lambda S: S.resize_(2, 2), UnsupportedError, r"\(2, 2\) in place; use a slice"),
        (lambda S: S.resize_((2, 2)), UnsupportedError, r"\(2, 2\) in place; use a slice"),
        (lambda S: S.resize_as_(torch.zeros(1)), UnsupportedError, r"\(1,\) in place; use a slice"),
        (lambda S: S.sparse_resize_((9, 9), 2, 0), UnsupportedError, r"scorch\.sparse_coo_tensor"),
        (lambda S: S.storage(), UnsupportedError, r"\.values\(\)\.untyped_storage\(\)"),
        (lambda S: S.untyped_storage(), OperandError, r"\.values\(\)\.untyped_storage\(\)"),
        (lambda S: scorch.to_dlpack(S), OperandError, r"pass \.values\(\)"),
        (lambda S: torch.from_dlpack(S), OperandError, r"pass \.values\(\)"),
        (lambda S: np.from_dlpack(S), OperandError, r"pass \.values\(\)"),
    ],
)
def test_what_is_refused_says_what_to_do(S, call, error, cure):
    with pytest.raises(error, match=cure):
        call(S)
    assert torch.equal(S.to_dense(), DENSE)


@pytest.mark.parametrize(
    "call", [lambda t: t.cuda(), lambda t: t.to("cuda"), lambda t: t.to("mps"), lambda t: t.pin_memory()]
)
def test_a_device_that_is_not_there_is_refused_as_for_dense_tensors(S, call):
    try:
        call(DENSE)
    except Exception as refused:
        with pytest.raises(type(refused)) as told:
            call(S)
        assert isinstance(told.value, ScorchError) and str(S.format) in str(told.value)
    else:
        pytest.skip("the device is there")


def test_resizing_that_changes_nothing_is_fine(S):
    assert S.resize_(S.shape) is S and S.resize_as_(DENSE) is S
    assert torch.zeros(1).resize_as_(S).shape == S.shape


def test_not_requiring_grad_is_fine(S):
    assert S.requires_grad_(False) is S
    assert not torch.nn.Parameter(S, requires_grad=False).requires_grad


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_the_data_of_dense_tensors_do_not_become_sparse(kind) -> None:
    """The process crashed where the memory of x was read, since it did not exist."""
    S = scorch.eye(3, format="csr")
    x = torch.ones(3, 3) if kind is torch.Tensor else kind(torch.ones(3, 3))
    with pytest.raises(UnsupportedError, match=r"or use x\.copy_\(S\)"):
        x.data = S
    with torch.inference_mode(), pytest.raises(UnsupportedError, match=r"x\.data = S"):
        x.data = S
    x.data = torch.full((2, 2), 2.0)
    assert x.sum() == 8 and torch.equal(S.to_dense(), torch.eye(3))


def test_layers_whose_weights_become_sparse_get_new_parameters() -> None:
    layer = torch.nn.Linear(3, 2)
    dense = layer.weight.detach().clone()
    layer._apply(lambda x: from_torch(x, format="csr") if x.dim() == 2 else x)
    assert type(layer.weight.data) is SparseTensor and torch.equal(layer.weight.to_dense(), dense)


@pytest.mark.parametrize(
    "take",
    [
        lambda S: torch.utils.dlpack.to_dlpack(S),
        lambda S: torch.zeros(3).set_(S, 0, (3,)),
        lambda S: torch.zeros(3, 3).set_(S, 0, (3, 3), (3, 1)),
        lambda S: torch.ops.aten.set_(torch.zeros(3), S, 0, (3,), (1,)),
        lambda S: torch.zeros(3).set_(S._typed_storage()),
    ],
)
def test_memory_that_sparse_tensors_do_not_have_is_not_taken(take) -> None:
    """The process crashed where it was read."""
    S = scorch.eye(3, format="csr")
    with pytest.raises((RuntimeError, OperandError), match=r"data pointer|set_|no single storage|no strides"):
        take(S)
    with pytest.raises((RuntimeError, OperandError), match=r"data pointer|set_|no single storage|no strides"):
        take(S * 2)  # and once more, by the quickest way
    dense = torch.zeros(4).set_(torch.ones(6), 1, (2, 2))
    assert dense.tolist() == [[1, 1], [1, 1]]


@pytest.mark.whole
@pytest.mark.parametrize("create", [torch.Tensor.new, torch.Tensor.new_tensor])
def test_new_tensors_have_dtype_and_device_of_sparse_ones(create) -> None:
    S = scorch.eye(3, dtype=torch.float64, format="csr")
    made = create(S, [1, 2])
    assert type(made) is torch.Tensor and made.dtype == S.dtype and made.tolist() == [1, 2]
    same = S.new(S.requires_grad_())
    assert torch.equal(same.to_dense(), torch.eye(3, dtype=torch.float64)) and same.requires_grad


def test_operators_run_in_threads_that_python_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has called the first function of a thread, as in those of autograd for devices."""
    S, neg = from_torch(torch.eye(3), format="csr"), torch.ops.aten.neg.default
    raised: list[BaseException] = []
    ended = threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", lambda error: (raised.append(error.exc_value), ended.set()))
    monkeypatch.setattr(registry.look_up(neg), "run", lambda S: ended.set() or S)
    _thread.start_new_thread(SparseTensor.__torch_dispatch__, (neg, (SparseTensor,), (S,)))
    assert ended.wait(10) and not raised


def test_a_storage_on_a_device_may_be_filled_in_later() -> None:
    S = from_torch(torch.eye(3), format="csr")
    values = S.values().to("meta")
    early = SparseTensor(Storage.__new__(Storage), (3, 3), values)
    early.__dict__["storage"] = Storage(S.storage.pattern, values)
    assert early.device == values.device and early.nnz == 3
