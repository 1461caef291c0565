"""Any tensor in any format is the same tensor, and goes from each format to every other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.drawing import DTYPES, SIZES, formats, random_dense
from scorch import Format, SparseTensor
from scorch._src.formats import as_format
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.construct import from_torch
from validity import check_storage, dense_of

FEWER = max(10, settings().max_examples // 2)  # each case compiles two or three kernels


@st.composite
def dense_tensors(draw, most: int = 4):
    shape = tuple(draw(st.sampled_from(SIZES)) for _ in range(draw(st.integers(0, most))))
    while torch.Size(shape).numel() > 500:
        shape = tuple(size // 2 for size in shape)
    dtype = draw(st.sampled_from(DTYPES))
    density = draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    return random_dense(shape, dtype, density, draw(st.integers(0, 2**16)))


def check(found: torch.Tensor, dense: torch.Tensor, form: Format) -> None:
    """``found`` is ``dense`` stored as ``form``."""
    assert found.shape == dense.shape and found.dtype == dense.dtype
    if form.is_dense:
        assert type(found) is torch.Tensor
        assert torch.equal(found, dense)
        return
    assert isinstance(found, SparseTensor)
    assert found.format == form
    check_storage(found)
    assert torch.equal(dense_of(found), dense)


@settings(max_examples=FEWER)
@given(st.data(), dense_tensors())
def test_dense_to_any_format_and_back(data, dense):
    form = data.draw(formats(dense.dim()))
    found = from_torch(dense, form)
    check(found, dense, form)
    assert torch.equal(found.to_dense(), dense)


@settings(max_examples=FEWER)
@given(st.data(), dense_tensors())
def test_any_format_to_any_format(data, dense):
    first, second = data.draw(formats(dense.dim())), data.draw(formats(dense.dim()))
    found = from_torch(from_torch(dense, first), second)
    check(found, dense, second)


@settings(max_examples=FEWER)
@given(st.data(), dense_tensors())
def test_coordinates_in_any_order_with_repeats(data, dense):
    """As torch: repeats are summed, whatever the format asked for and however many dimensions are dense."""
    sparse = data.draw(st.integers(0, dense.dim()))
    form = data.draw(st.none() | formats(dense.dim()))
    seed = data.draw(st.integers(0, 2**16))
    count = data.draw(st.integers(0, 12)) if 0 not in dense.shape[:sparse] else 0
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, max(1, size), (count,), generator=generator) for size in dense.shape[:sparse]]
    indices = torch.stack(rows) if rows else torch.zeros(0, count, dtype=torch.int64)
    values = random_dense((count, *dense.shape[sparse:]), dense.dtype, 0.8, seed + 1)
    found = from_coordinates(indices, values, dense.shape, form)
    wanted = torch.zeros(dense.shape, dtype=dense.dtype)
    for entry in range(count):
        place = tuple(indices[:, entry].tolist())
        wanted[place] = wanted[place] + values[entry]
    asked = form or Format(
        "o" * sparse + "d" * (dense.dim() - sparse) if dense.dim() else "dense", dims=dense.dim()
    )
    if sparse == 0 and form is None:
        asked = as_format("dense", dense.dim())
    check(found, wanted, asked)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["coo", "csr", "csc", "dcsr", "bsr(2,3)", "bsc(3,2)", "so", "sd"])
def test_every_dtype_in_the_usual_formats(name, dtype):
    dense = random_dense((5, 6), dtype, 0.4, 1)
    check(from_torch(dense, name), dense, as_format(name, 2))


@pytest.mark.parametrize("shape", [(0,), (1,), (0, 0), (0, 4), (4, 0), (1, 1), (3, 0, 2), (1, 1, 1)])
@pytest.mark.parametrize("name", ["coo", "csr", "csf"])
def test_sizes_zero_and_one(shape, name):
    dense = torch.ones(shape)
    check(from_torch(dense, name), dense, as_format(name, len(shape)))


def test_explicit_zeros_stay():
    found = from_coordinates([[0, 1], [1, 0]], [0.0, 2.0], (2, 2))
    assert found.nnz == 2
    assert found.to_format("csr").nnz == 2


def test_dense_formats_give_plain_tensors():
    dense = torch.eye(3)
    assert type(from_torch(dense, "dense")) is torch.Tensor
    assert type(from_torch(dense, "csr").to_format("dd")) is torch.Tensor
    assert type(from_torch(torch.tensor(2.0))) is torch.Tensor


def test_cost_follows_the_entries_and_not_the_shape():
    n = 2**20
    found = from_coordinates([[n - 1, 5, 5], [3, n - 1, 7]], [1.0, 2.0, 3.0], (n, n))
    for name in ("dcsr", "dcsc", "csr", "csc", "coo"):
        found = found.to_format(name)
        check_storage(found)
        assert found.nnz == 3


def test_sizes_beyond_int32_use_int64():
    n = 2**31
    found = from_coordinates([[n - 1, 5], [3, n]], [1.0, 2.0], (n, n + 1))
    assert found.storage.pattern.index_dtype == torch.int64
    check_storage(found)
    swapped = found.to_format(Format("ss", order=(1, 0)))
    check_storage(swapped)
    assert swapped.storage.pattern.crd[0].tolist() == [3, n]
    back = swapped.to_format("coo")
    assert back.indices().tolist() == [[5, n - 1], [n, 3]] and back.values().tolist() == [2.0, 1.0]


def test_sizes_up_to_int32_use_int32():
    n = 2**31 - 1
    found = from_coordinates([[n - 1, 5], [3, n - 1]], [1.0, 2.0], (n, n))
    assert found.storage.pattern.index_dtype == torch.int32
    check_storage(found)


def test_converting_changes_nothing_in_the_source():
    S = from_torch(torch.eye(3), "csr")
    before = [array.clone() for array in S.storage.pattern.arrays]
    other = S.to_format("csc")
    other.storage.values.fill_(7)
    assert torch.equal(S.to_dense(), torch.eye(3))
    assert all(torch.equal(a, b) for a, b in zip(before, S.storage.pattern.arrays, strict=True))


def test_nan_and_infinity_are_no_zeros():
    dense = torch.tensor([[float("nan"), 0.0, -0.0], [float("inf"), 0.0, 1.0]])
    for name in ("coo", "csr", "csc"):
        found = from_torch(dense, name)
        assert found.nnz == 3
        assert torch.equal(found.to_dense().nan_to_num(5.0), dense.nan_to_num(5.0))
