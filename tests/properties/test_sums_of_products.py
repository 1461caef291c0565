"""Sums of products of tensors of different rank, in any formats, equal dense torch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scorch
from properties.drawing import Drawn, formats, tensors, to_dense, usual_formats
from scorch.settings import OPTIMIZATIONS

RESULTS = ["i", "ij", "ij", "ij", "ijk"]


@dataclass
class Case:
    text: str
    result: str
    terms: list[list[tuple[str, Drawn]]]  # the indices of each factor of each term
    format: scorch.Format | None

    def __repr__(self) -> str:
        operands = [repr(drawn) for term in self.terms for _, drawn in term]
        return "\n".join([self.text, *operands, f"to {self.format}"])


@st.composite
def cases(draw) -> Case:
    result = draw(st.sampled_from(RESULTS))
    sizes = {letter: draw(st.sampled_from([1, 2, 4, 7])) for letter in "ijk"}
    common = draw(usual_formats(len(result)))  # most tensors of a sum have the same
    terms: list[list[tuple[str, Drawn]]] = []
    for _ in range(draw(st.integers(2, 3))):
        kinds = [result, *draw(st.lists(st.sampled_from([result, *result, result[:1]]), max_size=2))]
        term = []
        for indices in draw(st.permutations(kinds)):
            shape = tuple(sizes[letter] for letter in indices)
            any_form = st.one_of(usual_formats(len(shape)), formats(len(shape)))
            form = common if indices == result and draw(st.integers(0, 2)) else draw(any_form)
            term.append((indices, draw(tensors(shape, torch.float64, form))))
        terms.append(term)
    names, written = iter("ABDEFGHLM"), []
    for term in terms:
        written.append(" * ".join(f"{next(names)}[{','.join(indices)}]" for indices, _ in term))
    sign = draw(st.sampled_from([" + ", " - "]))
    text = f"C[{','.join(result)}] = {sign.join(written)}"
    return Case(text, result, terms, draw(st.one_of(st.none(), formats(len(result)))))


def check(case: Case) -> None:
    operands = [drawn for term in case.terms for _, drawn in term]
    named = dict(zip("ABDEFGHLM", operands, strict=False))
    given_ = {name: drawn.given for name, drawn in named.items()}
    found = scorch.evaluate(case.text, **given_, format=case.format)
    truth: torch.Tensor | None = None
    for term in case.terms:
        equation = ",".join(indices for indices, _ in term) + "->" + case.result
        value = torch.einsum(equation, *(drawn.dense for _, drawn in term))
        sign = -1 if " - " in case.text else 1
        truth = value if truth is None else truth + sign * value
    torch.testing.assert_close(to_dense(found), truth)


def test_sums_of_products_equal_dense(cases_per_worker: int) -> None:
    @settings(max_examples=2 * cases_per_worker, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def run(case: Case) -> None:
        check(case)

    run()


def test_interpreter_agrees_on_sums_of_products(cases_per_worker: int) -> None:
    @settings(
        max_examples=max(10, cases_per_worker // 2), deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def run(case: Case) -> None:
        with scorch.settings(debug=True):
            check(case)

    run()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*OPTIMIZATIONS, "all"])
def test_sums_of_products_without_an_optimisation(name: str, cases_per_worker: int) -> None:
    @settings(
        max_examples=max(5, cases_per_worker // 6), deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def run(case: Case) -> None:
        with scorch.settings(disable=name):
            check(case)

    run()
