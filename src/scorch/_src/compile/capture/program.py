"""Programs: one call on sparse tensors as a function of arrays, serialized as text.

A graph holds arrays only: dense tensors, and values and index arrays of sparse ones. The text of a program
says how they form the arguments of a call, and which arrays of its result are new to the graph. All sizes
stand beside the text, so that it stays the same when they change.
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
    deserialize,
    deserialize_format,
    find_function,
    serialize,
    serialize_format,
)
from scorch._src.formats import Format
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.flatten import pattern_of
from scorch._src.torch_internals import tree_leaves, tree_map


@dataclass(frozen=True)
class Operand:
    """A tensor argument: which of the arrays are its own, and which of the sizes are its shape.

    A dense one has no format, and its ``values`` are the tensor itself.
    """

    values: int
    format: Format | None = None
    arrays: tuple[int, ...] = ()
    shape: tuple[int, int] = (0, 0)  # from, to


@dataclass(frozen=True)
class Result:
    """A tensor of the result: dense without a format. Arrays that the graph has already are numbered."""

    dtype: torch.dtype
    format: Format | None = None
    index: torch.dtype = torch.int32
    arrays: tuple[int | None, ...] = ()
    values: int | None = None
    shape: tuple[int, int] = (0, 0)  # from, to

    @property
    def shares_operand_pattern(self) -> bool:
        """Whether its sparsity pattern is that of an operand."""
        return self.format is not None and None not in self.arrays

    def array_shapes(self, sizes: Sequence[Any], new_size: Any) -> list[Any]:
        """Return the shapes of all its arrays, values last; ``new_size`` returns numbers of entries."""
        shape = list(sizes[slice(*self.shape)])
        if self.format is None:
            return [shape]
        shapes: list[Any] = []
        count: Any = None
        for number, level in enumerate(self.format.levels):
            if self.format.starts_run(number):
                shapes.append([2 if count is None else count + 1])
                count = new_size()
            if level.is_full:
                size = self.format.level_size(number, shape)
                count = size if count is None else count * size
            else:
                shapes.append([count])
        return [*shapes, [count]]


@dataclass(frozen=True)
class Program:
    """A call: the function, its arguments, and its results."""

    name: str
    args: Any
    kwargs: Any
    operands: tuple[Operand, ...]
    results: tuple[Result, ...]
    seed: int | None = None

    @functools.cached_property
    def function(self) -> Any:
        return find_function(self.name)

    def serialize(self) -> str:
        operands = [[o.values, _serialize_format(o.format), o.arrays, o.shape] for o in self.operands]
        results = [
            [serialize(r.dtype), r.shape, _serialize_format(r.format), serialize(r.index), r.arrays, r.values]
            for r in self.results
        ]
        return json.dumps(
            [self.name, serialize(self.args), serialize(self.kwargs), operands, results, self.seed]
        )

    def run(self, arrays: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Run the call, and return its tensors."""
        tensors = [_argument(operand, arrays, sizes) for operand in self.operands]
        result = call_filled(self.function, self.args, self.kwargs, tensors, sizes)
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _argument(operand: Operand, arrays: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    values = arrays[operand.values]
    if operand.format is None:
        return values
    index_arrays = [arrays[number] for number in operand.arrays]
    return sparse_of(pattern_of(operand.format, tuple(sizes[slice(*operand.shape)]), index_arrays), values)


def _serialize_format(format: Format | None) -> Any:
    return None if format is None else serialize_format(format)


def _deserialize_format(content: Any) -> Format | None:
    return None if content is None else deserialize_format(content)


def fill_slots(value: Any, fill: Any) -> Any:
    """Fill every slot of the arguments, also those in slices, which are leaves to torch."""
    if isinstance(value, slice):
        return slice(*(fill_slots(item, fill) for item in (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple, dict)):
        return tree_map(lambda item: fill_slots(item, fill) if isinstance(item, slice) else fill(item), value)
    return fill(value)


def call_filled(
    function: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor], sizes: Sequence[Any]
) -> Any:
    """Call ``function`` with ``tensors`` and ``sizes`` in the slots of its arguments."""
    fillings = {"tensor": tensors, "size": sizes}

    def fill(value: Any) -> Any:
        return fillings[value.kind][value.number] if isinstance(value, Slot) else value

    return function(*fill_slots(args, fill), **fill_slots(kwargs, fill))


@functools.lru_cache(maxsize=4096)
def parse_program(text: str) -> Program:
    """Parse the text of a program."""
    name, args, kwargs, operands, results, seed = json.loads(text)
    return Program(
        name,
        deserialize(args),
        deserialize(kwargs),
        tuple(Operand(v, _deserialize_format(f), tuple(a), tuple(s)) for v, f, a, s in operands),
        tuple(
            Result(deserialize(d), _deserialize_format(f), deserialize(i), tuple(a), v, tuple(s))
            for d, s, f, i, a, v in results
        ),
        seed,
    )
