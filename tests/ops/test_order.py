"""Sorting, ranks and counts by entries: what dense torch gives, and at any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from on_device import on_host
from properties.drawing import FEWER, formats, random_dense
from scorch import SparseTensor
from scorch.errors import DensityError, ScorchError

NAN, INF = math.nan, math.inf
FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
FLOATS = [torch.float64, torch.float32]
INTERPOLATIONS = ["linear", "lower", "higher", "midpoint", "nearest"]
SHAPES = [(7,), (1,), (5, 4), (1, 6), (6, 1), (3, 2, 4), (2, 1, 5)]


def plain(found: Any) -> torch.Tensor:
    return found.to_dense() if isinstance(found, SparseTensor) else found


def same(found: Any, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(plain(found), wanted, equal_nan=True, check_stride=False)


@st.composite
def pairs(draw, dtypes=tuple(DTYPES), with_nan: bool = True) -> tuple[torch.Tensor, SparseTensor]:
    """A dense tensor and the same one in any format, with repeated values, and perhaps NaN and infinity."""
    dtype, shape = draw(st.sampled_from(dtypes)), draw(st.sampled_from(SHAPES))
    seed, density = draw(st.integers(0, 10_000)), draw(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]))
    dense = random_dense(shape, dtype, density, seed)
    if with_nan and dtype.is_floating_point and draw(st.booleans()):
        choice = torch.randint(0, 12, shape, generator=torch.Generator().manual_seed(seed))
        for number, special in enumerate([NAN, INF, -INF]):
            dense = dense.masked_fill(choice == number, special)
    form = draw(formats(len(shape)).filter(lambda form: not form.is_dense))
    S = scorch.from_torch(dense, format=form)
    assert isinstance(S, SparseTensor)
    return dense, S


def refused_alike(call: Callable[[Any], Any], dense: torch.Tensor, S: SparseTensor) -> bool:
    """Whether torch refuses the call of a dense tensor; then of the sparse one it is refused too."""
    try:
        call(dense)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            call(S)
        return True
    return False


def points_at(found: Any, dense: torch.Tensor, dim: int, keepdim: bool = True) -> None:
    """The places of a result lead to its values."""
    values, places = plain(found[0]), found[1]
    assert places.dtype == torch.int64 and values.shape == places.shape
    at = places if keepdim else places.unsqueeze(dim)
    same(torch.gather(dense, dim, at), values if keepdim else values.unsqueeze(dim))


# sorting ---------------------------------------------------------------------------------------------


@FEWER
@given(pairs(), st.data())
def test_sort(pair, data):
    dense, S = pair
    dim = data.draw(st.integers(-dense.dim(), dense.dim() - 1))
    descending = data.draw(st.booleans())
    wanted = torch.sort(dense, dim=dim, descending=descending, stable=True)
    for stable in (True, False):
        found = torch.sort(S, dim=dim, descending=descending, stable=stable)
        assert isinstance(found.values, SparseTensor)
        same(found.values, wanted.values)
        same(found.indices, wanted.indices)
    same(S.argsort(dim, descending), wanted.indices)
    same(torch.msort(S), torch.msort(dense))


@FEWER
@given(pairs(), st.data())
def test_topk(pair, data):
    dense, S = pair
    dim = data.draw(st.integers(-dense.dim(), dense.dim() - 1))
    k = data.draw(st.integers(0, dense.shape[dim]))
    options = {"largest": data.draw(st.booleans()), "sorted": data.draw(st.booleans())}
    if refused_alike(lambda x: torch.topk(x, k, dim, **options), dense, S):
        return
    found, wanted = torch.topk(S, k, dim, **options), torch.topk(dense, k, dim, **{**options, "sorted": True})
    same(found.values, wanted.values)
    points_at(found, dense, dim)
    places = found.indices.sort(dim).values
    assert not bool((places.diff(dim=dim) == 0).any()), "each place is taken once"


@FEWER
@given(pairs(), st.data())
def test_one_element_of_each_line(pair, data):
    dense, S = pair
    dim, keepdim = data.draw(st.integers(-dense.dim(), dense.dim() - 1)), data.draw(st.booleans())
    k = data.draw(st.integers(1, dense.shape[dim]))
    calls: list[Callable[[Any], Any]] = [
        lambda x: x.kthvalue(k, dim, keepdim),
        lambda x: x.median(dim, keepdim=keepdim),
        lambda x: x.nanmedian(dim, keepdim=keepdim),
    ]
    if not bool(dense.isnan().any()):  # of which torch may count any
        calls.append(lambda x: x.mode(dim, keepdim))
    for call in calls:
        if not refused_alike(call, dense.cpu(), S):
            found = call(S)
            same(found[0], on_host(call, dense)[0])
            points_at(found, dense, dim, keepdim)
    for call in (torch.median, torch.nanmedian):
        if not refused_alike(call, dense.cpu(), S):
            same(call(S), on_host(call, dense))


@FEWER
@given(pairs(FLOATS), st.data())
def test_quantiles(pair, data):
    dense, S = pair
    dim = data.draw(st.none() | st.integers(-dense.dim(), dense.dim() - 1))
    parts = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.6, 0.99, 1.0])
    q = data.draw(
        parts | st.lists(parts, min_size=1, max_size=4).map(lambda q: torch.tensor(q, dtype=dense.dtype))
    )
    options = {
        "keepdim": data.draw(st.booleans()),
        "interpolation": data.draw(st.sampled_from(INTERPOLATIONS)),
    }
    for function in (torch.quantile, torch.nanquantile):
        same(function(S, q, dim, **options), function(dense, q, dim, **options))


def test_quantiles_by_other_names():
    dense = random_dense((4, 6), torch.float64, 0.5, 0)
    S = scorch.from_torch(dense, format="csr")
    wanted = torch.quantile(dense, 0.3, dim=1, keepdim=True)
    same(torch.quantile(S, 0.3, axis=1, keepdims=True), wanted)
    same(torch.quantile(input=S, q=0.3, dim=1, keepdim=True), wanted)
    same(S.quantile(0.3, 1, True), wanted)
    out = torch.empty(0, dtype=torch.float64)
    assert torch.quantile(S, 0.3, 1, True, out=out) is out
    same(out, wanted)


@pytest.mark.parametrize("q", [-0.1, 1.5, torch.tensor([[0.5]], dtype=torch.float64), torch.tensor(0.5)])
def test_wrong_quantiles_are_refused_as_by_torch(q):
    dense = random_dense((4, 6), torch.float64, 0.5, 0)
    assert refused_alike(lambda x: torch.quantile(x, q), dense, scorch.from_torch(dense, format="csr"))


def test_results_are_written_to_out():
    dense = random_dense((4, 6), torch.float64, 0.5, 0)
    S = scorch.from_torch(dense, format="csc")
    for call in (torch.sort, torch.median, lambda x, dim, out: torch.topk(x, 2, dim, out=out)):
        out = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.int64)
        call(S, dim=1, out=out)
        wanted = call(dense, dim=1, out=tuple(torch.empty_like(o) for o in out))
        same(out[0], wanted[0])
    out = torch.empty(0, dtype=torch.float64)
    same(torch.msort(S, out=out), torch.msort(dense))
    kept = scorch.zeros(4, 2, dtype=torch.float64, format="csr")
    torch.topk(S, 2, out=(kept, torch.empty(0, dtype=torch.int64)))
    same(kept, torch.topk(dense, 2).values)
    assert isinstance(kept, SparseTensor)
    for kinds in ((torch.float32, torch.int64), (torch.float64, torch.int32)):
        outs = tuple(torch.empty(0, dtype=kind) for kind in kinds)
        assert refused_alike(lambda x, outs=outs: torch.topk(x, 2, out=outs), dense, S)


# counts ----------------------------------------------------------------------------------------------


@FEWER
@given(pairs(), st.booleans())
def test_unique(pair, is_sorted):
    dense, S = pair
    wanted = torch.unique(dense, return_inverse=True, return_counts=True)
    values, inverse, counts = torch.unique(S, sorted=is_sorted, return_inverse=True, return_counts=True)
    same(values, wanted[0])
    same(counts, wanted[2])
    same(values[inverse], dense)
    same(torch.bincount(inverse.reshape(-1), minlength=values.numel()), counts)  # each NaN has its own number
    same(S.unique(), wanted[0])
    same(S.unique(return_counts=True)[1], wanted[2])


@FEWER
@given(pairs())
def test_unique_consecutive(pair):
    dense, S = pair
    wanted = torch.unique_consecutive(dense, return_inverse=True, return_counts=True)
    found = torch.unique_consecutive(S, return_inverse=True, return_counts=True)
    for one, other in zip(found, wanted, strict=True):
        same(one, other)
    same(S.unique_consecutive(), wanted[0])


@FEWER
@given(pairs(), st.data())
def test_histc(pair, data):
    dense, S = pair
    bins = data.draw(st.integers(1, 7))
    low, high = data.draw(st.sampled_from([(0, 0), (-2, 2), (0, 3), (1, 5), (-3, 0), (2, 2), (-1.5, 0.7)]))
    if not refused_alike(lambda x: torch.histc(x, bins, low, high), dense, S):
        same(torch.histc(S, bins, low, high), torch.histc(dense, bins, low, high))


@pytest.mark.cpu("torch.histogram is only there")
@FEWER
@given(pairs(FLOATS, with_nan=False), st.data())
def test_histogram(pair, data):
    dense, S = pair
    density = data.draw(st.booleans())
    span = data.draw(st.sampled_from([None, (-2.0, 2.0), (0.0, 3.0), (-3.0, 0.0), (1.0, 2.0)]))
    edges = torch.tensor(data.draw(st.sampled_from([[-3.0, 0.0, 1.0], [0.5, 2.0], [-9, -1, 0, 9.0]])))
    weight = torch.arange(dense.numel(), dtype=dense.dtype).reshape(dense.shape)
    for call in (
        lambda x: torch.histogram(x, 5, range=span, density=density),
        lambda x: x.histogram(edges.to(dense.dtype), density=density),
        lambda x: x.histogram(3, weight=weight, density=density),
    ):
        for one, other in zip(call(S), call(dense), strict=True):
            same(one, other)


@given(st.integers(1, 9), st.integers(0, 99), st.sampled_from([0.0, 0.4, 1.0]), st.integers(0, 9), st.data())
def test_bincount(size, seed, density, minlength, data):
    dtype = data.draw(st.sampled_from([torch.int64, torch.int32, torch.uint8]))
    dense = random_dense((size,), dtype, density, seed).abs()
    S = scorch.from_torch(dense, format=data.draw(st.sampled_from(["s", "o"])))
    same(torch.bincount(S, minlength=minlength), torch.bincount(dense, minlength=minlength))
    kind = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int64]))
    weights = random_dense((size,), kind, 0.7, seed + 1)
    for given_ in (weights, scorch.from_torch(weights)):
        found = torch.bincount(S, weights=given_, minlength=minlength)
        same(found, torch.bincount(dense, weights=weights, minlength=minlength))


@FEWER
@given(pairs(with_nan=False), st.booleans(), st.sampled_from([[-9, 0, 1], [1, 2], [0], [-1, 2, 2]]))
def test_places_in_a_sorted_list(pair, right, bounds):
    dense, S = pair
    bounds = torch.tensor(bounds, dtype=torch.float64)
    same(torch.searchsorted(bounds, S, right=right), torch.searchsorted(bounds, dense, right=right))
    same(torch.bucketize(S, bounds, right=right), torch.bucketize(dense, bounds, right=right))
    rows = bounds.expand(*dense.shape[:-1], -1).contiguous()
    same(torch.searchsorted(rows, S), torch.searchsorted(rows, dense))
    same(torch.searchsorted(scorch.from_torch(bounds), dense), torch.searchsorted(bounds, dense))


def test_wrong_counts_are_refused_as_by_torch():
    for dense in (torch.tensor([1, -1, 0]), torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0.5])):
        S = scorch.from_torch(dense, format="coo")
        assert refused_alike(torch.bincount, dense, S)
    dense = torch.tensor([0, 1, 2])
    assert refused_alike(lambda x: torch.bincount(x, torch.ones(2)), dense, scorch.from_torch(dense))


# edges -----------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: torch.sort(x, 0, stable=True),
    "msort": torch.msort,
    "topk": lambda x: x.topk(1, 0),
    "kthvalue": lambda x: x.kthvalue(1, 0),
    "median": lambda x: x.median(),
    "median of lines": lambda x: x.median(0),
    "nanmedian": lambda x: x.nanmedian(),
    "mode": lambda x: x.mode(0),
    "quantile": lambda x: x.quantile(0.5),
    "unique": lambda x: x.unique(return_inverse=True, return_counts=True),
    "unique_consecutive": lambda x: x.unique_consecutive(return_inverse=True, return_counts=True),
    "histc": lambda x: x.histc(3),
    "histogram": lambda x: x.histogram(3),
    "a dimension too far": lambda x: x.sort(9),
    "more than there are": lambda x: x.topk(99, 0),
    "a rank beyond": lambda x: x.kthvalue(99, 0),
    "mode along none": lambda x: x.mode(-9),
}


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (1,), (1, 1), (2, 1, 3)])
@pytest.mark.parametrize("name", CALLS)
def test_sizes_of_nothing_and_one(name, shape):
    dense = torch.zeros(shape, dtype=torch.float64)
    S = scorch.from_torch(dense, format="coo")
    if refused_alike(CALLS[name], dense, S):
        return
    found, wanted = CALLS[name](S), CALLS[name](dense)
    several = isinstance(wanted, tuple)
    for one, other in zip(found if several else [found], wanted if several else [wanted], strict=True):
        same(one, other)


@pytest.mark.parametrize("name", CALLS)
def test_numbers_that_have_no_order_are_refused(name):
    dense = torch.zeros(2, 2, dtype=torch.complex64)
    assert refused_alike(CALLS[name], dense, scorch.from_torch(dense, format="csr"))


def test_stored_zeros_are_zeros():
    S = scorch.sparse_coo_tensor([[0, 0, 0, 1], [0, 2, 3, 1]], [0.0, -1.0, -0.0, 0.0], (2, 4), format="csr")
    dense = S.to_dense()
    same(S.unique(return_counts=True)[1], torch.tensor([1, 7]))
    found = torch.sort(S, stable=True)
    same(found.indices, torch.sort(dense, stable=True).indices)
    same(S.mode().values, dense.mode().values)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", [*FORMATS, "csf"])
def test_parts_along_every_dimension(form):
    shape = (4, 3, 5) if form == "csf" else (4, 6)
    dense = random_dense(shape, torch.float64, 0.3, 1)
    dense[1] = 0
    S = scorch.from_torch(dense, format=form)
    for dim in range(-dense.dim(), dense.dim()):
        for found, wanted in zip(S.unbind(dim), dense.unbind(dim), strict=True):
            assert isinstance(found, SparseTensor)
            same(found, wanted)
            same(found * 2, wanted * 2)
    rows = list(S)
    rows[0].mul_(3)
    dense[0] *= 3
    same(S, dense)
    rows[1][0] = 4
    dense[1, 0] = 4
    same(S, dense)
    same(rows[2], dense[2])


@FEWER
@given(pairs(with_nan=False), st.data())
def test_parts_of_any_format(pair, data):
    dense, S = pair
    dim = data.draw(st.integers(-dense.dim(), dense.dim() - 1))
    for found, wanted in zip(S.unbind(dim), dense.unbind(dim), strict=True):
        same(found, wanted)
    assert S.tolist() == dense.tolist()


# any size --------------------------------------------------------------------------------------------

N = 200_000


def rows_with_entries(S: SparseTensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of some rows, and all of their elements."""
    rows = S.to_format("coo").indices()[0][:20].unique()
    return rows, S[rows].to_dense()


