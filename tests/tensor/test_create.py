"""torch's functions that make tensors, with ``format=`` and ``density=``."""

from __future__ import annotations

import resource

import numpy as np
import pytest
import torch

import scorch
from on_device import is_on_device
from properties.drawing import DTYPES
from scorch._src.tensor.create import check
from scorch.errors import (
    ArgumentError,
    DensityError,
    DtypeError,
    FormatError,
    OperandError,
    ShapeError,
    UnsupportedError,
)
from validity import check_storage

FORMATS = [
    "coo",
    "csr",
    "csc",
    "dcsr",
    "dcsc",
    "bsr(2,2)",
    "bsc(2,3)",
    "sd",
    scorch.Format("ss", order=(1, 0)),
]


def same(found, wanted, format=None):
    """``found`` is stored as ``format`` and is the dense tensor ``wanted``."""
    if format is None:
        assert type(found) is torch.Tensor
    else:
        assert type(found) is scorch.SparseTensor and found.format == scorch.Format(format, dims=wanted.dim())
        check_storage(found)
        found = found.to_dense()
    assert found.dtype == wanted.dtype and torch.equal(found, wanted)


CALLS = {
    "zeros": lambda m, **o: m.zeros(3, 4, **o),
    "zeros of a tuple": lambda m, **o: m.zeros((3, 4), **o),
    "zeros of a size": lambda m, **o: m.zeros(size=(3, 4), **o),
    "zeros of a torch.Size": lambda m, **o: m.zeros(torch.Size([3, 4]), **o),
    "zeros of a dtype": lambda m, **o: m.zeros([3, 4], dtype=torch.int64, **o),
    "empty of nothing": lambda m, **o: m.empty(0, 4, **o),
    "ones": lambda m, **o: m.ones(3, 4, **o),
    "bool ones": lambda m, **o: m.ones(3, 4, dtype=torch.bool, **o),
    "full": lambda m, **o: m.full((3, 4), 2.5, **o),
    "full of an int": lambda m, **o: m.full((3, 4), 2, **o),
    "full of zeros": lambda m, **o: m.full((3, 4), 0.0, **o),
    "full of a bool": lambda m, **o: m.full((3, 4), True, **o),
    "full of complex": lambda m, **o: m.full((3, 4), 2j, **o),
    "eye": lambda m, **o: m.eye(4, **o),
    "wide eye": lambda m, **o: m.eye(3, 5, **o),
    "high eye": lambda m, **o: m.eye(5, 3, dtype=torch.float64, **o),
    "tensor": lambda m, **o: m.tensor([[0, 1], [2, 0]], **o),
    "tensor of a dtype": lambda m, **o: m.tensor([[0, 1], [2, 0]], dtype=torch.float16, **o),
    "as_tensor": lambda m, **o: m.as_tensor(np.array([[0.0, 1.0], [2.0, 0.0]]), **o),
    "as_tensor of a dtype": lambda m, **o: m.as_tensor([[0, 1], [2, 0]], dtype=torch.float32, **o),
    "zeros_like": lambda m, **o: m.zeros_like(torch.ones(3, 4, dtype=torch.int32), **o),
    "ones_like": lambda m, **o: m.ones_like(torch.zeros(3, 4), dtype=torch.float64, **o),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_it_is_torchs_result_in_that_format(call, format):
    same(call(scorch, format=format), call(torch), format)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_without_a_format_it_is_torchs_result(call):
    same(call(scorch), call(torch))
    same(call(scorch, format="dense"), call(torch))


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "csf", "dsd", "ods", "dod", "bsr(2,2)"])
def test_zeros_of_three_dimensions(format):
    same(scorch.zeros(2, 3, 4, format=format), torch.zeros(2, 3, 4), format)
    same(scorch.zeros(2, 0, 4, format=format), torch.zeros(2, 0, 4), format)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    for call in (scorch.zeros, scorch.ones):
        same(call(2, 3, dtype=dtype, format="csr"), getattr(torch, call.__name__)(2, 3, dtype=dtype), "csr")
    same(scorch.eye(3, dtype=dtype, format="csr"), torch.eye(3).to(dtype), "csr")


@pytest.mark.parametrize("bounds", [(5,), (1, 9, 2), (3, -3, -1), (0.0, 1.0, 0.25), (0,)], ids=str)
def test_arange(bounds):
    for format in ("coo", "s"):
        same(scorch.arange(*bounds, format=format), torch.arange(*bounds), format)
    same(scorch.arange(*bounds), torch.arange(*bounds))
    same(scorch.arange(end=4, format="s"), torch.arange(4), "s")


def test_a_number_has_no_format():
    same(scorch.zeros((), format="coo"), torch.zeros(()))
    same(scorch.ones((), format="coo"), torch.ones(()))


