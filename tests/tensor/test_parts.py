"""Parts along the outermost dimension, rows picked from it, and tensors put in a row along any."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch.errors import IndexRangeError

MATRICES = ["csr", "csc", "coo", "dcsr", "dcsc", "sd", "od", "bsr(2,2)", "so"]
CUBES = ["csr", "csf", "coo", "dsd", "dss", "sds", "ssd", "oos"]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int16, torch.bool]
DTYPES += [torch.complex64, torch.complex128]


def dense_of(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(shape, generator=generator) < 0.4
    values = torch.randint(1, 9, shape, generator=generator)
    found = (values * kept).to(dtype)
    found[shape[0] // 2] = 0  # a row without entries
    return found


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    dense = found.to_dense() if isinstance(found, scorch.SparseTensor) else found
    assert torch.equal(dense, wanted)
    if isinstance(found, scorch.SparseTensor):  # the arrays are those of a tensor made from scratch
        again = scorch.from_torch(wanted, format=found.format)
        if isinstance(again, scorch.SparseTensor) and found.nnz == again.nnz:
            for ours, theirs in zip(found.storage.pattern.arrays, again.storage.pattern.arrays, strict=True):
                assert ours.tolist() == theirs.tolist()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", MATRICES)
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (2, 5), (3, 4), (5, 5), (0, 1), (6, 7)])
def test_parts_of_matrices(form: str, start: int, stop: int) -> None:
    D = dense_of(7, 9)
    S = scorch.from_torch(D, format=form)
    check(S[start:stop], D[start:stop])
    check(S[:, start:stop], D[:, start:stop])
    check(S[start:stop] * 2, D[start:stop] * 2)
    check(S[start:stop] @ torch.ones(9, 2).double(), D[start:stop] @ torch.ones(9, 2).double())


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", CUBES)
def test_parts_of_cubes(form: str) -> None:
    D = dense_of(5, 4, 6)
    S = scorch.from_torch(D, format=form)
    for dim in range(3):
        for start, stop in [(0, 2), (1, 4), (3, 3)]:
            check(S.narrow(dim, start, stop - start), D.narrow(dim, start, stop - start))
        for place in range(D.shape[dim]):
            check(S.select(dim, place), D.select(dim, place))
    for place in (0, 2, -1):
        check(S[place], D[place])
        check(S[place, 1], D[place, 1])
        check(S[place, 1, -2], D[place, 1, -2])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", MATRICES)
def test_elements_and_rows(form: str) -> None:
    D = dense_of(7, 9)
    S = scorch.from_torch(D, format=form)
    for row in range(-7, 7):
        check(S[row], D[row])
        check(S[row, row], D[row, row])
    for wrong in (7, -8, (0, 9), (0, -10)):
        with pytest.raises(IndexError):
            S[wrong]
    with pytest.raises(IndexError):
        S[0, 0, 0]


def test_writing_to_a_part_writes_to_the_tensor() -> None:
    D = dense_of(7, 9)
    S = scorch.from_torch(D, format="csr")
    S[1:3].mul_(2)
    S[4] = 3
    S[5, 2:4].zero_()
    D[1:3] *= 2
    D[4] = 3
    D[5, 2:4] = 0
    assert torch.equal(S.to_dense(), D)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_picked_rows(form: str, dtype: torch.dtype) -> None:
    D = dense_of(7, 9, dtype=dtype)
    S = scorch.from_torch(D, format=form)
    for rows in ([], [3], [0, 0, 6, -1, -7, 2], list(range(7))):
        index = torch.tensor(rows, dtype=torch.int64)
        check(S[index], D[index])
        check(S[:, index], D[:, index])
        check(torch.index_select(S, 0, index % 7), D[index])
        check(S[index.to(torch.int32)], D[index])


def test_picked_batches() -> None:
    D = dense_of(5, 4, 6)
    S = scorch.from_torch(D, format="csr")
    assert S.format.letters == "dds"
    index = torch.tensor([4, -5, 2, 2])
    check(S[index], D[index])
    check(S[:, index % 4], D[:, index % 4])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wrong", [7, -8, 1 << 40])
def test_rows_that_are_not_there(wrong: int) -> None:
    S = scorch.from_torch(dense_of(7, 9), format="csr")
    with pytest.raises(IndexRangeError, match=f"index {wrong} is out of bounds for dimension 0 with size 7"):
        S[torch.tensor([1, wrong])]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", [*MATRICES, "dense"])
@pytest.mark.parametrize("dim", [0, 1])
def test_cat_of_matrices(form: str, dim: int) -> None:
    parts = [dense_of(7, 9, seed=seed) for seed in range(5)]
    shorter = [part.narrow(dim, 0, size) for part, size in zip(parts, (7, 1, 0, 3, 5), strict=True)]
    first = scorch.from_torch(shorter[0], format="csr" if form == "dense" else form)
    rest = [part if form == "dense" else scorch.from_torch(part, format=form) for part in shorter[1:]]
    found = torch.cat([first, *rest], dim)
    assert torch.equal(found.to_dense(), torch.cat(shorter, dim))
    if form != "dense" and not first.format.is_blocked:
        assert isinstance(found, scorch.SparseTensor) and found.format == first.format


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", CUBES)
def test_cat_of_cubes(form: str) -> None:
    parts = [dense_of(5, 4, 6, seed=seed) for seed in range(3)]
    for dim in range(3):
        found = torch.cat([scorch.from_torch(part, format=form) for part in parts], dim)
        assert torch.equal(found.to_dense(), torch.cat(parts, dim))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_cat_takes_the_common_dtype(dtype: torch.dtype, dim: int) -> None:
    D, E = dense_of(6, 6, dtype=dtype), dense_of(6, 6, dtype=torch.bool, seed=1)
    found = torch.cat([scorch.from_torch(D, format="csr"), scorch.from_torch(E, format="csr")], dim)
    assert found.dtype == torch.cat([D, E], dim).dtype
    assert torch.equal(found.to_dense(), torch.cat([D, E], dim))


def test_explicit_zeros_stay_in_parts_and_joins() -> None:
    S = scorch.sparse_coo_tensor([[0, 1, 2], [0, 1, 2]], [0.0, 1.0, 0.0], (3, 3)).to_format("csr")
    assert S[:1].nnz == 1 and S[torch.tensor([2, 2])].nnz == 2
    assert torch.cat([S, S]).nnz == 6 and torch.cat([S, S], 1).nnz == 6


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(7, 9), (1, 4), (5, 1), (0, 3), (3, 0)])
def test_rows_kept_otherwise_share_the_entries(shape: tuple[int, int], dtype: torch.dtype) -> None:
    D = dense_of(*shape) if shape[0] else torch.zeros(shape, dtype=torch.float64)
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), (D != 0).sum(1).cumsum(0)]).to(dtype)
    S = scorch.sparse_csr_tensor(crow, D.nonzero()[:, 1].to(dtype), D[D != 0], shape)
    listed = S.to_format("coo")
    back = listed.to_format("csr")
    assert torch.equal(listed.indices(), D.nonzero().T) and torch.equal(back.to_dense(), D)
    assert back.crow_indices().tolist() == crow.tolist()
    assert listed.storage.values.data_ptr() == S.storage.values.data_ptr()
    by_columns = scorch.from_torch(D, format="csc")
    turned = by_columns.to_format(scorch.Format("coo", order=(1, 0)))
    assert torch.equal(turned.to_dense(), D)
    assert torch.equal(turned.to_format("csc").to_dense(), D)
