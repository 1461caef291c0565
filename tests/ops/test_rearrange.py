"""scorch.rearrange: patterns against reshape, permute and expand of the dense tensor."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from properties.drawing import formats, random_dense
from scorch import SparseTensor
from scorch.errors import NotationError, OperandError, ShapeError


def grouped(draw, axes: list[str]) -> list[list[str]]:
    """The axes cut into groups, and now and then an empty one, which is a dimension of size 1."""
    groups: list[list[str]] = []
    for axis in axes:
        if groups and groups[-1] and draw(st.booleans()):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if draw(st.integers(0, 4)) == 0:
        groups.insert(draw(st.integers(0, len(groups))), [])
    return groups


def write(groups: list[list[str]], is_compact: bool) -> str:
    space = "" if is_compact else " "
    texts = [space.join(group) if len(group) == 1 else f"({space.join(group)})" for group in groups]
    return space.join("1" if text == "()" else text for text in texts)


@given(st.data())
def test_any_pattern(data):
    draw = data.draw
    names = draw(st.permutations(["a", "b", "c", "d", "e"]))
    old, new = names[: draw(st.integers(1, 4))], names[4 : 4 + draw(st.integers(0, 1))]
    sizes = {axis: draw(st.sampled_from([1, 2, 3])) for axis in [*old, *new]}
    order = draw(st.permutations([*old, *new]))
    left, right = grouped(draw, old), grouped(draw, order)
    whole = random_dense(tuple(sizes[a] for a in old), torch.float64, 0.5, draw(st.integers(0, 999)))

    wanted = whole.permute([old.index(a) for a in order if a in old])
    wanted = wanted.reshape([sizes[a] if a in old else 1 for a in order]).expand([sizes[a] for a in order])
    wanted = wanted.reshape([math.prod(sizes[a] for a in group) for group in right])

    dense = whole.reshape([math.prod(sizes[a] for a in group) for group in left])
    is_compact = draw(st.booleans())
    arrow = "->" if is_compact else " -> "
    pattern = write(left, is_compact) + arrow + write(right, is_compact)
    needed = new + [axis for group in left for axis in group[1:]]
    given_sizes = {axis: sizes[axis] for axis in needed}
    torch.testing.assert_close(scorch.rearrange(dense, pattern, **given_sizes), wanted)
    form = draw(formats(dense.dim()))
    if not form.is_dense:
        S = scorch.from_torch(dense, format=form)
        found = S.rearrange(pattern, **given_sizes)
        assert isinstance(found, SparseTensor)
        torch.testing.assert_close(found.to_dense(), wanted)


X = torch.arange(60.0).reshape(2, 6, 5) % 7 * (torch.arange(60).reshape(2, 6, 5) % 3 == 0)
PATTERNS = {
    "b (h w) c -> b h w c": ({"h": 2}, lambda x: x.reshape(2, 2, 3, 5)),
    "b h d -> b (h d)": ({}, lambda x: x.reshape(2, 30)),
    "b ... -> b (...)": ({}, lambda x: x.reshape(2, 30)),
    "... c -> c ...": ({}, lambda x: x.permute(2, 0, 1)),
    "b ... c -> b c ...": ({}, lambda x: x.permute(0, 2, 1)),
    "a b c ... -> ... c b a": ({}, lambda x: x.permute(2, 1, 0)),
    "bhd->bnhd": ({"n": 3}, lambda x: x[:, None].expand(2, 3, 6, 5)),
    "bhd->b(nh)d": ({"n": 3}, lambda x: x.repeat(1, 3, 1)),
    "bhd->b(hn)d": ({"n": 3}, lambda x: x.repeat_interleave(3, 1)),
    "b(hw)c->bhcw": ({"w": 3}, lambda x: x.reshape(2, 2, 3, 5).permute(0, 1, 3, 2)),
    "b h d -> b 1 h d": ({}, lambda x: x.unsqueeze(1)),
    "b h d -> b h d 2": ({}, lambda x: x.unsqueeze(-1).expand(2, 6, 5, 2)),
    "batch height depth -> depth (batch height)": ({}, lambda x: x.permute(2, 0, 1).reshape(5, 12)),
    "a b c -> a b c": ({"a": 2, "c": 5}, lambda x: x),
    "pattern (x y) c -> x y pattern c": ({"x": 2}, lambda x: x.reshape(2, 2, 3, 5).permute(1, 2, 0, 3)),
}


@pytest.mark.parametrize("form", [None, "csf", "coo", "csr", "dsd", "dds"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern, form):
    sizes, reference = PATTERNS[pattern]
    x = X if form is None else scorch.from_torch(X, format=form)
    found = scorch.rearrange(x, pattern, **sizes)
    assert isinstance(found, SparseTensor) == (form is not None)
    torch.testing.assert_close(found.to_dense(), reference(X))


def test_the_mixture_of_experts_of_the_slides():
    x, experts = torch.randn(8, 5), torch.randn(3, 5, 4)
    gates = torch.nn.functional.one_hot(torch.arange(8) % 3, 3).float()
    sent = scorch.rearrange(x, "bd->bnd", n=3)
    y = scorch.einsum("bnd,ndh->bnh", sent, experts)
    y = scorch.einsum("bnh,bn->bh", y, scorch.from_torch(gates))
    torch.testing.assert_close(y.to_dense(), torch.stack([x[b] @ experts[b % 3] for b in range(8)]))


def test_torchs_layouts_and_lists():
    torch.testing.assert_close(scorch.rearrange(X[0].to_sparse_csr(), "a b -> b a").to_dense(), X[0].T)
    found = scorch.rearrange([scorch.from_torch(part, format="csr") for part in X], "n a b -> a (n b)")
    assert isinstance(found, SparseTensor)
    torch.testing.assert_close(found.to_dense(), torch.cat([X[0], X[1]], 1))
    assert scorch.rearrange(torch.tensor(3.0), "-> n", n=2).tolist() == [3.0, 3.0]


def test_huge_tensors_cost_their_entries():
    n = 200_000
    S = scorch.sparse_coo_tensor([[5, n - 1], [7, 0]], [1.0, 2.0], (n, n), format="csr")
    assert S.rearrange("(a b) c -> b c a", a=1000).nnz == 2
    assert S.rearrange("i j -> (i j)").shape == (n * n,)
    assert S.rearrange("ij->ikj", k=100).nnz == 200


ERRORS = {
    ("a b -> a b", ()): (ShapeError, "2 axes on the left, but the tensor has 3"),
    ("a b c -> a b", ()): (NotationError, "axis 'c' is missing on the right.*use scorch.einsum or .sum"),
    ("a ... -> a", ()): (NotationError, r"axis '\.\.\.' is missing"),
    ("a b c -> a b c d", ()): (ShapeError, "axis 'd' is new.*d=..."),
    ("a (b d) c -> a b c d", ()): (ShapeError, "pass all but one: b="),
    ("a (b d) c -> a b c d", (("b", 4),)): (
        ShapeError,
        "dimension 1 has size 6, which is not divided by b=4",
    ),
    ("a b c -> c b a", (("b", 4),)): (ShapeError, "dimension 1 has size 6, which is not b=4"),
    ("1 b c -> b c", ()): (ShapeError, "dimension 0 has size 2, which is not 1"),
    ("a b c -> c b a", (("n", 4),)): (NotationError, "n=4 names an axis that pattern"),
    ("a b c -> c b a n", (("n", -1),)): (ShapeError, "non-negative integers"),
    ("a b a -> a b", ()): (NotationError, "'a' appears twice on the left"),
    ("a b c -> a b c c", ()): (NotationError, "'c' appears twice on the right"),
    ("a b c", ()): (NotationError, "one arrow"),
    ("a (b c -> a b c", ()): (NotationError, "not closed"),
    ("a ((b) c) d -> a b c d", ()): (NotationError, "parentheses must be balanced"),
    ("a, b, c -> a b c", ()): (NotationError, "has ','"),
    ("a b c -> a b c ...", ()): (NotationError, "on the right only"),
    ("(a ...) c -> a c ...", ()): (NotationError, "cannot be split"),
    ("a 6 c -> a c", ()): (NotationError, "the number 6 on the left"),
}


@pytest.mark.parametrize(("pattern", "sizes"), ERRORS)
def test_errors(pattern, sizes):
    kind, message = ERRORS[pattern, sizes]
    for x in (X, scorch.from_torch(X, format="csf")):
        with pytest.raises(kind, match=message):
            scorch.rearrange(x, pattern, **dict(sizes))


def test_errors_of_arguments():
    with pytest.raises(OperandError, match="but got a str"):
        scorch.rearrange("a b", "a b -> b a")
    with pytest.raises(NotationError, match="but got 3"):
        scorch.rearrange(X, 3)
