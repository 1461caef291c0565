"""Nobody changes the pattern of a tensor through an index array that came in or went out.

Kernels follow index arrays without looking, and tensors share patterns: a number written into one would be an
entry outside of the shape, in every tensor of the pattern. Each way in and out is taken, then every index
array that the user holds is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

import scorch
from properties.drawing import random_dense
from scorch import SparseTensor
from scorch._src.tensor.create.build import from_coordinates
from validity import check_storage, dense_of

sparse = pytest.importorskip("scipy.sparse")

DENSE = random_dense((4, 6), torch.float32, 0.5, 3)
DTYPES = [torch.int32, torch.int64]


def overwrite(arrays: Iterable[Any]) -> None:
    """Write what no kernel could follow."""
    for array in arrays:
        if array.flags.writeable if isinstance(array, np.ndarray) else array.numel():
            array.fill(10**6) if isinstance(array, np.ndarray) else array.fill_(10**6)


def check_unchanged(tensor: SparseTensor, dense: torch.Tensor) -> None:
    check_storage(tensor)
    assert torch.equal(dense_of(tensor), dense)
    assert torch.equal(tensor.to_dense(), dense) and torch.equal((tensor + tensor).to_dense(), dense + dense)


# in --------------------------------------------------------------------------------------------------


def compressed(kind: str, dtype: torch.dtype) -> list[torch.Tensor]:
    given = DENSE.to_sparse_csr() if kind == "csr" else DENSE.to_sparse_csc()
    first, second = (
        (given.crow_indices(), given.col_indices())
        if kind == "csr"
        else (given.ccol_indices(), given.row_indices())
    )
    return [first.to(dtype).clone(), second.to(dtype).clone()]


def blocks(dtype: torch.dtype) -> tuple[list[torch.Tensor], torch.Tensor]:
    given = DENSE.to_sparse_bsr((2, 3))
    return [given.crow_indices().to(dtype).clone(), given.col_indices().to(dtype).clone()], given.values()


def coordinates(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    given = DENSE.to_sparse_coo().coalesce()
    return given.indices().to(dtype).clone(), given.values()


def in_by_csr(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    arrays, values = compressed("csr", dtype), DENSE.to_sparse_csr().values()
    return scorch.sparse_csr_tensor(*arrays, values, DENSE.shape), arrays


def in_by_csc(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    arrays, values = compressed("csc", dtype), DENSE.to_sparse_csc().values()
    return scorch.sparse_csc_tensor(*arrays, values, DENSE.shape), arrays


def in_by_blocks(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    arrays, values = blocks(dtype)
    return scorch.sparse_bsr_tensor(*arrays, values, DENSE.shape), arrays


def in_by_coordinates(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    indices, values = coordinates(dtype)
    return scorch.sparse_coo_tensor(indices, values, DENSE.shape), [indices]


def in_by_rows_of_coordinates(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    indices, values = coordinates(dtype)
    rows = [row.clone() for row in indices]
    return from_coordinates(rows, values, DENSE.shape), rows


def in_by_numpy(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    arrays = [array.numpy() for array in compressed("csr", dtype)]
    return scorch.sparse_csr_tensor(*arrays, DENSE.to_sparse_csr().values(), DENSE.shape), arrays


def in_by_edges(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    indices, values = coordinates(dtype)
    return scorch.from_edge_index(indices, values, tuple(DENSE.shape)), [indices]


def in_by_torch(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    arrays = compressed("csr", dtype)
    theirs = torch.sparse_csr_tensor(*arrays, DENSE.to_sparse_csr().values(), DENSE.shape)
    return scorch.from_torch(theirs), [*arrays, theirs.crow_indices(), theirs.col_indices()]


def in_by_scipy(kind: str) -> Callable[[torch.dtype], tuple[Any, list[Any]]]:
    def make(dtype: torch.dtype) -> tuple[Any, list[Any]]:
        matrix = getattr(sparse, f"{kind}_array")(DENSE.numpy())
        names = ["coords"] if kind == "coo" else ["indices", "indptr"]
        held = []
        for name in names:
            array = getattr(matrix, name)
            held += list(array) if isinstance(array, tuple) else [array]
        return scorch.from_scipy(matrix), held

    return make


def in_by_state_dict(dtype: torch.dtype) -> tuple[Any, list[Any]]:
    layer = scorch.nn.SparseLinear.from_dense(linear_of(DENSE))
    state = {name: array.clone() for name, array in layer.state_dict().items()}
    layer.load_state_dict(state)
    return layer.weight.detach(), [array for name, array in state.items() if "pattern" in name]


def linear_of(weight: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data.copy_(weight)
    return layer


WAYS_IN = {
    "csr": in_by_csr,
    "csc": in_by_csc,
    "bsr": in_by_blocks,
    "coo": in_by_coordinates,
    "rows": in_by_rows_of_coordinates,
    "numpy": in_by_numpy,
    "edges": in_by_edges,
    "torch": in_by_torch,
    **{f"scipy {kind}": in_by_scipy(kind) for kind in ("csr", "csc", "bsr", "coo")},
    "state_dict": in_by_state_dict,
}


@pytest.mark.cpu("NumPy and SciPy hand over its memory")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", WAYS_IN)
def test_arrays_that_came_in(way: str, dtype: torch.dtype) -> None:
    made, held = WAYS_IN[way](dtype)
    check_unchanged(made, DENSE)
    overwrite(held)
    check_unchanged(made, DENSE)


# out -------------------------------------------------------------------------------------------------


def held_by_scipy(S: SparseTensor) -> list[Any]:
    matrix = S.to_scipy()
    return list(matrix.coords) if matrix.format == "coo" else [matrix.indices, matrix.indptr]


def held_by_torch(S: SparseTensor) -> list[Any]:
    theirs = S.to_torch()
    match theirs.layout:
        case torch.sparse_coo:
            return [theirs._indices()]
        case torch.sparse_csr | torch.sparse_bsr:
            return [theirs.crow_indices(), theirs.col_indices()]
    return [theirs.ccol_indices(), theirs.row_indices()]


def held_by_names(S: SparseTensor) -> list[Any]:
    found = [S._indices()]
    for name in ("indices", "crow_indices", "col_indices", "ccol_indices", "row_indices"):
        try:
            found.append(getattr(S, name)())
        except scorch.errors.FormatError:
            continue
    return found


def held_by_graphs(S: SparseTensor) -> list[Any]:
    arrays = [*S.coo()[:2], *S.csr()[:2], *S.csc()[:2], S.to_edge_index()[0]]
    return [array for array in arrays if not array.is_floating_point()]


def held_by_levels(S: SparseTensor) -> list[Any]:
    return [level[name] for level in S.levels for name in ("pos", "crd") if level[name] is not None]


WAYS_OUT = {
    "to_scipy": held_by_scipy,
    "to_torch": held_by_torch,
    "torch's names": held_by_names,
    "graphs": held_by_graphs,
    "levels": held_by_levels,
}


@pytest.mark.cpu("NumPy and SciPy share its memory")
@pytest.mark.parametrize("name", ["csr", "csc", "coo", "bsr(2,3)", "dcsr"])
@pytest.mark.parametrize("way", WAYS_OUT)
def test_arrays_that_went_out(way: str, name: str) -> None:
    S = scorch.from_torch(DENSE, name)
    held = WAYS_OUT[way](S)
    assert held, "nothing went out"
    overwrite(held)
    check_unchanged(S, DENSE)


@pytest.mark.cpu("NumPy and SciPy share its memory")
@pytest.mark.parametrize("way", WAYS_OUT)
def test_arrays_of_int64_that_went_out(way: str) -> None:
    """Wide enough for int64, which need not be converted on the way."""
    S = scorch.sparse_csr_tensor([0, 2, 3], [1, 2**33, 0], [1.0, 2.0, 3.0], (2, 2**34))
    before = [array.clone() for array in S.storage.pattern.arrays]
    if way == "graphs":
        held: list[Any] = [*S.coo()[:2], *S.csr()[:2]]
    else:
        held = WAYS_OUT[way](S)
    overwrite(held)
    assert all(torch.equal(a, b) for a, b in zip(before, S.storage.pattern.arrays, strict=True))


def test_the_state_of_a_layer_is_a_copy() -> None:
    layer = scorch.nn.SparseLinear.from_dense(linear_of(DENSE))
    overwrite(array for name, array in layer.state_dict().items() if "pattern" in name)
    check_unchanged(layer.weight.detach(), DENSE)


@pytest.mark.cpu("SciPy shares its memory")
@pytest.mark.parametrize("name", ["csr", "csc", "coo", "bsr(2,3)"])
@pytest.mark.parametrize("change", ["eliminate_zeros", "sum_duplicates", "sort_indices", "prune"])
def test_scipy_may_change_its_matrix_in_place(name: str, change: str) -> None:
    dense = DENSE.clone()
    dense[:2] *= -1
    S = scorch.from_torch(dense, name)
    R = torch.relu(S)  # which has the pattern of S, and stores zeros
    truth = R.to_dense()
    matrix = R.to_scipy()
    if not hasattr(matrix, change):
        pytest.skip(f"SciPy's {name} has no {change}")
    getattr(matrix, change)()
    check_unchanged(S, dense)
    check_unchanged(R, truth)
    assert np.array_equal(matrix.toarray(), truth.numpy())


@pytest.mark.cpu("SciPy shares its memory")
def test_values_are_shared_with_scipy_where_none_is_zero() -> None:
    S = scorch.from_torch(DENSE, "csr")
    assert np.shares_memory(S.to_scipy().data, S.values().numpy())
    matrix = sparse.csr_array(DENSE.numpy())
    assert np.shares_memory(matrix.data, scorch.from_scipy(matrix).values().numpy())
