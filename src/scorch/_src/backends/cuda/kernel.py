"""A CUDA text, compiled when it is first called, and loaded on each device that it is called on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from scorch._src.backends.cuda import driver, nvrtc
from scorch._src.bounded import BoundedCache
from scorch.errors import CompilationError, warn

MAX_KERNELS = 4096

_kernels: BoundedCache[str, CudaKernel] = BoundedCache(MAX_KERNELS)


def kernel_of(source: str, label: str) -> CudaKernel:
    """Return the kernel of a text, which all that have that text share, ``explain`` too."""
    known = _kernels.get(source)
    if known is None:
        known = _kernels[source] = CudaKernel(source, label)
    return known


class CudaKernel:
    """The functions of a text. ``label`` says what they compute, for messages."""

    def __init__(self, source: str, label: str) -> None:
        self.source, self.label = source, label
        self._codes: dict[tuple[int, int], bytes] = {}  # by architecture
        self._functions: dict[tuple[str, int], Any] = {}  # by name and device
        self._is_refused = False

    def is_ready(self) -> bool:
        """Check whether there is code for the current device; compile it if need be."""
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

    def launch(self, name: str, slots: Sequence[Any], threads: int, device: int) -> None:
        """Run a function with as many threads."""
        function = self._functions.get((name, device)) or self._function(name, device)
        driver.launch(function, slots, threads, device)

    def launch_blocks(
        self, name: str, slots: Sequence[Any], blocks: int, threads: int, shared: int, device: int
    ) -> None:
        """Run a function with as many blocks, each with as many bytes of shared memory."""
        driver.launch_blocks(self._function(name, device), slots, blocks, threads, shared, device)

    def facts(self) -> str:
        """Say how many registers and how much shared memory functions take that have been loaded."""
        if not self._functions:
            return ""
        found = [driver.function_facts(function) for function in self._functions.values()]
        registers, shared = (max(numbers) for numbers in zip(*found, strict=True))
        return f"{registers} registers a thread, {shared:,} bytes of shared memory"

    def _function(self, name: str, device: int) -> Any:
        function = self._functions.get((name, device))
        if function is None:
            function = self._functions[name, device] = driver.load(self._code(device), name, device)
        return function

    def _code(self, device: int) -> bytes:
        capability = torch.cuda.get_device_capability(device)
        code = self._codes.get(capability)
        if code is None:
            code = nvrtc.compile_cuda(self.source, "sm_{}{}".format(*capability), self.label)
            self._codes[capability] = code
        return code
