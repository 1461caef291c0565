"""Routines of CUDA devices, emulated on the host: each gives what its reference gives."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

import scorch
from grid_emulator import EmulatedRoutines
from scorch._src.backends.by_torch.graphs import Options, Rows, Scores
from scorch._src.backends.cuda.backend import CudaBackend
from scorch._src.backends.cuda.device.kernel import CudaKernel
from scorch._src.backends.cuda.routines.cuda_routines import CudaRoutines
from scorch._src.backends.cuda.routines.rows import parts_of
from scorch._src.backends.routines import Routines

SOURCES = 50
SHORT = [5, 0, 33, 1, 0, 32, 64, 17]
LONG = [5, 0, 33, 300, 0, 32, 70, 17]  # rows of 300 and of 70 entries are cut
SHAPES = [
    (8, 16, torch.float32, torch.int32),
    (1, 1, torch.float64, torch.int64),
    (1, 16, torch.float32, torch.int64),
    (2, 33, torch.float64, torch.int32),
    (3, 5, torch.float32, torch.int32),
    (3, 16, torch.float64, torch.int64),
    (8, 33, torch.float32, torch.int32),
    (20, 12, torch.float64, torch.int32),
    (20, 40, torch.float32, torch.int32),
    (1, 700, torch.float32, torch.int64),
]
HALVES = [
    (4, 16, torch.float16, torch.int32),
    (3, 5, torch.bfloat16, torch.int64),
    (1, 40, torch.bfloat16, torch.int32),
    (20, 72, torch.float16, torch.int64),
]
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


class RefusedKernel(CudaKernel):
    def is_ready(self) -> bool:
        return False


def pattern(lengths: list[int], index: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    pos = torch.tensor([0, *lengths]).cumsum(0).to(index)
    return pos, torch.randint(SOURCES, (sum(lengths),)).to(index)


def check(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        if b is None or a is None:
            assert a is None
            continue
        is_single = b.dtype == torch.float32
        torch.testing.assert_close(
            a, b, rtol=1e-4 if is_single else 1e-10, atol=1e-5 if is_single else 1e-12, equal_nan=True
        )


def attend(
    routines: Routines, rows: Rows, x: torch.Tensor, scores: Scores, options: Options
) -> list[torch.Tensor]:
    """Compute a result and all gradients; the transposed rows are as good as any, in another order.

    Gradients are those of bfloat16, so that they are the same in all dtypes.
    """
    draw = torch.Generator().manual_seed(1)
    _, heads, width = x.shape
    grad, other = (
        torch.randn(count, heads, width, generator=draw).bfloat16().to(x.dtype)
        for count in (rows.pos.numel() - 1, SOURCES)
    )
    places = torch.randperm(rows.crd.numel(), generator=draw).to(rows.crd.dtype)
    out, kept = routines.graph_attention(rows, x, scores, options, True)
    assert kept is not None
    backward = routines.graph_attention_scores_backward(rows, x, scores, options, kept, grad)
    columns = rows._replace(places=places, counts=None)
    last = routines.graph_attention_features_backward(columns, options, kept, backward[0], other)
    return [out, kept, *backward, *last]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize(("heads", "features", "dtype", "index"), SHAPES)
def test_attention_is_its_reference(
    heads: int, features: int, dtype: torch.dtype, index: torch.dtype, lengths: list[int]
) -> None:
    torch.manual_seed(0)
    pos, crd = pattern(lengths, index)
    assert (parts_of(pos, 32) is None) == (lengths is SHORT)
    sizes = (SOURCES, heads), (len(lengths), heads), (crd.numel(), heads)
    scores = Scores(*(torch.randn(size, dtype=dtype) for size in sizes))
    x = torch.randn(SOURCES, heads, features, dtype=dtype)
    counts = torch.randint(1, 4, (crd.numel(),)).to(dtype)
    routines = EmulatedRoutines()
    cases = [
        (Rows(pos, crd), scores._replace(edges=None), Options(0.2)),
        (Rows(pos, crd, counts), scores, Options(0.2, 0.4, 12345)),
        (Rows(pos, crd), scores, Options(0.1, 0.9, -7)),
    ]
    for rows, given, options in cases:
        found = attend(routines, rows, x, given, options)
        wanted = attend(Routines(), rows, x, given, options)
        check(found, wanted)
        assert torch.equal(found[1].signbit(), wanted[1].signbit())
        again, nothing = routines.graph_attention(rows, x, given, options, False)
        assert torch.equal(again, found[0]) and nothing is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize(("heads", "features", "dtype", "index"), HALVES)
def test_attention_of_halves_is_that_of_float32(
    heads: int, features: int, dtype: torch.dtype, index: torch.dtype, lengths: list[int]
) -> None:
    torch.manual_seed(0)
    pos, crd = pattern(lengths, index)
    sizes = (SOURCES, heads), (len(lengths), heads), (crd.numel(), heads)
    scores, x = (
        [torch.randn(size).to(dtype) for size in sizes],
        torch.randn(SOURCES, heads, features).to(dtype),
    )
    counts, options = torch.randint(1, 4, (crd.numel(),)).to(dtype), Options(0.2, 0.4, 12345)
    found = attend(EmulatedRoutines(), Rows(pos, crd, counts), x, Scores(*scores), options)
    wide = Scores(*(score.float() for score in scores))
    wanted = attend(Routines(), Rows(pos, crd, counts.float()), x.float(), wide, options)
    out, kept, each, totals, *last = found
    assert {tensor.dtype for tensor in (out, totals, *last)} == {dtype}
    check([kept, each], wanted[1:3])  # whose sums are those of float32
    for mine, theirs in zip((out, totals, *last), (wanted[0], *wanted[3:]), strict=True):
        torch.testing.assert_close(mine.float(), theirs, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
def test_infinite_scores_are_those_of_the_reference(lengths: list[int]) -> None:
    torch.manual_seed(0)
    pos, crd = pattern(lengths, torch.int32)
    sources, targets = torch.randn(SOURCES, 2), torch.randn(len(lengths), 2)
    sources[::3] = -torch.inf
    targets[2, 0], targets[3, 1], targets[5, 0] = -torch.inf, torch.inf, torch.nan
    x = torch.randn(SOURCES, 2, 4)
    given = Rows(pos, crd), x, Scores(sources, targets), Options(0.2), True
    check(EmulatedRoutines().graph_attention(*given), Routines().graph_attention(*given))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    ("width", "dtype", "index"),
    [
        (1, torch.float32, torch.int32),
        (5, torch.float64, torch.int64),
        (24, torch.float32, torch.int64),
        (140, torch.float32, torch.int32),
        (66, torch.float64, torch.int32),
        (24, torch.float16, torch.int32),
        (35, torch.bfloat16, torch.int64),
    ],
)
def test_maxima_are_their_reference(
    width: int, dtype: torch.dtype, index: torch.dtype, lengths: list[int]
) -> None:
    torch.manual_seed(0)
    pos, crd = pattern(lengths, index)
    x = torch.randint(-3, 3, (SOURCES, width)).to(dtype)
    x[4, 0], x[7] = torch.nan, -torch.inf
    counts = torch.randint(1, 4, (crd.numel(),)).to(dtype)
    own, best = torch.randint(2, (len(lengths), width)).to(dtype), torch.randint(2, x.shape).to(dtype)
    shared = torch.randint(-9, 9, x.shape).to(dtype)  # whose sums have no rounding
    routines = EmulatedRoutines()
    for given in (None, counts):
        rows = pos, crd, given
        check(routines.neighbour_max(rows, x, True), Routines().neighbour_max(rows, x, True))
        check(routines.neighbour_max(rows, x, False), Routines().neighbour_max(rows, x, False))
        check(
            [routines.neighbour_max_backward(rows, own, best, shared)],
            [Routines().neighbour_max_backward(rows, own, best, shared)],
        )


def test_arrays_may_have_gaps_and_begin_anywhere() -> None:
    torch.manual_seed(0)
    pos, crd = pattern(SHORT, torch.int32)
    x = torch.randn(4, SOURCES, 3).transpose(0, 1)
    shifted = torch.randn(SOURCES * 4 + 1)[1:].view(SOURCES, 4)
    edges = torch.randn(4, crd.numel()).T
    given = Rows(pos, crd), x, Scores(shifted, torch.randn(len(SHORT), 4), edges), Options(0.2), True
    check(EmulatedRoutines().graph_attention(*given), Routines().graph_attention(*given))


@pytest.mark.parametrize("why", ["two dtypes", "no kernel", "no entries", "no rows", "many heads"])
def test_what_has_no_kernel_is_computed_by_torch(why: str) -> None:
    torch.manual_seed(0)
    dtype = torch.float64 if why == "two dtypes" else torch.float32
    heads = 33 if why == "many heads" else 2
    lengths = {"no entries": [0, 0], "no rows": []}.get(why, SHORT)
    pos, crd = pattern(lengths, torch.int64)
    routines = EmulatedRoutines()
    if why == "no kernel":
        routines.make_kernel = RefusedKernel  # type: ignore[assignment]
    x = torch.randn(SOURCES, heads, 4)
    scores = Scores(torch.randn(SOURCES, heads, dtype=dtype), torch.randn(len(lengths), heads, dtype=dtype))
    given = Rows(pos, crd), x, scores, Options(0.2)
    check(attend(routines, *given), attend(Routines(), *given))
    if why == "many heads":
        return
    maxima = routines.neighbour_max((pos, crd, None), x.flatten(1), True)
    check(maxima, Routines().neighbour_max((pos, crd, None), x.flatten(1), True))
    assert all(not kernel.is_ready() for kernel in routines._attention.values())


def test_devices_have_these_routines() -> None:
    assert isinstance(CudaBackend.routines, CudaRoutines)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_layers_run_by_them(dropout: float) -> None:
    torch.manual_seed(0)
    graph = scorch.from_torch((torch.rand(40, 40) < 0.2).float(), format="csr")
    layer = scorch.nn.GATConv(6, 4, heads=3, dropout=dropout)
    x, results = torch.randn(40, 6, requires_grad=True), []
    for backend in (None, "emulated"):
        with scorch.settings(backend=backend) if backend else nullcontext():
            torch.manual_seed(1)
            out = layer(x, graph)
            results.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    check(results[1], results[0])
