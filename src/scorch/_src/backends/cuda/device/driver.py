"""Load and launch machine code by the driver of CUDA, on torch's stream and in its context."""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from scorch._src.backends.print.cuda import THREADS as THREADS
from scorch._src.bounded import BoundedCache
from scorch._src.torch_internals import cuda_device, cuda_stream_of
from scorch.errors import KernelError

MAX_BLOCKS = (1 << 31) - 1
ALIGNMENT = 16  # bytes, of what a thread reads or writes at once

MAX_MODULES = 4096  # which stay loaded
MAX_STREAMS = 64  # of which a launcher knows how to launch on them
USUAL_SHARED_MEMORY = 48 << 10  # bytes that a kernel has without asking
MAX_SLOTS = 500  # of 8 bytes each: a kernel takes 4 KB of arguments

# Numbers of attributes, as the driver has them.
MAX_DYNAMIC_SHARED_SIZE, NUM_REGISTERS, LOCAL_SIZE, SHARED_SIZE = 8, 4, 3, 1  # of functions
MAX_SHARED_MEMORY, MULTIPROCESSORS, MEMORY_CLOCK, BUS_WIDTH = 97, 16, 36, 37  # of devices

NO_CONTEXT = 201  # in a thread where CUDA's runtime has done nothing so far

HERE = nullcontext()

_modules: BoundedCache[tuple[bytes, int], ctypes.c_void_p] = BoundedCache(MAX_MODULES)


@functools.cache
def driver() -> ctypes.CDLL:
    """Return the driver's library, which torch has loaded."""
    # A launch returns at once, so other threads of Python may as well wait for it.
    return ctypes.PyDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def load(code: bytes, name: str, device: int) -> ctypes.c_void_p:
    """Return the function ``name`` of machine code on a device whose context is current."""
    key = code, device
    module, function = _modules.get(key), ctypes.c_void_p()
    if module is None:
        module = ctypes.c_void_p()
        _call("load a kernel", device, driver().cuModuleLoadData, ctypes.byref(module), code)
        _modules[key] = module
    given = ctypes.byref(function), module, name.encode()
    _call("find a kernel", device, driver().cuModuleGetFunction, *given)
    return function


