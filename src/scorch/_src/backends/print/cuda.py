"""Print a kernel as CUDA C: its parallel loop is a grid, with a thread for every turn.

The text includes no header, so that NVRTC compiles it in milliseconds. Arguments come by value, as one block
of slots:

    KERNEL void scorch_compute(const struct slots slots) {
      const i64 i_size = slots.at[2];
      ...
      for (i64 turn = FIRST_UNIT(8); turn < i_size; turn += UNITS(8)) {

Threads that share a loop, here eight, are a unit. ``EXCHANGE`` passes values between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scorch._src.backends.print.c import Printer, Scope, print_header
from scorch._src.backends.print.expressions import c_name, indent, safe_name
from scorch._src.backends.print.functions import TYPEDEFS
from scorch._src.dataclass import replace
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import Node, walk
from scorch._src.loops.grid import FUNCTIONS, RUN_BYTES
from scorch._src.loops.jam import renamed
from scorch._src.loops.types import BFLOAT16, BOOL, FLOAT32, Type
from scorch._src.loops.units import IDEMPOTENT, accumulators

THREADS = 128  # in a block of a grid
FEW_BLOCKS = 8  # on a multiprocessor, so that a thread may have 64 registers
USUAL_REGISTERS = 32  # with which most threads run at once
AT_ONCE = 4  # turns of loops that convert what they load
FEWEST_BYTES = 2  # of an element, where a thread has registers for turns beside its sums
UNUSED = ("parallel_for", "threads")  # slots for pools of threads

# What gcc has built in, in CUDA's own words.
_BUILTINS = """\
#ifdef __CUDACC_RTC__
#define KERNEL extern "C" __global__
#define BLOCKS_OF(threads) __launch_bounds__(threads)
#define FEWER_BLOCKS_OF(threads, blocks) __launch_bounds__(threads, blocks)
#define ALIGNED(bytes) __align__(bytes)
#define SHARED(name) extern __shared__ u32 name[]
#define STATIC_SHARED __shared__
#define SYNC_WARP __syncwarp
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000ll)
#define __builtin_memcpy memcpy
#define __builtin_ctzll(x) (__ffsll((long long)(x)) - 1)
#define __builtin_clzll(x) __clzll((long long)(x))
#define __builtin_popcount(x) __popc((int)(x))
#define __builtin_popcountll(x) __popcll((long long)(x))
#define restrict __restrict__
#define UNIT_MASK(threads) (0xffffffffu >> (32 - threads) << (threadIdx.x & 31 & ~(threads - 1)))
#define EXCHANGE(value, step, threads) __shfl_xor_sync(UNIT_MASK(threads), value, step)
#define EXCHANGE_IN_WARP(value, step, threads) __shfl_xor_sync(0xffffffffu, value, step)
#define MEET(threads) __syncwarp(UNIT_MASK(threads))
#define EACH_UNIT(turn, threads, count) const i64 turn = FIRST_UNIT(threads); if (turn < (count))
#define EACH_UNIT_OF_WARP(turn, own, threads, count) const i64 own = FIRST_UNIT(threads); \\
  const i64 turn = own < (count) ? own : (count) - 1; if (own - THREAD(32) / threads < (count))
#define EACH_BLOCK(turn, count) const u32 turn = blockIdx.x; if (turn < (count))
#endif
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800
#define ADD_IN_WARP(value) __reduce_add_sync(0xffffffffu, (u32)(value))
#endif
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 900
#define ADD_4(place, a, b, c, d) asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" \\
  :: "l"(place), "f"(a), "f"(b), "f"(c), "f"(d) : "memory")
#else
#define ADD_4(place, a, b, c, d) (atomicAdd(place, a), atomicAdd(place + 1, b), \\
  atomicAdd(place + 2, c), atomicAdd(place + 3, d))
#endif
#define FIRST_UNIT(threads) (((i64)blockIdx.x * blockDim.x + threadIdx.x) / threads)
#define UNITS(threads) ((i64)gridDim.x * blockDim.x / threads)
#define THREAD(threads) ((int)threadIdx.x & (threads - 1))"""


def print_prelude() -> str:
    """Types, and names for what the language of kernels has built in."""
    return "\n\n".join([TYPEDEFS.replace("__SIZE_TYPE__", "unsigned long long"), _BUILTINS])


def part_of(function: str) -> str:
    """Return which part of a text has a function: those that cut long rows, which few calls need, are one of
    their own.
    """
    return FUNCTIONS[int(function in FUNCTIONS[1:])]


def as_part(part: str, text: str) -> str:
    """Have the text compiled only as a part (``nvrtc.compile_cuda``), or where no part is requested."""
    return f"#if !defined(PART) || defined(PART_{part})\n{text}\n#endif"


