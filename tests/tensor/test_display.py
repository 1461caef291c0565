"""What tensors look like: one line, a tree of levels, a picture in notebooks and with matplotlib."""

from __future__ import annotations

import re
import sys
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import scorch
from properties.drawing import DTYPES, SIZES, formats, tensors
from scorch._src.tensor.show.spy import grid, to_svg
from scorch.errors import OperandError, UnsupportedError
from validity import dense_of

DENSE = torch.tensor([[0.0, 1.5, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, 1 / 3]])


def tree(name: str, dense: torch.Tensor = DENSE) -> list[str]:
    return str(scorch.draw(scorch.from_torch(dense, name))).splitlines()


# trees -----------------------------------------------------------------------------------------------


@pytest.mark.cpu("other devices are named")
def test_rows_with_compressed_columns():
    assert tree("csr") == [
        "SparseTensor(shape=(3, 3), dtype=float32, format=csr, nnz=3, density=33.33%)",
        "dimension 0 dense, dimension 1 compressed",
        "├─ 0",
        "│  └─ 1: 1.5",
        "├─ 1: nothing",
        "└─ 2",
        "   ├─ 0: 2.0",
        "   └─ 2: 0.333333",
    ]


def test_coordinates_stand_together():
    assert tree("coo")[1:] == [
        "dimension 0 coordinate, dimension 1 coordinate",
        "├─ 0, 1: 1.5",
        "├─ 2, 0: 2.0",
        "└─ 2, 2: 0.333333",
    ]


def test_dense_levels_below_are_rows():
    assert tree("sd")[2:] == ["├─ 0: [0.0, 1.5, 0.0]", "└─ 2: [2.0, 0.0, 0.333333]"]
    wide = torch.zeros(1, 20)
    wide[0, 1] = 1
    assert tree("sd", wide)[2] == "└─ 0: [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, ...]"


@pytest.mark.cpu("other devices are named")
def test_blocks_name_their_places():
    assert tree("bsr(2,2)") == [
        "SparseTensor(shape=(3, 3), dtype=float32, format=bsr(2,2), nnz=12, density=133.33% with padding)",
        "blocks of dimension 0 dense, blocks of dimension 1 compressed, inside blocks of dimension 0 dense, "
        "inside blocks of dimension 1 dense",
        "├─ block 0",
        "│  └─ block 0",
        "│     ├─ 0: [0.0, 1.5]",
        "│     └─ 1: [0.0, 0.0]",
        "└─ block 1",
        "   ├─ block 0",
        "   │  ├─ 2: [2.0, 0.0]",
        "   │  └─ (padding): [0.0, 0.0]",
        "   └─ block 1",
        "      ├─ 2: [0.333333, 0.0]",
        "      └─ (padding): [0.0, 0.0]",
    ]


def test_a_tree_shows_itself_in_the_console():
    drawn = scorch.draw(scorch.from_torch(DENSE, "csr"))
    assert repr(drawn) == str(drawn) and isinstance(drawn, str)
    with pytest.raises(OperandError, match="draw expected a sparse tensor, but got a Tensor"):
        scorch.draw(DENSE)


def test_large_tensors_are_drawn_in_part():
    S = scorch.sparse_coo_tensor(torch.arange(10**6).repeat(2, 1), torch.ones(10**6), format="csr")
    begin = time.perf_counter()
    lines = str(scorch.draw(S, most=6)).splitlines()
    assert lines[2:] == ["├─ 0", "│  └─ 0: 1.0", "├─ 1", "│  └─ 1: 1.0", "├─ 2", "│  └─ 2: 1.0", "..."]
    assert time.perf_counter() - begin < 1


@given(st.data())
def test_every_format_is_drawn(data):
    dims = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.sampled_from(SIZES)) for _ in range(dims))
    form = data.draw(formats(dims))
    assume(not form.is_dense)
    drawn = data.draw(tensors(shape, data.draw(st.sampled_from(DTYPES)), form))
    lines = str(scorch.draw(drawn.given, most=10**6)).splitlines()
    assert lines[0] == repr(drawn.given).partition(",\n")[0].removesuffix(")") + ")"
    if form.levels[-1].letter != "d":
        leaves = [line for line in lines[2:] if ": " in line and not line.endswith(": nothing")]
        assert len(leaves) == drawn.given.nnz
    ET.fromstring(to_svg(drawn.given))
    assert "SparseTensor" in drawn.given._repr_html_()


