"""Flatten a sparse tensor to its arrays and rebuild it, for ``torch.compile`` and ``torch.export``.

The arrays have names: ``_entries``, and ``_pos1`` and ``_crd1`` for those of the second level. Everything
else about a tensor follows from them, its shape and its format. Arrays of a remembered pattern are rebuilt as
that pattern, with all that is cached on it.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling, is_exporting

from scorch._src.formats import Format
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.tensor.hooks import hooks
from scorch._src.torch_internals import (
    COMPILE_INPUTS,
    EXPORT_INPUTS,
    PROXY_MODE,
    get_dispatch_mode,
    make_wrapper_subclass,
)
from scorch.errors import UnsupportedError

Arrays = tuple[torch.Tensor | None, ...]

VALUES = "_entries"  # not ``_values``, which is a method of torch
MAX_LEVELS = 64  # the most dimensions of a tensor of torch
MIN_SYMBOLIC_SIZE = 2  # torch specializes graphs on smaller sizes
ALL_NAMES = [VALUES, *(f"_{kind}{level}" for kind in ("pos", "crd") for level in range(MAX_LEVELS))]

_patterns: weakref.WeakValueDictionary[tuple[Any, ...], Pattern] = weakref.WeakValueDictionary()


def names_of(format: Format) -> list[str]:
    """Return the names of the index arrays of a format, in the order of ``Pattern.entry_arrays``."""
    names = []
    for number, level in enumerate(format.levels):
        if format.starts_run(number):
            names.append(f"_pos{number}")
        if not level.is_full:
            names.append(f"_crd{number}")
    return names


def arrays_by_level(format: Format, arrays: Sequence[torch.Tensor]) -> tuple[Arrays, Arrays]:
    """Return ``pos`` and ``crd`` of every level from arrays in the order of ``Pattern.entry_arrays``."""
    named = dict(zip(names_of(format), arrays, strict=True))
    levels = range(len(format))
    return (
        tuple(named.get(f"_pos{level}") for level in levels),
        tuple(named.get(f"_crd{level}") for level in levels),
    )


def spelled(format: str | Format | None) -> str | None:
    """Write a format as text, by operations that ``torch.compile`` can trace; ``read_spelled`` reads it."""
    if format is None or isinstance(format, str):
        return format
    order = ",".join([str(dim) for dim in format.order])
    blocks = ",".join([f"{dim}={size}" for dim, size in format.blocks])
    return f"{format.letters}:{order}:{blocks}"


@functools.lru_cache(maxsize=256)
def read_spelled(text: str) -> Format:
    letters, order, blocks = text.split(":")
    pairs = [pair.split("=") for pair in blocks.split(",") if pair]
    sizes = {int(dim): int(size) for dim, size in pairs}
    return Format(letters, order=[int(dim) for dim in order.split(",")], blocks=sizes)


def array_of(storage: Storage, name: str) -> torch.Tensor:
    """Return the array with a name."""
    if name == VALUES:
        return storage.values
    arrays, level = getattr(storage.pattern, name[1:4]), int(name[4:])
    array: torch.Tensor | None = arrays[level] if level < len(arrays) else None
    if array is None:
        raise AttributeError(f"a sparse tensor of format {storage.pattern.format} has no {name!r}")
    return array


def with_symbolic_size(array: torch.Tensor) -> torch.Tensor:
    """Return an array of which ``torch.export`` traces the size, for it differs between patterns."""
    from scorch._src.torch_internals import maybe_mark_dynamic

    if array.shape[0] < MIN_SYMBOLIC_SIZE:
        raise UnsupportedError(
            "torch.export needs sparse arguments with at least two stored elements, or rows and blocks that "
            "have any: it would treat the sizes 0 and 1 as constants"
        )
    symbolic = array.detach()
    maybe_mark_dynamic(symbolic, 0)
    return symbolic


def remember(pattern: Pattern) -> None:
    """Let ``pattern_of`` return this pattern for its arrays."""
    if "is_known" not in pattern.__dict__:
        pattern.__dict__["is_known"] = True
        pattern.format.compute_facts()
        _patterns[_key(pattern.format, pattern.shape, pattern.entry_arrays)] = pattern


def link_to_layer(storage: Storage) -> Storage:
    """Link the storage of what a graph returns to the layer whose values it has: writes reach them."""
    for reference in storage.pattern.__dict__.get("layers", ()):
        layer = reference()
        if layer is not None and storage.values.is_set_to(layer.values):
            storage.layer, storage.layer_values = reference, layer.values
    return storage


def _key(format: Format, shape: Sequence[int], arrays: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return (format, *shape, *map(id, arrays))


def pattern_of(format: Format, shape: Sequence[int], arrays: Sequence[torch.Tensor]) -> Pattern:
    """Return the pattern with these arrays, in the order of ``Pattern.entry_arrays``."""
    has_sizes = all(type(size) is int for size in shape)
    remembered = _patterns.get(_key(format, shape, arrays)) if has_sizes else None
    if remembered is not None:
        return remembered
    is_memory = all(type(array) is torch.Tensor for array in arrays)
    if is_memory:  # kernels read them one after the other
        arrays = [array.contiguous() for array in arrays]
    remembered = _patterns.get(_key(format, shape, arrays)) if has_sizes else None
    if remembered is not None:
        return remembered
    pos, crd = arrays_by_level(format, arrays)
    counts: list[int] = []
    for level, array in enumerate(crd):
        if array is not None:
            counts.append(array.shape[0])
        else:  # without a product by 1, which torch would trace as a symbol that depends on itself
            size = format.level_size(level, shape)
            counts.append(counts[-1] * size if counts else size)
    pattern = Pattern(format, tuple(shape), pos, crd, tuple(counts))
    if is_memory:
        remember(pattern)
    return pattern


class TracedStorage(Storage):
    """The storage of a tensor inside a graph that is traced: arrays with shapes, but no memory yet."""

    def __init__(self, pattern: Pattern, values: torch.Tensor) -> None:
        self.pattern, self.values = pattern, values
        LIVE.add(weakref.ref(self, LIVE.discard))


def wrap_traced(kind: type[torch.Tensor], storage: TracedStorage) -> torch.Tensor:
    """Wrap a traced storage as a sparse tensor: trace its strides, but not what torch computes of them."""
    from scorch._src.torch_internals import disable_proxy_modes_tracing

    shape = storage.pattern.shape
    strides: list[int] = [1] if shape else []
    for size in reversed(shape[1:]):
        strides.insert(0, size if len(strides) == 1 else size * strides[0])
    with disable_proxy_modes_tracing():
        dtype, device = storage.values.dtype, storage.values.device
        tensor: Any = make_wrapper_subclass(kind, shape, strides, dtype=dtype, device=device)
    tensor.__dict__["storage"] = storage
    return tensor  # type: ignore[no-any-return]


def is_tracing() -> bool:
    """Whether torch traces operators into a graph, which kernels are not."""
    return get_dispatch_mode(PROXY_MODE) is not None


def is_captured(values: Iterable[Any]) -> bool:
    """Whether a call with these values is part of a program that is traced.

    ``torch.compile`` traces its lines, and ``torch.export`` runs it with tensors that have no memory.
    """
    return is_dynamo_compiling() or (is_exporting() and any(map(_has_no_memory, values)))


def call_captured(operator: Any, *args: Any) -> Any:
    """Call one of Scorch's operators in a program that is traced."""
    return operator(*args) if is_dynamo_compiling() else hooks.record(operator, args, {})


def _has_no_memory(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    storage = value.__dict__.get("storage")
    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    return not is_plain if storage is None else type(storage) is TracedStorage


LIVE: set[weakref.ref[TracedStorage]] = set()  # empty except while graphs are traced


def any_traced(values: Iterable[Any]) -> bool:
    """Whether a tensor among the values is traced; call it only if ``LIVE`` has any."""
    for value in values:
        if type(value) is torch.Tensor:
            continue
        if isinstance(value, torch.Tensor):
            if type(value.__dict__.get("storage")) is TracedStorage:
                return True
        elif isinstance(value, (list, tuple)) and any_traced(value):
            return True
    return False


def array_property(name: str) -> property:
    """Return the property for an array of a sparse tensor by its name in graphs."""

    def read(tensor: Any) -> torch.Tensor:
        array = array_of(tensor.storage, name)
        reader = sys._getframe(1).f_globals.get("__name__")
        if reader == EXPORT_INPUTS or (reader == COMPILE_INPUTS and is_exporting()):
            return array if tensor.storage.pattern.format.is_dense else with_symbolic_size(array)
        return array

    return property(read)
