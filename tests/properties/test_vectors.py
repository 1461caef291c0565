"""Products with wide dense operands, whose inner loops run in vector registers, equal dense torch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scorch
from properties.drawing import Drawn, formats, random_dense, tensors, to_dense, usual_formats
from scorch.settings import OPTIMIZATIONS

# The first operand is sparse; r is a wide index.
EQUATIONS = [
    "ij,jr->ir",
    "ij,jr->ri",
    "ij,ir,jr->ij",
    "ij,ir,rj->ij",
    "ijk,jr,kr->ir",
    "ijk,kr->ijr",
    "ij,i,jr->ir",
    "ij,jr,r->ir",
    "ij,jr->r",
    "ir,jr->ij",
    "ij,jr->ijr",
    "ijk,jkr->ir",
    "ij,jr,kr->ik",
    "ijr,kr->ijk",
    "ijr,r->ij",
]
DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.float16, torch.complex64]


@dataclass
class Case:
    equation: str
    operands: list[Drawn]
    format: scorch.Format | None

    def __repr__(self) -> str:
        return "\n".join([self.equation, *map(repr, self.operands), f"to {self.format}"])


@st.composite
def cases(draw) -> Case:
    equation = draw(st.sampled_from(EQUATIONS))
    sizes = {letter: draw(st.sampled_from([1, 2, 3, 6, 9])) for letter in "ijk"}
    sizes["r"] = draw(st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 100, 128, 131, 257])))
    dtype = draw(st.sampled_from(DTYPES))
    drawn = []
    for place, term in enumerate(equation.split("->")[0].split(",")):
        shape = tuple(sizes[letter] for letter in term)
        if place == 0:
            form = draw(st.one_of(usual_formats(len(shape)), formats(len(shape))))
            drawn.append(draw(tensors(shape, dtype, form)))
        else:
            dense = random_dense(shape, dtype, 1.0, draw(st.integers(0, 2**16)))
            drawn.append(Drawn(dense, dense, None))
    asked = draw(st.one_of(st.none(), st.none(), formats(len(equation.split("->")[1]))))
    return Case(equation, drawn, asked)


def check(case: Case) -> None:
    found = scorch.einsum(case.equation, *(drawn.given for drawn in case.operands), format=case.format)
    dtype = case.operands[0].dense.dtype
    exact = (
        torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    )
    truth = torch.einsum(case.equation, *(drawn.dense.to(exact) for drawn in case.operands))
    torch.testing.assert_close(to_dense(found), truth.to(dtype))


def test_wide_products_equal_dense(cases_per_worker: int) -> None:
    @settings(max_examples=4 * cases_per_worker, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def run(case: Case) -> None:
        check(case)

    run()


def test_interpreter_agrees_on_wide_products(cases_per_worker: int) -> None:
    @settings(
        max_examples=max(20, cases_per_worker // 2), deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def run(case: Case) -> None:
        with scorch.settings(debug=True):
            check(case)

    run()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*OPTIMIZATIONS, "all"])
def test_wide_products_without_an_optimisation(name: str, cases_per_worker: int) -> None:
    @settings(
        max_examples=max(10, cases_per_worker // 4), deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases())
    def run(case: Case) -> None:
        with scorch.settings(disable=name):
            check(case)

    run()