# pictures --------------------------------------------------------------------------------------------


@given(st.data())
def test_cells_count_entries(data):
    shape = tuple(data.draw(st.integers(0, 9)) for _ in range(2))
    form = data.draw(formats(2))
    assume(not form.is_dense)
    drawn = data.draw(tensors(shape, torch.float32, form))
    counts, sizes = grid(drawn.given, 4)
    assert sizes == shape and counts.shape == tuple(min(size, 4) for size in shape)
    nonzero = np.zeros(counts.shape, dtype=np.int64)
    for i, j in dense_of(drawn.given).nonzero().tolist():
        nonzero[i * counts.shape[0] // shape[0], j * counts.shape[1] // shape[1]] += 1
    assert bool((counts >= nonzero).all())
    if "d" not in form.letters and not form.blocks and drawn.given.nnz == int((drawn.dense != 0).sum()):
        assert np.array_equal(counts, nonzero)


def cells(svg: str) -> set[tuple[int, int]]:
    found = set()
    for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)", svg):
        found |= {(int(y), int(x) + step) for step in range(int(length))}
    return found


def test_a_small_picture_has_a_cell_for_each_entry():
    S = scorch.from_torch(DENSE, "csr")
    assert cells(to_svg(S)) == {(0, 1), (2, 0), (2, 2)}
    vector = scorch.from_torch(torch.tensor([0.0, 1.0, 1.0]))
    assert cells(to_svg(vector)) == {(0, 1), (0, 2)}
    stack = scorch.from_torch(torch.stack([DENSE, torch.eye(3)]), "csf")
    assert cells(to_svg(stack)) == {(0, 0), (0, 1), (1, 1), (2, 0), (2, 2)}


def test_html_has_the_facts():
    text = scorch.from_torch(DENSE, "csr")._repr_html_()
    for words in ("SparseTensor", "3 × 3", "float32", "csr", "dense, compressed", "0.333", "<svg"):
        assert words in text
    ET.fromstring(text)
    assert "none" in scorch.from_torch(torch.zeros(0, 4))._repr_html_()


def test_a_large_picture_stays_small():
    count = 300_000
    generator = torch.Generator().manual_seed(0)
    indices = torch.stack([torch.randint(0, size, (count,), generator=generator) for size in (2**60, 4)])
    S = scorch.sparse_coo_tensor(indices, torch.ones(count), (2**60, 4))
    assert grid(S)[0].sum() == S.nnz and grid(S)[0].shape == (200, 4)
    indices = torch.randint(0, 2**31, (2, count), generator=generator)
    S = scorch.sparse_coo_tensor(indices, torch.ones(count), (2**31, 2**31))
    text = S._repr_html_()
    assert len(text) < 400_000
    assert grid(S)[0].sum() == S.nnz and grid(S)[0].shape == (200, 200)


def test_spy():
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    S = scorch.from_torch(DENSE, "csr")
    axes = scorch.spy(S)
    picture = axes.get_images()[0]
    assert np.array_equal(np.asarray(picture.get_array()) > 0, DENSE.cpu().numpy() != 0)
    assert tuple(picture.get_extent()) == (-0.5, 2.5, 2.5, -0.5) and "csr" in axes.get_title()
    _, own = plt.subplots()
    assert scorch.spy(S, ax=own, cmap="viridis") is own
    assert own.get_images()[0].get_cmap().name == "viridis"
    scorch.spy(scorch.from_torch(torch.zeros(0, 3)))
    scorch.spy(scorch.from_torch(torch.ones(100, 2)))
    plt.close("all")
    with pytest.raises(OperandError, match="spy expected a sparse tensor"):
        scorch.spy(DENSE)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(UnsupportedError, match=r"pip install matplotlib"):
        scorch.spy(scorch.from_torch(DENSE))
