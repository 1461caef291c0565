"""Groups of steps on tensors: planned and compiled once, then called (``compiler.fuse``)."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from scorch._src.backends.cpu import invoke, jit, toolchain
from scorch._src.backends.cpu.kernel import Interpreted, build_together, warn_not_compiled
from scorch._src.backends.cpu.launch import MOST_SLOTS, builtins, pack, result_facts
from scorch._src.backends.cpu.print.c import print_kernel
from scorch._src.backends.cpu.print.scalar import print_scalar
from scorch._src.backends.cpu.routines.transpose import laid_out
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.bounds import HUGE_PAGE
from scorch._src.compiler.fuse.fuse import fuse
from scorch._src.compiler.fuse.group import Fused, FusionError, Group
from scorch._src.compiler.plan import Step
from scorch._src.compiler.typing import dtype_of_type, type_of_dtype
from scorch._src.engine.executable import SERIAL_WORK, as_stored, threads_for
from scorch._src.engine.execute import key_of, operand_of
from scorch._src.events import LISTENERS, tell
from scorch._src.storage.budget import LARGE, check_budget
from scorch._src.storage.storage import Pattern, Storage
from scorch.errors import CompilationError, KernelError
from scorch.settings import current

MOST_GROUPS = 1024
MOST_FACTS = 64
PATTERN = "P"  # what kernels call the pattern; no tensor of a group is called so

_kernels: BoundedCache[Hashable, FusedKernel | str] = BoundedCache(MOST_GROUPS)


@dataclass(frozen=True)
class Steps:
    """Steps as they are asked for, before anything is known of tensors.

    ``stored`` are the tensors with values at the entries of a pattern with the indices ``walked``. Without
    a pattern there is one index, over all values whatever the format.
    """

    steps: tuple[Step, ...]
    kept: tuple[str, ...]
    walked: tuple[str, ...]
    stored: frozenset[str]
    sizes: tuple[tuple[str, int], ...]


def fused_kernel(
    wanted: Steps, pattern: Pattern | None, tensors: Mapping[str, torch.Tensor]
) -> FusedKernel | str:
    """The kernel for ``wanted``, or why there is none; planned anew only if there was none.

    ``tensors`` are the dense tensors and the values on the pattern that are read.
    """
    dense = {name: tensor for name, tensor in tensors.items() if name not in wanted.stored or pattern is None}
    stored = next((t.dtype for n, t in tensors.items() if n in wanted.stored), torch.float32)
    if not toolchain.has_compiler():
        return "there is no C compiler"
    facts = tuple((name, key_of(tensor)) for name, tensor in dense.items())
    key = (wanted, None if pattern is None else pattern.key, facts, stored, current().without)
    found = _kernels.get(key)
    if found is None:
        found = _kernels[key] = _planned(wanted, pattern, tensors, dense)
    return found


def _planned(
    wanted: Steps,
    pattern: Pattern | None,
    tensors: Mapping[str, torch.Tensor],
    dense: Mapping[str, torch.Tensor],
) -> FusedKernel | str:
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1:
        return f"tensors of several dtypes: {', '.join(sorted(map(str, dtypes)))}"
    element = type_of_dtype(dtypes.pop())
    walked = None
    if pattern is not None:
        walked = Storage(pattern, torch.empty(0, dtype=dtype_of_type(element))).operand(PATTERN)
    group = Group(
        wanted.steps,
        wanted.kept,
        walked,
        wanted.walked,
        wanted.stored if pattern is not None else frozenset(),
        tuple(operand_of(name, tensor) for name, tensor in dense.items()),
        wanted.sizes,
        element,
    )
    try:
        return FusedKernel(fuse(group))
    except FusionError as reason:
        return str(reason)


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor with any values; a large one in pages that an earlier result has left, if there are some."""
    made = builtins()
    if made is None or math.prod(shape) * dtype.itemsize < HUGE_PAGE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    facts = result_facts(type_of_dtype(dtype), shape, zero=False)
    found: torch.Tensor = made.fill(_nothing(), pack([]), facts, None)
    return found


@functools.cache
def _nothing() -> int:
    """A kernel that leaves its result as it is."""
    source = "long long scorch_compute(long long *args) { (void)args; return 0; }\n"
    return jit.load(source, label="nothing").address("scorch_compute")


