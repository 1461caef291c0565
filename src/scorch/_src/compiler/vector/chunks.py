"""The outermost loop shared by threads."""

from __future__ import annotations

from scorch._src.compiler.lower.assemble import Assembly
from scorch._src.compiler.lower.walk import Cursor
from scorch._src.compiler.plan import Plan
from scorch._src.loops.nodes import (
    Array,
    Assign,
    Binary,
    Call,
    Const,
    Declare,
    Expr,
    Load,
    Parallel,
    Select,
    Stmt,
    Var,
    While,
    block,
    both,
)
from scorch._src.loops.types import INT64


def in_chunks(
    plan: Plan, assembly: Assembly, inner: Stmt, length: Expr, offset: Expr, run: Cursor | None = None
) -> Stmt:
    """The outermost loop cut into chunks of equal work that threads take in turns."""
    collector = assembly.collector
    chunk, chunks, span = Var("chunk"), Var("chunks"), Var("span")
    start, stop = Var("chunk_start"), Var("chunk_stop")
    wanted = Select(Var("threads") <= 1, Const(1), Var("threads") * collector.chunks_per_thread)
    limits: list[Stmt | None]
    if plan.balance is not None:
        tensor, level = plan.balance
        pos = Array(f"{tensor}{level + 1}_pos", plan.operand(tensor).index)
        name = "balance_i32" if pos.element.bytes == 4 else "balance_i64"
        limits = [
            Declare(start, Call(name, (pos, span, chunk, chunks))),
            Declare(stop, Call(name, (pos, span, chunk + 1, chunks))),
        ]
    else:
        limits = [
            Declare(start, offset + span * chunk // chunks),
            Declare(stop, offset + span * (chunk + 1) // chunks),
        ]
    if run is not None:  # chunks of entries begin where a coordinate does
        crd = run.use.arrays.crd
        for limit in (start, stop):
            inside = both(Const(0) + offset < limit, limit < offset + span)
            repeats = Load(crd, limit).equals(Load(crd, limit - 1))
            limits.append(While(both(inside, repeats), Assign(limit, limit + 1)))
    return block(
        Declare(span, length),
        Declare(chunks, Binary("max", Const(1), Binary("min", wanted, span, INT64), INT64)),
        collector.before_chunks(chunks),
        Parallel(
            chunk,
            chunks,
            Var("threads"),
            assembly.before_worker(),
            block(*limits, collector.before_chunk(chunk), inner, collector.after_chunk(chunk)),
            assembly.after_worker(),
        ),
    )
