"""Print loops over vector lanes (``nodes.Lanes``) with the vector types of GNU C.

    for k in k_start..k_start+15, in lanes of 4: acc[k - k_start] += A_vals[p] * B_vals[q + k]

becomes four statements on named registers,

    const f32 a = A_vals[p];
    const f32 *B_at = B_vals + q + k_start;
    acc_0 += a * *(const f32x4_at *)B_at;
    acc_1 += a * *(const f32x4_at *)(B_at + 4);  ...

which compilers keep in registers, whatever they think of loops. ``f32x4_at`` is the same vector wherever it
lies among numbers in memory; it is for loads and stores only, since some compilers crash where a value of a
type that is not aligned is passed on (gcc 16 on aarch64). Where the lanes do not divide the count, the
last register starts early, so that it ends with the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorch._src.backends.print.expressions import ATOM, PRECEDENCE, PREFIX, TERNARY, c_name
from scorch._src.backends.print.totals import in_memory, offsets, register, vector_name
from scorch._src.compiler.target import LINE
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import substitute, walk
from scorch._src.loops.simplify import simplify
from scorch._src.loops.types import Type

if TYPE_CHECKING:
    from scorch._src.backends.print.c import Scope


def vector_typedef(element: Type, lanes: int) -> str:
    """A vector in registers, and as it lies in memory."""
    size, scalar = element.bytes * lanes, c_name(element)
    attributes = f"vector_size({size}), aligned({element.bytes}), may_alias"
    return (
        f"typedef {scalar} {vector_name(element, lanes)} __attribute__((vector_size({size})));\n"
        f"typedef {scalar} {in_memory(element, lanes)} __attribute__(({attributes}));"
    )


def in_lanes(name: str, element: Type, lanes: int) -> str:
    """A function of vectors: ``relu``, or ``where``, which picks by a mask, as C's ``?:`` cannot."""
    vector = vector_name(element, lanes)
    if name == "relu":
        return (
            f"static inline {vector} relu_{vector}({vector} x) {{\n"
            f"  return ({vector})(~(x < 0) & (__typeof__(x < x))x);\n}}"
        )
    mask = f"__typeof__(({vector}){{0}} < ({vector}){{0}})"
    return (
        f"static inline {vector} where_{vector}({mask} mask, {vector} a, {vector} b) {{\n"
        f"  return ({vector})((mask & ({mask})a) | (~mask & ({mask})b));\n}}"
    )


def print_tile(scope: Scope, tile: ir.Tile) -> list[str]:
    kind = scope.vector(tile.array.element, tile.lanes)
    zero = "0" if tile.lanes == 1 else "{0}"
    names = [register(tile.array, slot) for slot in range(len(offsets(tile.count, tile.lanes)))]
    scope.tiles[tile.array.name] = len(names)
    return [f"{kind} {', '.join(f'{name} = {zero}' for name in names)};"]


