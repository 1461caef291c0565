"""Without a compiler everything still works, by torch's own operations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scorch
from properties import test_einsum as einsums
from properties import test_evaluate as expressions
from properties import test_torch_calls as chains
from properties.torch_steps import FAMILIES
from scorch._src.backends.base import backend_for
from scorch._src.backends.by_torch.graphs import Options, Rows, Scores
from scorch._src.backends.cpu import toolchain
from scorch._src.engine import executable as prepared_steps
from scorch._src.engine.by_torch import build_levels, relations
from scorch._src.engine.by_torch import run as by_torch
from scorch._src.engine.by_torch.relations import Relation
from scorch._src.engine.executable import Prepared
from scorch._src.formats import Format
from scorch._src.storage.coordinates import entries
from scorch._src.storage.storage import Storage
from scorch.errors import CompilerNotFoundError, ScorchWarning
from validity import check_storage
from without_compiler import without_compiler


def fixed(examples: int) -> settings:
    """The same cases at every run."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


Tensor = Storage | torch.Tensor


def arrays(tensor: Tensor) -> list[torch.Tensor]:
    return [tensor] if isinstance(tensor, torch.Tensor) else [*tensor.pattern.arrays, tensor.values]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """No compiler; whatever torch computes instead of a kernel, the interpreter of its loops agrees."""
    seen: list[str] = []

    def both(prepared: Prepared, sources: Sequence[Tensor]) -> Tensor:
        found = by_torch.run_without_kernel(prepared, sources)
        again = prepared.interpret(sources)
        assert isinstance(found, Storage) == isinstance(again, Storage)
        for a, b in zip(arrays(found), arrays(again), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), prepared.planned.plan.header
            torch.testing.assert_close(
                a, b, equal_nan=True, rtol=2e-2 if a.dtype.itemsize == 2 else 1e-4, atol=1e-5
            )
        seen.append(prepared.assembly)
        return found

    monkeypatch.setattr(prepared_steps, "run_without_kernel", both)
    with without_compiler():
        yield seen


