from __future__ import annotations

import pytest

from scorch._src.notation.indexing import parse
from scorch._src.notation.nodes import Access, Expr, Literal, Op, Reduce
from scorch._src.notation.show import show
from scorch._src.notation.trees import (
    accesses,
    children,
    free_indices,
    rename,
    substitute,
    walk,
    with_children,
    with_unique_binders,
)

Aik, xk, xi = Access("A", ("i", "k")), Access("x", ("k",)), Access("x", ("i",))
MATVEC = Reduce("sum", ("k",), Op("mul", (Aik, xk)))


def test_accesses_are_distinct_and_in_order_of_appearance() -> None:
    assert accesses(Op("add", (Op("mul", (MATVEC, xi)), Op("add", (xk, Aik))))) == (Aik, xk, xi)
    assert accesses(Literal(1)) == ()


def test_free_indices_leave_out_bound_ones() -> None:
    assert free_indices(MATVEC) == ("i",)
    assert free_indices(Op("add", (xk, MATVEC))) == ("k", "i")
    assert free_indices(Access("A", ("j", "j", "i"))) == ("j", "i")


def test_walk_visits_parents_first_and_left_to_right() -> None:
    assert list(walk(MATVEC)) == [MATVEC, MATVEC.body, Aik, xk]


def test_rename_reaches_binders_and_uses() -> None:
    assert show(rename(MATVEC, {"k": "l", "i": "j"})) == "sum(l, A[j,l] * x[l])"


def test_rename_swaps() -> None:
    assert rename(Aik, {"i": "k", "k": "i"}) == Access("A", ("k", "i"))


def test_substitute_replaces_equal_accesses_only() -> None:
    assert show(substitute(Op("add", (MATVEC, xi)), {xk: Literal(2)})) == "sum(k, A[i,k] * 2) + x[i]"


def test_substitute_leaves_the_rest_alone() -> None:
    value = parse("y[i] = relu(A[i,k] * x[k]) + 1").assign.value
    assert substitute(value, {}) == value


def test_unique_binders_avoid_outer_and_other_names() -> None:
    twice = Op("add", (MATVEC, MATVEC))
    unique = with_unique_binders(twice, ("i",), ())
    assert show(unique) == "sum(k, A[i,k] * x[k]) + sum(k_1, A[i,k_1] * x[k_1])"
    assert show(with_unique_binders(MATVEC, ("i", "k"), ("k_1",))) == "sum(k_2, A[i,k_2] * x[k_2])"


def test_unique_binders_respect_shadowing() -> None:
    nested = Reduce("sum", ("k",), Op("mul", (xk, Reduce("max", ("k",), xk))))
    assert show(with_unique_binders(nested, (), ())) == "sum(k, x[k] * max(k_1, x[k_1]))"


@pytest.mark.parametrize("function", [children, lambda expr: with_children(expr, ())])
def test_only_expressions_have_parts(function: object) -> None:
    with pytest.raises(AssertionError, match="not an expression"):
        function(Expr())  # type: ignore[operator]
