"""Programs: one call on sparse tensors as a function of arrays, serialized as text.

A graph holds arrays only: dense tensors, and values and index arrays of sparse ones. The text of a program
says how they form the arguments of a call, and which arrays of its result are new to the graph. All sizes
stand next to the text, so that it stays the same when they change.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.tensor.autograd import sparse_of
from scorch._src.tensor.flatten import pattern_of
from scorch._src.torch_internals import OpOverload, OpOverloadPacket, tree_leaves, tree_map
from scorch.errors import UnsupportedError

# functions that graphs may call, by name: Scorch's own, and those of torch that torch.overrides lacks
GRAPH_FUNCTIONS: dict[str, Any] = {
    f"torch.sparse.{name}": getattr(torch.sparse, name)
    for name in ("addmm", "log_softmax", "mm", "sampled_addmm", "softmax", "spdiags", "sum")
    if hasattr(torch.sparse, name)
}

_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
_OPERATORS = (OpOverload, OpOverloadPacket)


class Slot:
    """A placeholder among the arguments for a tensor or a symbolic size."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number


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
    autocast: torch.dtype | None = None  # what torch.autocast casts to where the call is traced

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
            [
                self.name,
                serialize(self.args),
                serialize(self.kwargs),
                operands,
                results,
                self.seed,
                serialize(self.autocast),
            ]
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
    name, args, kwargs, operands, results, seed, *autocast = json.loads(text)  # older files have no last one
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
        *map(deserialize, autocast),
    )


# arguments and functions as text ---------------------------------------------------------------------


def serialize(value: Any) -> Any:
    """Convert a value to lists, dicts, strings and numbers."""
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    for name, (kind, encode, _) in _CODECS.items():
        if isinstance(value, kind):
            return {name: encode(value)}
    raise UnsupportedError(
        f"a {type(value).__name__} cannot be an argument inside a compiled graph; "
        "pass numbers, strings, dtypes, slices or tensors"
    )


def deserialize(value: Any) -> Any:
    """Convert back what ``serialize`` returned."""
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    return _CODECS[name][2](content)


def _all(convert: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    return [convert(item) for item in items]


def _torch_constant(name: str) -> Any:
    constant = getattr(torch, name)
    assert isinstance(constant, _TORCH_CONSTANTS)
    return constant


def _serialize_format(format: Format | None) -> list[Any] | None:
    if format is None:
        return None
    return [format.spelling, list(format.order), [list(block) for block in format.blocks]]


def _deserialize_format(content: list[Any] | None) -> Format | None:
    if content is None:
        return None
    letters, order, blocks = content
    return Format(letters, order=order, blocks=dict(blocks))


_CODECS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {  # by name: type, there, back
    "slot": (Slot, lambda slot: [slot.kind, slot.number], lambda content: Slot(*content)),
    "list": (list, lambda items: _all(serialize, items), lambda items: _all(deserialize, items)),
    "tuple": (tuple, lambda items: _all(serialize, items), lambda items: tuple(_all(deserialize, items))),
    "dict": (
        dict,
        lambda items: [_all(serialize, pair) for pair in items.items()],
        lambda pairs: dict(_all(deserialize, pair) for pair in pairs),
    ),
    "slice": (
        slice,
        lambda s: _all(serialize, (s.start, s.stop, s.step)),
        lambda items: slice(*_all(deserialize, items)),
    ),
    "ellipsis": (type(...), lambda _: None, lambda _: ...),
    "complex": (complex, lambda number: [number.real, number.imag], lambda parts: complex(*parts)),
    "device": (torch.device, str, torch.device),
    "torch": (_TORCH_CONSTANTS, lambda constant: str(constant).removeprefix("torch."), _torch_constant),
    "format": (Format, _serialize_format, _deserialize_format),
}


def name_of(target: Any) -> str:
    """Return the name by which ``find_function`` finds a function."""
    for name, function in GRAPH_FUNCTIONS.items():
        if function is target:
            return name
    if isinstance(target, _OPERATORS):
        return f"torch.ops.{target}"
    name = resolve_name(target)
    if name is None:
        raise UnsupportedError(
            f"{getattr(target, '__name__', target)} of a sparse tensor cannot be stored in a graph; call it "
            "outside torch.compile and torch.export"
        )
    return str(name)


@functools.cache
def _overridable_functions() -> frozenset[Any]:
    """Return all PyTorch functions that dispatch on the type of their arguments."""
    return frozenset(itertools.chain.from_iterable(get_overridable_functions().values()))


def find_function(name: str) -> Any:
    """Find a PyTorch or Scorch function; refuse other names, which a file may hold."""
    if name in GRAPH_FUNCTIONS:
        return GRAPH_FUNCTIONS[name]
    module, *path = name.split(".")
    value: Any = functools.reduce(getattr, path, torch) if module == "torch" else None
    if value is None or not (isinstance(value, _OPERATORS) or value in _overridable_functions()):
        raise UnsupportedError(f"the graph calls {name!r}, which is not a function on sparse tensors")
    return value
