"""Torch's five sparse layouts, batched and hybrid too, come in and go out as they are."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scorch
from properties.drawing import DTYPES, formats, random_dense
from scorch._src.formats import Format
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.interop.torch_layouts import to_torch
from scorch.errors import DtypeError, IndexRangeError, OperandError, UnsupportedError
from validity import check_storage, dense_of

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
COMPRESSED = LAYOUTS[1:]
FEWER = max(10, settings().max_examples // 4)


def in_layout(dense: torch.Tensor, layout: torch.layout, block=(2, 3), dense_dim: int = 0) -> torch.Tensor:
    blocksize = block if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return dense.to_sparse(layout=layout, blocksize=blocksize, dense_dim=dense_dim or None)


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    """Two torch tensors agree in layout, shape, dtype and values."""
    assert a.layout == b.layout and a.shape == b.shape and a.dtype == b.dtype
    assert (a.sparse_dim(), a.dense_dim()) == (b.sparse_dim(), b.dense_dim())
    assert torch.equal(a.to_dense(), b.to_dense())


NAMES = {
    torch.sparse_coo: "coo",
    torch.sparse_csr: "csr",
    torch.sparse_csc: "csc",
    torch.sparse_bsr: "bsr(2,3)",
    torch.sparse_bsc: "bsc(2,3)",
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_matrices_keep_layout_and_values_both_ways(layout, dtype):
    dense = random_dense((4, 6), dtype, 0.5, 3)
    given = in_layout(dense, layout)
    found = from_torch(given)
    assert found.format == Format(NAMES[layout])
    check_storage(found)
    assert torch.equal(dense_of(found), dense)
    same(to_torch(found), given)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_values_are_shared_both_ways(layout):
    given = in_layout(random_dense((4, 6), torch.float32, 0.5, 3), layout)
    found = from_torch(given)
    values = given._values() if layout == torch.sparse_coo else given.values()
    assert found.storage.values.data_ptr() == values.data_ptr()
    out = to_torch(found)
    values = out._values() if layout == torch.sparse_coo else out.values()
    assert found.storage.values.data_ptr() == values.data_ptr()
    assert not values.requires_grad


@pytest.mark.parametrize("layout", COMPRESSED, ids=str)
@pytest.mark.parametrize("batch", [(2,), (2, 3), (1,)])
def test_batches_are_dense_levels(layout, batch):
    matrix = random_dense((4, 6), torch.float32, 0.5, 5)
    dense = torch.stack([matrix.roll(2 * turn, 0) for turn in range(torch.Size(batch).numel())])
    given = in_layout(dense.reshape(*batch, 4, 6), layout)
    found = from_torch(given)
    assert found.format.letters.startswith("d" * len(batch) + "ds")
    check_storage(found)
    assert torch.equal(dense_of(found), given.to_dense())
    same(to_torch(found), given)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("tail", [(2,), (3, 2), (0,)])
def test_hybrid_tensors_have_dense_levels_below(layout, tail):
    dense = torch.zeros(4, 6, *tail)
    dense[1, 2], dense[3, 5], dense[0, 4] = 1.0, 2.0, 3.0
    given = in_layout(dense, layout, dense_dim=len(tail))
    found = from_torch(given)
    assert found.format.letters.endswith("d" * len(tail))
    check_storage(found)
    assert torch.equal(dense_of(found), dense)
    same(to_torch(found), given)


def test_uncoalesced_tensors_are_summed():
    indices, values = torch.tensor([[1, 0, 1], [2, 1, 2]]), torch.tensor([1.0, 2.0, 3.0])
    given = torch.sparse_coo_tensor(indices, values, (2, 3))
    found = from_torch(given)
    check_storage(found)
    assert found.nnz == 2
    assert torch.equal(found.to_dense(), given.to_dense())
    assert found.to_torch().is_coalesced()


def test_a_tensor_that_is_not_as_coalesced_as_it_says():
    given = torch.sparse_coo_tensor([[1, 0, 1], [2, 1, 2]], [1.0, 2.0, 3.0], (2, 3))._coalesced_(True)
    assert from_torch(given).to_dense().tolist() == [[0.0, 2.0, 0.0], [0.0, 0.0, 4.0]]


@pytest.mark.parametrize("layout", COMPRESSED, ids=str)
def test_unsorted_and_repeated_entries_of_compressed_layouts(layout):
    pointers, plain = torch.tensor([0, 3, 4]), torch.tensor([2, 0, 2, 1])
    blocked = layout in (torch.sparse_bsr, torch.sparse_bsc)
    values = torch.arange(1.0, 25.0).reshape(4, 2, 3) if blocked else torch.arange(1.0, 5.0)
    blocks = (2, 3) if blocked else (1, 1)
    lines = (2, 3) if layout in (torch.sparse_csr, torch.sparse_bsr) else (3, 2)
    shape = tuple(number * block for number, block in zip(lines, blocks, strict=True))
    found = from_torch(torch.sparse_compressed_tensor(pointers, plain, values, shape, layout=layout))
    check_storage(found)
    expected = torch.zeros(shape)
    for line, (begin, end) in enumerate([(0, 3), (3, 4)]):
        for entry in range(begin, end):
            row, column = (line, int(plain[entry])) if lines == (2, 3) else (int(plain[entry]), line)
            rows = slice(row * blocks[0], (row + 1) * blocks[0])
            columns = slice(column * blocks[1], (column + 1) * blocks[1])
            expected[rows, columns] += values[entry]
    assert torch.equal(found.to_dense(), expected)


def test_sparse_scalars_become_plain_tensors():
    given = torch.sparse_coo_tensor(torch.zeros(0, 2, dtype=torch.int64), torch.tensor([1.0, 2.0]), ())
    found = from_torch(given)
    assert type(found) is torch.Tensor and found.item() == 3.0


@settings(max_examples=FEWER)
@given(st.data(), st.lists(st.sampled_from([0, 1, 2, 4]), min_size=1, max_size=3))
def test_any_format_to_torch(data, shape):
    dense = random_dense(tuple(shape), torch.float64, 0.5, data.draw(st.integers(0, 99)))
    form = data.draw(formats(len(shape)).filter(lambda form: not form.is_dense))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = to_torch(from_torch(dense, form))
    assert not isinstance(found, scorch.SparseTensor)
    assert found.layout in LAYOUTS and torch.equal(found.to_dense(), dense)
    again = from_torch(found, form)
    check_storage(again)
    assert torch.equal(dense_of(again), dense)


def test_blocks_that_do_not_divide_and_unequal_batches_go_through_coo():
    assert from_torch(torch.ones(3, 3), "bsr(2,2)").to_torch().layout == torch.sparse_coo
    dense = torch.zeros(2, 2, 2)
    dense[0, 0, 0] = 1
    assert from_torch(dense, "csr").to_torch().layout == torch.sparse_coo


def test_sparse_tensors_pass_through():
    S = from_torch(torch.eye(3), "csr")
    assert from_torch(S) is S
    assert from_torch(S, "csc").format == Format("csc")


def test_values_are_plain():
    x = torch.eye(3, requires_grad=True)
    assert not from_torch(x).storage.values.requires_grad
    assert not from_torch(x.to_sparse_csr()).storage.values.requires_grad
    assert torch.equal(from_torch(torch.ones(2, 3).t()[::2]).to_dense(), torch.ones(2, 2))
    z = torch.tensor([[1 + 2j, 0], [0, 3j]])
    assert torch.equal(from_torch(z.conj()).to_dense(), z.conj().resolve_conj())
    assert torch.equal(from_torch(z.to_sparse_csr().conj()).to_dense(), z.conj().resolve_conj())


# refused ---------------------------------------------------------------------------------------------


def test_other_devices_are_refused():
    with pytest.raises(
        OperandError, match=r"meta, but Scorch supports only the devices cpu.*; create it on cpu"
    ):
        from_torch(torch.ones(2, device="meta"))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(DtypeError, match=rf"dtype {dtype} is not supported.*convert with"):
        from_torch(torch.zeros(2, 2, dtype=dtype))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_are_refused(layout):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(UnsupportedError, match="nested tensor; pad it with"):
        from_torch(nested)


def test_other_objects_are_refused():
    with pytest.raises(OperandError, match=r"expected a torch\.Tensor, but got a list; .*scorch\.tensor"):
        from_torch([[1.0]])


def test_damaged_tensors_of_torch_are_noticed():
    """Torch does not check by default; kernels would follow such arrays out of bounds."""
    far = torch.sparse_csr_tensor([0, 1], [7], [1.0], (1, 3), check_invariants=False)
    with pytest.raises(IndexRangeError, match="col_indices has 7 at entry 0, but dimension 1 has size 3"):
        from_torch(far)
    long = torch.sparse_csr_tensor([0, 9], [1], [1.0], (1, 3), check_invariants=False)
    with pytest.raises(IndexRangeError, match="crow_indices ends with 9, but there are 1 entries"):
        from_torch(long)
    beyond = torch.sparse_coo_tensor([[0], [5]], [1.0], (1, 3), check_invariants=False)
    with pytest.raises(IndexRangeError, match=r"indices\[1\] has 5 at entry 0, but dimension 1 has size 3"):
        from_torch(beyond)
