"""Compiled kernels, called by a builtin that reads the arrays and allocates the result, where it can."""

from __future__ import annotations

import ctypes
import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any

import torch
from torch import get_num_threads

from scorch._src.backends.base import GroupExecutable, Schedule
from scorch._src.backends.cpu import invoke, jit, launch, parallel, toolchain
from scorch._src.backends.launcher import Launcher, address_of
from scorch._src.backends.print.c import print_kernel
from scorch._src.backends.print.scalar import print_scalar
from scorch._src.backends.repeated_calls import Run, RunParts
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.fuse.group import Fused
from scorch._src.compiler.names import safe_tensor
from scorch._src.compiler.plan import VALUES
from scorch._src.compiler.typing import type_of_dtype
from scorch._src.loops.nodes import Kernel
from scorch.errors import CompilationError, KernelError, warn
from scorch.settings import DEFAULT, applied, current, in_block

SERIAL_WORK = 100_000  # operations below which two threads cost more than they give, more for more
MERGE_WORK_FACTOR = 2  # times as many where entries only move: memory is the limit, and parts move once more
COPIES_WORK_FACTOR = 3  # where threads add to copies of the result, which another loop adds up
MANY_THREADS = 1 << 10
MAX_CACHED_OUTPUTS = 64  # descriptors of results, for each kernel

Packed = BoundedCache[tuple[int, ...], bytes]

_has_warned = False


def build_together(sources: Sequence[str]) -> None:
    """Compile new kernels side by side, the first ones together with the functions that call kernels."""
    if not toolchain.has_compiler():
        return
    wanted = [source for source in (*sources, *invoke.SOURCES, *launch.SOURCES) if not jit.is_loaded(source)]
    if len(wanted) > 1:
        jit.build(wanted)


