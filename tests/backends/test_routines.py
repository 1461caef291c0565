"""Each routine of the processor gives what its reference in torch's own operations gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from scorch._src.backends.base import backend_for
from scorch._src.backends.by_torch import rows as sums
from scorch._src.backends.by_torch.attention import Heads
from scorch._src.backends.by_torch.convolutions import Windows
from scorch._src.backends.by_torch.graphs import Options, Rows, Scores
from scorch._src.backends.by_torch.layers import Layer
from scorch._src.backends.routines import Routines

DRAWS = 5


def matrix(rows: int, columns: int, index: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mask = torch.rand(rows, columns) < 0.4
    pos = torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)]).to(index)
    crd = mask.nonzero()[:, 1].to(index)
    return pos, crd, torch.rand(crd.numel(), dtype=torch.float64)


def transposed(pos: torch.Tensor, crd: torch.Tensor, columns: int) -> Rows:
    row = torch.repeat_interleave(torch.arange(pos.numel() - 1), pos.diff().long())
    order = torch.argsort(crd, stable=True)
    counts = torch.bincount(crd.long(), minlength=columns)
    begin = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    return Rows(begin.to(pos.dtype), row[order].to(crd.dtype), None, order.to(crd.dtype))


def entries(index: torch.dtype) -> tuple[list[torch.Tensor], list[int]]:
    sizes = [4, 300, 70_000]
    return [torch.randint(size, (30,)).to(index) for size in sizes], sizes


def same_rows(routines: Routines, index: torch.dtype) -> Any:
    return routines.row_pointers(torch.randint(9, (40,)).sort().values.to(index), 9)


def attend(routines: Routines, index: torch.dtype) -> Any:
    pos, crd, _ = matrix(6, 5, index)
    x, grad = torch.rand(5, 2, 3, dtype=torch.float64), torch.rand(6, 2, 3, dtype=torch.float64)
    scores = Scores(torch.randn(5, 2).double(), torch.randn(6, 2).double(), None)
    options, rows = Options(0.2, 0.3, 17), Rows(pos, crd)
    out, kept = routines.graph_attention(rows, x, scores, options, True)
    assert kept is not None
    each, targets = routines.graph_attention_scores_backward(rows, x, scores, options, kept, grad)
    columns = transposed(pos, crd, 5)
    return (
        *(out, kept, each, targets),
        *routines.graph_attention_features_backward(columns, options, kept, each, grad),
    )


def largest(routines: Routines, index: torch.dtype) -> Any:
    pos, crd, _ = matrix(6, 5, index)
    x = torch.randint(3, (5, 4)).double()
    out, ties = routines.neighbour_max((pos, crd, None), x, True)
    back = transposed(pos, crd, 5)
    shared = torch.rand(6, 4, dtype=torch.float64)
    return out, ties, routines.neighbour_max_backward((back.pos, back.crd, None), x, out, shared)


def convolved(routines: Routines, index: torch.dtype) -> Any:
    pos, crd, values = matrix(6, 2 * 3 * 2, index)
    windows = Windows((3, 2), (2, 1), (1, 0, 1, 1), (1, 2), 2)
    plan = routines.plan_convolution(pos, crd, windows, (4, 7, 9))
    bias = torch.arange(6, dtype=values.dtype)
    return routines.convolve(
        (pos, crd, values), bias, torch.rand(2, 4, 7, 9, dtype=values.dtype), windows, plan
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "lengths", [[3, 0, 7] * 7, range(0, 300, 5)], ids=["short rows", "rows of all lengths"]
)
def test_product_with_a_batch(lengths: Sequence[int], dtype: torch.dtype) -> None:
    """Batches of less than a vector, of several tiles, and of parts of them."""
    torch.manual_seed(0)
    rows, columns = len(lengths), max(40, *lengths)
    dense = torch.zeros(rows, columns, dtype=dtype)
    for row, length in zip(dense, lengths, strict=True):
        row[torch.randperm(columns)[:length]] = torch.randn(length, dtype=dtype)
    pos = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    crd, values = dense.nonzero()[:, 1].to(torch.int32), dense[dense != 0]
    routines, bias = backend_for(torch.device("cpu")).routines, torch.randn(rows, dtype=dtype)
    batches = ((), (1,), (2,), (5,), (2, 33), (150,))
    for batch, places in itertools.product(batches, (crd, crd.to(torch.int16))):
        x = torch.randn(*batch, columns, dtype=dtype)
        for own in (None, bias):
            found = routines.multiply_batch(Layer((pos, places, values), own, x))
            assert found is not None
            torch.testing.assert_close(found, torch.nn.functional.linear(x, dense, own), rtol=1e-4, atol=1e-4)


ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    None: lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


@pytest.mark.whole
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_and_a_residual_follow_a_product(activation: str | None) -> None:
    torch.manual_seed(0)
    dense = torch.randn(37, 50) * (torch.rand(37, 50) < 0.3)
    csr, bias = dense.to_sparse_csr(), torch.randn(37)
    weight = csr.crow_indices().int(), csr.col_indices().to(torch.int16), csr.values()
    routines = backend_for(torch.device("cpu")).routines
    for batch in (1, 3, 70):
        x = 3 * torch.randn(batch, 50)
        x[0, :40] *= 40  # where exponentials overflow
        plain, residual = ACTIVATIONS[activation](F.linear(x, dense, bias)), torch.randn(batch, 37)
        found = routines.multiply_batch(Layer(weight, bias, x, activation=activation))
        torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-4)
        found = routines.multiply_batch(Layer(weight, bias, x, activation=activation, residual=residual))
        torch.testing.assert_close(found, plain + residual, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_activations_of_what_is_large_or_no_number(activation: str) -> None:
    """Torch's own results for infinities differ between processors."""
    routines = backend_for(torch.device("cpu")).routines
    x = torch.tensor([[float("inf")], [float("nan")], [0.0], [-90.0], [90.0]])
    weight = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0], dtype=torch.int16), torch.ones(1)
    found = routines.multiply_batch(Layer(weight, None, x, activation=activation))
    torch.testing.assert_close(found, x.clamp(min=0), equal_nan=True)


