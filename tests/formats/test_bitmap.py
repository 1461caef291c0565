"""The bitmap level, and what only it does."""

from __future__ import annotations

import pytest
import torch

import scorch
from formats.level_suite import LevelSuite, drawn
from scorch._src.formats.bitmap import Bitmap, bit_at, bits_before
from scorch._src.formats.format import Format
from scorch.errors import DensityError


@pytest.mark.sampled(4)
class TestBitmap(LevelSuite):
    level = Bitmap()


def test_it_has_a_letter_a_word_and_a_name():
    form = Format("bitmap")
    assert form == Format("dm") == Format("dense,bitmap") and str(form) == "bitmap"
    assert str(Format("bitmap", dims=3)) == "bitmap" and Format("bitmap", dims=3).letters == "ddm"
    assert Format("bitmap", dims=1).letters == "m" and not form.is_padded


@pytest.mark.parametrize("size", [1, 5, 32, 33, 100])
def test_bits_say_which_coordinates_are_there(size):
    dense = drawn(7, size)
    A = scorch.from_torch(dense, format="bitmap")
    assert A.nnz == int((dense != 0).sum())
    words = A.storage.pattern.arrays[1].tolist()
    flat = (dense.reshape(-1) != 0).tolist()
    for place, is_there in enumerate(flat):
        assert bit_at(words, place) == is_there and bits_before(words, place) == sum(flat[:place])


def test_kernels_look_up_coordinates():
    A = scorch.from_torch(drawn(6, 5), format="bitmap")
    source = scorch.explain("ij,j->i", A, torch.ones(5, dtype=torch.float64)).source
    assert "bit_at_i32(A2_crd" in source and "A2_crd[" not in source.split("scorch_compute")[-1]
    B = scorch.from_torch(drawn(6, 5, seed=1), format="csr")
    source = scorch.explain("ij,ij->ij", B, A).source  # the entries of one, looked up in the other
    assert "B2_crd[" not in source and "bits_before_i32(B2_crd" in source


def test_a_bit_for_each_of_too_many_coordinates_is_refused():
    huge = scorch.eye(1_000_000, format="csr")
    with scorch.settings(dense_budget=1 << 30), pytest.raises(DensityError, match="in format bitmap"):
        huge.to_format("bitmap")
