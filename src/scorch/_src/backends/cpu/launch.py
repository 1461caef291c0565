"""Builtins that read tensors, allocate the result, run a kernel and return the result.

A call from Python costs most where it asks tensors for addresses one by one and has torch allocate; here
tensors are read and created through torch's DLPack exchange table, a struct of C functions, so that a small
product takes a few microseconds in all. ``fill`` is for results of known size, ``rows`` for those appended
row by row, ``slots`` for those written in place, up to a bound. They take plain torch tensors only. Without
the table (an older torch) there are none and callers do without.

Results are tensors of our own making, handed to torch with a function that frees them. A small one is one
block of memory with its description in front. A large one lies in pages of its own, aligned for huge pages;
fresh pages cost more than most kernels, so blocks that were freed last stay in a pool, up to a limit, and
serve the next result of about their size. An array that turns out shorter than it might have been is cut
in place: what it does not use is returned if that is much. Where threads have left gaps in such arrays, what
they have written is copied to others of the right length instead.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from scorch._src.backends import base
from scorch._src.backends.cpu import invoke, jit, toolchain
from scorch._src.backends.print.effort import ONCE_A_ROW, at_most
from scorch._src.backends.repeated_calls import CallObjects, Repeater, Run
from scorch._src.compiler.bounds import HUGE_PAGE
from scorch._src.compiler.target import target
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.loops.types import INT8, INT16, INT32, INT64, Type
from scorch.errors import CompilerNotFoundError
from scorch.settings import enabled

MAX_POOLED_BYTES = 1 << 29
MIN_SEARCHED_PER_THREAD = 1 << 17  # numbers that may not be finite

_LARGE = f"#define LARGE {HUGE_PAGE}ul /* from here on pages of its own, and the size of a huge page */\n"
FINITE = jit.read_source("finite.c").replace("$VECTOR", str(target().vector_bytes))
SOURCES = (
    jit.read_source("launch_types.c")
    + jit.read_source("values.c")
    + FINITE
    + at_most(ONCE_A_ROW)  # no loop in what follows has much to do
    + f"{_LARGE}#define MIN_PER_THREAD {MIN_SEARCHED_PER_THREAD}\n"
    + jit.read_source("allocate.c")
    + jit.read_source("launch.c")
    + jit.read_source("repeat.c"),
)
NOTHING = "long long scorch_compute(long long *args) { (void)args; return 0; }\n"
RELU, NEG, ABS = range(3)  # functions of values
AS_DENSE, ON_PATTERN, IN_SLOTS, BY_ROWS, APPENDED = range(5)  # results of a run, as in ``c/repeat.c``
MAX_SLOTS = 96
MAX_DIMS = 16
BITS: dict[int, Type] = {1: INT8, 2: INT16, 4: INT32, 8: INT64}  # for what is only moved, by its bytes
_CODES = {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}


class Builtins(NamedTuple):
    """``fill(kernel, header, result, guard, *tensors)``; ``rows``, ``slots((compute, finish), header, ...)``.

    ``header`` holds the first argument slots (``pack``), ``result`` what to allocate (``result_descriptor``,
    ``row_descriptor``, ``slot_descriptor``); the addresses of ``tensors`` and of the result follow. With
    ``guard`` (``tensor_descriptor`` of each) a call returns None, and does nothing, where a tensor differs.
    """

    fill: Callable[..., torch.Tensor]
    rows: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    slots: Callable[..., tuple[Any, ...]]
    pool: Callable[[int], int]
    finite: Callable[..., bool | None]
    map: Callable[[int, torch.Tensor], torch.Tensor | None]
    scale: Callable[[torch.Tensor, float], torch.Tensor | None]
    add: Callable[[torch.Tensor, torch.Tensor], bool]
    repeat: Callable[..., Any]
    map_tensor: Callable[..., Any]
    set_objects: Callable[..., None]
    bind_run: Callable[[tuple[Any, ...]], Run]  # ``c/repeat.c`` says what it takes


def builtins() -> Builtins | None:
    """Return the builtins, or None where this machine cannot have them."""
    try:
        return _builtins()
    except CompilerNotFoundError:
        if toolchain.has_compiler():  # raises where somebody has named one that does not work
            raise
        return None


def repeater(objects: CallObjects) -> Repeater | None:
    """Return the builtins that repeat calls, which look at these objects; None where there are none."""
    functions = builtins()
    if functions is None:
        return None
    functions.set_objects(*objects[:-1], *objects.names)
    names = {"relu": RELU, "neg": NEG, "abs": ABS}
    by_name = {name: functools.partial(functions.map_tensor, code) for name, code in names.items()}
    return Repeater(functions.repeat, by_name)


def exchange_table() -> int | None:
    """Return the address of torch's table of C functions that read and create tensors; None without one."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None or invoke.make_caller().kind != "trampoline":
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table: int = pointer(capsule, b"dlpack_exchange_api")
    version = ctypes.cast(table, ctypes.POINTER(ctypes.c_uint32))[0]
    return table if version == 1 else None


