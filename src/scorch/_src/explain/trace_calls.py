"""Trace a function: its calls, their lines, and the kernels that ran in them.

Kernels emit events (``events``); a mode of torch sees the calls they are part of, and Python's frames show
which line of the user's they came from and the names of the tensors there.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from scorch._src import nn
from scorch._src.compile import recorder
from scorch._src.compile.lazy_tensor import LAZY_TYPES
from scorch._src.dataclass import dataclass
from scorch._src.distributed.row_sharded import RowSharded
from scorch._src.events import LISTENERS, Event
from scorch._src.storage.storage import Storage
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.torch_internals import tree_leaves

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
_SCORCH_FOLDER = str(Path(__file__).parents[2]) + os.sep
# Files whose calls are shown as the user's.
_SHOWN_AS_USERS = (os.path.dirname(nn.__file__) + os.sep, recorder.__file__)
_TORCH_FUNCTION_CODE: CodeType = SparseTensor.__torch_function__.__func__.__code__  # type: ignore[attr-defined]
MIN_SHOWN_SHARE = 0.01  # of the total time: shorter calls without a kernel are summed up, or left out
_HIDDEN_FUNCTIONS = {
    "__get__",
    "__set__",
    "dim",
    "size",
    "numel",
    "stride",
    "is_floating_point",
    "is_complex",
    "__len__",
}


@dataclass
class Call:
    """A call of the traced function, and what ran in it from ``start`` to ``end``."""

    name: str
    where: str
    line: str
    is_sparse: bool
    start: float = 0.0
    end: float = 0.0
    entry: FrameType | None = None  # of a function of Scorch's own
    operands: tuple[Storage, ...] = ()  # the sparse ones
    names: dict[str, Any] = field(default_factory=dict)  # the caller's tensors by its names
    events: list[Event] = field(default_factory=list)


@dataclass
class Trace:
    """All calls of one run of the function, and what it returned."""

    calls: list[Call]
    result: Any
    seconds: float

    def forget_tensors(self) -> None:
        """Release tensors, and keep times only."""
        self.result = None
        for call in self.calls:
            call.names.clear()
            call.operands = ()
            call.events = [replace(event, operands=(), result=None) for event in call.events]


class _CallTracer(TorchFunctionMode):
    """Trace calls of torch's functions, and the kernels that ran in them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.open: Call | None = None
        self.thread = threading.get_ident()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        caller = sys._getframe(1)
        if getattr(func, "__name__", "") in _HIDDEN_FUNCTIONS or self.open is not None:
            return func(*args, **(kwargs or {}))
        if _is_ours(caller):
            return self._call_inside(caller, func, args, kwargs or {})
        operands = tree_leaves((args, kwargs))
        leaves = [leaf for leaf in operands if isinstance(leaf, torch.Tensor)]
        is_sparse = any(isinstance(leaf, SparseTensor | RowSharded) for leaf in operands)
        is_torch_sparse = not is_sparse and any(leaf.layout != torch.strided for leaf in leaves)
        name = _function_name(func) + (" of torch.sparse" if is_torch_sparse else "")
        call = self.open = _make_call(name, is_sparse, _find_place(caller).user)
        call.operands = tuple(leaf.storage for leaf in leaves if isinstance(leaf, SparseTensor))
        call.start = time.perf_counter()
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            call.end = time.perf_counter()
            self.open = None
        if call.events or _has_tensor(result):
            call.is_sparse |= any(isinstance(leaf, SparseTensor) for leaf in tree_leaves(result))
            self.calls.append(call)
        return result

    def _call_inside(
        self, caller: FrameType, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a function of torch that one of Scorch's calls: its time counts for the latter."""
        place = _find_place(caller)
        last = self._last_of(place)
        call = last or _make_call(place.function_name or _function_name(func), True, place.user)
        if last is None:
            call.start, call.entry = time.perf_counter(), place.function
            self.calls.append(call)
        try:
            result = func(*args, **kwargs)
        finally:
            call.end = time.perf_counter()
        is_query = last is None and not call.events and not _has_tensor(result)
        if is_query and self.calls[-1] is call:  # such as is_inference, which computes nothing
            self.calls.pop()
        return result

    def _last_of(self, place: _Place) -> Call | None:
        """Return the last call, if it is that of the same function."""
        last = self.calls[-1] if self.calls else None
        frame = None if last is None else last.entry
        return last if frame is not None and frame in (place.entry, place.function) else None

    def on_event(self, event: Event) -> None:
        if threading.get_ident() != self.thread:
            return
        call = self.open
        if call is None:
            place = _find_place(sys._getframe(1))
            call = self._last_of(place)
            if call is None:
                call = _make_call("", True, place.user)
                call.start = event.start
                self.calls.append(call)
            if not call.events:  # a layer is shown by its own name, whatever it calls
                call.name = "fused calls" if event.kind == "fused" else place.name
                call.entry = place.entry
            call.end = event.end
        call.events.append(event)


def trace(call: Callable[[], Any], with_calls: bool) -> Trace:
    """Trace what ``call`` does; without ``with_calls`` only its kernels."""
    tracer = _CallTracer()
    LISTENERS.append(tracer.on_event)
    start = time.perf_counter()
    try:
        with tracer if with_calls else contextlib.nullcontext():
            result = call()
    finally:
        LISTENERS.remove(tracer.on_event)
    seconds = time.perf_counter() - start
    calls = [call for call in tracer.calls if not _is_negligible(call, seconds)]
    for traced_call in calls:
        traced_call.entry = None
    return Trace(calls, result, seconds)


_TRACE_CODE: CodeType = trace.__code__


def _has_tensor(result: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(result))


def _is_negligible(call: Call, seconds: float) -> bool:
    """Whether a function of Scorch's own ran no kernel and took next to no time."""
    is_own = call.entry is not None and not call.events
    return is_own and call.end - call.start < MIN_SHOWN_SHARE * seconds


def _is_ours(caller: FrameType) -> bool:
    """Whether a call comes from Scorch's own functions, other than layers."""
    path = caller.f_code.co_filename
    is_shown = path.startswith(_SHOWN_AS_USERS) or caller.f_code is _TRACE_CODE
    return path.startswith(_SCORCH_FOLDER) and not is_shown


@dataclass(frozen=True)
class _Place:
    """Where something ran: the call of Scorch and its name, and the user's function around it.

    The call is the innermost method of a layer, such as ``TopKAutoencoder.decode``, or the outermost function
    of Scorch without one; ``function`` is the outermost function that is no layer's.
    """

    entry: FrameType | None
    name: str
    function: FrameType | None
    function_name: str
    user: FrameType | None


def _find_place(frame: FrameType | None) -> _Place:
    """Find where ``frame`` is, as the user sees it."""
    ours: list[FrameType] = []
    while frame is not None and frame.f_code is not _TRACE_CODE:
        path = frame.f_code.co_filename
        if path.startswith(_SCORCH_FOLDER):
            ours.append(frame)
        elif not path.startswith(_TORCH_FOLDER):
            break
        frame = frame.f_back
    user = None if frame is None or frame.f_code is _TRACE_CODE else frame
    ours = [frame for frame in ours if frame.f_code.co_filename != __file__]
    layer = next((number for number, frame in enumerate(ours) if _is_method_of_layer(frame)), None)
    inside = [frame for frame in ours[:layer] if not frame.f_code.co_filename.startswith(_SHOWN_AS_USERS)]
    called = ours if layer is None else [ours[layer]]
    entry, function = (frames[-1] if frames else None for frames in (called, inside))
    return _Place(entry, _name_of(called), function, _name_of(inside), user)


def _name_of(frames: list[FrameType]) -> str:
    """Return the name of the outermost function that has one: a wrapper of another has none of its own."""
    for frame in reversed(frames):
        if frame.f_code is _TORCH_FUNCTION_CODE:
            return _function_name(frame.f_locals.get("func"))
        name = _qualified_name(frame)
        if "<locals>" not in name:
            return name.removesuffix(".forward")
    return ""


def _is_method_of_layer(frame: FrameType) -> bool:
    """Whether a frame is a public method of a layer of Scorch's, called from outside."""
    code = frame.f_code
    if not code.co_argcount or code.co_name.startswith("_"):
        return False
    return code.co_filename.startswith(_SHOWN_AS_USERS) and isinstance(
        frame.f_locals.get(code.co_varnames[0]), torch.nn.Module
    )


def _qualified_name(frame: FrameType) -> str:
    """Return the name of the running function, with its class."""
    if sys.version_info >= (3, 11):
        return frame.f_code.co_qualname
    return search_qualified_name(frame)


def search_qualified_name(frame: FrameType) -> str:
    """Return the same for Python 3.10, where code does not know its class, but its first argument does."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    for owner in (first if isinstance(first, type) else type(first)).__mro__:
        if _has_code(vars(owner).get(code.co_name), code):
            return f"{owner.__qualname__}.{code.co_name}"
    is_global = _has_code(frame.f_globals.get(code.co_name), code)
    return code.co_name if is_global else f"<locals>.{code.co_name}"


def _has_code(member: Any, code: CodeType) -> bool:
    function = getattr(member, "__func__", member)
    return callable(function) and getattr(inspect.unwrap(function), "__code__", None) is code


def _function_name(function: Any) -> str:
    return str(getattr(function, "__name__", function)).strip("_")


def _make_call(name: str, is_sparse: bool, user: FrameType | None) -> Call:
    if user is None:
        return Call(name, "", "", is_sparse)
    path, number = user.f_code.co_filename, user.f_lineno
    line = linecache.getline(path, number).strip()
    return Call(name, f"{os.path.basename(path)}:{number}", line, is_sparse, names=_names(user))


def _names(frame: FrameType) -> dict[str, Any]:
    """Return the tensors of a function by their names: its variables, and attributes of its ``self``."""
    variables = dict(frame.f_locals)
    owner = variables.pop("self", None)
    if isinstance(owner, torch.nn.Module):
        attributes = {**owner._parameters, **owner._buffers, **vars(owner)}
        variables.update({f"self.{name}": value for name, value in attributes.items()})
    return {
        name: unwrap(value)
        for name, value in variables.items()
        if isinstance(value, torch.Tensor) and type(value) not in LAZY_TYPES
    }


def unwrap(value: Any) -> Any:
    """Return the storage of a sparse tensor; any other value as it is."""
    return value.storage if isinstance(value, SparseTensor) else value
