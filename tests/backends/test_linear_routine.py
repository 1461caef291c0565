"""Products with a sparse weight in vectors of all widths, and on threads that run some parts, all or none.

Compilers emulate vectors that a CPU lacks.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.backends.by_torch.layers import Layer
from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.routines import by_rows, linear
from scorch._src.compiler.target import host_target, using_target
from scorch._src.ops.products import linear as products
from scorch._src.ops.products.activations import ACTIVATIONS

SHAPES = ((33, 37), (48, 160))


@pytest.fixture(autouse=True)
def other_cpus() -> Iterator[None]:
    """Forget what holds for one CPU only."""
    linear._plan.cache_clear()
    by_rows.text_of.cache_clear()
    yield
    linear._plan.cache_clear()
    by_rows.text_of.cache_clear()


def check_narrow_product(outputs: int, features: int, batch: int, form: str = "csr") -> None:
    """Check a product in bf16 against one in float64 of the same numbers: only the result is rounded."""
    layer = scorch.nn.SparseLinear(features, outputs, sparsity=0.5, format=form).bfloat16()
    x, residual = torch.randn(batch, features).bfloat16(), torch.randn(batch, outputs).bfloat16()
    assert layer.bias is not None
    exact = F.linear(x.double(), layer.weight.detach().to_dense().double(), layer.bias.detach().double())
    with warm_kernels_only():
        found = layer(x), layer.fused(x, "relu", residual), layer.multiply(x, None)
    for result, wanted in zip(
        found, (exact, exact.relu() + residual, exact - layer.bias.detach().double()), strict=True
    ):
        assert result.dtype == torch.bfloat16
        torch.testing.assert_close(result.double(), wanted, rtol=2**-8, atol=1e-5)


@contextlib.contextmanager
def warm_kernels_only() -> Iterator[None]:
    """Fail where a generated kernel computes what the routine is for."""
    with mock.patch.object(products, "_rows_by_weight", side_effect=AssertionError("by a kernel")):
        yield


def check_product(outputs: int, features: int, batch: int) -> None:
    weight, bias = torch.randn(outputs, features).relu(), torch.randn(outputs)
    sparse = scorch.from_torch(weight, format="csr").storage
    x, residual = torch.randn(batch, features), torch.randn(batch, outputs)
    columns = sparse.pattern.crd[1]
    assert columns is not None
    matrix = (sparse.pattern.pos[1], columns.to(torch.int16), sparse.values)
    wanted = F.linear(x, weight, bias).relu()
    for added, want in ((None, wanted), (residual, wanted + residual)):
        found = linear.multiply_batch(Layer(matrix, bias, x, None, "relu", added))  # type: ignore[arg-type]
        assert found is not None
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-4)


@pytest.mark.whole
@pytest.mark.cpu("routines in C")
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@torch.no_grad()
def test_products_in_vectors_of_any_width(vector_bytes: int) -> None:
    torch.manual_seed(0)
    target, threads = dataclasses.replace(host_target(), vector_bytes=vector_bytes), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with using_target(target):
            for (outputs, features), batch in itertools.product(SHAPES, (2, 8, 16, 21, 48, 70)):
                check_product(outputs, features, batch)
                check_narrow_product(outputs, features, batch)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.cpu("routines in C")
@torch.no_grad()
def test_products_do_not_depend_on_who_runs_which_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_all(begin: int, end: int, grain: int, body: Any, context: int) -> int:
        body(begin, end, context)  # as inside another parallel loop
        return 0

    def run_backwards(begin: int, end: int, grain: int, body: Any, context: int) -> int:
        for part in reversed(range(begin, end)):
            body(part, part + 1, context)
        return 0

    torch.manual_seed(0)
    number = ctypes.c_longlong
    body_type = ctypes.CFUNCTYPE(None, number, number, ctypes.c_void_p)
    loop_type = ctypes.CFUNCTYPE(ctypes.c_int, number, number, number, body_type, ctypes.c_void_p)
    for run in (run_all, run_backwards):
        loop = loop_type(run)
        at = ctypes.cast(loop, ctypes.c_void_p).value
        monkeypatch.setattr(parallel, "shared_by", lambda work, each, at=at: (at, 5))
        for (outputs, features), batch in itertools.product((*SHAPES, (2000, 160)), (1, 3, 40, 150)):
            check_product(outputs, features, batch)
            check_narrow_product(outputs, features, batch)


@pytest.mark.whole
@pytest.mark.cpu("routines in C")
@pytest.mark.parametrize("form", ["csr", "bsr(1,4)", "bsr(4,4)", "bsr(16,1)"])
@torch.no_grad()
def test_modules_in_bfloat16_multiply_in_the_routine(form: str) -> None:
    torch.manual_seed(0)
    for batch in (1, 2, 17, 64):
        check_narrow_product(48, 160, batch, form)


@pytest.mark.cpu("routines in C")
@torch.no_grad()
def test_weights_of_any_pattern_multiply_bfloat16() -> None:
    torch.manual_seed(0)
    for batch in (1, 5, 40):
        dense, x = torch.nn.Linear(64, 48).bfloat16(), torch.randn(batch, 64).bfloat16()
        layer = scorch.sparsify(dense, pattern="2:4", prefer="size")
        wanted = F.linear(x.double(), layer.weight.detach().to_dense().double(), layer.bias.double())  # type: ignore[operator, union-attr, arg-type]
        for _ in range(3):
            torch.testing.assert_close(layer(x).double(), wanted, rtol=2**-8, atol=1e-5)


@pytest.mark.cpu("routines in C")
@pytest.mark.parametrize("cache_bytes", [1 << 12, 1 << 21])
@torch.no_grad()
def test_parts_of_a_weight_become_dense_tiles(monkeypatch: pytest.MonkeyPatch, cache_bytes: int) -> None:
    """Where the CPU multiplies tiles; elsewhere the same plans are followed entry by entry."""
    torch.manual_seed(0)
    monkeypatch.setattr(linear, "PRODUCTS_BY_TILES", 1 << 30)
    threads = torch.get_num_threads()
    cpu = dataclasses.replace(host_target(), has_tiles=True, cache_bytes=cache_bytes)
    try:
        for count, (outputs, features) in itertools.product(
            (1, 3), ((33, 37), (48, 160), (5, 2), (100, 777))
        ):
            torch.set_num_threads(count)
            with using_target(cpu):
                for batch in (17, 40, 64, 129, 300):
                    check_narrow_product(outputs, features, batch)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.cpu("routines in C")
@torch.no_grad()
def test_zeros_of_dense_tiles_do_not_meet_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(linear, "PRODUCTS_BY_TILES", 1 << 30)
    layer, x = scorch.nn.SparseLinear(64, 48, sparsity=0.5).bfloat16(), torch.randn(70, 64).bfloat16()
    wanted = layer(x)
    for number in (float("inf"), float("nan")):
        x[40, 3] = number
        found, meets = layer(x), layer.weight.detach().to_dense()[:, 3] != 0
        assert torch.equal(found[40].isfinite(), ~meets)
        others = torch.arange(70) != 40
        torch.testing.assert_close(found[others], wanted[others], rtol=2**-7, atol=1e-5)


@pytest.mark.cpu("routines in C")
@torch.no_grad()
def test_bfloat16_rounds_as_pytorch_does() -> None:
    special = torch.tensor(
        [1e-40, -1e-40, 3.4e38, float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.00390625]
    )
    identity = scorch.eye(len(special), format="csr", dtype=torch.bfloat16)
    layer = scorch.nn.SparseLinear.from_weight(identity)
    for rows in (1, 20):
        x = special.bfloat16().expand(rows, -1).contiguous()
        wanted = torch.relu(x) + x
        for place in range(len(special)):  # what is stored nowhere is read by nobody
            found = layer.fused(x, "relu", x)[:, place]
            torch.testing.assert_close(found, wanted[:, place], equal_nan=True, rtol=0, atol=0)


@pytest.mark.whole
@pytest.mark.cpu("routines in C")
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@torch.no_grad()
def test_fused_activations_are_as_exact_as_pytorch(vector_bytes: int) -> None:
    far = torch.tensor(
        [88.0, 1e3, 1e20, 3e38, float("inf"), float("nan"), 5.499, 5.501, 5.6568542, 1e-30, 0.0]
    )
    x = torch.cat([torch.linspace(-9, 9, 3001), far, -far])
    x = x.reshape(-1, 1).contiguous()
    with using_target(dataclasses.replace(host_target(), vector_bytes=vector_bytes)):
        one = scorch.nn.SparseLinear.from_weight(scorch.eye(1, format="csr"))
        for name, exactly in ACTIVATIONS.items():
            for rows in (x, x[:1], x[3001:]):
                found, wanted = one.fused(rows, name).double(), exactly(rows.double())
                is_finite, bound = wanted.isfinite(), 5e-7 * rows.double().abs()
                assert bool(((found - wanted).abs() <= bound)[is_finite].all()), name
                torch.testing.assert_close(found[~is_finite], wanted[~is_finite], equal_nan=True)
