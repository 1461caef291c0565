"""The interface of a backend: it builds and runs kernels, and has routines that are written by hand.

The engine plans a statement, asks the backend of its operands' device to build the plan, and calls what
comes back on arrays. A backend is registered by name in one place:

    register_backend("cuda", CudaBackend())

``settings(backend=...)`` chooses another one than that of the device: the interpreter checks every access.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch

from scorch._src.backends.repeated_calls import CallObjects, Repeater, Run, RunParts
from scorch._src.backends.routines import Routines
from scorch._src.compiler.fuse.group import Fused
from scorch._src.compiler.lower.assemble import identity_of
from scorch._src.compiler.lower.collect import writes_everything
from scorch._src.compiler.pipeline import Planned
from scorch._src.compiler.plan import Plan
from scorch._src.compiler.target import Target
from scorch._src.compiler.typing import dtype_of_type
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.loops.grid import Grid
from scorch._src.loops.nodes import Kernel
from scorch.errors import ArgumentError, DeviceError
from scorch.settings import add_backend, applied, current, in_block, read_environment

Result = TypeVar("Result")
RELEASE: list[Callable[[], None]] = []  # drop what is kept for later calls, when memory is to be returned
Check = Callable[[int], None]  # takes bytes of dense memory, and raises if they are too many


@dataclass(frozen=True)
class Schedule:
    """A plan and all that a call needs of its kernel, so that it can be cached.

    ``source`` is the kernel in the language of its backend; ``slots`` and ``functions`` are the names of its
    arguments and of what it exports, where executables do not know them; ``grid`` is how threads of a grid
    share it.
    """

    planned: Planned
    source: str
    slots: tuple[str, ...]
    functions: tuple[str, ...]
    grid: Grid | None = None


def schedule_of(planned: Planned, kernel: Kernel, source: str, grid: Grid | None = None) -> Schedule:
    """Return the schedule of a plan whose kernel is ``source`` in the language of a backend."""
    exported = tuple(function.name for function in kernel.functions if function.exported)
    return Schedule(planned, source, tuple(slot.name for slot in kernel.slots), exported, grid)


@dataclass(frozen=True)
class Arrays:
    """The arrays of a new sparse tensor, level by level; ``counts`` has the positions of each level."""

    pos: tuple[torch.Tensor | None, ...]
    crd: tuple[torch.Tensor | None, ...]
    counts: tuple[int, ...]
    values: torch.Tensor


@dataclass(frozen=True)
class Places:
    """The number of the entry of an operand at each value of a result, -1 where it has none.

    Without ``entries`` the operand has the entries of the result.
    """

    entries: torch.Tensor | None = None
    is_full: bool = True  # whether it has an entry everywhere


@dataclass(frozen=True)
class Collected:
    """The entries of a new pattern in the order of its levels: coordinates in each dimension, and values.

    Unless they are sorted, they are in any order, and values of the same position are to be added up. Without
    values, ``places`` has their numbers in each sparse operand.
    """

    columns: Sequence[torch.Tensor]
    values: torch.Tensor | None
    places: Sequence[Places]
    is_sorted: bool = True


@dataclass(frozen=True)
class Call:
    """What is known of a call before it runs.

    ``arrays`` are those of the operands, None where these are converted first; ``size`` the bytes of operands
    and result, ``count`` the values of the result: at most, unless they are ``exact``.
    """

    device: torch.device
    size: int
    count: int
    exact: bool = True
    arrays: Sequence[torch.Tensor] | None = None


@dataclass(frozen=True)
class Description:
    """How a call runs: its inner loops, its threads, and the seconds that it should take, if known."""

    inner: str
    threads: str
    seconds: float | None = None


class Direct(Protocol):
    """The shortest way to call a kernel, where a backend has one: a function that allocates its result.

    It returns values; or the arrays of a new pattern, which are ``pos, crd, values`` for an assembly by rows
    and ``pos, *crds, values, count`` for one in slots; or None where an array is not what the guard says.
    """

    @property
    def output(self) -> Any:
        """What the function allocates, where the plan alone says so."""

    def output_of(self, count: int, is_usual: bool = False) -> Any:
        """Return what it allocates for ``count`` values on an existing pattern.

        ``is_usual``: the caller knows that the settings in force are the default.
        """

    def guard(self, operands: Sequence[Any]) -> Any:
        """Return what it checks: dtype, shape and strides of dense operands; others are numbers of arrays."""

    def bind(self, guard: Any) -> Callable[..., Any]:
        """Return the function, which takes an output and the arrays."""

    def bind_output(self, guard: Any, output: Any) -> Callable[..., Any]:
        """Return a function of the arrays alone, as short as can be: it may raise a plain ``MemoryError``."""

    def bind_run(self, guard: Any, parts: RunParts) -> Run | None:
        """Return a builtin of storages and dense tensors that also wraps its result, if there is one."""


def label_of(plan: Plan) -> str:
    """Say what a plan computes, in a line."""
    return plan.header.split("\n")[0]


class Executable(ABC):
    """The kernel of a plan for the sizes of its indices. It runs on arrays and knows no tensors of ours."""

    def __init__(self, schedule: Schedule, sizes: Mapping[str, int]) -> None:
        self.schedule = schedule
        self.plan: Plan = schedule.planned.plan
        self.source = schedule.source
        self.sizes = [sizes[index] for index in dict.fromkeys(self.plan.step.indices)]
        self.shape = tuple(sizes[index] for index in self.plan.step.target.indices)
        self.dtype = self.result_dtype = dtype_of_type(self.plan.element)  # computed in, and stored as
        self.identity = identity_of(self.plan.step.reduction, self.plan.element)
        self.writes_everything = writes_everything(self.plan)

    @functools.cached_property
    def label(self) -> str:
        """What it computes, in a line."""
        return label_of(self.plan)

    @abstractmethod
    def is_ready(self) -> bool:
        """Check whether there is code to call; build it if need be."""

    @property
    def is_at_work(self) -> bool:
        """Whether its code is being compiled in a thread."""
        return False

    @abstractmethod
    def fill(self, arrays: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        """Compute the ``count`` values of a result whose pattern is known: dense, or that of an operand."""

    @abstractmethod
    def build(self, arrays: Sequence[torch.Tensor], check: Check, bound: int = 0) -> Arrays:
        """Compute the arrays of a result with a new pattern; ``check`` takes the bytes of dense levels.

        ``bound``: the maximal number of entries, where the plan writes them in place.
        """

    @property
    def collects(self) -> bool:
        """Whether there may be kernels for ``collect``."""
        return False

    def collect(self, arrays: Sequence[torch.Tensor]) -> Collected | None:
        """Find the entries of a result with a new pattern; None where there is no kernel."""
        del arrays
        return None

    can_combine = False  # whether there may be a kernel for ``combine``

    def begin(self) -> None:
        """Have the kernels of ``collect`` and ``combine`` compiled meanwhile: they are about to be called."""
        return None

    def combine(
        self,
        places: Sequence[Places],
        values: Sequence[torch.Tensor],
        count: int,
        columns: Sequence[torch.Tensor] = (),
        dense: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor | None:
        """Compute ``count`` values, each from entries with known numbers; None where there is no kernel.

        ``dense`` operands, contiguous, are read at the coordinates ``columns`` in each index of the result.
        """
        del places, values, count, columns, dense
        return None

    @property
    def direct(self) -> Direct | None:
        """A shorter way to call the kernel, if there is one."""
        return None

    def workers(self) -> int:
        """Return how many workers share a call now."""
        return 1

    def describe(self, call: Call) -> Description | None:
        """Describe how a call runs; None where the plan says all."""
        del call
        return None


class GroupExecutable(ABC):
    """The kernel of a group of steps, which has several results whose sparsity patterns are all known."""

    def __init__(self, fused: Fused) -> None:
        self.fused = fused
        self.dtype = dtype_of_type(fused.group.element)
        self.source = ""
        self.how = ""  # how it runs, where the plan does not say all

    @property
    def label(self) -> str:
        return self.fused.kernel.header.splitlines()[0]

    @abstractmethod
    def is_ready(self) -> bool:
        """Check whether there is code to call; build it if need be."""

    @abstractmethod
    def run(
        self, arrays: Sequence[torch.Tensor], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        """Run the kernel; the results have these shapes."""

    def workers(self) -> int:
        """Return how many workers share a call now."""
        return 1


class Backend(ABC):
    """Where kernels are built and run."""

    name: ClassVar[str]
    routines = Routines()
    target: Target | None = None  # what its kernels are planned for, if not the processor
    is_on_host: ClassVar[bool] = False  # whether its kernels read the memory of the host

    @abstractmethod
    def write(self, planned: Planned) -> Schedule:
        """Lower a plan and print its kernel."""

    @abstractmethod
    def build(self, schedule: Schedule, sizes: Mapping[str, int]) -> Executable:
        """Build the kernel of a plan; it may be compiled when it is first called."""

    @abstractmethod
    def build_group(self, fused: Fused) -> GroupExecutable:
        """Build the kernel of a group of steps."""

    def build_ahead(self, sources: Sequence[str]) -> None:
        """Compile kernels side by side that will be called one after the other."""
        del sources  # where nothing is compiled

    def expect(self, device: torch.device, values: torch.dtype, index: torch.dtype) -> bool:
        """Prepare for operations on tensors with these dtypes, of which there is one now; False: not yet."""
        del device, values, index
        return True

    def missing(self) -> str | None:
        """Describe what this machine lacks to run kernels, and how to get it; None if nothing is missing."""
        return None

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized tensor, in memory of an earlier result if the backend pools it."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def leave_cores(self) -> Callable[[], None] | None:
        """Have what torch computes on the host leave cores to other programs, and return what ends that.

        None where there is nothing to do.
        """
        return None

    def repeater(self, objects: CallObjects) -> Repeater | None:
        """Return the builtins that repeat calls, if it has them."""
        del objects
        return None

    @property
    def device(self) -> torch.device:
        """Where its arrays are."""
        return torch.device("cpu")


class Needs(NamedTuple):
    """What a type of device needs, and the ``signs`` by which torch's errors about its absence are known.

    ``waiting``: signs of errors about the host, which cannot wait for the device now. ``is_available``:
    whether this machine has such a device.
    """

    text: str
    signs: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    is_available: Callable[[], bool] = lambda: True


_BACKENDS: dict[str, Backend] = {}
_ROUTINES: dict[torch.device, Routines] = {}  # of the backend of each device
_EXPECTED: set[tuple[torch.dtype, torch.dtype]] = set()  # dtypes that backends have prepared for
_DEVICES: dict[str, None] = {}  # types of devices that some backend computes on
_NEEDS: dict[str, Needs] = {}  # by type of device, also of those that this machine or build of torch lacks
_DEFAULT = "cpu"  # also plans what is to run on tensors without memory


def register_backend(name: str, backend: Backend, purpose: str = "") -> None:
    """Add a backend: for the devices of type ``name``, and for ``settings(backend=name)``."""
    _BACKENDS[name] = backend
    _ROUTINES.clear()
    _DEVICES[backend.device.type] = None
    add_backend(name, purpose)


def register_needs(device_type: str, needs: Needs) -> None:
    """Say what devices of a type need, for the error of a call that asks for one that is not there."""
    _NEEDS[device_type] = needs


def needs_of(device_type: str) -> str:
    """Return what devices of a type need, as a sentence; an empty text if nothing is known of them."""
    needs = _NEEDS.get(device_type)
    return "" if needs is None else needs.text


def is_available(device: torch.device) -> bool:
    """Check whether this machine has devices of this type."""
    needs = _NEEDS.get(device.type)
    return needs is None or needs.is_available()


def needs_behind(message: str) -> str:
    """Return what the device needs that an error message of torch is about, or an empty text."""
    for needs in _NEEDS.values():
        if any(sign in message for sign in needs.signs):
            return needs.text
    return ""


def is_about_waiting(message: str) -> bool:
    """Check whether an error message of torch is about a host that cannot wait for a device now."""
    return any(sign in message for needs in _NEEDS.values() for sign in needs.waiting)


def is_served(device: torch.device) -> bool:
    """Check whether some backend computes on a device."""
    return device.type in _DEVICES


def served_devices() -> tuple[str, ...]:
    """Return the types of devices that some backend computes on, the usual one first."""
    return tuple(_DEVICES)


def served_in_words() -> str:
    """Return the types of devices that Scorch supports, and which of them torch has here, for messages."""
    known = " and ".join({**_DEVICES, **dict.fromkeys(_NEEDS)})
    if _DEVICES.keys() >= _NEEDS.keys():
        return known
    return f"{known}, of which this build of PyTorch has {' and '.join(_DEVICES)}"


def repeater(objects: CallObjects) -> Repeater | None:
    """Return the builtins of the host that repeat calls; None if there are none."""
    return backend_named(_DEFAULT).repeater(objects)


def host_threads() -> int:
    """Return the number of threads that torch computes with on the host, on which measured times depend."""
    return torch.get_num_threads()


@contextmanager
def using_host_threads(threads: int) -> Iterator[None]:
    """Have torch compute on the host with ``threads`` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


