"""Any einsum over any formats equals dense torch, run by the compiler and by the interpreter."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scorch
from properties.drawing import DTYPES, Drawn, formats, sizes_for, tensors, to_dense
from scorch import Format, SparseTensor
from validity import check_storage

WORKERS = 8


@dataclass
class Case:
    equation: str
    operands: list[Drawn]
    requested: Format | None

    def __repr__(self) -> str:
        lines = [f"{self.equation} -> {self.requested!r}", *map(repr, self.operands)]
        return "\n".join(lines)


@st.composite
def cases(draw) -> Case:
    number = draw(st.integers(1, 4))
    letters = "ijklm"[: draw(st.integers(1, 5))]
    sizes = sizes_for(draw, letters)
    terms = []
    for _ in range(number):
        length = draw(st.integers(0, min(4, len(letters) + 1)))
        terms.append("".join(draw(st.sampled_from(letters)) for _ in range(length)))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations([i for i in used if draw(st.booleans())])))
    dtype = draw(st.sampled_from(DTYPES))
    mixed = draw(st.integers(0, 5)) == 0
    drawn = []
    for term in terms:
        own = draw(st.sampled_from(DTYPES)) if mixed else dtype
        drawn.append(draw(tensors(tuple(sizes[i] for i in term), own)))
    requested = draw(st.none() | formats(len(output)))
    return Case(f"{','.join(terms)}->{output}", drawn, requested)


def expected(case: Case) -> torch.Tensor:
    """By dense torch, in float64 (or complex128, or exact integers), in the dtype the result should have."""
    dtypes = [drawn.dense.dtype for drawn in case.operands]
    result = functools.reduce(torch.promote_types, dtypes)  # scalars count as tensors, as in torch.einsum
    exact = torch.complex128 if result.is_complex else torch.float64
    if not result.is_floating_point and not result.is_complex:
        exact = torch.int64
    terms, output = case.equation.split("->")
    if len(dtypes) == 1 and exact == torch.int64 and set(terms) - set(output) - {","}:
        result = torch.int64  # as torch.sum
    value = torch.einsum(case.equation, *(drawn.dense.to(exact) for drawn in case.operands))
    return (value != 0) if result == torch.bool else value.to(result)


def check(case: Case, result: torch.Tensor) -> None:
    truth = expected(case)
    if isinstance(result, SparseTensor):
        check_storage(result.storage)
    if case.requested is not None:
        assert isinstance(result, SparseTensor) != case.requested.is_dense
        assert case.requested.is_dense or result.format == case.requested
    torch.testing.assert_close(to_dense(result), truth)


@pytest.mark.parametrize("worker", range(WORKERS))
def test_einsum_equals_dense(worker: int, cases_per_worker: int) -> None:
    @settings(
        max_examples=cases_per_worker, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )
    @given(cases())
    def run(case: Case) -> None:
        operands = [drawn.given for drawn in case.operands]
        copies = [to_dense(operand).clone() for operand in operands]
        for _ in range(2):  # the second call takes the short way
            check(case, scorch.einsum(case.equation, *operands, format=case.requested))
        for operand, copy in zip(operands, copies, strict=True):
            assert torch.equal(to_dense(operand), copy), "an operand was changed"

    run()


def test_interpreter_agrees(cases_per_worker: int, monkeypatch: pytest.MonkeyPatch) -> None:
    @settings(
        max_examples=max(20, cases_per_worker // 4), deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def run(case: Case) -> None:
        operands = [drawn.given for drawn in case.operands]
        with scorch.settings(debug=True):
            check(case, scorch.einsum(case.equation, *operands, format=case.requested))

    assert "SCORCH_DEBUG" not in os.environ
    run()


@pytest.fixture
def always_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels share their outermost loop however small the work is."""
    from scorch._src.backends.cpu import executable
    from scorch._src.engine import execute
    from scorch._src.statements import call_cache

    def forget() -> None:
        for memory in (execute._plans, call_cache._known, call_cache._recent):
            memory.clear()

    monkeypatch.setattr(executable, "SERIAL_WORK", -1)
    forget()
    yield
    forget()


def test_threads_agree(cases_per_worker: int, always_threads: None) -> None:
    @settings(max_examples=2 * cases_per_worker, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def run(case: Case) -> None:
        operands = [drawn.given for drawn in case.operands]
        with scorch.settings(threads=2):
            for _ in range(2):  # the second call is a repeated one
                check(case, scorch.einsum(case.equation, *operands, format=case.requested))

    run()
