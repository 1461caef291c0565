"""Whatever is wrong with the arrays of a tensor is said clearly, before a kernel sees it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scorch._src.tensor.create.construct import from_edge_index, from_torch, tensor
from scorch._src.tensor.create.torch_constructors import (
    sparse_bsc_tensor,
    sparse_bsr_tensor,
    sparse_compressed_tensor,
    sparse_coo_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
)
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch.errors import (
    DtypeError,
    FormatError,
    IndexRangeError,
    OperandError,
    ShapeError,
    UnsupportedError,
)

INDICES, VALUES = [[1, 0, 1], [2, 1, 2]], [1.0, 2.0, 3.0]
MATRIX = [[0.0, 2.0, 0.0], [0.0, 0.0, 4.0]]


def refused(error, message, call, *args, **options):
    with pytest.raises(error) as caught:
        call(*args, **options)
    assert message in str(caught.value)
    assert sparse_coo_tensor(INDICES, VALUES, (2, 3)).to_dense().tolist() == MATRIX  # the next call works


COO_ERRORS = [
    (
        ([[0, 1, 0, 1], [0, 4, 2, 7]], [1.0] * 4, (2, 5)),
        IndexRangeError,
        "indices[1] has 7 at entry 3, but dimension 1 has size 5: coordinates must be from 0 to 4",
    ),
    (
        ([[0, -1]], [1.0, 2.0], (3,)),
        IndexRangeError,
        "indices[0] has -1 at entry 1, but dimension 0 has size 3",
    ),
    (([[0]], [1.0], (0,)), IndexRangeError, "dimension 0 has size 0: it has no coordinates"),
    (([[0.5]], [1.0], (2,)), DtypeError, "indices must be int64 or int32, but got float32"),
    (([[True]], [1.0], (2,)), DtypeError, "indices must be int64 or int32, but got bool"),
    (([[math.nan]], [1.0], (2,)), DtypeError, "indices must be int64 or int32, but got float32"),
    (
        ([0, 1], [1.0, 2.0], (2,)),
        ShapeError,
        "indices has shape (2,); it must have one row for each dimension",
    ),
    ((INDICES, [1.0], (2, 3)), ShapeError, "indices has 3 entries, but values has 1: pass one value"),
    ((INDICES, 1.0, (2, 3)), ShapeError, "but values is a scalar: pass one value for each entry"),
    ((INDICES, VALUES, (2, 3, 4)), ShapeError, "size (2, 3, 4) has 3 dimensions, but indices has 2 rows"),
    (
        (INDICES, torch.ones(3, 2), (2, 3, 4)),
        ShapeError,
        "each value has shape (2,), but size (2, 3, 4) ends",
    ),
    ((INDICES, VALUES, (2, math.nan)), ShapeError, "size[1] must be a non-negative integer, but got nan"),
    ((INDICES, VALUES, (2, 3.0)), ShapeError, "size[1] must be a non-negative integer, but got 3.0"),
    ((INDICES, VALUES, (-2, 3)), ShapeError, "size[0] must be a non-negative integer, but got -2"),
    ((INDICES, VALUES, (True, 3)), ShapeError, "size[0] must be a non-negative integer, but got True"),
    ((INDICES, VALUES, (2, 2**64)), ShapeError, f"size[1] is {2**64}; the largest size is 2**63 - 1"),
    ((INDICES, VALUES, (2**40, 2**40)), ShapeError, "has too many elements"),
    (
        (INDICES, VALUES, 6),
        ShapeError,
        "size must list the size of each dimension, such as (3, 4), but got 6",
    ),
    ((INDICES, ["a"] * 3, (2, 3)), OperandError, "values is not an array of numbers"),
    (([[0, 1], [2]], VALUES, (2, 3)), OperandError, "indices is not an array of numbers"),
    (
        ([torch.zeros(2), [0, 1]], VALUES, (2, 3)),
        DtypeError,
        "indices[0] must be int64 or int32, but got float32",
    ),
    (
        ([torch.tensor([0, 1]), torch.tensor([0])], VALUES, (2, 3)),
        ShapeError,
        "indices[1] has 1 coordinates, but indices[0] has 2",
    ),
    ((torch.eye(2).to_sparse(), VALUES, (2, 3)), OperandError, "indices must be a dense tensor"),
    ((INDICES, torch.ones(3, device="meta"), (2, 3)), OperandError, "values is on device meta"),
    ((INDICES, np.array([b"a"] * 3), (2, 3)), DtypeError, "which PyTorch does not support"),
    ((INDICES, torch.ones(3).to(torch.float8_e4m3fn), (2, 3)), DtypeError, "float8_e4m3fn is not supported"),
]


@pytest.mark.parametrize(("args", "error", "message"), COO_ERRORS, ids=[m[:40] for _, _, m in COO_ERRORS])
def test_wrong_coordinates(args, error, message):
    refused(error, message, sparse_coo_tensor, *args)


CSR_ERRORS = [
    (([0, 1], [0], [1.0], (2, 3)), ShapeError, "crow_indices has 2 entries, but 2 rows need 3"),
    (
        ([1, 1, 1], [0], [1.0], (2, 3)),
        IndexRangeError,
        "crow_indices begins with 1; the first pointer must be 0",
    ),
    (
        ([0, 2, 1], [0], [1.0], (2, 3)),
        IndexRangeError,
        "crow_indices falls from 2 at entry 1 to 1 at entry 2; pointers must not decrease",
    ),
    (
        ([0, 1, 4], [0, 1], [1.0, 2.0], (2, 3)),
        IndexRangeError,
        "crow_indices ends with 4, but there are 2 entries",
    ),
    (
        ([0, 1, 2], [0, 3], [1.0, 2.0], (2, 3)),
        IndexRangeError,
        "col_indices has 3 at entry 1, but dimension 1 has size 3: coordinates must be from 0 to 2",
    ),
    (([0, 1, 2], [0, -3], [1.0, 2.0], (2, 3)), IndexRangeError, "col_indices has -3 at entry 1"),
    (([0.0, 1.0], [0], [1.0], (1, 3)), DtypeError, "crow_indices must be int64 or int32, but got float32"),
    (([0, 1], [0.5], [1.0], (1, 3)), DtypeError, "col_indices must be int64 or int32, but got float32"),
    (([0, 1], [0], [1.0, 2.0], (1, 3)), ShapeError, "values has shape (2,), but col_indices has shape (1,)"),
    (
        ([0, 1], [0], [1.0], (1, 3, 2)),
        ShapeError,
        "size (1, 3, 2) has 3 dimensions, but the arrays describe",
    ),
    ((0, [0], [1.0], (1, 3)), ShapeError, "crow_indices must list where each row or column begins"),
    (([0, 1], [[0]], [[1.0]], (1, 3)), ShapeError, "all dimensions but the last are batches and must agree"),
    (([[0, 1]], [[0]], [[1.0]], (2, 1, 3)), ShapeError, "begins with (2,), but the arrays have batches (1,)"),
    (
        ([[0, 1], [0, 0]], [[0], [0]], [[1.0], [1.0]], (2, 1, 3)),
        IndexRangeError,
        "crow_indices of batch 1 ends",
    ),
    (([0, 1], [0], [[1.0, 2.0]], (1, 3, 3)), ShapeError, "each value has dense dimensions (2,), but size"),
    (([], [], [], None), ShapeError, "crow_indices has 0 entries, but 0 rows need 1"),
    (([0, 1], [0], [1.0], (1, math.nan)), ShapeError, "size[1] must be a non-negative integer, but got nan"),
]


@pytest.mark.parametrize(("args", "error", "message"), CSR_ERRORS, ids=[m[:40] for _, _, m in CSR_ERRORS])
def test_wrong_pointers(args, error, message):
    refused(error, message, sparse_csr_tensor, *args)


BLOCK = torch.ones(1, 2, 3)
BSR_ERRORS = [
    (([0, 1], [0], [1.0], (2, 3)), ShapeError, "in bsr each value is a block"),
    (
        ([0, 1], [0], BLOCK, (3, 3)),
        ShapeError,
        "dimension 0 has size 3, which is not divisible by the block size 2",
    ),
    (
        ([0, 1], [2], BLOCK, (2, 6)),
        IndexRangeError,
        "col_indices has 2 at entry 0, but dimension 1 has 2 blocks of 3",
    ),
    (([0, 1], [0], torch.ones(1, 0, 3), (0, 3)), ShapeError, "blocks with positive sizes, but got (0, 3)"),
    (([0, 1], [0], BLOCK, (4, 3)), ShapeError, "crow_indices has 2 entries, but 2 blocks of rows need 3"),
]


@pytest.mark.parametrize(("args", "error", "message"), BSR_ERRORS, ids=[m[:40] for _, _, m in BSR_ERRORS])
def test_wrong_blocks(args, error, message):
    refused(error, message, sparse_bsr_tensor, *args)


def test_the_arrays_of_columns_have_their_own_names():
    refused(
        IndexRangeError,
        "row_indices has 9 at entry 0, but dimension 0",
        sparse_csc_tensor,
        [0, 1],
        [9],
        [1.0],
        (3, 1),
    )
    refused(IndexRangeError, "ccol_indices begins with 1", sparse_csc_tensor, [1, 1], [0], [1.0], (3, 1))


def test_wrong_layouts_and_formats():
    refused(FormatError, "None is not a compressed layout", sparse_compressed_tensor, [0, 1], [0], [1.0])
    refused(
        FormatError,
        "torch.sparse_coo is not a compressed layout",
        *(sparse_compressed_tensor, [0, 1], [0], [1.0]),
        layout=torch.sparse_coo,
    )
    refused(
        FormatError,
        "unknown format 'crs'; did you mean",
        sparse_coo_tensor,
        INDICES,
        VALUES,
        (2, 3),
        format="crs",
    )
    refused(FormatError, "stores 3-D tensors", from_torch, torch.eye(2), "dds")


@pytest.mark.parametrize(
    "call",
    [
        lambda **options: sparse_coo_tensor(INDICES, VALUES, (2, 3), **options),
        lambda **options: sparse_csr_tensor([0, 1], [0], [1.0], **options),
        lambda **options: sparse_csc_tensor([0, 1], [0], [1.0], **options),
        lambda **options: sparse_bsr_tensor([0, 1], [0], BLOCK, **options),
        lambda **options: sparse_bsc_tensor([0, 1], [0], BLOCK, **options),
        lambda **options: tensor(MATRIX, format="csr", **options),
    ],
)
def test_options_of_constructors(call):
    made = call(requires_grad=True)
    assert made.requires_grad and made.is_leaf
    refused(UnsupportedError, "is not supported here", call, pin_memory=True)
    refused(OperandError, "is on device meta, but Scorch supports only the devices cpu", call, device="meta")
    assert call(device="cpu", requires_grad=False, pin_memory=False).nnz > 0


def test_the_class_is_not_called_with_arrays():
    for call in (
        lambda: SparseTensor(INDICES, VALUES, (2, 3)),
        lambda: SparseTensor(torch.eye(3)),
        lambda: SparseTensor(row=torch.tensor([0]), col=torch.tensor([1])),
    ):
        refused(OperandError, "use scorch.sparse_coo_tensor(indices, values, size)", call)


def test_wrong_edges():
    edges = torch.tensor([[0, 1], [1, 0]])
    refused(
        ShapeError,
        "edge_index must have shape (2, edges), but got (3, 1)",
        from_edge_index,
        [[0], [1], [2]],
    )
    refused(
        ShapeError, "edge_weight has shape (3,), but edge_index has 2 edges", from_edge_index, edges, VALUES
    )
    refused(
        IndexRangeError,
        "edge_index[0] has 1 at entry 1, but dimension 0 has size 1",
        from_edge_index,
        edges,
        size=1,
    )
    refused(IndexRangeError, "edge_index[0] has -1 at entry 0", from_edge_index, [[-1], [2]])
    refused(DtypeError, "edge_index must be int64 or int32, but got float32", from_edge_index, [[0.0], [1.0]])
    refused(
        ShapeError, "size[0] must be a non-negative integer, but got -3", from_edge_index, edges, size=(-3, 2)
    )


def test_unknown_options_are_refused_by_the_name_of_the_function() -> None:
    with pytest.raises(TypeError, match=r"sparse_csr_tensor\(\) got an unexpected keyword argument 'shape'"):
        sparse_csr_tensor([0, 1], [0], [1.0], shape=(1, 1))


@pytest.mark.parametrize("size", [(2, 3), None])
def test_transposed_indices_are_recognized(size) -> None:
    words = "indices has shape (4, 2), one row for each entry; it must have one row for each dimension"
    listed = [[1, 2], [0, 1], [1, 0], [0, 2]]
    refused(ShapeError, words, sparse_coo_tensor, listed, [1.0] * 4, size)
    refused(ShapeError, "shape (2, 4): pass indices.t()", sparse_coo_tensor, torch.tensor(listed), [1.0] * 4)
    refused(ShapeError, "(2, edges), but got (4, 2): pass edge_index.t()", from_edge_index, listed)


def test_swapped_pointers_and_columns_are_recognized() -> None:
    pointers, columns, values = [0, 2, 3, 4], [0, 1, 0], [1.0, 2.0, 3.0]
    columns, values = [*columns, 2], [*values, 4.0]
    swapped = "crow_indices and col_indices seem to be swapped: crow_indices comes first"
    assert sparse_csr_tensor(pointers, columns, values).nnz == 4
    refused(IndexRangeError, swapped, sparse_csr_tensor, columns, pointers, values)
    refused(ShapeError, swapped, sparse_csr_tensor, columns, [0, 1, 2, 3, 4], values)
    for wrong in ([0, 2, 3], [0, 2, 3, 5]):  # also if swapped
        with pytest.raises((ShapeError, IndexRangeError)) as caught:
            sparse_csr_tensor(columns, wrong, values)
        assert "swapped" not in str(caught.value)


@pytest.mark.whole
@pytest.mark.parametrize(
    "call",
    [
        lambda dtype: sparse_coo_tensor(INDICES, VALUES, (2, 3), dtype=dtype),
        lambda dtype: sparse_coo_tensor((2, 3), dtype=dtype),
        lambda dtype: sparse_csr_tensor([0, 1, 2], [2, 0], [1.0, 2.0], (2, 3), dtype=dtype),
        lambda dtype: sparse_csc_tensor([0, 1, 1, 2], [0, 1], torch.tensor([1.0, 2.0]), dtype=dtype),
        lambda dtype: sparse_bsr_tensor([0, 1], [0], torch.ones(1, 2, 2), (2, 2), dtype=dtype),
    ],
)
def test_dtypes_are_those_of_torch_and_of_python(call) -> None:
    kinds = {float: torch.float64, int: torch.int64, bool: torch.bool, complex: torch.complex128}
    for kind, dtype in kinds.items():
        assert call(kind).dtype == dtype
    for wrong, hint in (("float32", "use torch.float32"), ("csr", "torch.dtype"), (3, "torch.dtype")):
        with pytest.raises(OperandError, match=hint):
            call(wrong)
