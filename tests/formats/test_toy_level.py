"""A level written outside of Scorch, in one place: registered, it does what Scorch's own levels do."""

from __future__ import annotations

import pickle

import pytest
import torch

import scorch
from formats.level_suite import LevelSuite
from scorch._src.formats.dense import Dense
from scorch._src.loops.nodes import Binary, Expr, Load, wide
from scorch._src.loops.types import INT64
from scorch.errors import FormatError, UnsupportedError
from scorch.formats import Format, Level, LevelArrays, register_level


class Ragged(Level):
    """Coordinates 0, 1, 2 ... below each position, as those of texts of different lengths."""

    letter, name = "r", "ragged"
    is_padded = True

    def coordinate(self, arrays: LevelArrays, position: Expr, parent: Expr) -> Expr:
        return position - wide(Load(arrays.pos, parent))

    def locate(self, arrays: LevelArrays, parent: Expr, coordinate: Expr, start: Expr, stop: Expr) -> Expr:
        return Binary("min", start + coordinate, stop, INT64)

    def length(self, parents: int, size: int, entries: int) -> int:
        return 0

    def room(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> int:
        return int(self._lengths(pos, crd).sum())

    def complete(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = self._lengths(pos, crd)
        whole = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return whole, self.coordinates(whole, crd, size)

    def finish(self, pos: torch.Tensor, crd: torch.Tensor, size: int) -> torch.Tensor:
        return crd[:0]

    def coordinates(self, pos: torch.Tensor, finished: torch.Tensor, size: int) -> torch.Tensor:
        return torch.arange(int(pos[-1])) - pos[:-1].repeat_interleave(pos.diff())

    def _lengths(self, pos: torch.Tensor, crd: torch.Tensor) -> torch.Tensor:
        """One more than the last coordinate below each position."""
        lengths = pos.diff().long()
        lengths[lengths > 0] = crd[pos[1:][lengths > 0].long() - 1].long() + 1
        return lengths


register_level(Ragged())


@pytest.mark.sampled(4)
class TestRagged(LevelSuite):
    level = Ragged()


def test_it_is_spelled_like_others():
    assert Format("ragged") == Format("dr") == Format([Dense(), Ragged()]) == Format("dense,ragged")
    assert str(Format("dr")) == "ragged" and str(Format("rd")) == "rd"
    A = scorch.from_torch(torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 0.0]]), format="ragged")
    assert A.levels[1]["kind"] == "ragged" and A.levels[1]["crd"].tolist() == [0, 1, 0, 1]
    assert [array.tolist() for array in A.storage.pattern.arrays] == [[0, 2, 4], []]
    with pytest.raises(FormatError, match="m bitmap, b banded, r ragged"):
        Format("none")


def test_letters_and_names_belong_to_one_level():
    class Other(Ragged):
        name = "other"

    class Named(Ragged):
        letter, name = "x", "csr"

    class Wrong(Ragged):
        letter = "xy"

    register_level(Ragged())  # again
    wrong = {Other: "letter 'r' is already used", Named: "name 'csr' is already used", Wrong: "one letter"}
    for level, message in wrong.items():
        with pytest.raises(FormatError, match=message):
            register_level(level())
    with pytest.raises(FormatError, match="subclass of Level"):
        register_level("ragged")


class Unknown(Ragged):
    letter, name = "u", "unknown"


def test_a_level_that_is_not_registered_computes_but_is_not_saved():
    A = scorch.from_torch(torch.eye(3), format=Format([Dense(), Unknown()]))
    assert torch.equal((A @ A).to_dense(), torch.eye(3))
    with pytest.raises(UnsupportedError, match="register_level"):
        pickle.dumps(A)
