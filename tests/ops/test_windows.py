"""Convolutions and pooling of tensors with few entries are those of the dense tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import scorch
from scorch import SparseTensor
from scorch._src.ops import conv
from scorch.errors import DensityError, ShapeError

FORMS = ["coo", "csr", "csf"]


@pytest.fixture(autouse=True, scope="module")
def lists_for_all():
    """Lists also where dense windows are faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv, "MAX_POOL_DENSITY", 1.0)
        patch.setattr(conv, "MAX_CONV_DENSITY", 1.0)
        yield


def few(*shape: int, entries: int = 9, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.zeros(shape, dtype=torch.float64)
    flat = torch.randperm(dense.numel(), generator=generator)[:entries]
    dense.view(-1)[flat] = torch.randn(len(flat), generator=generator, dtype=torch.float64)
    return dense.to(dtype)


def same(found: torch.Tensor, wanted: torch.Tensor, **tolerance: float) -> None:
    plain = found.to_dense() if isinstance(found, SparseTensor) else found
    torch.testing.assert_close(plain, wanted, **tolerance)


@given(st.data())
def test_pooling(data):
    dims = data.draw(st.integers(1, 3))
    sizes = {1: (2, 3, 150), 2: (2, 3, 17, 23), 3: (2, 2, 9, 8, 11)}[dims]
    sizes = sizes[data.draw(st.integers(0, 1)) :]  # without a batch too
    x = few(*sizes, seed=data.draw(st.integers(0, 5)))
    S = scorch.from_torch(x, format=data.draw(st.sampled_from(FORMS)))
    kernel = data.draw(st.integers(1, 3))
    options = {
        "stride": data.draw(st.sampled_from([None, 1, 2, 3])),
        "padding": data.draw(st.integers(0, kernel // 2)),
        "ceil_mode": data.draw(st.booleans()),
    }
    largest = [F.max_pool1d, F.max_pool2d, F.max_pool3d][dims - 1]
    dilation = data.draw(st.integers(1, 2))
    found = largest(S, kernel, dilation=dilation, **options)
    assert isinstance(found, SparseTensor)
    same(found, largest(x, kernel, dilation=dilation, **options))
    average = [F.avg_pool1d, F.avg_pool2d, F.avg_pool3d][dims - 1]
    options["count_include_pad"] = data.draw(st.booleans())
    found = average(S, kernel, **options)
    assert isinstance(found, SparseTensor)
    same(found, average(x, kernel, **options))


def test_negative_entries_lose_against_places_that_are_not_stored():
    x = torch.zeros(1, 1, 200, dtype=torch.float64)
    x[0, 0, :2] = -1.0
    x[0, 0, 4] = -2.0
    found = F.max_pool1d(scorch.from_torch(x, format="coo"), 2)
    same(found, F.max_pool1d(x, 2))
    assert found.to_dense()[0, 0, 0] == -1 and found.to_dense()[0, 0, 2] == 0


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@given(st.data())
def test_convolutions(data):
    dims, groups = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2]))
    sizes = {1: (2, 4, 150), 2: (2, 4, 17, 23), 3: (2, 4, 9, 8, 11)}[dims]
    sizes = sizes[data.draw(st.integers(0, 1)) :]
    x = few(*sizes, seed=data.draw(st.integers(0, 5)))
    S = scorch.from_torch(x, format=data.draw(st.sampled_from(FORMS)))
    kernel = tuple(data.draw(st.integers(1, 3)) for _ in range(dims))
    weight = torch.randn(6, 4 // groups, *kernel, dtype=torch.float64)
    options = {
        "padding": data.draw(st.sampled_from([0, 1, 2, "same", "valid"])),
        "dilation": data.draw(st.integers(1, 2)),
        "groups": groups,
    }
    if options["padding"] != "same":
        options["stride"] = data.draw(st.integers(1, 3))
    convolve = [F.conv1d, F.conv2d, F.conv3d][dims - 1]
    same(convolve(S, weight, **options), convolve(x, weight, **options))
    bias = torch.randn(6, dtype=torch.float64)
    few_weights = scorch.from_torch(weight, format="coo")
    same(convolve(S, few_weights, bias, **options), convolve(x, weight, bias, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    x = few(1, 2, 20, 20, dtype=dtype)
    S = scorch.from_torch(x, format="csr")
    weight = torch.randn(3, 2, 3, 3).to(dtype)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else {}
    same(F.conv2d(S, weight), F.conv2d(x, weight), **tolerance)
    same(F.avg_pool2d(S, 3), F.avg_pool2d(x, 3), **tolerance)
    same(F.max_pool2d(S, 3), F.max_pool2d(x, 3))


def test_places_of_maxima_and_wrong_options_are_those_of_torch():
    x = few(1, 1, 30, 30)
    S = scorch.from_torch(x, format="csr")
    values, places = F.max_pool2d(S, 2, return_indices=True)
    wanted = F.max_pool2d(x, 2, return_indices=True)
    same(values, wanted[0])
    assert torch.equal(places, wanted[1])
    with pytest.raises(RuntimeError, match="pad should be at most half"):
        F.max_pool2d(S, 2, padding=2)
    with pytest.raises(ShapeError, match="channels, but got 1"):
        F.conv2d(S, torch.randn(3, 2, 3, 3, dtype=torch.float64))


def test_a_bias_makes_the_result_dense_within_the_budget():
    S = scorch.from_torch(few(1, 1, 200, 200), format="coo")
    weight, bias = torch.ones(2, 1, 3, 3, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    assert isinstance(F.conv2d(S, weight), SparseTensor)
    with scorch.settings(dense_budget=50_000), pytest.raises(DensityError, match="omit the bias"):
        F.conv2d(S, weight, bias)
