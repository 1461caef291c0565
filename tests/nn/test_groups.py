"""Weights that store four of every eight columns, as 2:4 sparsity does: codes replace their coordinates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.backends.base import routines_for
from scorch._src.nn import prune
from scorch._src.nn.weights.stored_values import store_values
from scorch._src.ops.products.groups import find_groups

PATTERNS = [(2, 4), (4, 8), (1, 2)]


def layer_of(nm: tuple[int, int], rows: int = 9, columns: int = 40, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    weight = torch.randn(rows, columns, dtype=dtype)
    return scorch.nn.SparseLinear.from_mask(weight, prune.nm_mask(weight, *nm)).eval()


def decode(layer: Any) -> torch.Tensor:
    """The weight, from its values, codes and table alone."""
    groups = find_groups(layer.pattern)
    assert groups is not None
    places = groups.table.reshape(-1, 4, 4)[groups.codes.long(), :, 0].long() // 4
    values = layer.values.detach().reshape(-1, 4)
    return torch.zeros(places.shape[0], 8).scatter_(1, places, values).reshape(layer.pattern.shape)


@pytest.mark.whole
@pytest.mark.parametrize("nm", PATTERNS)
def test_codes_stand_for_coordinates(nm: tuple[int, int]) -> None:
    layer = layer_of(nm)
    assert torch.equal(decode(layer), layer.weight.detach().to_dense())
    groups = find_groups(layer.pattern)
    assert groups is not None and groups.codes.numel() == layer.nnz // 4


def test_other_patterns_have_no_codes() -> None:
    for nm in ((1, 4), (2, 8), (8, 16), (3, 4)):
        assert find_groups(layer_of(nm, columns=48).pattern) is None
    assert find_groups(layer_of((1, 2), columns=4).pattern) is None  # less than a window
    uneven = torch.zeros(2, 16)
    uneven[0, :12], uneven[1, :4] = 1, 1
    assert find_groups(scorch.nn.SparseLinear.from_mask(uneven, uneven).pattern) is None
    crossing = torch.zeros(1, 16)
    crossing[0, 4:12] = 1
    crossing[0, 4] = 0
    crossing[0, 12] = 1
    assert find_groups(scorch.nn.SparseLinear.from_mask(crossing, crossing).pattern) is None


@pytest.mark.whole
@pytest.mark.parametrize("nm", PATTERNS)
def test_a_row_by_groups_is_the_dense_product(nm: tuple[int, int]) -> None:
    layer = layer_of(nm)
    dense, bias = layer.weight.detach().to_dense(), torch.randn(9)
    layer.bias = torch.nn.Parameter(bias)
    for x, residual in ((torch.randn(40), torch.randn(9)), (torch.randn(1, 1, 40), torch.randn(1, 1, 9))):
        with torch.no_grad():
            torch.testing.assert_close(layer(x), F.linear(x, dense, bias), rtol=1e-4, atol=1e-5)
            wanted = F.silu(F.linear(x, dense, bias)) + residual
            torch.testing.assert_close(layer.fused(x, "silu", residual), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.cpu("routines of the CPU")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_routine_shares_rows_among_threads(threads: int) -> None:
    layer, x = layer_of((2, 4), 1031, 64), torch.randn(64)
    groups, values, before = find_groups(layer.pattern), layer.values.detach(), torch.get_num_threads()
    assert groups is not None
    torch.set_num_threads(threads)
    try:
        weight = (layer.pattern.pos[1], groups.codes, values)
        found = routines_for(x).multiply_groups(weight, groups.table, None, x)
    finally:
        torch.set_num_threads(before)
    if found is None:
        pytest.skip("this CPU multiplies by coordinates")
    torch.testing.assert_close(found, layer.weight.detach().to_dense() @ x, rtol=1e-4, atol=1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_values_in_fewer_bits(dtype: torch.dtype) -> None:
    layer, x = layer_of((2, 4)), torch.randn(1, 40)
    store_values(layer, dtype)
    with torch.no_grad():
        wanted = F.linear(x, layer.weight.detach().float().to_dense())
        torch.testing.assert_close(layer(x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.bfloat16])
def test_other_dtypes_and_batches(dtype: torch.dtype) -> None:
    layer = layer_of((2, 4), dtype=dtype)
    for rows in (1, 3):
        x = torch.randn(rows, 40, dtype=dtype)
        with torch.no_grad():
            wanted = F.linear(x, layer.weight.detach().to_dense())
            torch.testing.assert_close(
                layer(x), wanted, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-2
            )


def test_gradients_of_grouped_weights() -> None:
    layer, x = layer_of((2, 4), dtype=torch.float64), torch.randn(1, 40, dtype=torch.float64)
    dense = layer.weight.detach().to_dense()
    x.requires_grad_()
    found = torch.autograd.grad(layer(x).sin().sum(), [x, layer.values])
    weight = dense.requires_grad_()
    wanted = torch.autograd.grad(F.linear(x, weight).sin().sum(), [x, weight])
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1][dense.detach() != 0])


def test_infinities_of_columns_that_are_not_stored_do_not_matter() -> None:
    layer, x = layer_of((2, 4), rows=1), torch.randn(1, 40)
    x[0, layer.weight.detach().to_dense()[0] == 0] = torch.inf
    with torch.no_grad():
        assert bool(layer(x).isfinite().all())