def print_cuda(
    kernel: ir.Kernel, is_narrow: bool = False, is_apart: bool = False, at_once: int | None = None
) -> str:
    """The CUDA source of a kernel that is a grid (``loops.grid``).

    ``is_narrow``: sizes fit into 32 bits; ``is_apart``: every function is a part of its own, compiled in
    parallel with the others; ``at_once``: turns of a shared loop that a thread takes at once, if not NVRTC's
    choice.
    """
    printer = _CudaPrinter(kernel, is_narrow, at_once)
    bodies = [printer.function(function) for function in kernel.functions]
    if len(bodies) > 1:  # a call needs those of one part only
        names = [function.name if is_apart else part_of(function.name) for function in kernel.functions]
        bodies = [as_part(name, body) for name, body in zip(names, bodies, strict=True)]
    _, named = printer.needed()
    parts = [print_header(kernel)] if kernel.header else []
    parts += [print_prelude(), f"struct slots {{ i64 at[{len(kernel.slots)}]; }};"]
    for element, count in printer.runs:
        name, size = c_name(element), min(16, element.bytes * count)
        parts.append(f"struct ALIGNED({size}) {name}x{count} {{ {name} at[{count}]; }};")
    return "\n\n".join([*parts, *named.values(), *bodies]) + "\n"


class _CudaPrinter(Printer):
    def __init__(self, kernel: ir.Kernel, is_narrow: bool, at_once: int | None) -> None:
        super().__init__(kernel)
        self.scope = _CudaScope
        self.is_narrow, self.at_once = is_narrow, at_once
        self.runs: dict[tuple[Type, int], None] = {}

    def signature(self, function: ir.Function) -> str:
        if function.exported:
            nodes = self.nodes[function.name]
            is_bounded = any(isinstance(node, ir.Parallel) and node.has_unit_each for node in nodes)
            bound = f"BLOCKS_OF({THREADS}) " if is_bounded else ""
            if _waits_for_rows(function.name, nodes) or (
                is_bounded and _loaded_at_once(nodes) >= USUAL_REGISTERS
            ):
                bound = f"FEWER_BLOCKS_OF({THREADS}, {FEW_BLOCKS}) "
            return f"KERNEL void {bound}{function.name}(const struct slots slots)"
        return super().signature(function)

    def function(self, function: ir.Function) -> str:
        text = super().function(function)
        return text.replace("\n  return 0;\n}", "\n}") if function.exported else text


