"""Supports: where an expression can differ from zero."""

from __future__ import annotations

import itertools

import pytest
import torch

import scorch
from scorch import Format, SparseTensor
from scorch._src.compiler.lattice import (
    EVERYWHERE,
    NOWHERE,
    Support,
    both,
    constant,
    either,
    mentioned,
    required,
    stored,
    support,
)
from scorch._src.engine.execute import from_dense
from scorch._src.loops.operators import OPERATORS
from scorch._src.notation.indexing import parse
from scorch._src.notation.nodes import Access, Expr

A, B, C = (Access(name, ("i",)) for name in "ABC")
D = Access("d", ("i",))  # dense


def of(access: Access) -> Support:
    return EVERYWHERE if access.tensor == "d" else stored(access)


def body(text: str) -> Expr:
    return parse(f"y[i] = {text}").assign.value


def formula(*clauses: str) -> Support:
    """``formula("AB", "C")`` is A and B, or C."""
    return frozenset(frozenset(Access(name, ("i",)) for name in clause) for clause in clauses)


SUPPORTS = [
    ("A[i]", formula("A")),
    ("A[i] * B[i]", formula("AB")),
    ("A[i] + B[i]", formula("A", "B")),
    ("A[i] - B[i]", formula("A", "B")),
    ("A[i] * B[i] + C[i]", formula("AB", "C")),
    ("A[i] * (B[i] + C[i])", formula("AB", "AC")),
    ("A[i] + A[i] * B[i]", formula("A")),
    ("A[i] * d[i]", formula("A")),
    ("A[i] + d[i]", EVERYWHERE),
    ("A[i] * (d[i] + B[i])", formula("A")),
    ("-A[i]", formula("A")),
    ("2 * A[i]", formula("A")),
    ("0 * A[i]", NOWHERE),
    ("A[i] + 0", formula("A")),
    ("A[i] + 1", EVERYWHERE),
    ("A[i] / 2", formula("A")),
    ("A[i] / d[i]", formula("A")),
    ("A[i] / B[i]", EVERYWHERE),  # 0 / 0 is not a number
    ("d[i] / A[i]", EVERYWHERE),
    ("1 / A[i]", EVERYWHERE),
    ("0 / d[i]", EVERYWHERE),  # a number is not a zero that is not stored
    ("relu(A[i])", formula("A")),
    ("tanh(A[i] * B[i])", formula("AB")),
    ("exp(A[i])", EVERYWHERE),
    ("exp(A[i]) * B[i]", formula("B")),
    ("exp(A[i]) - 1", EVERYWHERE),
    ("expm1(A[i])", formula("A")),
    ("sigmoid(A[i])", EVERYWHERE),
    ("log(A[i])", EVERYWHERE),
    ("maximum(A[i], B[i])", formula("A", "B")),
    ("maximum(A[i], 0)", formula("A")),
    ("maximum(A[i], 1)", EVERYWHERE),
    ("maximum(A[i], -1)", formula("A")),
    ("minimum(A[i], 1)", formula("A")),
    ("minimum(A[i], -1)", EVERYWHERE),
    ("A[i] > 0", formula("A")),
    ("A[i] >= 0", EVERYWHERE),
    ("A[i] < 0", formula("A")),
    ("A[i] < 1", EVERYWHERE),
    ("A[i] != 0", formula("A")),
    ("A[i] == 0", EVERYWHERE),
    ("A[i] == 1", formula("A")),
    ("A[i] != B[i]", formula("A", "B")),
    ("A[i] > d[i]", EVERYWHERE),
    ("where(A[i], B[i], 0)", formula("AB")),
    ("where(A[i], B[i], C[i])", formula("AB", "C")),
    ("where(A[i], d[i], 0)", formula("A")),
    ("where(A[i], 1, B[i])", formula("A", "B")),
    ("where(A[i] == 0, B[i], 0)", formula("B")),
    ("where(d[i], A[i], B[i])", formula("A", "B")),
    ("exp(0)", EVERYWHERE),
    ("relu(0 - 1)", NOWHERE),
]


@pytest.mark.parametrize(("text", "expected"), SUPPORTS)
def test_support(text: str, expected: Support) -> None:
    assert support(body(text) if "[" in text else parse(f"y = {text}").assign.value, of) == expected


