"""The dtype of every expression is the one torch gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

import scorch
from scorch import Format, SparseTensor
from scorch._src.compiler.typing import (
    NUMBER,
    SCALAR,
    TENSOR,
    dtype_of_type,
    reduced_type,
    type_of,
    type_of_dtype,
)
from scorch._src.engine.execute import from_dense
from scorch._src.loops.types import TYPES
from scorch._src.notation.indexing import parse
from scorch._src.notation.nodes import Access, Op
from scorch.errors import DtypeError

DTYPES = [dtype_of_type(element) for element in TYPES.values()]
NUMBERS = {"2": 2, "2.5": 2.5, "True": True}
A, B = Access("A", ("i",)), Access("B", ("i",))
s, t = Access("s", ()), Access("t", ())


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


def found(text: str, **dtypes: torch.dtype) -> torch.dtype:
    value = parse(f"y[i] = {text}").assign.value
    return dtype_of_type(type_of(value, {n: type_of_dtype(d) for n, d in dtypes.items()}).type)


def test_every_supported_dtype_goes_both_ways() -> None:
    for dtype in DTYPES:
        assert dtype_of_type(type_of_dtype(dtype)) == dtype


def test_unsupported_dtype_is_named_with_a_cure() -> None:
    with pytest.raises(DtypeError, match=r"torch\.float8_e4m3fn is not supported.*float32"):
        type_of_dtype(torch.float8_e4m3fn)


HALVES = {torch.complex32, getattr(torch, "bcomplex32", None)}  # the second is new in torch 2.15


@pytest.mark.parametrize(("a", "b"), list(itertools.product(DTYPES, repeat=2)), ids=str)
def test_two_tensors_promote_as_in_torch(a: torch.dtype, b: torch.dtype) -> None:
    tensor, other = torch.zeros(1, dtype=a), torch.zeros(1, dtype=b)
    for left, right, text in [
        (tensor, other, "A[i] * B[i]"),
        (tensor, other[0], "A[i] * s"),
        (tensor[0], other, "s * B[i]"),
    ]:
        dtypes = {"A": a, "B": b, "s": b if text == "A[i] * s" else a}
        expected = torch.result_type(left, right)
        if expected in HALVES:  # which Scorch does not have
            expected = torch.complex64
        assert found(text, **dtypes) == expected, text


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_lend_only_their_category(dtype: torch.dtype, number: str, default: torch.dtype) -> None:
    tensor = torch.zeros(1, dtype=dtype)
    assert found(f"A[i] * {number}", A=dtype) == torch.result_type(tensor, NUMBERS[number])
    assert found(f"{number} + A[i]", A=dtype) == torch.result_type(tensor, NUMBERS[number])
    types = {"s": type_of_dtype(dtype)}
    scalar = type_of(parse(f"y = s * {number}").assign.value, types)
    assert dtype_of_type(scalar.type) == torch.result_type(tensor[0], NUMBERS[number])
    assert scalar.rank == SCALAR


@pytest.mark.parametrize(("a", "b"), list(itertools.product(DTYPES, repeat=2)), ids=str)
def test_tensor_scalar_and_number_together(a: torch.dtype, b: torch.dtype, default: torch.dtype) -> None:
    tensor, scalar = torch.zeros(1, dtype=a), torch.zeros((), dtype=b)
    product = scalar * 2.5
    expected = torch.result_type(tensor, product)
    if expected not in HALVES and product.dtype not in HALVES:
        assert found("A[i] * (s * 2.5)", A=a, s=b) == expected
    assert found("where(A[i], s, 1)", A=a, s=b) == torch.where(tensor != 0, scalar, 1).dtype


def test_ranks() -> None:
    types = {"A": TYPES["int8"], "s": TYPES["int64"]}
    assert type_of(A, types).rank == TENSOR
    assert type_of(s, types).rank == SCALAR
    assert type_of(parse("y = 1 + 2").assign.value, types).rank == NUMBER
    assert type_of(parse("y[i] = A[i] * s").assign.value, types).type == TYPES["int8"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "tanh", "sigmoid", "sin", "cos", "abs", "square", "sign"]
)
def test_functions_give_what_torch_gives(name: str, dtype: torch.dtype, default: torch.dtype) -> None:
    try:
        expected = getattr(torch, name)(torch.ones(1, dtype=dtype)).dtype
    except RuntimeError:
        return  # torch has no such function for this dtype, Scorch may
    if dtype.is_complex and name == "sign":
        return
    assert found(f"{name}(A[i])", A=dtype) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_division_and_comparison(dtype: torch.dtype, default: torch.dtype) -> None:
    tensor = torch.ones(1, dtype=dtype)
    assert found("A[i] / A[i]", A=dtype) == (tensor / tensor).dtype
    assert found("A[i] / 2", A=dtype) == (tensor / 2).dtype
    assert found("A[i] == A[i]", A=dtype) == torch.bool


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_give_what_torch_gives(dtype: torch.dtype) -> None:
    element, tensor = type_of_dtype(dtype), torch.ones(1, dtype=dtype)
    assert dtype_of_type(reduced_type("sum", A, element)) == tensor.sum().dtype
    assert dtype_of_type(reduced_type("prod", A, element)) == tensor.prod().dtype
    assert dtype_of_type(reduced_type("any", A, element)) == torch.bool
    if not dtype.is_complex:
        assert dtype_of_type(reduced_type("max", A, element)) == tensor.amax().dtype
    # A product of tensors is an einsum, which keeps the dtype; anything else is an expression that is summed.
    assert reduced_type("sum", Op("mul", (A, B)), element) == element
    assert reduced_type("sum", Op("mul", (A, Op("mul", (B, A)))), element) == element
    assert dtype_of_type(reduced_type("sum", Op("relu", (A,)), element)) == tensor.sum().dtype


@pytest.mark.parametrize("form", ["dense", "s"])
def test_sum_of_comparisons_counts(form: str) -> None:
    dense = torch.tensor([1.0, 0.0, -1.0, 3.0, 2.0])
    x = dense if form == "dense" else SparseTensor(from_dense(dense, Format(form)))
    result = scorch.evaluate("y = sum(i, x[i] > 0)", x=x)
    assert result.dtype == torch.int64 and int(result) == 3
    assert int(scorch.evaluate("y = prod(i, (x[i] > -5) + 1)", x=x)) == 1 * 2**5


@pytest.mark.parametrize("form", ["dense", "s"])
def test_narrow_integers_wrap_before_they_are_compared(form: str) -> None:
    """A scalar or number does not widen a tensor, not even inside an expression."""
    dense = torch.tensor([1, 0, 3], dtype=torch.uint8)
    x = dense if form == "dense" else SparseTensor(from_dense(dense, Format(form)))
    two = torch.tensor(2)
    assert scorch.evaluate("y[i] = x[i] - t > 0", x=x, t=two).tolist() == ((dense - two) > 0).tolist()
    assert scorch.evaluate("y[i] = x[i] - 2 > 0", x=x).tolist() == [True, True, True]
    assert scorch.evaluate("y[i] = where(x[i] > 5, x[i], -1) / 1", x=x).tolist() == [255, 255, 255]


@pytest.mark.parametrize(
    ("text", "dtype", "words"),
    [
        ("A[i] - A[i]", torch.bool, "sub is not defined for bool; use != or convert with .to"),
        ("-A[i]", torch.bool, "neg is not defined for bool"),
        (
            "relu(A[i])",
            torch.complex64,
            r"relu\(\) is not defined for complex64; complex numbers are not ordered",
        ),
        ("maximum(A[i], 1)", torch.complex64, "complex numbers are not ordered"),
        ("A[i] < 1", torch.complex128, "complex numbers are not ordered"),
        ("max(j, A[i] * B[j])", torch.complex64, r"max\(\) is not defined for complex64"),
    ],
)
def test_what_torch_refuses_is_refused(text: str, dtype: torch.dtype, words: str) -> None:
    dense = torch.ones(3, dtype=dtype)
    tensors = {"A": SparseTensor(from_dense(dense, Format("s"))), "B": dense}
    used = {name: tensor for name, tensor in tensors.items() if f"{name}[" in text}
    with pytest.raises(DtypeError, match=words):
        scorch.evaluate(f"y[i] = {text}", **used)
    with pytest.raises(DtypeError, match=words):  # dense operands, which torch computes
        scorch.evaluate(f"y[i] = {text}", **dict.fromkeys(used, dense))
