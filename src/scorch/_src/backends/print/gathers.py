"""Print sums of gathered terms (``nodes.For.gathered``): several entries at once, a mask for those left over.

    f32x8 acc_lanes = {acc};
    for (; p + 7 < p_stop; p += 8) {
      const i32x8 at_0 = *(const i32x8_at *)(A2_crd + p);
      f32x8 got_1;
      gather_f32x8_i32(&got_1, B_vals, at_0, 8);
      acc_lanes += *(const f32x8_at *)(A_vals + p) * got_1;
    }
    if (p < p_stop) ...  // the same, with loads that read nothing beyond the row
    acc = total_f32x8(acc_lanes);

A row takes as many turns as it fills registers, most rows one: what a scalar loop loses on rows of few
entries is the jump out of it, which CPUs predict badly. Where rows of one register alternate with rows of
two, both are loaded under masks, always (``masked``): an empty register costs less than such a jump. Loads
under a mask, and gathers, are instructions of AVX-512 or AVX2, in assembly as each compiler has other names
for them; elsewhere loops. Where gathers take several times as long as loads, as on CPUs whose microcode keeps
them from leaking what they read, lanes are loaded one by one (``Target.gathers_slowly``). Those beyond what
is left are loaded from the first place there is, so that there is no jump.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorch._src.backends.print.expressions import PRECEDENCE, c_name, indent, safe_name
from scorch._src.backends.print.lanes import stride
from scorch._src.backends.print.totals import in_memory, vector_name
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import substitute, walk
from scorch._src.loops.simplify import simplify
from scorch._src.loops.types import INT32, INT64, Type

if TYPE_CHECKING:
    from scorch._src.backends.print.c import Scope

ANY_MEMORY = "struct any_memory { char bytes[1 << 20]; };"  # what an instruction may read
_LETTERS = {4: "d", 8: "q"}
_MOVES = {("float", 4): "vmovups", ("float", 8): "vmovupd", ("int", 4): "vmovdqu32", ("int", 8): "vmovdqu64"}
_MASKED = {
    ("float", 4): "vmaskmovps",
    ("float", 8): "vmaskmovpd",
    ("int", 4): "vpmaskmovd",
    ("int", 8): "vpmaskmovq",
}


def print_gathered(scope: Scope, stmt: ir.For, summed: ir.Var, first: str, last: str) -> list[str] | None:
    """Print a loop that adds to ``summed``; None where its terms cannot be gathered."""
    *declared, final = stmt.body.body if isinstance(stmt.body, ir.Block) else (stmt.body,)
    assert isinstance(final, ir.Assign) and isinstance(final.value, ir.Binary)
    known: dict[str, ir.Expr] = {}
    for declare in declared:
        assert isinstance(declare, ir.Declare)
        known[declare.var.name] = substitute(declare.value, known)
    term = substitute(final.value.b, known)
    if not _Terms.can_print(term, stmt.var, summed.type):
        return None
    lanes, name = stmt.gathered, safe_name(stmt.var.name)
    vector, sums = scope.vector(summed.type, lanes), scope.fresh(f"{summed.name}_lanes")
    whole = _Terms(scope, stmt, summed.type, None)
    added = whole.text(term)
    most = stmt.masked * lanes
    ends = _single_end if stmt.masked == 1 else _every_end
    return [
        f"{first};",
        f"{vector} {sums} = {{{safe_name(summed.name)}}};",
        f"for (; {name} + {most - (stmt.masked == 1)} < {last}; {name} += {lanes}) {{",
        *indent([*whole.setup, f"{sums} += {added};"]),
        "}",
        *ends(scope, stmt, summed, term, sums, last),
        f"{safe_name(summed.name)} = {scope.total(summed.type, lanes)}({sums});",
    ]


def _single_end(scope: Scope, stmt: ir.For, summed: ir.Var, term: ir.Expr, sums: str, last: str) -> list[str]:
    """Print what is left over, under a mask, if anything is."""
    name, left = safe_name(stmt.var.name), scope.fresh(f"{stmt.var.name}_left")
    return [
        f"if ({name} < {last}) {{",
        f"  const i64 {left} = {last} - {name};",
        *indent(_masked(scope, stmt, summed, term, sums, left)),
        "}",
    ]


def _every_end(scope: Scope, stmt: ir.For, summed: ir.Var, term: ir.Expr, sums: str, last: str) -> list[str]:
    """Print the last registers of a row that has entries, all under masks; the last ones may be empty."""
    name, lines = safe_name(stmt.var.name), []
    for end in range(stmt.masked):
        left = scope.fresh(f"{stmt.var.name}_left")
        rest = f"{last} - {name}"
        if end < stmt.masked - 1:
            rest = f"{rest} < {stmt.gathered} ? {rest} : {stmt.gathered}"
        part = [f"const i64 {left} = {rest};", *_masked(scope, stmt, summed, term, sums, left)]
        lines += ["{", *indent([*part, f"{name} += {left};"]), "}"]
    return [f"if ({name} < {last}) {{", *indent(lines), "}"]


def _masked(scope: Scope, stmt: ir.For, summed: ir.Var, term: ir.Expr, sums: str, left: str) -> list[str]:
    some = _Terms(scope, stmt, summed.type, left)
    rest = some.text(term)
    if not some.is_zero(term):
        rest = some.keep(rest)
    return [*some.setup, f"{sums} += {rest};"]


class _Terms:
    """Prints a term for all lanes of a register, or for the first ``left`` of them."""

    def __init__(self, scope: Scope, stmt: ir.For, element: Type, left: str | None) -> None:
        self.scope, self.var, self.lanes, self.element = scope, stmt.var, stmt.gathered, element
        self.left = left
        self.setup: list[str] = []
        self.loaded: dict[ir.Expr, str] = {}

    @staticmethod
    def can_print(term: ir.Expr, var: ir.Var, element: Type) -> bool:
        """Check that a term is sums and products of loads of ``element`` that ``var`` picks."""
        varies = False
        for node in walk(term):
            match node:
                case ir.Load(array, index) if var in walk(index):
                    picked = _picked(index, var)
                    varies = True
                    is_index = array.element in (INT32, INT64)
                    if array.element != element and not is_index:
                        return False
                    if picked is None and stride(index, var) != 1:
                        return False
                case ir.Binary(op) if (
                    var in walk(node) and node.type == element and op not in ("+", "-", "*")
                ):
                    return False
                case ir.Unary(op) if var in walk(node) and op != "-":
                    return False
                case ir.Select() | ir.Call() | ir.Total():
                    return False
                case ir.Cast() if var in walk(node) and node.type == element:
                    return False
        return varies

    def text(self, value: ir.Expr) -> str:
        """``value`` in the lanes of a register."""
        if self.var not in walk(value):
            return self.scope.expr(value, PRECEDENCE["*"] + 1)
        match value:
            case ir.Load(array, index):
                return self.load(value, array, index)
            case ir.Unary("-", x, _):
                return f"(-{self.text(x)})"
            case ir.Binary(op, a, b, _):
                return f"({self.text(a)} {op} {self.text(b)})"
        raise AssertionError(f"{value!r} in lanes")

    def load(self, value: ir.Expr, array: ir.Array, index: ir.Expr) -> str:
        if value in self.loaded:
            return self.loaded[value]
        picked = _picked(index, self.var)
        name = self.loaded[value] = self.scope.fresh(f"got_{len(self.loaded)}")
        vector = self.scope.vector(array.element, self.lanes)
        if picked is None:
            place = self.scope.address(array, index)
            if self.left is None:
                self.setup.append(
                    f"const {vector} {name} = *({in_memory(array.element, self.lanes)} *)({place});"
                )
            else:
                function = self.scope.gather("load", array.element, None, self.lanes)
                self.setup.append(f"{vector} {name};")
                self.setup.append(f"{function}(&{name}, {place}, {self.left});")
            return name
        entry, base = picked
        at = self.load(entry, entry.array, entry.index)
        kind = "gather" if _is_natural(base) else "gather_before"
        function = self.scope.gather(kind, array.element, entry.array.element, self.lanes)
        count = str(self.lanes) if self.left is None else self.left
        self.setup.append(f"{vector} {name};")
        self.setup.append(f"{function}(&{name}, {self.scope.address(array, base)}, {at}, {count});")
        return name

    def is_zero(self, term: ir.Expr) -> bool:
        """Whether a term is zero where all that it loads is: in the lanes beyond those left."""
        if self.var not in walk(term):
            return False
        match term:
            case ir.Load():
                return True
            case ir.Unary("-", x, _):
                return self.is_zero(x)
            case ir.Binary(_, a, b, _):  # zero times what is the same in all lanes may be no number
                return self.is_zero(a) and self.is_zero(b)
        raise AssertionError(f"{term!r} in lanes")

    def keep(self, term: str) -> str:
        """The name of a register with ``term`` in it, and zeros in the lanes beyond those left."""
        name, function = self.scope.fresh("kept"), self.scope.gather("keep", self.element, None, self.lanes)
        self.setup.append(f"{self.scope.vector(self.element, self.lanes)} {name} = {term};")
        self.setup.append(f"{function}(&{name}, {self.left});")
        return name


def _picked(index: ir.Expr, var: ir.Var) -> tuple[ir.Load, ir.Expr] | None:
    """The stored coordinate that ``index`` is, and what is the same for all added to it."""
    match index:
        case ir.Load(array, inner) if array.element in (INT32, INT64) and stride(inner, var) == 1:
            return index, ir.Const(0)
        case ir.Cast(x, t) if t == INT64:
            return _picked(x, var)
        case ir.Binary("+", a, b, _):
            for part, other in ((a, b), (b, a)):
                found = _picked(part, var)
                if found is not None and var not in walk(other):
                    return found[0], simplify(found[1] + other)
    return None


def _is_natural(base: ir.Expr) -> bool:
    """Whether places counted from ``base`` surely lie in an array that has any."""
    return not any(
        isinstance(node, ir.Unary)
        or (isinstance(node, ir.Binary) and node.op not in ("+", "*"))
        or (isinstance(node, ir.Const) and isinstance(node.value, int) and node.value < 0)
        for node in walk(base)
    )


def name_of(kind: str, element: Type, index: Type | None, lanes: int) -> str:
    suffix = "" if index is None else f"_{c_name(index)}"
    return f"{kind}_{vector_name(element, lanes)}{suffix}"


def helper(kind: str, element: Type, index: Type | None, lanes: int) -> str:
    """The text of a function that loads, gathers or keeps the first ``left`` lanes of a register."""
    vector, scalar = vector_name(element, lanes), c_name(element)
    gathered = f"{vector} *to, const {scalar} *from, {vector_name(index or element, lanes)} at, i64 left"
    given = {
        "load": f"{vector} *to, const {scalar} *from, i64 left",
        "keep": f"{vector} *to, i64 left",
    }.get(kind, gathered)
    body = _masking(kind, element, index, lanes)
    if kind == "gather":
        body = ["#if defined(GATHERS_SLOWLY)", *_one_by_one(element, index, lanes), "#else", *body, "#endif"]
    return "\n".join(
        [
            f"static inline void {name_of(kind, element, index, lanes)}({given}) {{",
            f"  {vector} lanes = {{0}};" if kind != "keep" else f"  {vector} lanes = *to;",
            *body,
            "  *to = lanes;",
            "}",
        ]
    )


def _masking(kind: str, element: Type, index: Type | None, lanes: int) -> list[str]:
    """Load, gather or keep the first ``left`` lanes."""
    one = {"load": "from[lane]", "keep": "lanes[lane]"}.get(kind, "from[at[lane]]")
    wide, narrow = _instructions(kind, element, index, lanes)
    mask, numbers = f"i{8 * element.bytes}", ", ".join(["-1"] * lanes + ["0"] * lanes)
    return [
        "#if defined(__AVX512VL__) && defined(__AVX512DQ__)",
        "  u16 mask = (u16)((1u << left) - 1);",
        f"  {wide}",
        "#elif defined(__AVX2__)",
        f"  static const {mask} masks[{2 * lanes}] = {{{numbers}}};",
        f"  {mask}x{lanes} mask = *({mask}x{lanes}_at *)(masks + {lanes} - left);",
        f"  {narrow}",
        "#else",
        f"  for (i64 lane = 0; lane < {lanes}; lane++) lanes[lane] = lane < left ? {one} : 0;",
        "#endif",
    ]


def _one_by_one(element: Type, index: Type | None, lanes: int) -> list[str]:
    """Load lanes from places that compilers are kept from taking out of a register again."""
    assert index is not None
    vector, places = vector_name(element, lanes), vector_name(index, lanes)
    loaded = ", ".join(f"from[places[{lane}]]" for lane in range(lanes))
    return [
        f"  {c_name(index)} places[{lanes}] __attribute__((aligned({lanes * index.bytes})));",
        f"  *({places}_at *)places = at;",
        '  __asm__("" : "+m"(places));',
        f"  lanes = ({vector}){{{loaded}}};",
        f"  if (left < {lanes}) {{",
        *_masking("keep", element, index, lanes),
        "  }",
    ]


def _instructions(kind: str, element: Type, index: Type | None, lanes: int) -> tuple[str, str]:
    """The instructions of AVX-512 and of AVX2."""
    of = (element.kind, element.bytes)
    reads = '"m"(*(const struct any_memory *)from)'
    if kind == "keep":
        move = "vmovaps" if element.bytes == 4 else "vmovapd"
        wide = f'__asm__("{move} %0, %0%{{%1%}}%{{z%}}" : "+v"(lanes) : "Yk"(mask));'
        vector, integers = vector_name(element, lanes), f"i{8 * element.bytes}x{lanes}"
        return wide, f"lanes = ({vector})(({integers})lanes & mask);"
    if kind == "load":
        place = f'"m"(*(const {in_memory(element, lanes)} *)from)'
        wide = f'__asm__("{_MOVES[of]} %1, %0%{{%2%}}%{{z%}}" : "=v"(lanes) : {place}, "Yk"(mask));'
        narrow = f'__asm__("{_MASKED[of]} %1, %2, %0" : "=x"(lanes) : {place}, "x"(mask));'
        return wide, narrow
    assert index is not None
    name = f"vgather{_LETTERS[index.bytes]}p{'s' if element.bytes == 4 else 'd'}"
    place = f"(%2,%3,{element.bytes})"
    wide = (
        f'__asm__("{name} {place}, %0%{{%1%}}" : "+&v"(lanes), "+&Yk"(mask) : "r"(from), "v"(at), {reads});'
    )
    narrow = f'__asm__("{name} %1, {place}, %0" : "+&x"(lanes), "+&x"(mask) : "r"(from), "x"(at), {reads});'
    return wide, narrow
