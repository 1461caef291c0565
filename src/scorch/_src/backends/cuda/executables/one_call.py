"""A warm call as one builtin, from tensors to a launch (``device.builtins``), once it was repeated often."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from scorch._src.backends.by_torch.index_arrays import do_nothing
from scorch._src.backends.cpu import launch
from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.device.builtins import address
from scorch._src.backends.cuda.device.kernel import LAUNCHES
from scorch._src.bounded import BoundedCache

if TYPE_CHECKING:
    from scorch._src.backends.cuda.executables.executable import Bound, CudaExecutable

CALLS = 64  # that are made before the builtin is asked for, again and again until it is there
MAX_SLOTS = 120  # of a kernel that it launches
MAX_PATTERNS = 16  # for which a launch is remembered

Call = Callable[..., torch.Tensor | None]


def by_pattern(
    executable: CudaExecutable, make: Callable[[Sequence[torch.Tensor]], Any]
) -> Callable[[Sequence[torch.Tensor]], Any]:
    """Return ``make`` as a function that remembers its results, for the last patterns of its arrays."""
    places = executable.pattern_places
    known: BoundedCache[tuple[int, ...], _Held] = BoundedCache(MAX_PATTERNS)
    last = NOTHING

    def find(arrays: Sequence[torch.Tensor]) -> Any:
        nonlocal last
        held = last  # another thread may change it meanwhile
        for place, array in held.arrays:
            if array() is not arrays[place]:
                break
        else:
            return held.made
        key = tuple([id(arrays[place]) for place in places])
        held = known.get(key, NOTHING)
        if not all(array() is arrays[place] for place, array in held.arrays):
            made = make(arrays)
            held = known[key] = _Held([(place, weakref.ref(arrays[place])) for place in places], made)
        last = held
        return held.made

    return find


class _Held(NamedTuple):
    """What was made for arrays of a pattern, while these live."""

    arrays: Sequence[tuple[int, Callable[[], torch.Tensor | None]]]
    made: Any = None


NOTHING = _Held([(0, do_nothing)])


def in_one_call(executable: CudaExecutable, call: Call, shape: tuple[int, ...], facts: bytes) -> Call:
    """Return ``call`` for results of a shape, once it was made often by the builtin.

    ``facts`` are what the builtin checks of each array, from the last to the first.
    """
    left = CALLS
    find: Callable[[Sequence[torch.Tensor]], Any] | None = None

    def run(*arrays: torch.Tensor) -> torch.Tensor | None:
        nonlocal find, left
        if find is None:
            left -= 1
            if not left:
                find, left = _bind(executable, shape, facts, arrays), CALLS
            return call(*arrays)
        result = None if LAUNCHES else find(arrays)(*arrays)
        if result is None:
            return call(*arrays)
        return None if result is False else result

    return run


def _bind(
    executable: CudaExecutable, shape: tuple[int, ...], facts: bytes, arrays: Sequence[torch.Tensor]
) -> Callable[[Sequence[torch.Tensor]], Any] | None:
    """Return what finds the builtin for arrays on the device of these; None where it is not there yet."""
    device, slots = arrays[0].device, len(executable.schedule.slots) + executable.grid.added_slots
    builtin = executable.find_builtin(device) if slots <= MAX_SLOTS else None
    if builtin is None:
        return None
    facts = facts or launch.tensor_descriptor() * len(arrays)
    allocate = executable.allocator(shape, device, executable.result_dtype)

    def make(arrays: Sequence[torch.Tensor]) -> Callable[..., Any]:
        bound = executable.bind(arrays, math.prod(shape))
        plan = _pack(executable, bound, device)
        return functools.partial(builtin, plan + facts, allocate, executable.allocator_of_sums(bound, device))

    return by_pattern(executable, make)


def _pack(executable: CudaExecutable, bound: Bound, device: torch.device) -> bytes:
    """Describe launches for the builtin."""
    library, header, aligned = driver.driver(), executable.header, executable.aligned
    pointers = [address(each) for each in (library.cuLaunchKernelEx, library.cuCtxGetDevice)]
    grids: list[int] = []
    for grid in bound.grids:
        grids += address(executable.function_on(device, grid.name)), grid.blocks, grid.threads
    sizes = [len(bound.grids), len(header), len(bound.before), len(bound.behind), len(aligned)]
    slots = [*header, *bound.before, *bound.behind]
    return launch.pack([*pointers, *executable.place_of(device), *sizes, *grids, *slots, *aligned])
