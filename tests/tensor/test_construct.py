"""The constructors: torch's signatures, anything that holds numbers, entries in any order."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from scorch._src.formats import Format
from scorch._src.tensor.create import torch_constructors
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.create.construct import from_edge_index, tensor
from scorch._src.tensor.create.torch_constructors import (
    sparse_bsc_tensor,
    sparse_bsr_tensor,
    sparse_compressed_tensor,
    sparse_coo_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
)
from validity import check_storage, dense_of

INDICES, VALUES = [[1, 0, 1], [2, 1, 2]], [1.0, 2.0, 3.0]
MATRIX = [[0.0, 2.0, 0.0], [0.0, 0.0, 4.0]]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_coo_from_lists_arrays_and_tensors(kind):
    found = sparse_coo_tensor(kind(INDICES), kind(VALUES), (2, 3))
    assert found.format == Format("coo")
    check_storage(found)
    assert found.to_dense().tolist() == MATRIX


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_coordinates_as_one_array_for_each_dimension(kind):
    found = from_coordinates([kind(row) for row in INDICES], VALUES, (2, 3), "csr")
    assert found.format == Format("csr") and found.to_dense().tolist() == MATRIX


def test_size_is_as_large_as_the_coordinates_ask_for():
    assert sparse_coo_tensor(INDICES, VALUES).shape == (2, 3)
    assert sparse_coo_tensor([[0, 4]], torch.ones(2, 3)).shape == (5, 3)
    assert sparse_coo_tensor([[], []], []).shape == (0, 0)
    assert sparse_csr_tensor([0, 1, 3], [2, 0, 4], VALUES).shape == (2, 5)
    assert sparse_csc_tensor([0, 1, 3], [2, 0, 4], VALUES).shape == (5, 2)
    assert sparse_bsr_tensor([0, 1], [2], torch.ones(1, 2, 3)).shape == (2, 9)
    assert sparse_bsc_tensor([0, 1], [2], torch.ones(1, 2, 3)).shape == (6, 3)


def test_an_empty_tensor_from_its_size():
    for found in (sparse_coo_tensor((2, 3)), sparse_coo_tensor(size=(2, 3), dtype=torch.int8)):
        assert found.shape == (2, 3) and found.nnz == 0
        check_storage(found)
    assert found.dtype == torch.int8


def test_sizes_may_be_arrays_and_whole_numbers_of_any_kind():
    for size in (torch.Size([2, 3]), [np.int64(2), 3], torch.tensor([2, 3]), np.array([2, 3])):
        assert sparse_coo_tensor(INDICES, VALUES, size).shape == (2, 3)


def test_dtype_and_format_are_obeyed():
    found = sparse_coo_tensor(INDICES, VALUES, (2, 3), dtype=torch.int16, format="csc")
    assert found.dtype == torch.int16 and found.format == Format("csc")
    assert type(sparse_coo_tensor(INDICES, VALUES, (2, 3), format="dense")) is torch.Tensor
    assert sparse_csr_tensor([0, 1], [0], [1], dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_indices_of_any_integer_dtype(dtype):
    found = sparse_coo_tensor(torch.tensor(INDICES, dtype=dtype), VALUES, (2, 3))
    assert found.to_dense().tolist() == MATRIX


def test_hybrid_coordinates_keep_their_dense_dimensions():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    found = sparse_coo_tensor(INDICES, values, (2, 3, 2))
    assert found.format == Format("ood") and found.nnz == 4
    check_storage(found)
    wanted = torch.sparse_coo_tensor(INDICES, values, (2, 3, 2)).to_dense()
    assert torch.equal(dense_of(found), wanted)
    assert torch.equal(found.to_format("csf").to_dense(), wanted)


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr", "bsc"])
def test_compressed_constructors_agree_with_torch(kind):
    values = torch.arange(1.0, 19.0).reshape(3, 2, 3) if kind[0] == "b" else torch.tensor(VALUES)
    arrays = ([0, 1, 3], [2, 0, 2], values)
    layout = getattr(torch, f"sparse_{kind}")
    wanted = torch.sparse_compressed_tensor(
        *(torch.as_tensor(array) for array in arrays), layout=layout, check_invariants=True
    )
    for found in (
        getattr(torch_constructors, f"sparse_{kind}_tensor")(*arrays),
        sparse_compressed_tensor(*arrays, layout=layout),
    ):
        check_storage(found)
        assert found.shape == wanted.shape and torch.equal(dense_of(found), wanted.to_dense())


def test_unsorted_and_repeated_columns_of_a_row():
    found = sparse_csr_tensor([0, 3, 4], [2, 0, 2, 1], [1.0, 2.0, 3.0, 4.0], (2, 3))
    check_storage(found)
    assert found.to_dense().tolist() == [[2.0, 0.0, 4.0], [0.0, 4.0, 0.0]]


def test_signatures_are_torchs():
    for name in ("csr", "csc", "bsr", "bsc"):
        names = list(inspect.signature(getattr(torch_constructors, f"sparse_{name}_tensor")).parameters)
        assert names[2:] == [
            *(
                "values",
                "size",
                "dtype",
                "device",
                "pin_memory",
                "requires_grad",
                "check_invariants",
                "format",
            )
        ]


def test_given_arrays_are_not_changed():
    indices, values = torch.tensor(INDICES), torch.tensor(VALUES)
    before = indices.clone(), values.clone()
    sparse_coo_tensor(indices, values, (2, 3))
    assert torch.equal(indices, before[0]) and torch.equal(values, before[1])


def test_read_only_reversed_and_foreign_numpy_arrays():
    values = np.array(VALUES)
    values.flags.writeable = False
    assert sparse_coo_tensor(INDICES, values, (2, 3)).to_dense().tolist() == MATRIX
    assert sparse_coo_tensor(INDICES, np.array(VALUES)[::-1], (2, 3)).values().tolist() == [2.0, 4.0]
    assert sparse_coo_tensor(INDICES, np.array(VALUES, dtype=">f8"), (2, 3)).to_dense().tolist() == MATRIX


def test_tensor_is_torchs_with_a_format():
    assert type(tensor([[1.0]])) is torch.Tensor
    found = tensor(MATRIX, format="csr", dtype=torch.float64)
    assert (
        found.format == Format("csr") and found.dtype == torch.float64 and found.to_dense().tolist() == MATRIX
    )
    assert tensor(found, format="csc").format == Format("csc")
    copied = tensor(found)
    assert copied.storage.values.data_ptr() != found.storage.values.data_ptr()
    assert tensor(np.eye(2), format="coo").nnz == 2


def test_edges_make_an_adjacency_matrix():
    edges = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 3]])
    found = from_edge_index(edges)
    assert found.shape == (4, 4) and found.format == Format("coo")
    assert found.to_dense()[1, 0] == 2.0  # repeated edges add up
    weighted = from_edge_index(edges, torch.tensor([1.0, 2.0, 3.0, 4.0]), size=5, format="csr")
    assert weighted.shape == (5, 5) and weighted.format == Format("csr") and weighted.to_dense()[1, 0] == 5.0
    assert from_edge_index(edges, size=(2, 4)).shape == (2, 4)
    assert from_edge_index([[], []]).shape == (0, 0)
