"""Print a kernel as plain C that is also C++.

The text includes no header and links no library, so that any C compiler turns it into a shared
object in about a tenth of a second. It is meant to be read: names come from the kernel, parentheses
and casts appear only where C needs them, and only the helpers that are called are printed.

Expressions are printed with C's precedences. Two facts about C shape the rest: arithmetic on narrow
integers happens in ``int``, so its result is cast back to wrap where the loops say it wraps; and
``restrict`` with ``const`` is what lets the compiler keep values in registers across stores.
"""

from __future__ import annotations

from itertools import chain

from scorch._src.backends.print import effort, gathers, totals
from scorch._src.backends.print.expressions import (
    ATOM,
    ExpressionPrinter,
    c_name,
    indent,
    pointer_to,
    safe_name,
)
from scorch._src.backends.print.functions import EXTERNS, TYPEDEFS, helpers, needed_by
from scorch._src.backends.print.lanes import (
    LanePrinter,
    in_lanes,
    print_prefetch,
    print_tile,
    vector_typedef,
)
from scorch._src.backends.print.workers import print_parallel
from scorch._src.compiler.target import LINE
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import Node, assigned, loop_depth, walk, written
from scorch._src.loops.intrinsics import INTRINSICS
from scorch._src.loops.jam import renamed
from scorch._src.loops.types import INT32, INT64, Type

__all__ = ["print_kernel"]

# gcc optimises loops inside one another in a time that grows with the cube of their number.
DEEP = 12
MAX_LOCAL = 32  # elements of an array on the stack
QUICKLY = """#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O1", "no-tree-loop-optimize")
#endif"""


def print_kernel(kernel: ir.Kernel) -> str:
    """The C source of ``kernel``."""
    printer = Printer(kernel)
    bodies = [printer.function(function) for function in kernel.functions]
    externs, named = printer.needed()
    static = effort.helpers_with_effort(named, printer.effort) if printer.is_long else [*named.values()]
    parts = [print_header(kernel)] if kernel.header else []
    if max(map(loop_depth, kernel.functions)) > DEEP:
        parts.append(QUICKLY)
    elif printer.effort != effort.MUCH:
        parts.append(effort.pragma(printer.effort))
    vectors = sorted(printer.vectors, key=lambda v: (v[0].name, v[1]))
    parts.append("\n".join([TYPEDEFS, *(vector_typedef(element, lanes) for element, lanes in vectors)]))
    parts.append('#ifdef __cplusplus\n#define restrict __restrict__\nextern "C" {\n#endif')
    if externs:
        parts.append("\n".join(externs))
    static += [totals.total_helper(element, lanes) for element, lanes in printer.totals]
    paired = dict.fromkeys((element, lanes) for element, lanes, _ in printer.joint)
    static += [totals.neighbours_helper(element, lanes) for element, lanes in paired]
    static += [totals.totals_helper(*joint) for joint in printer.joint]
    static += [in_lanes(*function) for function in printer.of_vectors]
    static += [gathers.ANY_MEMORY] if printer.gathers else []
    static += [gathers.helper(*function) for function in printer.gathers]
    parts += [*static, *bodies, "#ifdef __cplusplus\n}\n#endif"]
    return "\n\n".join(parts) + "\n"


def print_header(kernel: ir.Kernel) -> str:
    """The expression, formats and schedule of ``kernel`` as a comment."""
    return "\n".join(_comment(line) for line in kernel.header.splitlines())


