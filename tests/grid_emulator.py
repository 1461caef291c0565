"""Run the text of a CUDA kernel on the processor: threads one after another, in a random order."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from scorch._src.backends import base
from scorch._src.backends.cpu import jit
from scorch._src.backends.cuda.backend import CudaBackend
from scorch._src.backends.cuda.executable import CudaExecutable
from scorch._src.backends.launcher import address_of

THREADS = 64  # in a block

_BEFORE = """\
#define KERNEL static
struct place { unsigned x; };
static struct place blockIdx, blockDim, threadIdx, gridDim;
void *memcpy(void *, const void *, unsigned long);
#define MATH1(name) double name(double); float name##f(float);
#define MATH2(name) double name(double, double); float name##f(float, float);
MATH1(fabs) MATH1(exp) MATH1(log) MATH1(sqrt) MATH1(tanh) MATH1(sin) MATH1(cos) MATH1(tan) MATH1(sinh)
MATH1(cosh) MATH1(expm1) MATH1(log1p) MATH1(floor) MATH1(ceil) MATH1(rint) MATH1(trunc) MATH1(erf)
MATH2(pow) MATH2(hypot) MATH2(atan2) MATH2(copysign)
"""
_AFTER = """
void emulate(struct slots *slots, const int *order, int blocks, int threads) {
  gridDim.x = blocks, blockDim.x = threads;
  for (int number = 0; number < blocks * threads; number++) {
    blockIdx.x = order[number] / threads, threadIdx.x = order[number] % threads;
    scorch_compute(*slots);
  }
}
"""


def run_grid(source: str, slots: Sequence[int], turns: int) -> None:
    """Run a kernel with a thread for each turn, up to a few blocks; the rest they do in further turns."""
    library = jit.load(_BEFORE + source + _AFTER)
    blocks = min(max(1, -(-turns // THREADS)), 3)
    order = torch.randperm(blocks * THREADS, dtype=torch.int32)
    emulate = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    block = (ctypes.c_longlong * len(slots))(*slots)
    emulate(library.address("emulate"))(ctypes.addressof(block), order.data_ptr(), blocks, THREADS)


class EmulatedExecutable(CudaExecutable):
    """A kernel for CUDA devices, run on the host."""

    def is_ready(self) -> bool:
        return bool(self.source)

    def fill(self, arrays: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        values = torch.full((count,), -101 if self.dtype.is_signed else 101, dtype=self.dtype)
        if not self.writes_everything:
            values.fill_(self.identity)
        if count:
            run_grid(self.source, [0, 1, *self.sizes, *map(address_of, arrays), address_of(values)], count)
        return values


class EmulatedBackend(CudaBackend):
    """Plans and kernels for CUDA devices, on arrays of the host: all but the device itself."""

    name = "emulated"

    def build(self, schedule: base.Schedule, sizes: object) -> base.Executable:
        return EmulatedExecutable(schedule, sizes)

    def missing(self) -> str | None:
        return None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


if "emulated" not in base._BACKENDS:
    base.register_backend("emulated", EmulatedBackend(), "the kernels of CUDA devices, emulated")
