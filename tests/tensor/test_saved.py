"""Saving: pickles, ``torch.save``, copies and other processes give back the tensor bit for bit, or refuse."""

from __future__ import annotations

import copy
import io
import os
import pickle
import re
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st

import scorch
from fork_server import run_python
from on_device import is_on_device
from properties.drawing import DTYPES, SIZES, formats, random_dense, tensors
from properties.packing import pack
from scorch import Format, SparseTensor
from scorch._src.io.pickling import make_packed, make_pattern, make_storage, make_tensor
from scorch._src.io.shared_memory import find_pieces, pack_shared
from scorch._src.storage.storage import Storage
from scorch.errors import (
    FileError,
    IndexRangeError,
    MissingFileError,
    OperandError,
    ScorchError,
)
from validity import check_storage

NAMES = ["csr", "csc", "coo", "dcsr", "dcsc", "bsr(2,3)", "bsc(2,3)", "sd", "do"]


def arrays(tensor: SparseTensor) -> list[torch.Tensor]:
    return [*tensor.storage.pattern.arrays, tensor.storage.values]


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert type(found) is SparseTensor and found.format == wanted.format and found.shape == wanted.shape
    check_storage(found)
    for a, b in zip(arrays(found), arrays(wanted), strict=True):
        assert a.dtype == b.dtype and bits(a) == bits(b)


def bits(array: torch.Tensor) -> list[int]:
    return array.contiguous().view(torch.uint8).tolist()


def through_file(content: object, **options: object) -> object:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True, **options)


def csr(rows: int = 6, columns: int = 9, dtype: torch.dtype = torch.float64) -> SparseTensor:
    return scorch.from_torch(random_dense((rows, columns), dtype, 0.4, 3), "csr")


def python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return run_python(["-c", script, *map(str, arguments)], env=environment)


# there and back --------------------------------------------------------------------------------------


@given(st.data())
def test_every_tensor_comes_back(data):
    dims = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.sampled_from(SIZES)) for _ in range(dims))
    form = data.draw(formats(dims).filter(lambda form: not form.is_dense))
    given = data.draw(tensors(shape, data.draw(st.sampled_from(DTYPES)), form)).given
    same(through_file(given), given)
    same(pickle.loads(pickle.dumps(given, data.draw(st.integers(0, pickle.HIGHEST_PROTOCOL)))), given)
    same(copy.deepcopy(given), given)
    if not is_on_device():  # which gives a process no memory that it owns itself
        same(pickle.loads(ForkingPickler.dumps(given)), given)


SCRIPT = """
import sys, torch, scorch
for mapped in (False, True):
    found = torch.load(sys.argv[1], weights_only=True, mmap=mapped)
    for name, tensor in found["model"].items():
        for part, array in enumerate([*tensor.storage.pattern.arrays, tensor.storage.values]):
            wanted = found["arrays"][name][part]
            assert array.dtype == wanted.dtype
            assert array.view(torch.uint8).tolist() == wanted.view(torch.uint8).tolist(), name
        assert str(tensor.format) == found["formats"][name], name
        if tensor.dtype in (torch.float32, torch.int64):
            assert torch.equal((tensor * 2).to_dense(), tensor.to_dense() * 2)
print(len(found["model"]))
"""


def test_a_file_loads_in_a_new_process_bit_for_bit(tmp_path):
    model = {
        f"{name} {dtype} {shape}": SparseTensor(pack(random_dense(shape, dtype, 0.4, 5), Format(name)))
        for name in NAMES
        for dtype in DTYPES
        for shape in ((6, 9), (0, 3), (1, 1))
    }
    content = {
        "model": model,
        "arrays": {name: [array.clone() for array in arrays(tensor)] for name, tensor in model.items()},
        "formats": {name: str(tensor.format) for name, tensor in model.items()},
    }
    torch.save(content, tmp_path / "model.pt")
    done = python(SCRIPT, tmp_path / "model.pt")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(len(model))


def test_without_scorch_torch_names_it(tmp_path):
    torch.save(csr(), tmp_path / "S.pt")
    words = ["-c", "import sys, torch; torch.load(sys.argv[1])", tmp_path / "S.pt"]
    done = run_python(words, has="torch")
    assert done.returncode and "Unsupported global: GLOBAL scorch._src.io.pickling" in done.stderr
    done = python("import sys, torch; print(torch.load(sys.argv[1], weights_only=False))", tmp_path / "S.pt")
    assert "format=csr" in done.stdout, done.stderr


