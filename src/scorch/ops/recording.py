"""Calls on sparse tensors that are recorded instead of run, so that several become one kernel.

Inside ``scorch.compile`` a call that ``ops.recorded`` has a rule for gives a ``Later``: a tensor that knows
its shape and dtype, and the steps that compute it. When its numbers are asked for, by a call without a rule
or because it is returned, all steps that lead to it are joined (``compiler.fuse``). What cannot be joined is
run call by call, as it would have been outside. A result is computed from the tensors as they were when
the call was made: before anything is changed in place, all that was recorded is computed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

from scorch.ops.fused import Recorded, compute
from scorch.ops.later import LATER, METADATA, Later, Source, SparseLater, Value, computed, mapped, version_of
from scorch.tensor.sparse_tensor import SparseTensor

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}  # what each function of torch records; ``ops.recorded`` fills it


class _Active(threading.local):
    recorder: Recorder | None = None


_active = _Active()


def records(*functions: Any) -> Callable[[Rule], Rule]:
    """Register the rule of torch functions: it returns a ``Value``, or None for what it does not take."""

    def register(rule: Rule) -> Rule:
        for function in functions:
            RULES[function] = rule
        return rule

    return register


def recorder() -> Recorder | None:
    """The one that is recording in this thread, if any is."""
    return _active.recorder


class Recorder(TorchFunctionMode):
    """Records calls that have a rule, computes what others need, and runs those."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[int, Source] = {}
        self.names: dict[tuple[int, tuple[int, ...] | None], str] = {}
        self.counter = 0
        self.pending: list[weakref.ref[Value]] = []
        self.groups: list[Recorded] = []
        self.alone: list[str] = []
        self.sees_sparse = False

    def __enter__(self) -> Any:
        self.before = recorder()
        _active.recorder = self
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        _active.recorder = self.before
        super().__exit__(*args)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in METADATA:
            return func(*args, **kwargs)
        rule = RULES.get(func)
        if rule is not None:
            found = self.record(rule, func, args, kwargs)
            if found is not None:
                return found
        return self.run(func, args, kwargs)

    def called(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A function of Scorch's own: recorded, or run."""
        rule = RULES.get(func)
        with Paused():
            found = None if rule is None else self.record(rule, func, args, kwargs)
            return self.run(func, args, kwargs) if found is None else found

    def record(self, rule: Rule, func: Any, args: Any, kwargs: dict[str, Any]) -> Later | None:
        if torch.is_autocast_enabled("cpu"):
            return None
        value = rule(self, *args, **kwargs)
        if value is None:
            return None
        self.sees_sparse = True
        value.recorder = self
        if value.call[0] is None:
            value.call = (func, self.kept(args), self.kept(kwargs))
        self.pending.append(weakref.ref(value))
        return SparseLater(value) if value.pattern is not None else Later(value)

    def kept(self, tree: Any) -> Any:
        """The arguments of a call, for running it later."""
        return mapped(self._kept, tree)

    def _kept(self, item: Any) -> Any:
        if type(item) in LATER:
            return item._value
        return self.source(item) if isinstance(item, torch.Tensor) else item

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A call that is not recorded, once what it needs is computed."""
        if _changes(func, args, kwargs):
            self.compute([value for value in (ref() for ref in self.pending) if value is not None])
        args, kwargs = computed(args), computed(kwargs)
        if (self.pending or not self.sees_sparse) and (_any_sparse(args) or _any_sparse(kwargs)):
            self.sees_sparse = True
            self.alone.append(getattr(func, "__name__", str(func)))
        return func(*args, **kwargs)

    # what rules ask ----------------------------------------------------------------------------------

    def source(self, tensor: torch.Tensor) -> Source:
        """``tensor`` as it is now."""
        found = self.sources.get(id(tensor))
        if found is None or found.version != version_of(tensor):
            found = self.sources[id(tensor)] = Source(tensor, version_of(tensor))
        return found

    def name(self, source: Source, dims: tuple[int, ...] | None) -> str:
        """What a source is called in steps, by the dimensions that it is read with."""
        key = (id(source), dims)
        if key not in self.names:
            self.names[key] = self.fresh("A")
        return self.names[key]

    def fresh(self, letter: str) -> str:
        """A name that no other value or index of this run has."""
        self.counter += 1
        return f"{letter}{self.counter}"

    def compute(self, values: Sequence[Value]) -> None:
        """Compute ``values``, joining what can be joined."""
        left = [value for value in values if value.result is None]
        while left:
            first = left[0]
            together = [
                value for value in left if value.walked is first.walked and value.learns == first.learns
            ]
            with Paused(), torch.set_grad_enabled(first.learns):
                for value in together:
                    _check(value)
                self.groups += compute(together)
            left = [value for value in left if value.result is None]


class Paused:
    """Nothing is recorded inside."""

    def __enter__(self) -> None:
        self.recorder = recorder()
        _active.recorder = None
        self.mode = None
        if torch._C._len_torch_function_stack() > 0:
            self.mode = _pop_mode_temporarily()
            self.mode.__enter__()

    def __exit__(self, *args: Any) -> None:
        if self.mode is not None:
            self.mode.__exit__(*args)
        _active.recorder = self.recorder


def _check(value: Value) -> None:
    left: list[Value | Source] = [value]
    seen = set()
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Source):
            item.check()
        elif item.result is None:
            left += item.parents.values()


def _changes(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call may change a tensor in place."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in ("__setitem__", "__set__", "__delitem__") or (
            name.startswith("__i") and name not in ("__index__", "__int__", "__invert__")
        )
    if name.endswith("_") or kwargs.get("out") is not None:
        return True
    return kwargs.get("inplace", False) is True or any(argument is True for argument in args)


def _any_sparse(tree: Any) -> bool:
    if isinstance(tree, SparseTensor):
        return True
    if isinstance(tree, dict):
        return any(map(_any_sparse, tree.values()))
    return isinstance(tree, list | tuple) and any(map(_any_sparse, tree))