class Printer:
    """Prints functions and remembers what they call."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.scope: type[Scope] = Scope
        self.kernel = kernel
        self.nodes = {function.name: walk(function) for function in kernel.functions}
        nodes = [*chain.from_iterable(self.nodes.values())]
        self.effort = effort.ONCE_A_ROW if kernel.scatters else effort.usual_effort(nodes)
        self.is_long = effort.is_long(nodes)
        self.functions = {function.name: function for function in kernel.functions}
        self.local = _local(nodes)
        self.allocated = {node.array.name for node in nodes if isinstance(node, ir.Allocate)} - self.local
        self.used: set[str] = set()
        self.outlined: list[tuple[str, str]] = []  # texts, each after its effort
        self.workers = 0
        self.declared: set[str] = set()
        self.vectors: set[tuple[Type, int]] = set()
        self.totals: dict[tuple[Type, int], None] = {}  # in the order of their definitions
        self.joint: dict[tuple[Type, int, int], None] = {}
        self.of_vectors: dict[tuple[str, Type, int], None] = {}
        self.gathers: dict[tuple[str, Type, Type | None, int], None] = {}

    def needed(self) -> tuple[list[str], dict[str, str]]:
        """Declarations of what is called from outside; helpers by name, each after those that it calls."""
        wanted = set(self.used)
        frontier = list(wanted)
        while frontier:
            name = frontier.pop()
            text = helpers().get(name)
            needs = (
                needed_by(text) if text else set(INTRINSICS[name].externs) if name in INTRINSICS else set()
            )
            frontier += needs - wanted
            wanted |= needs
        static = {name: text for name, text in helpers().items() if name in wanted}
        static |= {name: routine.text for name, routine in INTRINSICS.items() if name in wanted}
        return [EXTERNS[name] for name in EXTERNS if name in wanted], static

    def function(self, function: ir.Function) -> str:
        self.outlined = []
        self.declared.add(function.name)
        nodes = self.nodes[function.name]
        names = {n.name for n in nodes if isinstance(n, ir.Var | ir.Array)}
        scope = self.scope(
            self,
            names,
            assigned(nodes),
            written(nodes, self.functions),
            "return 1;" if function.exported else "return -1;",
        )
        early = [
            f"{self.signature(self.functions[node.function])};"
            for node in dict.fromkeys(n for n in nodes if isinstance(n, ir.Call))
            if node.function in self.functions and node.function not in self.declared
        ]
        lines = scope.unpack(function.params, self.kernel) if function.exported else []
        lines += scope.statement(function.body)
        if not lines or not _returns(function.body):
            lines.append("return 0;")
        definition = "\n".join([f"{self.signature(function)} {{", *indent(lines), "}"])
        is_less = function.exported and self.is_long
        level = effort.effort_of(nodes, self.effort) if is_less else self.effort
        texts = [*((self.effort, text) for text in dict.fromkeys(early)), *self.outlined, (level, definition)]
        return "\n\n".join(effort.join_by_effort(texts, self.effort))

    def signature(self, function: ir.Function) -> str:
        if function.exported:
            return f"long long {function.name}(long long *args)"
        nodes = self.nodes[function.name]
        changed, fixed = written(nodes, self.functions), assigned(nodes)
        params = [
            f"{pointer_to(p, p.name in changed)}{safe_name(p.name)}"
            if isinstance(p, ir.Array)
            else f"{'' if p.name in fixed else 'const '}{c_name(p.type)} {safe_name(p.name)}"
            for p in function.params
        ]
        return f"static i64 {function.name}({', '.join(params) or 'void'})"


class Scope(ExpressionPrinter):
    """Prints statements and expressions of one C function."""

    def __init__(
        self,
        printer: Printer,
        names: set[str],
        assigned: set[str],
        written: set[str],
        fail: str,
        in_worker: bool = False,
    ) -> None:
        super().__init__(printer.used)
        self.printer = printer
        self.names = names
        self.assigned = assigned
        self.written = written
        self.fail = fail
        self.in_worker = in_worker
        self.tiles: dict[str, int] = {}  # the number of registers of each tile

    def inside(self, names: set[str], written: set[str], fail: str) -> Scope:
        """The scope of a function that threads run."""
        return Scope(self.printer, self.names, names, written, fail, in_worker=True)

    # Declarations

    def vector(self, element: Type, lanes: int) -> str:
        """The name of a vector type, which is then declared."""
        if lanes > 1:
            self.printer.vectors.add((element, lanes))
        return totals.vector_name(element, lanes)

    def of_vectors(self, name: str, element: Type, lanes: int) -> str:
        """The name of a function of vectors, which is then declared."""
        if lanes == 1:
            return self.use(f"{name}_{c_name(element)}")
        self.printer.of_vectors[name, element, lanes] = None
        return f"{name}_{self.vector(element, lanes)}"

    def gather(self, kind: str, element: Type, index: Type | None, lanes: int) -> str:
        """The name of a function that reads some lanes of a register, which is then declared."""
        for part in (element, index or element, INT32 if element.bytes == 4 else INT64):
            self.vector(part, lanes)
        self.printer.gathers[kind, element, index, lanes] = None
        return gathers.name_of(kind, element, index, lanes)

    def total(self, element: Type, lanes: int) -> str:
        """The name of the function that adds the lanes of a register."""
        for width in totals.needed_lanes(lanes):
            self.printer.totals[element, width] = None
            self.vector(element, width)
        return f"total_{totals.vector_name(element, lanes)}"

    def totals(self, element: Type, lanes: int, count: int) -> str:
        """The name of the function that adds the lanes of ``count`` registers at once."""
        for width in totals.needed_lanes(lanes):
            self.vector(element, width)
        self.printer.joint[element, lanes, count] = None
        return totals.totals_name(element, lanes, count)

    def term(self, e: ir.Expr) -> tuple[str, int]:
        if isinstance(e, ir.Total):
            return totals.print_total(self, e), ATOM
        return super().term(e)

    def unpack(self, params: tuple[ir.Var | ir.Array, ...], kernel: ir.Kernel) -> list[str]:
        lines = []
        for p in params:
            slot = self.slot(kernel.slot(p.name))
            if isinstance(p, ir.Array):
                lines.append(self.pointer(p, slot))
            else:
                assert p.type.is_integer, f"slot {p.name} is not an integer"
                value = slot if p.type == INT64 else f"({c_name(p.type)}){slot}"
                lines.append(f"{self.variable(p)} = {value};")
        return lines

    def slot(self, number: int) -> str:
        """An argument of an exported function."""
        return f"args[{number}]"

    def variable(self, var: ir.Var) -> str:
        const = "" if var.name in self.assigned else "const "
        return f"{const}{c_name(var.type)} {safe_name(var.name)}"

    def pointer(self, array: ir.Array, value: str) -> str:
        changed = array.name in self.written
        kind = pointer_to(array, changed, restrict=False).rstrip()
        return f"{pointer_to(array, changed)}{safe_name(array.name)} = ({kind}){value};"

    def fresh(self, name: str) -> str:
        while name in self.names:
            name += "_"
        return name

    # Statements

    def statement(self, stmt: ir.Stmt) -> list[str]:
        match stmt:
            case ir.Block(body):
                return [line for run in totals.runs(body) for line in self.in_order(run)]
            case ir.Comment(text):
                return [_comment(line) for line in text.splitlines()]
            case ir.Declare(var, value):
                return [f"{self.variable(var)} = {self.converted(value)};"]
            case ir.Assign(var, value):
                return [self.assignment(safe_name(var.name), var, value)]
            case ir.Store(array, index, value):
                assert array.element.computes_in == array.element, f"store to {array}"
                return [self.assignment(self.element(array, index), ir.Load(array, index), value)]
            case ir.For():
                return self.loop(stmt)
            case ir.Lanes():
                return LanePrinter(self, stmt).lines()
            case ir.Tile():
                return print_tile(self, stmt)
            case ir.LoadRun() | ir.StoreRun():
                return self.statement(stmt.one_by_one)
            case ir.Prefetch():
                return print_prefetch(self, stmt)
            case ir.While(condition, body):
                return [f"while ({self.expr(condition)}) {{", *indent(self.statement(body)), "}"]
            case ir.If():
                return self.branch(stmt)
            case ir.Allocate() | ir.Resize() | ir.Free() | ir.Fill() | ir.Copy():
                return self.memory(stmt)
            case ir.Perform(call):
                return [f"{self.expr(call)};"]
            case ir.Return(value):
                assert not self.in_worker, "a parallel loop cannot return"
                return [f"return {self.converted(value)};"]
            case ir.Fail():
                return [self.fail]
            case ir.Put() | ir.PutArray() | ir.SlotArray() | ir.KeepArray():
                return self.slots(stmt)
            case ir.Parallel():
                return print_parallel(self, stmt)
        raise AssertionError(f"cannot print {stmt!r}")

    def memory(self, stmt: ir.Allocate | ir.Resize | ir.Free | ir.Fill | ir.Copy) -> list[str]:
        """Arrays that begin, grow, end, or are written at once."""
        match stmt:
            case ir.Allocate(array, count, zero) if array.name in self.printer.local:
                place = f"{safe_name(array.name)}[{self.converted(count)}]"
                return [f"{c_name(array.element)} {place} __attribute__((aligned({LINE}))){' = {0}' * zero};"]
            case ir.Free(array) if array.name in self.printer.local:
                return []
            case ir.Allocate(array, count, zero):
                call = self.use("allocate_zero" if zero else "allocate")
                memory = f"{call}({self.converted(count)}, sizeof({c_name(array.element)}))"
                return [self.pointer(array, memory), f"if (!{safe_name(array.name)}) {self.fail}"]
            case ir.Resize(array, count):
                name, t = safe_name(array.name), c_name(array.element)
                call = f"{self.use('resize')}({name}, {self.converted(count)}, sizeof({t}))"
                return [f"{name} = ({t} *){call};", f"if (!{name}) {self.fail}"]
            case ir.Free(array):
                return [f"{self.use('free')}((void *){safe_name(array.name)});"]
            case ir.Fill(array, start, stop, value):
                return self.fill(array, start, stop, value)
            case ir.Copy(target, target_start, source, source_start, count):
                call = self.use("memmove" if target == source else "memcpy")
                to, what = self.address(target, target_start), self.address(source, source_start)
                return [f"{call}({to}, {what}, {self.size(count, target)});"]

    def slots(self, stmt: ir.Put | ir.PutArray | ir.SlotArray | ir.KeepArray) -> list[str]:
        """What passes between a kernel and its caller, and arrays kept in tables."""
        match stmt:
            case ir.Put() | ir.PutArray() if self.in_worker:
                raise AssertionError("a parallel loop cannot put results")
            case ir.Put(slot, value):
                assert value.type.is_integer, f"slot {slot} is not an integer"
                return [f"args[{self.printer.kernel.slot(slot)}] = {self.converted(value)};"]
            case ir.PutArray(slot, array):
                return [f"args[{self.printer.kernel.slot(slot)}] = (i64){safe_name(array.name)};"]
            case ir.SlotArray(array, table, index):
                return [self.pointer(array, self.element(table, index))]
            case ir.KeepArray(table, index, array):
                return [f"{self.element(table, index)} = (i64){safe_name(array.name)};"]

    def in_order(self, run: list[ir.Stmt]) -> list[str]:
        return totals.print_totals(self, run) if len(run) > 1 else self.statement(run[0])

    def assignment(self, target: str, place: ir.Expr, value: ir.Expr) -> str:
        """``x += y`` for ``x = x + y`` where C's operator does the same."""
        t = place.type
        match value:
            case ir.Binary(op, a, b, _) if a == place and op in ("+", "-", "*", "/"):
                if t.kind in ("int", "uint", "float"):
                    if b == ir.Const(1, t) and t.is_integer and op in "+-":
                        return f"{target}{op}{op};"
                    return f"{target} {op}= {self.converted(b)};"
        return f"{target} = {self.converted(value)};"

    def loop(self, stmt: ir.For) -> list[str]:
        var, start, stop, body = stmt.var, stmt.start, stmt.stop, stmt.body
        assert var.name not in {n.name for e in (start, stop) for n in walk(e) if isinstance(n, ir.Var)}
        name, t = safe_name(var.name), c_name(var.type)
        first, last = f"{t} {name} = {self.converted(start)}", self.converted(stop)
        is_fixed = isinstance(stop, ir.Var) and stop.name not in assigned(walk(body))
        once = isinstance(stop, ir.Const) or is_fixed
        summed = _summed(body) if stmt.sums > 1 else None
        before: list[str] = []
        if not once:
            hoisted = self.fresh(f"{var.name}_stop")
            if summed is None:
                first, last = f"{first}, {hoisted} = {last}", hoisted
            else:  # the pragma wants a loop with one variable
                before, last = [f"const {t} {hoisted} = {last};"], hoisted
        if summed is not None and stmt.gathered:
            gathered = gathers.print_gathered(self, stmt, summed, first, last)
            if gathered is not None:
                return ["{", *indent([*before, *gathered]), "}"]
        if summed is not None and stmt.sums <= ir.MAX_SUM_TURNS:
            return ["{", *indent([*before, *self.in_turns(stmt, summed, first, last)]), "}"]
        if summed is not None:
            before.append(f"#pragma omp simd reduction(+:{safe_name(summed.name)})")
        elif effort.has_own_memory(stmt, self.printer.allocated):
            before.append(effort.APART)
        lines = indent(self.statement(body))
        return [*before, f"for ({first}; {name} < {last}; {name}++) {{", *lines, "}"]

    def in_turns(self, stmt: ir.For, summed: ir.Var, first: str, last: str) -> list[str]:
        """A sum in several variables, so that an addition need not wait for the one before it."""
        name, total, kind = safe_name(stmt.var.name), safe_name(summed.name), c_name(summed.type)
        once = indent(self.statement(stmt.body))
        others = [f"{total}_{turn}" for turn in range(1, stmt.sums)]
        turns = ["  {", *indent(once), "  }"]
        for turn, other in enumerate(others, 1):
            after = f"{stmt.var.name}_{turn}"
            body = renamed(stmt.body, {stmt.var.name: after, summed.name: other})
            begin = f"  const {c_name(stmt.var.type)} {safe_name(after)} = {name} + {turn};"
            turns += ["  {", f"  {begin}", *indent(indent(self.statement(body))), "  }"]
        return [
            f"{first};",
            f"{kind} {', '.join(f'{other} = 0' for other in others)};",
            f"for (; {name} + {stmt.sums - 1} < {last}; {name} += {stmt.sums}) {{",
            *turns,
            "}",
            f"for (; {name} < {last}; {name}++) {{",
            *once,
            "}",
            f"{total} += {totals.pairwise_sum(others)};",
        ]

    def branch(self, stmt: ir.If) -> list[str]:
        lines = [f"if ({self.expr(stmt.condition)}) {{", *indent(self.statement(stmt.then))]
        otherwise = stmt.otherwise
        if isinstance(otherwise, ir.Block) and len(otherwise.body) == 1:
            otherwise = otherwise.body[0]
        if otherwise == ir.Block(()):
            return [*lines, "}"]
        if isinstance(otherwise, ir.If):
            chain = self.branch(otherwise)
            return [*lines, f"}} else {chain[0]}", *chain[1:]]
        return [*lines, "} else {", *indent(self.statement(otherwise)), "}"]

    def fill(self, array: ir.Array, start: ir.Expr, stop: ir.Expr, value: ir.Expr) -> list[str]:
        if isinstance(value, ir.Const) and value.value == 0 and not str(value.value).startswith("-"):
            place = self.address(array, start)
            return [f"{self.use('memset')}({place}, 0, {self.size(stop - start, array)});"]
        at = self.fresh(f"{array.name}_at")
        scalar = self.fresh(f"{array.name}_fill")
        first, last = self.converted(start), self.converted(stop)
        return [
            "{",
            f"  const {c_name(value.type)} {scalar} = {self.converted(value)};",
            f"  for (i64 {at} = {first}, {at}_stop = {last}; {at} < {at}_stop; {at}++)",
            f"    {safe_name(array.name)}[{at}] = {scalar};",
            "}",
        ]


