"""masked=True and scorch.masked: what torch.masked gives on the dense tensor with the pattern as its mask."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from properties.drawing import tensors
from scorch import SparseTensor
from scorch._src.ops.reduction.masked import OPERATIONS, PER_ENTRY
from scorch._src.tensor.sparse_tensor import with_values
from scorch.errors import ArgumentError, DensityError, OperandError, ShapeError

SEVERAL = ["sum", "mean", "prod", "amax", "amin", "var", "std", "norm", "logsumexp"]  # dimensions
ONE = ["argmax", "argmin", "median"]
IN_PATTERN = [*PER_ENTRY]
OF_INTEGERS = ["sum", "prod", "amax", "amin", "argmax", "argmin", "cumsum", "cumprod"]


def mask_of(S: SparseTensor) -> torch.Tensor:
    return with_values(S, torch.ones_like(S.storage.values, dtype=torch.float32)).to_dense() != 0


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    found = found.to_dense() if isinstance(found, SparseTensor) else found
    torch.testing.assert_close(found, wanted, equal_nan=True, check_stride=False)


@given(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3), st.data())
def test_as_torch_masked_with_the_pattern_as_mask(sizes, data):
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.int64]))
    drawn = data.draw(tensors(tuple(sizes), dtype))
    if not isinstance(drawn.given, SparseTensor):
        return
    S, dense, mask = drawn.given, drawn.dense, mask_of(drawn.given)
    if S.format.is_blocked and not bool(S.storage.values.all()):
        return  # whether zeros that fill blocks are stored is left open
    name = data.draw(
        st.sampled_from([*SEVERAL, *ONE, *IN_PATTERN] if dtype.is_floating_point else OF_INTEGERS)
    )
    dim: Any = data.draw(st.integers(-len(sizes), len(sizes) - 1))
    if name in SEVERAL and data.draw(st.booleans()):
        dim = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1).map(sorted).map(tuple))
    kwargs = {} if name in IN_PATTERN else {"keepdim": data.draw(st.booleans())}
    first = (
        (data.draw(st.sampled_from([0, 1, 2, 3.5, float("inf"), float("-inf")])),) if name == "norm" else ()
    )
    wanted = getattr(torch.masked, name)(dense, *first, dim, mask=mask, **kwargs)
    if name in IN_PATTERN:
        wanted = torch.where(mask, wanted, torch.zeros((), dtype=wanted.dtype))
    if name in ("argmax", "argmin"):
        wanted = wanted.to(torch.int64)
    found = getattr(S, name)(*first, dim, masked=True, **kwargs)
    same(found, wanted)
    same(getattr(scorch, name)(S, *first, dim, masked=True, **kwargs), wanted)


DENSE = torch.tensor([[1.0, 0, -2, 0], [0, 0, 0, 0], [-3, -4, 0, -1]], dtype=torch.float64)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr"])
def test_zeros_that_are_not_stored_do_not_count(form):
    S = scorch.from_torch(DENSE, format=form)
    assert S.amax(1).tolist() == [1, 0, 0] and S.amax(1, masked=True).tolist() == [1, -torch.inf, -1]
    assert S.max(masked=True).item() == 1 and S.min(masked=True).item() == -4
    values, places = S.max(1, masked=True)
    assert values.tolist() == [1, -torch.inf, -1] and places.tolist() == [0, 0, 3]
    assert S.min(dim=0, masked=True).indices.tolist() == [2, 2, 0, 2]
    assert S.mean(1, masked=True).isnan().tolist() == [False, True, False]
    assert S.mean(masked=True).item() == DENSE.sum().item() / 5
    assert S.median(masked=True).item() == -2
    assert S.prod(0, masked=True).tolist() == [-3, -4, -2, -1]
    assert S.argmax(1, masked=True).dtype == torch.int64
    assert S.sum(axis=1, keepdims=True, masked=True).shape == (3, 1)
    torch.testing.assert_close(S.var(False, masked=True), DENSE[DENSE != 0].var(correction=0))
    torch.testing.assert_close(S.std(masked=True, correction=2), DENSE[DENSE != 0].std(correction=2))


def test_places_of_nan_come_first():
    S = scorch.from_torch(torch.tensor([[1.0, float("nan"), 3.0]]), format="csr")
    assert S.argmax(1, masked=True).tolist() == [1] and S.amax(1, masked=True).isnan().all()
    assert S.median(1, masked=True).tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float16, torch.bfloat16])
def test_dtypes_are_those_of_torch(dtype):
    dense = torch.tensor([[1, 0, 1], [0, 0, 0]]).to(dtype)
    S = scorch.from_torch(dense, format="csr")
    for name in ["sum", "prod", "amax", "amin"]:
        assert getattr(S, name)(1, masked=True).dtype == getattr(torch, name)(dense, 1).dtype
    if dtype != torch.bool:
        same(S.amax(1, masked=True), torch.masked.amax(dense, 1, mask=dense != 0))


def test_results_for_each_entry_share_the_format():
    S = scorch.from_torch(DENSE, format="dcsr")
    for name in IN_PATTERN:
        found = getattr(S, name)(1, masked=True)
        assert isinstance(found, SparseTensor) and found.format == S.format and found.nnz == S.nnz


def test_large_tensors_cost_their_entries():
    n = 200_000
    S = scorch.sparse_coo_tensor([[5, 5, n - 1], [7, 8, 0]], [-1.0, -2.0, 3.0], (n, n), format="csr")
    assert S.amax(1, masked=True)[5] == -1 and S.sum(masked=True) == 0
    assert S.cumsum(1, masked=True).nnz == S.softmax(1, masked=True).nnz == 3
    T = S.unsqueeze(-1)
    assert T.sum(2, masked=True).nnz == 3
    with pytest.raises(DensityError, match="reduction to shape"):
        T.amax(2, masked=True)
    mask = S < 0
    assert scorch.masked.sum(S, 1, mask=mask)[5] == -3 and scorch.masked.amin(S, 1, mask=mask)[5] == -2


# torch.masked and scorch.masked ------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csr", "coo"])
@pytest.mark.parametrize("name", [n for n in (*OPERATIONS, *PER_ENTRY) if hasattr(torch.masked, n)])
def test_masks_other_than_the_pattern(name, form):
    S = scorch.from_torch(DENSE, format=form)
    valid = torch.tensor([[True, True, False, False], [False] * 4, [True, False, True, True]])
    args = (2.0, 1) if name == "norm" else (1,)
    wanted = getattr(torch.masked, name)(DENSE, *args, mask=valid)
    if name in IN_PATTERN:
        wanted = torch.where(valid, wanted, 0.0)
    for mask in (valid, scorch.from_torch(valid, format=form), valid.to_sparse_coo(), valid.to_sparse_csr()):
        for module in (torch.masked, scorch.masked):
            if module is torch.masked and mask is not valid and not isinstance(mask, SparseTensor):
                continue  # torch cannot read its own layouts as masks of strided tensors here
            found = getattr(module, name)(S, *args, mask=mask)
            found = torch.where(valid, found.to_dense(), 0.0) if name in IN_PATTERN else found
            same(found, wanted)


def test_a_mask_is_broadcast_and_dtype_is_that_asked_for():
    S = scorch.from_torch(DENSE, format="csr")
    mask = torch.tensor([True, False, True, False])
    wanted = torch.masked.sum(DENSE, 1, mask=mask, dtype=torch.float32)
    found = scorch.masked.sum(S, 1, mask=scorch.from_torch(mask, format="s"), dtype=torch.float32)
    torch.testing.assert_close(found, wanted)
    same(scorch.masked.norm(S, ord=1, dim=1, mask=S != 0), torch.masked.norm(DENSE, 1, 1))
    same(scorch.masked.median(S, mask=S != 0), torch.masked.median(DENSE, mask=DENSE != 0))


def test_without_a_mask_every_element_counts():
    S = scorch.from_torch(DENSE, format="csr")
    for module in (torch.masked, scorch.masked):
        assert module.amax(S, 1).tolist() == [1, 0, 0]


# names -------------------------------------------------------------------------------------------------


def test_without_masked_they_are_torchs():
    S = scorch.from_torch(DENSE, format="csr")
    for name in ("sum", "amax", "norm", "softmax"):
        args = (2, 1) if name == "norm" else (1,)
        same(getattr(scorch, name)(S, *args), getattr(torch, name)(DENSE, *args))
        same(getattr(scorch, name)(DENSE, *args), getattr(torch, name)(DENSE, *args))
        assert getattr(torch, name) is not getattr(scorch, name)
        assert pickle.loads(pickle.dumps(getattr(scorch, name))) is copy.copy(getattr(scorch, name))
    same(S.max(S), DENSE)
    assert scorch.max(DENSE, 1).indices.tolist() == [0, 0, 2]


def test_torch_compile_follows_them():
    def function(x):
        return scorch.sum(x, 1) + scorch.amax(x, 1)

    compiled = scorch.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(DENSE), function(DENSE))


def test_what_has_no_meaning_is_refused():
    S = scorch.from_torch(DENSE, format="csr")
    with pytest.raises(OperandError, match="expected a sparse tensor here, but got a dense tensor"):
        scorch.amax(DENSE, 1, masked=True)
    with pytest.raises(OperandError, match="expected dim to be an integer"):
        S.max(S, masked=True)
    with pytest.raises(ArgumentError, match="p must be a number"):
        S.norm("nuc", masked=True)
    with pytest.raises(ArgumentError, match="is NaN where there are no entries"):
        S.long().median(1, masked=True)
    with pytest.raises(ShapeError, match="cannot be broadcast"):
        scorch.masked.sum(S, 1, mask=scorch.from_torch(torch.ones(2, 3, 4, dtype=torch.bool)))
    with pytest.raises(IndexError):
        S.sum(2, masked=True)
    with pytest.raises(RuntimeError):
        S.long().mean(masked=True)
    with pytest.raises(TypeError):
        torch.amax(S, 1, masked=True)  # torch knows its own arguments only
