"""Expressions and equations of hundreds of tensors are cut into short ones; larger ones are refused."""

from __future__ import annotations

import itertools
import random
import string

import pytest
import torch

import scorch
from scorch._src.notation.cut import MAX_ACCESSES
from scorch._src.notation.indexing import MAX_NAMED_TENSORS, MAX_NESTED_LEVELS, parse
from scorch._src.notation.show import show
from scorch._src.statements.contraction import MAX_CONTRACTED_OPERANDS, MAX_OPERANDS, contractions
from scorch.errors import NotationError, ScorchError
from validity import check_storage, dense_of


def plain(result: torch.Tensor) -> torch.Tensor:
    if isinstance(result, scorch.SparseTensor):
        check_storage(result)
        return dense_of(result)
    return result


def matrices(count: int, draw: random.Random, size: int = 3) -> list[torch.Tensor]:
    """Matrices of small whole numbers, of which products of many are mostly small too."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    choices = torch.tensor([0.0, 0.0, 1.0, -1.0])
    return [choices[torch.randint(0, 4, (size, size), generator=generator)] for _ in range(count)]


def stored(dense: list[torch.Tensor]) -> list[scorch.SparseTensor]:
    return [scorch.from_torch(matrix, format="csr") for matrix in dense]


COUNTS = [MAX_ACCESSES, MAX_ACCESSES + 1, 33, 60, pytest.param(300, marks=pytest.mark.long)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", COUNTS)
def test_sums_of_many_terms(count):
    """Drawn signs, factors and repeated tensors."""
    draw = random.Random(count)
    dense = matrices(count, draw)
    terms, want = [], torch.zeros(3, 3)
    for n, matrix in enumerate(dense):
        factor, sign = draw.choice([1, 1, 2]), draw.choice([1, 1, -1]) if n else 1
        terms.append(
            ("- " if sign < 0 else "+ " if n else "") + ("2 * " if factor == 2 else "") + f"A{n}[i,j]"
        )
        want += sign * factor * matrix
    tensors = {f"A{n}": tensor for n, tensor in enumerate(stored(dense))}
    text = "D[i,j] = " + " ".join(terms)
    assert torch.equal(plain(scorch.evaluate(text, **tensors)), want)
    assert torch.equal(plain(scorch.evaluate(text, format="dense", **tensors)), want)
    assert show(parse(show(parse(text)))) == show(parse(text))


@pytest.mark.parametrize("count", [MAX_ACCESSES + 1, 60])
def test_gradients_of_sums_of_many_terms(count):
    draw = random.Random(count)
    dense = matrices(count, draw)
    tensors = {f"A{n}": tensor.requires_grad_() for n, tensor in enumerate(stored(dense))}
    weight = matrices(1, draw)[0]
    found = scorch.evaluate(
        "D[i,j] = " + " + ".join(f"A{n}[i,j] * W[i,j]" for n in range(count)), W=weight, **tensors
    )
    found.sum().backward()
    for matrix, tensor in zip(dense, tensors.values(), strict=True):
        assert torch.equal(plain(tensor.grad), weight * (matrix != 0))


def test_long_sums_accumulate_and_reduce():
    draw = random.Random(5)
    count = 3 * MAX_ACCESSES
    dense, vector = matrices(count, draw), torch.tensor([1.0, 2.0, 0.0])
    tensors = {f"A{n}": tensor for n, tensor in enumerate(stored(dense))}
    text = "y[i] += " + " + ".join(f"A{n}[i,j] * x[j]" for n in range(count))
    found = scorch.evaluate(text, y=torch.ones(3), x=vector, **tensors)
    assert torch.equal(plain(found), torch.stack(dense).sum(0) @ vector + 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [MAX_OPERANDS, MAX_OPERANDS + 1, 30, 51])
def test_einsum_of_chains(count):
    draw = random.Random(count)
    dense = matrices(count, draw)
    letters = string.ascii_letters[: count + 1]
    equation = ",".join(a + b for a, b in itertools.pairwise(letters)) + f"->{letters[0]}{letters[-1]}"
    want = torch.eye(3)
    for matrix in dense:
        want = want @ matrix
    assert torch.equal(plain(torch.einsum(equation, *stored(dense))), want)
    assert torch.equal(plain(torch.linalg.multi_dot(stored(dense))), want)
    chain = " * ".join(f"A{n}[i{n},i{n + 1}]" for n in range(count))
    tensors = {f"A{n}": tensor for n, tensor in enumerate(stored(dense))}
    assert torch.equal(plain(scorch.evaluate(f"C[i0,i{count}] = {chain}", **tensors)), want)


SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 12))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_einsum_of_many_operands(seed):
    """Drawn equations: repeated and missing indices, sizes of 1, vectors, scalars, formats."""
    draw = random.Random(seed)
    count = draw.choice([MAX_OPERANDS + 1, 12, 20])
    letters = string.ascii_lowercase[: draw.randint(2, 8)]
    sizes = {letter: draw.choice([1, 2, 3]) for letter in letters}
    terms = ["".join(draw.sample(letters, draw.choice([0, 1, 1, 2, 2]))) for _ in range(count - 1)]
    terms += ["".join(draw.choices(letters, k=2))]
    generator = torch.Generator().manual_seed(seed)
    dense, given = [], []
    for term in terms:
        shape = [1 if draw.random() < 0.1 and term.count(index) == 1 else sizes[index] for index in term]
        dense.append(torch.randint(0, 2, shape, generator=generator, dtype=torch.float64))
        is_stored = term and draw.random() < 0.8
        given.append(scorch.from_torch(dense[-1], format="o" * len(term)) if is_stored else dense[-1])
    used = [letter for letter in letters if any(letter in term for term in terms)]
    output = "".join(draw.sample(used, draw.randint(0, len(used))))[:4]
    equation = ",".join(terms) + "->" + output
    want = torch.einsum(equation, *dense)
    assert torch.equal(plain(torch.einsum(equation, *given)), want)


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
def test_einsum_of_elementwise_products_with_gradients(count):
    draw = random.Random(count)
    dense = [matrix.abs() for matrix in matrices(4, draw)]
    leaves = [scorch.from_torch(matrix, format="csr").requires_grad_() for matrix in dense]
    doubles = [matrix.clone().requires_grad_() for matrix in dense]
    equation = ",".join(["ij"] * count) + "->ij"
    found = torch.einsum(equation, *(leaves[n % 4] for n in range(count)))
    want = torch.einsum(equation, *(doubles[n % 4] for n in range(count)))
    assert torch.equal(plain(found.detach()), want)
    found.sum().backward()
    want.sum().backward()
    for leaf, double in zip(leaves, doubles, strict=True):
        assert torch.allclose(plain(leaf.grad), double.grad * (double != 0))


@pytest.mark.parametrize("format", ["s", None])
def test_sums_of_many_numbers(format):
    """Parts without an index cannot be cut off."""
    dense = torch.tensor([0.0, 2.0, 0.0, -3.0, 1.0], dtype=torch.float64)
    x = (dense if format is None else scorch.from_torch(dense, format=format)).requires_grad_()
    terms = [f"sum(i, A[i] * A[i] * {n}) + max(i, A[i])" for n in range(1, 6)]
    assert 3 * len(terms) > MAX_ACCESSES
    y = scorch.evaluate(f"y = {' + '.join(terms)}", A=x)
    torch.testing.assert_close(y, 15 * dense.square().sum() + 5 * dense.max())
    y.backward()
    wanted = 30 * dense
    wanted[dense.argmax()] += 5
    torch.testing.assert_close(x.grad.to_dense() if format else x.grad, wanted)


def test_explain_of_what_is_cut():
    draw = random.Random(1)
    dense = matrices(40, draw)
    found = scorch.explain(",".join(["ij"] * 40) + "->ij", *stored(dense))
    assert len(found.steps) > 1 and "product 40 of 0, 1, 2" in found.steps[0].purpose
    text = "D[i,j] = " + " + ".join(f"A{n}[i,j]" for n in range(40))
    found = scorch.explain(text, **{f"A{n}": tensor for n, tensor in enumerate(stored(dense))})
    assert found.steps[-1].result.name == "D" and "C1[i,j] = A0[i,j] +" in str(found)


def test_every_operand_is_contracted_once():
    """For drawn equations, each operand and each result but the last is taken by just one product."""
    for seed in range(100):
        draw = random.Random(seed)
        terms = [tuple(draw.sample("abcdefgh", draw.randint(0, 3))) for _ in range(draw.randint(2, 60))]
        used = sorted({index for term in terms for index in term})
        output = tuple(draw.sample(used, draw.randint(0, len(used))))
        parts = contractions(terms, output, {index: draw.randint(0, 9) for index in used})
        taken = [number for part in parts for number in part.takes]
        assert sorted(taken) == list(range(len(terms) + len(parts) - 1))
        assert all(len(part.takes) <= MAX_OPERANDS for part in parts)


def test_what_is_too_large_is_refused_with_the_number():
    tensors = {f"A{n}": torch.ones(2) for n in range(MAX_NAMED_TENSORS + 1)}
    tensors["A0"] = scorch.from_torch(torch.ones(2), format="s")
    with pytest.raises(NotationError, match=f"names 1,025 tensors, but at most {MAX_NAMED_TENSORS:,}"):
        scorch.evaluate("y[i] = " + " + ".join(f"{name}[i]" for name in tensors), **tensors)
    for text in ("-" * 5000 + "A0[i]", "(" * 5000 + "A0[i]" + ")" * 5000, " / ".join(["A0[i]"] * 500)):
        with pytest.raises(NotationError, match=f"{MAX_NESTED_LEVELS}"):
            scorch.evaluate("y[i] = " + text, A0=tensors["A0"])
    many = MAX_CONTRACTED_OPERANDS + 1
    with pytest.raises(
        NotationError, match=f"einsum got 1,025 operands, but at most {MAX_CONTRACTED_OPERANDS:,}"
    ):
        scorch.einsum(",".join("i" * many) + "->i", *[tensors["A0"]] * many)


@pytest.mark.parametrize(
    "dims", [11, *(pytest.param(n, marks=pytest.mark.cpu("torch's kernels take 25")) for n in (33, 64))]
)
def test_tensors_of_many_dimensions(dims):
    """As many as torch has: sums over all or some dimensions, permutations, arithmetic."""
    draw = random.Random(dims)
    dense = torch.zeros([2] * 5 + [1] * (dims - 5))
    for _ in range(6):
        dense[tuple(draw.randrange(size) for size in dense.shape)] = draw.randint(-3, 3)
    on_host = dense.cpu()  # on a GPU torch finds no places of so many dimensions
    places, values = on_host.nonzero().T.to(dense.device), on_host[on_host != 0].to(dense.device)
    tensor = scorch.sparse_coo_tensor(places, values, dense.shape)
    some = draw.sample(range(dims), 3)
    assert torch.equal(plain(tensor.sum()), dense.sum())
    assert torch.equal(plain(tensor.amax(some)), dense.amax(some))
    assert torch.equal(plain(tensor + tensor), dense + dense)
    assert torch.equal(plain(tensor.mean(some, keepdim=True)), dense.mean(some, keepdim=True))
    with pytest.raises(ScorchError, match=r"8 batch dimensions"):
        tensor @ torch.ones(1, 2)
