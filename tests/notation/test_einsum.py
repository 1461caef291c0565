"""Equations mean what they mean to torch, and what torch refuses is refused with a better message."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scorch._src.notation.indexing import parse
from scorch._src.notation.nodes import Access, Assign, Expr, Op, Reduce
from scorch._src.notation.parse_einsum import Einsum, Operand, parse_einsum, sublists_to_equation
from scorch._src.notation.show import show
from scorch._src.notation.trees import free_indices, walk
from scorch.errors import NotationError, ScorchError, ShapeError

LABELS = "abcAZR"


@pytest.fixture(autouse=True, scope="module")
def torch_without_opt_einsum() -> Iterator[None]:
    """opt_einsum refuses a few equations that torch itself takes."""
    before = torch.backends.opt_einsum.enabled
    torch.backends.opt_einsum.enabled = False
    yield
    torch.backends.opt_einsum.enabled = before


def text(equation: str, *shapes: tuple[int, ...]) -> str:
    return show(parse_einsum(equation, shapes).statement)


def align(tensor: torch.Tensor, indices: tuple[str, ...], order: list[str]) -> torch.Tensor:
    """One dimension for every index of ``order``, of size 1 where the tensor has no such index."""
    while len(set(indices)) < len(indices):
        dim, first = next((d, indices.index(i)) for d, i in enumerate(indices) if indices.index(i) < d)
        index = indices[dim]
        tensor = tensor.diagonal(0, first, dim)
        indices = (*(other for d, other in enumerate(indices) if d not in (first, dim)), index)
    tensor = tensor.permute([indices.index(index) for index in order if index in indices])
    return tensor[tuple(slice(None) if index in indices else None for index in order)]


def value_of(expr: Expr, tensors: dict[str, torch.Tensor], sizes: dict[str, int]) -> torch.Tensor:
    order = list(sizes)
    match expr:
        case Access(tensor, indices):
            return align(tensors[tensor], indices, order)
        case Op("mul", (left, right)):
            return value_of(left, tensors, sizes) * value_of(right, tensors, sizes)
        case Reduce("sum", bound, body):
            value = value_of(body, tensors, sizes)
            shape = zip(order, value.shape, strict=True)
            value = value.expand([sizes[index] if index in bound else size for index, size in shape])
            return value.sum([order.index(index) for index in bound], keepdim=True)
    raise AssertionError(f"cannot evaluate {expr!r}")


def dense(parsed: Einsum, operands: list[torch.Tensor]) -> torch.Tensor:
    tensors = {
        own.access.tensor: tensor.squeeze(own.squeeze)
        for own, tensor in zip(parsed.operands, operands, strict=True)
    }
    target = parsed.statement.target.indices
    value = value_of(parsed.statement.value, tensors, parsed.sizes)
    value = value.expand([parsed.sizes[i] if i in target else 1 for i in parsed.sizes])
    value = value.reshape([parsed.sizes[i] for i in parsed.sizes if i in target])
    left = [i for i in parsed.sizes if i in target]
    return value.permute([left.index(i) for i in target])


def operands_of(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """An equation that torch takes and shapes for it."""
    sizes = {label: draw(st.integers(0, 3)) for label in LABELS}
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 4))):
        labels = draw(st.lists(st.sampled_from(LABELS), max_size=3))
        ones = draw(st.sets(st.sampled_from(LABELS)))
        shape = [1 if label in ones else sizes[label] for label in labels]
        if draw(st.booleans()):
            at = draw(st.integers(0, len(labels)))
            own = batch[draw(st.integers(0, len(batch))) :]
            own = [draw(st.sampled_from((1, size))) for size in own]
            labels, shape = [*labels[:at], "...", *labels[at:]], [*shape[:at], *own, *shape[at:]]
        terms.append(labels)
        shapes.append(tuple(shape))
    parts = [part for term in terms for part in (*term, ",")][:-1]
    if draw(st.booleans()):
        used = sorted({label for term in terms for label in term})
        output = draw(st.lists(st.sampled_from(used), unique=True)) if used else []
        parts += ["->", *output]
    spaces = [" " * draw(st.integers(0, 1)) for _ in parts]
    return "".join(space + part for space, part in zip(spaces, parts, strict=True)), shapes


@settings(max_examples=max(150, settings.default.max_examples), deadline=None)
@given(equations())
def test_equations_mean_what_torch_says(drawn: tuple[str, list[tuple[int, ...]]]) -> None:
    equation, shapes = drawn
    operands = operands_of(shapes)
    expected = torch.einsum(equation, *operands)
    parsed = parse_einsum(equation, shapes)
    assert parsed.shape == tuple(expected.shape)
    torch.testing.assert_close(dense(parsed, operands), expected)


@settings(max_examples=max(80, settings.default.max_examples), deadline=None)
@given(equations())
def test_every_index_is_bound_once_and_no_tensor_has_its_name(
    drawn: tuple[str, list[tuple[int, ...]]],
) -> None:
    parsed = parse_einsum(*drawn)
    target, value = parsed.statement.target, parsed.statement.value
    assert set(free_indices(value)) == set(target.indices)
    tensors = [target.tensor, *(own.access.tensor for own in parsed.operands)]
    assert len(set(tensors)) == len(tensors)
    assert not set(tensors) & set(parsed.sizes)
    assert sum(isinstance(node, Reduce) for node in walk(value)) <= 1
    assert parse(show(parsed.statement)).assign == parsed.statement


@settings(max_examples=max(200, settings.default.max_examples), deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "A", "...", ".", ",", "->", "-", ">", " ", "1", "é", "\t"])),
    st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=3),
)
def test_exactly_what_torch_refuses_is_refused(parts: list[str], shapes: list[tuple[int, ...]]) -> None:
    equation = "".join(parts)
    operands = operands_of(shapes)
    try:
        expected = torch.einsum(equation, *operands)
    except RuntimeError:
        with pytest.raises(ScorchError):
            parse_einsum(equation, shapes)
    else:
        torch.testing.assert_close(dense(parse_einsum(equation, shapes), operands), expected)


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], "R[i,k] = sum(j, A[i,j] * B[j,k])"),
        ("ij,jk", [(2, 3), (3, 4)], "R[i,k] = sum(j, A[i,j] * B[j,k])"),
        ("ji", [(2, 3)], "R[i,j] = A[j,i]"),
        ("bA", [(2, 3)], "R[A,b] = B[b,A]"),
        ("ij->", [(2, 3)], "R = sum(i, j, A[i,j])"),
        ("ii", [(2, 2)], "R = sum(i, A[i,i])"),
        ("ii->i", [(2, 2)], "R[i] = A[i,i]"),
        (",ij->ij", [(), (2, 3)], "R[i,j] = A * B[i,j]"),
        ("", [()], "R = A"),
        ("->", [()], "R = A"),
        (" i j , j k -> k i ", [(2, 3), (3, 4)], "R[k,i] = sum(j, A[i,j] * B[j,k])"),
        ("i,i,i->i", [(2,)] * 3, "R[i] = A[i] * B[i] * C[i]"),
        ("...i->...", [(4, 5, 3)], "R[b0,b1] = sum(i, A[b0,b1,i])"),
        ("...i->i", [(4, 5, 3)], "R[i] = sum(b0, b1, A[b0,b1,i])"),
        ("...ij,...jk", [(5, 2, 3), (6, 5, 3, 4)], "R[b0,b1,i,k] = sum(j, A[b1,i,j] * B[b0,b1,j,k])"),
        ("ij->...ij", [(2, 3)], "R[i,j] = A[i,j]"),
        ("Rj->R", [(2, 3)], "Result[R] = sum(j, A[R,j])"),
        ("AB,BC->AC", [(2, 3), (3, 4)], "R[A,C] = sum(B, D[A,B] * E[B,C])"),
    ],
)
def test_statements_read_as_written(equation: str, shapes: list[tuple[int, ...]], expected: str) -> None:
    assert text(equation, *shapes) == expected


def test_dimensions_of_size_one_are_squeezed_where_another_operand_is_larger() -> None:
    parsed = parse_einsum("ij,jk->ik", [(2, 1), (3, 4)])
    assert parsed.operands == (Operand(Access("A", ("i",)), (1,)), Operand(Access("B", ("j", "k")), ()))
    assert parsed.sizes == {"i": 2, "j": 3, "k": 4}
    assert parse_einsum("ij,jk->ik", [(2, 1), (1, 4)]).operands[0].squeeze == ()
    assert parse_einsum("ii,i->i", [(1, 1), (3,)]).operands[0] == Operand(Access("A", ()), (0, 1))
    assert parse_einsum("i,i->i", [(1,), (0,)]).sizes == {"i": 0}


def test_shape_is_that_of_the_result() -> None:
    assert parse_einsum("...ij->j...", [(5, 2, 3)]).shape == (3, 5)


def test_any_number_of_operands_have_different_names() -> None:
    parsed = parse_einsum(",".join(["i"] * 60), [(2,)] * 60)
    names = [own.access.tensor for own in parsed.operands]
    assert len(set(names)) == 60
    assert "R" not in names
    assert names[:3] == ["A", "B", "C"]


def test_einsum_is_hashable() -> None:
    assert hash(parse_einsum("ij->ji", [(2, 3)])) == hash(parse_einsum("ij->ji", [(2, 3)]))
    expected = Assign(Access("R", ("j", "i")), Access("A", ("i", "j")))
    assert parse_einsum("ij->ji", [(2, 3)]).statement == expected


@pytest.mark.parametrize(
    ("arguments", "equation"),
    [
        ((None, [0, 1], None, [1, 2], [0, 2]), "ab,bc->ac"),
        ((None, [0, 1], None, [1, 2]), "ab,bc"),
        ((None, [..., 1], [1, ...]), "...b->b..."),
        ((None, [30, 1]), "eB"),
        ((None, range(2), ()), "ab->"),
        ((None, []), ""),
    ],
)
def test_sublists_become_equations(arguments: tuple[object, ...], equation: str) -> None:
    assert sublists_to_equation(arguments)[0] == equation


@settings(max_examples=max(60, settings.default.max_examples), deadline=None)
@given(st.data())
def test_sublists_mean_what_torch_says(data: st.DataObject) -> None:
    subscripts = st.sampled_from([0, 1, 25, 26, 51])
    lists = data.draw(st.lists(st.lists(subscripts, max_size=3), min_size=1, max_size=3))
    operands = operands_of([(2,) * len(own) for own in lists])
    arguments: list[object] = [part for pair in zip(operands, lists, strict=True) for part in pair]
    if data.draw(st.booleans()):
        used = sorted({number for own in lists for number in own})
        arguments.append(data.draw(st.lists(st.sampled_from(used), unique=True)) if used else [])
    equation, found = sublists_to_equation(arguments)
    assert all(a is b for a, b in zip(found, operands, strict=True))
    parsed = parse_einsum(equation, [tuple(tensor.shape) for tensor in operands])
    torch.testing.assert_close(dense(parsed, operands), torch.einsum(*arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, [0, 52]), "subscript 52 of operand 0 is outside 0..51; number the indices from 0"),
        ((None, [0], [-1]), "subscript -1 of the output is outside 0..51; number the indices from 0"),
        ((None, ["i"]), "subscript 'i' of operand 0 is neither an integer nor an ellipsis"),
        (
            (None, [0], 1.5),
            "expected a list of subscripts but got a float; follow operand 1 with its subscripts",
        ),
        ((None, "ij"), "expected a list of subscripts but got a str; follow operand 0 with its subscripts"),
    ],
)
def test_bad_sublists_are_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(NotationError, match=re.escape(message)):
        sublists_to_equation(arguments)


@pytest.mark.parametrize(
    ("equation", "shapes", "error", "message"),
    [
        (
            "ij,jk->ik",
            [(7, 9), (8, 5)],
            ShapeError,
            "index 'j' is 9 in operand 0 ('ij', shape (7, 9)) but 8 in operand 1 ('jk', shape (8, 5))",
        ),
        (
            "i,i,i",
            [(1,), (3,), (2,)],
            ShapeError,
            "index 'i' is 3 in operand 1 ('i', shape (3,)) but 2 in operand 2 ('i', shape (2,))",
        ),
        (
            "...i,...i",
            [(2, 3), (4, 3)],
            ShapeError,
            "batch dimension 0 of '...' is 2 in operand 0 ('...i', shape (2, 3)) "
            "but 4 in operand 1 ('...i', shape (4, 3))",
        ),
        (
            "ii",
            [(1, 3)],
            ShapeError,
            "index 'i' is both 1 and 3 in operand 0 ('ii', shape (1, 3)); a diagonal needs equal sizes",
        ),
        (
            "ij,jk",
            [(2, 3), (3, 4, 5)],
            ShapeError,
            "operand 1 has 3 dimensions (shape (3, 4, 5)) but its subscript 'jk' names 2; "
            "'...' stands for the dimensions not named",
        ),
        ("ij", [(2,)], ShapeError, "operand 0 has 1 dimension (shape (2,)) but its subscript 'ij' names 2"),
        ("ij...", [(2,)], ShapeError, "(shape (2,)) but its subscript 'ij...' names 2"),
        ("i,j", [(2,)], NotationError, "einsum equation 'i,j' names 2 operands, but 1 was passed"),
        ("i", [(2,), (2,)], NotationError, "einsum equation 'i' names 1 operand, but 2 were passed"),
        ("i", [], NotationError, "einsum equation 'i' was given no operands; pass one tensor per term"),
        (
            "ij->ik",
            [(2, 3)],
            NotationError,
            "index 'k' of the output of einsum equation 'ij->ik' does not occur in any operand",
        ),
        ("i->ii", [(2,)], NotationError, "index 'i' appears more than once in the output of einsum"),
        ("i,j1", [(2,), (2, 3)], NotationError, "operand 1 ('j1') of einsum equation 'i,j1' contains '1'"),
        ("i\n", [(2,)], NotationError, "contains '\\n'; an index is one letter, a to z or A to Z"),
        ("i->é", [(2,)], NotationError, "the output ('é') of einsum equation 'i->é' contains 'é'"),
        ("i.j", [(2, 3)], NotationError, "operand 0 ('i.j') of einsum equation 'i.j' has a '.'"),
        (". ..i", [(2,)], NotationError, "write three dots without spaces between them"),
        (
            "...i...",
            [(2,)],
            NotationError,
            "of einsum equation '...i...' has more than one '...'; one stands",
        ),
        ("i->......", [(2,)], NotationError, "the output ('......') of einsum equation 'i->......' has more"),
        ("ij- >ij", [(2, 3)], NotationError, "has a '-' that is not part of '->'; write the arrow once"),
        ("ij>ij", [(2, 3)], NotationError, "einsum equation 'ij>ij' has a '>' that is not part of '->'"),
        ("i->i->i", [(2,)], NotationError, "einsum equation 'i->i->i' has more than one '->'"),
        ("i->i,i", [(2,)], NotationError, "has a ',' after '->'; an einsum has one output"),
    ],
)
def test_messages_name_the_operand_and_the_cure(
    equation: str, shapes: list[tuple[int, ...]], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        parse_einsum(equation, shapes)


def test_equation_that_is_no_string_is_refused() -> None:
    with pytest.raises(
        NotationError, match=r"an einsum equation must be a string such as 'ij,jk->ik', but got \[0\]"
    ):
        parse_einsum([0], [(2,)])  # type: ignore[arg-type]
