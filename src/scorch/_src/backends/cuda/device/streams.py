"""Streams and captured graphs: when the host may wait for a device, and for what it must."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Sequence

import torch

from scorch._src.backends.by_torch.rows import Tensor
from scorch._src.backends.routines import Routines
from scorch._src.backends.sort_entries import Sorted
from scorch._src.grad_state import outside_modes, untracked
from scorch._src.torch_internals import cuda_stream_of
from scorch.errors import DeviceError

MAX_FREE = 8  # memory of numbers that is free
FINITE = "whether all values are finite"
DIVISOR = "whether all values are finite and none is zero"
ANY_NONZERO = "whether a value is not zero"
PICKED = "the number of entries of selected rows"
# Looks at numbers, about a millisecond; beyond, the host sleeps between looks, which may last longer.
MAX_LOOKS = 20_000
LOOKS_AT_STREAM = 256  # looks at numbers for each at their stream, which takes ten times as long


def check_waiting(device: torch.device, what: str) -> None:
    """Raise while a CUDA graph is captured, in which the host cannot wait for the device."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise DeviceError(
            f"Scorch cannot wait for {what} while a CUDA graph is being captured; run the function once "
            "before the capture, and keep operations whose results have a new sparsity pattern out of it"
        )


def check_seeds(device: torch.device) -> None:
    """Raise while a CUDA graph is captured, whose replays would all have the same seeds."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise DeviceError(
            "dropout in attention and of edges draws a seed on the CPU, so that every replay of a CUDA graph "
            "would drop the same elements; capture the function with dropout 0, or call layer.eval() before"
        )


def settle(device: torch.device) -> None:
    """Wait for the current stream, so that arrays may be read on any other."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def is_done(device: torch.device) -> bool:
    """Check whether the current stream has nothing left to do; an error of the device is raised."""
    return device.type != "cuda" or torch.cuda.current_stream(device).query()


_free: dict[tuple[torch.device, int], list[Told]] = {}  # by device and the place of the last number
_pinned: list[Tensor] = []  # for ever: a kernel may write where nobody waits any more, after an error


class Told:
    """Numbers that a kernel writes for the host, the last one behind all others and at least 0.

    The host looks at them again and again: an event of CUDA wakes it many microseconds later.
    """

    def __init__(self, device: torch.device, count: int) -> None:
        self.device = device
        self.memory = torch.empty(count, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        _pinned.append(self.memory)
        self.address = self.memory.data_ptr()
        self.numbers = (ctypes.c_int64 * count).from_address(self.address)
        self.numbers[count - 1] = -1
        self.free = _free.setdefault((device, count - 1), [])

    def wait(self) -> list[int]:
        """Return the numbers once they are there; an error of the device is raised."""
        numbers = self.numbers
        last = len(numbers) - 1
        for _ in range(MAX_LOOKS):
            if numbers[last] >= 0:
                return self._taken()
        for look in itertools.count():
            if numbers[last] >= 0 or (look % LOOKS_AT_STREAM == 0 and is_done(self.device)):
                break
            time.sleep(0)
        return self._taken()

    def _taken(self) -> list[int]:
        """Return the numbers, and have others use the memory: nothing is written behind the last one."""
        found, last = self.numbers[:], len(self.numbers) - 1
        self.numbers[last] = -1
        if found[last] >= 0 and len(self.free) < MAX_FREE:
            self.free.append(self)
        return found


def told_on(device: torch.device, count: int) -> Told:
    """Return memory for as many numbers, of an earlier call if there is some: pinned memory takes long."""
    try:
        return _free[device, count - 1].pop()
    except (KeyError, IndexError):
        with untracked():
            return Told(device, count)


@outside_modes
def like_of(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return what ``torch.empty_like`` makes contiguous tensors like; it has the memory of one element."""
    return torch.empty((), dtype=dtype, device=device).expand(shape)


class Recorded:
    """The point of a stream up to which arrays were computed."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.cuda.current_device() if device.index is None else device.index
        self.stream = cuda_stream_of(self.device)
        self.event: torch.cuda.Event | None = torch.cuda.Event()
        self.event.record(torch.cuda.current_stream(self.device))

    def __call__(self) -> None:
        """Let the current stream wait for it; what is captured begins when all streams are done."""
        if self.event is None or cuda_stream_of(self.device) == self.stream:
            return
        if torch.cuda.is_current_stream_capturing():
            return
        if self.event.query():
            self.event = None
        else:
            torch.cuda.current_stream(self.device).wait_event(self.event)


class WaitingRoutines(Routines):
    """The routines in torch's own operations, with what they must wait for."""

    def check_waiting(self, device: torch.device, what: str) -> None:
        check_waiting(device, what)

    def check_seeds(self, device: torch.device) -> None:
        check_seeds(device)

    def settle(self, device: torch.device) -> None:
        settle(device)

    def record(self, device: torch.device) -> Recorded | None:
        return Recorded(device) if device.type == "cuda" else None

    def are_finite(self, arrays: Sequence[Tensor]) -> bool:
        check_waiting(arrays[0].device, FINITE)
        return super().are_finite(arrays)

    def ask_divisor(self, array: Tensor) -> Callable[[], bool]:
        check_waiting(array.device, DIVISOR)
        return super().ask_divisor(array)

    def ask_nonzero(self, array: Tensor) -> Callable[[], bool]:
        check_waiting(array.device, ANY_NONZERO)
        return super().ask_nonzero(array)

    def has_sorted_rows(self, pos: Tensor, crd: Tensor, size: int) -> bool:
        check_waiting(crd.device, "whether coordinates are sorted")
        return super().has_sorted_rows(pos, crd, size)

    def sort_entries(self, columns: Sequence[Tensor], sizes: Sequence[int]) -> Sorted | bool:
        check_waiting(columns[0].device, "the order of coordinates")
        return super().sort_entries(columns, sizes)

    def pick_rows(
        self, pos: Tensor, crd: Tensor, values: Tensor, picked: Tensor, from_end: bool = True
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        check_waiting(crd.device, PICKED)
        return super().pick_rows(pos, crd, values, picked, from_end)