def print_prefetch(scope: Scope, prefetch: ir.Prefetch) -> list[str]:
    step = max(prefetch.step, LINE // prefetch.array.element.bytes)
    name = scope.fresh(f"{prefetch.array.name}_ahead")
    places = [f"{name} + {line}" if line else name for line in range(0, prefetch.count, step)]
    start = scope.address(prefetch.array, prefetch.index)
    return [
        "{",
        f"  const {c_name(prefetch.array.element)} *{name} = {start};",
        *(f"  __builtin_prefetch({place});" for place in places),
        "}",
    ]


class LanePrinter:
    """One ``Lanes`` being printed: the pointers and scalars set up before its registers."""

    def __init__(self, scope: Scope, stmt: ir.Lanes) -> None:
        self.scope = scope
        self.stmt = stmt
        self.known: dict[str, ir.Expr] = {}  # indices declared in the body
        self.setup: list[str] = []
        self.pointers: dict[tuple[str, ir.Expr], str] = {}
        self.scalars: dict[ir.Expr, str] = {}

    def lines(self) -> list[str]:
        body = self.stmt.body
        stores: list[list[str]] = []
        for s in body.body if isinstance(body, ir.Block) else (body,):
            match s:
                case ir.Declare(var, value):
                    assert var.type.is_integer, f"{var} is declared in lanes"
                    self.known[var.name] = substitute(value, self.known)
                case ir.Store(array, index, value):
                    stores.append(self.store(array, index, substitute(value, self.known)))
                case _:
                    raise AssertionError(f"{s!r} in lanes")
        lines = [line for register in zip(*stores, strict=True) for line in register]
        if self.setup:  # names of its own
            return ["{", *(f"  {line}" for line in (*self.setup, *lines)), "}"]
        return lines

    def store(self, array: ir.Array, index: ir.Expr, value: ir.Expr) -> list[str]:
        places = list(enumerate(offsets(self.stmt.count, self.stmt.lanes)))
        if array.name not in self.scope.tiles:
            kind = self.in_memory(array)
            pointer = self.pointer(array, index, changed=True)
            return [
                f"{_at(pointer, kind, offset)} = {self.whole(value, slot, offset)};"
                for slot, offset in places
            ]
        lines = []
        for slot, offset in places:
            name = self.tile(array, slot)
            match value:
                case ir.Binary("+", ir.Load(same, _), term, _) if same == array:
                    lines.append(f"{name} += {self.text(term, slot, offset)[0]};")
                case _:
                    lines.append(f"{name} = {self.whole(value, slot, offset)};")
        return lines

    def in_memory(self, array: ir.Array) -> str:
        """The name of the type of elements of ``array`` where they lie."""
        self.scope.vector(array.element, self.stmt.lanes)
        return in_memory(array.element, self.stmt.lanes)

    def tile(self, array: ir.Array, slot: int) -> str:
        return register(array, slot % self.scope.tiles[array.name])

    def whole(self, value: ir.Expr, slot: int, offset: int) -> str:
        """``value`` as a vector also where all lanes are the same."""
        text, _ = self.text(value, slot, offset)
        if self.stmt.lanes == 1 or self.varies(value):
            return text
        kind = self.scope.vector(value.type, self.stmt.lanes)
        return f"({kind}){{{', '.join([text] * self.stmt.lanes)}}}"

    def varies(self, value: ir.Expr) -> bool:
        names = {n.name for n in walk(value) if isinstance(n, ir.Var | ir.Array)}
        return self.stmt.var.name in names or bool(names & self.scope.tiles.keys())

    def text(self, value: ir.Expr, slot: int, offset: int) -> tuple[str, int]:
        """``value`` in one register, with C's precedence."""
        if not self.varies(value):
            return self.scalar(value)
        match value:
            case ir.Load(array, _) if array.name in self.scope.tiles:
                return self.tile(array, slot), ATOM
            case ir.Load(array, index):
                assert array.element.computes_in == array.element, f"{array} is widened in lanes"
                pointer = self.pointer(array, index, changed=False)
                return _at(pointer, self.in_memory(array), offset), PREFIX
            case ir.Binary("+" | "-" | "*" | "/" as op, a, b, _):
                level = PRECEDENCE[op]
                left, right = self.text(a, slot, offset), self.text(b, slot, offset)
                texts = [
                    f"({text})" if precedence < level + place else text
                    for place, (text, precedence) in enumerate((left, right))
                ]
                return f"{texts[0]} {op} {texts[1]}", level
            case ir.Unary("-", x, _):
                text, precedence = self.text(x, slot, offset)
                return f"-{text}" if precedence > PREFIX else f"-({text})", PREFIX
            case ir.Unary("relu", x, t):
                name = self.scope.of_vectors("relu", t, self.stmt.lanes)
                return f"{name}({self.whole(x, slot, offset)})", ATOM
            case ir.Select(ir.Binary("<" | ">" | "<=" | ">=" as op, a, b, _), x, y):
                parts = [self.whole(part, slot, offset) for part in (a, b, x, y)]
                if self.stmt.lanes == 1:
                    return f"({parts[0]}) {op} ({parts[1]}) ? {parts[2]} : {parts[3]}", TERNARY
                name = self.scope.of_vectors("where", x.type, self.stmt.lanes)
                return f"{name}(({parts[0]}) {op} ({parts[1]}), {parts[2]}, {parts[3]})", ATOM
        raise AssertionError(f"{value!r} in lanes")

    def scalar(self, value: ir.Expr) -> tuple[str, int]:
        """What is the same in all lanes, computed once."""
        if isinstance(value, ir.Var | ir.Const):
            return self.scope.term(value)
        if value not in self.scalars:
            name = self.scope.fresh("same" if not self.scalars else f"same_{len(self.scalars)}")
            self.scalars[value] = name
            self.setup.append(f"const {c_name(value.type)} {name} = {self.scope.converted(value)};")
        return self.scalars[value], ATOM

    def pointer(self, array: ir.Array, index: ir.Expr, changed: bool) -> str:
        """The name of a pointer to the element of the first lane."""
        index = substitute(index, self.known)
        assert stride(index, self.stmt.var) == 1, f"lanes jump in {array.name}[{index!r}]"
        base = simplify(substitute(index, {self.stmt.var.name: self.stmt.start}))
        key = array.name, base
        if key not in self.pointers:
            number = sum(name == array.name for name, _ in self.pointers)
            name = self.scope.fresh(f"{array.name}_at" + (f"_{number}" if number else ""))
            self.pointers[key] = name
            const = "" if changed or array.name in self.scope.written else "const "
            place = self.scope.address(array, base)
            self.setup.append(f"{const}{c_name(array.element)} *{name} = {place};")
        return self.pointers[key]


def _at(pointer: str, kind: str, offset: int) -> str:
    place = f"({pointer} + {offset})" if offset else pointer
    return f"*({kind} *){place}"


def stride(index: ir.Expr, var: ir.Var) -> int | None:
    """How far ``index`` moves when ``var`` does by one; None where that is not the same everywhere."""
    match index:
        case ir.Binary("+" | "-" as op, a, b, _):
            left, right = stride(a, var), stride(b, var)
            if left is None or right is None:
                return None
            return left + right if op == "+" else left - right
        case ir.Var() if index == var:
            return 1
    return None if var in walk(index) else 0
