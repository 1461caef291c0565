"""Calling a kernel at the lowest cost Python allows.

Every kernel is ``long long kernel(long long *args)``: pointers and sizes go in as 64-bit integers, and a
kernel may write results, such as the address of an array it has allocated, back into the slots. A small
builtin function written in C, compiled like any kernel, unpacks the integers and lets other Python threads
run meanwhile. It includes no ``Python.h``, which is often not installed: the few functions it needs have been
stable since Python 3.7. Where it cannot be compiled, ctypes does the same more slowly.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal

from scorch._src.backends.cpu import jit
from scorch._src.dataclass import dataclass
from scorch.errors import CompilerNotFoundError

_TRAMPOLINE = jit.read_source("trampoline.c")
SOURCES = (_TRAMPOLINE,)
_METH_FASTCALL = 0x0080


@dataclass(frozen=True)
class Caller:
    """Two ways to call the kernel at an address; both release the interpreter lock.

    ``call(address, *args)`` returns what the kernel returns. ``call_back(address, args)`` also replaces
    the items of the list ``args`` by what the kernel left in their slots.
    """

    call: Callable[..., int]
    call_back: Callable[[int, list[int]], int]
    kind: Literal["trampoline", "ctypes"]


class _MethodDef(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_lock = threading.Lock()
_caller: Caller | None = None


def make_caller() -> Caller:
    """Return the fastest way to call kernels in this Python; it is created once."""
    global _caller
    if _caller is None:
        with _lock:
            if _caller is None:
                _caller = _trampoline() or _through_ctypes()
    return _caller


def _trampoline() -> Caller | None:
    if sys.implementation.name != "cpython" or "t" in getattr(sys, "abiflags", ""):  # without a global lock
        return None
    try:
        library = jit.find_library(_TRAMPOLINE, "the function that calls kernels")
        if library is None:
            return None
        call = builtin(b"call", library.address("scorch_call"))
        call_back = builtin(b"call_back", library.address("scorch_call_back"))
        return Caller(call, call_back, "trampoline")
    except CompilerNotFoundError:
        raise
    except Exception:  # whatever is unusual about this Python, ctypes still works
        return None


def builtin(name: bytes, address: int) -> Callable[..., Any]:
    """Wrap the C function at ``address``, which takes arguments as ``METH_FASTCALL`` does, as a builtin."""
    return bound_builtin(name, address)(None)


def bound_builtin(name: bytes, address: int) -> Callable[[Any], Callable[..., Any]]:
    """Return what wraps the C function at ``address`` as builtins, each bound to a first argument."""
    definition = _MethodDef(name, address, _METH_FASTCALL, None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))  # for ever: a builtin may outlive this module
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )
    return lambda bound: make(ctypes.addressof(definition), bound, None)


def _through_ctypes() -> Caller:
    kernel_type = ctypes.CFUNCTYPE(ctypes.c_longlong, ctypes.c_void_p)

    @functools.lru_cache(maxsize=4096)
    def kernel_at(address: int) -> Callable[[Any], int]:
        if not address:
            raise ValueError("the address of a kernel is 0")
        return kernel_type(address)

    def call(address: int, *args: int) -> int:
        return kernel_at(address)((ctypes.c_longlong * len(args))(*args))

    def call_back(address: int, args: list[int]) -> int:
        slots = (ctypes.c_longlong * len(args))(*args)
        status = kernel_at(address)(slots)
        args[:] = slots
        return status

    return Caller(call, call_back, "ctypes")
