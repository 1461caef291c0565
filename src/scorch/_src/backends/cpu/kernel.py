"""A kernel ready to be called: allocates the result, calls, and says what came out.

Results whose size is not known beforehand take two calls (see ``compiler.lower.assemble``): the first
computes and says how long the arrays are, the second fills those that were allocated here. The same steps run
on an *engine*: the machine, or the interpreter that checks every access.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import torch

from scorch._src.backends.cpu import invoke, jit, launch, toolchain
from scorch._src.backends.cpu.print.c import print_kernel
from scorch._src.backends.cpu.print.scalar import print_scalar
from scorch._src.backends.interpreter import interpret
from scorch._src.compiler.lower.assemble import identity_of
from scorch._src.compiler.lower.collect import writes_everything
from scorch._src.compiler.names import safe_tensor
from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.plan import Plan
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.loops.nodes import Kernel
from scorch._src.loops.types import INT32
from scorch.errors import CompilationError, DensityError, KernelError, warn

_has_warned = False


@dataclass(frozen=True)
class Arrays:
    """The arrays of a new sparse tensor, level by level; ``counts`` has the positions of each level."""

    pos: tuple[torch.Tensor | None, ...]
    crd: tuple[torch.Tensor | None, ...]
    counts: tuple[int, ...]
    values: torch.Tensor


class Engine(Protocol):
    """Where a kernel runs."""

    def slot(self, tensor: torch.Tensor) -> Any:
        """What stands for ``tensor`` in an argument slot."""

    def call(self, function: str, slots: list[Any]) -> int: ...


class Native:
    """The compiled kernel."""

    def __init__(self, addresses: dict[str, int]) -> None:
        self.addresses = addresses
        self.call_back = invoke.make_caller().call_back

    def slot(self, tensor: torch.Tensor) -> int:
        return invoke.address_of(tensor)

    def call(self, function: str, slots: list[Any]) -> int:
        return self.call_back(self.addresses[function], slots)


class Interpreted:
    """The loops in Python, every access checked."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.memory = interpret.Memory()

    def slot(self, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        if tensor.dtype in (torch.bfloat16, torch.float16):
            return tensor.view(torch.int16).numpy().view(np.uint16)
        return tensor.numpy()

    def call(self, function: str, slots: list[Any]) -> int:
        return interpret.run(self.kernel, function, slots, self.memory)


@dataclass(frozen=True)
class Schedule:
    """A plan and all that a call needs of its kernel, so that neither has to be made again.

    ``slots`` and ``functions`` are the names of the kernel's arguments and of what it exports.
    """

    planned: Planned
    source: str
    slots: tuple[str, ...]
    functions: tuple[str, ...]


def make_schedule(planned: Planned) -> Schedule:
    """Lower and print the kernel of a plan."""
    kernel = planned.kernel()
    return Schedule(
        planned,
        print_kernel(kernel),
        tuple(slot.name for slot in kernel.slots),
        tuple(function.name for function in kernel.functions if function.exported),
    )


def build_together(sources: Sequence[str]) -> None:
    """Compile new kernels side by side, the first ones together with the functions that call kernels."""
    if not toolchain.has_compiler():
        return
    wanted = [source for source in (*sources, *invoke.SOURCES, *launch.SOURCES) if not jit.is_loaded(source)]
    if len(wanted) > 1:
        jit.build(wanted)


def warn_not_compiled(error: CompilationError) -> None:
    """Say, once in a process, that a kernel had to be run without machine code."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warn(
            f"no C compiler of this machine can make a kernel, so it and others like it are run by torch, "
            f"slowly: {error}"
        )


class CompiledKernel:
    """The kernel of a plan; compiled when it is first called."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.plan: Plan = schedule.planned.plan
        self.source = schedule.source
        self.slots = len(schedule.slots)
        self.dtype = dtype_of_type(self.plan.element)
        self.identity = identity_of(self.plan.step.reduction, self.plan.element)
        self._place = {name: number for number, name in enumerate(schedule.slots)}
        self.writes_everything = writes_everything(self.plan)
        self._failure: CompilationError | None = None

    @functools.cached_property
    def native(self) -> Native:
        build_together([self.source])
        library = jit.load(self.source, self.label, self.scalar_source)
        return Native({name: library.address(name) for name in self.schedule.functions})

    def is_ready(self) -> bool:
        """Whether there is machine code to call, which takes a compiler that does not fail at it."""
        if "native" in self.__dict__:
            return True
        if self._failure is not None:
            return False
        if not toolchain.has_compiler():
            return False
        try:
            return bool(self.native.addresses)
        except CompilationError as error:
            self._failure = error
            warn_not_compiled(error)
            return False

    def scalar_source(self) -> str:
        """The kernel without vectors, for compilers that fail at them."""
        return print_scalar(self.schedule.planned.kernel())

    @property
    def label(self) -> str:
        """What it computes, in a line."""
        return self.plan.header.split("\n")[0]

    def interpreter(self) -> Interpreted:
        return Interpreted(self.schedule.planned.kernel())

    # dense and shared --------------------------------------------------------------------------------

    def fill(self, engine: Engine, inputs: list[Any], count: int) -> torch.Tensor:
        """The values of a result whose places are known: dense, or on the pattern of an operand."""
        if self.writes_everything:
            values = torch.empty(count, dtype=self.dtype, device="cpu")
            if isinstance(engine, Interpreted):  # a value that no sum comes to, lest one is forgotten
                values.fill_(-101 if values.dtype.is_signed else 101)
        else:
            values = torch.full((count,), self.identity, dtype=self.dtype, device="cpu")
        inputs.append(engine.slot(values))
        if engine.call("scorch_compute", inputs):
            self._fail()
        return values

    # new patterns ------------------------------------------------------------------------------------

    def build(
        self,
        engine: Engine,
        inputs: list[Any],
        shape: Sequence[int],
        check: Callable[[int], None],
        bound: int = 0,
    ) -> Arrays:
        """The arrays of a result with a pattern of its own; ``check`` is told what dense levels need.

        ``bound``: how many entries there may be at most, where the plan writes them in place.
        """
        if self.plan.slots:
            return self._build_slots(engine, inputs, shape, bound)
        if self.plan.assembly == "rows":
            return self._build_rows(engine, inputs, shape)
        return self._build_list(engine, inputs, shape, check)

    def _row_counts(self, shape: Sequence[int]) -> list[int]:
        """How many positions each level above the entries of the result has."""
        counts, rows = [], 1
        for level in range(self.plan.row_levels or 0):
            rows *= self.plan.result.level_size(level, shape)
            counts.append(rows)
        return counts

    def _build_slots(self, engine: Engine, slots: list[Any], shape: Sequence[int], bound: int) -> Arrays:
        name = safe_tensor(self.plan.step.target.tensor)
        index, counts, levels = dtype_of_type(self.plan.index), self._row_counts(shape), len(self.plan.result)
        try:
            pos = torch.empty((counts or [1])[-1] + 1, dtype=index, device="cpu")
            crds = [torch.empty(bound, dtype=index, device="cpu") for _ in range(len(counts), levels)]
            values = torch.empty(bound, dtype=self.dtype, device="cpu")
        except (RuntimeError, MemoryError) as error:
            raise KernelError(f"no memory for the result: {error}") from error
        slots += [engine.slot(array) for array in (pos, *crds, values)]
        slots += [0] * (self.slots - len(slots))
        self._check(engine.call("scorch_compute", slots))
        nnz = int(slots[self._place[f"{name}_nnz"]])
        if nnz < bound:
            crds, values = [crd[:nnz].clone() for crd in crds], values[:nnz].clone()
        above, below = (None,) * len(counts), (None,) * (len(crds) - 1)
        all_counts = (*counts, *(nnz for _ in crds))
        return Arrays((*above, pos, *below), (*above, *crds), all_counts, values)

    def _build_rows(self, engine: Engine, slots: list[Any], shape: Sequence[int]) -> Arrays:
        form, name = self.plan.result, safe_tensor(self.plan.step.target.tensor)
        last = len(form)
        counts = self._row_counts(shape)
        rows = (counts or [1])[-1]
        pos = torch.zeros(rows + 1, dtype=torch.int64, device="cpu")
        slots.append(engine.slot(pos))
        slots += [0] * (self.slots - len(slots))
        self._check(engine.call("scorch_compute", slots))
        nnz = int(slots[self._place[f"{name}_nnz"]])
        crd, values = self._finish(
            engine,
            slots,
            {
                f"{name}{last}_crd": lambda: torch.empty(
                    nnz, dtype=dtype_of_type(self.plan.index), device="cpu"
                ),
                f"{name}_vals": lambda: torch.empty(
                    nnz, dtype=dtype_of_type(self.plan.element), device="cpu"
                ),
            },
        )
        nones: tuple[None, ...] = (None,) * (last - 1)
        return self._arrays((*nones, pos), (*nones, crd), (*counts, nnz), values)

    def _build_list(
        self, engine: Engine, slots: list[Any], shape: Sequence[int], check: Callable[[int], None]
    ) -> Arrays:
        form, name = self.plan.result, safe_tensor(self.plan.step.target.tensor)

        def allocate(
            make: Callable[..., torch.Tensor], level: int, count: int, dtype: torch.dtype
        ) -> torch.Tensor:
            if level >= 0 and form.levels[level].is_full:  # below a level with places for every coordinate
                check(count * dtype.itemsize)
            return make(count, dtype=dtype, device="cpu")

        slots += [0] * (self.slots - len(slots))
        self._check(engine.call("scorch_compute", slots))
        counts: list[int] = []
        parents = entries = 1
        wanted: dict[str, Callable[[], torch.Tensor]] = {}
        for level, kind in enumerate(form.levels):
            if form.starts_run(level):
                entries = int(slots[self._place[f"{name}{level + 1}_count"]])
                wanted[f"{name}{level + 1}_pos"] = functools.partial(
                    allocate, torch.zeros, level - 1, parents + 1, torch.int64
                )
            if not kind.is_full:
                wanted[f"{name}{level + 1}_crd"] = functools.partial(
                    torch.empty, entries, dtype=dtype_of_type(self.plan.index), device="cpu"
                )
            parents = kind.count(parents, form.level_size(level, shape), entries)
            counts.append(parents)
        make = torch.zeros if form.levels[-1].is_full else torch.empty
        wanted[f"{name}_vals"] = functools.partial(
            allocate, make, len(form) - 1, parents, dtype_of_type(self.plan.element)
        )
        made = dict(zip(wanted, self._finish(engine, slots, wanted), strict=True))
        levels = range(len(form))
        pos = tuple(made.get(f"{name}{level + 1}_pos") for level in levels)
        crd = tuple(made.get(f"{name}{level + 1}_crd") for level in levels)
        return self._arrays(pos, crd, tuple(counts), made[f"{name}_vals"])

    def _finish(
        self, engine: Engine, slots: list[Any], wanted: dict[str, Callable[[], torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Allocate ``wanted`` and have the kernel fill it; it frees its own memory in any case."""
        made: list[torch.Tensor] = []
        try:
            for name, make in wanted.items():
                made.append(make())
                slots[self._place[name]] = engine.slot(made[-1])
        except (RuntimeError, MemoryError) as error:
            slots[self._place["discard"]] = 1
            for name in wanted:
                if isinstance(slots[self._place[name]], int) and isinstance(engine, Interpreted):
                    slots[self._place[name]] = np.zeros(0)
            engine.call("scorch_finish", slots)
            if isinstance(error, DensityError):
                raise
            raise KernelError(f"no memory for the result: {error}") from error
        self._check(engine.call("scorch_finish", slots))
        return made

    def _arrays(
        self,
        pos: tuple[torch.Tensor | None, ...],
        crd: tuple[torch.Tensor | None, ...],
        counts: tuple[int, ...],
        values: torch.Tensor,
    ) -> Arrays:
        """All index arrays in one dtype: int32 while coordinates and positions fit."""
        wide = self.plan.index != INT32 or max(counts, default=0) > 2**31 - 1
        dtype = torch.int64 if wide else torch.int32
        try:
            pos, crd = (
                tuple([None if array is None else array.to(dtype) for array in arrays])
                for arrays in (pos, crd)
            )
        except (RuntimeError, MemoryError) as error:
            raise KernelError(f"no memory for the result: {error}") from error
        return Arrays(pos, crd, counts, values)

    def _check(self, status: int) -> None:
        if status != 0:
            self._fail()

    def _fail(self) -> NoReturn:
        raise KernelError(f"memory ran out while computing {self.plan.header.splitlines()[0]}")
