"""One call on sparse tensors as a function of arrays, written as text.

A graph knows arrays only: dense tensors, and values and index arrays of sparse ones. The text of a program
says how they make up the arguments of a call, and what of its result the graph does not have already. All
sizes stand beside the text, so that it stays the same when they change.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.compile.capture.serialize import (
    Slot,
    function_named,
    read,
    read_format,
    write,
    write_format,
)
from scorch._src.formats import Format
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.flatten import pattern_of
from scorch._src.torch_internals import tree_leaves, tree_map


@dataclass(frozen=True)
class Operand:
    """A tensor among the arguments: which of the arrays are its own, and which of the sizes are its shape.

    A dense one has no format, and its ``values`` are the tensor itself.
    """

    values: int
    format: Format | None = None
    arrays: tuple[int, ...] = ()
    shape: tuple[int, int] = (0, 0)  # from, to


@dataclass(frozen=True)
class Result:
    """A tensor that comes out: dense without a format. Arrays that the graph has already are numbered."""

    dtype: torch.dtype
    shape: tuple[int, int]
    format: Format | None = None
    index: torch.dtype = torch.int32
    arrays: tuple[int | None, ...] = ()
    values: int | None = None

    @property
    def is_on_operand(self) -> bool:
        """Whether its entries are where those of an operand are."""
        return self.format is not None and None not in self.arrays

    def lengths(self, sizes: Sequence[Any], new_size: Any) -> list[Any]:
        """The shapes of all its arrays, values last; ``new_size`` gives numbers of entries."""
        shape = list(sizes[slice(*self.shape)])
        if self.format is None:
            return [shape]
        found: list[Any] = []
        count: Any = None
        for number, level in enumerate(self.format.levels):
            if self.format.starts_run(number):
                found.append([2 if count is None else count + 1])
                count = new_size()
            if level.is_full:
                size = self.format.level_size(number, shape)
                count = size if count is None else count * size
            else:
                found.append([count])
        return [*found, [count]]


@dataclass(frozen=True)
class Program:
    """A call: what is called, with what, and what comes out."""

    name: str
    args: Any
    kwargs: Any
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    seed: int | None = None

    @functools.cached_property
    def function(self) -> Any:
        return function_named(self.name)

    def write(self) -> str:
        operands = [[o.values, _written(o.format), o.arrays, o.shape] for o in self.operands]
        results = [
            [write(r.dtype), r.shape, _written(r.format), write(r.index), r.arrays, r.values]
            for r in self.results
        ]
        return json.dumps([self.name, write(self.args), write(self.kwargs), operands, results, self.seed])

    def run(self, arrays: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """What the call gives, tensor by tensor."""
        given: dict[str, Sequence[Any]] = {
            "tensor": [_argument(operand, arrays, sizes) for operand in self.operands],
            "size": sizes,
        }

        def filled(value: Any) -> Any:
            return given[value.kind][value.number] if isinstance(value, Slot) else value

        found = self.function(*filled_in(self.args, filled), **filled_in(self.kwargs, filled))
        return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def _argument(operand: Operand, arrays: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    values = arrays[operand.values]
    if operand.format is None:
        return values
    own = [arrays[number] for number in operand.arrays]
    return sparse_of(pattern_of(operand.format, tuple(sizes[slice(*operand.shape)]), own), values)


def _written(format: Format | None) -> Any:
    return None if format is None else write_format(format)


def _read(given: Any) -> Format | None:
    return None if given is None else read_format(given)


def filled_in(value: Any, fill: Any) -> Any:
    """Arguments with every slot filled, also those in slices, which are leaves to torch."""
    if isinstance(value, slice):
        return slice(*(filled_in(part, fill) for part in (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple, dict)):
        return tree_map(lambda part: filled_in(part, fill) if isinstance(part, slice) else fill(part), value)
    return fill(value)


@functools.lru_cache(maxsize=4096)
def read_program(text: str) -> Program:
    """The program that was written as ``text``."""
    name, args, kwargs, operands, results, seed = json.loads(text)
    return Program(
        name,
        read(args),
        read(kwargs),
        tuple(Operand(v, _read(f), tuple(a), tuple(s)) for v, f, a, s in operands),
        tuple(Result(read(d), tuple(s), _read(f), read(i), tuple(a), v) for d, s, f, i, a, v in results),
        seed,
    )
