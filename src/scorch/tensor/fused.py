"""Groups of steps on tensors: planned and compiled once, then called (``compiler.fuse``)."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch

from scorch.compiler.fuse import fuse
from scorch.compiler.group import Fused, FusionError, Group
from scorch.compiler.plan import Step
from scorch.compiler.typing import dtype_of_type, type_of_dtype
from scorch.errors import KernelError
from scorch.loops.cpp import print_kernel
from scorch.runtime import invoke, jit
from scorch.runtime.fill import MOST_SLOTS, builtins, pack, result_facts
from scorch.runtime.kernel import Interpreted, build_together
from scorch.runtime.transpose import laid_out
from scorch.settings import current
from scorch.tensor.budget import check_budget
from scorch.tensor.prepared import SERIAL_WORK, as_stored
from scorch.tensor.run import key_of, operand_of
from scorch.tensor.storage import Pattern, Storage

MOST_GROUPS = 1024
PATTERN = "P"  # what kernels call the pattern; no tensor of a group is called so

_kernels: OrderedDict[Hashable, FusedKernel | str] = OrderedDict()


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
    facts = tuple((name, key_of(tensor)) for name, tensor in dense.items())
    key = (wanted, None if pattern is None else pattern.key, facts, stored, current().without)
    found = _kernels.get(key)
    if found is None:
        found = _kernels[key] = _planned(wanted, pattern, tensors, dense)
        if len(_kernels) > MOST_GROUPS:
            _kernels.popitem(last=False)
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


class FusedKernel:
    """The kernel of a group, compiled when it is first called."""

    def __init__(self, fused: Fused) -> None:
        self.fused = fused
        self.source = print_kernel(fused.kernel)
        self.header = fused.kernel.header
        group = fused.group
        sizes = dict(group.sizes)
        self.sizes = [size for _, size in group.sizes]
        targets = {step.target.tensor: step.target for step in group.steps}
        self.shapes: dict[str, tuple[int, ...] | None] = {
            name: None if name in group.stored else tuple(sizes[index] for index in targets[name].indices)
            for name in group.kept
        }
        self.dtype = dtype_of_type(group.element)
        self.is_serial = fused.work < SERIAL_WORK
        self.parallel_for = 0 if self.is_serial else invoke.parallel_runtime()

    @functools.cached_property
    def address(self) -> int:
        build_together([self.source])
        return jit.load(self.source, label=self.header.splitlines()[0]).address("scorch_compute")

    def __call__(
        self, pattern: Pattern | None, tensors: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The results that are kept: dense tensors, and the values of sparse ones."""
        threads = 1 if self.is_serial else current().threads or torch.get_num_threads()
        shapes = {
            name: (0 if pattern is None else pattern.size,) if shape is None else shape
            for name, shape in self.shapes.items()
        }
        for name, shape in shapes.items():
            if self.shapes[name] is not None:
                size = self.dtype.itemsize
                for extent in shape:
                    size *= extent
                check_budget(size, f"{name}, a result of fused calls,", "use fewer columns")
        read = self._read(pattern, tensors, threads)
        *first, last = shapes
        found = {name: torch.empty(shapes[name], dtype=self.dtype, device="cpu") for name in first}
        slots = [self.parallel_for, threads, *self.sizes]
        made = builtins()
        arguments = [*read, *found.values()]
        if made is not None and len(slots) + len(arguments) < MOST_SLOTS:
            facts = result_facts(self.fused.group.element, shapes[last], zero=False)
            try:
                found[last] = made.fill(self.address, pack(slots), facts, None, *arguments)
            except MemoryError as error:
                raise KernelError(f"{error} while computing {self.header.splitlines()[0]}") from error
        else:
            found[last] = torch.empty(shapes[last], dtype=self.dtype, device="cpu")
            slots += [array.data_ptr() for array in (*arguments, found[last])]
            if invoke.make_caller().call_back(self.address, slots):
                raise KernelError(f"memory ran out while computing {self.header.splitlines()[0]}")
        if current().debug:
            self._compare(pattern, tensors, found)
        return found

    def _read(
        self, pattern: Pattern | None, tensors: Mapping[str, torch.Tensor], threads: int
    ) -> list[torch.Tensor]:
        """The arrays that the kernel reads, in order."""
        arrays: list[torch.Tensor] = []
        if pattern is not None:
            pos, crd = pattern.pos[1], pattern.crd[1]
            assert pos is not None and crd is not None
            arrays += [pos, crd]
        for name, form in self.fused.inputs:
            tensor = tensors[name] if form is None else laid_out(tensors[name], form.order, threads)
            arrays.append(as_stored(tensor))
        return arrays

    def interpret(
        self, pattern: Pattern | None, tensors: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The same through the interpreter, which checks every access, as if on two threads."""
        engine = Interpreted(self.fused.kernel)
        slots: list[object] = [self.parallel_for, 2, *self.sizes]
        slots += [engine.slot(array.reshape(-1)) for array in self._read(pattern, tensors, 1)]
        found = {}
        for name, shape in self.shapes.items():
            size = (0 if pattern is None else pattern.size,) if shape is None else shape
            found[name] = torch.full(size, -101, dtype=self.dtype, device="cpu")
            slots.append(engine.slot(found[name].view(-1)))
        if engine.call("scorch_compute", slots):
            raise KernelError(f"memory ran out while computing {self.header.splitlines()[0]}")
        return found

    def _compare(
        self, pattern: Pattern | None, tensors: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
    ) -> None:
        again = self.interpret(pattern, tensors)
        for name, values in found.items():
            if not torch.allclose(values, again[name], rtol=1e-4, atol=1e-5, equal_nan=True):
                raise KernelError(f"the kernel and the interpreter differ in {name} of\n{self.header}")
