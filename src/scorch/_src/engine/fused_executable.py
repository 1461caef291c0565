"""Groups of steps on tensors: planned and compiled once, then called (``compiler.fuse``)."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Hashable, Mapping, Sequence

import torch

from scorch._src.backends.base import Backend, GroupExecutable, backend_for, backend_named
from scorch._src.bounded import BoundedCache
from scorch._src.compiler.fuse.fuse import fuse
from scorch._src.compiler.fuse.group import Fused, FusionError, Group
from scorch._src.compiler.plan import Step
from scorch._src.compiler.target import using_target
from scorch._src.compiler.typing import dtype_of_type, type_of_dtype
from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.engine.executable import as_stored, laid_out
from scorch._src.engine.execute import key_of, operand_of
from scorch._src.events import LISTENERS, emit
from scorch._src.storage.budget import UNCHECKED_BYTES, check_budget
from scorch._src.storage.storage import Pattern, Storage
from scorch.errors import KernelError
from scorch.settings import current

MAX_GROUPS = 1024
PATTERN = "P"  # what kernels call the pattern; no tensor of a group is called so

_kernels: BoundedCache[Hashable, FusedKernel | str] = BoundedCache(MAX_GROUPS, "fused groups")


@dataclass(frozen=True)
class Steps:
    """Steps as they are requested, before any tensor is seen.

    ``stored`` are the tensors with values at the entries of a pattern with the indices ``walked``. Without
    a pattern there is one index, over all values whatever the format.
    """

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    walked: tuple[str, ...]
    stored: frozenset[str]
    sizes: tuple[tuple[str, int], ...]


def fused_kernel(
    wanted: Steps,
    pattern: Pattern | None,
    tensors: Mapping[str, torch.Tensor],
    device: torch.device | None = None,
) -> FusedKernel | str:
    """Look up or plan the kernel for ``wanted``; a text says why there is none.

    ``tensors`` are the dense tensors and the values on the pattern that are read; where some have no memory
    yet, ``device`` is the one that they will be on.
    """
    dense = {name: tensor for name, tensor in tensors.items() if name not in wanted.stored or pattern is None}
    stored = next((t.dtype for n, t in tensors.items() if n in wanted.stored), torch.float32)
    devices = dict.fromkeys(str(tensor.device) for tensor in tensors.values() if not tensor.is_meta)
    if len(devices) > 1:
        return f"tensors on several devices: {', '.join(devices)}"
    backend = backend_for(device or next(iter(tensors.values())).device)
    missing = backend.missing()
    if missing is not None:
        return missing.splitlines()[0]
    descriptors = tuple((name, key_of(tensor)) for name, tensor in dense.items())
    key = (
        wanted,
        None if pattern is None else pattern.key,
        descriptors,
        stored,
        backend.name,
        current().disable,
    )
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = _kernels[key] = _plan_kernel(backend, wanted, pattern, tensors, dense)
    return kernel


def _plan_kernel(
    backend: Backend,
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
        walked = Storage(
            pattern, torch.empty(0, dtype=dtype_of_type(element), device=pattern.device)
        ).operand(PATTERN)
    group = Group(
        wanted.steps,
        wanted.outputs,
        walked,
        wanted.walked,
        wanted.stored if pattern is not None else frozenset(),
        tuple(operand_of(name, tensor) for name, tensor in dense.items()),
        wanted.sizes,
        element,
    )
    try:
        with using_target(backend.target):
            return FusedKernel(fuse(group), backend)
    except FusionError as reason:
        return str(reason)


def without_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as kernels read it, row by row."""
    if tensor.is_contiguous():
        return tensor
    return backend_for(tensor.device).empty(tensor.shape, tensor.dtype).copy_(tensor)


class FusedKernel:
    """The kernel of a group, compiled at its first call; ``inputs`` are its arguments, in order."""

    def __init__(self, fused: Fused, backend: Backend) -> None:
        self.fused = fused
        self.kernel = backend.build_group(fused)
        self.device = backend.device
        self.source = self.kernel.source
        self.header = "\n".join(filter(None, (fused.kernel.header, self.kernel.how)))
        group = fused.group
        sizes = dict(group.sizes)
        self.inputs = tuple(name for name, _ in fused.inputs)
        self.outputs = group.outputs
        self.sizes = [size for _, size in group.sizes]
        self.is_flat = group.pattern is None
        self.shapes: dict[str, tuple[int, ...] | None] = {}  # None: values at entries; of scratch, too
        for name in (*group.outputs, *fused.scratch):
            indices = fused.indices_of(name)
            self.shapes[name] = None if indices is None else tuple(sizes[index] for index in indices)
        self.dtype = dtype_of_type(group.element)
        self.dense_bytes = max(
            (self.dtype.itemsize * math.prod(shape) for shape in self.shapes.values() if shape), default=0
        )

    @functools.cached_property
    def interpreted(self) -> GroupExecutable:
        """The kernel for the interpreter, which checks every access, as if on two threads."""
        return backend_named("interpreter").build_group(self.fused)

    def run(self, pattern: Pattern | None, arrays: Sequence[torch.Tensor], count: int) -> list[torch.Tensor]:
        """Run the kernel on the inputs in their order and ``count`` entries; return its outputs in order.

        They are dense tensors, and the values of sparse ones.
        """
        start = time.perf_counter() if LISTENERS else 0.0
        if self.dense_bytes > UNCHECKED_BYTES or current().dense_budget is not None:
            check_budget(self.dense_bytes, self.device, "a result of fused calls", "use fewer columns")
        shapes = [(count,) if shape is None else shape for shape in self.shapes.values()]
        reads = self._read(pattern, arrays), [count] if self.is_flat else self.sizes, shapes
        kernel = self.kernel if self.kernel.is_ready() else self.interpreted
        results = kernel.run(*reads)[: len(self.outputs)]
        if current().debug and kernel is self.kernel:
            read = [array.to(HOST) for array in reads[0]]
            expected = self.interpreted.run(read, *reads[1:])[: len(self.outputs)]
            for name, values, others in zip(self.outputs, results, expected, strict=True):
                if not torch.allclose(values.to(HOST), others, rtol=1e-4, atol=1e-5, equal_nan=True):
                    raise KernelError(f"the kernel and the interpreter differ in {name} of\n{self.header}")
        if LISTENERS:
            emit("fused", self, (pattern, *arrays), results, start)
        return results

    def _read(self, pattern: Pattern | None, arrays: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return all arrays that the kernel reads."""
        inputs: list[torch.Tensor] = []
        if pattern is not None:
            pos, crd = pattern.pos[1], pattern.crd[1]
            assert pos is not None and crd is not None
            inputs += [pos, crd]
        for array, (_, form) in zip(arrays, self.fused.inputs, strict=True):
            inputs.append(as_stored(array) if form is None else laid_out(array, form))
        return inputs
