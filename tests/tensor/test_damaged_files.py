"""Whoever reads a file, a tensor in it is what its format promises, or it is refused.

Files are damaged by chance and made wrong on purpose (``damaged_files``). What a reader gives back is run
through kernels, and stays right when all other tensors of the file, and its own values, are overwritten.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import scorch
from damaged_files import READERS, Called, by_torch, draw_file, tensors_in
from scorch import SparseTensor
from scorch._src.backends.cpu.cpu_routines import CpuRoutines
from scorch._src.io.pickling import make_pattern, make_storage, make_tensor
from scorch.errors import FileError, IndexRangeError, ScorchError
from validity import check_storage, dense_of

pytest.importorskip("safetensors")


def storages(found: Any) -> list[SparseTensor]:
    """The sparse tensors that can be used; others refuse to be."""
    usable = []
    for tensor in tensors_in(found):
        if isinstance(tensor, SparseTensor):
            try:
                _ = tensor.storage.pattern
            except ScorchError:
                continue
            usable.append(tensor.detach())
    return usable


def use(tensor: SparseTensor) -> None:
    """Run kernels over a tensor, and compare with what its arrays say without them."""
    check_storage(tensor)
    if tensor.dim() == 2 and tensor.numel() <= 10**4 and tensor.dtype == torch.float32:
        dense = dense_of(tensor)
        right = torch.ones(dense.shape[1], 2)
        for found, truth in (
            (tensor.to_dense(), dense),
            (tensor @ right, dense @ right),
            ((tensor + tensor).to_dense(), dense + dense),
        ):
            torch.testing.assert_close(found, truth, equal_nan=True)


def overwrite(found: Any) -> None:
    """Write to all dense tensors, and to the values of sparse ones that are not cut in blocks."""
    for tensor in tensors_in(found):
        if not isinstance(tensor, SparseTensor):
            tensor.detach().fill_(77)
    for sparse in storages(found):
        if not sparse.format.is_blocked:
            sparse.storage.values.fill_(7)


@pytest.mark.cpu("files are read to the host")
@pytest.mark.usefixtures("little_memory")
@pytest.mark.filterwarnings("ignore")  # of NumPy and torch about odd arrays
@pytest.mark.parametrize("kind", READERS)
def test_what_is_read_is_right_or_refused(kind: str, cases: int, tmp_path: Path) -> None:
    accepted = 0
    for seed in range(cases):
        path = draw_file(seed, kind, tmp_path)
        for read in READERS[kind]:
            try:
                found = read(path)
            except ScorchError:
                continue
            except Exception:
                if read.__name__.startswith("by_torch"):  # which refuses in its own words
                    continue
                raise
            for _ in range(2):
                for tensor in storages(found):
                    use(tensor)
                    accepted += 1
                overwrite(found)
        path.unlink()
    assert accepted, "all files were refused, so none was used"


# what once ended the process -------------------------------------------------------------------------


def csr() -> SparseTensor:
    made = scorch.from_torch(torch.eye(3), format="csr")
    assert isinstance(made, SparseTensor)
    return made


@pytest.mark.parametrize("is_new", [True, False])
def test_values_and_coordinates_in_one_memory_come_apart(is_new: bool, tmp_path: Path) -> None:
    pattern = csr().storage.pattern
    crd = pattern.crd[1].clone()
    form = {"levels": "ds", "order": [0, 1]}
    storage = Called(make_storage, Called(make_pattern, form, (3, 3), pattern.pos, (None, crd)), crd)
    content = {"S": Called(make_tensor, storage, False, {}), "held": crd}
    torch.save(content, tmp_path / "S.pt", _use_new_zipfile_serialization=is_new)
    found = by_torch(tmp_path / "S.pt")
    S = found["S"]
    S.storage.values.fill_(10**6)
    found["held"].fill_(10**6)
    if is_new:
        check_storage(S)
        assert torch.equal(S.to_dense(), torch.eye(3, dtype=torch.int32) * 10**6)
    else:  # such a file is looked at when the tensor is first used, here after the first line
        assert S.storage.values.eq(10**6).all()
        check_storage(S)


def test_a_file_in_the_old_format_is_checked_by_whoever_reads_it(tmp_path: Path) -> None:
    S = csr()
    pattern = S.storage.pattern
    wrong = type(pattern)(pattern.format, pattern.shape, pattern.pos, (None, pattern.crd[1] + 10**8), (3, 3))
    broken = SparseTensor(type(S.storage)(wrong, S.storage.values))
    torch.save({"wrong": broken, "right": S}, tmp_path / "S.pt", _use_new_zipfile_serialization=False)
    found = torch.load(tmp_path / "S.pt", weights_only=True)
    for _ in range(2):  # and stays refused
        with pytest.raises(IndexRangeError, match="crd1 has 100000000 at entry 0"):
            found["wrong"] @ torch.ones(3)
    assert torch.equal(found["right"] @ torch.ones(3), torch.ones(3))
    with pytest.raises(IndexRangeError, match="crd1 has 100000000 at entry 0"):
        scorch.load(tmp_path / "S.pt")


def test_tensors_in_files_of_the_old_format_have_what_they_had(tmp_path: Path) -> None:
    S = csr()
    content = {"S": S, "same": S, "relative": torch.relu(S), "learned": csr().requires_grad_()}
    torch.save(content, tmp_path / "S.pt", _use_new_zipfile_serialization=False)
    found = torch.load(tmp_path / "S.pt", weights_only=True)
    assert found["S"].storage is found["same"].storage
    assert found["relative"].storage.pattern is found["S"].storage.pattern
    (found["learned"] @ torch.ones(3)).sum().backward()
    assert torch.equal(found["learned"].grad.to_dense(), torch.eye(3))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("size", [2**40, 2**62])
def test_huge_blocks_of_nothing_take_no_memory(size: int, tmp_path: Path) -> None:
    form = {"levels": "dsdd", "order": [0, 1, 0, 1], "blocks": [[0, size], [1, 2]]}
    none = torch.zeros(0, dtype=torch.int32)
    arrays = (None, torch.zeros(2, dtype=torch.int32), None, None), (None, none, None, None)
    storage = Called(make_storage, Called(make_pattern, form, (3, 4), *arrays), torch.zeros(0))
    torch.save(Called(make_tensor, storage, False, {}), tmp_path / "S.pt")
    S = scorch.load(tmp_path / "S.pt")
    check_storage(S)
    assert torch.equal(S @ torch.ones(4, 2), torch.zeros(3, 2))
    assert torch.equal(S.to_dense(), torch.zeros(3, 4)) and S.to_format("csr").nnz == 0


@pytest.mark.parametrize("name", ["source_values", "storage", "shape", "to_dense", "format"])
def test_files_do_not_set_what_the_class_has(name: str, tmp_path: Path) -> None:
    content = Called(make_tensor, csr().storage, False, {name: torch.ones(1)})
    torch.save(content, tmp_path / "S.pt")
    with pytest.raises(FileError, match=f"no attribute '{name}' that a file can set"):
        scorch.load(tmp_path / "S.pt")


def test_headers_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    import numpy as np

    deep = "[" * 10**5 + "]" * 10**5
    np.savez(tmp_path / "S.npz", scorch=np.frombuffer(deep.encode(), np.uint8))
    with pytest.raises(FileError, match="not written by Scorch"):
        scorch.load(tmp_path / "S.npz")
    (tmp_path / "S.tns").write_text(f"# scorch: {deep}\n1 1 1\n")
    with pytest.raises(FileError, match="not written by Scorch"):
        scorch.load(tmp_path / "S.tns")


# text ------------------------------------------------------------------------------------------------

NUMBERS = ["inf", "-inf", "nan", "1e400", "9" * 30, "9" * 5000, "1.5", "-1", "0", "1e2", str(2**63), "x"]
HEAD = "%%MatrixMarket matrix coordinate {} general\n"


def read_text(path: Path, text: str) -> Any:
    path.write_text(text)
    return scorch.load(path)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:12])
def test_sizes_and_coordinates_that_are_none_are_refused_with_their_line(number: str, tmp_path: Path) -> None:
    for text in (
        f"{HEAD.format('real')}{number} 3 1\n1 1 1\n",
        f"{HEAD.format('real')}3 3 {number}\n1 1 1\n",
        f"{HEAD.format('real')}3 3 1\n{number} 1 1\n",
        f"{HEAD.format('integer')}3 3 1\n1 {number} 1\n",
    ):
        if (number == "0" and "3 3 0" in text) or (number == "1e2" and text.endswith("1e2 1 1\n")):
            continue  # a number of entries, or a number that floats write so: refused for another reason
        with pytest.raises(FileError, match=r"line|entries"):
            read_text(tmp_path / "S.mtx", text)
    if number != "1e2":
        with pytest.raises(FileError, match="line 1"):
            read_text(tmp_path / "S.tns", f"{number} 1 1\n")


@pytest.mark.cpu("files are read to the host")
@pytest.mark.parametrize(
    "number", ["inf", "nan", "1e400", "-1e400", "9" * 5000], ids=lambda number: number[:12]
)
def test_values_may_be_infinite_where_they_are_real(number: str, tmp_path: Path) -> None:
    found = read_text(tmp_path / "S.mtx", f"{HEAD.format('real')}2 2 1\n2 1 {number}\n")
    torch.testing.assert_close(
        found.to_dense()[1, 0], torch.tensor(float(number), dtype=torch.float64), equal_nan=True
    )
    found = read_text(tmp_path / "S.tns", f"2 1 {number}\n")
    torch.testing.assert_close(
        found.to_dense()[1, 0], torch.tensor(float(number), dtype=torch.float64), equal_nan=True
    )
    with pytest.raises(FileError, match="is not a 64-bit integer"):
        read_text(tmp_path / "S.mtx", f"{HEAD.format('integer')}2 2 1\n2 1 {number}\n")


@pytest.mark.parametrize(
    ("dtype", "value"), [("int32", "1.5"), ("int8", "300"), ("bool", "2"), ("uint8", "-1")]
)
def test_a_dtype_that_does_not_hold_the_values_is_refused(dtype: str, value: str, tmp_path: Path) -> None:
    note = json.dumps({"dtype": dtype})
    field = "real" if "." in value else "integer"
    with pytest.raises(FileError, match="cannot represent all of its values"):
        read_text(tmp_path / "S.mtx", f"{HEAD.format(field)}% scorch: {note}\n2 2 1\n1 1 {value}\n")


def test_large_coordinates_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = 2**53 + 1
    text = f"{place} 1 1.5\n"
    assert read_text(tmp_path / "S.tns", text).indices()[0].tolist() == [place - 1]
    monkeypatch.setattr(CpuRoutines, "parse_table", lambda *_: None)  # as without a compiler
    assert read_text(tmp_path / "S.tns", text).indices()[0].tolist() == [place - 1]


# constructors ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(2, 3), (1,), (0, 3), (2, 0), (3, 2, 2)])
def test_entries_without_sparse_dimensions_add_up(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = torch.arange(float(torch.empty(shape).numel())).reshape(shape)
    index = torch.zeros(0, shape[0], dtype=dtype)
    found = scorch.sparse_coo_tensor(index, values)
    torch.testing.assert_close(found, torch.sparse_coo_tensor(index, values).to_dense())
    for wrong in (torch.zeros(0, shape[0] + 1, dtype=dtype),):
        with pytest.raises(RuntimeError):
            torch.sparse_coo_tensor(wrong, values)
        with pytest.raises(RuntimeError, match="for each entry"):
            scorch.sparse_coo_tensor(wrong, values)


def test_the_gradient_of_to_dense_is_masked() -> None:
    S = csr().requires_grad_()
    for masked in (None, True):
        S.grad = None
        S.to_dense(masked_grad=masked).sum().backward()
        assert torch.equal(S.grad.to_dense(), torch.eye(3))
    assert torch.equal(csr().to_dense(torch.float64, masked_grad=False), torch.eye(3, dtype=torch.float64))
    with pytest.raises(NotImplementedError, match="masked_grad=True"):
        S.to_dense(masked_grad=False)
