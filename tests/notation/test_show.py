"""What is shown reads back as the same tree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scorch._src.loops.operators import OPERATORS, REDUCTIONS
from scorch._src.notation.indexing import is_function, parse
from scorch._src.notation.nodes import Access, Assign, Expr, Literal, Op, Reduce
from scorch._src.notation.show import show
from scorch._src.notation.trees import free_indices, with_unique_binders

NAMES = ("i", "j", "k")

leaves: st.SearchStrategy[Expr] = st.one_of(
    st.builds(Access, st.sampled_from(["A", "x_1"]), st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)),
    st.builds(Literal, st.integers(-9, 2**63 - 1)),
    st.builds(Literal, st.floats(allow_nan=False)),
    st.builds(Literal, st.booleans()),
)


def larger(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def op(name: str) -> st.SearchStrategy[Expr]:
        return st.tuples(*[parts] * OPERATORS[name].arity).map(lambda args: Op(name, args))

    def reduce(name: str, body: Expr) -> st.SearchStrategy[Expr]:
        free = free_indices(body)
        if not free:
            return st.just(body)
        chosen = st.lists(st.sampled_from(free), min_size=1, unique=True)
        return chosen.map(lambda indices: Reduce(name, tuple(indices), body))

    reductions = st.tuples(st.sampled_from(list(REDUCTIONS)), parts).flatmap(lambda drawn: reduce(*drawn))
    return st.one_of(st.sampled_from(list(OPERATORS)).flatmap(op), reductions)


@settings(max_examples=max(100, settings.default.max_examples), deadline=None)
@given(st.recursive(leaves, larger, max_leaves=12))
def test_what_is_shown_reads_back_as_the_same_tree(expr: Expr) -> None:
    target = Access("R", free_indices(expr))
    assign = Assign(target, with_unique_binders(expr, target.indices, NAMES))
    # By repr, since Literal(1) == Literal(1.0) == Literal(True).
    assert repr(parse(show(assign)).assign) == repr(assign)


@pytest.mark.parametrize(
    "text",
    [
        "R[i,k] = sum(j, A[i,j] * B[j,k])",
        "R[i] = a[i] + b[i] + c[i]",
        "R[i] = a[i] - (b[i] + c[i])",
        "R[i] = a[i] / (b[i] * c[i])",
        "R[i] = (a[i] + b[i]) * c[i]",
        "R[i] = -(a[i] + b[i])",
        "R[i] = -a[i] * -b[i]",
        "R[i] = --a[i]",
        "R[i] = a[i] - -2",
        "R[i] = a[i] * -2.5",
        "R[i] = a[i] + -(2)",
        "R[i] = a[i] * -inf",
        "R[i] = (a[i] < b[i]) == (c[i] < 1e-05)",
        "R[i] = where(a[i] >= 0, maximum(a[i], 1), True)",
        "R = max(i, j, A[i,j] > alpha)",
        "R[i] += x[i] - y[i]",
        "R += 1",
    ],
)
def test_parentheses_stand_only_where_needed(text: str) -> None:
    assert show(parse(text)) == text


def test_functions_are_the_operators_without_a_symbol() -> None:
    promised = "relu exp log sqrt abs tanh sigmoid maximum minimum where"
    assert all(map(is_function, promised.split()))
    assert not any(map(is_function, ("add", "neg", "lt")))


def test_only_nodes_are_shown() -> None:
    with pytest.raises(AssertionError, match="cannot show 3"):
        show(3)  # type: ignore[arg-type]