def without_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as kernels read it, row by row."""
    if tensor.is_contiguous():
        return tensor
    return empty(tensor.shape, tensor.dtype).copy_(tensor)


class FusedKernel:
    """The kernel of a group, compiled when it is first called; ``inputs`` are what it is given, in order."""

    def __init__(self, fused: Fused) -> None:
        self.fused = fused
        self.source = print_kernel(fused.kernel)
        self.header = fused.kernel.header
        group = fused.group
        sizes = dict(group.sizes)
        self.inputs = tuple(name for name, _ in fused.inputs)
        self.kept = group.kept
        self.sizes = [size for _, size in group.sizes]
        self.is_flat = group.pattern is None
        targets = {step.target.tensor: step.target for step in group.steps}
        self.shapes: dict[str, tuple[int, ...] | None] = {
            name: None
            if name in group.stored or self.is_flat
            else tuple(sizes[index] for index in targets[name].indices)
            for name in group.kept
        }
        self.dtype = dtype_of_type(group.element)
        self.dense_bytes = max(
            (self.dtype.itemsize * math.prod(shape) for shape in self.shapes.values() if shape), default=0
        )
        self.is_serial = fused.work < SERIAL_WORK
        self.parallel_for = 0 if self.is_serial else invoke.parallel_runtime()
        self._first: dict[tuple[int, int], bytes] = {}
        self._failed = False
        self._facts: dict[int, bytes] = {}  # of the last result, by the number of entries

    @functools.cached_property
    def address(self) -> int:
        build_together([self.source])
        label = self.header.splitlines()[0]
        library = jit.load(self.source, label, lambda: print_scalar(self.fused.kernel))
        return library.address("scorch_compute")

    def _is_ready(self) -> bool:
        """Whether there is machine code to call; not if all compilers fail at it."""
        if "address" in self.__dict__:
            return True
        if not self._failed:
            try:
                return bool(self.address)
            except CompilationError as error:
                self._failed = True
                warn_not_compiled(error)
        return False

    def __call__(
        self, pattern: Pattern | None, tensors: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The results that are kept by name: dense tensors, and the values of sparse ones."""
        arrays = [tensors[name] for name in self.inputs]
        count = pattern.size if pattern is not None else arrays[0].numel()
        return dict(zip(self.kept, self.run(pattern, arrays, count), strict=True))

    def run(self, pattern: Pattern | None, arrays: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
        """The results that are kept, of the inputs in their order and ``count`` entries."""
        if not LISTENERS:
            return self._run(pattern, arrays, count)
        start = time.perf_counter()
        found = self._run(pattern, arrays, count)
        tell("fused", self, (pattern, *arrays), found, start)
        return found

    def _run(self, pattern: Pattern | None, arrays: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
        threads = 1 if self.is_serial else threads_for(self.fused.work, SERIAL_WORK)
        if self.dense_bytes > LARGE or current().dense_budget is not None:
            check_budget(self.dense_bytes, "a result of fused calls", "use fewer columns")
        if not self._is_ready():
            return self._interpreted(pattern, arrays, count)
        given = self._read(pattern, arrays, threads)
        shapes = [(count,) if shape is None else shape for shape in self.shapes.values()]
        found = [empty(shape, self.dtype) for shape in shapes[:-1]]
        made = builtins()
        if made is not None and 2 + len(self.sizes) + len(given) + len(found) < MOST_SLOTS:
            key = threads, count if self.is_flat else 0
            first = self._first.get(key)
            if first is None:
                first = pack(self._slots(threads, count))
                if len(self._first) < MOST_FACTS:
                    self._first[key] = first
            facts = self._facts.get(count)
            if facts is None:
                facts = result_facts(self.fused.group.element, shapes[-1], zero=False)
                if len(self._facts) < MOST_FACTS:
                    self._facts[count] = facts
            try:
                found.append(made.fill(self.address, first, facts, None, *given, *found))
            except MemoryError as error:
                raise KernelError(f"{error} while computing {self.header.splitlines()[0]}") from error
        else:
            found.append(torch.empty(shapes[-1], dtype=self.dtype, device="cpu"))
            slots = [*self._slots(threads, count), *map(invoke.address_of, (*given, *found))]
            if invoke.make_caller().call_back(self.address, slots):
                raise KernelError(f"memory ran out while computing {self.header.splitlines()[0]}")
        if current().debug:
            self._compare(pattern, arrays, count, found)
        return found

    def _slots(self, threads: int, count: int) -> list[int]:
        return [self.parallel_for, threads, *([count] if self.is_flat else self.sizes)]

    def _read(
        self, pattern: Pattern | None, arrays: Sequence[torch.Tensor], threads: int
    ) -> list[torch.Tensor]:
        """All arrays that the kernel reads."""
        found: list[torch.Tensor] = []
        if pattern is not None:
            pos, crd = pattern.pos[1], pattern.crd[1]
            assert pos is not None and crd is not None
            found += [pos, crd]
        for array, (_, form) in zip(arrays, self.fused.inputs, strict=True):
            found.append(as_stored(array if form is None else laid_out(array, form.order, threads)))
        return found

    def interpret(
        self, pattern: Pattern | None, tensors: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The same as a call through the interpreter, which checks every access, as if on two threads."""
        arrays = [tensors[name] for name in self.inputs]
        count = pattern.size if pattern is not None else arrays[0].numel()
        return dict(zip(self.kept, self._interpreted(pattern, arrays, count), strict=True))

    def _interpreted(
        self, pattern: Pattern | None, arrays: Sequence[torch.Tensor], count: int
    ) -> list[torch.Tensor]:
        engine = Interpreted(self.fused.kernel)
        slots: list[object] = list(self._slots(2, count))
        slots += [engine.slot(array.reshape(-1)) for array in self._read(pattern, arrays, 1)]
        found = []
        for shape in self.shapes.values():
            found.append(
                torch.full((count,) if shape is None else shape, -101, dtype=self.dtype, device="cpu")
            )
            slots.append(engine.slot(found[-1].view(-1)))
        if engine.call("scorch_compute", slots):
            raise KernelError(f"memory ran out while computing {self.header.splitlines()[0]}")
        return found

    def _compare(
        self,
        pattern: Pattern | None,
        arrays: Sequence[torch.Tensor],
        count: int,
        found: Sequence[torch.Tensor],
    ) -> None:
        again = self._interpreted(pattern, arrays, count)
        for name, values, others in zip(self.kept, found, again, strict=True):
            if not torch.allclose(values, others, rtol=1e-4, atol=1e-5, equal_nan=True):
                raise KernelError(f"the kernel and the interpreter differ in {name} of\n{self.header}")
