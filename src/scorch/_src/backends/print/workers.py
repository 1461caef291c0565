"""Print parallel loops (``nodes.Parallel``): a function that threads run, and what it captures.

    struct closure_1 { i64 closure_failed; const i32 *A2_pos; ...; struct turns closure_turns; };

    static void work_1(struct closure_1 *const closure, const i64 closure_first, const i64 closure_end, ...) {
      i64 closure_passed = 0, chunk;
      while ((chunk = next_turn(&closure->closure_turns, closure_first, ..., &closure_passed)) >= 0) ...
    }

Every thread begins with a share of its own, so that repeated calls find their data where they left it, and
helps with those of others when it is done. Where every share is one turn, threads do not ask what others have
done: to read that takes longer than such a turn may. What every thread reads stands together: the caller has
just written it, and a line of it takes as long to come from there as a hundred entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scorch._src.backends.print.effort import ONCE_A_CHUNK, worker_effort
from scorch._src.backends.print.expressions import PRECEDENCE, c_name, indent, pointer_to, safe_name
from scorch._src.loops.analysis import assigned, captured, walk, written
from scorch._src.loops.nodes import Array, Block, Parallel, Var

if TYPE_CHECKING:
    from scorch._src.backends.print.c import Scope


def print_parallel(scope: Scope, stmt: Parallel) -> list[str]:
    """Hand a worker and what it captures to the thread pool, or run it here."""
    scope.printer.workers += 1
    number = scope.printer.workers
    names = captured(stmt)
    usual = scope.printer.effort
    is_long = scope.printer.is_long
    work, begin = _worker(scope, stmt, number, names)
    scope.printer.outlined.append((worker_effort(walk(stmt), usual) if is_long else usual, "\n".join(work)))
    scope.printer.outlined.append((ONCE_A_CHUNK if is_long else usual, "\n".join(begin)))
    closure, worker = f"closure_{number}", f"worker_{number}"
    kind = "i32 (*)(i64, i64, i64, void (*)(i64, i64, void *), void *)"
    one = f"!parallel_for || {scope.expr(stmt.threads, PRECEDENCE['<'])} <= 1"
    shares = f"{one} ? 1 : {scope.use('min_i64')}(MOST_SHARES, {scope.converted(stmt.threads)})"
    values = ["0", *(safe_name(n.name) for n in names), f"{{{scope.converted(stmt.count)}, {shares}}}"]
    return [
        f"struct {closure} {closure} = {{{', '.join(values)}}};",
        f"if ({one}) {worker}(0, 1, &{closure});",
        f"else (({kind})parallel_for)(0, {scope.converted(stmt.threads)}, 1, {worker}, &{closure});",
        f"if ({closure}.closure_failed) {scope.fail}",
    ]


def _worker(
    scope: Scope, stmt: Parallel, number: int, names: tuple[Var | Array, ...]
) -> tuple[list[str], list[str]]:
    """The function that takes turns until none are left, and the one that threads run, which calls it.

    The pool may give one call the shares of several threads, from ``begin`` to ``end``.
    """
    nodes = [*walk(stmt.prologue), *walk(stmt.body), *walk(stmt.epilogue)]
    changed, mutable = written(nodes, scope.printer.functions), assigned(nodes)
    fail = "{ __atomic_store_n(&closure->closure_failed, 1, __ATOMIC_RELAXED); return; }"
    inner = scope.inside(mutable, changed, fail)
    fields = ["i64 closure_failed;"]
    is_bare = stmt.prologue == stmt.epilogue == Block(())
    params = [f"struct closure_{number} *const closure", "const i64 closure_first"]
    values = ["closure", "begin"]
    first = "closure_first"
    if is_bare:
        params.append("const i64 closure_end")
        values.append("end")
        first = "closure_first, closure_end"
    for n in names:
        name = safe_name(n.name)
        values.append(f"closure->{name}")
        if isinstance(n, Array):
            fields.append(f"{pointer_to(n, n.name in changed, restrict=False)}{name};")
            params.append(f"{pointer_to(n, n.name in changed)}{name}")
        else:
            assert n.name not in mutable, f"parallel loop assigns {n.name}"
            fields.append(f"{c_name(n.type)} {name};")
            params.append(f"const {c_name(n.type)} {name}")
    fields.append("struct turns closure_turns;")
    turn = safe_name(stmt.var.name)
    next_turn = scope.use("next_turn" if is_bare else "take_turn")
    take = f"{next_turn}(&closure->closure_turns, {first}, &closure_passed)"
    check_for_turns = []
    if stmt.prologue != Block(()):  # which a thread without turns need not run
        check_for_turns = [f"  if (!{scope.use('has_turns')}(&closure->closure_turns)) return;"]
    # Compilers believe "restrict" of parameters only, and only while the function is not inlined.
    work = [
        f"struct closure_{number} {{",
        *indent(fields),
        "};",
        "",
        f"static __attribute__((noinline)) void work_{number}({', '.join(params)}) {{",
        *indent(inner.statement(stmt.prologue)),
        f"  i64 closure_passed = 0, {turn};",
        f"  while (({turn} = {take}) >= 0) {{",
        *indent(indent(inner.statement(stmt.body))),
        "  }",
        *indent(inner.statement(stmt.epilogue)),
        "}",
    ]
    begin = [
        f"static void worker_{number}(i64 begin, i64 end, void *ctx) {{",
        *["  (void)end;"] * (not is_bare),
        f"  struct closure_{number} *const closure = (struct closure_{number} *)ctx;",
        *check_for_turns,
        f"  work_{number}({', '.join(values)});",
        "}",
    ]
    return work, begin