class _Block(threading.local):
    """The arguments of a launch, for each thread of Python: kernels have copied them when it returns."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(8 * MAX_SLOTS)
        self.pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self.memory))
        self.both = self.memory, ctypes.c_void_p(ctypes.addressof(self.pointers))
        self.streams: dict[int, ctypes.c_void_p] = {}
        self.launch = driver().cuLaunchKernel


@functools.cache
def _arguments() -> _Block:
    return _Block()


class Slots(tuple[int, ...]):
    """The arguments of several launches, packed once."""

    @functools.cached_property
    def pointers(self) -> Any:
        self.memory = ctypes.create_string_buffer(_layout(len(self)).pack(*self))
        return (ctypes.c_void_p * 1)(ctypes.addressof(self.memory))


def launch(function: ctypes.c_void_p, slots: Sequence[int], threads: int, device: int) -> None:
    """Run a kernel with as many threads on the current stream of a device whose context is current."""
    _launch(function, slots, (blocks_for(threads), THREADS, 0), device)


def _launch(function: ctypes.c_void_p, slots: Sequence[int], grid: tuple[int, int, int], device: int) -> None:
    """Run a kernel with a number of blocks, of threads in each, and of bytes of shared memory."""
    blocks, threads, shared = grid
    block = _arguments()
    pointers = block.pointers
    if isinstance(slots, Slots):
        pointers = slots.pointers
    else:
        _layout(len(slots)).pack_into(block.memory, 0, *slots)
    number = cuda_stream_of(device)
    stream = block.streams.get(number)
    if stream is None:
        stream = block.streams[number] = ctypes.c_void_p(number)
    given = function, blocks, 1, 1, threads, 1, 1, shared, stream, pointers, None
    status = block.launch(*given)
    if status:
        _call_again(status, "launch a kernel", device, block.launch, *given)


class _Shape(ctypes.Structure):
    """How a kernel is launched, as ``cuLaunchKernelEx`` takes it: one argument costs less than ten."""

    _fields_ = (
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attributes_count", ctypes.c_uint),
    )


def launcher(grids: Sequence[tuple[Any, int]], slots: int, device: int) -> Callable[..., None]:
    """Return what runs kernels one after the other on a device whose context is current.

    ``grids`` are their functions and blocks; all take the same slots, of which there are as many.
    """
    block, pack, stream_of = _arguments(), _layout(slots).pack_into, cuda_stream_of
    run, shapes = driver().cuLaunchKernelEx, BoundedCache[int, Any](MAX_STREAMS)

    def launch(*slots: int) -> None:
        memory, pointers = block.both
        pack(memory, 0, *slots)
        stream = stream_of(device)
        known = shapes.get(stream)
        if known is None:
            known = shapes[stream] = [
                (ctypes.byref(_Shape((blocks, 1, 1), (THREADS, 1, 1), 0, stream)), function)
                for function, blocks in grids
            ]
        for shape, function in known:
            status = run(shape, function, pointers, None)
            if status:
                _call_again(status, "launch a kernel", device, run, shape, function, pointers, None)

    return launch


def blocks_for(threads: int) -> int:
    """Return the blocks of a grid with as many threads."""
    blocks = -(-threads // THREADS) or 1
    assert blocks <= MAX_BLOCKS, "a kernel needs more threads than a device numbers"
    return blocks


@functools.cache
def _layout(slots: int) -> struct.Struct:
    assert slots <= MAX_SLOTS, "a kernel takes too many arguments"
    return struct.Struct(f"={slots}q")


def launch_blocks(
    function: ctypes.c_void_p, slots: Sequence[int], blocks: int, threads: int, shared: int, device: int
) -> None:
    """Run a kernel whose blocks have ``shared`` bytes of memory."""
    allow_shared_memory(function, shared, device)
    _launch(function, slots, (blocks, threads, shared), device)


def allow_shared_memory(function: ctypes.c_void_p, shared: int, device: int) -> None:
    """Let a kernel be launched with as many bytes of memory for a block."""
    if shared > USUAL_SHARED_MEMORY:
        given = function, MAX_DYNAMIC_SHARED_SIZE, shared
        _call("give a kernel its shared memory", device, driver().cuFuncSetAttribute, *given)


def shared_memory(device: int) -> int:
    """Return the bytes of shared memory that a block may have."""
    return _device_attribute(MAX_SHARED_MEMORY, device)


def bandwidth(device: int) -> float:
    """Return the bytes a second that the memory of a device moves at most; 0 where it does not say."""
    kilohertz, bits = (_device_attribute(attribute, device) for attribute in (MEMORY_CLOCK, BUS_WIDTH))
    return 2 * 1000.0 * kilohertz * bits / 8  # twice in each tick


def blocks_at_once(function: ctypes.c_void_p, threads: int, shared: int, device: int) -> int:
    """Return how many blocks of a function a device runs at once."""
    number = ctypes.c_int()
    ask = driver().cuOccupancyMaxActiveBlocksPerMultiprocessor
    given = ctypes.byref(number), function, threads, ctypes.c_size_t(shared)
    _call("describe a kernel", device, ask, *given)
    return number.value * _device_attribute(MULTIPROCESSORS, device)


@functools.cache
def _device_attribute(attribute: int, device: int) -> int:
    number = ctypes.c_int()
    given = ctypes.byref(number), attribute, device
    _call("describe a device", device, driver().cuDeviceGetAttribute, *given)
    return number.value


class FunctionFacts(NamedTuple):
    """What a thread of a function takes, and what bytes of shared memory a block."""

    registers: int
    local: int  # bytes
    shared: int


def function_facts(function: ctypes.c_void_p, device: int) -> FunctionFacts:
    """Return what a function takes."""
    found = []
    for attribute in (NUM_REGISTERS, LOCAL_SIZE, SHARED_SIZE):
        number = ctypes.c_int()
        given = ctypes.byref(number), attribute, function
        _call("describe a kernel", device, driver().cuFuncGetAttribute, *given)
        found.append(number.value)
    return FunctionFacts(*found)


def is_current(device: int) -> bool:
    """Check whether a device is the one that calls go to."""
    return bool(cuda_device() == device)


def in_context(device: torch.device) -> AbstractContextManager[Any]:
    """Make ``device`` the current one, which it usually is."""
    is_here = device.index is None or is_current(device.index)
    return HERE if is_here else torch.cuda.device(device)


def _call(what: str, device: int, function: Callable[..., int], *given: Any) -> None:
    """Call a function of the driver for a device that is the current one."""
    status = function(*given)
    if status:
        _call_again(status, what, device, function, *given)


def _call_again(status: int, what: str, device: int, function: Callable[..., int], *given: Any) -> None:
    """Raise the error of a call; but where it lacked a context, make that current and repeat the call.

    A thread has none before it first calls CUDA's runtime, and memory that torch has at hand needs no call.
    """
    if status == NO_CONTEXT:
        context = ctypes.c_void_p(_primary_context(device))
        _check(driver().cuCtxSetCurrent(context), "use a device in a thread")
        status = function(*given)
    _check(status, what)


@functools.cache
def _primary_context(device: int) -> int | None:
    """Return the context that CUDA's runtime, and with it torch, has on a device."""
    number, context = ctypes.c_int(), ctypes.c_void_p()
    _check(driver().cuDeviceGet(ctypes.byref(number), device), "find a device")
    _check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), number), "use a device")
    return context.value


def _check(status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(status, ctypes.byref(text))
        said = text.value.decode() if text.value else f"status {status}"
        raise KernelError(f"the driver could not {what}: {said}")
