from __future__ import annotations

import re

import pytest

from scorch._src.notation.indexing import parse
from scorch._src.notation.verify import shapes_of
from scorch.errors import NotationError, ShapeError


def test_every_index_gets_its_size() -> None:
    statement = parse("D[i,j] = A[i,k] * B[k,j] + C[i,j] * alpha")
    shapes = {"A": (2, 3), "B": (3, 4), "C": (2, 4), "alpha": ()}
    assert shapes_of(statement, shapes) == {"i": 2, "k": 3, "j": 4}


def test_terms_may_sum_over_different_sizes() -> None:
    statement = parse("y[i] = A[i,k] * x[k] + B[i,k] * z[k]")
    shapes = {"A": (2, 3), "x": (3,), "B": (2, 5), "z": (5,)}
    assert shapes_of(statement, shapes) == {"i": 2, "k": 3, "k_1": 5}


def test_accumulation_knows_the_sizes_from_the_target() -> None:
    assert shapes_of(parse("D[i,j] += x[i]"), {"D": (2, 3), "x": (2,)}) == {"i": 2, "j": 3}


def test_target_may_be_an_operand() -> None:
    assert shapes_of(parse("x[i] = x[i] + y[i]"), {"x": (2,), "y": (2,)}) == {"i": 2}


@pytest.mark.parametrize(
    ("text", "shapes", "error", "message"),
    [
        (
            "y[i] = A[i,j] * x[j]",
            {"A": (7, 9), "x": (8,)},
            ShapeError,
            "index 'j' is 9 in 'A[i,j]' (shape (7, 9)) but 8 in 'x[j]' (shape (8,))",
        ),
        (
            "y[i] = a[i] + b[i]",
            {"a": (3,), "b": (1,)},
            ShapeError,
            "index 'i' is 3 in 'a[i]' (shape (3,)) but 1 in 'b[i]' (shape (1,)); "
            "sizes of 1 are not broadcast here: squeeze the dimension and drop the index",
        ),
        (
            "y[i] = A[i,i]",
            {"A": (1, 3)},
            ShapeError,
            "index 'i' is both 1 and 3 in 'A[i,i]' (shape (1, 3)); a diagonal needs equal sizes",
        ),
        (
            "y[i] = A[i]",
            {"A": (2, 3)},
            ShapeError,
            "'A' has 2 dimensions (shape (2, 3)) but 'A[i]' names 1 index",
        ),
        (
            "y[i] = A[i,j] * b[i]",
            {"A": (2,), "b": (2,)},
            ShapeError,
            "'A' has 1 dimension (shape (2,)) but 'A[i,j]' names 2 indices",
        ),
        (
            "y[i] = a[i] * b[i] * c",
            {"a": (2,)},
            NotationError,
            "missing tensor for 'b', 'c'; pass b=b, c=c",
        ),
        (
            "y[i] += a[i]",
            {"a": (2,)},
            NotationError,
            "missing tensor for 'y'; pass y=y; '+=' adds to 'y', so it is an operand too",
        ),
        (
            "y[i] = a[i]",
            {"a": (2,), "b": (3,)},
            NotationError,
            "'b' is passed but not used in 'y[i] = a[i]'",
        ),
        (
            "y[i] = a[i]",
            {"a": (2,), "b": (3,), "c": ()},
            NotationError,
            "'b', 'c' are passed but not used in 'y[i] = a[i]'",
        ),
        (
            "y[i] = a[i]",
            {"a": (2,), "y": (2,)},
            NotationError,
            "'y' is the result, not an operand; do not pass it, or write '+=' to add to it",
        ),
    ],
)
def test_messages_name_the_tensor_and_the_cure(
    text: str, shapes: dict[str, tuple[int, ...]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        shapes_of(parse(text), shapes)