LINES: dict[str, Callable[[Any], Any]] = {
    "topk": lambda x: x.topk(3),
    "topk of the smallest": lambda x: x.topk(3, largest=False),
    "kthvalue": lambda x: x.kthvalue(x.shape[1] - 1),
    "the first": lambda x: x.kthvalue(1),
    "median": lambda x: x.median(1),
    "nanmedian": lambda x: x.nanmedian(1),
    "mode": lambda x: x.mode(1),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_of_huge(huge, little_memory, name):
    rows, dense = rows_with_entries(huge)
    found = LINES[name](huge)
    assert found[0].shape[0] == N
    wanted = LINES[name](dense)[0]
    same(found[0][rows], wanted)
    places = found[1][rows]
    at = places if places.dim() == 2 else places.unsqueeze(1)
    same(torch.gather(dense, 1, at).reshape(wanted.shape), wanted)
    same(LINES[name](huge.T.to_format("csc").T)[0][rows], wanted)


def test_lines_of_huge_into_out(huge, little_memory):
    outs = torch.empty(0), torch.empty(0, dtype=torch.int64)
    torch.kthvalue(huge, 1, out=outs)
    same(outs[0], huge.kthvalue(1).values.to_dense())
    tensor = scorch.sparse_coo_tensor([[1], [2], [2]], [-1.0], (N, N, 3))
    with pytest.raises(DensityError, match="quantile"):
        tensor.kthvalue(1)
    found = torch.quantile(tensor, 0.0, 2, interpolation="lower")
    assert isinstance(found, SparseTensor) and float(found[1, 2]) == -1
    assert torch.searchsorted(torch.tensor([0.0, 1.0]), huge).nnz == huge.nnz


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_quantiles_of_huge(huge, little_memory, interpolation):
    rows, dense = rows_with_entries(huge)
    q = torch.tensor([0.0, 0.3, 1 - 2e-6, 1.0])
    found = torch.quantile(huge, q, 1, interpolation=interpolation)
    same(found[:, rows], torch.quantile(dense, q, 1, interpolation=interpolation))
    values = huge.values()
    q = torch.tensor([0.0, 1e-9, 0.5, 1.0])
    found = torch.nanquantile(huge, q, interpolation=interpolation).to_dense()
    assert found[2] == 0 and float(found[0]) == float(values.min()) and float(found[3]) == float(values.max())
    assert float(values.min()) <= float(found[1]) < 0


def test_sorting_huge(huge, little_memory):
    found = torch.msort(huge.T).T
    rows, dense = rows_with_entries(huge)
    assert isinstance(found, SparseTensor) and tuple(found.shape) == (N, N)
    same(found[rows], dense.sort(1).values)
    for call in (lambda x: x.sort(), lambda x: x.argsort(0), lambda x: x.sort(stable=True)):
        with pytest.raises(DensityError, match=r"torch\.msort\(S\).*topk"):
            call(huge)
    row = huge[int(rows[0])]
    same(row.sort(descending=True).values, dense[0].sort(descending=True).values)
    assert float(huge.median()) == float(huge.nanmedian()) == 0
    assert [float(x) for x in huge.aminmax()] == [float(huge.values().min()), float(huge.values().max())]


def test_long_vectors(little_memory):
    v = scorch.sparse_coo_tensor([[5, 700_000, 999_999]], [2.0, -1.0, 3.0], (1_000_000,))
    dense = v.to_dense()
    for found, wanted in zip(v.sort(stable=True), dense.sort(stable=True), strict=True):
        same(found, wanted)
    same(v.topk(2).indices, torch.tensor([999_999, 5]))
    same(v.argsort(descending=True, stable=True), dense.argsort(descending=True, stable=True))


def test_counting_huge(huge, little_memory):
    values, counts = huge.unique(return_counts=True)
    assert values.numel() == 2_001 and int(counts.sum()) == N * N
    assert int(counts[values == 0]) == N * N - 2_000
    with pytest.raises(DensityError, match="return_inverse"):
        huge.unique(return_inverse=True)
    runs, lengths = huge.unique_consecutive(return_counts=True)
    assert runs.numel() == 4_001 and int(lengths.sum()) == N * N
    stored = huge.values()
    bars = huge.double().histc(8, -4, 4)
    assert int(bars.sum()) == N * N
    same(bars - torch.tensor([0, 0, 0, 0, N * N - 2_000, 0, 0, 0]), torch.histc(stored.double(), 8, -4, 4))
    found = torch.isin(huge, stored[:3])
    assert isinstance(found, SparseTensor) and int(found.count_nonzero()) == 3


@pytest.mark.cpu("torch.histogram is only there")
def test_histogram_of_huge(huge, little_memory):
    stored = huge.values()
    bars, edges = torch.histogram(huge.double(), torch.tensor([-9.0, -1, 1, 9], dtype=torch.float64))
    assert int(bars.sum()) == N * N and edges.tolist() == [-9, -1, 1, 9]
    same(bars[[0, 2]], torch.histogram(stored.double(), edges)[0][[0, 2]])
    bars, edges = torch.histogram(huge, 10, density=True)
    assert float(edges[0]) == float(stored.min()) and float(edges[-1]) == float(stored.max())


def test_counting_numbers_of_a_long_vector(little_memory):
    v = scorch.sparse_coo_tensor([[5, 7, 10**10]], [3, 1, 3], (10**11,))
    assert torch.bincount(v).tolist() == [10**11 - 3, 1, 0, 2]
    assert torch.bincount(v, minlength=6).tolist() == [10**11 - 3, 1, 0, 2, 0, 0]
    weights = scorch.sparse_coo_tensor([[5, 6]], [0.5, 2.0], (10**11,))
    assert torch.bincount(v, weights).tolist() == [2.0, 0.0, 0.0, 0.5]
    large = scorch.sparse_coo_tensor([[5]], [10**12], (9,))
    with pytest.raises(DensityError, match="unique"):
        torch.bincount(large)


def test_what_is_dense_by_nature_says_what_works(huge, little_memory):
    with pytest.raises(DensityError, match=r"S\.numel\(\) - S\.count_nonzero\(\)"):
        (huge == 0).sum()
    assert huge.numel() - int(huge.count_nonzero()) == N * N - 2_000
    with pytest.raises(DensityError, match=r"apply it to \.values\(\)"):
        huge.isfinite().all()
    with pytest.raises(DensityError, match=r"values\(\)\.tolist\(\)"):
        huge.tolist()
    with pytest.raises(DensityError, match=r"use \.values\(\)"):
        huge.reshape(-1).unbind()


@pytest.mark.parametrize("count", [N // 20, pytest.param(N, marks=pytest.mark.long)])
def test_all_rows_of_huge(huge, count, little_memory):
    part = huge[:count]
    for form in ("csr", "csc", "dcsr"):
        rows = part.to_format(form).unbind(0)
        assert len(rows) == count and sum(row.nnz for row in rows) == part.nnz > 0
    picked, dense = rows_with_entries(part)
    same(rows[int(picked[0])], dense[0])


def test_errors_are_scorch_errors():
    S = scorch.from_torch(torch.eye(3), format="csr")
    for call in (lambda: S.topk(4), lambda: S.kthvalue(0), lambda: S.sort(2), lambda: S.quantile(2.0)):
        with pytest.raises(ScorchError):
            call()