def _loaded_at_once(nodes: Sequence[Node]) -> int:
    """Return the registers for runs of shared loops with a number of turns, which are unrolled.

    Their loads are issued together if there are registers for all; NVRTC makes turns wait for each other
    rather than take more than usual without being told.
    """
    found = 0
    for loop in nodes:
        match loop:
            case ir.For(start=ir.Const(0), stop=ir.Const(int() as count), threads=threads) if threads > 1:
                runs = [node for node in walk(loop.body) if isinstance(node, ir.LoadRun)]
                found += sum(count // threads * len(run.vars) * run.array.element.bytes // 4 for run in runs)
    return found


def _loads_halves(loop: ir.For) -> bool:
    """Check whether turns of a loop load runs that are converted, of which NVRTC takes few at once."""
    runs = [node for node in walk(loop.body) if isinstance(node, ir.LoadRun)]
    return bool(runs) and all(run.array.element.bytes == FEWEST_BYTES for run in runs)


def _waits_for_rows(name: str, nodes: Sequence[Node]) -> bool:
    """Check whether a function loads runs for each entry of a row, and waits for them.

    Several turns of its only loop are then loaded together. Wide elements, and the many sums of those of a
    byte, leave no registers for that.
    """
    loops = [node for node in nodes if isinstance(node, ir.For) and not isinstance(node.stop, ir.Const)]
    if name == FUNCTIONS[-1] or len(loops) != 1:
        return False
    inside = walk(loops[0].body)
    runs = [node for node in inside if isinstance(node, ir.LoadRun)]
    loads = [node for node in inside if isinstance(node, ir.Load)]
    return (
        bool(runs)
        and all(run.array.element.bytes * len(run.vars) <= RUN_BYTES for run in runs)
        and all(run.array.element.bytes >= FEWEST_BYTES for run in runs)
        and all(load.array.element.bytes <= FLOAT32.bytes for load in loads)
    )


class _CudaScope(Scope):
    unit = 1  # threads that take a turn together
    guard = ""  # which of them stores what all have
    own = ""  # whether the turn of a unit is its own, where all units of a warp take as many

    def slot(self, number: int) -> str:
        return f"slots.at[{number}]"

    def unpack(self, params: tuple[ir.Var | ir.Array, ...], kernel: ir.Kernel) -> list[str]:
        """Read arguments; products of sizes that are known to be narrow take fewer instructions."""
        lines = super().unpack(tuple(p for p in params if p.name not in UNUSED), kernel)
        assert isinstance(self.printer, _CudaPrinter)
        if not self.printer.is_narrow:
            return lines
        return [re.sub(r"(_size = )(slots)", r"\1(i32)\2", line) for line in lines]

    def statement(self, stmt: ir.Stmt) -> list[str]:
        match stmt:
            case ir.Parallel():
                return self.grid(stmt)
            case ir.For(threads=threads) if threads > 1:
                return self.shared_loop(stmt)
            case ir.For(stop=stop) if not isinstance(stop, ir.Const) and _loads_halves(stmt):
                return [line for each in super().statement(stmt) for line in self.unrolled(each)]
            case ir.Meet(threads):
                return [f"MEET({threads});"]
            case ir.LoadRun(vars, array, index):
                kind, run = self.run_of(array, len(vars)), self.fresh(f"{vars[0].name}_run")
                place = self.address(array, index)
                lines = [f"const struct {kind} {run} = *(const struct {kind} *)({place});"]
                for at, var in enumerate(vars):
                    lines += [f"{self.variable(var)} = {self.widened(array, f'{run}.at[{at}]')};"]
                return lines
            case ir.StoreRun(array, index, values):
                kind, run = self.run_of(array, len(values)), self.fresh(f"{array.name}_run")
                given = ", ".join(self.narrowed(array, value) for value in values)
                place = self.address(array, index)
                lines = [
                    f"{{ const struct {kind} {run} = {{{{{given}}}}};",
                    f"  *(struct {kind} *)({place}) = {run}; }}",
                ]
                return [f"if ({self.guard})", *indent(lines)] if self.guard else lines
            case ir.AtomicAdd(array, index, value):
                line = f"atomicAdd({self.address(array, index)}, {self.converted(value)});"
                return [f"if ({self.guard}) {line}" if self.guard else line]
            case ir.AtomicAddRun(array, index, values) if array.element == FLOAT32 and len(values) == 4:
                added = ", ".join(self.converted(value) for value in values)
                line = f"ADD_4(({self.address(array, index)}), {added});"
                return [f"if ({self.guard}) {line}" if self.guard else line]
            case ir.AtomicAddRun():
                return self.statement(stmt.one_by_one)
            case ir.Store(array, index, value) if array.element.computes_in != array.element:
                line = f"{self.element(array, index)} = {self.narrowed(array, value)};"
                return [f"if ({self.guard}) {line}" if self.guard else line]
            case ir.Store() if self.guard:
                return [f"if ({self.guard}) {{", *indent(super().statement(stmt)), "}"]
        return super().statement(stmt)

    def unrolled(self, line: str) -> list[str]:
        """Return a line, the head of a loop with how many of its turns are taken at once."""
        return [f"#pragma unroll {AT_ONCE}", line] if line.startswith("for (") else [line]

    def narrowed(self, array: ir.Array, value: ir.Expr) -> str:
        """A value as an element of an array, rounded where that has fewer bits."""
        if array.element.computes_in == array.element:
            return self.converted(value)
        return f"{self.use('to_bf16' if array.element == BFLOAT16 else 'to_f16')}({self.expr(value)})"

    def run_of(self, array: ir.Array, count: int) -> str:
        """The name of the type of a run of elements, which is then declared."""
        assert isinstance(self.printer, _CudaPrinter)
        self.printer.runs[array.element, count] = None
        return f"{c_name(array.element)}x{count}"

    def grid(self, stmt: ir.Parallel) -> list[str]:
        turn = safe_name(stmt.var.name)
        shared = [node.threads for node in walk(stmt.body) if isinstance(node, ir.For)]
        self.unit = max(shared, default=1)
        count = self.converted(stmt.count)
        loop = f"for (i64 {turn} = FIRST_UNIT({self.unit}); {turn} < {count}; {turn} += UNITS({self.unit}))"
        # Without a loop, and in blocks of a known size, a thread needs fewer registers.
        if stmt.has_unit_each and self.unit > 1:
            own = self.fresh(f"{stmt.var.name}_of_unit")
            loop, self.own = f"EACH_UNIT_OF_WARP({turn}, {own}, {self.unit}, {count})", f"{own} == {turn}"
        elif stmt.has_unit_each:
            loop = f"EACH_UNIT({turn}, {self.unit}, {count})"
        self.guard = self.guard_of(self.unit > 1, f"THREAD({self.unit}) == 0")
        return [f"{loop} {{", *indent(self.statement(stmt.body)), "}"]

    def guard_of(self, is_needed: bool, condition: str) -> str:
        """Return which threads store, if not all."""
        return " && ".join(filter(None, [condition if is_needed else "", self.own]))

    def shared_loop(self, stmt: ir.For) -> list[str]:
        """Print a loop whose turns the threads of a unit share, each with sums of its own."""
        guard = self.guard
        if stmt.start == ir.Const(0) and stmt.stop == ir.Const(stmt.threads):
            lines = self.one_turn_each(stmt)
        else:
            lines = self.turns_and_sums(stmt)
        self.guard = guard
        return ["{", *indent(lines), "}"]

    def one_turn_each(self, stmt: ir.For) -> list[str]:
        threads = stmt.threads
        self.guard = self.guard_of(threads < self.unit, f"THREAD({self.unit}) < {threads}")
        return [f"const i64 {safe_name(stmt.var.name)} = THREAD({threads});", *self.statement(stmt.body)]

    def turns_and_sums(self, stmt: ir.For) -> list[str]:
        threads, lanes = stmt.threads, stmt.lanes
        self.guard = self.guard_of(lanes > 1, f"THREAD({lanes}) == 0")
        sums = accumulators(stmt.body, may_store=True)
        assert sums is not None, "threads share turns that depend on each other"
        own = {var: replace(var, name=self.fresh(f"{var.name}_of_thread")) for var in sums}
        begin = [ir.Declare(own[var], _neutral(op, var)) for var, op in sums.items()]
        self.assigned |= {var.name for var in own.values()}
        body = renamed(stmt.body, {var.name: mine.name for var, mine in own.items()})
        lines = [line for declared in begin for line in self.statement(declared)]
        thread = f"THREAD({threads}) / {lanes}" if lanes > 1 else f"THREAD({threads})"
        lines += [*self.turns_of_thread(stmt, thread, threads // lanes), *indent(self.statement(body)), "}"]
        for var, op in sums.items():
            lines += self.exchange(own[var], op, threads, lanes)
            total: ir.Expr = own[var]
            if not _is_idempotent(op, var):
                total = ir.Binary(op, var, own[var], var.type)
            lines += self.statement(ir.Assign(var, total))
        return lines

    def turns_of_thread(self, stmt: ir.For, thread: str, step: int) -> list[str]:
        """Print the head of a loop over each ``step``-th turn; one with a number of turns is unrolled."""
        name = safe_name(stmt.var.name)
        match stmt:
            case ir.For(start=ir.Const(0), stop=ir.Const(int() as count)) if count % step == 0:
                turn = self.fresh(f"{stmt.var.name}_turn")
                return [
                    f"for (int {turn} = 0; {turn} < {count // step}; {turn}++) {{",
                    f"  const i64 {name} = {turn} * {step} + {thread};",
                ]
        stop = self.fresh(f"{stmt.var.name}_stop")
        begin = f"i64 {name} = {self.expr(stmt.start, 12)} + {thread}, {stop} = {self.converted(stmt.stop)}"
        head = [f"for ({begin}; {name} < {stop}; {name} += {step}) {{"]
        assert isinstance(self.printer, _CudaPrinter)
        at_once = AT_ONCE if _loads_halves(stmt) and not self.printer.at_once else self.printer.at_once
        return head if at_once is None else [f"#pragma unroll {at_once}", *head]

    def exchange(self, var: ir.Var, op: str, threads: int, lanes: int) -> list[str]:
        """Print how the threads of a unit put their values together: all have the result, bit for bit."""
        name, other = safe_name(var.name), replace(var, name=self.fresh(f"{var.name}_other"))
        kind, theirs = c_name(var.type), safe_name(other.name)
        parts = (".re", ".im") if var.type.kind == "complex" else ("",)
        how = "EXCHANGE_IN_WARP" if self.own else "EXCHANGE"  # a mask of all costs nothing
        received = [f"{theirs}{part} = {how}({name}{part}, step, {threads});" for part in parts]
        combine = self.statement(ir.Assign(var, ir.Binary(op, var, other, var.type)))
        left = f"step >= {lanes}" if lanes > 1 else "step"
        return [
            f"for (int step = {threads // 2}; {left}; step /= 2) {{",
            *indent([f"{kind} {theirs};", *received, *combine]),
            "}",
        ]


def _is_idempotent(op: str, var: ir.Var) -> bool:
    return op in IDEMPOTENT or var.type == BOOL


def _neutral(op: str, var: ir.Var) -> ir.Expr:
    """What the sum of a thread begins with: that so far, where it may come twice."""
    return var if _is_idempotent(op, var) else ir.Const(1 if op == "*" else 0, var.type)
