"""Products with a sparse weight in vectors of all widths, and on threads that run some parts, all or none.

Compilers emulate vectors that a CPU lacks.
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.routines import by_rows, linear
from scorch._src.backends.routines import Layer
from scorch._src.compiler.target import host_target, using_target

SHAPES = ((33, 37), (48, 160))


@pytest.fixture(autouse=True)
def other_cpus() -> Iterator[None]:
    """Forget what holds for one CPU only."""
    linear._plan.cache_clear()
    by_rows.text_of.cache_clear()
    yield
    linear._plan.cache_clear()
    by_rows.text_of.cache_clear()


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