def test_a_model_comes_back(tmp_path):
    model = torch.nn.Linear(9, 6)
    model.register_buffer("mask", csr(dtype=torch.bool))
    other = torch.nn.Linear(9, 6)
    other.register_buffer("mask", scorch.zeros(6, 9, dtype=torch.bool, format="csr"))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    same(state["mask"], model.mask)
    other.load_state_dict(state)
    assert torch.equal(other.mask.to_dense(), model.mask.to_dense())
    same(copy.deepcopy(model).mask, model.mask)
    same(pickle.loads(pickle.dumps(model)).mask, model.mask)


# what tensors have in common -------------------------------------------------------------------------


@pytest.mark.parametrize("way", [through_file, lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
def test_patterns_storages_and_tensors_stay_shared(way):
    S = csr()
    found = way({"S": S, "again": S, "doubled": S * 2, "same": S.detach(), "other": csr()})
    assert found["S"] is found["again"]
    assert found["S"].storage.pattern is found["doubled"].storage.pattern
    assert found["S"].storage is found["same"].storage
    assert found["S"].storage.pattern is not found["other"].storage.pattern
    assert torch.equal(found["doubled"].to_dense(), 2 * S.to_dense())


def test_a_deep_copy_has_values_of_its_own():
    S = csr()
    before = S.to_dense()
    copied = copy.deepcopy([S, [S]])
    copied[0].storage.values.zero_()
    assert copied[1][0] is copied[0] and torch.equal(S.to_dense(), before)


def test_arrays_are_saved_once():
    S = scorch.rand(1000, 1000, density=0.05, format="csr")
    file = io.BytesIO()
    torch.save({"S": S, "doubled": S * 2, "values": S.values()}, file)
    assert len(file.getvalue()) < 13 * S.nnz + 20_000


@pytest.mark.parametrize(
    "view", [lambda S: S[2:4], lambda S: S.T, lambda S: S[3], lambda S: S.T[1:5].T, lambda S: S.diagonal()]
)
def test_views_are_saved_as_they_are_now(view):
    S = csr()
    part = view(S)
    S.mul_(3)
    for found in (through_file(part), pickle.loads(pickle.dumps(part)), copy.deepcopy(part)):
        assert torch.equal(found.to_dense(), view(S.to_dense()))
        found.mul_(5)
    assert torch.equal(part.to_dense(), view(S.to_dense()))


def test_a_part_does_not_take_the_whole_along():
    S = scorch.rand(10_000, 100, density=0.1, format="csr")
    assert len(pickle.dumps(S[5:7])) < 5000
    file = io.BytesIO()
    torch.save(S[5], file)
    assert len(file.getvalue()) < 10_000


def test_what_was_set_on_a_tensor_is_kept():
    S = csr()
    S.note = ["learned", 3]
    for found in (through_file(S), pickle.loads(pickle.dumps(S)), copy.deepcopy(S), copy.copy(S)):
        same(found, S)
        assert found.note == ["learned", 3] and not found.requires_grad
    assert copy.deepcopy(S).note is not S.note


def test_parameters_stay_parameters():
    weight = torch.nn.Parameter(csr())
    model = torch.nn.Module()
    model.weight, model.same = weight, weight
    for way in (through_file, lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy):
        found = way({"weight": weight, "frozen": csr()})
        same(found["weight"], weight)
        assert isinstance(found["weight"], torch.nn.Parameter) and found["weight"].requires_grad
        assert not found["frozen"].requires_grad
    copied = copy.deepcopy(model)
    assert copied.weight is copied.same and copied.weight is not weight
    assert [name for name, _ in copied.named_parameters()] == ["weight"]


def test_gradients_are_copied_and_not_saved():
    S = csr().requires_grad_()
    (S * S).sum().backward()
    copied = copy.deepcopy(S)
    assert torch.equal(copied.grad.to_dense(), 2 * S.detach().to_dense()) and copied.grad is not S.grad
    assert through_file(S).grad is None and through_file(S).requires_grad
    assert through_file(S * 2).is_leaf
    with pytest.raises(RuntimeError, match="can be deep-copied"):
        copy.deepcopy(S * 2)


# other processes -------------------------------------------------------------------------------------


def answer(inbox, outbox) -> None:
    """What the other process does: double the values in place, and send back what it saw."""
    S = inbox.get()
    outbox.put((S, S.to_dense().sum().item()))
    S.storage.values.mul_(2)
    outbox.put(None)
    inbox.get()


@pytest.mark.cpu("torch sends no tensor back that another process owns")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tensors_go_through_queues(method, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    context = mp.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    S = csr().share_memory_()
    assert S.is_shared()
    before = S.to_dense()
    process = context.Process(target=answer, args=(inbox, outbox))
    process.start()
    try:
        inbox.put(S)
        found, total = outbox.get(timeout=120)
        assert outbox.get(timeout=120) is None
        assert total == before.sum().item()
        assert torch.equal(S.storage.values, found.storage.values), "one memory for both"
        assert torch.equal(S.storage.values, 2 * scorch.from_torch(before, "csr").storage.values)
        check_storage(found)
    finally:
        inbox.put(None)
        process.join(60)
        process.kill()


def test_pinning_is_as_for_dense_tensors():
    S, dense = csr(), torch.ones(3)
    assert S.is_pinned() == dense.is_pinned()
    try:
        dense.pin_memory()
    except RuntimeError as refused:
        words = re.escape(str(refused).split(".")[0])  # torch without a driver, or without any device
        with pytest.raises(type(refused), match=words):
            S.pin_memory()
    else:
        assert S.pin_memory().is_pinned()


# files that are not what they say --------------------------------------------------------------------


def changed(change) -> SparseTensor:
    S = csr()
    pattern = S.storage.pattern
    pos, crd = pattern.pos[1].clone(), pattern.crd[1].clone()
    change(pos, crd)
    broken = type(pattern)(pattern.format, pattern.shape, (None, pos), (None, crd), pattern.counts)
    return SparseTensor(Storage(broken, S.storage.values))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda pos, crd: crd[0].fill_(77), IndexRangeError, "crd1 has 77 at entry 0"),
        (lambda pos, crd: crd[1].fill_(-1), IndexRangeError, "crd1 has -1 at entry 1"),
        (lambda pos, crd: pos[2].fill_(99), IndexRangeError, "pointers must not decrease"),
        (lambda pos, crd: pos[0].fill_(1), IndexRangeError, "the first pointer must be 0"),
        (lambda pos, crd: pos[-1].add_(5), IndexRangeError, "the last pointer must be their number"),
        (lambda pos, crd: crd.copy_(crd.flip(0)), FileError, "not sorted or not unique"),
    ],
)
@pytest.mark.parametrize("way", [through_file, lambda x: pickle.loads(pickle.dumps(x))])
def test_arrays_that_no_kernel_could_follow_are_refused_by_every_reader(way, change, error, message):
    with pytest.raises(error, match=message):
        way(changed(change))