def test_torchs_other_options_work_without_a_format():
    out = torch.empty(2, 3)
    assert scorch.zeros(2, 3, out=out) is out
    assert scorch.ones(2, requires_grad=True).requires_grad
    assert scorch.zeros(2, 2, layout=torch.sparse_csr).layout == torch.sparse_csr
    assert scorch.empty(2, 3, device="meta").device.type == "meta"
    assert scorch.zeros_like(out, memory_format=torch.preserve_format).shape == (2, 3)
    data = np.zeros(3)
    if not is_on_device():
        assert scorch.as_tensor(data).data_ptr() == torch.as_tensor(data).data_ptr()


def test_sparse_tensors_stay_sparse():
    S = scorch.eye(3, format="csr")
    assert scorch.as_tensor(S) is S and scorch.as_tensor(S, dtype=torch.float64).dtype == torch.float64
    same(scorch.as_tensor(S, format="coo"), torch.eye(3), "coo")
    same(scorch.zeros_like(S, format="csc"), torch.zeros(3, 3), "csc")
    same(scorch.ones_like(S, format="csc"), torch.ones(3, 3), "csc")
    copied = scorch.tensor(S)
    same(copied, torch.eye(3), "csr")
    assert copied.values().data_ptr() != S.values().data_ptr()


# at random -------------------------------------------------------------------------------------------

