"""Run a kernel in Python with every access checked.

Kernels run twice in the tests: as C, fast and silent about mistakes, and here, where an access
outside an array, a read of memory that was never written, a leak or a race becomes an error that
names the array and the index. Trees are compiled to closures over a list of values: statements here,
expressions in ``loops.closures``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from scorch._src.loops import nodes as ir
from scorch._src.loops.closures import Evaluator, Frame
from scorch._src.loops.memory import BoundsError, Buffer, Memory, OutOfMemory
from scorch._src.loops.values import convert

__all__ = ["BoundsError", "Memory", "run"]

Action = Callable[[Frame], None]


def run(kernel: ir.Kernel, function: str, slots: list[Any], memory: Memory | None = None) -> int:
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
        if isinstance(param, ir.Array):
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

    def _checked(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise BoundsError(f"element {index} of a tile of {len(self)}")
        return index

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(self._checked(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(self._checked(index), value)


class _Machine:
    def __init__(self, kernel: ir.Kernel, memory: Memory, slots: list[Any]) -> None:
        self.kernel = kernel
        self.memory = memory
        self.slots = slots
        self.functions = {function.name: function for function in kernel.functions}
        self.compiled: dict[str, tuple[Action, int]] = {}

    def call(self, function: ir.Function, arguments: list[Any]) -> int:
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


class _Compiler(Evaluator):
    """Turns the statements of one function into closures."""

    def __init__(self, machine: _Machine) -> None:
        super().__init__(machine.functions, machine.call)
        self.machine = machine
        self.memory = machine.memory
        self.fixed: set[int] = set()  # loop variables and what workers have captured

    def inside(self, *bodies: ir.Stmt) -> list[Action]:
        """Compile ``bodies`` in one new scope."""
        self.scopes.append({})
        actions = [self.statement(body) for body in bodies]
        self.scopes.pop()
        return actions

    # Statements

    def statement(self, stmt: ir.Stmt) -> Action:
        """What a node does to a frame; each kind has a method of its name below."""
        compile: Callable[[ir.Stmt], Action] = getattr(self, f"run_{type(stmt).__name__}")
        return compile(stmt)

    def run_Block(self, stmt: ir.Block) -> Action:
        actions = [self.statement(s) for s in stmt.body if not isinstance(s, ir.Comment)]

        def run_block(frame: Frame) -> None:
            for action in actions:
                action(frame)

        return run_block

    def run_Comment(self, stmt: ir.Comment) -> Action:
        return lambda frame: None

    def run_Meet(self, stmt: ir.Meet) -> Action:
        return lambda frame: None

    # Statements that set variables and elements

    def run_Declare(self, stmt: ir.Declare) -> Action:
        get, t = self.expr(stmt.value), stmt.var.type
        put = self.declare(stmt.var)
        return lambda frame: operator.setitem(frame, put, convert(get(frame), t))

    def run_Assign(self, stmt: ir.Assign) -> Action:
        get, put, t = self.expr(stmt.value), self.place(stmt.var), stmt.var.type
        if put in self.fixed:
            raise BoundsError(f"{stmt.var.name} is a loop variable or captured and may not be assigned")
        return lambda frame: operator.setitem(frame, put, convert(get(frame), t))

    def run_Store(self, stmt: ir.Store) -> Action:
        into, at, get = self.place(stmt.array), self.index(stmt.index), self.expr(stmt.value)
        name, holds, value_type = stmt.array.name, stmt.array.element, stmt.value.type
        if holds != value_type and not (holds.is_integer and value_type.is_integer):
            raise BoundsError(f"{value_type} is stored to {name} of {holds}")
        return lambda frame: operator.setitem(frame[into], at(frame), get(frame))

    def run_AtomicAdd(self, stmt: ir.AtomicAdd) -> Action:
        into, at, get = self.place(stmt.array), self.index(stmt.index), self.expr(stmt.value)
        if stmt.array.element != stmt.value.type:
            raise BoundsError(f"{stmt.value.type} is added to {stmt.array.name} of {stmt.array.element}")
        return lambda frame: frame[into].add(at(frame), get(frame))

    def run_AtomicAddRun(self, stmt: ir.AtomicAddRun) -> Action:
        return self.statement(stmt.one_by_one)

    def run_LoadRun(self, stmt: ir.LoadRun) -> Action:
        return self.statement(stmt.one_by_one)

    def run_StoreRun(self, stmt: ir.StoreRun) -> Action:
        return self.statement(stmt.one_by_one)

    def run_Tile(self, stmt: ir.Tile) -> Action:
        put, zero, count = self.declare(stmt.array), convert(0, stmt.array.element), stmt.count
        return lambda frame: operator.setitem(frame, put, _Registers([zero] * count))

    def run_Fill(self, stmt: ir.Fill) -> Action:
        into, get = self.place(stmt.array), self.expr(stmt.value)
        first, last = self.index(stmt.start), self.index(stmt.stop)

        def set_all(frame: Frame) -> None:
            if last(frame) < first(frame):
                raise BoundsError(f"{stmt.array.name} is filled from {first(frame)} to {last(frame)}")
            for index in range(first(frame), last(frame)):
                frame[into][index] = get(frame)

        return set_all

    def run_Copy(self, stmt: ir.Copy) -> Action:
        target, source = stmt.target, stmt.source
        to, what, number = self.place(target), self.place(source), self.index(stmt.count)
        first, last = self.index(stmt.target_start), self.index(stmt.source_start)
        if target.element != source.element:
            raise BoundsError(f"{source.name} is copied to {target.name} of another type")
        return lambda frame: frame[to].copy_from(first(frame), frame[what], last(frame), number(frame))

    def run_Prefetch(self, stmt: ir.Prefetch) -> Action:
        into, at = self.place(stmt.array), self.index(stmt.index)
        return lambda frame: (frame[into][at(frame)], None)[1]

    def run_Perform(self, stmt: ir.Perform) -> Action:
        get = self.expr(stmt.call)
        return lambda frame: (get(frame), None)[1]

    # Statements that allocate

    def run_Allocate(self, stmt: ir.Allocate) -> Action:
        memory, array, zero = self.memory, stmt.array, stmt.zero
        number, put = self.index(stmt.count), self.declare(array)
        return lambda frame: operator.setitem(
            frame, put, memory.allocate(array.name, array.element, number(frame), zero)
        )

    def run_Resize(self, stmt: ir.Resize) -> Action:
        number, put = self.index(stmt.count), self.place(stmt.array)
        if put in self.fixed:
            raise BoundsError(f"{stmt.array.name} is captured and may not be resized")
        return lambda frame: operator.setitem(frame, put, frame[put].resized(number(frame)))

    def run_Free(self, stmt: ir.Free) -> Action:
        put = self.place(stmt.array)
        return lambda frame: frame[put].free()

    # Statements that speak to the caller

    def run_Put(self, stmt: ir.Put) -> Action:
        machine = self.machine
        get, at_slot = self.expr(stmt.value), machine.kernel.slot(stmt.slot)
        return lambda frame: operator.setitem(machine.slots, at_slot, int(get(frame)))

    def run_PutArray(self, stmt: ir.PutArray) -> Action:
        memory, machine = self.memory, self.machine
        put, at_slot = self.place(stmt.array), machine.kernel.slot(stmt.slot)

        def give(frame: Frame) -> None:
            buffer: Buffer = frame[put]
            if buffer.shared.freed:
                raise BoundsError(f"{buffer.name} is given to the caller after it was freed")
            buffer.shared.given = True
            memory.given[id(buffer.data)] = buffer
            machine.slots[at_slot] = buffer.data

        return give

    def run_SlotArray(self, stmt: ir.SlotArray) -> Action:
        memory, array = self.memory, stmt.array
        row, at, put = self.place(stmt.table), self.index(stmt.index), self.declare(array)
        return lambda frame: operator.setitem(
            frame, put, memory.find(array.name, array.element, frame[row][at(frame)])
        )

    def run_KeepArray(self, stmt: ir.KeepArray) -> Action:
        memory = self.memory
        row, at, put = self.place(stmt.table), self.index(stmt.index), self.place(stmt.array)

        def keep(frame: Frame) -> None:
            if frame[put].address not in memory.buffers:
                raise BoundsError(f"{stmt.array.name} is kept but is not allocated")
            frame[row][at(frame)] = frame[put].address
            memory.buffers[frame[put].address].table = frame[row]

        return keep

    def run_Return(self, stmt: ir.Return) -> Action:
        get = self.expr(stmt.value)

        def end(frame: Frame) -> None:
            raise _Return(get(frame))

        return end

    def run_Fail(self, stmt: ir.Fail) -> Action:
        def end(frame: Frame) -> None:
            raise OutOfMemory

        return end

    # Loops and branches

    def run_For(self, stmt: ir.For) -> Action:
        first, last = self.index(stmt.start), self.index(stmt.stop)
        self.scopes.append({})
        put = self.declare(stmt.var)
        self.fixed.add(put)
        (turn,) = self.inside(stmt.body)
        self.scopes.pop()

        def run_loop(frame: Frame) -> None:
            for value in range(first(frame), last(frame)):
                frame[put] = value
                turn(frame)

        return run_loop

    def run_Lanes(self, stmt: ir.Lanes) -> Action:
        return self.statement(ir.For(stmt.var, stmt.start, stmt.start + stmt.count, stmt.body))

    def run_While(self, stmt: ir.While) -> Action:
        test = self.expr(stmt.condition)
        (turn,) = self.inside(stmt.body)

        def repeat(frame: Frame) -> None:
            while test(frame):
                turn(frame)

        return repeat

    def run_If(self, stmt: ir.If) -> Action:
        test = self.expr(stmt.condition)
        (yes,), (no,) = self.inside(stmt.then), self.inside(stmt.otherwise)
        return lambda frame: yes(frame) if test(frame) else no(frame)

    def run_Parallel(self, stmt: ir.Parallel) -> Action:
        """Two workers that take alternate turns, as a worst case that is still repeatable."""
        memory = self.memory
        count, threads = self.index(stmt.count), self.index(stmt.threads)
        self.place(ir.Var("parallel_for"))
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
