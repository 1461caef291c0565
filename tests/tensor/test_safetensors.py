"""``.safetensors``: whole models, readable by the library, and nothing is believed that a file says."""

from __future__ import annotations

import json
import struct

import pytest
import torch

import scorch
from fork_server import run_python
from properties.drawing import random_dense
from scorch import SparseTensor
from scorch.errors import FileError, IndexRangeError, OperandError, ScorchError, ShapeError
from validity import check_storage

library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

pytestmark = pytest.mark.cpu("such files know no device")

DENSE = random_dense((6, 9), torch.float32, 0.4, 3)


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert type(found) is type(wanted) and found.dtype == wanted.dtype and found.shape == wanted.shape
    if isinstance(wanted, SparseTensor):
        check_storage(found)
        assert found.format == wanted.format
        for a, b in zip(found.storage.tensors, wanted.storage.tensors, strict=True):
            assert torch.equal(a, b)
    else:
        assert torch.equal(found, wanted)


class Model(torch.nn.Module):
    def __init__(self, dense: torch.Tensor) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(9, 4)
        self.register_buffer("graph", scorch.from_torch(dense, "csr"))
        self.register_buffer("blocks", scorch.from_torch(dense.double(), "bsr(2,3)"))
        self.register_buffer("counts", torch.zeros((), dtype=torch.int64))


def test_the_state_of_a_model_comes_back(tmp_path):
    model, other = Model(DENSE), Model(torch.zeros_like(DENSE))
    path = tmp_path / "model.safetensors"
    scorch.save(path, model.state_dict())
    found = scorch.load(path)
    assert set(found) == set(model.state_dict())
    for name, tensor in model.state_dict().items():
        same(found[name], tensor.detach())
    other.load_state_dict(found)
    assert torch.equal(other.graph.to_dense(), DENSE) and torch.equal(
        other.linear.weight, model.linear.weight
    )
    arrays = library.load_file(path)
    assert torch.equal(arrays["graph.values"], model.graph.values())
    assert torch.equal(arrays["linear.weight"], model.linear.weight)
    script = (
        "import sys, scorch; found = scorch.load(sys.argv[1]); "
        "print(found['graph'].format, found['blocks'].format, found['graph'].values().tolist())"
    )
    done = run_python(["-c", script, path])
    assert done.stdout.strip() == f"csr bsr(2,3) {model.graph.values().tolist()}", done.stderr


def test_names_that_look_like_arrays_stay_apart(tmp_path):
    S = scorch.from_torch(DENSE, "csr")
    given = {
        "S": S,
        "S.values": torch.arange(3.0),
        "S.pos1": scorch.from_torch(DENSE * 2, "csc"),
        "S.crd1": torch.ones(2, dtype=torch.int32),
        "S.pos1.pos1": S * 3,
        "values": scorch.from_torch(DENSE[0], "coo"),
    }
    scorch.save(tmp_path / "a.safetensors", given)
    found = scorch.load(tmp_path / "a.safetensors")
    assert set(found) == set(given)
    for name, tensor in given.items():
        same(found[name], tensor)
    assert torch.equal(library.load_file(tmp_path / "a.safetensors")["S.values"], torch.arange(3.0))


@pytest.mark.parametrize("name", ["", "__metadata__", 3])
def test_names_that_a_file_cannot_hold(tmp_path, name):
    with pytest.raises(OperandError, match=r"in a \.safetensors file"):
        scorch.save(tmp_path / "a.safetensors", {name: torch.ones(2)})


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_values_begin_where_torch_can_read_them(tmp_path, dtype, before):
    S = scorch.from_torch(random_dense((5, 5), dtype, 0.4, 2), "bsr(2,2)")
    part = torch.ones(before, dtype=S.storage.values.real.dtype)
    scorch.save(tmp_path / "x.safetensors", {"a": part, "b": S})
    found = scorch.load(tmp_path / "x.safetensors")["b"]
    assert found.storage.values.data_ptr() % dtype.itemsize == 0
    same(found, S)


def test_one_dense_tensor_and_no_tensor(tmp_path):
    scorch.save(tmp_path / "a.safetensors", DENSE)
    same(scorch.load(tmp_path / "a.safetensors"), DENSE)
    scorch.save(tmp_path / "b.safetensors", {})
    assert scorch.load(tmp_path / "b.safetensors") == {}


