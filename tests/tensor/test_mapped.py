"""Matrices on disk: rows are those of the matrix, little is read, and damaged files are refused."""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

import scorch
from fork_server import run_python
from properties.drawing import DTYPES, random_dense
from scorch import Format, SparseTensor
from scorch.errors import (
    ArgumentError,
    DtypeError,
    FileError,
    IndexRangeError,
    MissingFileError,
    OperandError,
    ShapeError,
    UnsupportedError,
)
from scorch.utils.data import MemmapSparseDataset, RowWriter, SparseDataset
from validity import check_storage

pytestmark = pytest.mark.cpu("files are mapped to its memory")

DENSE = random_dense((11, 7), torch.float64, 0.3, 3)
DENSE[4] = 0


def written(path: Path, *chunks: torch.Tensor, **options: object) -> Path:
    with RowWriter(path, **options) as writer:
        for chunk in chunks:
            writer.append(chunk)
    return path


@pytest.fixture
def path(tmp_path) -> Path:
    return written(tmp_path / "x.safetensors", scorch.from_torch(DENSE, "csr"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mapped")


# writing ---------------------------------------------------------------------------------------------


@given(st.data())
def test_chunks_of_rows_come_back_as_one_matrix(folder, data):
    dtype = data.draw(st.sampled_from(DTYPES))
    columns = data.draw(st.sampled_from([0, 1, 4, 7]))
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    form = data.draw(st.sampled_from(["csr", "csc", "coo", "bsr(2,2)", "dense"]))
    chunks = [random_dense((rows, columns), dtype, 0.4, seed) for seed, rows in enumerate(sizes)]
    whole = torch.cat(chunks)
    path = written(folder / "a.safetensors", *(scorch.from_torch(chunk, form) for chunk in chunks))
    rows = MemmapSparseDataset(path)
    assert rows.shape == whole.shape and rows.dtype == dtype and len(rows) == len(whole)
    picked = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=6)) if len(whole) else []
    for found, wanted in ((rows[:], whole), (rows[picked], whole[picked])):
        check_storage(found)
        assert found.format == Format("csr") and found.dtype == dtype
        assert torch.equal(found.to_dense(), wanted)
    if picked:
        assert torch.equal(rows[picked[0]].to_dense(), whole[picked[0]])


def test_written_files_are_read_by_load_and_by_the_library(tmp_path):
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    for dtype in DTYPES:
        dense = random_dense((5, 7), dtype, 0.4, 3)
        S = scorch.from_torch(dense, "csr")
        path = written(tmp_path / "a.safetensors", dense, S, dense[0], S.to_torch())
        whole = torch.cat([dense, dense, dense[:1], dense])
        found = scorch.load(path)
        check_storage(found)
        assert found.format == Format("csr") and torch.equal(found.to_dense(), whole)
        assert {"values", "crd1", "pos1"} <= set(library.load_file(path))


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_values_may_begin_anywhere(tmp_path, dtype, before):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    dense = random_dense((5, 7), dtype, 0.4, 3)
    part = torch.ones(before, dtype=dense.real.dtype)
    scorch.save(tmp_path / "x.safetensors", {"a": part, "b": scorch.from_torch(dense, "csr")})
    rows = MemmapSparseDataset(tmp_path / "x.safetensors", "b")
    for picked in ([4, 0], [], [2, 2, 3]):
        found = rows[picked]
        check_storage(found)
        assert torch.equal(found.to_dense(), dense[picked])


