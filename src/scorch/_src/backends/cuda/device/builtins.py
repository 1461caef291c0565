"""Launches by a builtin of C, of one kernel or of several in turn: ``c/launch.c``.

A thread compiles it, where there is a C compiler, once it is asked for; until then, and without a compiler,
launches go through ctypes, a few microseconds slower.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from scorch._src.backends.cpu import invoke, jit, launch, toolchain
from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.device.kernel import LAUNCHES, CudaKernel, Launch, read_text
from scorch._src.backends.launcher import address_of
from scorch._src.torch_internals import cuda_stream_of

MAX_LISTED = 512  # slots of several launches
STREAM_OF = 6  # which pointer of torch's table returns the current stream
CUDA = 2  # devices of this kind, as DLPack numbers them

SOURCES = (jit.read_source("launch_types.c") + read_text("launch.c"),)


class Builtins(NamedTuple):
    """``launch`` allocates a result and launches a kernel; ``launch_all`` launches several."""

    launch: Callable[..., Any]
    launch_all: Callable[..., Any]


class Builtin:
    """The builtins, which are not there at first."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._function: Builtins | None = None

    def find(self) -> Builtins | None:
        """Return the builtins if they are there; otherwise have a thread compile them."""
        if self._thread is None:
            work = functools.partial(contextvars.copy_context().run, self._make)
            self._thread = threading.Thread(target=work, name="compile the builtin of launches", daemon=False)
            self._thread.start()
        return None if self._thread.is_alive() else self._function

    def _make(self) -> None:
        with contextlib.suppress(Exception):  # whatever is unusual here, ctypes still works
            self._function = make_builtin()


def make_builtin() -> Builtins | None:
    """Compile and load the builtins; None where this machine cannot have them."""
    table = launch.exchange_table() if toolchain.has_compiler() else None
    if table is None:
        return None
    library = jit.find_library(*SOURCES, "the function that launches kernels")
    if library is None:
        return None
    invoke.builtin(b"set_exchange", library.address("scorch_set_exchange"))(table, None)
    names = ("launch", "launch_all")
    return Builtins(*(invoke.builtin(name.encode(), library.address(f"scorch_{name}")) for name in names))


BUILTIN = Builtin()


def find_builtin(device: torch.device) -> Callable[..., Any] | None:
    """Return the builtin that launches a kernel on a device, if it is there already."""
    found = _find_builtins(device)
    return None if found is None else found.launch


def find_launches(device: torch.device) -> Callable[..., Any] | None:
    """Return the builtin that launches several kernels on a device, if it is there already."""
    found = _find_builtins(device)
    return None if found is None else found.launch_all


def _find_builtins(device: torch.device) -> Builtins | None:
    if torch.cuda.is_current_stream_capturing():
        return None
    found = BUILTIN.find()
    return found if found is not None and _knows_streams(device.index) else None


@functools.cache
def _knows_streams(device: int) -> bool:
    """Check that torch's table returns the stream that torch itself does."""
    table = launch.exchange_table()
    if table is None:
        return False
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[STREAM_OF]
    stream_of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(address or 0)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        found = ctypes.c_void_p()
        status = stream_of(CUDA, device, ctypes.addressof(found))
        return bool(status == 0 and found.value == cuda_stream_of(device))


def address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Address(NamedTuple):
    """A slot that is the address of an argument, and as many bytes more."""

    argument: int
    offset: int = 0


Slot = int | Address


class LaunchList:
    """Launches of the functions of a kernel, one after another, each with the slots of one of several sets.

    It is called with an address, then tensors, which ``Address`` counts.
    """

    def __init__(
        self,
        kernel: CudaKernel,
        device: torch.device,
        sets: Sequence[Sequence[Slot]],
        launches: Sequence[tuple[Launch, int]],
    ) -> None:
        self.kernel, self.device, self.launches = kernel, device, launches
        self._width = len(sets[0])
        flat = [slot for slots in sets for slot in slots]
        self._slots = [slot.offset if isinstance(slot, Address) else slot for slot in flat]
        self._addresses = [(at, slot.argument) for at, slot in enumerate(flat) if isinstance(slot, Address)]
        self.builtin: Callable[..., Any] | None = None
        self._packed = b""

    def bind(self, builtin: Callable[..., Any] | None, place: tuple[int, int]) -> None:
        """Have a builtin, if there is one, launch all on a device of this kind and number."""
        if builtin is not None and len(self._slots) <= MAX_LISTED:
            self._packed = self._pack(place)
            self.builtin = builtin

    def __call__(self, address: int, *tensors: torch.Tensor) -> None:
        short = self.builtin
        if short is None or LAUNCHES or short(self._packed, address, *tensors) is None:
            self._launch_each([address, *map(address_of, tensors)])

    def _launch_each(self, addresses: Sequence[int]) -> None:
        slots, width, device = [*self._slots], self._width, self.device.index
        for at, argument in self._addresses:
            slots[at] += addresses[argument]
        sets = [driver.Slots(slots[start : start + width]) for start in range(0, len(slots), width)]
        for (name, blocks, threads, shared), number in self.launches:
            self.kernel.launch_blocks(name, sets[number], blocks, threads, shared, device)

    def _pack(self, place: tuple[int, int]) -> bytes:
        library = driver.driver()
        pointers = [address(each) for each in (library.cuLaunchKernelEx, library.cuCtxGetDevice)]
        numbers = [
            *pointers,
            *place,
            len(self._slots),
            len(self._addresses),
            len(self.launches),
            *self._slots,
        ]
        for pair in self._addresses:
            numbers += pair
        for (name, blocks, threads, shared), number in self.launches:
            function = self.kernel.function(name, place[1])
            driver.allow_shared_memory(function, shared, place[1])
            numbers += [address(function), blocks, threads, shared, self._width * number]
        return launch.pack(numbers)
