"""Run the text of a CUDA kernel on the processor: threads one after another, in a random order."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from scorch._src.backends import base
from scorch._src.backends.cpu import jit
from scorch._src.backends.cuda.backend import CudaBackend
from scorch._src.backends.cuda.device.driver import blocks_for
from scorch._src.backends.cuda.device.kernel import CudaKernel, Launch
from scorch._src.backends.cuda.executables.executable import CudaExecutable
from scorch._src.backends.cuda.executables.group import CudaGroup, spread_group
from scorch._src.backends.cuda.executables.new_pattern import NewPatternExecutable
from scorch._src.backends.cuda.executables.product import ProductExecutable
from scorch._src.backends.cuda.executables.product_turns import bytes_of_sums
from scorch._src.backends.cuda.routines.attention import CudaAttention
from scorch._src.backends.cuda.routines.cuda_routines import CudaRoutines
from scorch._src.backends.interpreter import interpret
from scorch._src.backends.interpreter.executable import Interpreted, InterpretedGroup
from scorch._src.backends.print.cuda import print_cuda
from scorch._src.compiler.fuse.group import Fused
from scorch._src.compiler.lower.driven import lower_driven
from scorch._src.compiler.schedule.grid_facts import facts_of
from scorch._src.loops.grid import as_grid
from scorch._src.loops.nodes import Kernel

Noted = TypeVar("Noted")

THREADS = 128  # in a block

_BEFORE = """\
#undef _FORTIFY_SOURCE /* which forbids jumps to other stacks */
#include <setjmp.h>
#include <ucontext.h>
#define KERNEL static
#define BLOCKS_OF(threads)
#define FEWER_BLOCKS_OF(threads, blocks)
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
struct place { unsigned x; };
static struct place blockIdx, blockDim, threadIdx, gridDim;
#define EXCHANGE(value, step, threads) ({ \\
  __typeof__(value) value_ = (value); exchange(&value_, sizeof value_, step, threads); value_; })
#define EXCHANGE_IN_WARP(value, step, threads) EXCHANGE(value, step, 32)
static void exchange(void *value, int size, int step, int threads);
static void wait_for_all(void);
#define MEET(threads) meet(threads)
static void meet(int threads);
#define EACH_UNIT(turn, threads, count) \\
  for (i64 turn = FIRST_UNIT(threads); turn < (count); turn += UNITS(threads))
#define EACH_UNIT_OF_WARP(turn, own, threads, count) \\
  for (i64 own = FIRST_UNIT(threads), turn; turn = own < (count) ? own : (count) - 1, \\
       own - THREAD(32) / threads < (count); own += UNITS(threads))
#define EACH_BLOCK(turn, count) for (u32 turn = blockIdx.x; turn < (count); turn += gridDim.x)
void abort(void);
static unsigned shared_memory[1 << 16];
#define SHARED(name) u32 *name = shared_memory
#define STATIC_SHARED static
#define SYNC_WARP wait_for_warp
static void wait_for_warp(void);
#define __syncthreads wait_for_all
#define __threadfence()
#define __threadfence_system()
#define __popc __builtin_popcount
#define __ffs __builtin_ffs
#define atomicOr(place, value) ({ \\
  __typeof__(*(place)) before_ = *(place); *(place) |= (value); before_; })
#define atomicAdd(place, value) ((*(place) += (value)) - (value))
#define atomicMax(place, value) ({ \\
  __typeof__(*(place)) before_ = *(place); if (before_ < (value)) *(place) = (value); before_; })
#define atomicCAS(place, wanted, value) ({ \\
  __typeof__(*(place)) before_ = *(place); if (before_ == (wanted)) *(place) = (value); before_; })
