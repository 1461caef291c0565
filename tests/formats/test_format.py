"""Formats: names, letters and words, equality, and what each level promises."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.drawing import formats
from scorch._src.formats import LEVELS, NAMES, Format, as_format, dense_format
from scorch.errors import FormatError

NAMED = [
    ("dense", 2, "dd", (0, 1)),
    ("dense", 0, "", ()),
    ("csr", 2, "ds", (0, 1)),
    ("csr", 1, "s", (0,)),
    ("csr", 3, "dds", (0, 1, 2)),
    ("csc", 2, "ds", (1, 0)),
    ("csc", 3, "dds", (0, 2, 1)),
    ("coo", 1, "o", (0,)),
    ("coo", 4, "oooo", (0, 1, 2, 3)),
    ("dcsr", 2, "ss", (0, 1)),
    ("dcsc", 2, "ss", (1, 0)),
    ("csf", 3, "sss", (0, 1, 2)),
]


@pytest.mark.parametrize(("name", "dims", "letters", "order"), NAMED)
def test_names_mean_letters_and_an_order(name, dims, letters, order):
    form = as_format(name, dims)
    assert form.letters == letters and form.order == order and form.dims == dims and not form.is_blocked
    if dims:
        assert form == Format(letters, order=order)


def test_blocks_split_a_dimension_in_two():
    form = Format("bsr(2,3)")
    assert form == Format("dsdd", order=(0, 1, 0, 1), blocks={0: 2, 1: 3})
    assert form.is_blocked and form.dims == 2 and len(form) == 4
    assert [form.part(level) for level in range(4)] == ["outer", "outer", "inner", "inner"]
    assert [form.level_size(level, (5, 6)) for level in range(4)] == [3, 2, 2, 3]
    assert form.block(0) == 2 and form.block(1) == 3 and Format("csr").block(0) is None
    assert Format("bsc( 2 , 3 )").order == (1, 0, 0, 1)
    assert Format("bsr(4)") == Format("bsr(4,4)")
    batched = as_format("bsr(2,2)", 3)
    assert (
        batched.letters == "ddsdd" and batched.order == (0, 1, 2, 1, 2) and batched.blocks == ((1, 2), (2, 2))
    )


def test_words_letters_and_names_may_be_written_freely():
    assert (
        Format("dense,compressed")
        == Format("dense, sparse")
        == Format("DS")
        == Format(" csr ")
        == Format("ds")
    )
    assert Format("coordinate,coordinate") == Format("coo")
    assert Format("compressed") == Format("s")
    assert Format(Format("csr")) == Format("csr") and Format(Format("csr"), dims=3).letters == "dds"
    assert Format([LEVELS[0], LEVELS[1]]) == Format("csr")


def test_equality_and_hash_follow_meaning():
    assert Format("ds", order=(1, 0)) == Format("csc") != Format("csr")
    assert hash(Format("ds", order=(1, 0))) == hash(Format("csc"))
    assert len({Format("csr"), Format("ds"), Format("dense,compressed"), Format("csc")}) == 2
    assert Format("bsr(2,2)") != Format("bsr(2,3)") != Format("bsc(2,3)")
    assert Format("csr") != "csr"
    assert dense_format(3) == Format("ddd") and dense_format(2, (1, 0)).order == (1, 0)


@given(st.integers(1, 4).flatmap(formats))
def test_every_format_is_found_again_from_what_it_shows(form):
    assert eval(repr(form), {"Format": lambda *a, **k: Format(*a, **{"dims": form.dims, **k})}) == form
    assert as_format(form, form.dims) == form
    again = pickle.loads(pickle.dumps(form))
    assert again == form and hash(again) == hash(form) and copy.deepcopy(form) == form


@pytest.mark.parametrize(
    ("form", "shown", "text"),
    [
        (Format("ds"), "Format('csr')", "csr"),
        (Format("ds", order=(1, 0)), "Format('csc')", "csc"),
        (Format("dsd"), "Format('dsd')", "dsd"),
        (Format("sd", order=(1, 0)), "Format('sd', order=(1, 0))", "sd(order 1,0)"),
        (Format("bsc(2,3)"), "Format('bsc(2,3)')", "bsc(2,3)"),
        (
            Format("ssd", order=(0, 1, 0), blocks={0: 2}),
            "Format('ssd', order=(0, 1, 0), blocks={0: 2})",
            "ssd(order 0,1,0, 0 by 2)",
        ),
    ],
)
def test_what_a_format_shows(form, shown, text):
    assert repr(form) == shown and str(form) == text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Format("crs"),
            r"unknown format 'crs'; did you mean 'csr'\? choose from the names dense, csr",
        ),
        (lambda: Format("bsr"), r"format 'bsr' needs a block size, as in 'bsr\(4,4\)'"),
        (lambda: Format("bsr(0,2)"), "blocks of dimension 0 must have a positive size, but got 0"),
        (lambda: Format(""), "unknown format ''"),
        (lambda: Format("dense,wrong"), "has the unknown level 'wrong'"),
        (lambda: Format("dsx"), "unknown format 'dsx'"),
        (lambda: Format("ds", order=(0,)), r"has 2 levels, but its order \(0,\) names 1 dimensions"),
        (lambda: Format("ds", order=(0, 2)), r"order \(0, 2\) must name the dimensions 0 to 1"),
        (lambda: Format("ds", order=(0, 0)), "dimension 0 appears twice in order .* but has no block size"),
        (lambda: Format("ds", order=("a", "b")), r"must list dimensions, such as \(1, 0\)"),
        (lambda: Format("ds", blocks={0: 2}), "dimension 0 has blocks, so it must appear twice"),
        (lambda: as_format("ds", 3), "format 'ds' stores 2-D tensors, but this one is 3-D"),
        (lambda: as_format("csc", 1), "format 'csc' stores matrices, but the tensor is 1-D"),
        (lambda: as_format("bsr(2,2)", 1), "stores matrices, but the tensor is 1-D"),
        (
            lambda: as_format(3, 2),
            "a format is a name such as 'csr', letters such as 'ds' or a Format, not 3",
        ),
    ],
)
def test_wrong_formats_say_what_there_is(call, message):
    with pytest.raises(FormatError, match=message):
        call()


def test_what_levels_promise():
    dense, compressed, coordinate, bitmap, banded = LEVELS
    assert [level.letter for level in LEVELS] == ["d", "s", "o", "m", "b"] and "csr" in NAMES
    assert dense.is_full and not any(level.is_full for level in LEVELS[1:])
    assert [level for level in LEVELS if level.has_coordinates] == [compressed, coordinate]
    assert [level for level in LEVELS if level.continues_run] == [coordinate]
    assert [level for level in LEVELS if not level.is_iterable] == [bitmap]
    assert [level for level in LEVELS if level.is_padded] == [banded]
    assert dense.count(3, 4, 0) == 12 and compressed.count(3, 4, 5) == coordinate.count(3, 4, 5) == 5
    assert repr(compressed) == "compressed" and pickle.loads(pickle.dumps(compressed)) == compressed
    assert dense != compressed and len({dense, type(dense)()}) == 1


def test_runs_of_coordinate_levels():
    form = Format("ooso")
    assert [form.starts_run(level) for level in range(4)] == [True, False, True, True]
    assert [form.is_unique(level) for level in range(4)] == [False, True, True, True]
    assert Format("dds").is_dense is False and Format("dd").is_dense


def test_a_pickled_format_has_the_right_hash_in_another_process():
    """Hashes of strings differ between processes, so a kept one must not travel."""
    form = Format("csr")
    hash(form)
    script = (
        "import pickle, sys; from scorch.formats import Format; "
        "form = pickle.loads(sys.stdin.buffer.read()); assert form in {Format('csr')}"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(form), env=env, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
