"""A sparse tensor drawn as the tree of its levels: what each one stores, below what.

The tree is walked only as far as it is drawn, so that large tensors are drawn at no cost, in part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from scorch._src.name_hints import suggests_keywords
from scorch._src.storage.storage import Storage
from scorch._src.tensor.show.text import describe
from scorch._src.tensor.sparse_tensor import SparseTensor, check_sparse

MAX_VALUES_PER_LINE = 8  # of a dense level


class Drawing(str):
    """Text whose ``repr`` is the text itself, for the prompt and notebooks."""

    def __repr__(self) -> str:
        return str(self)


@suggests_keywords
def draw(S: SparseTensor, most: int = 40) -> Drawing:
    """Draw a tensor as a tree of its levels, in text.

    Args:
        S: a sparse tensor.
        most: the maximum number of lines.

    Returns:
        The drawing; print it, or let a notebook show it.

    Raises:
        OperandError: ``S`` is not a sparse tensor.

    Example:

        >>> import scorch
        >>> S = scorch.sparse_coo_tensor([[0, 1, 1], [1, 0, 2]], [1.5, 2.0, 3.0], (2, 3), format="csr")
        >>> scorch.draw(S)
        SparseTensor(shape=(2, 3), dtype=float32, format=csr, nnz=3, density=50.00%)
        dimension 0 dense, dimension 1 compressed
        ├─ 0
        │  └─ 1: 1.5
        └─ 1
           ├─ 0: 2.0
           └─ 2: 3.0
    """
    check_sparse("draw", S)
    tree = _Tree(S.storage)
    lines = list(itertools.islice(tree.lines(0, 0, "", {}), most + 1))
    if len(lines) > most:
        lines[most:] = ["..."]
    return Drawing("\n".join([describe(S), tree.legend(), *lines]))


class _Tree:
    def __init__(self, storage: Storage) -> None:
        self.pattern, self.values = storage.pattern, storage.values.detach()
        self.form = storage.pattern.format

    def legend(self) -> str:
        """Describe each level, outermost first."""
        words = []
        for level, kind in enumerate(self.form.levels):
            part = {"whole": "", "outer": "blocks of ", "inner": "inside blocks of "}[self.form.part(level)]
            words.append(f"{part}dimension {self.form.order[level]} {kind.name}")
        return ", ".join(words)

    def lines(self, level: int, position: int, indent: str, at: dict[int, int]) -> Iterator[str]:
        """Draw the tree below ``position``, which has the coordinates ``at``."""
        last = self.form.run_from(level)  # a run of coordinate levels is drawn as one
        children = self._children(level, position)
        for child in children:
            corner, bar = ("└─ ", "   ") if child == children[-1] else ("├─ ", "│  ")
            here, label = self._coordinates(level, last, child - children[0], child, at)
            shown = self._shown(last, child)
            yield f"{indent}{corner}{label}{shown}"
            if not shown:
                yield from self.lines(last, child, indent + bar, here)

    def _children(self, level: int, position: int) -> range:
        pos = self.pattern.pos[level]
        if pos is None:
            size = self.form.level_size(level, self.pattern.shape)
            return range(position * size, (position + 1) * size)
        return range(int(pos[position]), int(pos[position + 1]))

    def _coordinates(
        self, level: int, last: int, number: int, child: int, at: dict[int, int]
    ) -> tuple[dict[int, int], str]:
        coordinates, words = dict(at), []
        for member in range(level, last):
            crd = self.pattern.crd[member]
            coordinate = number if crd is None else int(crd[child])
            dim = self.form.order[member]
            part, block = self.form.part(member), self.form.block(dim) or 1
            if part == "outer":
                coordinates[dim] = coordinate * block
                words.append(f"block {coordinate}")
                continue
            coordinates[dim] = coordinate if part == "whole" else coordinates[dim] + coordinate
            is_padding = coordinates[dim] >= self.pattern.shape[dim]
            words.append("(padding)" if is_padding else str(coordinates[dim]))
        return coordinates, ", ".join(words)

    def _shown(self, level: int, position: int) -> str:
        """Print the value of a coordinate, or a row of values; nothing where a tree is below."""
        if level == len(self.form):
            return f": {_number(self.values[position])}"
        if level == len(self.form) - 1 and self.form.levels[level].is_full:
            below = self._children(level, position)
            words = [_number(self.values[place]) for place in below[:MAX_VALUES_PER_LINE]]
            words += ["..."] if len(below) > MAX_VALUES_PER_LINE else []
            return f": [{', '.join(words)}]"
        return "" if self._children(level, position) else ": nothing"


def _number(value: torch.Tensor) -> str:
    """Print a value as torch prints scalars, with at most six digits."""
    number = value.item()
    if isinstance(number, float) and not number.is_integer():
        return f"{number:.6g}"
    return str(number)