#define __syncthreads_or wait_for_any
static int wait_for_any(int is_true);
void *memcpy(void *, const void *, unsigned long);
void *memset(void *, int, unsigned long);
#define MATH1(name) double name(double); float name##f(float);
#define MATH2(name) double name(double, double); float name##f(float, float);
MATH1(fabs) MATH1(exp) MATH1(log) MATH1(sqrt) MATH1(tanh) MATH1(sin) MATH1(cos) MATH1(tan) MATH1(sinh)
MATH1(cosh) MATH1(expm1) MATH1(log1p) MATH1(floor) MATH1(ceil) MATH1(rint) MATH1(trunc) MATH1(erf)
MATH2(pow) MATH2(hypot) MATH2(atan2) MATH2(copysign)
"""
# The threads of a block are fibers: one runs until it waits for others or ends, then the next. All have to
# exchange as often as others of their unit, and to wait as often as all others. A fiber is made once and then
# runs thread after thread: to make one, and to change to another by swapcontext, are calls of the system.
_AFTER = """
#define MOST 1024
#define UNIT_OF_BLOCK 11  // units of 1 << number threads have smaller numbers
#define UNIT_OF_WARP 12
#define UNITS_OF_ALL 13
static struct fiber {
  jmp_buf place;
  int is_made, is_done, votes, turns[UNITS_OF_ALL];
  int exchanges[6];  // by the threads of a unit
  char values[6][16][16];
} fibers[MOST];
static int arrived[UNITS_OF_ALL][MOST], ended[UNITS_OF_ALL][MOST];  // how many threads of each unit have
static int votes[4];
static char stacks[MOST][1 << 16];
static jmp_buf scheduler;
static int running;
static void *given;
static int called;  // which of the functions of the text

