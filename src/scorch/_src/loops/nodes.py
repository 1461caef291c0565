"""The small imperative language that kernels are written in.

Expressions are typed and have no effects; statements are ordered in blocks. Arrays are named
pointers to elements of one type. A kernel is a list of functions around one block of argument slots,
each slot a 64-bit integer or a pointer, which is the whole calling convention (see ``Kernel``).
``cpp`` prints kernels, ``interpret`` runs them with every access checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from scorch._src.dataclass import dataclass
from scorch._src.loops.types import BOOL, INT64, Type

MAX_SUM_TURNS = 4  # parts of a sum that are variables of their own


def _arithmetic(op: str) -> Callable[[Expr, Expr | int], Expr]:
    return lambda a, b: arithmetic(op, a, as_expr(b))


def _comparison(op: str) -> Callable[[Expr, Expr | int], Expr]:
    return lambda a, b: Binary(op, a, as_expr(b), BOOL)


class Expr:
    """A typed value without effects. Index arithmetic may be written with Python's operators."""

    type: Type

    __add__ = _arithmetic("+")
    __sub__ = _arithmetic("-")
    __mul__ = _arithmetic("*")
    __floordiv__ = _arithmetic("/")
    __mod__ = _arithmetic("%")
    __lt__ = _comparison("<")
    __le__ = _comparison("<=")
    equals = _comparison("==")
    differs = _comparison("!=")


@dataclass(frozen=True)
class Const(Expr):
    value: int | float | complex | bool
    type: Type = INT64


@dataclass(frozen=True)
class Var(Expr):
    name: str
    type: Type = INT64


@dataclass(frozen=True)
class Array:
    """A named pointer to elements of one type; not a value itself."""

    name: str
    element: Type


@dataclass(frozen=True)
class Load(Expr):
    """``array[index]``, widened to the type its element computes in."""

    array: Array
    index: Expr

    @property
    def type(self) -> Type:  # type: ignore[override]
        return self.array.element.computes_in


@dataclass(frozen=True)
class Unary(Expr):
    """``op(x)``: ``-``, ``!`` or another name of ``IN_LOOPS``; the operand has been cast already."""

    op: str
    x: Expr
    type: Type


@dataclass(frozen=True)
class Binary(Expr):
    """``a op b``: + - * / % < <= > >= == != && || max min; both operands have the same type.

    ``/`` on integers truncates, as in C. ``max`` and ``min`` propagate NaN, as in torch.
    Integer arithmetic wraps around.
    """

    op: str
    a: Expr
    b: Expr
    type: Type


@dataclass(frozen=True)
class Select(Expr):
    """``condition ? a : b``; only the chosen side is evaluated, unless ``both`` may be.

    Compilers put a choice into vectors only if nothing is loaded on one side alone.
    """

    condition: Expr
    a: Expr
    b: Expr
    both: bool = False

    @property
    def type(self) -> Type:  # type: ignore[override]
        return self.a.type


@dataclass(frozen=True)
class Cast(Expr):
    """``x`` converted to ``type``; to bool: ``x != 0``; from complex to real: the real part."""

    x: Expr
    type: Type


@dataclass(frozen=True)
class Call(Expr):
    """A call of an intrinsic (``loops.intrinsics``) or of a function of the same kernel.

    Arguments are expressions or arrays.
    """

    function: str
    arguments: tuple[Expr | Array, ...]
    type: Type = INT64


@dataclass(frozen=True)
class Total(Expr):
    """The sum of all elements of a tile (``Tile``)."""

    array: Array
    count: int
    lanes: int

    @property
    def type(self) -> Type:  # type: ignore[override]
        return self.array.element


class Stmt:
    """Something that is done."""


