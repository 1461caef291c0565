"""Run the text of a CUDA kernel on the processor: threads one after another, in a random order."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scorch._src.backends import base
from scorch._src.backends.cpu import jit
from scorch._src.backends.cuda.backend import CudaBackend, facts_of
from scorch._src.backends.cuda.executable import CudaExecutable
from scorch._src.backends.interpreter import interpret
from scorch._src.backends.interpreter.executable import Interpreted
from scorch._src.loops.grid import as_grid

THREADS = 64  # in a block

_BEFORE = """\
#include <ucontext.h>
#define KERNEL static
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
struct place { unsigned x; };
static struct place blockIdx, blockDim, threadIdx, gridDim;
#define EXCHANGE(value, step, threads) ({ \\
  __typeof__(value) value_ = (value); exchange(&value_, sizeof value_, step, threads); value_; })
static void exchange(void *value, int size, int step, int threads);
void *memcpy(void *, const void *, unsigned long);
#define MATH1(name) double name(double); float name##f(float);
#define MATH2(name) double name(double, double); float name##f(float, float);
MATH1(fabs) MATH1(exp) MATH1(log) MATH1(sqrt) MATH1(tanh) MATH1(sin) MATH1(cos) MATH1(tan) MATH1(sinh)
MATH1(cosh) MATH1(expm1) MATH1(log1p) MATH1(floor) MATH1(ceil) MATH1(rint) MATH1(trunc) MATH1(erf)
MATH2(pow) MATH2(hypot) MATH2(atan2) MATH2(copysign)
"""
# The threads of a warp are fibers: one runs until it exchanges a value or ends, then the next. All have to
# exchange as often as those that they exchange with.
_AFTER = """
#define WARP 32
static struct fiber {
  ucontext_t context;
  int is_done, exchanges;
  char values[16][16], stack[1 << 16];
} fibers[WARP];
static ucontext_t scheduler;
static int running;
static struct slots *given;
void abort(void);

static void exchange(void *value, int size, int step, int threads) {
  struct fiber *self = fibers + running, *other = fibers + (running ^ step);
  const int turn = self->exchanges++;
  if (step >= threads) abort();
  memcpy(self->values[turn % 16], value, size);
  while (other->exchanges <= turn) {
    if (other->is_done) abort();
    swapcontext(&self->context, &scheduler);
  }
  memcpy(value, other->values[turn % 16], size);
  if (other->exchanges > turn + 16) abort();
}
static void run_thread(void) {
  scorch_compute(*given);
  fibers[running].is_done = 1;
  swapcontext(&fibers[running].context, &scheduler);
}
void emulate(struct slots *slots, const int *order, int blocks, int threads) {
  gridDim.x = blocks, blockDim.x = threads, given = slots;
  for (int number = 0; number < blocks * threads / WARP; number++) {
    const int first = order[number] * WARP;
    blockIdx.x = first / threads;
    for (int lane = 0; lane < WARP; lane++) {
      struct fiber *fiber = fibers + lane;
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = fiber->stack, fiber->context.uc_stack.ss_size = sizeof fiber->stack;
      fiber->context.uc_link = &scheduler, fiber->is_done = fiber->exchanges = 0;
      makecontext(&fiber->context, run_thread, 0);
    }
    for (int left = WARP; left;) {
      left = 0;
      for (int lane = 0; lane < WARP; lane++) {
        if (fibers[lane].is_done) continue;
        running = lane, threadIdx.x = first % threads + lane, left++;
        swapcontext(&scheduler, &fibers[lane].context);
      }
    }
  }
}
"""


def run_grid(source: str, function: str, slots: Sequence[int], threads: int) -> None:
    """Run a function with as many threads, up to a few blocks; the rest they do in further turns."""
    library = jit.load(_BEFORE + source + _AFTER.replace("scorch_compute(", f"{function}("))
    blocks = min(max(1, -(-threads // THREADS)), 3)
    order = torch.randperm(blocks * THREADS // 32, dtype=torch.int32)
    emulate = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    block = (ctypes.c_longlong * len(slots))(*slots)
    emulate(library.address("emulate"))(ctypes.addressof(block), order.data_ptr(), blocks, THREADS)


class EmulatedExecutable(CudaExecutable):
    """A kernel for CUDA devices, run on the host."""

    def is_ready(self) -> bool:
        return bool(self.source)

    def allocate(self, shape: Sequence[int], device: torch.device) -> torch.Tensor:
        return torch.full(shape, -101 if self.dtype.is_signed else 101, dtype=self.dtype)

    def launch(self, function: str, slots: Sequence[int], threads: int, device: int) -> None:
        run_grid(self.source, function, slots, threads)


class EmulatedBackend(CudaBackend):
    """Plans and kernels for CUDA devices, on arrays of the host: all but the device itself."""

    name = "emulated"

    def build(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> base.Executable:
        return EmulatedExecutable(schedule, sizes)

    def missing(self) -> str | None:
        return None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


class InterpretedGridExecutable(EmulatedExecutable):
    """The loops of a grid in the interpreter, which checks every access."""

    def slot(self, tensor: torch.Tensor) -> Any:
        return Interpreted(self.schedule.planned.kernel()).slot(tensor)

    def launch(self, function: str, slots: Sequence[Any], threads: int, device: int) -> None:
        planned = self.schedule.planned
        kernel, _ = as_grid(planned.kernel(), facts_of(planned.plan))
        assert not interpret.run(kernel, function, list(slots))


class InterpretedGridBackend(EmulatedBackend):
    name = "interpreted grid"

    def build(self, schedule: base.Schedule, sizes: Mapping[str, int]) -> base.Executable:
        return InterpretedGridExecutable(schedule, sizes)


if "emulated" not in base._BACKENDS:
    base.register_backend("interpreted grid", InterpretedGridBackend(), "grids, interpreted")
    base.register_backend("emulated", EmulatedBackend(), "the kernels of CUDA devices, emulated")