static void let_others_run(void) {
  if (!_setjmp(fibers[running].place)) _longjmp(scheduler, 1);
}
static void exchange(void *value, int size, int step, int threads) {
  struct fiber *self = fibers + running, *other = fibers + (running ^ step);
  const int unit = __builtin_ctz(threads), turn = self->exchanges[unit]++;
  if (step >= threads) abort();
  memcpy(self->values[unit][turn % 16], value, size);
  while (other->exchanges[unit] <= turn) {
    if (other->is_done) abort();
    let_others_run();
  }
  memcpy(value, other->values[unit][turn % 16], size);
  if (other->exchanges[unit] > turn + 16) abort();
}
static void wait_for_unit(int kind, int unit, int threads) {
  const int all = threads * ++fibers[running].turns[kind];
  arrived[kind][unit]++;
  while (arrived[kind][unit] < all) {
    if (ended[kind][unit]) abort();
    let_others_run();
  }
}
static void wait_for_all(void) { wait_for_unit(UNIT_OF_BLOCK, 0, blockDim.x); }
static int wait_for_any(int is_true) {
  const int turn = fibers[running].votes++ % 4;  // others may be at the next one, not at that after it
  votes[turn] |= is_true, votes[(turn + 1) % 4] = 0;
  wait_for_all();
  return !!votes[turn];
}
static void wait_for_warp(void) { wait_for_unit(UNIT_OF_WARP, running / 32, 32); }
static void meet(int threads) { wait_for_unit(__builtin_ctz(threads), running / threads, threads); }
static void end_thread(void) {
  fibers[running].is_done = 1;
  for (int kind = 0; kind < UNIT_OF_BLOCK; kind++) ended[kind][running >> kind]++;
  ended[UNIT_OF_BLOCK][0]++, ended[UNIT_OF_WARP][running / 32]++;
}
static void run_threads(void) {
  for (;;) {
    switch (called) {
CASES
    }
    end_thread();
    let_others_run();
  }
}
static void run_fiber(int number) {
  struct fiber *fiber = fibers + number;
  running = number, threadIdx.x = number;
  if (_setjmp(scheduler)) return;
  if (fiber->is_made) _longjmp(fiber->place, 1);
  ucontext_t context;
  fiber->is_made = 1;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks[number], context.uc_stack.ss_size = sizeof stacks[number];
  context.uc_link = 0;
  makecontext(&context, run_threads, 0);
  setcontext(&context);
}
void emulate(int function, void *arguments, const int *order, int blocks, int threads, int mask) {
  gridDim.x = blocks, blockDim.x = threads, given = arguments, called = function;
  for (int number = 0; number < blocks; number++) {
    blockIdx.x = order[number];
    memset(shared_memory, 0xab, sizeof shared_memory);
    memset(arrived, 0, sizeof arrived), memset(ended, 0, sizeof ended), memset(votes, 0, sizeof votes);
    for (int thread = 0; thread < threads; thread++) {
      struct fiber *fiber = fibers + thread;
      fiber->is_done = fiber->votes = 0;
      memset(fiber->turns, 0, sizeof fiber->turns), memset(fiber->exchanges, 0, sizeof fiber->exchanges);
    }
    for (int left = threads, rounds = 0; left; rounds++) {
      if (rounds >> 18) abort();  // they wait for each other
      left = 0;
      for (int turn = 0; turn < threads; turn++) {
        const int thread = turn ^ mask;
        if (fibers[thread].is_done) continue;
        left++;
        run_fiber(thread);
      }
    }
  }
}
"""


_FUNCTIONS = re.compile(r"^KERNEL void [^\n]*?(\w+)\(const struct (\w+) ", re.MULTILINE)


@functools.cache
def load_grids(source: str) -> tuple[Callable[..., None], dict[str, int]]:
    """Compile a text, with all its functions; return how to run one by its number, and these numbers."""
    functions = dict(_FUNCTIONS.findall(source))
    cases = [
        f"    case {number}: {name}(*(struct {arguments} *)given); break;"
        for number, (name, arguments) in enumerate(functions.items())
    ]
    library = jit.load(_BEFORE + source + _AFTER.replace("CASES", "\n".join(cases)))
    pointers, numbers = [ctypes.c_void_p] * 2, [ctypes.c_int] * 3
    emulate = ctypes.CFUNCTYPE(None, ctypes.c_int, *pointers, *numbers)(library.address("emulate"))
    return emulate, {name: number for number, name in enumerate(functions)}


_listeners: list[Callable[[str, str], object]] = []


@contextlib.contextmanager
def noting(note: Callable[[str, str], Noted]) -> Iterator[list[Noted]]:
    """Collect what ``note`` returns for the text and the name of each function that runs meanwhile."""
    noted: list[Noted] = []

    def listen(source: str, function: str) -> None:
        noted.append(note(source, function))

    _listeners.append(listen)
    try:
        yield noted
    finally:
        _listeners.remove(listen)


def run_grid(source: str, function: str, slots: Sequence[int], threads: int, of_block: int = THREADS) -> None:
    """Run a function with as many threads, up to a few blocks; the rest they do in further turns."""
    for listen in _listeners:
        listen(source, function)
    emulate, numbers = load_grids(source)
    blocks = min(max(1, -(-threads // of_block)), 3)
    order = torch.randperm(blocks, dtype=torch.int32)
    block = (ctypes.c_longlong * len(slots))(*slots)
    mask = int(torch.randint(of_block, ()))  # in which order the threads of a block begin
    emulate(numbers[function], ctypes.addressof(block), order.data_ptr(), blocks, of_block, mask)


class EmulatedKernel(CudaKernel):
    """A text for CUDA devices, run on the host."""

    def is_ready(self, may_wait: bool = True, needed: Sequence[str] = ()) -> bool:
        return bool(self.source)

    def begin(self) -> None:
        """Do nothing."""

    def prepare(self, names: Sequence[str], device: int) -> None:
        """Do nothing: whole texts are compiled."""

    def launch(self, name: str, slots: Sequence[int], threads: int, device: int) -> None:
        self.record(Launch(name, blocks_for(threads)), None)
        run_grid(self.source, name, slots, threads)

    def launch_blocks(
        self, name: str, slots: Sequence[int], blocks: int, threads: int, shared: int, device: int
    ) -> None:
        self.record(Launch(name, blocks, threads, shared), None)
        run_grid(self.source, name, slots, blocks * threads, threads)


class EmulatedAttention(CudaAttention):
    """Attention for CUDA devices, run on the host."""

    make_kernel = EmulatedKernel

    def can_attend(self, device: torch.device) -> bool:
        return True

    def has_kernels(self, device: torch.device) -> bool:
        return True

    def shared_memory(self, device: torch.device) -> int:
        return 4 << 16


class EmulatedRoutines(EmulatedAttention, CudaRoutines):
    """Routines of CUDA devices, run on the host."""

    make_kernel = EmulatedKernel
    most_threads = widest = THREADS
    find_builtin = staticmethod(lambda device: None)


class EmulatedExecutable(CudaExecutable):
    """A kernel for CUDA devices, run on the host."""

    make_kernel = EmulatedKernel
    find_builtin = staticmethod(lambda device: None)

    def allocate(
        self, shape: Sequence[int], device: torch.device, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        dtype = dtype or self.dtype
        return torch.full(shape, -101 if dtype.is_signed else 101, dtype=dtype)

    def allocator(
        self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
    ) -> Callable[[], torch.Tensor]:
        return lambda: self.allocate(shape, device, dtype)

    def launcher(self, grids: Sequence[Launch], slots: int, device: int) -> Callable[..., None]:
        def launch(*slots: int) -> None:
            for grid in grids:
                run_grid(self.source, grid.name, slots, grid.blocks * THREADS)

        return launch


class EmulatedGroup(CudaGroup):
    """The kernel of a group for CUDA devices, run on the host."""

    make_kernel = EmulatedKernel
    kind_of_steps = EmulatedExecutable

    def allocate(self, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        return torch.full(shape, -101, dtype=self.dtype)


class EmulatedProduct(EmulatedExecutable, ProductExecutable):
    direct = None

    def build(self, arrays: Sequence[torch.Tensor], check: base.Check, bound: int = 0) -> base.Arrays:
        return self._build(arrays, arrays[0].device)

    def shared_memory(self, device: torch.device) -> int:
        return bytes_of_sums(1024)


class EmulatedNewPattern(EmulatedExecutable, NewPatternExecutable):
    direct = None

    def empty(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return self.allocate((count,), device, dtype)


class EmulatedBackend(CudaBackend):
    """Plans and kernels for CUDA devices, on arrays of the host: all but the device itself."""

    name = "emulated"
    is_on_host = True
    routines = EmulatedRoutines()

    def kind_of(self, schedule: base.Schedule) -> type[CudaExecutable]:
        kinds = {ProductExecutable: EmulatedProduct, NewPatternExecutable: EmulatedNewPattern}
        return kinds.get(super().kind_of(schedule), EmulatedExecutable)

    def build_group(self, fused: Fused) -> base.GroupExecutable:
        return EmulatedGroup(fused)

    def missing(self) -> str | None:
        return None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


class InterpretedGridExecutable(EmulatedExecutable):
    """The loops of a grid in the interpreter, which checks every access."""

    takes_addresses = False

    def slots(self, arrays: Sequence[torch.Tensor]) -> list[Any]:
        return [self.slot(array) for array in arrays]

    def slot(self, tensor: torch.Tensor) -> Any:
        return Interpreted(self.schedule.planned.kernel()).slot(tensor)

    def __init__(self, schedule: base.Schedule, sizes: Any) -> None:
        super().__init__(schedule, sizes)

        def launch(function: str, slots: Sequence[Any], threads: int, device: int) -> None:
            assert not interpret.run(self.lowered(), function, list(slots))

        self.kernel.launch = launch  # type: ignore[method-assign]

    def lowered(self) -> Kernel:
        kernel, _ = as_grid(self.schedule.planned.kernel(), facts_of(self.plan))
        return kernel

    def combine(self, *arguments: Any) -> None:
        """Have elementwise results computed by torch."""


class InterpretedNewPattern(InterpretedGridExecutable, EmulatedNewPattern):
    """The loops of new patterns in the interpreter."""

    def lowered(self) -> Kernel:
        return lower_driven(self.plan, self.drivers)


class InterpretedGridBackend(EmulatedBackend):
    name = "interpreted grid"

    def kind_of(self, schedule: base.Schedule) -> type[CudaExecutable]:
        kinds = {EmulatedProduct: EmulatedProduct, EmulatedNewPattern: InterpretedNewPattern}
        return kinds.get(super().kind_of(schedule), InterpretedGridExecutable)

    def build_group(self, fused: Fused) -> base.GroupExecutable:
        spread, _ = spread_group(fused)
        group = InterpretedGroup(replace(fused, kernel=spread))
        group.source = print_cuda(spread)
        return group


if "emulated" not in base._BACKENDS:
    base.register_backend("interpreted grid", InterpretedGridBackend(), "grids, interpreted")
    base.register_backend("emulated", EmulatedBackend(), "the kernels of CUDA devices, emulated")
