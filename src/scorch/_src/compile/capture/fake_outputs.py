"""Fake outputs: infer what a call will return before there are any values.

Shapes and dtypes are those of the same call on dense tensors, so that sizes may stay symbolic. The format of
a result is found by running the call on a small sample: tensors of the same formats and shapes with few
entries.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.compile.capture.program import Operand, Result, call_filled
from scorch._src.dataclass import dataclass
from scorch._src.formats import Format
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.create.build import from_coordinates
from scorch._src.tensor.flatten import pattern_of
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

    operand: Operand  # sparse ones with the same arrays share a pattern
    shape: tuple[int, ...]
    dtype: torch.dtype
    index: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class FakeOutputs:
    """All tensors of a result, their shapes and tree, and whether the call drew random numbers."""

    results: tuple[Result, ...]
    shapes: tuple[tuple[int, ...], ...]
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
    with disable_current_modes():
        rng_state = torch.get_rng_state()
        run = look_up(function).stand_in or function
        samples = _samples(kinds, SAMPLE_ENTRIES)
        try:
            result = call_filled(run, args, kwargs, samples, sizes)
        except torch.linalg.LinAlgError:  # the sample is singular
            samples = _samples(kinds, max(sizes, default=0))
            result = call_filled(run, args, kwargs, samples, sizes)
        is_random = not torch.equal(rng_state, torch.get_rng_state())
        torch.set_rng_state(rng_state)
        leaves, spec = tree_flatten(result)
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise graph_break(
                    f"{_name(function)} of a sparse tensor returns a {type(leaf).__name__} that depends on "
                    "the values, which are not known when the graph is captured"
                )
        numbers: dict[int, int] = {}  # of the arrays of samples, by id
        for kind, sample in zip(kinds, samples, strict=True):
            if isinstance(sample, SparseTensor):
                arrays = (*sample.storage.pattern.entry_arrays, sample.storage.values)
                numbers |= zip(map(id, arrays), (*kind.operand.arrays, kind.operand.values), strict=True)
        results = tuple(_describe_output(leaf, numbers) for leaf in leaves)
        return FakeOutputs(results, tuple(tuple(leaf.shape) for leaf in leaves), spec, is_random)


def _describe_output(leaf: torch.Tensor, numbers: dict[int, int]) -> Result:
    """Describe a tensor of the result; arrays of arguments have ``numbers``."""
    if not isinstance(leaf, SparseTensor):
        return Result(leaf.dtype)
    pattern = leaf.storage.pattern
    arrays = tuple(numbers.get(id(array)) for array in pattern.entry_arrays)
    values = numbers.get(id(leaf.storage.values))
    if None in arrays:
        arrays, values = (None,) * len(arrays), None
    return Result(leaf.dtype, pattern.format, pattern.index_dtype, arrays, values)


def _samples(kinds: Sequence[ArgumentSpec], entries: int) -> list[torch.Tensor]:
    """Return a sample of each argument; of sparse ones, with so many entries at most."""
    patterns: dict[Any, Pattern] = {}
    return [_sample(kind, patterns, entries) for kind in kinds]


def _sample(kind: ArgumentSpec, patterns: dict[Any, Pattern], entries: int) -> torch.Tensor:
    format = kind.operand.format
    if format is None:
        number = 1 if kind.dtype.is_floating_point or kind.dtype.is_complex else 0
        return torch.full((), number, dtype=kind.dtype, device=kind.device).expand(kind.shape)
    key = (format, kind.operand.arrays)
    if key not in patterns:
        patterns[key] = _sample_pattern(format, kind, entries)
    pattern = patterns[key]
    return SparseTensor(Storage(pattern, torch.ones(pattern.size, dtype=kind.dtype, device=kind.device)))


def _sample_pattern(format: Format, kind: ArgumentSpec, entries: int) -> Pattern:
    """Return a diagonal of a few entries; its arrays are copies, so that they can be recognised."""
    shape, device = kind.shape, kind.device
    entries = min([entries, *shape])
    diagonal = [torch.arange(entries, device=device) for _ in shape]
    coordinates = torch.stack(diagonal) if diagonal else torch.zeros(0, 1, dtype=torch.int64, device=device)
    ones = torch.ones(coordinates.shape[1], device=device)
    sample = from_coordinates(coordinates, ones, shape, format=format)
    assert isinstance(sample, SparseTensor)
    arrays = sample.storage.pattern.entry_arrays
    return pattern_of(format, shape, [array.to(kind.index, copy=True) for array in arrays])


def infer_dense_shapes(
    function: Any, args: Any, kwargs: Any, specs: Sequence[Any], sizes: Sequence[Any], mode: Any
) -> list[tuple[Any, ...]] | None:
    """Return the shapes of the same call on dense tensors, in symbols; None if torch has no such call.

    ``specs`` are the shapes, dtypes and devices of the arguments.
    """
    with disable_current_modes(), mode:
        try:
            tensors = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in specs]
            result = call_filled(look_up(function).fake or function, args, kwargs, tensors, sizes)
        except (RuntimeError, TypeError, NotImplementedError):
            return None
        return [tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


_UNKNOWN_SHAPES = {
    "_unique", "_unique2", "argwhere", "bincount", "masked_select", "nonzero", "unique",
    "unique_consecutive", "unique_dim", "unique_dim_consecutive",
}  # fmt: skip


def has_unknown_shape(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the shape of a result depends on the values of the arguments."""
    name = name.partition(".")[0]
    if name in ("__getitem__", "index", "repeat_interleave"):
        indices = [leaf for leaf in tree_leaves((args[1:], kwargs)) if isinstance(leaf, torch.Tensor)]
        is_counted = name == "repeat_interleave" and kwargs.get("output_size") is None
        return bool(indices) and (is_counted or any(index.dtype == torch.bool for index in indices))
    return name in _UNKNOWN_SHAPES or (name == "where" and len(args) == 1 and not kwargs)


def graph_break(reason: str) -> Exception:
    """Return an error at which ``torch.compile`` ends the graph and calls the function itself."""
    return UnsupportedFakeTensorException(reason)


def skip_frame(reason: str) -> Exception:
    """Return an error at which ``torch.compile`` runs the whole compiled function without a graph."""
    from scorch._src.torch_internals import GraphBreak, TracingContext  # imports torch's compiler

    if TracingContext.try_get() is None:
        return graph_break(reason)
    if "skip_frame" not in inspect.signature(GraphBreak).parameters:  # before torch 2.11
        return InPlaceError(f"{reason}; call the function outside torch.compile")
    return _whole_frame_break()(reason)


@functools.cache
def _whole_frame_break() -> type[Exception]:
    """Return the error of ``skip_frame``, which holds for callers too.

    torch clears ``skip_frame`` where it leaves a function that it has inlined, or the mode of a default
    device, and would break the graph in its caller, after the call that gave a view.
    """
    from scorch._src.torch_internals import GraphBreak  # imports torch's compiler

    class WholeFrameBreak(GraphBreak):  # type: ignore[misc]
        skip_frame = property(lambda self: True, lambda self, value: None)

    return WholeFrameBreak


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