def _local(nodes: list[Node]) -> set[str]:
    """The arrays that need no memory of their own: they have a few elements and nobody keeps them."""
    kept = {node.array.name for node in nodes if isinstance(node, ir.Resize | ir.PutArray | ir.KeepArray)}
    lengths: dict[str, list[ir.Expr]] = {}
    for node in nodes:
        if isinstance(node, ir.Allocate):
            lengths.setdefault(node.array.name, []).append(node.count)
    few = [ir.Const(length) for length in range(1, MAX_LOCAL + 1)]
    return {name for name, counts in lengths.items() if name not in kept and all(n in few for n in counts)}


def _summed(body: ir.Stmt) -> ir.Var | None:
    """The variable of a loop that does nothing but add to it: its terms may be added in vector lanes.

    Compilers must keep the order of floating-point sums unless allowed otherwise; this allows it for one sum,
    where ``-ffast-math`` would allow it for everything, and for the whole process.
    """
    statements = body.body if isinstance(body, ir.Block) else (body,)
    if not statements or not all(isinstance(s, ir.Declare) for s in statements[:-1]):
        return None
    match statements[-1]:
        case ir.Assign(ir.Var() as var, ir.Binary("+", ir.Var() as same, term, _)) if var == same:
            nodes = [node for s in statements for node in walk(s)]
            if var.type.kind == "float" and not any(isinstance(node, ir.Call) for node in nodes):
                return var if var not in list(walk(term)) else None
    return None


def _returns(stmt: ir.Stmt) -> bool:
    return isinstance(stmt, ir.Return) or (
        isinstance(stmt, ir.Block) and bool(stmt.body) and _returns(stmt.body[-1])
    )


def _comment(text: str) -> str:
    return f"// {text}".rstrip("\\ ")