def test_labels_are_no_name(tmp_path):
    with pytest.raises(
        OperandError, match=r"got a Tensor; .* SparseDataset\(MemmapSparseDataset\(path\), labels"
    ):
        MemmapSparseDataset(tmp_path / "x.safetensors", torch.arange(3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_saved_matrices_are_mapped(tmp_path, dtype):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    dense = random_dense((5, 7), dtype, 0.4, 3)
    S = scorch.from_torch(dense, "csr")
    scorch.save(tmp_path / "one.safetensors", S)
    scorch.save(tmp_path / "two.safetensors", {"train": S, "test": S[:2], "bias": torch.ones(3)})
    for rows in (
        MemmapSparseDataset(tmp_path / "one.safetensors"),
        MemmapSparseDataset(tmp_path / "two.safetensors", "train"),
    ):
        assert torch.equal(rows[[4, 0]].to_dense(), dense[[4, 0]])
    with pytest.raises(FileError, match=r"several tensors: pass the name of one.*'train', 'test', 'bias'"):
        MemmapSparseDataset(tmp_path / "two.safetensors")
    with pytest.raises(FileError, match="has no matrix named 'valid'"):
        MemmapSparseDataset(tmp_path / "two.safetensors", "valid")
    scorch.save(tmp_path / "csc.safetensors", S.to_format("csc"))
    with pytest.raises(UnsupportedError, match=r"only csr .* format csc"):
        MemmapSparseDataset(tmp_path / "csc.safetensors")


def test_a_writer_leaves_a_whole_file_or_none(tmp_path, path):
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), RowWriter(path) as writer:
        writer.append(DENSE)
        assert path.read_bytes() == before
        raise ZeroDivisionError
    assert path.read_bytes() == before
    rows = MemmapSparseDataset(path)
    assert torch.equal(rows[:].to_dense(), DENSE)
    written(path, DENSE * 2)
    assert torch.equal(rows[:].to_dense(), DENSE), "what was mapped stays"
    assert torch.equal(MemmapSparseDataset(path)[:].to_dense(), DENSE * 2)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_what_a_writer_refuses(tmp_path):
    with pytest.raises(FileError, match=r"to a \.safetensors file, but got 'x\.npz'"):
        RowWriter(tmp_path / "x.npz")
    with pytest.raises(MissingFileError, match="no such directory"):
        RowWriter(tmp_path / "no" / "x.safetensors")
    with pytest.raises(ArgumentError, match="no rows were added"), RowWriter(tmp_path / "x.safetensors"):
        pass
    with RowWriter(tmp_path / "x.safetensors", columns=7) as writer:
        with pytest.raises(ShapeError, match="rows of 11 columns cannot be added to rows of 7"):
            writer.append(DENSE.T)
        writer.append(DENSE)
        with pytest.raises(DtypeError, match="convert them first"):
            writer.append(DENSE.float())
        with pytest.raises(ShapeError, match="expected the rows of a matrix, but got a Tensor of shape"):
            writer.append(DENSE[None])
        with pytest.raises(ShapeError, match="but got a list"):
            writer.append([1, 2])
        assert writer.rows == 11 and writer.nnz == int((DENSE != 0).sum())
    with pytest.raises(ArgumentError, match="is closed"):
        writer.append(DENSE)
    writer.close()
    assert torch.equal(MemmapSparseDataset(tmp_path / "x.safetensors")[:].to_dense(), DENSE)


def test_a_file_without_rows(tmp_path):
    path = written(tmp_path / "x.safetensors", columns=3, dtype=torch.float32)
    rows = MemmapSparseDataset(path)
    assert len(rows) == 0 and rows[:].shape == (0, 3) and rows[[]].nnz == 0


# reading ---------------------------------------------------------------------------------------------


def test_ways_to_ask_for_rows(path):
    rows = MemmapSparseDataset(path)
    mask = torch.arange(11) % 3 == 0
    for index in (
        [1, -1, 1],
        slice(8, 2, -2),
        torch.tensor([3, 0], dtype=torch.int32),
        mask,
        mask.numpy(),
        [],
    ):
        wanted = DENSE[list(range(11))[index]] if isinstance(index, slice) else DENSE[index]
        found = rows[index]
        assert type(found) is SparseTensor and torch.equal(found.to_dense(), wanted)
    assert rows[-3].shape == (7,) and torch.equal(rows[-3].to_dense(), DENSE[-3])
    assert str(rows).endswith(f"shape=(11, 7), dtype=float64, nnz={rows.nnz})")
    for index in (11, -12, [0, 11], [-12]):
        with pytest.raises(IndexRangeError, match=r"is out of range: x\.safetensors has 11 rows"):
            rows[index]
    with pytest.raises(IndexRangeError, match="but there are 11 rows"):
        rows[mask[1:]]
    for index in ("abc", [0.5], [[0]], None):
        with pytest.raises(OperandError, match="rows must be selected by"):
            rows[index]


def test_what_is_read_may_be_changed(path):
    rows = MemmapSparseDataset(path)
    found = rows[:]
    found.mul_(2)
    found.values().zero_()
    assert torch.equal(rows[:].to_dense(), DENSE)


# What is pickled for it has a test of its own below, and tensors go to spawned processes in test_samples.py.
SPAWNED = pytest.param("spawn", 1, marks=pytest.mark.long)


@pytest.mark.parametrize(("method", "workers"), [(None, 0), ("fork", 2), SPAWNED])
def test_data_loaders(path, method, workers):
    """What is spawned imports torch anew: one worker has to do there."""
    options = {"batch_size": 4, "num_workers": workers, "multiprocessing_context": method}
    found = list(DataLoader(MemmapSparseDataset(path), **options))
    assert all(type(batch) is SparseTensor and batch.format == Format("csr") for batch in found)
    assert torch.equal(torch.cat([batch.to_dense() for batch in found]), DENSE)
    labelled = SparseDataset(MemmapSparseDataset(path), torch.arange(11))
    seen = [(batch.to_dense(), labels) for batch, labels in DataLoader(labelled, shuffle=True, **options)]
    for batch, labels in seen:
        assert torch.equal(batch, DENSE[labels])
    assert sorted(torch.cat([labels for _, labels in seen]).tolist()) == list(range(11))
    assert torch.equal(
        next(iter(DataLoader(Subset(labelled, [9, 2]), batch_size=2)))[0].to_dense(), DENSE[[9, 2]]
    )


def test_a_pickle_has_the_name_of_the_file_only(path):
    rows = MemmapSparseDataset(path)
    assert torch.equal(rows[:].to_dense(), DENSE)
    data = pickle.dumps(rows)
    assert len(data) < 300 and torch.equal(pickle.loads(data)[:].to_dense(), DENSE)
    path.unlink()
    with pytest.raises(MissingFileError, match="no such file"):
        pickle.loads(data)


MEMORY = """
import sys, torch, scorch
from scorch.utils.data import MemmapSparseDataset, RowWriter
def kilobytes(what):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))
crd = torch.arange(4000, dtype=torch.int32).repeat(100)
chunk = scorch.sparse_csr_tensor(torch.arange(101) * 4000, crd, torch.ones(400_000), (100, 100_000))
with RowWriter(sys.argv[1]) as writer:
    writer.append(chunk)
    before = kilobytes("VmHWM")
    for _ in range(29):
        writer.append(chunk)
print(kilobytes("VmHWM") - before)
rows = MemmapSparseDataset(sys.argv[1])
rows[[0]]
before = kilobytes("VmRSS")
found = rows[torch.arange(0, 3000, 150)]
assert found.nnz == 80_000
print(kilobytes("VmRSS") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_follows_what_is_read_and_written(tmp_path):
    path = tmp_path / "x.safetensors"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python(["-c", MEMORY, path], env=environment)
    assert done.returncode == 0, done.stderr
    size = path.stat().st_size / 1024
    writing, reading = map(int, done.stdout.split())
    assert size > 90_000 and writing < size / 4 and reading < size / 4, (size, writing, reading)


# files that are not what they say --------------------------------------------------------------------


def changed(path: Path, change, place: str | None = None, at: int = 0, value: int = 0) -> None:
    """``path`` with another header, or with another number in an array."""
    contents = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", contents[:8])
    header = json.loads(contents[8 : 8 + length])
    if place is not None:
        begin = 8 + length + header[place]["data_offsets"][0] + 4 * at
        contents[begin : begin + 4] = struct.pack("<i", value)
    if change is not None:
        facts = json.loads(header["__metadata__"]["scorch"])
        change(header, facts)
        if "__metadata__" in header:
            header["__metadata__"]["scorch"] = json.dumps(facts)
        text = json.dumps(header).encode()
        text = text.ljust(-(-len(text) // 8) * 8)
        contents = struct.pack("<Q", len(text)) + text + contents[8 + length :]
    path.write_bytes(contents)


@pytest.mark.parametrize(
    ("place", "at", "value", "message"),
    [
        ("pos1", 3, 10**6, "is damaged: row 2 spans entries"),
        ("pos1", 3, -5, "is damaged: row 2 spans entries"),
        ("crd1", 0, 7, "crd1 has 7 at entry 0"),
        ("crd1", 0, -1, "crd1 has -1 at entry 0"),
        ("crd1", 0, 6, "not sorted or not unique"),
    ],
)
def test_rows_are_checked_when_they_are_read(path, place, at, value, message):
    changed(path, None, place, at, value)
    rows = MemmapSparseDataset(path)
    with pytest.raises((FileError, IndexRangeError), match=message):
        rows[:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, f: f[""].update(shape=[12, 7]), "12 rows have 12 pointers"),
        (lambda h, f: f[""].update(dtype="float32"), "its values are torch.float64, not torch.float32"),
        (lambda h, f: f[""].update(dtype="complex128"), "values, but"),
        (lambda h, f: f[""].update(dtype="load"), "unknown dtype"),
        (lambda h, f: f[""].update(arrays=[]), "not written by Scorch"),
        (lambda h, f: f[""].update(arrays={"values": "values"}), "expected the arrays values, pos1 and crd1"),
        (lambda h, f: f[""]["arrays"].update(crd1="nothing"), "not written by Scorch"),
        (lambda h, f: f[""]["arrays"].update(crd1="values"), "crd1 is torch.float64"),
        (lambda h, f: f[""]["arrays"].update(crd1="pos1"), "values, but 12 coordinates"),
        (lambda h, f: h["crd1"].update(data_offsets=[0, 10**9]), "ends beyond the end of the file"),
        (lambda h, f: h["crd1"].update(data_offsets=[-8, 4]), "was not written by Scorch"),
        (lambda h, f: h["crd1"].update(data_offsets=[8, 4]), "was not written by Scorch"),
        (lambda h, f: h["crd1"].update(data_offsets=[0, 4.5]), "was not written by Scorch"),
        (lambda h, f: h["crd1"].update(data_offsets=7), "not written by Scorch"),
        (lambda h, f: h["crd1"].update(dtype="F8"), "was not written by Scorch"),
        (lambda h, f: h.pop("__metadata__"), "has no sparse tensors"),
        (lambda h, f: f.clear(), "has several tensors"),
    ],
)
def test_headers_are_checked(path, change, message):
    changed(path, change)
    with pytest.raises(FileError, match=message):
        MemmapSparseDataset(path)


@pytest.mark.parametrize("cut", [0, 7, 8, 100, 4095, 4096, 0.99, -1])
def test_a_file_that_was_cut_off_is_refused(path, cut):
    contents = path.read_bytes()
    path.write_bytes(contents[: int(cut * len(contents)) if isinstance(cut, float) else cut])
    with pytest.raises(FileError, match=r"not a complete \.safetensors file"):
        MemmapSparseDataset(path)


@pytest.mark.parametrize(
    "contents", [b"hello, this is no matrix\n", bytes(100), struct.pack("<Q", 2) + b"[]"]
)
def test_other_files_are_refused(path, contents):
    path.write_bytes(contents)
    with pytest.raises(FileError, match=r"not a (complete )?\.safetensors file"):
        MemmapSparseDataset(path)


def test_a_file_that_shrinks_before_it_is_mapped(path):
    rows = MemmapSparseDataset(path)
    os.truncate(path, 4100)
    with pytest.raises(FileError, match="was truncated"):
        rows[0]


def test_missing_files(tmp_path):
    with pytest.raises(MissingFileError, match="no such file"):
        MemmapSparseDataset(tmp_path / "x.safetensors")