@functools.cache
def _builtins() -> Builtins | None:
    try:
        table = exchange_table()
        if table is None:
            return None
        library = jit.find_library(*SOURCES, "the functions that call kernels on tensors")
        if library is None:
            return None
        invoke.builtin(b"set_table", library.address("scorch_set_table"))(table, None, max_pooled_bytes())
        names = [name for name in Builtins._fields if name != "bind_run"]
        run = invoke.bound_builtin(b"run", library.address("scorch_run"))
        builtins = [invoke.builtin(name.encode(), library.address(f"scorch_{name}")) for name in names]
        functions = Builtins._make([*builtins, run])
    except CompilerNotFoundError:
        raise
    except Exception:  # an unusual torch or Python: the plain way works there
        return None
    os.register_at_fork(
        before=functools.partial(functions.pool, 1),
        after_in_parent=functools.partial(functions.pool, 2),
        after_in_child=functools.partial(functions.pool, 3),
    )
    return functions


def max_pooled_bytes() -> int:
    """Return the limit of the pool of freed results: a sixteenth of the memory, up to 512 MiB."""
    try:
        return min(MAX_POOLED_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 16)
    except (ValueError, OSError, AttributeError):
        return MAX_POOLED_BYTES // 4


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized tensor: a large one in pooled pages of earlier results, if there are some."""
    functions = builtins()
    if functions is None or math.prod(shape) * dtype.itemsize < HUGE_PAGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    descriptor = result_descriptor(type_of_dtype(dtype), shape, zero=False)
    tensor: torch.Tensor = functions.fill(_nothing(), pack([]), descriptor, None)
    return tensor


def scratch(bytes: int) -> torch.Tensor:
    """Return memory to work in, in pooled pages however little it is: fresh ones cost more than the work."""
    return empty((max(bytes, HUGE_PAGE),), torch.int8)


@functools.cache
def _nothing() -> int:
    """Return the address of a kernel that leaves its result as it is."""
    return jit.load(NOTHING, "nothing").address("scorch_compute")


def release_memory() -> int:
    """Return the memory that is kept for later calls to the system: of freed results, and of their patterns.

    Returns:
        The number of bytes that were pooled.

    Example:

        >>> import scorch
        >>> scorch.release_memory() >= 0
        True
    """
    for release in base.RELEASE:
        release()
    functions = builtins()
    return 0 if functions is None else functions.pool(0)


def pooled_memory() -> int:
    """Return how many bytes of freed results are pooled for the next ones."""
    functions = builtins()
    return 0 if functions is None else functions.pool(4)


def pack(numbers: Sequence[int]) -> bytes:
    """Pack numbers as argument slots."""
    return struct.pack(f"{len(numbers)}q", *numbers)


def result_descriptor(element: Type, shape: Sequence[int], zero: bool = True) -> bytes:
    """Describe the result for ``fill``.

    With ``zero`` it begins as zero, and the header with what ``parallel.shared_by`` returns.
    """
    size = element.bytes * math.prod(shape) if zero else 0
    return pack([_uses_pool(), _code(element), 8 * element.bytes, size, len(shape), *shape])


def row_descriptor(rows: int, index: Type, element: Type) -> bytes:
    """Describe the result for ``rows``."""
    return pack([_uses_pool(), rows, 8 * index.bytes, _CODES[element.kind], 8 * element.bytes])


def slot_descriptor(rows: int, index: Type, element: Type, crds: int, bounds: Sequence[int]) -> bytes:
    """Describe the result for ``slots``.

    ``crds``: how many arrays of coordinates it has; ``bounds``: the tensors as long as it may get together.
    """
    return row_descriptor(rows, index, element) + pack([crds, len(bounds), *bounds])


def _uses_pool() -> int:
    """Return 1 where results lie in memory of our own, else 0."""
    return int(enabled("pool"))


def tensor_descriptor(
    element: Type | None = None, shape: Sequence[int] = (), order: Sequence[int] = ()
) -> bytes:
    """Describe a dense tensor that lies in ``order`` for ``fill`` to check; without ``element``, nothing."""
    if element is None:
        return pack([0])
    numbers = [_code(element), 8 * element.bytes, len(shape), *shape, *order]
    return pack([len(numbers), *numbers])


def _code(element: Type) -> int:
    """Return the number that DLPack has for a kind of elements."""
    return 4 if element.name == "bfloat16" else _CODES[element.kind]
