"""Arrays that check every access, for the interpreter.

A ``Buffer`` knows its length, which of its elements have been written, whether it was freed, and, in
a parallel loop, which turn wrote an element: two turns that touch the same element would race on
real threads, unless both add to it atomically.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scorch._src.loops.types import BFLOAT16, Type
from scorch._src.loops.values import wrap


class BoundsError(AssertionError):
    """A kernel touched memory it should not have."""


ATOMICALLY = "an atomic addition"  # in place of the turn that wrote an element

STORED = {"bool": "bool", "float16": "uint16", "bfloat16": "uint16"}


def storage(element: Type) -> np.dtype[Any]:
    """The numpy dtype in which elements lie in memory; half floats are kept as bit patterns."""
    return np.dtype(STORED.get(element.name, element.name))


class Memory:
    """All buffers of a run; pass the same one to several runs that hand each other arrays."""

    def __init__(self) -> None:
        self.buffers: dict[int, Buffer] = {}  # by address
        self.given: dict[int, Buffer] = {}  # by id of the numpy array the caller has seen
        self.turn: Hashable = None  # which turn of which parallel loop is running
        self.loop = 0  # the parallel loop that is running, 0 if none
        self.loops = 0  # how many have begun
        self.next_address = 4096
        self.alive = self.peak = 0  # bytes that are allocated, and the most that ever were

    def allocate(self, name: str, element: Type, count: int, zero: bool) -> Buffer:
        if count < 0:
            raise BoundsError(f"{name} is allocated with {count} elements")
        try:
            data = np.zeros(count, storage(element))
        except (MemoryError, ValueError):
            raise OutOfMemory from None
        if not zero:
            poison = np.nan if element.kind in ("float", "complex") and element.bytes > 2 else None
            data.fill(poison if poison is not None else _smallest(data.dtype))
        buffer = Buffer(self, name, element, data, None if zero else bytearray(count))
        buffer.is_heap = True
        buffer.address = self.next_address
        self.next_address += 4096
        self.buffers[buffer.address] = buffer
        self.alive += data.nbytes
        self.peak = max(self.peak, self.alive)
        return buffer

    def from_slot(self, name: str, element: Type, data: Any) -> Buffer:
        """The buffer behind an array that the caller passes in."""
        if not isinstance(data, np.ndarray):
            raise BoundsError(f"slot {name} should hold an array, not {data!r}")
        if id(data) in self.given:
            return self.given[id(data)].renamed(name)
        want = storage(element)
        view = data.reshape(-1)
        if view.size and not np.shares_memory(view, data):
            raise BoundsError(f"slot {name} is not contiguous")
        if view.dtype != want and {view.dtype.name, want.name} in ({"bool", "uint8"}, {"float16", "uint16"}):
            view = view.view(want)
        if view.dtype != want:
            raise BoundsError(f"slot {name} holds {data.dtype} elements where {want} is expected")
        return Buffer(self, name, element, view, None)

    def find(self, name: str, element: Type, address: int) -> Buffer:
        """The buffer at ``address``, which a table of arrays has kept; 0 is an empty one."""
        if address == 0:
            return Buffer(self, name, element, np.zeros(0, storage(element)), None)
        buffer = self.buffers.get(address)
        if buffer is None:
            raise BoundsError(f"{name} is not an array: there is none at address {address}")
        if buffer.element != element:
            raise BoundsError(f"{name} of {element} is the array {buffer.name} of {buffer.element}")
        return buffer.renamed(name)

    def check_all_freed(self) -> None:
        for buffer in self.buffers.values():
            table = buffer.table
            kept = table is not None and not table.shared.freed and (table.shared.given or not table.is_heap)
            if not (buffer.shared.given or kept):
                raise BoundsError(f"{buffer.name} was never freed")


class OutOfMemory(Exception):  # noqa: N818
    """The kernel requested more memory than there is."""


@dataclass
class _Fate:
    """What became of an array, shared by all names for it."""

    freed: bool = False
    given: bool = False
    writers: dict[int, Hashable] = field(default_factory=dict)
    loop: int = 0


class Buffer:
    """An array under one name."""

    def __init__(
        self, memory: Memory, name: str, element: Type, data: np.ndarray[Any, Any], written: bytearray | None
    ) -> None:
        self.memory = memory
        self.name = name
        self.element = element
        self.data = data
        self.written = written
        self.shared = _Fate()
        self.is_heap = False
        self.home = memory.loop  # memory that a loop allocates belongs to one of its workers
        self.address = 0
        self.table: Buffer | None = None

    def renamed(self, name: str) -> Buffer:
        other = copy.copy(self)
        other.name = name
        return other

    def check(self, index: int) -> None:
        if self.shared.freed:
            raise BoundsError(f"{self.name}[{index}] is used after {self.name} was freed or resized")
        if not 0 <= index < len(self.data):
            raise BoundsError(f"{self.name}[{index}] is outside 0..{len(self.data) - 1}")

    def check_turn(self, index: int, action: str, is_atomic: bool = False) -> None:
        turn, fate = self.memory.turn, self.shared
        if turn is None or self.home == self.memory.loop:
            return
        turn = ATOMICALLY if is_atomic else turn
        if fate.loop != self.memory.loop:
            fate.loop, fate.writers = self.memory.loop, {}
        writer = fate.writers.setdefault(index, turn) if action == "writes" else fate.writers.get(index, turn)
        if writer != turn:
            raise BoundsError(f"{turn} {action} {self.name}[{index}], which {writer} wrote")

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        self.check(index)
        if self.written is not None and not self.written[index]:
            raise BoundsError(f"kernel reads element {index} of {self.name} before it was written")
        self.check_turn(index, "reads")
        value = self.data[index]
        if self.element.is_integer:
            return bool(value) if self.element.kind == "bool" else int(value)
        if self.element.computes_in == self.element:
            return value
        if self.element == BFLOAT16:
            return np.array(int(value) << 16, np.uint32).view(np.float32)[()]
        return np.float32(np.array(value, np.uint16).view(np.float16)[()])

    def __setitem__(self, index: int, value: Any) -> None:
        self.check(index)
        self.check_turn(index, "writes")
        if self.element.kind in ("int", "uint") and wrap(value, self.element) != value:
            raise BoundsError(f"{value} stored to {self.name}[{index}] does not fit {self.element}")
        self.data[index] = value
        if self.written is not None:
            self.written[index] = 1

    def add(self, index: int, value: Any) -> None:
        """Add to an element, to which other turns may add too."""
        self.check(index)
        self.check_turn(index, "writes", is_atomic=True)
        assert self.written is None or self.written[index], f"{self.name}[{index}] has no value to add to"
        self.data[index] += value

    def copy_from(self, start: int, source: Buffer, source_start: int, count: int) -> None:
        """Copy elements, written or not: what was never written stays so."""
        if count < 0:
            raise BoundsError(f"{count} elements are copied to {self.name}")
        for n, index in [(n, source_start + n) for n in range(count)]:
            source.check(index)
            self.check(start + n)
            source.check_turn(index, "reads")
            self.check_turn(start + n, "writes")
        bits = source.data[source_start : source_start + count].copy()
        marks = b"\1" * count if source.written is None else bytes(source.written[source_start:][:count])
        self.data[start : start + count] = bits
        if self.written is not None:
            self.written[start : start + count] = marks
        elif 0 in marks:
            raise BoundsError(f"elements of {source.name} are copied to {self.name} before they were written")

    def free(self) -> None:
        if self.address == 0 and len(self.data) == 0 and not self.is_heap:
            return  # C's free(NULL)
        if not self.is_heap:
            raise BoundsError(f"{self.name} is freed but belongs to the caller")
        if self.shared.freed:
            raise BoundsError(f"{self.name} is freed twice")
        self.shared.freed = True
        self.memory.alive -= self.data.nbytes
        del self.memory.buffers[self.address]

    def resized(self, count: int) -> Buffer:
        """A new array that begins with these elements; the old one is gone."""
        if not self.is_heap:
            raise BoundsError(f"{self.name} is resized but belongs to the caller")
        if self.shared.freed:
            raise BoundsError(f"{self.name} is resized after it was freed or resized")
        other = self.memory.allocate(self.name, self.element, count, zero=False)
        kept = min(count, len(self.data))
        other.data[:kept] = self.data[:kept]
        assert other.written is not None
        other.written[:kept] = b"\1" * kept if self.written is None else self.written[:kept]
        other.home = self.home
        self.free()
        return other


def _smallest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max if dtype.kind == "u" else True
