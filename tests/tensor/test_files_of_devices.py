"""Tensors on the default device go into every kind of file; most files give them back on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import scorch
from properties.drawing import random_dense
from scorch import SparseTensor
from scorch.utils.data import MemmapSparseDataset, RowWriter
from validity import check_storage, dense_of

SUFFIXES = [".mtx", ".mtx.gz", ".tns", ".npz", ".safetensors", ".pt"]
DENSE = random_dense((6, 9), torch.float64, 0.4, 3)


@pytest.mark.parametrize("form", ["csr", "coo", "bsr(2,3)"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_tensor_comes_back(tmp_path: Path, suffix: str, form: str) -> None:
    if suffix == ".safetensors":
        pytest.importorskip("safetensors", reason="safetensors is not installed")
    S = scorch.from_torch(DENSE, form)
    path = tmp_path / f"S{suffix}"
    scorch.save(path, S)
    found = scorch.load(path)
    assert isinstance(found, SparseTensor) and found.format == S.format
    assert found.device == (S.device if suffix == ".pt" else torch.device("cpu"))
    check_storage(found)
    assert torch.equal(dense_of(found).to(DENSE.device), DENSE)


def test_rows_are_written_and_mapped(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    with RowWriter(path) as writer:
        writer.append(scorch.from_torch(DENSE[:4], "csr"))
        writer.append(DENSE[4:])
    assert torch.equal(MemmapSparseDataset(path)[:].to_dense(), DENSE.cpu())


def test_what_a_pattern_is_shared_by_is_written_once(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    S = scorch.from_torch(DENSE, "csr")
    scorch.save(tmp_path / "two.safetensors", {"S": S, "T": S * 2})
    assert set(library.load_file(tmp_path / "two.safetensors")) == {
        "S.values",
        "T.values",
        "S.pos1",
        "S.crd1",
    }
