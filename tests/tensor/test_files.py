"""Files: what was saved comes back as it was, other programs read it, and broken files are explained."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import scorch
from properties.drawing import DTYPES, SIZES, formats, random_dense, tensors
from properties.packing import pack
from scorch import Format, SparseTensor
from scorch._src.io.files import load, save
from scorch.errors import (
    FileError,
    FormatError,
    IndexRangeError,
    MissingFileError,
    OperandError,
    ScorchError,
    ShapeError,
    UnsupportedError,
)
from validity import check_storage, dense_of

pytestmark = pytest.mark.cpu("files hold arrays of the host; test_files_of_devices.py writes others")

TEXT = [".mtx", ".mtx.gz", ".tns", ".tns.gz"]
SUFFIXES = [*TEXT, ".npz", ".safetensors", ".pt"]


def skip_without(suffix: str) -> None:
    if suffix == ".safetensors":
        pytest.importorskip("safetensors", reason="safetensors is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One folder for all draws of a property."""
    return tmp_path_factory.mktemp("files")


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal in type, format, dtype, shape, and every stored value with its place."""
    assert type(found) is type(wanted) and found.dtype == wanted.dtype and found.shape == wanted.shape
    if not isinstance(wanted, SparseTensor):
        assert torch.equal(found, wanted)
        return
    check_storage(found)
    assert found.format == wanted.format
    assert torch.equal(found.storage.values, wanted.storage.values)
    for a, b in zip(found.storage.pattern.arrays, wanted.storage.pattern.arrays, strict=True):
        assert torch.equal(a, b)


# there and back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_dtype_comes_back(tmp_path, suffix, dtype):
    skip_without(suffix)
    given = SparseTensor(pack(random_dense((5, 6), dtype, 0.4, 3), Format("csr")))
    save(tmp_path / f"S{suffix}", given)
    same(load(tmp_path / f"S{suffix}"), given)


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if not suffix.endswith(".gz")])
@given(st.data())
def test_every_format_comes_back(folder, suffix, data):
    skip_without(suffix)
    is_matrix = suffix.startswith(".mtx")
    dims = 2 if is_matrix else data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.sampled_from(SIZES)) for _ in range(dims))
    form = data.draw(formats(dims))
    assume(not form.is_dense)
    drawn = data.draw(tensors(shape, data.draw(st.sampled_from(DTYPES)), form))
    path = folder / f"S{suffix}"
    save(path, drawn.given)
    found = load(path)
    same(found, drawn.given)
    assert torch.equal(dense_of(found), drawn.dense)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_format_can_be_asked_for(tmp_path, suffix):
    skip_without(suffix)
    dense = random_dense((4, 6), torch.float64, 0.4, 2)
    save(tmp_path / f"S{suffix}", scorch.from_torch(dense, "csr"))
    found = load(tmp_path / f"S{suffix}", format="dcsc")
    assert found.format == Format("dcsc") and torch.equal(dense_of(found), dense)
    assert torch.equal(load(tmp_path / f"S{suffix}", "dense"), dense)


@pytest.mark.parametrize("suffix", TEXT[:3:2])
def test_floats_come_back_to_the_last_bit(tmp_path, suffix):
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        generator = torch.Generator().manual_seed(1)
        values = torch.randn(500, generator=generator, dtype=torch.float64)
        values = (values * 10.0 ** torch.randint(-4, 4, (500,), generator=generator)).to(dtype)
        special = torch.tensor([float("inf"), -float("inf"), 0.0, -0.0], dtype=dtype)
        given = scorch.sparse_coo_tensor(
            torch.arange(504).repeat(2, 1), torch.cat([values, special]), (504, 504)
        )
        save(tmp_path / f"S{suffix}", given)
        same(load(tmp_path / f"S{suffix}"), given)
    nan = scorch.sparse_coo_tensor([[0], [1]], [float("nan")], (2, 2))
    save(tmp_path / f"S{suffix}", nan)
    assert load(tmp_path / f"S{suffix}").values().isnan().all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_whole_numbers_of_64_bits_come_back(tmp_path, suffix):
    skip_without(suffix)
    given = scorch.sparse_coo_tensor([[0, 1, 2], [1, 2, 0]], torch.tensor([2**63 - 1, -(2**63), 2**53 + 1]))
    save(tmp_path / f"S{suffix}", given)
    same(load(tmp_path / f"S{suffix}"), given)


def test_dense_tensors_come_back(tmp_path):
    dense = random_dense((3, 4), torch.complex64, 0.8, 2)
    suffixes = [".mtx", ".npz", ".pt"]
    for suffix in suffixes:
        save(tmp_path / f"D{suffix}", dense.t())
        same(load(tmp_path / f"D{suffix}"), dense.t())
    assert load(tmp_path / "D.mtx", "csr").format == Format("csr")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_dictionaries_come_back(tmp_path, suffix):
    skip_without(suffix)
    S = scorch.from_torch(random_dense((4, 6), torch.float32, 0.4, 2), "csr")
    given = {
        "weight": S,
        "doubled": SparseTensor(type(S.storage)(S.storage.pattern, S.storage.values * 2)),
        "again": S,
        "blocks": scorch.from_torch(random_dense((5, 5), torch.complex128, 0.4, 2), "bsr(2,2)"),
        "bias": torch.randn(6)[::2],
    }
    save(tmp_path / f"all{suffix}", given)
    found = load(tmp_path / f"all{suffix}")
    assert list(found) == list(given) or set(found) == set(given)
    for name, tensor in given.items():
        same(found[name], tensor)
    found = load(tmp_path / f"all{suffix}", format="coo")
    assert found["weight"].format == Format("coo") and torch.equal(found["bias"], given["bias"])


def test_safetensors_share_patterns_and_are_read_by_the_library(tmp_path):
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    S = scorch.from_torch(random_dense((4, 6), torch.float32, 0.4, 2), "csr")
    T = SparseTensor(type(S.storage)(S.storage.pattern, S.storage.values * 2))
    save(tmp_path / "two.safetensors", {"S": S, "T": T})
    arrays = library.load_file(tmp_path / "two.safetensors")
    assert set(arrays) == {"S.values", "T.values", "S.pos1", "S.crd1"}
    assert torch.equal(arrays["T.values"], 2 * S.values())
    found = load(tmp_path / "two.safetensors")
    assert found["S"].storage.pattern is found["T"].storage.pattern
    library.save_file({"x": torch.ones(3)}, tmp_path / "plain.safetensors")
    assert load(tmp_path / "plain.safetensors")["x"].tolist() == [1.0, 1.0, 1.0]


def test_torch_layouts_and_scipy_arrays_are_saved(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    dense = random_dense((4, 6), torch.float64, 0.4, 2)
    save(tmp_path / "a.npz", dense.to_sparse_csc())
    assert load(tmp_path / "a.npz").format == Format("csc")
    save(tmp_path / "b.mtx", sparse.csr_array(dense.numpy()))
    assert load(tmp_path / "b.mtx").format == Format("csr")


# torch's own manners ---------------------------------------------------------------------------------


def test_save_and_load_also_speak_as_torch_does(tmp_path):
    S = scorch.from_torch(torch.eye(3), "csr")
    save({"S": S, "epoch": 3}, tmp_path / "state.pt")
    assert load(tmp_path / "state.pt", map_location="cpu")["epoch"] == 3
    assert load(tmp_path / "state.pt", "cpu", weights_only=True)["epoch"] == 3
    same(load(f=tmp_path / "state.pt")["S"], S)
    with (tmp_path / "open.pt").open("wb") as file:
        save(S, file)
    with (tmp_path / "open.pt").open("rb") as file:
        same(load(file), S)
    save(obj=S, f=tmp_path / "named.pth")
    same(load(tmp_path / "named.pth"), S)
    save(S, tmp_path / "S.mtx")
    same(load(str(tmp_path / "S.mtx")), S)


# other programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["csr", "csc", "coo", "bsr(2,3)"])
def test_scipy_reads_and_writes_the_same_npz(tmp_path, name):
    sparse = pytest.importorskip("scipy.sparse")
    dense = random_dense((4, 6), torch.float64, 0.4, 2)
    given = scorch.from_torch(dense, name)
    save(tmp_path / "ours.npz", given)
    read = sparse.load_npz(tmp_path / "ours.npz")
    assert read.format == name[:3] and np.array_equal(read.toarray(), dense.numpy())
    for compressed in (True, False):
        sparse.save_npz(tmp_path / "theirs.npz", read, compressed=compressed)
        same(load(tmp_path / "theirs.npz"), given)


def test_other_archives_of_scipy(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    dense = random_dense((4, 6), torch.float64, 0.4, 2)
    for made in (sparse.dia_array(dense.numpy()), sparse.csr_matrix(dense.numpy())):
        sparse.save_npz(tmp_path / "a.npz", made)
        assert torch.equal(dense_of(load(tmp_path / "a.npz")), dense)
    unsorted = sparse.csr_array(
        (np.array([1.0, 2.0, 3.0]), np.array([2, 0, 2]), np.array([0, 3])), shape=(1, 3)
    )
    sparse.save_npz(tmp_path / "b.npz", unsorted)
    assert dense_of(load(tmp_path / "b.npz")).tolist() == [[2.0, 0.0, 4.0]]
    sparse.save_npz(tmp_path / "c.npz", sparse.coo_array(np.array([0.0, 5.0])))
    assert load(tmp_path / "c.npz").to_dense().tolist() == [0.0, 5.0]


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "hermitian"])
@pytest.mark.parametrize("field", ["real", "integer", "complex", "pattern"])
@pytest.mark.parametrize("kind", ["coordinate", "array"])
def test_matrix_market_is_read_as_scipy_reads_it(tmp_path, kind, field, symmetry):
    io = pytest.importorskip("scipy.io")
    if kind == "array" and field == "pattern":
        pytest.skip("an array has values")
    if (symmetry == "hermitian") != (field == "complex") and symmetry in ("hermitian", "skew-symmetric"):
        pytest.skip("hermitian matrices are complex")
    dtype = {"integer": torch.int64, "complex": torch.complex128}.get(field, torch.float64)
    dense = random_dense((5, 5), dtype, 0.6, 4)
    dense = {
        "general": dense,
        "symmetric": dense + dense.t(),
        "skew-symmetric": dense - dense.t(),
        "hermitian": dense + dense.t().conj().resolve_conj(),
    }[symmetry]
    path = tmp_path / "a.mtx"
    path.write_text(written(dense, kind, field, symmetry))
    wanted = io.mmread(path)
    wanted = wanted if kind == "array" else wanted.toarray()
    found = load(path)
    if kind == "coordinate":
        check_storage(found)
        assert found.format == Format("coo")
        found = dense_of(found)
    assert np.array_equal(found.numpy(), wanted)


def written(dense: torch.Tensor, kind: str, field: str, symmetry: str) -> str:
    """A Matrix Market file as another program would write it, with comments and blank lines."""
    n = len(dense)
    low = {"general": -n, "symmetric": 0, "hermitian": 0, "skew-symmetric": 1}[symmetry]
    places = [(i, j) for j in range(n) for i in range(n) if i - j >= low]
    lines = []
    for i, j in places:
        value = dense[i, j].item()
        if kind == "coordinate" and not value:
            continue
        words = [str(i + 1), str(j + 1)] if kind == "coordinate" else []
        words += {"complex": lambda v: [repr(v.real), repr(v.imag)], "pattern": lambda v: []}.get(
            field, lambda v: [repr(v)]
        )(value)
        lines.append("  ".join(words))
    sizes = f"{n} {n} {len(lines)}" if kind == "coordinate" else f"{n} {n}"
    head = f"%%MatrixMarket matrix {kind} {field} {symmetry}\r\n% a comment\r\n%\r\n"
    return head + sizes + "\r\n" + "\r\n".join(lines) + "\r\n\r\n"


@pytest.mark.parametrize("name", ["csr", "dcsc"])
def test_scipy_reads_our_matrix_market(tmp_path, name):
    io = pytest.importorskip("scipy.io")
    for dtype in (torch.float64, torch.int64, torch.complex128):
        dense = random_dense((4, 6), dtype, 0.4, 2)
        save(tmp_path / "a.mtx.gz", scorch.from_torch(dense, name))
        assert np.array_equal(io.mmread(tmp_path / "a.mtx.gz").toarray(), dense.numpy())
        save(tmp_path / "b.mtx", dense)
        assert np.array_equal(io.mmread(tmp_path / "b.mtx"), dense.numpy())


def test_frostt_files_of_others(tmp_path):
    (tmp_path / "a.tns").write_text("# frostt\n\n1 1 2 1.5\n3 1 1 -2\n1 1 2 1\n")
    found = load(tmp_path / "a.tns", "csf")
    check_storage(found)
    assert found.shape == (3, 1, 2) and found.dtype == torch.float64
    assert found.values().tolist() == [2.5, -2.0], "repeated entries add up"


def test_the_same_tensor_gives_the_same_file(tmp_path):
    S = scorch.from_torch(torch.eye(3), "csr")
    for suffix in (".mtx.gz", ".tns.gz"):
        save(tmp_path / f"a{suffix}", S)
        save(tmp_path / f"b{suffix}", S)
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_real_matrices(data_dir):
    io = pytest.importorskip("scipy.io")
    for path in sorted((data_dir / "suitesparse").glob("*.mtx*")):
        found, wanted = load(path, "csr"), io.mmread(path).tocsr()
        assert found.shape == wanted.shape, path
        assert (found.to_scipy() != wanted).nnz == 0, path


def test_real_tensors(data_dir):
    for path in sorted((data_dir / "tensors").glob("*.tns*")):
        with gzip.open(path) as lines:
            table = np.loadtxt(lines, comments="#")
        found = load(path)
        wanted = scorch.sparse_coo_tensor(table[:, :-1].T.astype(np.int64) - 1, table[:, -1], found.shape)
        same(found, wanted)


# broken files ----------------------------------------------------------------------------------------

HEAD = "%%MatrixMarket matrix coordinate real general\n% c\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: '' is not a Matrix Market header"),
        ("PK\3\4\0", "line 1: binary data is not a Matrix Market header"),
        ("1 2 3\n", "line 1: '1 2 3' is not a Matrix Market header"),
        (
            "%%MatrixMarket matrix coordinate real odd\n1 1 0\n",
            "line 1: 'odd' must be one of general, symmetric",
        ),
        ("%%MatrixMarket matrix array pattern general\n1 1\n", "line 1: an array has values"),
        (HEAD, "should be rows, columns and the number of entries"),
        (HEAD + "2 2\n", "line 3: '2 2' should be rows, columns and the number of entries"),
        (HEAD + "2 2 x\n", "line 3: '2 2 x' should be rows"),
        (HEAD + "2 2 1\n1 1\n", "line 4: '1 1' has 2 numbers, but real entries have 3"),
        (HEAD + "2 2 2\n1 1 5\n1 2 3 4\n", "line 5: '1 2 3 4' has 4 numbers"),
        (HEAD + "2 2 2\n1 1 5\n\n1 two 3\n", "line 6: 'two' is not a number"),
        (HEAD + "2 2 2\n1 1 5\n", "has 1 entries, but its header says 2"),
        (HEAD + "2 2 2\n1 1 5\n3 1 5\n", r"line 5: row 3 is outside 1\.\.2"),
        (HEAD + "2 2 2\n1 1 5\n\n1 0 5\n", r"line 6: column 0 is outside 1\.\.2"),
        (HEAD.replace("real", "integer") + "2 2 1\n1 1 5.5\n", "line 4: '5.5' is not a 64-bit integer"),
        (HEAD.replace("real", "integer") + f"2 2 1\n1 1 {2**64}\n", "is not a 64-bit integer"),
        (
            HEAD.replace("general", "skew-symmetric") + "2 2 1\n1 1 5\n",
            "line 4: a skew-symmetric matrix cannot",
        ),
        (HEAD.replace("coordinate", "array") + "2 2\n1\n2\n3\n", "has 3 values, but its header says 4"),
        (HEAD.replace("% c", "% scorch: {") + "1 1 0\n", "not written by Scorch"),
    ],
)
def test_broken_matrix_market_is_explained(tmp_path, text, message):
    (tmp_path / "a.mtx").write_text(text)
    with pytest.raises(FileError, match=message) as caught:
        load(tmp_path / "a.mtx")
    assert "a.mtx" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no entries"),
        ("# only a comment\n", "has no entries"),
        ("5\n", "line 1: an entry has at least one coordinate and a value"),
        (
            "# c\n1 2 3.0\n1 2 3 4.0\n",
            "line 3: '1 2 3 4.0' has 4 numbers, but the entries of this file have 2",
        ),
        ("1 2 3.0\n0 2 3.0\n", "line 2: dimension 0, coordinate 0: they count from 1"),
        ("1 2 3.0\n1 2 x\n", "line 2: 'x' is not a number"),
    ],
)
def test_broken_frostt_is_explained(tmp_path, text, message):
    (tmp_path / "a.tns").write_text(text)
    with pytest.raises(FileError, match=message):
        load(tmp_path / "a.tns")


def test_broken_archives_are_explained(tmp_path):
    for suffix in (".npz", ".safetensors", ".mtx.gz", ".pt"):
        skip_without(suffix)
        path = tmp_path / f"a{suffix}"
        path.write_bytes(b"PK\x03\x04 not much")
        with pytest.raises((FileError, Exception)) as caught:
            load(path)
        assert suffix == ".pt" or isinstance(caught.value, FileError)
    (tmp_path / "b.mtx.gz").write_bytes(gzip.compress(HEAD.encode())[:-5])
    with pytest.raises(FileError, match="not a complete gzip file"):
        load(tmp_path / "b.mtx.gz")
    np.savez(tmp_path / "c.npz", x=np.ones(3))
    with pytest.raises(FileError, match="neither a Scorch nor a SciPy archive: it has the arrays x"):
        load(tmp_path / "c.npz")
    np.savez(tmp_path / "e.npz", indptr=np.arange(2), indices=np.zeros(1, int), shape=np.ones(2, int))
    with pytest.raises(FileError, match=r"and use scorch\.sparse_csr_tensor\(indptr, indices, data, shape\)"):
        load(tmp_path / "e.npz")
    np.savez(tmp_path / "d.npz", format=np.array(b"csr"), shape=np.array([1, 1]), data=np.ones(1))
    with pytest.raises(FileError, match="but no array 'indices'"):
        load(tmp_path / "d.npz")


def own_archive(path: Path, change) -> Path:
    """An archive in our own layout, of a dcsr matrix with two rows, after ``change``."""
    S = scorch.from_torch(torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [3.0, 0.0, 0.0]]), "dcsr")
    save(path, S)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    facts = json.loads(arrays["scorch"].tobytes())
    change(facts, arrays)
    arrays["scorch"] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda f, a: a.pop("pos1"), FileError, "level 1 of format dcsr lacks the array pos1"),
        (lambda f, a: a.pop("values"), FileError, "the array of values is missing"),
        (lambda f, a: a.update(values=np.ones(2, np.float32)), FileError, "2 values, but 3 positions"),
        (lambda f, a: a.update(values=np.ones(3)), FileError, "values are torch.float64, but the tensor"),
        (lambda f, a: f.update(dtype="float31"), FileError, "unknown dtype 'float31'"),
        (lambda f, a: f.update(shape=[3]), FileError, "stores 2-D tensors, but the shape is"),
        (lambda f, a: f.update(shape=[3, 2]), IndexRangeError, "crd1 has 2 at entry 1, but dimension 1"),
        (lambda f, a: a.update(pos1=np.array([0, 4, 3])), IndexRangeError, "pointers must not decrease"),
        (lambda f, a: a.update(pos1=np.array([0, 3])), ShapeError, "pos1 has 2 entries"),
        (lambda f, a: a.update(crd1=np.array([2, 1, 0])), FileError, "level 1 are not sorted"),
        (
            lambda f, a: a.update(crd0=np.array([[0, 2]])),
            FileError,
            r"crd0 must be 1-D, but has shape \(1, 2\)",
        ),
        (lambda f, a: f.update(format={"levels": "sx", "order": [0, 1]}), FormatError, "unknown format"),
        (lambda f, a: f.update(format=7), FileError, "7 does not describe a format"),
    ],
)
def test_arrays_that_no_kernel_could_follow_are_refused(tmp_path, change, error, message):
    path = own_archive(tmp_path / "a.npz", change)
    with pytest.raises(error, match=message):
        load(path)


def test_padding_of_blocks_is_checked(tmp_path):
    S = scorch.from_torch(torch.ones(3, 3), "bsr(2,2)")
    S.storage.values.fill_(1.0)
    save(tmp_path / "a.npz", S)
    with pytest.raises(FileError, match="the padding of a block must be zero"):
        load(tmp_path / "a.npz")


def test_broken_pickles_are_refused(tmp_path):
    S = scorch.from_torch(torch.eye(3), "csr")
    S.storage.pattern.crd[1][0] = 77
    torch.save(S, tmp_path / "a.pt")
    with pytest.raises(IndexRangeError, match="crd1 has 77"):
        load(tmp_path / "a.pt")


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz", ".tns", ".npz", ".safetensors"])
@given(st.data())
def test_damaged_files_are_refused_or_read_as_valid_tensors(folder, suffix, data):
    skip_without(suffix)
    form = data.draw(formats(2))
    assume(not form.is_dense)
    given = data.draw(tensors((4, 5), data.draw(st.sampled_from(DTYPES)), form)).given
    path = folder / f"S{suffix}"
    save(path, given)
    contents = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        contents[data.draw(st.integers(0, len(contents) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(
        contents[: data.draw(st.integers(0, len(contents)))] if data.draw(st.booleans()) else contents
    )
    try:
        found = load(path)
    except ScorchError:
        return
    for tensor in found.values() if isinstance(found, dict) else [found]:
        if isinstance(tensor, SparseTensor):
            check_storage(tensor)


def test_a_file_of_signs_that_are_no_numbers_is_refused(tmp_path):
    (tmp_path / "a.tns").write_bytes(b"\0")
    with pytest.raises(FileError, match="line 1"):
        load(tmp_path / "a.tns")


# what is refused -------------------------------------------------------------------------------------


def test_suffixes_and_missing_files(tmp_path):
    S = scorch.from_torch(torch.eye(3), "csr")
    with pytest.raises(FileError, match=r"a\.csv has an unknown suffix; use one of \.mtx, \.mtx\.gz, \.tns"):
        save(tmp_path / "a.csv", S)
    with pytest.raises(FileError, match="unknown suffix"):
        load(tmp_path / "a")
    np.savetxt(tmp_path / "edges.txt", [[0, 1], [1, 2]], fmt="%d")
    with pytest.raises(FileError, match=r"read numpy\.loadtxt.* and pass torch\.from_numpy\(edges\.T\) to "):
        load(tmp_path / "edges.txt")
    edges = np.loadtxt(tmp_path / "edges.txt", dtype=int)
    assert scorch.from_edge_index(torch.from_numpy(edges.T)).shape == (3, 3)
    with (
        open(tmp_path / "edges.txt", "rb") as file,
        pytest.raises(FileError, match=r"; for other .* pass the path"),
    ):
        load(file)
    save(tmp_path / "graph.mtx", S)
    with pytest.raises(MissingFileError, match=r"no such file: .*grahp\.mtx; did you mean 'graph\.mtx'"):
        load(tmp_path / "grahp.mtx")
    with pytest.raises(FileNotFoundError, match="its directory does not exist either"):
        load(tmp_path / "no" / "a.mtx")
    (tmp_path / "b.mtx").mkdir()
    with pytest.raises(MissingFileError, match="is a directory"):
        load(tmp_path / "b.mtx")


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(ShapeError, match=r"store matrices, but this tensor has shape \(2, 2, 2\); .*\.tns"):
        save(tmp_path / "a.mtx", scorch.from_torch(torch.ones(2, 2, 2)))
    with pytest.raises(ShapeError, match="FROSTT files store sparse tensors"):
        save(tmp_path / "a.tns", torch.eye(3))
    with pytest.raises(OperandError, match="expected a tensor to save, but got a NumPy array"):
        save(tmp_path / "a.npz", np.eye(3))
    with pytest.raises(OperandError, match=r"save a dictionary of tensors as \.safetensors"):
        save(tmp_path / "a.npz", {"a": torch.eye(3)})
    with pytest.raises(
        TypeError,
        match=r"takes weights_only=, an option of torch\.load, for \.pt files only, not for 'a.npz'$",
    ):
        save(tmp_path / "a.npz", torch.eye(3))
        load(tmp_path / "a.npz", weights_only=True)
    with pytest.raises(TypeError, match=r"options of torch\.save are only supported for \.pt files"):
        save(tmp_path / "a.npz", torch.eye(3), pickle_protocol=2)


def test_tensors_of_a_given_shape(tmp_path):
    path = tmp_path / "a.tns"
    path.write_text("1 2 1 5.0\n2 1 3 4.0\n")
    assert tuple(load(path).shape) == (2, 2, 3)
    larger = load(path, shape=(4, 5, 6), format="csf")
    assert tuple(larger.shape) == (4, 5, 6) and str(larger.format) == "csf" and larger[1, 0, 2] == 4.0
    with pytest.raises(FileError, match="line 2"):
        load(path, shape=(4, 5, 2))
    for shape in (7, (), (4, "5")):
        with pytest.raises(ShapeError, match="shape must be a tuple of sizes"):
            load(path, shape=shape)
    with pytest.raises(ShapeError, match="a size for each of the 3"):
        load(path, shape=(4, 5))
    (tmp_path / "empty.tns").write_text("")
    assert tuple(load(tmp_path / "empty.tns", shape=(2, 3)).shape) == (2, 3)
    save(tmp_path / "a.npz", torch.eye(3))
    with pytest.raises(TypeError, match=r"shape= for \.tns files only: 'a.npz' stores the shape"):
        load(tmp_path / "a.npz", shape=(4, 4))
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'dtype'; apply it to the result"):
        load(tmp_path / "a.npz", dtype=torch.float32)
    with pytest.raises(TypeError, match=r"map_location=.*move the result"):
        load(path, map_location="cpu")


def test_without_safetensors(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(UnsupportedError, match=r"pip install safetensors"):
        save(tmp_path / "a.safetensors", torch.eye(3))


def test_shape_of_another_number_of_dimensions(tmp_path):
    (tmp_path / "a.tns").write_text("1 2 3 4.0\n")
    with pytest.raises(ShapeError, match=r"a size for each of the 3 coordinates of .*, but got \(4, 4\)"):
        load(tmp_path / "a.tns", shape=(4, 4))
    with pytest.raises(ShapeError, match="shape must be a tuple of sizes"):
        load(tmp_path / "a.tns", shape=(4, 4, -1))


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(FileError, match="is a directory, not a file"):
        load(tmp_path)
