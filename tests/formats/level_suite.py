"""What every kind of level must do, as operand and as result: a class to derive the tests of a level from."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scorch
from scorch._src.formats import Format, Level
from scorch._src.storage.storage import Pattern
from without_compiler import without_compiler

EQUATIONS = [
    ("ij,j->i", "Ax"),
    ("ij,i->j", "Ax"),
    ("ij,jk->ik", "AX"),
    ("ij,jk->ik", "AS"),
    ("ij,jk->ik", "SA"),
    ("ij,jk->ik", "AA"),
    ("ij,ij->ij", "AS"),
    ("ij,ij->ij", "AC"),
    ("ij,ij->ij", "AA"),
    ("ij,ji->i", "AS"),
    ("ij,kj->ik", "AA"),
    ("ij,i->ij", "Ax"),
    ("ij,j->i", "AV"),
    ("ij->ji", "A"),
    ("ii->i", "A"),
    ("ij->", "A"),
]
SOLID = ["ijk,k->ij", "ijk,jl->ikl", "ijk->kj", "ijk,ijl->kl", "ijk->"]
STATEMENTS = ["C[i,j] = A[i,j] + B[i,j]", "C[i,j] = A[i,j] * B[i,j]", "C[i,j] = A[i,j] - 2 * B[j,i]"]
FUNCTIONS = {
    "arithmetic": lambda A: 2 * A + torch.relu(A - 0.5),
    "sum": lambda A: A.sum(1),
    "mean": lambda A: A.mean(0),
    "largest": lambda A: A.amax(1),
    "slice": lambda A: A[3:9, 2:8],
    "row": lambda A: A[4],
    "rows": lambda A: A[[4, 1]],
    "product": lambda A: A.T @ A,
    "joined": lambda A: torch.cat([A, A]),
    "joined beside": lambda A: torch.cat([A, A], 1),
    "stacked": lambda A: torch.stack([A, A]),
    "sum of two": lambda A: A + A.T,
    "softmax": lambda A: torch.softmax(A, 1),
    "reshaped": lambda A: A.reshape(6, 24),
    "triangle": lambda A: torch.tril(A),
    "flipped": lambda A: A.flip(1),
    "where": lambda A: torch.where(A > 2, A, A * 0),
}
OTHERS = ["csr", "csc", "coo", "dcsr", "sd", "do", "bsr(3,2)", "bitmap", "banded", "dense"]
FEWER = ["csc", "coo", "dense"]
SIZE = 12


def matrices(size: int = SIZE) -> st.SearchStrategy[torch.Tensor]:
    """Square matrices with a run of entries in each row, single ones beside them, or none."""
    ends = st.tuples(st.integers(0, size), st.integers(0, size))
    return st.builds(_matrix, st.lists(ends, max_size=size), st.lists(ends, max_size=4))


def _matrix(runs: list[tuple[int, int]], places: list[tuple[int, int]]) -> torch.Tensor:
    found = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for row, (begin, end) in enumerate(runs):
        found[row, begin:end] = torch.arange(1, max(end - begin, 0) + 1) + row
    for row, column in places:
        found[row % SIZE, column % SIZE] = 0.5
    return found


def few(examples: int) -> settings:
    """So many cases, of tests that several classes inherit."""
    inherited = [HealthCheck.differing_executors]
    return settings(max_examples=examples, deadline=None, suppress_health_check=inherited)


def drawn(*shape: int, density: float = 0.3, seed: int = 0) -> torch.Tensor:
    numbers = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.where(numbers < density, numbers + 0.5, torch.zeros(()))


def plain(tensor: Any) -> Any:
    return tensor.to_dense() if isinstance(tensor, scorch.SparseTensor) else tensor


def forms_of(level: Level) -> dict[str, Format]:
    """Formats of matrices that have ``level`` in every place."""
    dense, compressed, coordinate = (Format(letter).levels[0] for letter in "dso")
    return {
        "below dense": Format([dense, level]),
        "by columns": Format([dense, level], order=(1, 0)),
        "below compressed": Format([compressed, level]),
        "below coordinates": Format([coordinate, level]),
        "above dense": Format([level, dense]),
        "above compressed": Format([level, compressed]),
        "above coordinates": Format([level, coordinate]),
        "twice": Format([level, level]),
    }


PLACES = list(forms_of(Format("d").levels[0]))


class LevelSuite:
    """Tests of ``level``; derive a class from it and set the level."""

    level: Level

    @property
    def rows(self) -> Format:
        return Format([*Format("d").levels, self.level])

    def operands(self, dense: torch.Tensor, form: Format) -> dict[str, torch.Tensor]:
        S = drawn(SIZE, SIZE)
        return {
            "A": scorch.from_torch(dense, format=form),
            "S": scorch.from_torch(S, format="csr"),
            "C": scorch.from_torch(S, format="coo"),
            "V": scorch.from_torch(S[0], format="coo"),
            "x": S.sum(0),
            "X": drawn(SIZE, 8, density=1.0, seed=1),
        }

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("place", PLACES)
    @given(dense=matrices())
    @few(2)
    def test_conversions_lose_nothing(self, place, dense):
        form = forms_of(self.level)[place]
        A = scorch.from_torch(dense, format=form)
        assert A.format == form and torch.equal(A.to_dense(), dense)
        for other in OTHERS if place in ("below dense", "twice") else FEWER:
            there = A.to_format(other)
            assert torch.equal(plain(there), dense)
            if other != "dense":
                back = there.to_format(form)
                assert back.format == form and torch.equal(back.to_dense(), dense)

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("place", ["below dense", "below compressed", "twice"])
    @pytest.mark.parametrize(("equation", "names"), EQUATIONS)
    @given(dense=matrices())
    @few(2)
    def test_einsum_reads_and_makes_it(self, equation, names, place, dense):
        tensors = self.operands(dense, forms_of(self.level)[place])
        operands = [tensors[name] for name in names]
        wanted = torch.einsum(equation, *map(plain, operands))
        torch.testing.assert_close(plain(scorch.einsum(equation, *operands)), wanted)
        if wanted.dim() != 2:
            return
        form = forms_of(self.level)[place]
        made = scorch.einsum(equation, *operands, format=form)
        assert made.format == form
        torch.testing.assert_close(made.to_dense(), wanted)

    @pytest.mark.parametrize(("equation", "names"), EQUATIONS)
    def test_the_interpreter_agrees(self, equation, names):
        form = forms_of(self.level)["twice"]
        tensors = self.operands(drawn(SIZE, SIZE, seed=2), form)
        operands = [tensors[name] for name in names]
        wanted = torch.einsum(equation, *map(plain, operands))
        with scorch.settings(debug=True):  # which checks every access
            found = scorch.einsum(equation, *operands, format=form if wanted.dim() == 2 else None)
        torch.testing.assert_close(plain(found), wanted)

    @pytest.mark.parametrize("statement", STATEMENTS)
    @given(a=matrices(), b=matrices())
    @few(5)
    def test_statements_keep_the_format(self, statement, a, b):
        A, B = (scorch.from_torch(dense, format=self.rows) for dense in (a, b))
        found = scorch.evaluate(statement, A=A, B=B)
        wanted = scorch.evaluate(statement, A=a, B=b)
        torch.testing.assert_close(plain(found), plain(wanted))
        if "B[j,i]" not in statement:
            assert found.format == self.rows

    @pytest.mark.parametrize("equation", SOLID)
    @pytest.mark.parametrize("place", range(3))
    def test_tensors_of_order_three(self, equation, place):
        levels = [*Format("sds").levels]
        levels[place] = self.level
        dense = drawn(5, 6, 7)
        A = scorch.from_torch(dense, format=Format(levels))
        sizes = {"i": 5, "j": 6, "k": 7, "l": 4}
        first, _, _ = equation.partition("->")
        others = [drawn(*(sizes[i] for i in term), seed=3) for term in first.split(",")[1:]]
        wanted = torch.einsum(equation, dense, *others)
        assert torch.equal(A.to_dense(), dense)
        torch.testing.assert_close(plain(scorch.einsum(equation, A, *others)), wanted)
        if wanted.dim() == 3:
            made = scorch.einsum(equation, A, *others, format=Format(levels))
            assert made.format == Format(levels)
            torch.testing.assert_close(made.to_dense(), wanted)

    @pytest.mark.parametrize("name", FUNCTIONS)
    @given(dense=matrices())
    @few(4)
    def test_functions_of_torch_take_it(self, name, dense):
        A = scorch.from_torch(dense, format=self.rows)
        torch.testing.assert_close(plain(FUNCTIONS[name](A)), FUNCTIONS[name](dense))

    @given(dense=matrices())
    @few(5)
    def test_vectors(self, dense):
        vector = dense[0]
        v = scorch.from_torch(vector, format=Format([self.level]))
        assert torch.equal(v.to_dense(), vector)
        torch.testing.assert_close(plain(torch.cat([v[6:], v[2:5]])), torch.cat([vector[6:], vector[2:5]]))
        torch.testing.assert_close(plain(torch.roll(v, 3)), torch.roll(vector, 3))
        torch.testing.assert_close(plain(v + v), 2 * vector)
        torch.testing.assert_close(v @ vector, vector @ vector)

    def test_gradients_live_on_its_pattern(self):
        dense = drawn(6, 5, seed=4)
        A = scorch.from_torch(dense, format=self.rows).requires_grad_()
        X = drawn(5, 2, density=1.0, seed=5).requires_grad_()
        (A @ X).square().sum().backward()
        D, Y = dense.clone().requires_grad_(), X.detach().clone().requires_grad_()
        (D @ Y).square().sum().backward()
        stored = plain(scorch.SparseTensor(type(A.storage)(A.storage.pattern, A.storage.values * 0 + 1)))
        assert A.grad.format == self.rows
        torch.testing.assert_close(A.grad.to_dense(), D.grad * stored)
        torch.testing.assert_close(X.grad, Y.grad)

    def test_gradients_pass_through_results(self):
        dense, other = drawn(6, 5, seed=6), drawn(5, 4, seed=7)
        A = scorch.from_torch(dense, format="csr").requires_grad_()
        B = other.clone().requires_grad_()
        made = scorch.einsum("ij,jk->ik", A, B, format=self.rows)
        scorch.einsum("ik,ik->", made, made).backward()
        D, E = dense.clone().requires_grad_(), other.clone().requires_grad_()
        torch.einsum("ij,jk->ik", D, E).square().sum().backward()
        torch.testing.assert_close(A.grad.to_dense(), torch.where(dense != 0, D.grad, 0))
        torch.testing.assert_close(B.grad, E.grad)
        C = scorch.from_torch(dense, format="coo").requires_grad_()
        (C.to_format(self.rows) * 3).sum().backward()
        torch.testing.assert_close(C.grad.to_dense(), 3 * (dense != 0).double())

    @pytest.mark.parametrize("place", PLACES)
    def test_it_is_saved(self, place, tmp_path):
        dense = drawn(6, 5, seed=8)
        A = scorch.from_torch(dense, format=forms_of(self.level)[place])
        scorch.save(tmp_path / "A.npz", A)
        memory = io.BytesIO()
        torch.save(A, memory)
        memory.seek(0)
        again = [
            scorch.load(tmp_path / "A.npz"),
            pickle.loads(pickle.dumps(A)),
            torch.load(memory, weights_only=True),
            copy.deepcopy(A),
        ]
        for found in again:
            assert found.format == A.format and torch.equal(found.to_dense(), dense)
            torch.testing.assert_close(plain(found @ torch.eye(5, dtype=torch.float64)), dense)

    def test_it_is_captured(self):
        A = scorch.from_torch(drawn(6, 5, seed=9), format=self.rows)
        B = scorch.from_torch(drawn(6, 5, seed=10), format=self.rows)
        x, form = drawn(5, 3, density=1.0, seed=11), self.rows.name

        def step(A: Any, B: Any, x: Any) -> Any:
            total = torch.relu(A + B)
            return total @ x, total, scorch.einsum("ij,kj->ik", A, B, format=form)

        wanted = step(A, B, x)
        found = torch.compile(step, fullgraph=True, backend="aot_eager")(A, B, x)
        assert found[1].format == found[2].format == self.rows
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(plain(one), plain(other))

    def test_a_captured_function_learns(self):
        dense, x = drawn(6, 5, seed=12), drawn(5, 3, density=1.0, seed=13)

        def loss(A: Any, x: Any) -> Any:
            return ((A * 2) @ x).square().sum()

        grads = []
        for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
            A = scorch.from_torch(dense, format=self.rows).requires_grad_()
            function(A, x).backward()
            grads.append(A.grad.to_dense())
        torch.testing.assert_close(grads[0], grads[1])

    @pytest.mark.parametrize("place", ["below dense", "twice", "above dense"])
    def test_no_compiler_is_needed(self, place):
        form = forms_of(self.level)[place]
        a, b = drawn(6, 5, seed=14), drawn(5, 4, seed=15)
        with without_compiler():
            A, B = (scorch.from_torch(dense, format=form) for dense in (a, b))
            assert A.format == form and torch.equal(A.to_dense(), a)
            found = scorch.einsum("ij,jk->ik", A, B, format=form)
            assert found.format == form
            torch.testing.assert_close(found.to_dense(), a @ b)
            torch.testing.assert_close((A + A).to_dense(), 2 * a)

    @pytest.mark.parametrize("place", PLACES)
    def test_kernels_read_what_it_keeps(self, place):
        A = scorch.from_torch(drawn(6, 5, seed=16), format=forms_of(self.level)[place])
        pattern = A.storage.pattern
        assert "crd" not in vars(pattern)  # coordinates are made when they are asked for
        kept = pattern.bytes()
        again = Pattern(pattern.format, pattern.shape, pattern.pos, pattern.crd, pattern.counts)
        for one, other in zip(pattern.arrays, again.arrays, strict=True):
            assert torch.equal(one, other)
        assert pattern.bytes() >= kept

    def test_tensors_without_entries(self):
        for shape in ((0, 3), (3, 0), (4, 5)):
            A = scorch.zeros(*shape, format=self.rows, dtype=torch.float64)
            assert A.shape == shape and torch.equal(A.to_dense(), torch.zeros(shape, dtype=torch.float64))
            x = torch.ones(shape[1], 2, dtype=torch.float64)
            assert torch.equal(plain(A @ x), torch.zeros(shape[0], 2, dtype=torch.float64))
            assert plain(A + A).shape == shape
