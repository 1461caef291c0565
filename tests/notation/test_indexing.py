"""Precedence, where implicit sums are put, how binders are named, and every message."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

import scorch
from scorch._src.loops.operators import OPERATORS, Operator
from scorch._src.notation.indexing import MISSING_FUNCTIONS, Statement, parse
from scorch._src.notation.nodes import Access, Assign, Literal, Op, Reduce
from scorch._src.notation.show import show
from scorch.errors import NotationError

a, b, c = (Access(name, ("i",)) for name in "abc")


def value(text: str) -> object:
    return parse(f"y[i] = {text}").assign.value


def mul(left: object, right: object) -> Op:
    return Op("mul", (left, right))  # type: ignore[arg-type]


def test_statement_is_a_target_and_a_value() -> None:
    assert parse("D[i,j] = A[i,k] * B[k,j] + C[i,j]") == Statement(
        Assign(
            Access("D", ("i", "j")),
            Op(
                "add",
                (
                    Reduce("sum", ("k",), mul(Access("A", ("i", "k")), Access("B", ("k", "j")))),
                    Access("C", ("i", "j")),
                ),
            ),
        )
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a[i] + b[i] * c[i]", Op("add", (a, mul(b, c)))),
        ("a[i] - b[i] - c[i]", Op("sub", (Op("sub", (a, b)), c))),
        ("a[i] / b[i] / c[i]", Op("div", (Op("div", (a, b)), c))),
        ("a[i] / (b[i] / c[i])", Op("div", (a, Op("div", (b, c))))),
        ("-a[i] * b[i]", mul(Op("neg", (a,)), b)),
        ("+a[i]", a),
        ("- -a[i]", Op("neg", (Op("neg", (a,)),))),
        ("a[i] + b[i] < c[i]", Op("lt", (Op("add", (a, b)), c))),
        ("(a[i] < b[i]) * c[i]", mul(Op("lt", (a, b)), c)),
        ("where(a[i] > 0, b[i], c[i])", Op("where", (Op("gt", (a, Literal(0))), b, c))),
        ("a[ i ]\n  + alpha", Op("add", (a, Access("alpha", ())))),
        ("a[i] + alpha[]", Op("add", (a, Access("alpha", ())))),
    ],
)
def test_precedence(text: str, expected: object) -> None:
    assert value(text) == expected


@pytest.mark.parametrize("row", OPERATORS.values(), ids=OPERATORS)
def test_every_operator_is_read(row: Operator) -> None:
    texts = [show(argument) for argument in (a, b, c)[: row.arity]]
    call = (
        f"{row.name}({', '.join(texts)})" if row.symbol is None else f" {row.symbol} ".join(["", *texts][-2:])
    )
    assert value(call) == Op(row.name, (a, b, c)[: row.arity])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2),
        ("-2", -2),
        ("2.", 2.0),
        (".5", 0.5),
        ("1e-3", 1e-3),
        ("2.5E+3", 2500.0),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("True", True),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_numbers_keep_their_kind(text: str, number: float) -> None:
    found = parse(f"s = {text}").assign.value
    assert isinstance(found, Literal)
    assert (found.value, type(found.value)) == (number, type(number))


def test_nan_is_a_number() -> None:
    found = parse("s = nan").assign.value
    assert isinstance(found, Literal)
    assert math.isnan(found.value)


def test_scalar_targets_need_no_brackets() -> None:
    assert parse("s = a[i]") == parse("s[] = a[i]")
    assert parse("s = a[i]").assign == Assign(Access("s", ()), Reduce("sum", ("i",), a))


def test_names_may_be_long() -> None:
    assert show(parse("out[row] = weight[row,col_2] * x[col_2]").assign) == (
        "out[row] = sum(col_2, weight[row,col_2] * x[col_2])"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Each term of a sum on its own.
        ("y[i] = A[i,k] * x[k] + b[i]", "sum(k, A[i,k] * x[k]) + b[i]"),
        ("y[i] = b[i] - A[i,k] * x[k]", "b[i] - sum(k, A[i,k] * x[k])"),
        ("y[i] = -(A[i,k] * x[k])", "-sum(k, A[i,k] * x[k])"),
        ("y[i] = A[i,k] * x[k] + B[i,k] * z[k]", "sum(k, A[i,k] * x[k]) + sum(k_1, B[i,k_1] * z[k_1])"),
        ("y[i] = A[i,k] + A[i,k]", "sum(k, A[i,k]) + sum(k_1, A[i,k_1])"),
        # Around the smallest part that holds all uses.
        ("y[i] = b[i] * A[i,k]", "b[i] * sum(k, A[i,k])"),
        ("y[i] = 2 * (A[i,k] * x[k])", "2 * sum(k, A[i,k] * x[k])"),
        ("y[i] = 2 * A[i,k] * x[k]", "sum(k, 2 * A[i,k] * x[k])"),
        ("y[i] = relu(A[i,k] * x[k])", "relu(sum(k, A[i,k] * x[k]))"),
        ("y[i] = exp(A[i,k]) * x[k]", "sum(k, exp(A[i,k]) * x[k])"),
        ("y[i] = A[i,k] / b[i]", "sum(k, A[i,k]) / b[i]"),
        ("y[i] = A[i,k] * x[k] > 0", "sum(k, A[i,k] * x[k]) > 0"),
        ("y[i] = maximum(A[i,k] * x[k], b[i])", "maximum(sum(k, A[i,k] * x[k]), b[i])"),
        ("y[i] = maximum(A[i,k], x[k])", "sum(k, maximum(A[i,k], x[k]))"),
        # A sum inside a product is entered only if it alone uses the index.
        ("y[i] = (A[i,k] + b[i]) * c[i]", "(sum(k, A[i,k]) + b[i]) * c[i]"),
        ("y[i] = (A[i,k] + b[i]) * x[k]", "sum(k, (A[i,k] + b[i]) * x[k])"),
        ("y[i] = relu(A[i,k] + B[i,k]) / 2", "relu(sum(k, A[i,k]) + sum(k_1, B[i,k_1])) / 2"),
        # Several indices.
        ("s = A[i,k]", "sum(i, k, A[i,k])"),
        ("y[i] = A[i,j,k] * B[j,k]", "sum(j, k, A[i,j,k] * B[j,k])"),
        ("y[i] = exp(A[i,j] * x[j]) * (B[i,k] * z[k])", "exp(sum(j, A[i,j] * x[j])) * sum(k, B[i,k] * z[k])"),
        ("s = x[i] * exp(A[i,j] * y[j])", "sum(i, x[i] * exp(sum(j, A[i,j] * y[j])))"),
        ("s = A[i,i]", "sum(i, A[i,i])"),
        # Explicit reductions are entered like functions.
        ("y[i] = max(j, A[i,j,k] * x[k])", "max(j, sum(k, A[i,j,k] * x[k]))"),
        ("y[i] = max(j, A[i,j]) * x[k]", "max(j, A[i,j]) * sum(k, x[k])"),
    ],
)
def test_implicit_sums_stand_around_the_smallest_part(text: str, expected: str) -> None:
    assert show(parse(text).assign.value) == expected


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "any"])
def test_reductions_name_their_indices_first(name: str) -> None:
    body = Access("A", ("i", "j", "k"))
    assert value(f"{name}(j, k, A[i,j,k])") == Reduce(name, ("j", "k"), body)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Y[i,j] = A[i,j] / sum(j, A[i,j])", "A[i,j] / sum(j_1, A[i,j_1])"),
        ("y[i] = A[i,j] / sum(j, A[i,j])", "sum(j, A[i,j]) / sum(j_1, A[i,j_1])"),
        ("y[i] = A[i,j] * B[j,i] / sum(j, A[i,j])", "sum(j, A[i,j] * B[j,i]) / sum(j_1, A[i,j_1])"),
        ("y[i] = x[j] * (A[i,j] / sum(j, A[i,j]))", "sum(j, x[j] * (A[i,j] / sum(j_1, A[i,j_1])))"),
        ("y[i] = sum(j, A[i,j]) + sum(j, A[i,j] * j_1)", "sum(j, A[i,j]) + sum(j_2, A[i,j_2] * j_1)"),
        ("s = sum(j, x[j] * max(j, y[j]))", "sum(j, x[j] * max(j_1, y[j_1]))"),
        ("y[j] = sum(i, A[i,j] - max(i, A[i,j]))", "sum(i, A[i,j] - max(i_1, A[i_1,j]))"),
        ("y[i] = sum(j, A[i,j]) * sum(k, A[i,k])", "sum(j, A[i,j]) * sum(k, A[i,k])"),
    ],
)
def test_binders_have_names_of_their_own(text: str, expected: str) -> None:
    assert show(parse(text).assign.value) == expected


def test_softmax_is_one_statement() -> None:
    text = "P[i,j] = exp(A[i,j] - max(j, A[i,j])) / sum(j, exp(A[i,j] - max(j, A[i,j])))"
    assert show(parse(text).assign.value) == (
        "exp(A[i,j] - max(j_1, A[i,j_1])) / sum(j_2, exp(A[i,j_2] - max(j_3, A[i,j_3])))"
    )


def test_accumulation_has_the_target_as_first_term() -> None:
    statement = parse("y[i] += A[i,k] * x[k]")
    assert statement.accumulate
    assert show(statement.assign) == "y[i] = y[i] + sum(k, A[i,k] * x[k])"
    assert not parse("y[i] = y[i] + A[i,k] * x[k]").accumulate


def test_accumulation_may_repeat_a_value_along_the_target() -> None:
    assert show(parse("Y[i,j] += x[i]")) == "Y[i,j] += x[i]"


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("D[i = A[i]", "expected ',' or ']' after the indices of 'D' but found '='", "= A"),
        ("D[i] = A[i", "expected ',' or ']' after the indices of 'A' but found the end", ""),
        ("D[i] = A[i,]", "expected an index of 'A' but found ']'", "]"),
        ("D[i] = A[i+1]", "an index must be a name, not a sum; select from 'A' first, as in A[1:]", "+1"),
        ("D[i] = A[i][j]", "write all indices of 'A' in one pair of brackets: A[i,j]", "[j]"),
        ("D[i] = A[i,0]", "an index must be a name, not a number; select from 'A' first", "0]"),
        ("D[i] = A[i,:]", "slices are not supported; slice the tensor before the expression", ":]"),
        ("D[i] = A[...,i]", "'...' is not supported here; name every index, or use einsum", "..."),
        ("D[i] = (A[i] + 1", "expected ')' but found the end", ""),
        ("D[i] = A[i])", "expected an operator but found ')'", ")"),
        ("D[i] = 2 A[i]", "expected an operator before 'A'; write '*' for a product", "A"),
        ("D[i] =", "the right-hand side is empty; write what to compute", ""),
        ("D[i] = A[i] *", "expected a tensor, a number or '(' but found the end", ""),
        ("A[i] * B[i]", "the result is missing; begin with it", "*"),
        ("D[i] == A[i]", "expected '=' or '+=' after the result 'D' but found '=='", "=="),
        ("2 = A[i]", "expected the name of the result but found '2'", "2"),
        ("D[i] = A[i] = B[i]", "a statement can have only one '='; write '==' to compare", "= B"),
        ("D[i] = a[i] < b[i] < c[i]", "comparisons do not chain; write (x < y) * (y < z)", "< c"),
        ("D[i,j] = A[i,k] @ B[k,j]", "'@' is not supported; a matrix product names its indices", "@"),
        ("D[i] = A[i] ** 2", "'**' is not supported; use square(x) for x ** 2", "**"),
        ("D[i] = A[i] ^ 2", "'^' is not supported; write square(x)", "^"),
        ("D[i] = A[i] // 2", "'//' is not supported; write '/' to divide", "//"),
        ("D[i] = A[i] % 2", "'%' is not supported; compute remainders before the expression", "%"),
        ("D[i] = A[i] & B[i]", "'&' is not supported; multiply conditions instead", "&"),
        ("D[i] = A[i] | B[i]", "'|' is not supported; write maximum(x > 0, y > 0)", "|"),
        ("D[i] = A[i]; E[i] = D[i]", "expected one statement; call evaluate once for each", ";"),
        ("D[i] = ñ[i]", "expected a tensor, a number or '(' but found 'ñ'", "ñ"),
        ("D[i,i] = A[i]", "index 'i' appears twice in the result; use two names", "i] ="),
        ("D[i,j] = A[i]", "index 'j' of the result does not occur on the right", "j] ="),
        ("D[j] = sum(j, A[j])", "so its size is unknown; use it there or drop it", "j] ="),
        ("D[i] = A[i] * i", "'i' is an index, which has no value; to compute with it, pass a tensor", "i"),
        ("D[i] = A[i] * i[j]", "'i' is a tensor in one place and an index in another; rename one", "i] = A"),
        ("exp[i] = A[i]", "'exp' is a function; rename the tensor or index", "exp"),
        ("D[i] = A[i] + sum", "'sum' is a function; rename the tensor or index", "sum"),
        ("D[inf] = A[inf]", "'inf' is a constant; rename the tensor or index", "inf] ="),
        (
            "D[i] = rleu(A[i])",
            "unknown function 'rleu'; did you mean 'relu'? Choose from: relu, abs, sqrt",
            "rleu",
        ),
        ("D[i] = A(i)", "unknown function 'A'; a tensor takes brackets: A[i,j].", "A("),
        ("D[i] = add(A[i], B[i])", "write '+' instead of 'add'", "add"),
        ("D[i] = relu(A[i], B[i])", "'relu' expected 1 argument, but got 2", "relu"),
        ("D[i] = maximum(A[i])", "'maximum' expected 2 arguments, but got 1", "maximum"),
        ("D[i] = relu()", "'relu' expected 1 argument, but got 0", "relu"),
        ("D[i] = relu(A[i]", "expected ',' or ')' after the arguments of 'relu' but found the end", ""),
        ("D[i] = max(j, A[i,j]", "expected ')' after the arguments of 'max' but found the end", ""),
        ("D[i,j] = max(A[i,j], B[i,j])", "use maximum(x, y) for the max of two values", "A[i,j],"),
        ("D = min(a, b)", "'a' is not an index of what 'min' reduces; use minimum(x, y)", "a,"),
        ("D[i] = sum(A[i,j], j)", "only the last argument of 'sum' is not an index: sum(j, ", "A[i,j],"),
        ("D[i] = sum(k, A[i,j])", "'k' is not an index of what 'sum' reduces; write sum(j, A[i,j])", "k,"),
        ("D[i] = sum(A[i,j])", "'sum' expected the indices before the expression to reduce", "sum"),
        ("D[i] = sum(j,)", "'sum' expected indices and then the expression to reduce: sum(j, A[i,j])", "sum"),
        ("D[i] = sum(j, j, A[i,j])", "index 'j' is named twice", "j, A"),
        ("s = 9223372036854775808", "does not fit in 64 bits; write it with an exponent or a point", "922"),
        ("s = " + "9" * 5000, "the number does not fit in 64 bits", "999"),
    ],
)
def test_messages_point_at_the_place(text: str, message: str, place: str) -> None:
    with pytest.raises(NotationError) as caught:
        parse(text)
    said, shown, caret = str(caught.value).split("\n")
    assert message in said
    assert shown == "    " + text
    assert caret.strip() == "^"
    assert shown[caret.index("^") :].startswith(place)
    assert place or caret.index("^") == len(shown)


@pytest.mark.parametrize("text", ["", "  \n "])
def test_empty_text_is_refused(text: str) -> None:
    with pytest.raises(NotationError, match="the expression is empty"):
        parse(text)


def test_text_that_is_no_string_is_refused() -> None:
    with pytest.raises(
        NotationError, match=r"an index expression must be a string such as .*, but got a list"
    ):
        parse([3])  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["s = " + "(" * 5000 + "a" + ")" * 5000, "s = a" + " + a" * 5000])
def test_endless_nesting_is_refused_and_the_next_call_works(text: str) -> None:
    with pytest.raises(NotationError, match="compute parts of it first"):
        parse(text)
    assert parse("s = a").assign.value == Access("a", ())


def test_functions_that_people_try_are_answered_with_what_to_write() -> None:
    A = S = scorch.tensor([[4.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 3.0]], format="csr")
    for name, hint in MISSING_FUNCTIONS.items():
        with pytest.raises(NotationError, match=f"there is no function '{name}'; ") as caught:
            parse(f"R[i] = {name}(j, A[i,j])")
        assert hint in str(caught.value)
        use, _, code = hint.rpartition("as in ")[2].partition(" ")
        if use == "use":
            for call in re.findall(r"s?c?torch\.[\w.]+\(S, \d\)|torch\.[\w.]+\(S\)", code):
                eval(call, {"torch": torch, "scorch": scorch, "S": S})
        elif use == "write":
            code = code.partition(":")[0].partition(", or")[0]
            target = "R[i]" if "(j, " in code else "R[i,j]"
            named = {"A": A, "B": A.to_dense()} if "B[" in code else {"A": A}
            scorch.evaluate(f"{target} = {code}", **named)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("y[i] = A[i,j] x[j]", "expected an operator before 'x'; write '*' for a product"),
        ("y(i) = A(i,j)", "write the indices of 'y' in brackets: y[i,j]"),
        ("y[i,j] = A.T[i,j]", "A[j,i] for A.T"),
        ("y[i,j] = torch.relu(A[i,j])", "write relu(x) for torch.relu(x)"),
        ("y[i,j] = A[i,j] if A[i,j] > 0", "use where(condition, x, y)"),
        ("y[i,j] = A[i,j] and B[i,j]", "multiply conditions instead"),
        (3, "but got an int"),
    ],
)
def test_other_notations_say_what_to_write(text: Any, words: str) -> None:
    with pytest.raises(NotationError, match=re.escape(words)):
        parse(text)
