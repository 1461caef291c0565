"""The strides that dense results would have, for which sparse tensors have no use of their own.

torch lays out the result of ``relu(X.T)`` as ``X.T`` lies, so that ``view`` of it is refused, ``reshape`` a
copy. A sparse result of a tensor that does not lie row by row therefore remembers how it was computed, of
which shapes; its strides are found by torch, of tensors without memory, once someone asks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from scorch._src.storage.storage import Storage

MOST_CALLS = 16  # that are remembered one behind the other before their strides are computed


class Shell(NamedTuple):
    """A sparse operand without its entries."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: Strides | None
    steps: tuple[Any, ...]  # of a view, from the tensor that is none

    def make(self) -> Any:
        if self.strides is None:
            result = torch.empty(self.shape, dtype=self.dtype, device="meta")
        else:
            result = torch.empty_strided(self.shape, self.strides.find(), dtype=self.dtype, device="meta")
        for step in self.steps:
            result = step.of(result)
        return result


class Strides:
    """The strides of the dense result of a call, computed when they are first asked for."""

    __slots__ = ("call", "depth", "found", "shape")

    def __init__(self, storage: Storage, func: Any, args: Any, kwargs: Any) -> None:
        self.shape = storage.pattern.shape
        self.depth = 1
        self.found: tuple[int, ...] | None = None
        self.call: Any = func, self._shells(args), self._shells(kwargs) if kwargs else kwargs

    def find(self) -> tuple[int, ...]:
        call = self.call
        if self.found is None and call is not None:  # another thread may be first
            func, args, kwargs = call
            try:
                result = func(*_make(args), **_make(kwargs))
                is_same = isinstance(result, torch.Tensor) and result.shape == self.shape
            except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
                is_same = False  # depends on numbers: such results lie row by row
            found = tuple(result.stride()) if is_same else ()
            is_shared = any(not stride and size > 1 for stride, size in zip(found, self.shape, strict=False))
            if not is_same or is_shared:  # as torch 2.11 has it for what no result does
                found = tuple(torch.empty(self.shape, device="meta").stride())
            self.found = found
            self.call, self.depth = None, 0
        assert self.found is not None
        return self.found

    def _shells(self, value: Any) -> Any:
        """Arguments without their memory."""
        if isinstance(value, torch.Tensor):
            storage = value.__dict__.get("storage")
            if isinstance(storage, Storage):
                return self._shell(storage)
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        if type(value) is dict:
            return {name: self._shells(part) for name, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._shells(part) for part in value)
        return value

    def _shell(self, storage: Storage) -> Shell:
        dtype, origin = storage.values.dtype, storage.origin
        if origin is not None:
            storage = origin.source
        strides = storage.strides
        if strides is not None:
            if strides.depth >= MOST_CALLS:
                strides.find()
            self.depth = max(self.depth, strides.depth + 1)
        return Shell(storage.pattern.shape, dtype, strides, () if origin is None else origin.steps)


def _make(value: Any) -> Any:
    if type(value) is Shell:
        return value.make()
    if type(value) is dict:
        return {name: _make(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_make(part) for part in value)
    return value


def has_strides(values: Any) -> bool:
    """Whether one of the arguments of a call may not lie row by row, if it were dense."""
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = value.__dict__.get("storage")
            if type(storage) is Storage and (storage.origin is not None or storage.strides is not None):
                return True
    return False


def keep_strides(storage: Storage, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Let the storage of a new result tell how a dense one would lie in memory."""
    if type(storage) is Storage and storage.origin is None and storage.strides is None:
        storage.strides = Strides(storage, func, args, kwargs)
