"""Load and launch machine code by the driver of CUDA, on torch's stream and in its context."""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Sequence
from ctypes import c_char_p, pointer

from scorch._src.bounded import BoundedCache
from scorch._src.torch_internals import cuda_device, cuda_stream_of
from scorch.errors import KernelError

THREADS = 128  # in a block
MAX_BLOCKS = 1 << 20

MAX_FUNCTIONS = 4096  # which stay loaded

_functions: BoundedCache[tuple[bytes, str, int], int] = BoundedCache(MAX_FUNCTIONS)


@functools.cache
def driver() -> ctypes.CDLL:
    """Return the driver's library, which torch has loaded."""
    # A launch returns at once, so other threads of Python may as well wait for it.
    library = ctypes.PyDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    address, unsigned = ctypes.c_void_p, ctypes.c_uint
    library.cuLaunchKernel.argtypes = [address, *[unsigned] * 7, address, address, address]
    return library


def load(code: bytes, name: str, device: int) -> int:
    """Return the function ``name`` of machine code on a device whose context is current."""
    key = code, name, device
    known = _functions.get(key)
    if known is None:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(driver().cuModuleLoadData(ctypes.byref(module), code), "load a kernel")
        _check(driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), "find a kernel")
        known = _functions[key] = function.value or 0
    return known


def launch(function: int, slots: Sequence[int], threads: int, device: int) -> None:
    """Run a kernel with as many threads on the current stream of a device whose context is current."""
    block = struct.pack(f"={len(slots)}q", *slots)
    blocks = min(max(1, -(-threads // THREADS)), MAX_BLOCKS)
    status = driver().cuLaunchKernel(
        function, blocks, 1, 1, THREADS, 1, 1, 0, cuda_stream_of(device), pointer(c_char_p(block)), None
    )
    if status:
        _check(status, "launch a kernel")


def is_current(device: int) -> bool:
    """Check whether a device is the one that calls go to."""
    return bool(cuda_device() == device)


def _check(status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        said = text.value.decode() if text.value else f"status {status}"
        raise KernelError(f"the driver could not {what}: {said}")
