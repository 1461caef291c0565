"""The outermost loop shared by threads."""

from __future__ import annotations

from typing import TypeVar

from scorch._src.compiler.lower.assemble import Assembly
from scorch._src.compiler.lower.collect import Collector
from scorch._src.compiler.lower.levels import Cursor, Levels, value_count
from scorch._src.compiler.lower.merge_ahead import declare_erratic
from scorch._src.compiler.plan import Plan
from scorch._src.compiler.vector.panels import PANELS, declare_panels, panels_of
from scorch._src.dataclass import replace
from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import with_children
from scorch._src.loops.types import INT64

Node = TypeVar("Node", bound=ir.Expr | ir.Stmt | ir.Array)

STRETCH = 64  # elements that all copies are added to before the next, which are fetched meanwhile
LEAST_WORK = 4096  # rows and entries of a chunk: taking one costs as much as a few hundred


def in_chunks(
    plan: Plan,
    assembly: Assembly,
    inner: ir.Stmt,
    length: ir.Expr,
    offset: ir.Expr,
    run: Cursor | None = None,
) -> ir.Stmt:
    """The outermost loop cut into chunks of equal work that threads take in turns."""
    collector = assembly.collector
    chunk, chunks, span, threads = ir.Var("chunk"), ir.Var("chunks"), ir.Var("span"), ir.Var("threads")
    start, stop = ir.Var("chunk_start"), ir.Var("chunk_stop")
    limits = _limits(plan, offset, run)
    number = span if plan.is_grid else _number(plan, collector)
    opening = ir.block(
        ir.Declare(span, length), declare_panels(plan), declare_erratic(plan), ir.Declare(chunks, number)
    )
    if plan.is_private:
        begun = ir.Fill(collector.values, ir.Const(0), value_count(plan), ir.Const(0, plan.element))
        all_rows = ir.block(ir.Declare(start, offset), ir.Declare(stop, offset + span), inner)
        alone = ir.block(begun, assembly.before_worker(), all_rows, assembly.after_worker())
        return ir.block(opening, ir.If(chunks <= 1, alone, _on_copies(plan, assembly, limits, inner)))
    return ir.block(
        opening,
        collector.before_chunks(chunks),
        ir.Parallel(
            chunk,
            chunks,
            threads,
            assembly.before_worker(),
            ir.block(limits, collector.before_chunk(chunk), inner, collector.after_chunk(chunk)),
            assembly.after_worker(),
        ),
    )