def test_a_file_may_be_written_from_what_was_read_from_it(tmp_path):
    path = tmp_path / "a.safetensors"
    S = scorch.rand(300, 300, density=0.1, format="csr")
    scorch.save(path, S)
    found = scorch.load(path)
    scorch.save(path, {"first": found, "second": found * 2})
    again = scorch.load(path)
    same(again["first"], S)
    same(found, S)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


# files that are not what they say --------------------------------------------------------------------


def rewritten(path, change_facts=None, change_arrays=None) -> None:
    """A file of one csr matrix named S, after changes of its metadata and of its arrays."""
    scorch.save(path, {"S": scorch.from_torch(DENSE, "csr")})
    arrays = library.load_file(path)
    arrays = {name: array.clone() for name, array in arrays.items()}
    contents = path.read_bytes()
    (length,) = struct.unpack("<Q", contents[:8])
    facts = json.loads(json.loads(contents[8 : 8 + length])["__metadata__"]["scorch"])
    if change_facts is not None:
        change_facts(facts)
    if change_arrays is not None:
        change_arrays(arrays)
    library.save_file(arrays, path, metadata={"scorch": json.dumps(facts)})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a: a["S.crd1"][0].fill_(9), IndexRangeError, "crd1 has 9 at entry 0"),
        (lambda a: a["S.crd1"][0].fill_(-5), IndexRangeError, "crd1 has -5 at entry 0"),
        (lambda a: a["S.pos1"][1].fill_(10**6), IndexRangeError, "pointers must not decrease"),
        (lambda a: a["S.pos1"][-1].add_(1), IndexRangeError, "the last pointer must be their number"),
        (lambda a: a.update({"S.pos1": a["S.pos1"][:-1].clone()}), ShapeError, "pos1 has 6 entries"),
        (lambda a: a.update({"S.pos1": a["S.pos1"].double()}), ScorchError, "must be int64 or int32"),
        (lambda a: a.update({"S.values": a["S.values"][1:].clone()}), FileError, "values, but"),
        (lambda a: a.update({"S.values": a["S.values"].double()}), FileError, "described as"),
        (lambda a: a.pop("S.crd1"), FileError, "KeyError"),
    ],
)
def test_arrays_are_checked(tmp_path, change, error, message):
    path = tmp_path / "a.safetensors"
    rewritten(path, change_arrays=change)
    with pytest.raises(error, match=message):
        scorch.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts["S"].update(shape=[6, 3]),
        lambda facts: facts["S"].update(shape=[6, -9]),
        lambda facts: facts["S"].update(shape=[2**62, 2**62]),
        lambda facts: facts["S"].update(shape="wide"),
        lambda facts: facts["S"].update(dtype="load"),
        lambda facts: facts["S"].update(dtype=None),
        lambda facts: facts["S"].update(format={"levels": "ss", "order": [0, 1]}),
        lambda facts: facts["S"].update(format={"levels": "ds", "order": [0, 7]}),
        lambda facts: facts["S"].update(format={"levels": "dsdd", "order": [0, 1, 0, 1], "blocks": [[0, 0]]}),
        lambda facts: facts["S"].update(arrays={"values": "S.pos1", "pos1": "S.crd1", "crd1": "S.crd1"}),
        lambda facts: facts["S"].update(arrays=["S.values"]),
        lambda facts: facts["S"].update(arrays={"values": ["S"]}),
        lambda facts: facts["S"].pop("arrays"),
        lambda facts: facts.update(S=None),
        lambda facts: facts.update(S=[1, 2]),
    ],
)
def test_metadata_are_checked(tmp_path, change):
    path = tmp_path / "a.safetensors"
    rewritten(path, change_facts=change)
    with pytest.raises(ScorchError) as caught:
        scorch.load(path)
    assert "a.safetensors" in str(caught.value) + "".join(getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("cut", [0, 5, 8, 50, 0.5, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path, cut):
    path = tmp_path / "a.safetensors"
    scorch.save(path, scorch.rand(100, 100, density=0.1, format="csr"))
    contents = path.read_bytes()
    path.write_bytes(contents[: int(cut * len(contents)) if isinstance(cut, float) else cut])
    with pytest.raises(FileError, match=r"not a complete \.safetensors file"):
        scorch.load(path)