MANY_VALUES = 4096  # from which on a loop of torch may wait for other programs


def run_among_others(
    values: torch.Tensor, function: Callable[..., Result], *args: Any, **kwargs: Any
) -> Result:
    """Run a PyTorch function, on as many values, without waiting for cores that other programs have.

    It must give the same result on any number of cores, as elementwise functions and copies do.
    """
    is_large = type(values) is torch.Tensor and values.numel() >= MANY_VALUES and values.is_cpu
    end = backend_named(_DEFAULT).leave_cores() if is_large else None
    if end is None:
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    finally:
        end()


def routines_for(tensor: torch.Tensor) -> Routines:
    """Return the routines for arrays on the device of ``tensor``."""
    device = tensor.device
    known = None if (in_block() or applied[0]).backend else _ROUTINES.get(device)
    if known is None:
        known = backend_for(device).routines
        if not current().backend:
            _ROUTINES[device] = known
    return known


def expect(values: torch.Tensor, index: torch.dtype) -> None:
    """Have the backend of a device prepare for sparse tensors with the dtypes of one, once for each pair."""
    dtypes = values.dtype, index
    if dtypes not in _EXPECTED:
        backend = _BACKENDS.get(values.device.type)
        if backend is not None and backend.expect(values.device, *dtypes):
            _EXPECTED.add(dtypes)