def _limits(plan: Plan, offset: ir.Expr, run: Cursor | None) -> ir.Stmt:
    """Declare where a chunk begins and ends."""
    chunk, chunks, span = ir.Var("chunk"), ir.Var("chunks"), ir.Var("span")
    start, stop = ir.Var("chunk_start"), ir.Var("chunk_stop")
    limits: list[ir.Stmt | None]
    if plan.is_grid:  # a thread for every turn
        limits = [ir.Declare(start, offset + chunk), ir.Declare(stop, start + 1)]
    elif plan.balance is not None:
        pos = _balanced_pos(plan)
        name = "balance_i32" if pos.element.bytes == 4 else "balance_i64"
        limits = [
            ir.Declare(start, ir.Call(name, (pos, span, chunk, chunks))),
            ir.Declare(stop, ir.Call(name, (pos, span, chunk + 1, chunks))),
        ]
    else:
        limits = [
            ir.Declare(start, offset + span * chunk // chunks),
            ir.Declare(stop, offset + span * (chunk + 1) // chunks),
        ]
    if run is not None:  # chunks of entries begin where a coordinate does
        crd = run.use.arrays.crd
        for limit in (start, stop):
            inside = ir.both(ir.Const(0) + offset < limit, limit < offset + span)
            repeats = ir.Load(crd, limit).equals(ir.Load(crd, limit - 1))
            limits.append(ir.While(ir.both(inside, repeats), ir.Assign(limit, limit + 1)))
    return ir.block(*limits)


def _balanced_pos(plan: Plan) -> ir.Array:
    """The array that says how work is spread over the rows."""
    assert plan.balance is not None
    tensor, level = plan.balance
    return ir.Array(f"{tensor}{level + 1}_pos", plan.operand(tensor).index)


def _number(plan: Plan, collector: Collector) -> ir.Expr:
    """How many chunks there are."""
    span, threads = ir.Var("span"), ir.Var("threads")
    most: ir.Expr = threads * collector.chunks_per_thread
    if plan.balance is not None:
        pos = _balanced_pos(plan)
        work = ir.wide(ir.Load(pos, span)) - ir.wide(ir.Load(pos, ir.Const(0))) + span
        if plan.is_private or plan.assembly == "buckets":
            # Each has an array as long as the result has rows, which all of them add up together: that takes
            # every thread about as long as it does to go through ``copied`` entries.
            is_little = work * (threads - 1) < collector.copied * threads
            most = ir.Select(is_little, ir.Const(1), _less(threads, _copies(plan)))
        else:
            most = threads * _turns(work, threads, collector.chunks_per_thread)
            if panels_of(plan) > 1:  # each chunk reads all panels
                most = ir.Select(ir.Const(1) < PANELS, threads, most)
    return ir.Select(threads <= 1, ir.Const(1), _more(ir.Const(1), _less(most, span)))


def _copies(plan: Plan) -> ir.Expr:
    """How many copies of the result there may be: of a sparse one, twice as much as the operands are."""
    if plan.pattern is None:
        return ir.Var("threads")
    levels, entries = Levels(plan), ir.Const(0) + 0
    for access in plan.step.accesses:
        if plan.operand(access.tensor).is_sparse:
            entries = entries + levels.count(access, len(levels.uses[access]) - 1)
    return entries * 2 // _more(value_count(plan), ir.Const(1))


def _turns(work: ir.Expr, threads: ir.Expr, most: int) -> ir.Expr:
    """How many turns of about ``LEAST_WORK`` each thread has: as many as all others.

    With 20 turns for 16 threads, most of them would wait while some take a second one.
    """
    each = threads * LEAST_WORK
    return _less(ir.Const(most), _more(ir.Const(1), (work + each // 2) // each))


def _less(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return ir.Binary("min", a, b, INT64)


def _more(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return ir.Binary("max", a, b, INT64)


def _on_copies(plan: Plan, assembly: Assembly, limits: ir.Stmt, inner: ir.Stmt) -> ir.Stmt:
    """Chunks that add to copies of the result, and the sum of these, in the order of the chunks."""
    values, copies = assembly.collector.values, ir.Array("copies", plan.element)
    chunk, chunks, threads = ir.Var("chunk"), ir.Var("chunks"), ir.Var("threads")
    size, part, at, begin, end = (ir.Var(name) for name in ("copy_size", "part", "at", "begin_at", "end_at"))
    stretch, stop = ir.Var("stretch"), ir.Var("stop_at")
    added = ir.Binary("+", ir.Load(values, at), ir.Load(copies, chunk * size + at), plan.element)
    summed = ir.block(
        ir.Prefetch(copies, _less(chunk * size + stop + STRETCH, chunks * size - 1), STRETCH),
        ir.For(at, begin, stop, ir.Store(values, at, added)),
    )
    share = ir.block(
        ir.Declare(begin, size * part // chunks),
        ir.Declare(end, size * (part + 1) // chunks),
        ir.For(
            stretch,
            ir.Const(0),
            (end - begin + (STRETCH - 1)) // STRETCH,
            ir.block(
                ir.Declare(stop, _less(begin + STRETCH, end)),
                ir.Fill(values, begin, stop, ir.Const(0, plan.element)),
                ir.For(chunk, ir.Const(0), chunks, summed),
                ir.Assign(begin, stop),
            ),
        ),
    )
    nothing = ir.block()
    return ir.block(
        ir.Declare(size, value_count(plan)),
        ir.Allocate(copies, chunks * size),
        ir.Parallel(
            chunk,
            chunks,
            threads,
            assembly.before_worker(),
            ir.block(
                ir.Fill(copies, chunk * size, (chunk + 1) * size, ir.Const(0, plan.element)),
                limits,
                redirected(inner, values, copies, chunk * size),
            ),
            assembly.after_worker(),
        ),
        ir.Parallel(part, chunks, threads, nothing, share, nothing),
        ir.Free(copies),
    )


def redirected(node: Node, array: ir.Array, to: ir.Array, offset: ir.Expr) -> Node:
    """``node`` with all that it reads and writes in ``array`` behind ``offset`` in ``to``."""
    node = with_children(node, lambda part: redirected(part, array, to, offset))
    match node:
        case ir.Load(same, index) if same == array:
            return replace(node, array=to, index=offset + index)
        case ir.Store(same, index, _) if same == array:
            return replace(node, array=to, index=offset + index)
    assert not (isinstance(node, ir.Stmt) and array in vars(node).values()), f"{node!r} is not redirected"
    return node
