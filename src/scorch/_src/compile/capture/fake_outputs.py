"""What a call will give, found out before there are any numbers.

Shapes and dtypes are those of the same call on dense tensors, so that sizes may stay symbols. How a result is
stored is tried on a small sample: tensors of the same formats and shapes with a few entries.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.compile.capture.program import filled_in
from scorch._src.compile.capture.serialize import Slot
from scorch._src.formats import Format
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.construct import from_coordinates
from scorch._src.tensor.flatten import names_of
from scorch._src.tensor.registry import look_up
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import (
    OpOverload,
    TreeSpec,
    UnsupportedFakeTensorException,
    disable_current_modes,
    tree_flatten,
    tree_leaves,
)
from scorch.errors import InPlaceError

FEW = 3  # entries of a sample
UNKNOWN = 64  # stands for sizes that nothing is known of


@dataclass(frozen=True)
class Kind:
    """An argument, as far as it decides what comes out."""

    format: Format | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    index: torch.dtype
    arrays: tuple[int, ...]  # sparse arguments with the same numbers have one pattern
    device: torch.device


@dataclass(frozen=True)
class Promise:
    """One tensor of a result; ``arrays`` are those of arguments, by argument and place, -1 for values."""

    format: Format | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    index: torch.dtype
    arrays: tuple[tuple[int, int] | None, ...]
    values: tuple[int, int] | None


@dataclass(frozen=True)
class Outcome:
    """All tensors of a result, what they are part of, and whether random numbers were drawn."""

    promises: tuple[Promise, ...]
    spec: TreeSpec
    is_random: bool


def hint(size: Any) -> int:
    """A number for a size, without making it one."""
    if isinstance(size, int):
        return size
    node = size.node
    return int(node.hint) if node.has_hint() else UNKNOWN


def tried(function: Any, args: Any, kwargs: Any, kinds: Sequence[Kind], sizes: Sequence[int]) -> Outcome:
    """What a call gives for a sample of its arguments."""
    with disable_current_modes(), torch.no_grad():
        patterns: dict[Any, Pattern] = {}
        samples = [_sample(kind, patterns) for kind in kinds]
        before = torch.get_rng_state()

        def filled(value: Any) -> Any:
            if not isinstance(value, Slot):
                return value
            return sizes[value.number] if value.kind == "size" else samples[value.number]

        called = look_up(function).stand_in or function
        found = called(*filled_in(args, filled), **filled_in(kwargs, filled))
        is_random = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        leaves, spec = tree_flatten(found)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise unsupported(
                    f"{_name(function)} gives a {type(leaf).__name__}, which depends on numbers"
                )
        places = {
            id(array): (number, place)
            for number, sample in enumerate(samples)
            if isinstance(sample, SparseTensor)
            for place, array in enumerate(sample.storage.pattern.entry_arrays)
        }
        owners = {
            id(sample.storage.values): (number, -1)
            for number, sample in enumerate(samples)
            if isinstance(sample, SparseTensor)
        }
        return Outcome(tuple(_promise(leaf, places, owners) for leaf in leaves), spec, is_random)


def _promise(leaf: torch.Tensor, places: dict[int, Any], owners: dict[int, Any]) -> Promise:
    if not isinstance(leaf, SparseTensor):
        return Promise(None, tuple(leaf.shape), leaf.dtype, torch.int32, (), None)
    pattern, values = leaf.storage.pattern, leaf.storage.values
    arrays = tuple(places.get(id(array)) for array in pattern.entry_arrays)
    if None in arrays:
        arrays = (None,) * len(arrays)
    owner = None if None in arrays else owners.get(id(values))
    return Promise(pattern.format, tuple(leaf.shape), leaf.dtype, pattern.index_dtype, arrays, owner)


def _sample(kind: Kind, patterns: dict[Any, Pattern]) -> torch.Tensor:
    if kind.format is None:
        number = 1 if kind.dtype.is_floating_point or kind.dtype.is_complex else 0
        return torch.full((), number, dtype=kind.dtype, device=kind.device).expand(kind.shape)
    key = (kind.format, kind.arrays)
    if key not in patterns:
        patterns[key] = _sample_pattern(kind.format, kind.shape, kind.index, kind.device)
    pattern = patterns[key]
    return SparseTensor(Storage(pattern, torch.ones(pattern.size, dtype=kind.dtype, device=kind.device)))


def _sample_pattern(
    format: Format, shape: tuple[int, ...], index: torch.dtype, device: torch.device
) -> Pattern:
    """A diagonal of a few entries; its arrays are its own, so that they are known again."""
    entries = min([FEW, *shape])
    lines = [torch.arange(entries, device=device) for _ in shape]
    coordinates = torch.stack(lines) if lines else torch.zeros(0, 1, dtype=torch.int64, device=device)
    ones = torch.ones(coordinates.shape[1], device=device)
    made = from_coordinates(coordinates, ones, shape, format=format)
    assert isinstance(made, SparseTensor)
    found = made.storage.pattern
    copies = iter([array.to(index, copy=True) for array in found.entry_arrays])
    named = {name: next(copies) for name in names_of(format)}
    levels = range(len(format))
    pos = tuple(named.get(f"_pos{level}") for level in levels)
    crd = tuple(named.get(f"_crd{level}") for level in levels)
    return Pattern(format, found.shape, pos, crd, found.counts)


def dense_shapes(
    function: Any, args: Any, kwargs: Any, kinds: Sequence[Any], sizes: Sequence[Any], mode: Any
) -> list[tuple[Any, ...]] | None:
    """The shapes that dense tensors would give, with symbols; None where torch has no such call of them.

    ``kinds`` are the shapes, dtypes and devices of the arguments.
    """
    with disable_current_modes(), torch.no_grad(), mode:

        def filled(value: Any) -> Any:
            if not isinstance(value, Slot):
                return value
            if value.kind == "size":
                return sizes[value.number]
            shape, dtype, device = kinds[value.number]
            return torch.empty(shape, dtype=dtype, device=device)

        try:
            shaped = look_up(function).fake or function
            found = shaped(*filled_in(args, filled), **filled_in(kwargs, filled))
        except (RuntimeError, TypeError, NotImplementedError):
            return None
        return [tuple(leaf.shape) for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def unsupported(reason: str) -> Exception:
    """An error at which ``torch.compile`` ends the graph and calls the function itself."""
    return UnsupportedFakeTensorException(reason)


def unsupported_function(reason: str) -> Exception:
    """An error at which ``torch.compile`` runs all of the function that it is in without a graph."""
    from scorch._src.torch_internals import GraphBreak, TracingContext  # imports torch's compiler

    if TracingContext.try_get() is None:
        return unsupported(reason)
    if "skip_frame" not in inspect.signature(GraphBreak).parameters:  # before torch 2.11
        return InPlaceError(f"{reason}; call the function without torch.compile")
    return GraphBreak(reason, skip_frame=True)  # type: ignore[no-any-return]


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


_SIGNS = {"truediv": "div", "radd": "add", "rmul": "mul", "rtruediv": "div", "rpow": "pow"}


@functools.lru_cache(maxsize=4096)
def is_pointwise(function: Any) -> bool:
    """Whether torch says that a function is applied to each element by itself."""
    if isinstance(function, OpOverload):
        return torch.Tag.pointwise in function.tags and not function._schema.is_mutable
    name = getattr(function, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return False
    plain = name.strip("_")
    packet = getattr(torch.ops.aten, _SIGNS.get(plain, plain), None)
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())
