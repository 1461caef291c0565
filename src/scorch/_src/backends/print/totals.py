"""Print the sums of tiles (``nodes.Total``): lanes added half by half, or those of several registers at once.

    const f32 acc_0 = total_f32x4(sums_0);

halves the register until one number is left. Where several sums follow each other, adjacent lanes of two
registers are added into one, which ends with a sum in every lane:

    f32x4 totals;
    totals_4_f32x4(&totals, sums_0, sums_1, sums_2, sums_3);
    const f32 acc_0 = totals[0];  ...

Three additions do there what takes eight one by one. (A function that returned wide vectors would not be the
same for all compilers; one that takes them is, once it is inlined.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from scorch._src.backends.print.expressions import c_name, safe_name
from scorch._src.loops.nodes import Array, Declare, Stmt, Total
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, INT64, Type

if TYPE_CHECKING:
    from scorch._src.backends.print.c import Scope

TOGETHER = 4  # sums of so many registers end in one
GROUP_BYTES = 16  # of wider registers, x86-64 shuffles so many at a time, without moving any to others
_NEIGHBOURS = {FLOAT32: "faddp", FLOAT64: "faddp", INT32: "addp", INT64: "addp"}


def offsets(count: int, lanes: int) -> list[int]:
    """Where the registers of ``count`` elements begin."""
    return [min(start, count - lanes) for start in range(0, count, lanes)]


def register(array: Array, slot: int) -> str:
    return f"{safe_name(array.name)}_{slot}"


def vector_name(element: Type, lanes: int) -> str:
    return c_name(element) if lanes == 1 else f"{c_name(element)}x{lanes}"


def in_memory(element: Type, lanes: int) -> str:
    """The name of the same vector where it lies among numbers: for loads and stores, never by value."""
    return c_name(element) if lanes == 1 else f"{vector_name(element, lanes)}_at"


def print_total(scope: Scope, total: Total) -> str:
    added = _registers(total)
    return added if total.lanes == 1 else f"{scope.total(total.array.element, total.lanes)}({added})"


def _registers(total: Total) -> str:
    """The registers of a tile, added into one."""
    parts = [register(total.array, slot) for slot in range(len(offsets(total.count, total.lanes)))]
    return pairwise_sum(parts).removeprefix("(").removesuffix(")")


def pairwise_sum(names: list[str]) -> str:
    """A sum of several, two by two."""
    while len(names) > 1:
        added = [f"({a} + {b})" for a, b in zip(names[::2], names[1::2], strict=False)]
        names = [*added, *names[2 * len(added) :]]
    return names[0]


def runs(body: tuple[Stmt, ...]) -> Iterator[list[Stmt]]:
    """Split ``body`` into runs: declarations of sums that are computed together, other statements alone."""
    pending: list[Declare] = []
    for s in body:
        kind = _kind(s)
        if pending and (kind != _kind(pending[-1]) or len(pending) == min(TOGETHER, kind[1] if kind else 1)):
            yield from _powers(pending)
            pending = []
        if kind is None:
            yield [s]
        else:
            assert isinstance(s, Declare)
            pending.append(s)
    yield from _powers(pending)


def _kind(s: Stmt) -> tuple[Type, int] | None:
    match s:
        case Declare(var, Total(array, _, lanes)) if lanes > 1 and var.type == array.element:
            return array.element, lanes
    return None


def _powers(pending: list[Declare]) -> Iterator[list[Stmt]]:
    while pending:
        count = 1 << (len(pending).bit_length() - 1)
        yield list(pending[:count])
        pending = pending[count:]


def print_totals(scope: Scope, declared: list[Stmt]) -> list[str]:
    """Print sums of as many registers as a vector has lanes, or fewer, computed at once."""
    sums = [(s.var, s.value) for s in declared if isinstance(s, Declare) and isinstance(s.value, Total)]
    element, lanes, count = sums[0][1].array.element, sums[0][1].lanes, len(sums)
    name = scope.fresh(f"{sums[0][0].name}_totals")
    registers = ", ".join(_registers(total) for _, total in sums)
    return [
        f"{vector_name(element, count)} {name};",
        f"{scope.totals(element, lanes, count)}(&{name}, {registers});",
        *(f"{scope.variable(var)} = {name}[{lane}];" for lane, (var, _) in enumerate(sums)),
    ]


def total_helper(element: Type, lanes: int) -> str:
    """A function that adds the lanes of a register, half by half."""
    name, scalar = vector_name(element, lanes), c_name(element)
    opening = f"static inline {scalar} total_{name}({name} x) {{"
    if lanes == 2:
        return f"{opening}\n  return x[0] + x[1];\n}}"
    half = vector_name(element, lanes // 2)
    by_halves = f"  return total_{half}({_halves(in_memory(element, lanes // 2), 'x')});"
    if (element, lanes) != (FLOAT32, 4):
        return f"{opening}\n{by_halves}\n}}"
    return "\n".join(
        [
            opening,
            "#if defined(__x86_64__) /* whose addition of adjacent lanes takes long */",
            f"  x += ({name}){{x[2], x[3], x[2], x[3]}};",
            f"  x += ({name}){{x[1], x[1], x[1], x[1]}};",
            "  return x[0];",
            "#else",
            by_halves,
            "#endif",
            "}",
        ]
    )


def totals_helper(element: Type, lanes: int, count: int) -> str:
    """A function that gives the sums of ``count`` registers: by adjacent lanes, then by halves.

    Two registers whose adjacent lanes are added take one from then on; only what is left of all is halved.
    """
    name, result = vector_name(element, lanes), vector_name(element, count)
    group = _group(element, lanes)
    names = [chr(ord("a") + place) for place in range(count)]
    arguments = ", ".join(f"{name} {x}" for x in names)
    lines = [f"static inline void {totals_name(element, lanes, count)}({result} *sums, {arguments}) {{"]
    while len(names) > max(1, count // group):
        pairs = list(zip(names[::2], names[1::2], strict=True))
        names = [a + b for a, b in pairs]
        lines.append(f"  {name} {', '.join(names)};")
        lines += [f"  neighbours_{name}(&{a + b}, {a}, {b});" for a, b in pairs]
    left = lanes
    while left > group:
        left //= 2
        half = vector_name(element, left)
        halves = [f"{x}_{left} = {_halves(in_memory(element, left), x)}" for x in names]
        lines.append(f"  const {half} {', '.join(halves)};")
        names = [f"{x}_{left}" for x in names]
    if len(names) == 1 and group == count:
        return "\n".join([*lines, f"  *sums = {names[0]};", "}"])
    parts = [f"{x}[{lane}]" for x in names for lane in range(group)]
    step = len(parts) // count
    added = " + ".join(f"({result}){{{', '.join(parts[at::step])}}}" for at in range(step))
    return "\n".join([*lines, f"  *sums = {added};", "}"])


def neighbours_helper(element: Type, lanes: int) -> str:
    """A function that adds adjacent lanes of two registers into one, 16 bytes of each next to each other."""
    name, group = vector_name(element, lanes), _group(element, lanes)
    places = [
        (x, begin + lane) for begin in range(0, lanes, group) for x in "ab" for lane in range(0, group, 2)
    ]
    even, odd = (", ".join(f"{x}[{lane + more}]" for x, lane in places) for more in (0, 1))
    plain = f"  *sums = ({name}){{{even}}} + ({name}){{{odd}}};"
    opening = f"static inline void neighbours_{name}({name} *sums, {name} a, {name} b) {{"
    if element not in _NEIGHBOURS or element.bytes * lanes != 16:
        return f"{opening}\n{plain}\n}}"
    kind = f"{lanes}{'s' if element.bytes == 4 else 'd'}"
    places_of = ", ".join(f"%{place}.{kind}" for place in range(3))
    return "\n".join(
        [
            opening,
            "#if defined(__aarch64__) && !defined(__clang__) /* one instruction, which gcc does not find */",
            f'  __asm__("{_NEIGHBOURS[element]} {places_of}" : "=w"(*sums) : "w"(a), "w"(b));',
            "#else",
            plain,
            "#endif",
            "}",
        ]
    )


def _group(element: Type, lanes: int) -> int:
    """How many lanes of a register are shuffled together."""
    return min(lanes, GROUP_BYTES // element.bytes)


def totals_name(element: Type, lanes: int, count: int) -> str:
    return f"totals_{count}_{vector_name(element, lanes)}"


def needed_lanes(lanes: int) -> Iterator[int]:
    """The widths whose helpers adding ``lanes`` lanes takes, narrow ones first."""
    width = 2
    while width <= lanes:
        yield width
        width *= 2


def _halves(half: str, x: str) -> str:
    return f"((const {half} *)&{x})[0] + ((const {half} *)&{x})[1]"
