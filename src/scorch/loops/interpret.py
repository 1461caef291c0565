"""Run a kernel in Python with every access checked.

Kernels run twice in the tests: as C, fast and silent about mistakes, and here, where an access
outside an array, a read of memory that was never written, a leak or a race becomes an error that
names the array and the index. Trees are compiled to closures over a list of values; names are
resolved beforehand with C's scoping, so a name that C would not know is an error here too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from scorch.loops.memory import BoundsError, Buffer, Memory, OutOfMemory
from scorch.loops.nodes import (
    Allocate,
    Array,
    Assign,
    Binary,
    Block,
    Call,
    Cast,
    Comment,
    Const,
    Copy,
    Declare,
    Expr,
    Fail,
    Fill,
    For,
    Free,
    Function,
    If,
    KeepArray,
    Kernel,
    Lanes,
    Load,
    Parallel,
    Perform,
    Prefetch,
    Put,
    PutArray,
    Resize,
    Return,
    Select,
    SlotArray,
    Stmt,
    Store,
    Tile,
    Total,
    Unary,
    Var,
    While,
)
from scorch.loops.routines import ROUTINES
from scorch.loops.types import INT64, Type
from scorch.loops.values import COMPARISONS, MEANINGS, binary_meaning, convert, unary

__all__ = ["MEANINGS", "BoundsError", "Memory", "run"]

Frame = list[Any]
Value = Callable[[Frame], Any]
Action = Callable[[Frame], None]


def run(kernel: Kernel, function: str, slots: list[Any], memory: Memory | None = None) -> int:
    """Run an exported function on ``slots``, a list of integers and numpy arrays.

    Returns what the C function would; arrays and values that the kernel puts replace those in
    ``slots``. Raises ``BoundsError`` where C would have gone wrong.
    """
    machine = _Machine(kernel, memory or Memory(), slots)
    target = machine.functions[function]
    assert target.exported, f"{function} is not exported"
    arguments = []
    for param in target.params:
        value = slots[kernel.slot(param.name)]
        if isinstance(param, Array):
            arguments.append(machine.memory.from_slot(param.name, param.element, value))
        else:
            arguments.append(convert(value, param.type))
    with np.errstate(all="ignore"):
        result = machine.call(target, arguments)
    if result == 0:
        machine.memory.check_all_freed()
    return result


class _Return(Exception):  # noqa: N818
    def __init__(self, value: int) -> None:
        self.value = value


class _Registers(list[Any]):
    """The elements of a tile."""

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise BoundsError(f"element {index} of a tile of {len(self)}")
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if not 0 <= index < len(self):
            raise BoundsError(f"element {index} of a tile of {len(self)}")
        super().__setitem__(index, value)


class _Machine:
    def __init__(self, kernel: Kernel, memory: Memory, slots: list[Any]) -> None:
        self.kernel = kernel
        self.memory = memory
        self.slots = slots
        self.functions = {function.name: function for function in kernel.functions}
        self.compiled: dict[str, tuple[Action, int]] = {}

    def call(self, function: Function, arguments: list[Any]) -> int:
        if function.name not in self.compiled:
            compiler = _Compiler(self)
            for param in function.params:
                compiler.declare(param)
            body = compiler.statement(function.body)
            self.compiled[function.name] = body, compiler.size
        body, size = self.compiled[function.name]
        frame = arguments + [None] * (size - len(arguments))
        try:
            body(frame)
        except _Return as end:
            return end.value
        except OutOfMemory:
            return 1 if function.exported else -1
        return 0


class _Compiler:
    """Turns the nodes of one function into closures."""

    def __init__(self, machine: _Machine) -> None:
        self.machine = machine
        self.memory = machine.memory
        self.scopes: list[dict[str, tuple[int, Type]]] = [{}]
        self.fixed: set[int] = set()  # loop variables and what workers have captured
        self.size = 0

    # Names

    def declare(self, name: Var | Array) -> int:
        if name.name in self.scopes[-1]:
            raise BoundsError(f"{name.name} is declared twice")
        kind = name.element if isinstance(name, Array) else name.type
        self.scopes[-1][name.name] = self.size, kind
        self.size += 1
        return self.size - 1

    def place(self, name: Var | Array) -> int:
        for scope in reversed(self.scopes):
            if name.name in scope:
                place, kind = scope[name.name]
                want = name.element if isinstance(name, Array) else name.type
                if kind != want:
                    raise BoundsError(f"{name.name} is used as {want} but was declared as {kind}")
                return place
        raise BoundsError(f"{name.name} is not declared")

    def inside(self, *bodies: Stmt) -> list[Action]:
        """Compile ``bodies`` in one new scope."""
        self.scopes.append({})
        actions = [self.statement(body) for body in bodies]
        self.scopes.pop()
        return actions

    # Statements

    def statement(self, stmt: Stmt) -> Action:
        memory, machine = self.memory, self.machine
        match stmt:
            case Block(body):
                actions = [self.statement(s) for s in body if not isinstance(s, Comment)]

                def run_block(frame: Frame) -> None:
                    for action in actions:
                        action(frame)

                return run_block
            case Comment():
                return lambda frame: None
            case Declare(var, value):
                get, t = self.expr(value), var.type
                put = self.declare(var)
                return lambda frame: operator.setitem(frame, put, convert(get(frame), t))
            case Assign(var, value):
                get, put, t = self.expr(value), self.place(var), var.type
                if put in self.fixed:
                    raise BoundsError(f"{var.name} is a loop variable or captured and may not be assigned")
                return lambda frame: operator.setitem(frame, put, convert(get(frame), t))
            case Store(array, index, value):
                into, at, get = self.place(array), self.index(index), self.expr(value)
                if array.element != value.type and not (array.element.is_integer and value.type.is_integer):
                    raise BoundsError(f"{value.type} is stored to {array.name} of {array.element}")
                return lambda frame: operator.setitem(frame[into], at(frame), get(frame))
            case For() | While() | If():
                return self.control(stmt)
            case Lanes(var, start, count, _, body):
                return self.control(For(var, start, start + count, body))
            case Tile(array, size, _):
                put, zero = self.declare(array), convert(0, array.element)
                return lambda frame: operator.setitem(frame, put, _Registers([zero] * size))
            case Prefetch(array, index, _):
                into, at = self.place(array), self.index(index)
                return lambda frame: (frame[into][at(frame)], None)[1]
            case Parallel():
                return self.parallel(stmt)
            case Allocate(array, count, zero):
                number, put = self.index(count), self.declare(array)
                return lambda frame: operator.setitem(
                    frame, put, memory.allocate(array.name, array.element, number(frame), zero)
                )
            case Resize(array, count):
                number, put = self.index(count), self.place(array)
                if put in self.fixed:
                    raise BoundsError(f"{array.name} is captured and may not be resized")
                return lambda frame: operator.setitem(frame, put, frame[put].resized(number(frame)))
            case Free(array):
                put = self.place(array)
                return lambda frame: frame[put].free()
            case Fill(array, start, stop, value):
                into, get = self.place(array), self.expr(value)
                first, last = self.index(start), self.index(stop)

                def fill(frame: Frame) -> None:
                    if last(frame) < first(frame):
                        raise BoundsError(f"{array.name} is filled from {first(frame)} to {last(frame)}")
                    for index in range(first(frame), last(frame)):
                        frame[into][index] = get(frame)

                return fill
            case Copy(target, target_start, source, source_start, count):
                to, what, number = self.place(target), self.place(source), self.index(count)
                first, last = self.index(target_start), self.index(source_start)
                if target.element != source.element:
                    raise BoundsError(f"{source.name} is copied to {target.name} of another type")
                return lambda frame: frame[to].copy_from(
                    first(frame), frame[what], last(frame), number(frame)
                )
            case Perform(call):
                get = self.expr(call)
                return lambda frame: (get(frame), None)[1]
            case Return(value):
                get = self.expr(value)

                def leave(frame: Frame) -> None:
                    raise _Return(get(frame))

                return leave
            case Fail():

                def fail(frame: Frame) -> None:
                    raise OutOfMemory

                return fail
            case Put(slot, value):
                get, at_slot = self.expr(value), machine.kernel.slot(slot)
                return lambda frame: operator.setitem(machine.slots, at_slot, int(get(frame)))
            case PutArray(slot, array):
                put, at_slot = self.place(array), machine.kernel.slot(slot)

                def give(frame: Frame) -> None:
                    buffer: Buffer = frame[put]
                    if buffer.shared.freed:
                        raise BoundsError(f"{buffer.name} is given to the caller after it was freed")
                    buffer.shared.given = True
                    memory.given[id(buffer.data)] = buffer
                    machine.slots[at_slot] = buffer.data

                return give
            case SlotArray(array, table, index):
                row, at, put = self.place(table), self.index(index), self.declare(array)
                return lambda frame: operator.setitem(
                    frame, put, memory.find(array.name, array.element, frame[row][at(frame)])
                )
            case KeepArray(table, index, array):
                row, at, put = self.place(table), self.index(index), self.place(array)

                def keep(frame: Frame) -> None:
                    if frame[put].address not in memory.buffers:
                        raise BoundsError(f"{array.name} is kept but is not allocated")
                    frame[row][at(frame)] = frame[put].address
                    memory.buffers[frame[put].address].table = frame[row]

                return keep
        raise AssertionError(f"cannot interpret {stmt!r}")

    def control(self, stmt: For | While | If) -> Action:
        match stmt:
            case For(var, start, stop, body):
                first, last = self.index(start), self.index(stop)
                self.scopes.append({})
                put = self.declare(var)
                self.fixed.add(put)
                (turn,) = self.inside(body)
                self.scopes.pop()

                def loop(frame: Frame) -> None:
                    for value in range(first(frame), last(frame)):
                        frame[put] = value
                        turn(frame)

                return loop
            case While(condition, body):
                test = self.expr(condition)
                (turn,) = self.inside(body)

                def repeat(frame: Frame) -> None:
                    while test(frame):
                        turn(frame)

                return repeat
            case If(condition, then, otherwise):
                test = self.expr(condition)
                (yes,), (no,) = self.inside(then), self.inside(otherwise)
                return lambda frame: yes(frame) if test(frame) else no(frame)

    def parallel(self, stmt: Parallel) -> Action:
        """Two workers that take alternate turns, as a worst case that is still repeatable."""
        memory = self.memory
        count, threads = self.index(stmt.count), self.index(stmt.threads)
        self.place(Var("parallel_for"))
        fixed = self.fixed
        self.fixed = fixed | {place for scope in self.scopes for place, _ in scope.values()}
        self.scopes.append({})
        before = self.statement(stmt.prologue)
        self.scopes.append({})
        put = self.declare(stmt.var)
        self.fixed.add(put)
        (turn,) = self.inside(stmt.body)
        self.scopes.pop()
        after = self.statement(stmt.epilogue)
        self.scopes.pop()
        self.fixed = fixed

        def run_workers(frame: Frame) -> None:
            outer = memory.turn, memory.loop
            memory.loops += 1
            memory.loop = memory.loops
            workers = [list(frame) for _ in range(2 if threads(frame) > 1 else 1)]
            try:
                for number, worker in enumerate(workers):
                    memory.turn = f"worker {number}"
                    before(worker)
                for chunk in range(count(frame)):
                    memory.turn = f"turn {chunk}"
                    worker = workers[chunk % len(workers)]
                    worker[put] = chunk
                    turn(worker)
                for number, worker in enumerate(workers):
                    memory.turn = f"worker {number}"
                    after(worker)
            finally:
                memory.turn, memory.loop = outer

        return run_workers

    # Expressions

    def index(self, e: Expr) -> Value:
        """An index, bound or count, in which int64 overflow is a mistake."""
        if not e.type.is_integer:
            raise BoundsError(f"an index is of type {e.type}")
        return self.expr(e, checked=True)

    def expr(self, e: Expr, checked: bool = False) -> Value:
        match e:
            case Const(value, t):
                constant = convert(value, t)
                if t.is_integer and constant != value:
                    raise BoundsError(f"{value} does not fit {t}")
                return lambda frame: constant
            case Var():
                return operator.itemgetter(self.place(e))
            case Load(array, index):
                into, at = self.place(array), self.index(index)
                return lambda frame: frame[into][at(frame)]
            case Total(array, _, _):
                into, t = self.place(array), array.element
                return lambda frame: convert(sum(frame[into]), t)
            case Unary(op, x, t):
                get, operand = self.expr(x), x.type
                return lambda frame: unary(op, get(frame), operand, t)
            case Binary(op, a, b, t):
                return self.binary(op, a, b, t, checked)
            case Select(condition, a, b):
                self.same(a, b, "?:")
                test, yes, no = self.expr(condition), self.expr(a, checked), self.expr(b, checked)
                return lambda frame: yes(frame) if test(frame) else no(frame)
            case Cast(x, t):
                get = self.expr(x, checked)
                return lambda frame: convert(get(frame), t)
            case Call(function, arguments, t):
                return self.call(function, arguments, t)
        raise AssertionError(f"cannot interpret {e!r}")

    def same(self, a: Expr, b: Expr, op: str) -> None:
        if a.type != b.type:
            raise BoundsError(f"operands of {op} have types {a.type} and {b.type}: {a!r}, {b!r}")

    def binary(self, op: str, a: Expr, b: Expr, t: Type, checked: bool) -> Value:
        self.same(a, b, op)
        left, right = self.expr(a, checked), self.expr(b, checked)
        if op == "&&":
            return lambda frame: bool(left(frame)) and bool(right(frame))
        if op == "||":
            return lambda frame: bool(left(frame)) or bool(right(frame))
        apply = binary_meaning(op, a.type)
        if op in COMPARISONS:
            return lambda frame: bool(apply(left(frame), right(frame)))
        if op in ("/", "%") and a.type.is_integer:
            divisor = right

            def right(frame: Frame) -> Any:
                value = divisor(frame)
                if value == 0:
                    raise BoundsError("an integer is divided by zero")
                return value

        if checked and t == INT64:

            def position(frame: Frame) -> Any:
                value = apply(left(frame), right(frame))
                if not -(2**63) <= value < 2**63:
                    raise BoundsError(f"{left(frame)} {op} {right(frame)} exceeds int64")
                return value

            return position
        return lambda frame: convert(apply(left(frame), right(frame)), t)

    def call(self, function: str, arguments: tuple[Expr | Array, ...], t: Type) -> Value:
        machine = self.machine
        values: list[Value] = [
            operator.itemgetter(self.place(a)) if isinstance(a, Array) else self.expr(a) for a in arguments
        ]
        if function in machine.functions:
            target = machine.functions[function]
            if len(arguments) != len(target.params):
                raise BoundsError(f"{function} takes {len(target.params)} arguments, not {len(arguments)}")
            for a, p in zip(arguments, target.params, strict=True):
                if isinstance(a, Array) != isinstance(p, Array) or (
                    isinstance(a, Array) and isinstance(p, Array) and a.element != p.element
                ):
                    raise BoundsError(f"{function} takes {p!r}, not {a!r}")
            return lambda frame: convert(machine.call(target, [get(frame) for get in values]), t)
        routine = ROUTINES.get(function)
        if routine is None:
            raise BoundsError(f"there is no function {function}")
        for position, a in enumerate(arguments):
            want = routine.arrays.get(position)
            if (a.element if isinstance(a, Array) else None) != want:
                raise BoundsError(f"argument {position} of {function} is {a!r}")
        return lambda frame: convert(routine.twin(*[get(frame) for get in values]), t)
