"""Levels written outside of Scorch: kernels read coordinates as the level codes them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scorch
from scorch._src.formats import Format, Level, LevelArrays
from scorch._src.formats.compressed import Compressed
from scorch._src.formats.dense import Dense
from scorch._src.loops.nodes import Binary, Expr, Load, wide
from scorch._src.loops.types import INT64
from scorch.errors import FormatError, UnsupportedError


class Banded(Level):
    """Coordinates without gaps: for each position above, the first one less its position."""

    letter, name = "b", "banded"
    is_full, keeps_crd, keeps_pos, is_coded = False, True, True, True

    def count(self, parents: int, size: int, entries: int) -> int:
        return entries

    def code(self, pos: torch.Tensor, crd: torch.Tensor) -> torch.Tensor:
        begins, lengths = pos[:-1].long(), pos.diff()
        shift = torch.zeros_like(begins)
        shift[lengths > 0] = crd[begins[lengths > 0]] - begins[lengths > 0]
        if not torch.equal(crd - torch.arange(crd.numel()), shift.repeat_interleave(lengths)):
            raise FormatError("a banded level has no gaps")
        return shift

    def coordinate(self, arrays: LevelArrays, position: Expr, parent: Expr) -> Expr:
        return position + wide(Load(arrays.crd, parent))

    def search(self, arrays: LevelArrays, start: Expr, stop: Expr, coordinate: Expr, parent: Expr) -> Expr:
        place = coordinate - wide(Load(arrays.crd, parent))
        return Binary("min", Binary("max", place, start, INT64), stop, INT64)


BANDED = Format([Dense(), Banded()])
SIZE = 12
EQUATIONS = [
    ("ij,j->i", "Ax"),
    ("ij,i->j", "Ax"),
    ("ij,jk->ik", "AX"),
    ("ij,jk->ik", "AS"),
    ("ij,jk->ik", "SA"),
    ("ij,jk->ik", "AA"),
    ("ij,ij->ij", "AS"),
    ("ij,ij->ij", "AC"),
    ("ij,ij->ij", "AA"),
    ("ij,ji->i", "AS"),
    ("ij,kj->ik", "AA"),
    ("ij,i->ij", "Ax"),
    ("ij,j->i", "AV"),
    ("ij->ji", "A"),
    ("ii->i", "A"),
    ("ij->", "A"),
]
FUNCTIONS = [
    lambda A: 2 * A + torch.relu(A - 0.5),
    lambda A: A.sum(1),
    lambda A: A[3:9, 2:8],
    lambda A: A[[4, 1]],
    lambda A: A.T @ A,
    lambda A: torch.cat([A, A]),
    lambda A: A + A,
    lambda A: torch.softmax(A, 1),
]


@st.composite
def banded(draw: st.DrawFn) -> torch.Tensor:
    """A matrix whose rows have their entries side by side; some have none."""
    found = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for row in range(SIZE):
        begin = draw(st.integers(0, SIZE))
        end = draw(st.integers(begin, SIZE))
        found[row, begin:end] = torch.arange(1, end - begin + 1) + row
    return found


def operands(dense: torch.Tensor, form: Format) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    S = torch.rand(SIZE, SIZE, generator=draw, dtype=torch.float64)
    S = torch.where(S < 0.3, S, torch.zeros(()))
    return {
        "A": scorch.from_torch(dense, format=form),
        "S": scorch.from_torch(S, format="csr"),
        "C": scorch.from_torch(S, format="coo"),
        "V": scorch.from_torch(S[0], format="coo"),
        "x": S.sum(0),
        "X": torch.rand(SIZE, 8, generator=draw, dtype=torch.float64),
    }


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense() if isinstance(tensor, scorch.SparseTensor) else tensor


@pytest.mark.parametrize("root", [Dense(), Compressed()], ids=["dense", "compressed"])
@pytest.mark.parametrize(("equation", "names"), EQUATIONS)
@given(dense=banded())
@settings(max_examples=5, deadline=None)
def test_einsum_reads_a_level_of_ones_own(equation, names, root, dense):
    tensors = operands(dense, Format([root, Banded()]))
    given_ = [tensors[name] for name in names]
    wanted = torch.einsum(equation, *map(plain, given_))
    torch.testing.assert_close(plain(scorch.einsum(equation, *given_)), wanted)
    with scorch.settings(debug=True):  # the interpreter checks every access
        torch.testing.assert_close(plain(scorch.einsum(equation, *given_)), wanted)


@given(dense=banded())
@settings(max_examples=10, deadline=None)
def test_torch_functions_take_it(dense):
    A = scorch.from_torch(dense, format=BANDED)
    assert torch.equal(A.to_dense(), dense) and A.format == BANDED
    assert torch.equal(A.to_format("csc").to_dense(), dense)
    assert torch.equal(copy.deepcopy(A).to_dense(), dense)
    for function in FUNCTIONS:
        torch.testing.assert_close(plain(function(A)), function(dense))


def test_kernels_get_the_code_and_users_the_coordinates():
    A = scorch.from_torch(torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]), format=BANDED)
    assert A.levels[1]["crd"].tolist() == [1, 2, 0]
    assert [array.tolist() for array in A.storage.pattern.arrays] == [[0, 2, 3], [1, -2]]
    assert A.storage.pattern.bytes() == 4 * (3 + 2 + 3)
    assert "const i64 j = pA2 + (i64)A2_crd[i];" in scorch.explain("ij,j->i", A, torch.ones(3)).source


def test_gradients_live_on_its_pattern():
    A = scorch.from_torch(torch.eye(4, dtype=torch.float64), format=BANDED).requires_grad_()
    X = torch.arange(8, dtype=torch.float64).reshape(4, 2)
    (A @ X).square().sum().backward()
    assert A.grad is not None and A.grad.format == BANDED
    torch.testing.assert_close(A.grad.to_dense(), torch.diag((2 * X * X).sum(1)))


def test_files_keep_other_formats(tmp_path):
    A = scorch.from_torch(torch.eye(3), format=BANDED)
    for save in (pickle.dumps, lambda A: scorch.save(tmp_path / "A.npz", A)):
        with pytest.raises(UnsupportedError, match="files keep Scorch's own levels only"):
            save(A)


def test_what_it_cannot_hold_is_refused():
    gaps = scorch.from_torch(torch.tensor([[1.0, 0.0, 2.0]]), format="csr")
    with pytest.raises(FormatError, match="no gaps"):
        gaps.to_format(BANDED)
    A, B = (scorch.from_torch(torch.tensor([row]), format=BANDED) for row in ([1.0, 0, 0], [0.0, 0, 1]))
    total = scorch.einsum("ij->ij", A).to_format("csr") + B
    assert total.to_dense().tolist() == [[1.0, 0.0, 1.0]]
    total = scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=B)  # together they have gaps
    assert str(total.format) == "csr" and total.to_dense().tolist() == [[1.0, 0.0, 1.0]]