def test_arrays_that_do_not_fit_together_are_refused():
    pattern, values = csr().storage.pattern, csr().storage.values
    form = {"levels": "ds", "order": [0, 1]}
    with pytest.raises(FileError, match="values, but"):
        make_storage(pattern, values[1:])
    with pytest.raises(FileError, match="a 1-D array of values"):
        make_storage(pattern, values.reshape(1, -1))
    with pytest.raises(ScorchError, match="float8_e5m2 is not supported"):
        make_storage(pattern, values.to(torch.float8_e5m2))
    with pytest.raises(OperandError, match="on device meta"):
        make_storage(pattern, values.to("meta"))
    with pytest.raises(FileError, match="built from a storage"):
        make_tensor(pattern, False, {})
    with pytest.raises(FileError, match="needs 2 arrays of each kind"):
        make_pattern(form, (6, 9), (None,), (None,))
    with pytest.raises(FileError, match="lacks the array pos1"):
        make_pattern(form, (6, 9), (None, None), (None, None))
    with pytest.raises(FileError, match="stores 2-D tensors, but the shape is"):
        make_pattern(form, (6,), (None, None), (None, None))
    with pytest.raises(FileError, match="does not describe a format"):
        make_pattern("csr", (6, 9), pattern.pos, pattern.crd)


