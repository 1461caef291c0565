"""torch's functions on sparse tensors of any format and dtype give what they give on the dense tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import scorch
from ops.calls_of_torch import ELEMENTWISE, INDEXING, REDUCTIONS, SHAPES, WITH_DENSE, Call
from scorch import SparseTensor

pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)", "sd"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]
EXACT = {torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}


def matrix(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    values = torch.randint(-3, 4, shape, generator=generator)
    kept = torch.rand(shape, generator=generator) < 0.4
    return (values * kept).abs().to(dtype) if dtype == torch.bool else (values * kept).to(dtype)


def check(call: Call, dense: torch.Tensor, form: str) -> None:
    S = scorch.from_torch(dense, format=form)
    before = S.to_dense()
    try:
        wanted = call(dense)
    except (RuntimeError, TypeError, IndexError) as error:
        with pytest.raises(type(error)):
            call(S)
        return
    found = call(S)
    same(found, wanted, EXACT.get(dense.dtype, {}))
    assert torch.equal(S.to_dense(), before), "operands are never modified"


def same(found: Any, wanted: Any, tolerance: dict[str, float]) -> None:
    if isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other, tolerance)
        return
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted
        return
    plain = found.to_dense() if isinstance(found, SparseTensor) else found
    torch.testing.assert_close(plain, wanted, equal_nan=True, check_stride=False, **tolerance)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", [*ELEMENTWISE, *REDUCTIONS, *SHAPES, *INDEXING])
def test_matrices(name, form):
    call = {**ELEMENTWISE, **REDUCTIONS, **SHAPES, **INDEXING}[name]
    check(call, matrix(torch.float32, 4, 6), form)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", WITH_DENSE)
def test_with_dense_tensors(name, form):
    check(WITH_DENSE[name], matrix(torch.float32, 4, 6), form)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", [*ELEMENTWISE, *REDUCTIONS, *SHAPES, *INDEXING])
def test_dtypes(name, dtype):
    call = {**ELEMENTWISE, **REDUCTIONS, **SHAPES, **INDEXING}[name]
    check(call, matrix(dtype, 4, 6), "csr")


@pytest.mark.parametrize("form", ["csf", "coo", "csr", "dsd"])
@pytest.mark.parametrize("name", [*ELEMENTWISE, *REDUCTIONS])
def test_order_three(name, form):
    check({**ELEMENTWISE, **REDUCTIONS}[name], matrix(torch.float32, 3, 4, 5), form)


@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (1, 1), (1, 6)])
@pytest.mark.parametrize("name", [*ELEMENTWISE, *REDUCTIONS])
def test_empty_and_tiny_matrices(name, shape):
    check({**ELEMENTWISE, **REDUCTIONS}[name], matrix(torch.float32, *shape), "csr")


SPARSE = ["abs", "neg", "relu", "sin", "expm1", "times two", "divided", "squared", "plus itself", "compared"]
SPARSE += ["times itself", "where with zero", "clamp", "sign", "gelu", "leaky_relu", "silu", "in place"]


@pytest.mark.parametrize("name", [*SPARSE, *SHAPES])
def test_what_is_zero_for_zero_stays_sparse(name):
    found = {**ELEMENTWISE, **SHAPES}[name](scorch.from_torch(matrix(torch.float32, 4, 6), format="csr"))
    parts = found if isinstance(found, tuple | list) else [found]
    assert all(isinstance(part, SparseTensor) for part in parts)


def test_a_function_that_keeps_zero_shares_the_pattern():
    S = scorch.from_torch(matrix(torch.float32, 4, 6), format="dcsr")
    assert torch.relu(S).storage.pattern is S.storage.pattern
    assert (S * 2).storage.pattern is S.storage.pattern
    assert S.T.storage.pattern.crd[1] is S.storage.pattern.crd[1]


def test_zeros_like_has_no_entries():
    S = scorch.from_torch(matrix(torch.float32, 4, 6), format="csr")
    zeros = torch.zeros_like(S, dtype=torch.float64)
    assert isinstance(zeros, SparseTensor) and zeros.nnz == 0 and zeros.format == S.format
    assert zeros.dtype == torch.float64 and zeros.shape == S.shape


def test_einsum_of_dense_tensors_keeps_their_gradients():
    x = torch.ones(3, 3, requires_grad=True)
    scorch.einsum("ij,jk->ik", x, x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "dcsr", "bsr(2,2)"])
def test_batches_of_rows_and_columns(form):
    dense = matrix(torch.float32, 8, 6)
    S = scorch.from_torch(dense, format=form)
    for index in (torch.tensor([3, 0, 3, 7]), torch.tensor([], dtype=torch.int64), torch.tensor([-1])):
        same(S[index], dense[index], {})
        same(S[:, index % 6], dense[:, index % 6], {})
    with pytest.raises(IndexError, match="out of bounds"):
        S[torch.tensor([8])]


@pytest.mark.parametrize("form", ["csr", "csc"])
def test_compressed_matrices_put_together(form):
    parts = [matrix(torch.float32, rows, 6) for rows in (4, 0, 3)]
    tensors = [scorch.from_torch(part, format=form) for part in parts]
    same(torch.cat(tensors), torch.cat(parts), {})
    wide = [part.T.contiguous() for part in parts]
    same(torch.cat([scorch.from_torch(part, format=form) for part in wide], 1), torch.cat(wide, 1), {})


WRITES: dict[str, Call] = {
    "an element": lambda x: x.__setitem__((1, 2), 5.0),
    "an element to zero": lambda x: x.__setitem__((1, -1), 0),
    "a row": lambda x: x.__setitem__(0, torch.arange(6.0)),
    "rows": lambda x: x.__setitem__(slice(1, 3), 2.0),
    "a column": lambda x: x.__setitem__((slice(None), 1), torch.ones(4)),
    "listed rows": lambda x: x.__setitem__(torch.tensor([0, 3]), 7.0),
    "where positive": lambda x: x.__setitem__(x > 0, 1.0),
    "a row in place": lambda x: x[1].zero_(),
    "a part of a part": lambda x: x[1:3][:, 2:].add_(1),
    "the transpose": lambda x: x.T.mul_(3),
    "the diagonal": lambda x: x.diagonal().fill_(7.0),
    "fill_diagonal_": lambda x: x.fill_diagonal_(2.0),
    "a reshape": lambda x: x.view(2, 12)[1].mul_(2),
    "parts of a split": lambda x: x.split(2)[1].neg_(),
    "copy_": lambda x: x.copy_(2 * torch.ones(4, 6)),
}


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("name", WRITES)
def test_writing_to_a_view_writes_to_the_tensor(name, form):
    dense = matrix(torch.float32, 4, 6)
    S = scorch.from_torch(dense.clone(), format=form)
    kept = S.clone()
    WRITES[name](S)
    wanted = dense.clone()
    WRITES[name](wanted)
    same(S, wanted, {})
    assert S.format == kept.format
    same(kept, dense, {})  # a copy is none


def test_running_products_of_long_lines():
    dense = torch.rand(2, 300, dtype=torch.float64) + 0.5
    dense[0, 40] = 0
    same(torch.cumprod(scorch.from_torch(dense, format="csr"), 1), torch.cumprod(dense, 1), {})


def test_errors_of_indexing_are_ours_and_the_builtin():
    S = scorch.from_torch(matrix(torch.float32, 4, 6), format="csr")
    with pytest.raises(scorch.errors.IndexRangeError, match="index 9 is out of bounds for dimension 0"):
        S[torch.tensor([9])]
    with pytest.raises(scorch.errors.UnsupportedError, match="has no strides"):
        torch.as_strided(S, (2, 2), (1, 1))