RANDOM = {
    "rand": lambda *size, **o: scorch.rand(*size, **o),
    "randn": lambda *size, **o: scorch.randn(*size, **o),
    "randint": lambda *size, **o: scorch.randint(1, 100, size, **o),
}


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
@pytest.mark.parametrize("density", [0, 0.001, 0.1, 0.24, 0.25, 0.5, 0.9, 1])
def test_entries_are_as_many_as_asked_for(make, density):
    S = make(70, 30, density=density, format="csr")
    check_storage(S)
    assert S.nnz == round(density * 2100) and S.shape == (70, 30)
    assert make(70, 30, density=density).format == scorch.Format("coo")


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_random_entries_do_not_depend_on_the_format(format):
    torch.manual_seed(3)
    S = scorch.rand(7, 6, density=0.3, format=format)
    check_storage(S)
    torch.manual_seed(3)
    same(S, scorch.rand(7, 6, density=0.3).to_dense(), format)


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_seeds_and_generators_repeat(make):
    torch.manual_seed(1)
    first, second = make(50, 50, density=0.1), make(50, 50, density=0.1)
    torch.manual_seed(1)
    again = make(50, 50, density=0.1)
    assert torch.equal(first.to_dense(), again.to_dense())
    assert not torch.equal(first.to_dense(), second.to_dense())
    state = torch.get_rng_state()
    drawn = [make(50, 50, density=0.1, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(drawn[0].to_dense(), drawn[1].to_dense())
    assert torch.equal(torch.get_rng_state(), state), "a generator of one's own leaves torch's alone"


def test_without_density_values_are_torchs():
    for call in (
        lambda m, **o: m.rand(4, 5, **o),
        lambda m, **o: m.randn((4, 5), dtype=torch.float64, **o),
        lambda m, **o: m.randint(9, (4, 5), **o),
        lambda m, **o: m.randint(-3, 3, (4, 5), generator=torch.Generator().manual_seed(2), **o),
        lambda m, **o: m.randint(low=2, high=9, size=(4, 5), dtype=torch.int32, **o),
    ):
        torch.manual_seed(8)
        wanted = call(torch)
        torch.manual_seed(8)
        same(call(scorch), wanted)
        torch.manual_seed(8)
        same(call(scorch, format="csr"), wanted, "csr")


def test_values_have_the_distribution_asked_for():
    torch.manual_seed(0)
    values = scorch.rand(1000, 1000, density=0.02).values()
    assert values.min() >= 0 and values.max() < 1 and abs(values.mean() - 0.5) < 0.02
    values = scorch.randn(1000, 1000, density=0.02, dtype=torch.float64).values()
    assert values.dtype == torch.float64 and abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05
    S = scorch.randint(-2, 3, (1000, 1000), density=0.02)
    assert S.dtype == torch.int64 and S.nnz == 20_000 and set(S.values().tolist()) == {-2, -1, 0, 1, 2}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("density", [0.02, 0.24, 0.4])
def test_every_place_is_as_likely_as_any_other(density):
    torch.manual_seed(0)
    counts = torch.zeros(10, 10)
    draws = 2000
    for _ in range(draws):
        counts += (scorch.rand(10, 10, density=density).to_dense() > 0).float()
    expected = draws * density
    spread = (expected * (1 - density)) ** 0.5
    assert (counts - expected).abs().max() < 5 * spread


def test_density_of_other_shapes():
    assert scorch.rand(1000, density=0.1).nnz == 100
    assert scorch.rand(10, 20, 30, density=0.01, format="csf").nnz == 60
    assert scorch.rand(0, 5, density=0.5).nnz == 0
    assert scorch.rand((), density=1).dim() == 0
    assert scorch.rand(3, 4, density=np.float64(0.5)).nnz == 6


# memory ----------------------------------------------------------------------------------------------


def test_large_shapes_take_memory_for_their_entries_only():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    n = 200_000
    S = scorch.rand(n, n, density=5e-8)
    assert S.nnz == 2000
    assert scorch.randn(n, n, density=5e-8, format="csr").nnz == 2000
    assert scorch.randint(5, (n, n), density=5e-8, format="dcsc").nnz == 2000
    assert scorch.rand(2**20, 2**20, 2**20, density=1e-15, format="csf").nnz == 1153
    for format in ("csr", "csc", "coo", "dcsr"):
        assert scorch.zeros(n, n, format=format).nnz == 0
        assert scorch.eye(n, format=format).nnz == n
        assert scorch.zeros_like(S, format=format).nnz == scorch.full((n, n), 0, format=format).nnz == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000, "in KiB; dense is 160 GB"


def test_what_stores_every_place_is_held_against_the_budget():
    for call in (
        lambda **o: scorch.ones(200_000, 200_000, **o),
        lambda **o: scorch.full((200_000, 200_000), 3.0, **o),
        lambda **o: scorch.rand(200_000, 200_000, **o),
        lambda **o: scorch.ones_like(scorch.zeros(200_000, 200_000, format="coo"), **o),
        lambda **o: scorch.zeros(10**13, 2, **o),
    ):
        with pytest.raises(DensityError, match="bytes of dense memory"):
            call(format="csr")
    with pytest.raises(DensityError, match="arange"):
        scorch.arange(10**13, format="s")
    with scorch.settings(dense_budget=100), pytest.raises(DensityError, match="ones of shape"):
        scorch.ones(10, 10, format="csr")


# wrong input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: scorch.zeros(3, -1, format="csr"), ShapeError, r"size\[1\] must be a non-negative integer"),
        (lambda: scorch.zeros("ab", format="csr"), ShapeError, "but got 'ab'"),
        (lambda: scorch.eye(2.5, format="csr"), ShapeError, r"non-negative integer, but got 2\.5"),
        (lambda: scorch.zeros(3, 3, format="cssr"), FormatError, "did you mean 'csr'"),
        (lambda: scorch.zeros(3, 3, format="ddds"), FormatError, "this one is 2-D"),
        (lambda: scorch.zeros(3, 3, format=3), FormatError, "not 3"),
        (lambda: scorch.zeros(3, 3, format="csr", dtype=torch.float8_e5m2), DtypeError, "float8_e5m2"),
        (
            lambda: scorch.zeros(3, 3, format="csr", device="meta"),
            OperandError,
            "supports only the devices cpu",
        ),
        (
            lambda: scorch.zeros(3, 3, format="csr", pin_memory=True),
            UnsupportedError,
            "is not supported here",
        ),
        (
            lambda: scorch.zeros(3, 3, format="csr", out=torch.ones(3)),
            UnsupportedError,
            "does not support out=",
        ),
        (
            lambda: scorch.zeros(3, 3, format="csr", layout=torch.sparse_csr),
            OperandError,
            "does not support layout=.*use format='csr'",
        ),
        (
            lambda: scorch.zeros(3, 3, format="csr", colour=1),
            OperandError,
            "unexpected keyword argument 'colour'",
        ),
        (
            lambda: scorch.zeros(3, 3, format="csr", density=0.1),
            OperandError,
            "unexpected keyword argument 'density'",
        ),
        (lambda: scorch.zeros_like([1], format="csr"), OperandError, "must be a tensor, but got a list"),
        (lambda: scorch.full((2, 2), "a", format="csr"), OperandError, "fill_value must be a number"),
        (lambda: scorch.rand(3, 3, density=1.5), ArgumentError, "between 0 and 1, but got 1.5"),
        (lambda: scorch.rand(3, 3, density=-0.1), ArgumentError, "but got -0.1"),
        (lambda: scorch.rand(3, 3, density=float("nan")), ArgumentError, "but got nan"),
        (lambda: scorch.rand(3, 3, density="much"), OperandError, "but got 'much'"),
        (lambda: scorch.rand(2**40, 2**40, density=0.1), ShapeError, r"less than 2\*\*63"),
        (
            lambda: scorch.rand(3, 3, density=0.1, dtype=torch.int64),
            DtypeError,
            "rand does not support int64",
        ),
        (lambda: scorch.randint(5, density=0.1), OperandError, r"\(high, size\) or \(low, high, size\)"),
        (lambda: scorch.randint(5, 5, (3, 3), density=0.1), ArgumentError, "low=5 and high=5"),
        (lambda: scorch.randint(0.5, (3, 3), density=0.1), OperandError, "integer bounds"),
    ],
)
def test_wrong_input_says_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_arrays_go_to_the_device_that_is_named():
    elsewhere = torch.device("meta")
    values = torch.ones(2, requires_grad=True)
    assert check.moved(values, None) is values
    moved = check.moved([torch.arange(2), values, [1, 2]], elsewhere)
    assert [part.device for part in moved[:2]] == [elsewhere] * 2 and moved[2] == [1, 2]
    assert moved[1].requires_grad and check.moved([[0, 1], [1, 0]], elsewhere) == [[0, 1], [1, 0]]
