"""The outermost loop shared by threads."""

from __future__ import annotations

from scorch._src.compiler.lower.assemble import Assembly
from scorch._src.compiler.lower.levels import Cursor
from scorch._src.compiler.plan import Plan
from scorch._src.loops import nodes as ir
from scorch._src.loops.types import INT64

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
    chunk, chunks, span = ir.Var("chunk"), ir.Var("chunks"), ir.Var("span")
    start, stop = ir.Var("chunk_start"), ir.Var("chunk_stop")
    threads = ir.Var("threads")
    wanted: ir.Expr = threads * collector.chunks_per_thread
    limits: list[ir.Stmt | None]
    if plan.is_grid:  # a thread for every turn
        limits = [ir.Declare(start, offset + chunk), ir.Declare(stop, start + 1)]
    elif plan.balance is not None:
        tensor, level = plan.balance
        pos = ir.Array(f"{tensor}{level + 1}_pos", plan.operand(tensor).index)
        name = "balance_i32" if pos.element.bytes == 4 else "balance_i64"
        work = (ir.wide(ir.Load(pos, span)) - ir.wide(ir.Load(pos, ir.Const(0))) + span) // LEAST_WORK
        wanted = ir.Binary("min", wanted, ir.Binary("max", threads, work, INT64), INT64)
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
    several = ir.Binary("max", ir.Const(1), ir.Binary("min", wanted, span, INT64), INT64)
    number = ir.Select(threads <= 1, ir.Const(1), several)
    return ir.block(
        ir.Declare(span, length),
        ir.Declare(chunks, span if plan.is_grid else number),
        collector.before_chunks(chunks),
        ir.Parallel(
            chunk,
            chunks,
            threads,
            assembly.before_worker(),
            ir.block(*limits, collector.before_chunk(chunk), inner, collector.after_chunk(chunk)),
            assembly.after_worker(),
        ),
    )
