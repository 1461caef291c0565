"""Weights with N:M sparsity: the positions of values in windows of columns replace their columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import scorch
from scorch._src.backends.base import routines_for
from scorch._src.backends.by_torch.layers import Layer
from scorch._src.backends.cpu.routines import by_rows, groups, linear
from scorch._src.compiler.target import host_target, using_target
from scorch._src.nn import prune
from scorch._src.nn.weights.stored_values import store_values
from scorch._src.ops.products.groups import find_positions
from scorch._src.ops.products.linear import bind_batch

pytestmark = pytest.mark.cpu("routines of the CPU")
STORED = (torch.float32, torch.bfloat16, torch.int8)


@pytest.fixture(autouse=True)
def other_cpus() -> Iterator[None]:
    """Forget what holds for one CPU only."""
    linear._plan.cache_clear()
    by_rows.text_of.cache_clear()
    yield
    linear._plan.cache_clear()
    by_rows.text_of.cache_clear()


def layer_of(nm: tuple[int, int], rows: int, columns: int, stored: torch.dtype = torch.float32) -> Any:
    weight = torch.randn(rows, columns)
    layer = scorch.nn.SparseLinear.from_mask(weight, prune.nm_mask(weight, *nm)).eval()
    layer.bias = torch.nn.Parameter(torch.randn(rows))
    if stored != torch.float32:
        store_values(layer, stored)
    return layer


def unpack(positions: torch.Tensor, rows: int, each: int, lanes: int) -> torch.Tensor:
    """Return the place of each entry, row by row."""
    halves = torch.stack([positions & 15, positions >> 4], -1).view(-1, each, lanes)
    if lanes == 16:
        halves = torch.stack([halves[..., :8], halves[..., 8:]], -1).flatten(-2)
    return halves.transpose(1, 2).reshape(-1, each)[:rows]


@st.composite
def n_of_m(draw: st.DrawFn) -> tuple[int, int]:
    m = draw(st.sampled_from([2, 4, 8]))
    return draw(st.integers(1, m - 1)), m


@given(
    nm=n_of_m(),
    rows=st.integers(1, 40),
    windows=st.integers(1, 12),
    batch=st.integers(1, 19),
    stored=st.sampled_from(STORED),
    vector_bytes=st.sampled_from([32, 64]),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_products_are_the_dense_ones(
    nm: tuple[int, int],
    rows: int,
    windows: int,
    batch: int,
    stored: torch.dtype,
    vector_bytes: int,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    columns = 16 * windows
    layer, x, residual = (
        layer_of(nm, rows, columns, stored),
        torch.randn(batch, columns),
        torch.randn(batch, rows),
    )
    with using_target(dataclasses.replace(host_target(), vector_bytes=vector_bytes)):
        pos, crd = layer.pattern.pos[1], layer.pattern.crd[1]
        positions = groups.pack_positions(pos, crd, columns)
        assert positions is not None
        weight = (pos, positions, layer.values.detach())
        call = Layer(weight, layer.bias.detach(), x, layer.scales, "relu", residual)
        found = linear.multiply_batch(call)
    dense = layer.weight.detach().to_dense().double()
    wanted = F.linear(x.double(), dense, layer.bias.detach().double()).relu() + residual
    assert found is not None
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    lanes, each = vector_bytes // 4, crd.numel() // rows
    assert torch.equal(unpack(positions, rows, each, lanes).long(), crd.view(rows, each).long() % lanes)


@pytest.mark.whole
@torch.no_grad()
def test_layers_multiply_batches_of_all_sizes() -> None:
    torch.manual_seed(0)
    for nm in ((2, 4), (1, 4), (2, 8), (1, 8), (1, 16), (3, 16), (5, 8), (1, 32)):
        layer = layer_of(nm, 70, 96)
        dense = layer.weight.detach().to_dense().double()
        for shape in ((96,), (1, 96), (3, 96), (2, 4, 96), (16, 96), (17, 96)):
            x = torch.randn(shape)
            wanted = F.linear(x.double(), dense, layer.bias.double())
            for _ in range(3):  # the first, the prepared and the repeated call
                torch.testing.assert_close(layer(x).double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.whole
@torch.no_grad()
def test_one_row_is_prepared_unless_codes_are_faster() -> None:
    for nm in ((2, 4), (1, 4)):
        layer, x = layer_of(nm, 16, 32), torch.randn(1, 32)
        product = bind_batch(x, layer.weight.detach(), None)
        if nm == (2, 4) and groups.has_fast_codes():
            assert product is None
            continue
        assert product is not None
        found = product(layer.values, None, None, None, x)
        torch.testing.assert_close(found, x @ layer.weight.to_dense().T, rtol=1e-4, atol=1e-4)


def test_calls_see_values_that_change() -> None:
    torch.manual_seed(0)
    layer, x = layer_of((1, 4), 32, 32), torch.randn(4, 32)
    with torch.no_grad():
        before = [layer(x) for _ in range(3)][-1]
        layer.values.data.mul_(2)  # which no version counts
        after = layer(x)
    torch.testing.assert_close(after - layer.bias, 2 * (before - layer.bias))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_rows(threads: int) -> None:
    torch.manual_seed(0)
    layer, x, before = layer_of((1, 8), 1031, 128), torch.randn(2, 128), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            found = layer(x)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found, F.linear(x, layer.weight.to_dense(), layer.bias), rtol=1e-4, atol=1e-4)


def test_only_windows_with_as_many_entries_have_places() -> None:
    pack = groups.pack_positions
    with using_target(dataclasses.replace(host_target(), vector_bytes=32)):
        for mask in (torch.eye(8, 16), torch.ones(3, 4), torch.zeros(2, 8)):
            pattern = scorch.nn.SparseLinear.from_mask(mask, mask).pattern
            pos, crd = pattern.pos[1], pattern.crd[1]
            assert pos is not None and crd is not None
            assert pack(pos, crd, mask.shape[1]) is None
        uneven = torch.zeros(2, 16)
        uneven[0, [0, 1, 8]], uneven[1, [0, 8, 9]] = 1, 1
        pattern = scorch.nn.SparseLinear.from_mask(uneven, uneven).pattern
        assert pack(pattern.pos[1], pattern.crd[1], 16) is None  # type: ignore[arg-type]
    narrow = dataclasses.replace(host_target(), vector_bytes=16)
    with using_target(narrow):
        layer = layer_of((2, 4), 4, 16)
        assert pack(layer.pattern.pos[1], layer.pattern.crd[1], 16) is None


def test_other_dtypes_and_large_batches_read_columns() -> None:
    layer = layer_of((1, 4), 8, 32)
    assert find_positions(torch.randn(1, 32, dtype=torch.float64), layer.pattern) is None
    assert find_positions(torch.randn(17, 32), layer.pattern) is None
    few = find_positions(torch.randn(2, 32), layer.pattern)
    assert (few is not None) == routines_for(torch.ones(1)).reads_positions(torch.float32, 2, 0.25)


@torch.no_grad()
def test_infinities_of_columns_that_are_not_stored_do_not_matter() -> None:
    torch.manual_seed(0)
    layer, x = layer_of((1, 8), 1, 64), torch.randn(2, 64)
    x[:, layer.weight.detach().to_dense()[0] == 0] = torch.inf
    assert bool(layer(x).isfinite().all())
