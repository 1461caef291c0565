"""Walks over loops see every node, and facts about names are those of the nodes."""

from __future__ import annotations

from dataclasses import fields

import pytest

from scorch._src.loops import nodes as ir
from scorch._src.loops.analysis import assigned, children, loop_depth, walk, with_children, written
from scorch._src.loops.types import FLOAT32

A, B, TABLE = ir.Array("A", FLOAT32), ir.Array("B", FLOAT32), ir.Array("table", FLOAT32)
i, n = ir.Var("i"), ir.Var("n")
STORE = ir.Store(A, i, ir.Load(B, i + 1))
CALL = ir.Call("helper", (A, i, B))
NODES = [
    ir.Const(1),
    i,
    A,
    ir.Load(A, i),
    ir.Select(ir.TRUE, i, n),
    CALL,
    ir.Block((STORE, ir.Assign(n, i))),
    ir.LoadRun((i, n), A, n),
    ir.StoreRun(A, i, (i, n)),
    ir.For(i, ir.Const(0), n, STORE),
    ir.Function("f", (A, n), ir.Block((STORE, ir.Return(n)))),
    ir.Kernel("", (A, n), (ir.Function("f", (A,), STORE), ir.Function("g", (), ir.Fail()))),
]


def parts_of(node):
    """The nodes in the fields of ``node``, found by looking at every value."""
    kinds = (ir.Expr, ir.Stmt, ir.Array, ir.Function)
    values = [getattr(node, field.name) for field in fields(node)]
    flat = [part for value in values for part in (value if isinstance(value, tuple) else [value])]
    return [part for part in flat if isinstance(part, kinds)]


@pytest.mark.parametrize("node", NODES, ids=lambda node: type(node).__name__)
def test_children_are_all_nodes_in_the_fields_in_their_order(node):
    assert list(children(node)) == parts_of(node)
    assert with_children(node, lambda part: part) is node

    def in_order(node):
        return [node, *(inner for part in parts_of(node) for inner in in_order(part))]

    assert list(map(id, walk(node))) == list(map(id, in_order(node)))


def test_changed_children_make_a_new_node():
    changed = with_children(STORE, lambda part: n if part == i else part)
    assert changed == ir.Store(A, n, ir.Load(B, i + 1)) and STORE.index == i
    assert with_children(CALL, lambda part: B if part == A else part).arguments == (B, i, B)


def test_arrays_are_written_by_stores_copies_tables_and_called_functions():
    writes_first = ir.Function("helper", (B, n, A), ir.Store(B, n, ir.Load(A, n)))
    cases = [
        (STORE, {"A"}),
        (ir.Copy(A, i, B, i, n), {"A"}),
        (ir.KeepArray(TABLE, i, A), {"table"}),
        (ir.For(i, ir.Const(0), n, ir.Fill(B, i, n, ir.Const(0.0, FLOAT32))), {"B"}),
        (ir.Declare(n, ir.Load(A, i)), set()),
        (ir.Perform(CALL), {"A"}),
    ]
    for node, names in cases:
        assert written(walk(node), {"helper": writes_first}) == names


def test_assigned_names_are_those_that_change_after_their_declaration():
    loop = ir.For(i, ir.Const(0), n, ir.block(ir.Declare(n, i), ir.Assign(ir.Var("m"), i)))
    assert assigned(walk(loop)) == {"m"}


def test_loop_depth_counts_loops_inside_one_another():
    inner = ir.For(i, ir.Const(0), n, STORE)
    assert loop_depth(STORE) == 0
    assert loop_depth(ir.block(inner, inner)) == 1
    assert loop_depth(ir.While(ir.TRUE, ir.If(ir.TRUE, inner, STORE))) == 2