def test_any_einsum(compared: list[str], cases: int) -> None:
    @fixed(max(12, cases // 3))
    @given(einsums.cases())
    def run(case: einsums.Case) -> None:
        operands = [drawn.given for drawn in case.operands]
        for _ in range(2):
            einsums.check(case, scorch.einsum(case.equation, *operands, format=case.requested))

    run()
    assert {"dense", "rows", "list"} <= set(compared)


def test_any_expression(compared: list[str], cases: int) -> None:
    @fixed(cases // 3)
    @given(expressions.cases())
    def run(case: expressions.Case) -> None:
        expressions.run_case(case)

    run()
    assert len(compared) > cases // 3


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_chains_of_torch_functions(family: Any, cases: int) -> None:
    @fixed(max(1, cases // 40))
    @given(st.data())
    def run(data: st.DataObject) -> None:
        chains.run_chain(data, family)

    with without_compiler():
        run()


@pytest.mark.parametrize("access", ["X[i,i,i]", "X[i,i,j]", "X[i,i,j,j]", "X[j,i,i,i]", "X[i,j,i,j]"])
def test_indices_that_stand_several_times(access: str, compared: list[str]) -> None:
    X = torch.arange(float(3 ** access.count(",") * 3)).reshape((3,) * (access.count(",") + 1))
    A = scorch.from_torch(torch.tensor([[1.0, 0, 2], [0, 0, 0], [0, 3, 0]]), format="csr")
    found = scorch.evaluate(f"R[i,j] = A[i,j] * {access}", A=A, X=X)
    letters = access[2:-1].replace(",", "")
    expected = torch.einsum(f"ij,{letters}->ij", A.to_dense(), X)
    torch.testing.assert_close(found.to_dense(), expected)
    assert compared


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_operands_of_one_index_are_told_apart(rows: int, compared: list[str]) -> None:
    """Which is joined next is a matter of which it is, not of what is in it."""
    c, A, B = torch.ones(4), torch.ones(rows, 5), torch.ones(rows, 4)
    c[1:] = 0
    stored = [scorch.from_torch(t, format="s" * t.dim()) for t in (c, A[:, :1], B)]
    found = scorch.einsum("k,ij,ik->j", *stored)
    torch.testing.assert_close(found.to_dense(), torch.einsum("k,ij,ik->j", c, A[:, :1], B))
    assert compared


ODD = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e30]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text",
    [
        "R[i,k] = sum(j, A[i,j] * X[j,k])",
        "R[i,j] = A[i,j] * X[i,j] + B[i,j]",
        "R[i,j] = A[i,j] / X[i,j] + B[i,j] * X[i,j]",
        "R[i,j] = where(A[i,j] > 0, X[i,j], B[i,j])",
        "R[i] = max(j, A[i,j] * X[i,j])",
        "R[i,j] = maximum(A[i,j] * X[i,j], B[i,j])",
        "R[i] = prod(j, A[i,j] + B[i,j])",
    ],
)
def test_numbers_that_are_none_stay_where_kernels_have_them(text: str, compared: list[str]) -> None:
    """Zeros that are not stored times infinity are visited where kernels visit them, and nowhere else."""
    draw = torch.Generator().manual_seed(11)
    for form in ("csr", "coo", "csc"):
        A, B, X = (torch.randint(-2, 3, (5, 5), generator=draw).double() for _ in range(3))
        for place, odd in enumerate(ODD):
            X.view(-1)[torch.randint(25, (1,), generator=draw)] = odd
            A.view(-1)[4 * place] = odd
        given = {"A": scorch.from_torch(A, format=form), "B": scorch.from_torch(B, format="csr"), "X": X}
        scorch.evaluate(text, **{name: value for name, value in given.items() if f"{name}[" in text})
    assert compared


def test_places_too_many_for_one_number(compared: list[str]) -> None:
    size = 2**31
    rows, columns = torch.tensor([5, size - 1, 5]), torch.tensor([size - 2, 7, 7])
    A = scorch.from_coordinates([rows, columns], torch.tensor([1.0, 2.0, 3.0]), (size, size), format="coo")
    B = scorch.from_coordinates([columns, rows], torch.tensor([4.0, 5.0, 6.0]), (size, size), format="coo")
    C = scorch.einsum("ij,jk->ik", A, B, format="coo")
    found = {(int(i), int(k)): float(v) for i, k, v in zip(*entries(C.storage)[0], C.values(), strict=True)}
    assert found == {(5, 5): 22.0, (5, size - 1): 15.0, (size - 1, 5): 12.0, (size - 1, size - 1): 10.0}
    total = scorch.evaluate("D[i,j] = A[i,j] + B[i,j]", A=A, B=B, format="coo")
    assert (float(total.sum()), total._nnz()) == (21.0, 6)


def test_large_products_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from scorch._src.engine.by_torch import joined_statement

    draw = torch.Generator().manual_seed(5)
    A = (torch.rand(40, 30, generator=draw) < 0.3).double()
    X = torch.rand(30, 20, generator=draw).double()
    monkeypatch.setattr(joined_statement, "MAX_VALUES_PER_CHUNK", 64)
    with without_compiler():
        S = scorch.from_torch(A, format="csr")
        torch.testing.assert_close(S @ X, A @ X)
        torch.testing.assert_close((S @ S.T).to_dense(), A @ A.T)


# pieces ----------------------------------------------------------------------------------------------------


def drawn_relation(draw: torch.Generator, indices: str, sizes: dict[str, int]) -> Relation:
    count = int(torch.randint(0, 12, (1,), generator=draw))
    columns = [torch.randint(0, sizes[index], (count,), generator=draw) for index in indices]
    return Relation.of(indices, indices, columns, torch.ones(count))


def rows_of(relation: Relation, order: str) -> list[tuple[int, ...]]:
    columns = [relation.columns[index].tolist() for index in order]
    return sorted(zip(*columns, strict=True)) if columns else [()] * relation.count


@pytest.mark.parametrize("most", [2**62, 6])
def test_join_finds_all_pairs(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relations, "_MAX_KEYS", most)
    draw, sizes = torch.Generator().manual_seed(2), {"i": 3, "j": 4, "k": 2}
    for turn in range(120):
        a, b = [("ij", "jk"), ("i", "j"), ("ijk", "ki"), ("ij", "ij"), ("ij", "j")][turn % 5]
        left, right = drawn_relation(draw, a, sizes), drawn_relation(draw, b, sizes)
        order = "".join(dict.fromkeys(a + b))
        expected = []
        for x in rows_of(left, a):
            for y in rows_of(right, b):
                one = dict(zip(a, x, strict=True))
                if all(one.get(index, value) == value for index, value in zip(b, y, strict=True)):
                    expected.append(tuple({**one, **dict(zip(b, y, strict=True))}[index] for index in order))
        assert rows_of(relations.join(left, right, sizes), order) == sorted(expected)
        assert rows_of(relations.union([left, left], a, sizes), a) == sorted(set(rows_of(left, a)))


@pytest.mark.parametrize(
    "letters", ["ds", "ss", "oo", "sd", "dd", "so", "od", "sss", "ooo", "dsd", "soo", "dso"]
)
def test_packed_entries_are_a_sound_tensor(letters: str) -> None:
    draw = torch.Generator().manual_seed(3)
    for turn in range(12):
        dims = len(letters)
        order = torch.randperm(dims, generator=draw).tolist()
        form = Format(letters, order=order)
        shape = tuple(torch.randint(0 if turn % 4 == 0 else 1, 5, (dims,), generator=draw).tolist())
        dense = torch.randint(0, 3, shape, generator=draw).double()
        places = dense.permute(order).nonzero()
        columns = [places[:, order.index(dim)] for dim in range(dims)]
        values = dense[tuple(columns)]
        found = build_levels.pack(form, shape, columns, values, lambda size: None)
        check_storage(found)
        again = torch.zeros_like(dense)
        again[tuple(entries(found)[0])] = entries(found)[1]
        assert torch.equal(again, dense)


# routines --------------------------------------------------------------------------------------------------


def graph(draw: torch.Generator, rows: int, columns: int, index: torch.dtype) -> tuple[torch.Tensor, ...]:
    mask = torch.rand(rows, columns, generator=draw) < 0.4
    mask[rows // 2] = False
    S, T = (scorch.from_torch(m.double(), format="csr").storage.pattern for m in (mask, mask.T.contiguous()))
    numbers = torch.arange(int(mask.sum()))
    dense = torch.zeros(rows, columns, dtype=torch.int64)
    dense[mask] = numbers
    places = dense.T[mask.T]
    return (*(a.to(index) for a in S.arrays), *(a.to(index) for a in T.arrays), places.to(index))


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("counted", [False, True])
def test_routines_over_rows_agree_with_torch(index: torch.dtype, dtype: torch.dtype, counted: bool) -> None:
    draw = torch.Generator().manual_seed(9)
    pos, crd, t_pos, t_crd, places = graph(draw, 7, 9, index)
    heads, width = 3, 5
    counts = torch.randint(1, 4, (crd.numel(),), generator=draw).to(dtype) if counted else None
    t_counts = None if counts is None else counts[places.long()]
    flat = torch.randint(-2, 3, (9, 13), generator=draw).to(dtype)
    x, s, t, e = (
        torch.randn(*shape, generator=draw, dtype=dtype)
        for shape in ((9, heads, width), (9, heads), (7, heads), (crd.numel(), heads))
    )
    grad, shared = (
        torch.randn(7, heads, width, generator=draw, dtype=dtype),
        torch.randn(7, 13, generator=draw).to(dtype),
    )

    def run() -> list[torch.Tensor]:
        routines = backend_for().routines
        found: list[Any] = [*routines.neighbour_max((pos, crd, counts), flat, True)]
        found.append(routines.neighbour_max_backward((t_pos, t_crd, t_counts), flat, found[0], shared))
        for options in (
            Options(0.2),
            Options(0.2, 0.4, 12345),
            Options(0.1, 0.9, -7),
        ):
            for scores in (Scores(s, t), Scores(s, t, e)):
                rows = Rows(pos, crd, counts)
                out, kept = routines.graph_attention(rows, x, scores, options, True)
                each, total = routines.graph_attention_scores_backward(rows, x, scores, options, kept, grad)
                columns = Rows(t_pos, t_crd, t_counts, places)
                dx, of_sources = routines.graph_attention_features_backward(
                    columns, options, kept, each, grad
                )
                assert out.shape == (7, heads, width)
                found += [out, kept, each, total, dx, of_sources]
        return found

    compiled = run()
    with without_compiler():
        by_torch_alone = run()
    for a, b in zip(compiled, by_torch_alone, strict=True):
        torch.testing.assert_close(
            a,
            b,
            rtol=1e-4 if dtype == torch.float32 else 1e-10,
            atol=1e-5 if dtype == torch.float32 else 1e-12,
        )


# what is said ----------------------------------------------------------------------------------------------


def test_one_warning_says_how_to_get_a_compiler() -> None:
    with without_compiler(warned=False), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for form in ("csr", "coo"):
            S = scorch.from_torch(torch.eye(3), format=form)
            assert torch.equal((S @ S + S).to_dense(), 2 * torch.eye(3))
    (message,) = [str(w.message) for w in caught if issubclass(w.category, ScorchWarning)]
    for cure in ("apt install gcc", "pip install ziglang", "SCORCH_CC"):
        assert cure in message


def test_compiler_that_somebody_named_is_still_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with without_compiler():
        monkeypatch.setenv("SCORCH_CC", "no-such-compiler")
        with pytest.raises(CompilerNotFoundError, match="no-such-compiler"):
            scorch.from_torch(torch.eye(3), format="csr")


def test_compiler_installed_meanwhile_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    S = None
    with without_compiler():
        S = scorch.from_torch(torch.eye(4), format="csr")
        before = S @ torch.ones(4)
        assert toolchain._missing is not None
        monkeypatch.setattr(toolchain, "_search", lambda: pytest.fail("looked for again"))
        with pytest.raises(pytest.fail.Exception):
            toolchain.find_toolchain()
    monkeypatch.undo()
    assert torch.equal(S @ torch.ones(4), before)
    assert toolchain.has_compiler()
