"""Fake outputs: infer what a call will return before there are any values.

Shapes and dtypes are those of the same call on dense tensors, so that sizes may stay symbolic. The format of
a result is found by running the call on a small sample: tensors of the same formats and shapes with few
entries.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scorch._src.compile.capture.program import fill_slots
from scorch._src.compile.capture.serialize import Slot
from scorch._src.formats import Format
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.build import from_coordinates
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

SAMPLE_ENTRIES = 3
UNKNOWN_SIZE = 64  # stands for symbolic sizes without a hint


@dataclass(frozen=True)
class ArgumentSpec:
    """The properties of an argument that fake outputs depend on."""

    format: Format | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    index: torch.dtype
    arrays: tuple[int, ...]  # sparse arguments with the same numbers share a pattern
    device: torch.device


@dataclass(frozen=True)
class FakeOutput:
    """One tensor of a result; ``arrays`` are those of arguments, by argument and position, -1 for values."""

    format: Format | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    index: torch.dtype
    arrays: tuple[tuple[int, int] | None, ...]
    values: tuple[int, int] | None


@dataclass(frozen=True)
class FakeOutputs:
    """All tensors of a result, their tree, and whether the call drew random numbers."""

    outputs: tuple[FakeOutput, ...]
    spec: TreeSpec
    is_random: bool


def size_hint(size: Any) -> int:
    """Return a number for a size, without specializing the graph on it."""
    if isinstance(size, int):
        return size
    node = size.node
    return int(node.hint) if node.has_hint() else UNKNOWN_SIZE


def infer_outputs(
    function: Any, args: Any, kwargs: Any, kinds: Sequence[ArgumentSpec], sizes: Sequence[int]
) -> FakeOutputs:
    """Run a call on a sample of its arguments, and describe its outputs."""
    with disable_current_modes(), torch.no_grad():
        patterns: dict[Any, Pattern] = {}
        samples = [_sample(kind, patterns) for kind in kinds]
        rng_state = torch.get_rng_state()

        def fill(value: Any) -> Any:
            if not isinstance(value, Slot):
                return value
            return sizes[value.number] if value.kind == "size" else samples[value.number]

        stand_in = look_up(function).stand_in or function
        result = stand_in(*fill_slots(args, fill), **fill_slots(kwargs, fill))
        is_random = not torch.equal(rng_state, torch.get_rng_state())
        torch.set_rng_state(rng_state)
        leaves, spec = tree_flatten(result)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise graph_break(
                    f"{_name(function)} gives a {type(leaf).__name__}, which depends on numbers"
                )
        array_positions = {
            id(array): (number, position)
            for number, sample in enumerate(samples)
            if isinstance(sample, SparseTensor)
            for position, array in enumerate(sample.storage.pattern.entry_arrays)
        }
        values_positions = {
            id(sample.storage.values): (number, -1)
            for number, sample in enumerate(samples)
            if isinstance(sample, SparseTensor)
        }
        return FakeOutputs(
            tuple(_describe_output(leaf, array_positions, values_positions) for leaf in leaves),
            spec,
            is_random,
        )


def _describe_output(
    leaf: torch.Tensor, array_positions: dict[int, Any], values_positions: dict[int, Any]
) -> FakeOutput:
    if not isinstance(leaf, SparseTensor):
        return FakeOutput(None, tuple(leaf.shape), leaf.dtype, torch.int32, (), None)
    pattern, values = leaf.storage.pattern, leaf.storage.values
    arrays = tuple(array_positions.get(id(array)) for array in pattern.entry_arrays)
    if None in arrays:
        arrays = (None,) * len(arrays)
    values_position = None if None in arrays else values_positions.get(id(values))
    return FakeOutput(
        pattern.format, tuple(leaf.shape), leaf.dtype, pattern.index_dtype, arrays, values_position
    )


def _sample(kind: ArgumentSpec, patterns: dict[Any, Pattern]) -> torch.Tensor:
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
    """Return a diagonal of a few entries; its arrays are copies, so that they can be recognised."""
    entries = min([SAMPLE_ENTRIES, *shape])
    diagonal = [torch.arange(entries, device=device) for _ in shape]
    coordinates = torch.stack(diagonal) if diagonal else torch.zeros(0, 1, dtype=torch.int64, device=device)
    ones = torch.ones(coordinates.shape[1], device=device)
    sample = from_coordinates(coordinates, ones, shape, format=format)
    assert isinstance(sample, SparseTensor)
    pattern = sample.storage.pattern
    copies = iter([array.to(index, copy=True) for array in pattern.entry_arrays])
    named = {name: next(copies) for name in names_of(format)}
    levels = range(len(format))
    pos = tuple(named.get(f"_pos{level}") for level in levels)
    crd = tuple(named.get(f"_crd{level}") for level in levels)
    return Pattern(format, pattern.shape, pos, crd, pattern.counts)


def infer_dense_shapes(
    function: Any, args: Any, kwargs: Any, specs: Sequence[Any], sizes: Sequence[Any], mode: Any
) -> list[tuple[Any, ...]] | None:
    """Return the shapes of the same call on dense tensors, in symbols; None if torch has no such call.

    ``specs`` are the shapes, dtypes and devices of the arguments.
    """
    with disable_current_modes(), torch.no_grad(), mode:

        def fill(value: Any) -> Any:
            if not isinstance(value, Slot):
                return value
            if value.kind == "size":
                return sizes[value.number]
            shape, dtype, device = specs[value.number]
            return torch.empty(shape, dtype=dtype, device=device)

        try:
            fake = look_up(function).fake or function
            result = fake(*fill_slots(args, fill), **fill_slots(kwargs, fill))
        except (RuntimeError, TypeError, NotImplementedError):
            return None
        return [tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def graph_break(reason: str) -> Exception:
    """Return an error at which ``torch.compile`` ends the graph and calls the function itself."""
    return UnsupportedFakeTensorException(reason)


def skip_frame(reason: str) -> Exception:
    """Return an error at which ``torch.compile`` runs the whole calling function without a graph."""
    from scorch._src.torch_internals import GraphBreak, TracingContext  # imports torch's compiler

    if TracingContext.try_get() is None:
        return graph_break(reason)
    if "skip_frame" not in inspect.signature(GraphBreak).parameters:  # before torch 2.11
        return InPlaceError(f"{reason}; call the function without torch.compile")
    return GraphBreak(reason, skip_frame=True)  # type: ignore[no-any-return]


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


_OPERATOR_NAMES = {"truediv": "div", "radd": "add", "rmul": "mul", "rtruediv": "div", "rpow": "pow"}


@functools.lru_cache(maxsize=4096)
def is_pointwise(function: Any) -> bool:
    """Whether torch tags a function as pointwise."""
    if isinstance(function, OpOverload):
        return torch.Tag.pointwise in function.tags and not function._schema.is_mutable
    name = getattr(function, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return False
    plain = name.strip("_")
    packet = getattr(torch.ops.aten, _OPERATOR_NAMES.get(plain, plain), None)
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in packet.overloads())
