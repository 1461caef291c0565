"""Load and launch machine code by the driver of CUDA, on torch's stream and in its context."""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from scorch._src.bounded import BoundedCache
from scorch.errors import KernelError

THREADS = 128  # in a block
MAX_BLOCKS = 1 << 20

MAX_FUNCTIONS = 4096  # which stay loaded

_functions: BoundedCache[tuple[bytes, str, int], int] = BoundedCache(MAX_FUNCTIONS)


@functools.cache
def driver() -> ctypes.CDLL:
    """Return the driver's library, which torch has loaded."""
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    pointer, unsigned = ctypes.c_void_p, ctypes.c_uint
    library.cuLaunchKernel.argtypes = [pointer, *[unsigned] * 7, pointer, pointer, pointer]
    return library


def load(code: bytes, name: str, device: torch.device) -> int:
    """Return the function ``name`` of machine code on ``device``, whose context is current."""
    key = code, name, device.index or 0
    known = _functions.get(key)
    if known is None:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver().cuModuleLoadData(ctypes.byref(module), code), "load a kernel")
        _check(driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "find a kernel")
        known = _functions[key] = function.value or 0
    return known


def launch(function: int, slots: Sequence[int], threads: int, device: torch.device) -> None:
    """Run a kernel with as many threads on torch's current stream, in the context of ``device``."""
    block = struct.pack(f"={len(slots)}q", *slots)
    arguments = ctypes.pointer(ctypes.c_char_p(block))
    blocks = min(max(1, -(-threads // THREADS)), MAX_BLOCKS)
    stream = torch.cuda.current_stream(device).cuda_stream
    status = driver().cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, arguments, None)
    _check(status, "launch a kernel")


@contextmanager
def in_context(device: torch.device) -> Iterator[None]:
    """Make ``device`` the current one; the usual case, in which it is, takes the least."""
    if device.index == torch.cuda.current_device():
        yield
    else:
        with torch.cuda.device(device):
            yield


def _check(status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        said = text.value.decode() if text.value else f"status {status}"
        raise KernelError(f"the driver could not {what}: {said}")