@pytest.mark.whole
@pytest.mark.parametrize("columns", [torch.int16, torch.int32])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.int8])
def test_values_of_a_product_may_be_stored_in_fewer_bits(stored: torch.dtype, columns: torch.dtype) -> None:
    torch.manual_seed(0)
    mask, scales = torch.rand(37, 300) < 0.3, torch.rand(37) + 0.1
    whole = torch.randint(-127, 128, (37, 300)).float() * mask
    csr, bias = whole.to_sparse_csr(), torch.randn(37)
    weight = csr.crow_indices().int(), csr.col_indices().to(columns), csr.values().to(stored)
    dense = whole * scales[:, None] if stored == torch.int8 else whole.bfloat16().float()
    routines = backend_for(torch.device("cpu")).routines
    for batch in (1, 3, 70):
        x = torch.randn(batch, 300)
        found = routines.multiply_batch(Layer(weight, bias, x, scales if stored == torch.int8 else None))
        torch.testing.assert_close(found, F.linear(x, dense, bias), rtol=1e-4, atol=2e-3)


@pytest.mark.whole
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("block", [(1, 4), (4, 4), (16, 1)])
def test_product_with_a_weight_of_blocks(block: tuple[int, int], stored: torch.dtype) -> None:
    torch.manual_seed(0)
    rows, columns = block
    mask = torch.rand(48 // rows, 64 // columns) < 0.4
    whole = torch.randint(-127, 128, (48, 64)) * mask.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    bsr, bias, scales = whole.float().to_sparse_bsr(block), torch.randn(48), torch.rand(48)
    weight = bsr.crow_indices().int(), bsr.col_indices().to(torch.int16), bsr.values().reshape(-1).to(stored)
    routines, own = backend_for(torch.device("cpu")).routines, scales if stored == torch.int8 else None
    assert block in routines.batch_blocks
    dense = whole * scales[:, None] if own is not None else whole.float()
    for batch in (1, 3, 70):
        x, residual = torch.randn(batch, 64), torch.randn(batch, 48)
        found = routines.multiply_batch(Layer(weight, bias, x, own, "relu", residual, block))
        wanted = F.relu(F.linear(x, dense, bias)) + residual
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-3)


def rows_joined(routines: Routines, index: torch.dtype) -> Any:
    parts = [matrix(3, 4, index), matrix(5, 4, index)]
    return routines.concat_rows(parts, [3, 5], sum(crd.numel() for _, crd, _ in parts))


def columns_joined(routines: Routines, index: torch.dtype) -> Any:
    parts = [matrix(5, 4, index), matrix(5, 7, index)]
    return routines.concat_columns(parts, [4, 7], 5, sum(crd.numel() for _, crd, _ in parts))


