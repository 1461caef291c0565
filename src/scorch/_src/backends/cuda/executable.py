"""Kernels on a CUDA device, each one grid; steps that are none run by joins in torch's operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda import driver, nvrtc
from scorch._src.backends.launcher import address_of
from scorch.errors import CompilationError, KernelError, warn


class CudaExecutable(base.Executable):
    """A kernel that fills values whose places are known. Without a text there is none, and joins run."""

    def __init__(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> None:
        super().__init__(schedule, sizes)
        self._codes: dict[str, bytes] = {}  # by architecture
        self._functions: dict[torch.device, int] = {}
        self._is_refused = False

    def is_ready(self) -> bool:
        if not self.source or self._is_refused or not nvrtc.is_there():
            return False
        if not self._codes:
            try:
                self._code(torch.cuda.current_device())
            except CompilationError as error:
                self._is_refused = True
                warn(f"{error}\nIt is computed by torch's own operations instead, which takes longer.")
                return False
        return True

    def _code(self, device: torch.device | int) -> bytes:
        major, minor = torch.cuda.get_device_capability(device)
        architecture = f"sm_{major}{minor}"
        code = self._codes.get(architecture)
        if code is None:
            code = nvrtc.compile_cuda(self.source, architecture, self.label)
            self._codes[architecture] = code
        return code

    def _function(self, device: torch.device) -> int:
        known = self._functions.get(device)
        if known is None:
            known = self._functions[device] = driver.load(self._code(device), "scorch_compute", device)
        return known

    def fill(self, arrays: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        device = arrays[0].device
        values = torch.empty(count, dtype=self.dtype, device=device)
        if not self.writes_everything:
            values.fill_(self.identity)
        if not count:
            return values
        with driver.in_context(device):
            slots = [0, 1, *self.sizes, *map(address_of, arrays), address_of(values)]
            driver.launch(self._function(device), slots, count, device)
        return values

    def build(self, arrays: Sequence[torch.Tensor], check: base.Check, bound: int = 0) -> base.Arrays:
        raise KernelError(f"there is no kernel for {self.label}")