def test_files_in_the_old_format(tmp_path):
    """Their arrays are filled after the tensors are made."""
    old = {"_use_new_zipfile_serialization": False}
    content = {
        "S": csr(),
        "blocks": scorch.from_torch(random_dense((5, 7), torch.float32, 0.4, 2), "bsr(2,2)"),
    }
    torch.save(content, tmp_path / "S.pt", **old)
    for load in (torch.load, scorch.load):
        found = load(tmp_path / "S.pt", weights_only=True)
        for name, tensor in content.items():
            same(found[name], tensor)
    torch.save(changed(lambda pos, crd: crd[0].fill_(77)), tmp_path / "S.pt", **old)
    with pytest.raises(IndexRangeError, match="crd1 has 77 at entry 0"):
        scorch.load(tmp_path / "S.pt")
    scorch.save(tmp_path / "S.pt", csr())
    same(scorch.load(tmp_path / "S.pt"), csr())


@pytest.mark.cpu("shared memory is there")
@given(st.data())
def test_packed_tensors_come_back(data):
    dims = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.sampled_from(SIZES)) for _ in range(dims))
    form = data.draw(formats(dims).filter(lambda form: not form.is_dense))
    given = data.draw(tensors(shape, data.draw(st.sampled_from(DTYPES)), form)).given
    made = pack_shared(given)
    same(made, given)
    assert made.is_shared() and find_pieces(made.storage) is not None
    received = pickle.loads(ForkingPickler.dumps(made))
    same(received, given)
    same(through_file(made), given)
    same(pickle.loads(pickle.dumps(made)), given)
    if made.nnz:
        made.storage.values.zero_()
        assert not received.storage.values.any(), "one memory for both"


def test_pieces_outside_of_their_memory_are_refused():
    form = {"levels": "ds", "order": [0, 1]}
    memory, pieces = find_pieces(pack_shared(csr()).storage)
    assert make_packed(form, (6, 9), memory, pieces).pattern.shape == (6, 9)
    (dtype, begin, count), *others = pieces
    for wrong in [(dtype, -4, count), (dtype, begin + 1, count), (dtype, 0, 10**6), (dtype, 64, -1)]:
        with pytest.raises(FileError, match="lies outside its shared memory"):
            make_packed(form, (6, 9), memory, [wrong, *others])
    with pytest.raises(FileError, match="format csr cannot be built from 2 arrays"):
        make_packed(form, (6, 9), memory, others)
    with pytest.raises(FileError, match="lies outside its shared memory"):
        make_packed(form, (6, 9), memory.view(torch.int32), pieces)


def test_a_file_may_name_nothing_else_of_scorch(tmp_path):
    with pytest.raises(pickle.UnpicklingError, match="Unsupported global"):
        through_file({"maker": scorch.load})


CUTS = [0, 1, 10, 100, 0.3, 0.7, -1]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_was_cut_off_is_refused(tmp_path, cut, mapped):
    path = tmp_path / "S.pt"
    scorch.save(path, csr(50, 50))
    contents = path.read_bytes()
    path.write_bytes(contents[: int(cut * len(contents)) if isinstance(cut, float) else cut])
    with pytest.raises(FileError, match=r"S\.pt is not a complete torch\.save file"):
        scorch.load(path, mmap=mapped)


@pytest.mark.parametrize("contents", [b"hello, this is no tensor\n", b"\x80\x02}q\x00.", b"\x80\x02K\x05."])
def test_other_files_are_refused(tmp_path, contents):
    path = tmp_path / "S.pt"
    path.write_bytes(contents)
    with pytest.raises(FileError, match=r"S\.pt is not a complete"):
        scorch.load(path)


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "S.pt"
    S = csr(500, 500)
    scorch.save(path, S)
    path.chmod(0o640)
    found = scorch.load(path, mmap=True)
    scorch.save(path, found)  # from the memory of the file that is replaced
    same(scorch.load(path), S)
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        scorch.save(path, {"S": S, "no pickle": lambda: 3})
    same(scorch.load(path), S)
    assert [entry.name for entry in tmp_path.iterdir()] == ["S.pt"]
    with pytest.raises(MissingFileError, match="no such directory"):
        scorch.save(tmp_path / "nowhere" / "S.pt", S)
    link = tmp_path / "link.pt"
    link.symlink_to(path)
    scorch.save(link, csr())
    assert link.is_symlink()
    same(scorch.load(path), csr())
