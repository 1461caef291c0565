"""The banded level, and what only it does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import scorch
from formats.level_suite import LevelSuite, drawn
from scorch._src.formats.banded import Banded
from scorch._src.formats.format import Format
from scorch.errors import DensityError, FileError


@pytest.mark.sampled(4)
class TestBanded(LevelSuite):
    level = Banded()


def test_it_has_a_letter_a_word_and_a_name():
    form = Format("banded")
    assert form == Format("db") == Format("dense,banded") and str(form) == "banded"
    assert Format("banded", dims=3).letters == "ddb" and form.is_padded


def test_one_number_replaces_the_coordinates_of_a_row():
    A = scorch.from_torch(torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]), format="banded")
    assert [array.tolist() for array in A.storage.pattern.arrays] == [[0, 2, 3], [1, -2]]
    assert A.storage.pattern.bytes() == 4 * (3 + 2)
    assert A.levels[1]["crd"].tolist() == [1, 2, 0]
    assert "pA2 + (i64)A2_crd[i]" in scorch.explain("ij,j->i", A, torch.ones(3)).source


def test_gaps_are_filled_up():
    gaps = scorch.from_torch(torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]), format="csr")
    A = gaps.to_format("banded")
    assert A.values().tolist() == [1.0, 0.0, 2.0, 3.0] and A.nnz == 4
    assert torch.equal(A.to_dense(), gaps.to_dense())
    solid = scorch.from_torch(torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]], [[3.0, 0.0]]]), format="bsd")
    assert solid.levels[0]["crd"].tolist() == [0, 1, 2] and solid.levels[1]["pos"].tolist() == [0, 1, 1, 2]
    assert torch.equal(solid.to_dense()[2], torch.tensor([[3.0, 0.0]]))


def test_diagonals_stay_banded():
    n = 50
    A = scorch.sparse.spdiags(drawn(5, n, density=1.0), torch.arange(5) - 2, (n, n), format="banded")
    dense = A.to_dense()
    product = scorch.einsum("ij,jk->ik", A, A, format="banded")
    torch.testing.assert_close(product.to_dense(), dense @ dense)
    assert product.nnz <= 9 * n
    assert str((A + A.T.to_format("banded")).format) == "banded"


def test_bands_that_are_too_wide_are_refused():
    corners = scorch.sparse_coo_tensor([[0] * 2, [0, 400_000_000]], [1.0, 2.0], (2, 400_000_001))
    with scorch.settings(dense_budget=1 << 30), pytest.raises(DensityError, match="without padding"):
        corners.to_format("banded")


def test_files_with_gaps_are_refused(tmp_path):
    path = tmp_path / "A.npz"
    scorch.save(path, scorch.from_torch(torch.tensor([[1.0, 2.0, 3.0, 0.0]]), format="banded"))
    with np.load(path) as arrays:
        damaged = dict(arrays)
    (name,) = (name for name in damaged if name.endswith("crd1"))
    damaged[name] = np.array([0, 1, 3], dtype=np.int32)
    np.savez(path, **damaged)
    with pytest.raises(FileError, match="entries that format banded stores are missing"):
        scorch.load(path)
