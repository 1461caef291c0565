"""A sparse tensor as its arrays, and back: what ``torch.compile`` and ``torch.export`` ask for.

The arrays have names: ``_entries``, and ``_pos1`` and ``_crd1`` for those of the second level. All else that
a tensor is made of follows from them, its shape and its format. Arrays that are known come back as the
pattern that they belong to, with all that was found out about it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from scorch._src.formats import Format
from scorch._src.storage.storage import Pattern, Storage
from scorch._src.torch_internals import PROXY_MODE, get_dispatch_mode, make_wrapper_subclass

VALUES = "_entries"  # not ``_values``, which is a method of torch
LEVELS = 64  # as many as tensors of torch have dimensions
ALL_NAMES = [VALUES, *(f"_{kind}{level}" for kind in ("pos", "crd") for level in range(LEVELS))]

_known: weakref.WeakValueDictionary[tuple[Any, ...], Pattern] = weakref.WeakValueDictionary()


def names_of(format: Format) -> list[str]:
    """The names of the index arrays of a format, in the order of ``Pattern.entry_arrays``."""
    found = []
    for number, level in enumerate(format.levels):
        if format.starts_run(number):
            found.append(f"_pos{number}")
        if not level.is_full:
            found.append(f"_crd{number}")
    return found


def spelled(format: str | Format | None) -> str | None:
    """A format as text, of constants that ``torch.compile`` can follow; ``read_spelled`` reads it."""
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
    """The array with a name."""
    if name == VALUES:
        return storage.values
    arrays, level = getattr(storage.pattern, name[1:4]), int(name[4:])
    found: torch.Tensor | None = arrays[level] if level < len(arrays) else None
    if found is None:
        raise AttributeError(f"a sparse tensor of format {storage.pattern.format} has no {name!r}")
    return found


def remember(pattern: Pattern) -> None:
    """Give this pattern to those who come with its arrays."""
    if "is_known" not in pattern.__dict__:
        pattern.__dict__["is_known"] = True
        _known[_key(pattern.format, pattern.shape, pattern.entry_arrays)] = pattern


def _key(format: Format, shape: Sequence[int], arrays: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return (format, *shape, *map(id, arrays))


def pattern_of(format: Format, shape: Sequence[int], arrays: Sequence[torch.Tensor]) -> Pattern:
    """The pattern with these arrays, in the order of ``Pattern.entry_arrays``."""
    is_memory = all(type(array) is torch.Tensor for array in arrays)
    if is_memory:  # kernels read them one after the other
        arrays = [array.contiguous() for array in arrays]
    known = _known.get(_key(format, shape, arrays)) if all(type(size) is int for size in shape) else None
    if known is not None:
        return known
    named = dict(zip(names_of(format), arrays, strict=True))
    levels = range(len(format))
    pos = tuple(named.get(f"_pos{level}") for level in levels)
    crd = tuple(named.get(f"_crd{level}") for level in levels)
    counts: list[int] = []
    for level, array in enumerate(crd):
        if array is not None:
            counts.append(array.shape[0])
        else:  # without a product by 1, which torch would trace as a symbol that depends on itself
            size = format.level_size(level, shape)
            counts.append(counts[-1] * size if counts else size)
    made = Pattern(format, tuple(shape), pos, crd, tuple(counts))
    if is_memory:
        remember(made)
    return made


def unflattened(inner: Mapping[str, torch.Tensor], format: Format, shape: Sequence[int]) -> Pattern:
    """The pattern of a tensor that was taken apart."""
    return pattern_of(format, shape, [inner[name] for name in names_of(format)])


class TracedStorage(Storage):
    """The storage of a tensor inside of a graph that is being made: arrays with shapes, but no memory yet."""

    def __init__(self, pattern: Pattern, values: torch.Tensor) -> None:
        self.pattern, self.values = pattern, values
        LIVE.add(weakref.ref(self, LIVE.discard))


def traced_shell(kind: type[torch.Tensor], storage: TracedStorage) -> torch.Tensor:
    """A sparse tensor of a traced storage: its strides are traced, what torch computes of them is not."""
    from scorch._src.torch_internals import disable_proxy_modes_tracing

    shape = storage.pattern.shape
    strides: list[int] = [1] if shape else []
    for size in reversed(shape[1:]):
        strides.insert(0, size if len(strides) == 1 else size * strides[0])
    with disable_proxy_modes_tracing():
        dtype, device = storage.values.dtype, storage.values.device
        made: Any = make_wrapper_subclass(kind, shape, strides, dtype=dtype, device=device)
    made.storage = storage
    return made  # type: ignore[no-any-return]


def is_tracing() -> bool:
    """Whether torch writes down what operators are called with, which kernels are not."""
    return get_dispatch_mode(PROXY_MODE) is not None


LIVE: set[weakref.ref[TracedStorage]] = set()  # empty but for the time in which graphs are made


def any_traced(values: Iterable[Any]) -> bool:
    """Whether a tensor among arguments is traced; ask only if any is alive."""
    for value in values:
        if type(value) is torch.Tensor:
            continue
        if isinstance(value, torch.Tensor):
            if type(value.__dict__.get("storage")) is TracedStorage:
                return True
        elif isinstance(value, (list, tuple)) and any_traced(value):
            return True
    return False
