"""The strides that dense results would have, for which sparse tensors have no use of their own.

torch lays out the result of ``relu(X.T)`` as ``X.T`` lies, so that ``view`` of it is refused, ``reshape`` a
copy. A sparse result of a tensor that does not lie row by row therefore stores how it was computed, of which
shapes; torch computes its strides on meta tensors when they are first needed. A dense result of an
elementwise function is laid out so at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from scorch._src.storage.storage import Storage, run_steps

MAX_CALL_DEPTH = 16  # calls on results of calls, before their strides are computed


class MetaOperand(NamedTuple):
    """A sparse operand without its entries, to build a meta tensor of."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: Strides | None
    steps: tuple[Any, ...]  # of a view, from its base

    def make(self) -> Any:
        if self.strides is None:
            result = torch.empty(self.shape, dtype=self.dtype, device="meta")
        else:
            result = torch.empty_strided(self.shape, self.strides.find(), dtype=self.dtype, device="meta")
        return run_steps(self.steps, result)


class Strides:
    """The strides of the dense result of a call, computed when they are first needed."""

    __slots__ = ("call", "depth", "shape", "strides")

    def __init__(self, shape: tuple[int, ...], func: Any, args: Any, kwargs: Any) -> None:
        self.shape = shape
        self.depth = 1
        self.strides: tuple[int, ...] | None = None
        self.call: Any = func, _mapped(self._as_meta, args), _mapped(self._as_meta, kwargs)

    def find(self) -> tuple[int, ...]:
        call = self.call
        if self.strides is None and call is not None:  # another thread may be first
            func, args, kwargs = call
            try:
                result = func(*_mapped(_make, args), **_mapped(_make, kwargs))
                is_same = isinstance(result, torch.Tensor) and result.shape == self.shape
            except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
                is_same = False  # depends on numbers: such results lie row by row
            strides = tuple(result.stride()) if is_same else ()
            is_shared = any(
                not stride and size > 1 for stride, size in zip(strides, self.shape, strict=False)
            )
            if not is_same or is_shared:  # as torch 2.11 has it for what no result does
                strides = tuple(torch.empty(self.shape, device="meta").stride())
            self.strides = strides
            self.call, self.depth = None, 0
        assert self.strides is not None
        return self.strides

    def _as_meta(self, value: Any) -> Any:
        """Convert an argument to a meta tensor."""
        if not isinstance(value, torch.Tensor):
            return value
        storage = value.__dict__.get("storage")
        if isinstance(storage, Storage):
            return self._meta_operand(storage)
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    def _meta_operand(self, storage: Storage) -> MetaOperand:
        dtype, origin = storage.values.dtype, storage.origin
        if origin is not None:
            storage = origin.source
        strides = storage.strides
        if strides is not None:
            if strides.depth >= MAX_CALL_DEPTH:
                strides.find()
            self.depth = max(self.depth, strides.depth + 1)
        return MetaOperand(storage.pattern.shape, dtype, strides, () if origin is None else origin.steps)


def _make(value: Any) -> Any:
    return value.make() if type(value) is MetaOperand else value


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply ``function`` to the leaves of nested arguments."""
    if type(value) is dict:
        return {name: _mapped(function, part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(function, part) for part in value)
    return function(value)


def has_strides(values: Any) -> bool:
    """Check whether one of the arguments of a call may not lie row by row, if it were dense."""
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = value.__dict__.get("storage")
            if type(storage) is Storage and (storage.origin is not None or storage.strides is not None):
                return True
    return False


def keep_strides(storage: Storage, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Store with a new result how a dense one would lie in memory."""
    if type(storage) is Storage and storage.origin is None and storage.strides is None:
        storage.strides = Strides(storage.pattern.shape, func, args, kwargs)


def restrided(result: torch.Tensor, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """Return a new dense result of a call as it would lie in memory if all operands were dense."""
    if not has_strides((*args, *kwargs.values())) or result.numel() < 2:
        return result
    strides = Strides(tuple(result.shape), func, args, kwargs).find()
    last = sum((size - 1) * stride for size, stride in zip(result.shape, strides, strict=True))
    if strides == result.stride() or last != result.numel() - 1:
        return result
    empty = torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)
    return empty.copy_(result)