@pytest.mark.parametrize("text", [text for text, expected in SUPPORTS if "d[" not in text and "[" in text])
def test_support_agrees_with_values(text: str) -> None:
    """Zero wherever the formula says so, for every way of leaving out operands."""
    truth = support(body(text), of)
    for present in itertools.product([False, True], repeat=3):
        names = {name for name, is_there in zip("ABC", present, strict=True) if is_there}
        used = {name: torch.tensor([2.0 if name in names else 0.0]) for name in "ABC" if f"{name}[" in text}
        value = scorch.evaluate(f"y[i] = {text}", **used)
        if not any(clause <= {Access(name, ("i",)) for name in names} for clause in truth):
            assert float(value) == 0.0, f"{text} with {names}"


def test_formulas() -> None:
    a, b, c = stored(A), stored(B), stored(C)
    assert both(a, EVERYWHERE) == a and either(a, NOWHERE) == a
    assert both(a, NOWHERE) == NOWHERE and either(a, EVERYWHERE) == EVERYWHERE
    assert either(a, both(a, b)) == a, "A or (A and B) is A"
    assert both(either(a, b), either(a, c)) == either(a, both(b, c))
    assert required(both(a, either(b, c))) == {A}
    assert required(either(a, b)) == frozenset() == required(NOWHERE)
    assert mentioned(either(a, both(b, c))) == {A, B, C}


def test_constant() -> None:
    assert constant(parse("y = 2 * 3 + 1").assign.value) == 7
    assert constant(body("A[i]")) is None and constant(body("A[i] * 0")) is None


def test_every_operator_has_a_support() -> None:
    for operator in OPERATORS.values():
        assert operator.support in ("any", "all", "first", "where"), operator.name


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text",
    [
        "A[i,j] / B[i,j]",
        "A[i,j] / B[i,i]",
        "A[i,j] / B[j,i]",
        "(A[i,j] + 1) / B[i,j]",
        "A[i,j] / B[i,j] + B[j,i]",
    ],
)
@pytest.mark.parametrize("forms", [("csr", "csr"), ("csr", "csc"), ("coo", "dcsr"), ("dcsr", "coo")])
def test_zero_by_zero_is_not_a_number_in_any_order_of_loops(text: str, forms: tuple[str, str]) -> None:
    """A divisor that an outer loop found absent was once taken for one that is never zero."""
    dense = [torch.diag(torch.tensor([1.0, 0.0, 2.0, 0.0])) + torch.eye(4).roll(s, 0) for s in (1, 2)]
    tensors = {n: SparseTensor(from_dense(d, Format(f))) for n, d, f in zip("AB", dense, forms, strict=True)}
    for expression in (f"y[i,j] = {text}", f"y[j,i] = {text}", f"y[i] = sum(j, {text})"):
        truth = scorch.evaluate(expression, A=dense[0], B=dense[1])
        found = scorch.evaluate(expression, **tensors)
        found = found.to_dense() if isinstance(found, SparseTensor) else found
        torch.testing.assert_close(found, truth, equal_nan=True)
        assert not truth.isfinite().all()


def test_zero_by_zero_on_a_diagonal() -> None:
    A = torch.zeros(3, 3, 2)
    found = scorch.evaluate("y[k,i] = A[l,i,k] / A[l,l,k]", A=SparseTensor(from_dense(A, Format("dds"))))
    assert found.isnan().all()


def test_constant_is_not_a_number_where_torch_says_so() -> None:
    """By this number sums are completed for what is not stored: max(0, nan) was once 0."""
    for text in ("maximum(0, 0 / 0)", "minimum(0 / 0, 1)", "(0 / 0) / 0", "relu(0 / 0)"):
        value = constant(parse(f"y = {text}").assign.value)
        assert value is not None and value != value, text
    A = SparseTensor(from_dense(torch.zeros(20, 20), Format("csr")))
    assert scorch.evaluate("y = sum(i, j, maximum(A[i,j], A[i,j] / A[i,j]))", A=A).isnan()
    assert scorch.evaluate("y = sum(i, j, minimum(A[i,j], 1 / A[i,j]))", A=A) == 0
