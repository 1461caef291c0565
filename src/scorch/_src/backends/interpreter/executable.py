"""Kernels in Python, every access checked: a second opinion, and a backend that needs no compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from scorch._src.backends import base
from scorch._src.backends.interpreter import interpret
from scorch._src.backends.launcher import Launcher, address_of
from scorch._src.compiler.fuse.group import Fused
from scorch._src.compiler.pipeline import Planned
from scorch._src.loops.nodes import Kernel
from scorch.errors import KernelError

WORKERS = 2  # as if: what they share is checked too


class Interpreted:
    """The functions of a kernel, with the memory that they keep from one call to the next."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.memory = interpret.Memory()

    def slot(self, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        """Return the elements by their address: torch lets nobody resize a tensor after ``numpy()``."""
        assert tensor.is_cpu, "the interpreter reads memory of the host"
        flat = tensor.detach().reshape(-1)
        is_half = flat.dtype in (torch.bfloat16, torch.float16)
        dtype = np.dtype("uint16" if is_half else str(flat.dtype).removeprefix("torch."))
        if not flat.numel():
            return np.empty(0, dtype)
        memory: Any = (ctypes.c_char * (flat.numel() * dtype.itemsize)).from_address(address_of(flat))
        memory.tensor = flat  # alive as long as the array
        return np.frombuffer(memory, dtype)

    def call(self, function: str, slots: list[Any]) -> int:
        return interpret.run(self.kernel, function, slots, self.memory)


class InterpretedExecutable(Launcher):
    clears_results = True

    @property
    def engine(self) -> Interpreted:
        return Interpreted(self.schedule.planned.kernel())

    def header(self) -> list[Any]:
        return [0, WORKERS, *self.sizes]

    def is_ready(self) -> bool:
        return True


class InterpretedGroup(base.GroupExecutable):
    def is_ready(self) -> bool:
        return True

    def run(
        self, arrays: Sequence[torch.Tensor], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        engine = Interpreted(self.fused.kernel)
        results = [torch.full(shape, -101, dtype=self.dtype, device="cpu") for shape in shapes]
        slots = [0, WORKERS, *sizes, *(engine.slot(array) for array in (*arrays, *results))]
        if engine.call("scorch_compute", slots):
            raise KernelError(f"out of memory while computing {self.label}")
        return results


class InterpreterBackend(base.Backend):
    name = "interpreter"
    is_on_host = True

    def write(self, planned: Planned) -> base.Schedule:
        return base.schedule_of(planned, planned.kernel(), "")

    def build(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> base.Executable:
        # The schedule may be one of another backend, which has other slots, or none.
        return InterpretedExecutable(self.write(schedule.planned), sizes)

    def build_group(self, fused: Fused) -> base.GroupExecutable:
        return InterpretedGroup(fused)


INTERPRETER = InterpreterBackend()
base.register_backend("interpreter", INTERPRETER, "kernels in Python, every access checked: slow")
