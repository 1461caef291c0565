"""Print a kernel as CUDA C: its parallel loop is a grid, with a thread for every turn.

The text includes no header, so that NVRTC compiles it in milliseconds. Arguments come by value, as one block
of slots:

    KERNEL void scorch_compute(const struct slots slots) {
      const i64 i_size = slots.at[2];
      ...
      for (i64 turn = FIRST_TURN; turn < i_size * k_size; turn += TURNS) {
"""

from __future__ import annotations

from scorch._src.backends.print.c import Printer, Scope, print_header
from scorch._src.backends.print.expressions import indent, safe_name
from scorch._src.backends.print.functions import TYPEDEFS
from scorch._src.loops import nodes as ir

# What gcc has built in, in CUDA's own words.
_BUILTINS = """\
#ifdef __CUDACC_RTC__
#define KERNEL extern "C" __global__
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000ll)
#define __builtin_memcpy memcpy
#define __builtin_ctzll(x) (__ffsll((long long)(x)) - 1)
#define __builtin_clzll(x) __clzll((long long)(x))
#define __builtin_popcount(x) __popc((int)(x))
#define __builtin_popcountll(x) __popcll((long long)(x))
#endif
#define restrict __restrict__
#define FIRST_TURN ((i64)blockIdx.x * blockDim.x + threadIdx.x)
#define TURNS ((i64)gridDim.x * blockDim.x)"""


def print_cuda(kernel: ir.Kernel) -> str:
    """The CUDA source of a kernel that is a grid (``loops.grid``)."""
    printer = _CudaPrinter(kernel)
    bodies = [printer.function(function) for function in kernel.functions]
    _, static = printer.needed()
    parts = [print_header(kernel)] if kernel.header else []
    parts.append(TYPEDEFS.replace("__SIZE_TYPE__", "unsigned long long"))
    parts += [_BUILTINS, f"struct slots {{ i64 at[{len(kernel.slots)}]; }};"]
    return "\n\n".join([*parts, *static, *bodies]) + "\n"


class _CudaPrinter(Printer):
    def __init__(self, kernel: ir.Kernel) -> None:
        super().__init__(kernel)
        self.scope = _CudaScope

    def signature(self, function: ir.Function) -> str:
        if function.exported:
            return f"KERNEL void {function.name}(const struct slots slots)"
        return super().signature(function)

    def function(self, function: ir.Function) -> str:
        text = super().function(function)
        return text.replace("\n  return 0;\n}", "\n}") if function.exported else text


class _CudaScope(Scope):
    def slot(self, number: int) -> str:
        return f"slots.at[{number}]"

    def statement(self, stmt: ir.Stmt) -> list[str]:
        if not isinstance(stmt, ir.Parallel):
            return super().statement(stmt)
        turn = safe_name(stmt.var.name)
        return [
            f"for (i64 {turn} = FIRST_TURN; {turn} < {self.converted(stmt.count)}; {turn} += TURNS) {{",
            *indent(self.statement(stmt.body)),
            "}",
        ]