@dataclass(frozen=True)
class Block(Stmt):
    """Statements in order; it opens no scope of its own."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Comment(Stmt):
    text: str


@dataclass(frozen=True)
class Declare(Stmt):
    """A new local variable."""

    var: Var
    value: Expr


@dataclass(frozen=True)
class Assign(Stmt):
    var: Var
    value: Expr


@dataclass(frozen=True)
class Store(Stmt):
    """``array[index] = value``."""

    array: Array
    index: Expr
    value: Expr


@dataclass(frozen=True)
class AtomicAdd(Stmt):
    """``array[index] += value``, where turns of a parallel loop may add to one element, in any order."""

    array: Array
    index: Expr
    value: Expr


@dataclass(frozen=True)
class For(Stmt):
    """``for var in start..stop-1``; ``start`` and ``stop`` are evaluated once.

    A loop that does nothing but add to one variable may add in ``sums`` parts, in any order: up to
    ``MAX_SUM_TURNS`` are variables that take turns, more are vector lanes as the compiler sees fit; or in
    ``gathered`` lanes, where what its terms read is loaded and gathered for so many turns at once; the last
    ``masked`` times so many, or fewer, under masks.
    ``threads`` of a grid that are side by side share its turns; what each has added up is put together.
    ``lanes`` of them, adjacent ones, take each turn together and have added up the same.
    """

    var: Var
    start: Expr
    stop: Expr
    body: Stmt
    sums: int = 1
    threads: int = 1
    lanes: int = 1
    gathered: int = 0
    masked: int = 1


@dataclass(frozen=True)
class Tile(Stmt):
    """Declare ``array``, ``count`` elements that are zero, in vector registers of ``lanes`` elements.

    Only ``Lanes`` touches its elements and only ``Total`` reads it whole.
    """

    array: Array
    count: int
    lanes: int


@dataclass(frozen=True)
class LoadRun(Stmt):
    """Declare ``vars``, the elements of ``array`` from ``index`` on, which is a multiple of their number."""

    vars: tuple[Var, ...]
    array: Array
    index: Expr

    @property
    def one_by_one(self) -> Block:
        """The same, an element at a time."""
        loads = (Declare(var, Load(self.array, self.index + at)) for at, var in enumerate(self.vars))
        return Block(tuple(loads))


@dataclass(frozen=True)
class StoreRun(Stmt):
    """``array[index..] = values``; ``index`` is a multiple of their number."""

    array: Array
    index: Expr
    values: tuple[Expr, ...]

    @property
    def one_by_one(self) -> Block:
        """The same, an element at a time."""
        stores = (Store(self.array, self.index + at, value) for at, value in enumerate(self.values))
        return Block(tuple(stores))


@dataclass(frozen=True)
class AtomicAddRun(Stmt):
    """``array[index..] += values``, each as by ``AtomicAdd``; ``index`` is a multiple of their number."""

    array: Array
    index: Expr
    values: tuple[Expr, ...]

    @property
    def one_by_one(self) -> Block:
        """The same, an element at a time."""
        adds = (AtomicAdd(self.array, self.index + at, value) for at, value in enumerate(self.values))
        return Block(tuple(adds))


@dataclass(frozen=True)
class Lanes(Stmt):
    """Run ``body`` for ``var`` in start..start+count-1, in vector registers of ``lanes`` elements.

    The turns come in no order, and some come twice where ``lanes`` does not divide ``count``. So ``body``,
    which is declarations of indices and stores of sums and products, stores to arrays that it does not
    read, and to tiles at the ``lane`` of the turn.
    """

    var: Var
    start: Expr
    count: int
    lanes: int
    body: Stmt


@dataclass(frozen=True)
class Prefetch(Stmt):
    """Elements of ``array`` from ``index`` on will be read soon; it changes nothing.

    Each of their cache lines is fetched, or that of every ``step``-th element.
    """

    array: Array
    index: Expr
    count: int
    step: int = 0


@dataclass(frozen=True)
class While(Stmt):
    condition: Expr
    body: Stmt


@dataclass(frozen=True)
class If(Stmt):
    condition: Expr
    then: Stmt
    otherwise: Stmt = field(default_factory=lambda: Block(()))


@dataclass(frozen=True)
class Allocate(Stmt):
    """Declare ``array`` and give it ``count`` elements, all zero if ``zero``; out of memory fails."""

    array: Array
    count: Expr
    zero: bool = False


@dataclass(frozen=True)
class Resize(Stmt):
    """Give an allocated ``array`` ``count`` elements, keeping the first ones; out of memory fails."""

    array: Array
    count: Expr


@dataclass(frozen=True)
class Free(Stmt):
    array: Array


@dataclass(frozen=True)
class Fill(Stmt):
    """``array[start..stop-1] = value``."""

    array: Array
    start: Expr
    stop: Expr
    value: Expr


@dataclass(frozen=True)
class Copy(Stmt):
    """``target[target_start..] = source[source_start..]``, ``count`` elements of the same type."""

    target: Array
    target_start: Expr
    source: Array
    source_start: Expr
    count: Expr


@dataclass(frozen=True)
class Perform(Stmt):
    """A call for its effect."""

    call: Call


@dataclass(frozen=True)
class Return(Stmt):
    """Leave a function with ``value``; exported functions return 0 for success."""

    value: Expr


@dataclass(frozen=True)
class Fail(Stmt):
    """Leave the kernel for want of memory: 1 from an exported function or a helper returning -1."""


@dataclass(frozen=True)
class Put(Stmt):
    """Write ``value`` into the argument slot called ``slot`` for the caller to read."""

    slot: str
    value: Expr


@dataclass(frozen=True)
class PutArray(Stmt):
    """Write the address of ``array`` into the argument slot called ``slot``."""

    slot: str
    array: Array


@dataclass(frozen=True)
class SlotArray(Stmt):
    """Declare ``array`` as a row of a table of pointers: element ``index`` of ``table``.

    Chunks of a parallel loop keep the arrays they allocate in such tables (``KeepArray``).
    """

    array: Array
    table: Array
    index: Expr


@dataclass(frozen=True)
class KeepArray(Stmt):
    """``table[index] = address of array``; ``table`` is an int64 array."""

    table: Array
    index: Expr
    array: Array


@dataclass(frozen=True)
class Parallel(Stmt):
    """Run ``body`` for ``var`` in 0..count-1, on up to ``threads`` workers that take turns dynamically.

    Each worker runs ``prologue`` before its first turn and ``epilogue`` after its last. The three
    share a scope of their own; variables from outside are captured by value and may not be assigned.
    With ``threads`` at most 1 all happens in the calling thread, in order. ``has_unit_each``: a grid is
    launched with a unit for every turn, so that none takes a second one.
    """

    var: Var
    count: Expr
    threads: Expr
    prologue: Stmt
    body: Stmt
    epilogue: Stmt
    has_unit_each: bool = False


@dataclass(frozen=True)
class Meet(Stmt):
    """Let the ``threads`` of a unit wait for each other: what one stored before, all read after."""

    threads: int


@dataclass(frozen=True)
class Function:
    """A function of a kernel.

    An exported function takes the argument block, from which it reads the slots named by ``params``,
    and returns 0, or 1 if memory ran out. A helper takes ``params`` and returns an ``int64``
    (-1 if memory ran out inside).
    """

    name: str
    params: tuple[Var | Array, ...]
    body: Stmt
    exported: bool = False


@dataclass(frozen=True)
class Kernel:
    """Functions around one block of argument slots: ``long long f(long long *args)``.

    ``slots`` lists every slot in order; an array's slot holds its address, a variable's its value.
    The slot ``parallel_for`` holds the address of torch's thread pool (0: run serially).
    ``header`` is printed as a comment: expression, formats and schedule. ``scatters``: its loops follow lists
    of positions and add to those, which no compiler does in vectors.
    """

    header: str
    slots: tuple[Var | Array, ...]
    functions: tuple[Function, ...]
    scatters: bool = False

    def slot(self, name: str) -> int:
        for position, slot in enumerate(self.slots):
            if slot.name == name:
                return position
        raise AssertionError(f"kernel has no slot {name!r}")


def lane(var: Var, start: Expr, count: int, size: int) -> Expr:
    """The element of a tile of ``size`` elements that a turn of ``Lanes`` with ``count`` turns owns."""
    place = var - start
    return place if size == count else place % size


def as_expr(value: Expr | int) -> Expr:
    return Const(value) if isinstance(value, int) else value


def wide(x: Expr) -> Expr:
    """A stored coordinate or position as the ``int64`` that index arithmetic is done in."""
    return x if x.type == INT64 else Cast(x, INT64)


def arithmetic(op: str, a: Expr, b: Expr) -> Expr:
    """``a op b`` on indices with the neutral elements folded away."""
    match op, a, b:
        case _, Const(x), Const(y) if op in "+-*" and isinstance(x, int) and isinstance(y, int):
            return Const({"+": x + y, "-": x - y, "*": x * y}[op])
        case ("+", Const(0), _):
            return b
        case ("+" | "-", _, Const(0)):
            return a
        case ("*", Const(0), _) | ("*", _, Const(0)):
            return Const(0)
        case ("*", Const(1), _):
            return b
        case ("*" | "/", _, Const(1)):
            return a
    return Binary(op, a, b, INT64)


TRUE = Const(True, BOOL)
FALSE = Const(False, BOOL)


def both(a: Expr, b: Expr) -> Expr:
    """``a && b`` with constants folded."""
    return _logical("&&", a, b, TRUE, FALSE)


def either(a: Expr, b: Expr) -> Expr:
    """``a || b`` with constants folded."""
    return _logical("||", a, b, FALSE, TRUE)


def _logical(op: str, a: Expr, b: Expr, neutral: Const, decided: Const) -> Expr:
    if a == neutral or b == decided:
        return b
    return a if b == neutral or a == decided else Binary(op, a, b, BOOL)


def block(*statements: Stmt | None) -> Block:
    """A block with nested blocks opened and absent statements left out."""
    body: list[Stmt] = []
    for statement in statements:
        if isinstance(statement, Block):
            body.extend(statement.body)
        elif statement is not None:
            body.append(statement)
    return Block(tuple(body))
