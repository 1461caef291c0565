"""The operator table: every entry agrees with torch, and a new operator is one entry."""

from __future__ import annotations

import math

import pytest
import torch

import scorch
from scorch._src.loops.operators import IN_LOOPS, OPERATORS, Operator, add_operator
from scorch._src.loops.types import INT64
from scorch._src.loops.values import unary
from without_compiler import without_compiler

NUMBERS = [-2.5, -1.0, -0.25, 0.0, 0.5, 1.0, 3.0]
UNARY = [name for name, entry in OPERATORS.items() if entry.arity == 1 and entry.symbol is None]


def samples(name: str) -> torch.Tensor:
    numbers = torch.tensor(NUMBERS, dtype=torch.float64)
    return (
        numbers[numbers > (0 if name in ("log", "sqrt") else -1)]
        if name in ("log", "log1p", "sqrt")
        else numbers
    )


@pytest.mark.parametrize("name", UNARY)
def test_numbers_agree_with_torch(name):
    x = samples(name)
    found = [float(OPERATORS[name].at(float(number))) for number in x]
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), getattr(torch, name)(x))
    zero = getattr(torch, name)(torch.zeros((), dtype=torch.float64))
    assert OPERATORS[name].keeps_zero == (zero == 0)


@pytest.mark.parametrize("name", UNARY)
def test_derivatives_agree_with_torch(name):
    x, y = (samples(name).requires_grad_() for _ in range(2))
    scorch.evaluate(f"s = sum(i, x[i] * {name}(x[i]))", x=x).backward()
    (y * getattr(torch, name)(y)).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("name", [name for name in UNARY if OPERATORS[name].derivative_by_result])
def test_derivatives_by_result_agree_with_torch(name):
    """Inside of ``scorch.compile``, where results are kept and arguments are not."""
    x = samples(name)
    S = scorch.from_torch(torch.diag(x), format="csr").requires_grad_()
    D = torch.diag(x).requires_grad_()

    def loss(matrix, vector):
        return (getattr(torch, name)(matrix * 2) @ vector).sum()

    vector = torch.arange(1.0, len(x) + 1, dtype=torch.float64)
    kept = S.to_dense().detach() != 0
    scorch.compile(loss)(S, vector).backward()
    loss(D, vector).backward()
    torch.testing.assert_close(S.grad.to_dense()[kept], D.grad[kept])


def test_huge_numbers_are_no_error():
    assert math.isnan(OPERATORS["exp"].at(10**400))
    assert OPERATORS["exp"].at(1000.0) == math.inf
    assert OPERATORS["log"].at(0) == -math.inf


CUBE = Operator(
    "cube",
    1,
    lambda x: x * x * x,
    c={"int": "cube_$t", "float": "cube_$t"},
    helpers={
        "int": "static inline $t cube_$t($t x) { return ($t)(x * x * x); }",
        "float": "static inline $t cube_$t($t x) { return x * x * x; }",
    },
    derivative=lambda f, u, a: (f.mul(u, f.mul(3, f.square(a))),),
    torch=lambda x: x**3,
)


@pytest.fixture
def cube():
    """An operator that Scorch does not have, in one place."""
    add_operator(CUBE)
    yield
    del OPERATORS["cube"], IN_LOOPS["cube"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_new_operator(cube, dtype):
    D = torch.tensor([[0, 2, 0], [-3, 0, 1]], dtype=dtype)
    S = scorch.from_torch(D, format="csr")
    found = scorch.evaluate("C[i,j] = cube(A[i,j])", A=S)
    assert found.format == S.format  # zero for zero: it stays sparse
    torch.testing.assert_close(found.to_dense(), D**3)
    torch.testing.assert_close(scorch.evaluate("y[i] = sum(j, cube(A[i,j]))", A=D), (D**3).sum(1))
    assert unary("cube", -3, INT64, INT64) == -27  # the interpreter


def test_new_operator_has_gradients(cube):
    D = torch.tensor([[0.0, 2, 0], [-3, 0, 1]], dtype=torch.float64)
    S = scorch.from_torch(D, format="csr").requires_grad_()
    scorch.evaluate("s = sum(i, sum(j, cube(A[i,j])))", A=S).backward()
    torch.testing.assert_close(S.grad.to_dense(), 3 * D**2)


def test_new_operator_without_a_compiler(cube):
    S = scorch.from_torch(torch.tensor([[0.0, 2], [3, 0]]), format="csr")
    with without_compiler():
        found = scorch.evaluate("y[i] = sum(j, cube(A[i,j]))", A=S, format="dense")
    torch.testing.assert_close(found, torch.tensor([8.0, 27.0]))


def test_operator_of_a_name_that_is_taken():
    with pytest.raises(ValueError, match="the operator 'tanh' already exists"):
        add_operator(OPERATORS["tanh"])
