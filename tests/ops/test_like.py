"""Tensors like a sparse one: zeros_like, rand_like, new_zeros, dropout, copies and comparisons."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch import SparseTensor
from scorch.errors import DensityError, OperandError
from validity import check_storage

FORMATS = ["csr", "csc", "coo", "bsr(3,4)", "sd"]
N = 200_000


def matrix() -> torch.Tensor:
    dense = torch.zeros(4, 6)
    dense[0, 1], dense[2, 3], dense[3, 5] = 1.0, -2.0, 3.0
    return dense


@pytest.fixture(params=FORMATS)
def S(request) -> SparseTensor:
    return scorch.from_torch(matrix(), format=request.param)


@pytest.fixture(scope="module")
def huge() -> SparseTensor:
    crd = torch.arange(0, N, 100).repeat(2, 1)
    return scorch.sparse_coo_tensor(crd, torch.ones(crd.shape[1]), (N, N), format="csr")


# of the same pattern ---------------------------------------------------------------------------------

ON_PATTERN = {
    "rand_like": torch.rand_like,
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint_like": lambda x: torch.randint_like(x, 2, 9),
    "empty_like": torch.empty_like,
    "normal_": lambda x: x.clone().normal_(2, 1),
    "uniform_": lambda x: torch.nn.init.uniform_(x.clone(), 1, 2),
    "random_": lambda x: x.clone().random_(1, 9),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.5),
    "bernoulli": lambda x: torch.bernoulli(x.abs().clamp(max=1)),
    "poisson": lambda x: torch.poisson(x.abs()),
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout1d": lambda x: F.dropout1d(x, 0.5),
}


@pytest.mark.parametrize("name", ON_PATTERN)
def test_random_numbers_stand_where_entries_are(name, S):
    found = ON_PATTERN[name](S)
    check_storage(found)
    outside = torch.ones(4, 6, dtype=torch.bool)
    outside[tuple(S.to_format("coo").indices())] = False  # what blocks store are entries too
    assert found.shape == S.shape and not found.to_dense()[outside].any()
    assert name == "dropout1d" or (found.format == S.format and found.nnz == S.nnz)


@pytest.mark.parametrize("name", ON_PATTERN)
def test_random_numbers_like_a_huge_tensor(name, huge):
    assert ON_PATTERN[name](huge).nnz == huge.nnz


def test_random_numbers_are_those_of_torch(S):
    torch.manual_seed(3)
    found = torch.rand_like(S).storage.values
    torch.manual_seed(3)
    wanted = torch.rand_like(S.storage.values)
    inside = found != 0  # the padding of blocks stays zero
    assert torch.equal(found[inside], wanted[inside])


def test_dropout_keeps_or_drops_and_scales():
    ones = scorch.from_torch(torch.ones(50, 50), format="csr")
    values = F.dropout(ones, 0.5).values()
    assert set(values.tolist()) == {0.0, 2.0} and 800 < int((values != 0).sum()) < 1700
    assert torch.equal(F.dropout(ones, 1.0).to_dense(), torch.zeros(50, 50))


# filled ----------------------------------------------------------------------------------------------

FILLED = {
    "zeros_like": torch.zeros_like,
    "zeros_like int": lambda x: torch.zeros_like(x, dtype=torch.int64),
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 3),
    "full_like 0": lambda x: torch.full_like(x, 0, dtype=torch.float64),
    "fill_": lambda x: x.clone().fill_(2),
    "fill_ by a tensor": lambda x: x.clone().fill_(torch.tensor(2.0)),
    "fill_ 0": lambda x: x.clone().fill_(0),
    "zero_": lambda x: x.clone().zero_(),
    "new_zeros": lambda x: x.new_zeros(3, 2),
    "new_ones": lambda x: x.new_ones((2,), dtype=torch.int64),
    "new_full": lambda x: x.new_full((2, 2), 5),
    "new_tensor": lambda x: x.new_tensor([1, 2]),
    "new_empty": lambda x: x.new_empty(2, 0),
    "apply_": lambda x: x.clone().apply_(lambda value: value + 1),
}


@pytest.mark.parametrize("name", [name for name in FILLED if name != "apply_"])
def test_filled(name, S):
    found, wanted = FILLED[name](S), FILLED[name](matrix())
    plain = found.to_dense() if isinstance(found, SparseTensor) else found
    torch.testing.assert_close(plain, wanted, rtol=0, atol=0)


@pytest.mark.cpu("torch calls functions of Python only there")
def test_filled_by_a_function(S):
    test_filled("apply_", S)


@pytest.mark.parametrize("name", ["zeros_like", "full_like 0", "fill_ 0", "zero_"])
def test_zeros_like_a_huge_tensor(name, huge):
    found = FILLED[name](huge)
    assert found.shape == huge.shape and not found.values().any()


@pytest.mark.parametrize("name", ["new_zeros", "new_tensor"])
def test_few_numbers_like_those_of_a_huge_tensor(name, huge):
    wanted = FILLED[name](torch.ones(2))
    assert torch.equal(FILLED[name](huge), wanted)


@pytest.mark.parametrize("name", ["ones_like", "full_like", "fill_", "apply_"])
def test_all_places_of_a_huge_tensor_are_refused(name, huge):
    with pytest.raises(DensityError):
        FILLED[name](huge)
    with pytest.raises(DensityError):
        huge.new_zeros(N, N)


# with format= and density= ---------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["dense", "csr"])
def test_format_and_density(given):
    x = scorch.from_torch(matrix().double(), format=given)
    for made in (
        scorch.rand_like(x, density=0.25),
        scorch.randn_like(x, density=0.25, format="coo"),
        scorch.randint_like(x, 1, 9, density=0.25),
        scorch.randint_like(x, 9, density=0.25),
    ):
        assert made.nnz == 6 and str(made.format) == "coo" and made.dtype == torch.float64
    assert scorch.rand_like(x, density=0.5, format="csc", dtype=torch.float32).dtype == torch.float32
    assert scorch.empty_like(x, format="csr").nnz == 0
    full = scorch.full_like(x, 2, format="csr")
    assert torch.equal(full.to_dense(), torch.full((4, 6), 2.0, dtype=torch.float64)) and full.nnz == 24
    assert scorch.rand_like(x, format="csc").nnz == (24 if given == "dense" else 3)
    assert type(scorch.rand_like(matrix())) is torch.Tensor
    assert scorch.rand_like(scorch.from_torch(matrix(), format="csr")).nnz == 3
    with pytest.raises(OperandError, match="must be a tensor, but got a list; create one with"):
        scorch.full_like([1], 2, format="csr")


# copies, and what Python asks of tensors -------------------------------------------------------------


def test_copies(S):
    dense = matrix()
    stream = io.BytesIO()
    torch.save({"weight": S}, stream)
    stream.seek(0)
    copies = [copy.deepcopy(S), pickle.loads(pickle.dumps(S)), S.clone(), torch.load(stream)["weight"]]
    for found in copies:
        assert found.format == S.format
        found.mul_(2)
        assert torch.equal(found.to_dense(), 2 * dense) and torch.equal(S.to_dense(), dense)
    for shared in (S.detach(), copy.copy(S), S.data, S.contiguous(), S.to(torch.float32), S.to(dense.device)):
        assert shared.storage.values.data_ptr() == S.storage.values.data_ptr()
    for dtype in (torch.float64, torch.int32, torch.bool, torch.complex64):
        assert torch.equal(S.to(dtype).to_dense(), dense.to(dtype))
        assert S.type(dtype).format == S.format
    assert S.type() == dense.type() and S.type(dense.double().type()).dtype == torch.float64


def test_what_python_asks(S):
    dense = matrix()
    assert len(S) == 4 and 3.0 in S and 7.0 not in S and 0.0 in S
    assert [row.to_dense().tolist() for row in S] == dense.tolist()
    assert [float(value) for value in S[2]] == dense[2].tolist()
    assert {S: 1}[S] == 1 and torch.is_tensor(S) and torch.is_floating_point(S)
    assert float(S[2, 3]) == -2.0 and S.sum().item() == 2.0 and bool(S[:1, 1:2]) and not bool(S[:1, :1])
    assert "shape=(4, 6)" in repr(S) and str(S) == f"{S}"
    assert S.tolist() == dense.tolist()
    for call in (S.numpy, S.untyped_storage):
        with pytest.raises(OperandError):
            call()


def test_rows_are_made_when_they_are_asked_for(huge):
    rows = iter(huge)
    assert next(rows).nnz == 1 and next(rows).nnz == 0


def test_parts_write_to_the_tensor(S):
    for number, row in enumerate(S):
        row.fill_(number)
    assert torch.equal(S.to_dense(), torch.arange(4.0)[:, None].expand(4, 6))


def test_comparisons(S, huge):
    dense, other = matrix(), S.to_format("csc")
    assert torch.equal(S, other) and torch.equal(S, dense) and torch.equal(dense, S)
    assert torch.allclose(S, other * (1 + 1e-7)) and torch.allclose(S, dense) and torch.allclose(dense, S)
    assert not torch.allclose(S, other * 1.1) and not torch.allclose(S, dense + 1)
    assert not torch.allclose(S * math.nan, other * math.nan)
    assert torch.allclose(huge, huge * (1 + 1e-7)) and not torch.allclose(huge, huge.roll(1, 0))
    torch.testing.assert_close(S, S.clone())
    with pytest.raises(AssertionError):
        torch.testing.assert_close(S, 2 * S)