def finite(routines: Routines, index: torch.dtype) -> Any:
    dtype = torch.float32 if index == torch.int32 else torch.float64
    answers = []
    for count in (0, 1, 63, 1000):
        x = torch.randn(count, dtype=dtype)
        answers.append(routines.are_finite([x, x[::2], x.to(torch.bfloat16)]))
        for other in (torch.inf, -torch.inf, torch.nan):
            if count:
                x[torch.randint(count, ())] = other
                answers.append(routines.are_finite([torch.ones(3, dtype=dtype), x]))
                answers.append(routines.are_finite([x[1:]]))  # which begins within a vector
    return torch.tensor(answers)


def sorted_rows(routines: Routines, index: torch.dtype) -> Any:
    pos, crd, _ = matrix(7, 9, index)
    answers = [routines.has_sorted_rows(pos, crd, 9), routines.has_sorted_rows(pos, crd, 8)]
    answers.append(routines.has_sorted_rows(torch.zeros(4, dtype=index), crd[:0], 5))
    answers += [routines.has_sorted_rows(pos, crd, size) for size in (2**31, 2**63 - 1)]
    assert all(answers[2:])
    for array in (pos, crd):
        for wrong in (-1, int(array[2]) + 1, 100, 2**31 - 1, int(array[0])):
            kept = array.clone()
            array[torch.randint(array.numel(), ())] = wrong
            answers.append(routines.has_sorted_rows(pos, crd, 9))
            array.copy_(kept)
    return torch.tensor(answers)


def rows_owned(routines: Routines, index: torch.dtype) -> Any:
    """Copies of pointers and coordinates, or 1 where something is wrong with them, for several dtypes."""
    pos, crd, _ = matrix(7, 9, index)
    found: list[Any] = [*routines.own_rows(pos, crd, 9, index)]  # type: ignore[misc]
    assert not {copy.data_ptr() for copy in found} & {pos.data_ptr(), crd.data_ptr()}
    for dtype in (torch.int32, torch.int64):
        for wrong in (-1, int(pos[2]) + 1, 9, 100, int(pos[0])):
            for array in (pos, crd):
                kept = array.clone()
                array[torch.randint(array.numel(), ())] = wrong
                found += routines.own_rows(pos, crd, 9, dtype) or [torch.ones((), dtype=dtype)]
                array.copy_(kept)
    found += routines.own_rows(pos, crd, 9, torch.int64)  # type: ignore[arg-type]
    pos = pos.int()  # with coordinates as files store them
    for wrong in (0, 1, 8, 9, 65_535):
        narrow = crd.to(torch.uint16)
        found += routines.own_rows(pos, narrow, 9, torch.int32)  # type: ignore[arg-type]
        for size, at in ((9, torch.randint(crd.numel(), ())), (1 << 16, -1), (1 << 20, -1)):
            narrow[at] = wrong
            found += routines.own_rows(pos, narrow, size, torch.int32) or [torch.ones(())]
    return found


def hashes(routines: Routines, index: torch.dtype) -> Any:
    """Hashes of arrays of several lengths, which differ where two neighbours change places."""
    arrays = [torch.randint(most, (count,)).to(index) for count in (0, 1, 70, 999) for most in (9, 2**31 - 1)]
    found = [routines.hash_indices(array) for array in arrays]
    assert found == [routines.hash_indices(array.int()) for array in arrays]
    order = torch.arange(64)
    swapped = [torch.cat([order[:i], order[[i + 1, i]], order[i + 2 :]]).to(index) for i in range(63)]
    found += [routines.hash_indices(array) for array in (order.to(index), *swapped)]
    assert len(set(found[-64:])) == 64
    return [*found, routines.hash_indices(torch.tensor([2**31, 2**62 + 3]))]


CASES: dict[str, Callable[[Routines, torch.dtype], Any]] = {
    "own_rows": rows_owned,
    "hash_indices": hashes,
    "transpose": lambda r, index: r.transpose(torch.rand(130, 90).to(index), (1, 0)),
    "are_finite": finite,
    "has_sorted_rows": sorted_rows,
    "row_pointers": same_rows,
    "row_numbers": lambda r, index: r.row_numbers(*matrix(7, 9, index)[:2]),
    "sort_entries": lambda r, index: r.sort_entries(*entries(index)),
    "pick_rows": lambda r, index: r.pick_rows(*matrix(7, 9, index), torch.randint(-7, 7, (5,))),
    "pick_rows beyond": lambda r, index: r.pick_rows(*matrix(7, 9, index), torch.tensor([1, 7])),
    "concat": lambda r, index: r.concat([torch.arange(40_000).to(index)] * 3, [0, 5, 9]),
    "concat_rows": rows_joined,
    "concat_columns": columns_joined,
    "graph_attention": attend,
    "neighbour_max": largest,
    "convolve": convolved,
}