def warn_not_compiled(error: CompilationError) -> None:
    """Warn, once in a process, that a kernel is run without machine code."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warn(
            "no C compiler on this machine could compile a kernel; it and similar kernels fall back to "
            f"PyTorch operators, which are slower: {error}"
        )


class Native:
    """The functions of a compiled kernel."""

    def __init__(self, addresses: dict[str, int]) -> None:
        self.addresses = addresses
        self.call_back = invoke.make_caller().call_back

    def slot(self, tensor: torch.Tensor) -> int:
        return address_of(tensor)

    def call(self, function: str, slots: list[Any]) -> int:
        return self.call_back(self.addresses[function], slots)


class Compiled:
    """A kernel in C, compiled when it is first called."""

    source: str
    label: str

    def __init__(
        self, functions: Sequence[str], work: float, least_work: float, can_share: bool = True
    ) -> None:
        self.functions, self.work, self.least_work = functions, work, least_work
        self.is_serial = not can_share or work < self._least_work_of(MANY_THREADS) * parallel.CHEAPEST
        self._has_failed = False

    def _least_work_of(self, threads: int) -> float:
        """Return the operations that as many threads share."""
        return self.least_work

    @abstractmethod
    def loops(self) -> Kernel:
        """Return the kernel, to print it without vectors for compilers that fail at them."""

    @functools.cached_property
    def engine(self) -> Native:
        build_together([self.source] if self.is_serial else [self.source, *parallel.SOURCES])
        library = jit.load(self.source, self.label, lambda: print_scalar(self.loops()))
        return Native({name: library.address(name) for name in self.functions})

    def is_ready(self) -> bool:
        if "engine" in self.__dict__:
            return True
        if self._has_failed or not toolchain.has_compiler():
            return False
        try:
            return bool(self.engine.addresses)
        except CompilationError as error:
            self._has_failed = True
            warn_not_compiled(error)
            return False

    @functools.cached_property
    def parallel_for(self) -> int:
        """The address of the function that runs loops on threads; 0 for one thread."""
        return 0 if self.is_serial else parallel.parallel_runtime()

    def workers(self) -> int:
        """Return how many threads a call uses now: as many as there is work for."""
        return 1 if self.is_serial else parallel.threads_for(self.work, self.least_work)

    def out_of_memory(self, error: MemoryError) -> KernelError:
        """Return the error to raise when a builtin runs out of memory."""
        return KernelError(f"{error} while computing {self.label}")


class CpuExecutable(Compiled, Launcher):
    def __init__(self, schedule: Schedule, sizes: Mapping[str, int]) -> None:
        Launcher.__init__(self, schedule, sizes)
        work, least_work = schedule.planned.choice.chosen.total, SERIAL_WORK
        if self.plan.slots:
            least_work *= MERGE_WORK_FACTOR
        elif self.plan.is_private:
            least_work *= COPIES_WORK_FACTOR
        Compiled.__init__(self, schedule.functions, work, least_work, self.plan.parallel)
        self.headers: dict[int, tuple[bytes, bytes, int]] = {}  # by how many threads are allowed

    def loops(self) -> Kernel:
        return self.schedule.planned.kernel()

    def header(self) -> list[Any]:
        return [*self._shared_by(parallel.allowed_threads())[parallel.is_busy()], *self.sizes]

    def packed_headers(self, allowed: int) -> tuple[bytes, bytes, int]:
        """Pack what kernels take before the arrays, for a quiet machine and for a busy one; until when."""
        quiet, busy = (launch.pack([*shared, *self.sizes]) for shared in self._shared_by(allowed))
        until = 0 if self.is_serial else parallel.revisit_at(allowed, self.work, self._least_work_of(allowed))
        self.headers[allowed] = packed = quiet, busy, until
        return packed

    def _shared_by(self, allowed: int) -> list[tuple[int, int]]:
        """Return what runs loops, and for how many threads, on a quiet machine and on a busy one."""
        if self.is_serial:
            return [(0, 1)] * 2
        numbers = parallel.threads_by_load(allowed, self.work, self._least_work_of(allowed))
        if self.plan.is_private:  # as many parts always, so that sums repeat, if all on the calling thread
            return [(self.parallel_for if threads > 1 else 0, allowed) for threads in numbers]
        return [(self.parallel_for, threads) for threads in numbers]

    def _least_work_of(self, threads: int) -> float:
        """Return the operations that as many threads share.

        Two save half of the time and many nearly all, where each operation waits for what it looks up.
        """
        waits = threads > 1 and bool(self.plan.gathered)
        return self.least_work / (2 - 2 / threads) if waits else self.least_work

    def workers(self) -> int:
        return self._shared_by(parallel.allowed_threads())[parallel.is_busy()][1]

    @functools.cached_property
    def direct(self) -> DirectCall | None:
        if self.slots > launch.MAX_SLOTS or len(self.shape) > launch.MAX_DIMS or launch.builtins() is None:
            return None
        if not self.is_ready():
            return None
        begins_at_zero = self.identity == 0 or self.writes_everything
        is_filled = self.plan.assembly in ("dense", "shared") and begins_at_zero
        if is_filled or self.plan.assembly == "rows" or self.plan.slots:
            return DirectCall(self)
        return None


class DirectCall:
    """A compiled kernel called through a builtin."""

    def __init__(self, executable: CpuExecutable) -> None:
        self.executable = executable
        self.plan = executable.plan
        self._outputs: BoundedCache[int, bytes] = BoundedCache(MAX_CACHED_OUTPUTS)

    @functools.cached_property
    def builtin(self) -> Callable[..., Any]:
        functions = launch.builtins()
        assert functions is not None
        if self.plan.slots:
            return functions.slots
        return functions.rows if self.plan.assembly == "rows" else functions.fill

    @functools.cached_property
    def address(self) -> int | tuple[int, int]:
        """The kernel as the builtin takes it."""
        addresses = self.executable.engine.addresses
        if self.plan.assembly == "rows" or self.plan.slots:
            return addresses["scorch_compute"], addresses.get("scorch_finish", 0)
        return addresses["scorch_compute"]

    @functools.cached_property
    def output(self) -> bytes:
        plan, executable = self.plan, self.executable
        if plan.assembly == "dense":
            stored = [executable.shape[dim] for dim in plan.result.order]
            return launch.result_descriptor(plan.element, stored, not executable.writes_everything)
        rows = (executable.row_counts() or [1])[-1]
        if not plan.slots:
            return launch.row_descriptor(rows, plan.index, plan.element)
        bounds = [self._place_of_crd(name, level) for name, level in plan.slots]
        crds = len(plan.result) - (plan.row_levels or 0)
        return launch.slot_descriptor(rows, plan.index, plan.element, crds, bounds)

    def output_of(self, count: int, is_usual: bool = False) -> bytes:
        is_usual = is_usual or current() is DEFAULT  # where results lie is a setting
        known = self._outputs.get(count) if is_usual else None
        if known is None:
            known = launch.result_descriptor(
                self.plan.element, (count,), not self.executable.writes_everything
            )
            if is_usual:
                self._outputs[count] = known
        return known

    def _place_of_crd(self, tensor: str, level: int) -> int:
        """Return which of the arrays that the builtin takes has the coordinates of a level of an operand."""
        array = "_vals" if level == VALUES else f"{level + 1}_crd"
        executable = self.executable
        return executable.schedule.slots.index(safe_tensor(tensor) + array) - len(executable.header())

    def guard(self, operands: Sequence[int | tuple[torch.Tensor, tuple[int, ...]]]) -> bytes:
        guard = b""
        for operand in operands:
            if isinstance(operand, int):
                guard += launch.tensor_descriptor() * operand
            else:
                tensor, order = operand
                guard += launch.tensor_descriptor(type_of_dtype(tensor.dtype), tensor.shape, order)
        return guard

    def bind(self, guard: bytes | None) -> Callable[..., Any]:
        builtin, address, executable = self.builtin, self.address, self.executable
        serial, find_header = self._serial_header, self._find_header

        def call(output: bytes, *arrays: torch.Tensor) -> Any:
            try:
                return builtin(address, serial or find_header(), output, guard, *arrays)
            except MemoryError as error:
                raise executable.out_of_memory(error) from error

        return call

    @functools.cached_property
    def _serial_header(self) -> bytes | None:
        """The first slots of a kernel that always runs on one thread."""
        return self.executable.packed_headers(1)[0] if self.executable.is_serial else None

    @functools.cached_property
    def _find_header(self) -> Callable[[], bytes]:
        """The function that returns the first slots, with as many threads as ``threads_for`` decides."""
        executable, headers = self.executable, self.executable.headers
        busy = ctypes.c_longlong(0) if executable.is_serial else parallel.busy_until()
        restricted = parallel.restricted_loops

        def find() -> bytes:
            allowed = (in_block() or applied[0]).threads
            allowed = allowed or (parallel.torch_threads() if restricted else get_num_threads())
            is_busy = busy.value > 0 and parallel.is_busy()
            packed = headers.get(allowed)
            if packed is None or (packed[2] and monotonic_ns() >= packed[2]):
                packed = executable.packed_headers(allowed)
            return packed[1] if is_busy else packed[0]

        return find

    def bind_output(self, guard: bytes | None, output: bytes) -> Callable[..., Any]:
        if self._serial_header is not None:
            return functools.partial(self.builtin, self.address, self._serial_header, output, guard)
        return functools.partial(self.bind(guard), output)

    def bind_run(self, guard: bytes, parts: RunParts) -> Run | None:
        functions, plan = launch.builtins(), self.plan
        assert functions is not None
        if parts.appended is not None and len(parts.appended[2]) >= launch.MAX_DIMS:
            return None
        if plan.slots:
            kind = launch.IN_SLOTS if parts.appended is None else launch.APPENDED
        else:
            kinds = {"dense": launch.AS_DENSE, "shared": launch.ON_PATTERN, "rows": launch.BY_ROWS}
            kind = kinds[plan.assembly]
        addresses = self.address if isinstance(self.address, tuple) else (self.address, 0)
        is_short = self.executable.is_serial and self.executable.work < SERIAL_WORK
        numbers = [kind, *addresses, parts.pattern, parts.combines, int(is_short)]
        numbers += [int(number) for source in parts.sources for number in source]
        output = self.output_of(1, is_usual=True) if kind == launch.ON_PATTERN else self.output
        wrap = parts.wrap if parts.appended is None else parts.appended
        header = self._serial_header
        choice: tuple[Any, ...] = ()
        if header is None:
            headers, restricted = self.executable.headers, parallel.restricted_loops
            choice = self._find_header, headers, restricted, parallel.pack_addresses()
        return functions.bind_run((launch.pack(numbers), header, output, guard, wrap, choice))


class CpuGroup(Compiled, GroupExecutable):
    """The kernel of a group in C."""

    def __init__(self, fused: Fused) -> None:
        GroupExecutable.__init__(self, fused)
        Compiled.__init__(self, ["scorch_compute"], fused.work, SERIAL_WORK)
        self.source = print_kernel(fused.kernel)
        self._headers: Packed = BoundedCache(MAX_CACHED_OUTPUTS)  # by threads and sizes
        self._outputs: Packed = BoundedCache(MAX_CACHED_OUTPUTS)  # of the last result, by its shape

    def loops(self) -> Kernel:
        return self.fused.kernel

    def run(
        self, arrays: Sequence[torch.Tensor], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        results = [launch.empty(shape, self.dtype) for shape in shapes[:-1]]
        functions, engine = launch.builtins(), self.engine
        if functions is None or 2 + len(sizes) + len(arrays) + len(results) >= launch.MAX_SLOTS:
            results.append(torch.empty(shapes[-1], dtype=self.dtype, device="cpu"))
            slots = [self.parallel_for, self.workers(), *sizes, *map(engine.slot, (*arrays, *results))]
            if engine.call("scorch_compute", slots):
                raise KernelError(f"out of memory while computing {self.label}")
            return results
        numbers, last = (self.workers(), *sizes), shapes[-1]
        header, output = self._headers.get(numbers), self._outputs.get(last)
        if header is None:
            header = self._headers[numbers] = launch.pack([self.parallel_for, *numbers])
        if output is None:
            output = self._outputs[last] = launch.result_descriptor(
                self.fused.group.element, last, zero=False
            )
        compute = engine.addresses["scorch_compute"]
        try:
            results.append(functions.fill(compute, header, output, None, *arrays, *results))
        except MemoryError as error:
            raise self.out_of_memory(error) from error
        return results
