"""Convolutions with sparse kernels of one pixel, which read a copy of the channels or the image itself."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import scorch
from scorch._src.backends.by_torch.convolutions import Windows
from scorch._src.backends.cpu import parallel
from scorch._src.backends.cpu.routines import by_rows, convolve
from scorch._src.compiler.target import host_target, using_target
from scorch._src.nn.pruned.sparse_conv import SparseConv2d

pytestmark = pytest.mark.cpu("routines in C")
IMAGES = ((1, 6, 1, 1), (2, 6, 7, 7), (1, 6, 5, 40), (3, 6, 16, 8))
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"stride": 2}, {"padding": 1}, {"groups": 2, "stride": (1, 3)})


@pytest.fixture(autouse=True)
def other_cpus() -> Iterator[None]:
    by_rows.text_of.cache_clear()
    yield
    by_rows.text_of.cache_clear()


def check(dtype: torch.dtype, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    conv = torch.nn.Conv2d(6, 10, 1, **options, dtype=dtype)
    with torch.no_grad():
        conv.weight[torch.rand_like(conv.weight) < 0.6] = 0
        matrix = scorch.from_torch(conv.weight.flatten(1), format="csr")
        layer, x = SparseConv2d.from_weight(matrix, conv).eval(), torch.randn(shape, dtype=dtype)
        wanted = conv.double()(x.double())
        tolerance = 1e-4 if dtype == torch.float32 else 1e-9
        torch.testing.assert_close(layer(x).double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.whole
@pytest.mark.parametrize("least", [0, 1 << 40])
def test_one_pixel_on_several_threads(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(convolve, "MIN_READ_OF_COPY", least)
    monkeypatch.setattr(by_rows, "MIN_ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr(parallel, "threads_for", lambda work, least: 3)
    for dtype, shape, options in itertools.product((torch.float32, torch.float64), IMAGES, OPTIONS):
        check(dtype, shape, options)


@pytest.mark.whole
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_one_pixel_in_vectors_of_any_width(vector_bytes: int) -> None:
    torch.manual_seed(0)
    with using_target(dataclasses.replace(host_target(), vector_bytes=vector_bytes)):
        for shape in IMAGES:
            check(torch.float32, shape, {})


def plan_of_pixels(channels: int, size: int) -> Any:
    """The plan of a convolution of one pixel, with one kernel of one entry."""
    windows = Windows((1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1)
    return convolve.plan_convolution(torch.tensor([0, 1]), torch.tensor([0]), windows, (channels, size, size))


def test_few_tiles_are_copied_by_one_thread_only() -> None:
    few, many = (plan_of_pixels(512, size) for size in (7, 56))
    assert convolve._copies_tiles(few, 1000, 1, 32, threads=1)
    assert not convolve._copies_tiles(few, 1000, 1, 32, threads=16)
    assert convolve._copies_tiles(few, 1 << 20, 1, 32, threads=16)
    assert convolve._copies_tiles(many, 1000, 1, 32, threads=16)
    wide = dataclasses.replace(few, is_pointwise=False)
    assert not convolve._copies_tiles(wide, 1 << 20, 1, 32, threads=1)