def leaves(result: Any) -> list[Any]:
    return (
        [leaf for part in result for leaf in leaves(part)] if isinstance(result, (tuple, list)) else [result]
    )


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", CASES)
def test_routine_is_its_reference(name: str, index: torch.dtype) -> None:
    for seed in range(DRAWS):
        results = []
        for routines in (backend_for().routines, Routines()):
            torch.manual_seed(seed)
            results.append(leaves(CASES[name](routines, index)))
        assert len(results[0]) == len(results[1])
        for found, wanted in zip(*results, strict=True):
            if isinstance(wanted, torch.Tensor):
                is_order = name == "sort_entries"  # int32 where C sorts
                torch.testing.assert_close(found, wanted, check_dtype=not is_order)
            else:
                assert found is wanted or found == wanted


def test_attention_pair_by_pair_has_no_blocks() -> None:
    pos, crd, _ = matrix(4, 4, torch.int64)
    plain = Routines()
    assert plain.attention_blocks(pos, crd, 1, 4, 4) is None
    heads = Heads(None, (1,), [0], 1.0)
    assert plain.attention(torch.rand(1, 4, 2), torch.rand(1, 4, 2), torch.rand(1, 4, 2), heads) is None


# sums of rows on a device ------------------------------------------------------------------------------


@pytest.fixture(params=["host", "device"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums as on the host, and as on a device, in the memory of the host."""
    if request.param == "device":
        monkeypatch.setattr(sums, "HOST", torch.device("meta"))


@pytest.mark.usefixtures("place")
def test_sums_of_rows_and_their_gradients() -> None:
    row = torch.tensor([2, 0, 2, 2])
    values = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    wanted = torch.stack([values[1], torch.zeros_like(values[1]), values[0] + values[2] + values[3]])
    torch.testing.assert_close(sums.sum_rows(row, values, 3), wanted)
    assert torch.autograd.gradcheck(lambda v: sums.sum_rows(row, v, 3), values)
    assert torch.autograd.gradcheck(lambda v: sums.take_rows(v, row), values)
    many = torch.stack([values, 2 * values]).detach()
    found = torch.vmap(lambda v: sums.sum_rows(row, v, 3))(many)
    torch.testing.assert_close(found, torch.stack([wanted, 2 * wanted]).detach())
    out = torch.ones(3, 3, dtype=torch.float64)
    sums.add_rows(out, row, values.detach())
    torch.testing.assert_close(out, 1 + wanted.detach())


@pytest.mark.usefixtures("place")
def test_sums_of_complex_infinities() -> None:
    row, values = torch.tensor([0, 0]), torch.tensor([complex(1, float("inf")), 2])
    out = torch.zeros(1, dtype=values.dtype)
    sums.add_rows(out, row, values)
    for found in (out, sums.sum_rows(row, values, 1)):
        assert found.tolist() == [complex(3, float("inf"))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), float("nan")])
def test_one_number_that_is_not_finite_is_found(dtype: torch.dtype, odd: float) -> None:
    routines = backend_for(torch.device("cpu")).routines
    whole, strided = torch.full((37,), -1e30, dtype=dtype), torch.ones(74, dtype=dtype)[::2]
    assert routines.are_finite([whole, strided, whole[:0]])
    whole[36] = odd
    assert not routines.are_finite([strided, whole]) and not routines.are_finite([whole.view(1, 37)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32])
def test_functions_of_few_values_are_those_of_torch(dtype: torch.dtype) -> None:
    routines = backend_for(torch.device("cpu")).routines
    odd = [-2.0, 3.0, 0.0] if dtype == torch.int32 else [-2.0, 3.0, -0.0, float("nan"), float("-inf")]
    values = torch.tensor(odd * 9, dtype=dtype)
    for listed in (values, values[1::2], values[:0]):
        for function in (torch.relu, torch.neg, torch.abs):
            found, wanted = getattr(routines, function.__name__)(listed), function(listed)
            assert found.data_ptr() != listed.data_ptr() or not listed.numel()
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_row_is_added_in_place(dtype: torch.dtype) -> None:
    routines = backend_for(torch.device("cpu")).routines
    row = torch.arange(5.0).to(dtype)
    for start in (torch.ones(3, 5), torch.ones(5, 3).T, torch.ones(2, 3, 5), torch.ones(5), torch.ones(0, 5)):
        result = start.to(dtype, copy=True)
        assert routines.add_row(result, row) is result
        assert torch.equal(result, start.to(dtype) + row)
    assert torch.equal(
        routines.add_row(torch.zeros(3, 5, dtype=dtype), row[:1] + 1), torch.ones(3, 5).to(dtype)
    )