def check_waiting(device: torch.device, what: str) -> None:
    """Raise where ``what`` must not be computed on a device to be cached: nobody can wait for it now."""
    backend = _BACKENDS.get(device.type)
    if backend is not None:
        backend.routines.check_waiting(device, what)


def draw_seeds(device: torch.device, start: int, stop: int, count: int = 1) -> list[int]:
    """Draw seeds on the host, of which kernels on a device compute random numbers."""
    backend = _BACKENDS.get(device.type)
    if backend is not None:
        backend.routines.check_seeds(device)
    seeds: list[int] = torch.randint(start, stop, (count,), device=HOST).tolist()
    return seeds


def settle(device: torch.device, what: str) -> None:
    """Wait for ``what``, which was computed on a device, so that it may be cached for anybody to read."""
    check_waiting(device, what)
    backend = _BACKENDS.get(device.type)
    if backend is not None:
        backend.routines.settle(device)


def record(device: torch.device) -> Callable[[], None] | None:
    """Return what others call before they read what is copied to a device now; None if nobody must."""
    backend = _BACKENDS.get(device.type)
    return None if backend is None else backend.routines.record(device)


def backend_for(device: torch.device | None = None) -> Backend:
    """Return the backend that the settings name, or that of a device."""
    is_abstract = device is None or device.type == "meta"
    chosen = current().backend
    if chosen and chosen not in _BACKENDS:  # of the environment: settings() refuses what is not registered
        read_environment("SCORCH_BACKEND").one_of(_BACKENDS)
    backend = backend_named(chosen or (_DEFAULT if is_abstract or device is None else device.type))
    if chosen and backend.is_on_host and device is not None and not is_abstract and device != HOST:
        raise DeviceError(
            f"settings(backend={chosen!r}) selects a CPU backend, but a tensor is on {device}; remove the "
            "setting, or move the tensor with .cpu()"
        )
    return backend


def backend_named(name: str) -> Backend:
    """Return the backend that was registered as ``name``."""
    backend = _BACKENDS.get(name)
    if backend is None:
        raise ArgumentError(f"unknown backend {name!r}; choose from {', '.join(_BACKENDS)}")
    return backend
