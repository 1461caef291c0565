"""Operands of other shapes, in both orders and any format: where torch.sparse refuses or answers wrongly."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch import SparseTensor

FORMATS = ["csr", "csc", "coo", "dcsr", "dcsc", "bsr(2,2)", "sd", "ds"]
FUNCTIONS = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "maximum": torch.maximum,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "pow": torch.pow,
}
SHAPES = [  # of the sparse operand and the other
    ((2, 1), (1, 2)),
    ((1, 2), (2, 1)),
    ((4, 6), (6,)),
    ((4, 6), (1, 6)),
    ((4, 6), (4, 1)),
    ((4, 6), (1, 1)),
    ((4, 6), (1,)),
    ((4, 6), ()),
    ((4, 1), (4, 6)),
    ((1, 6), (4, 6)),
    ((1, 1), (4, 6)),
    ((4, 6), (3, 4, 6)),
    ((4, 6), (3, 1, 1)),
    ((4, 1), (3, 1, 6)),
]


def values(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randint(-3, 4, shape, generator=generator).double()
    return torch.where(torch.rand(shape, generator=generator) < 0.6, dense, 0.0)  # no -0, which is not stored


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    plain = found.to_dense() if isinstance(found, SparseTensor) else found
    torch.testing.assert_close(plain, wanted, equal_nan=True, check_stride=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sparse_and_dense(name, form):
    for own, other in SHAPES:
        a, b = values(own, 1), values(other, 2)
        S = scorch.from_torch(a, format=form)
        same(FUNCTIONS[name](S, b), FUNCTIONS[name](a, b))
        same(FUNCTIONS[name](b, S), FUNCTIONS[name](b, a))
        without_zeros = torch.where(b == 0, 2.0, b)
        same(FUNCTIONS[name](S, without_zeros), FUNCTIONS[name](a, without_zeros))


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_sparse(name, form):
    for own, other in SHAPES:
        if not other:
            continue
        a, b = values(own, 1), values(other, 2)
        S, T = scorch.from_torch(a, format=form), scorch.from_torch(b, format="coo")
        same(FUNCTIONS[name](S, T), FUNCTIONS[name](a, b))
        same(FUNCTIONS[name](T, S), FUNCTIONS[name](b, a))


@pytest.mark.parametrize("form", FORMATS)
def test_products_and_quotients_stay_sparse(form):
    S = scorch.from_torch(values((4, 6), 3), format=form)
    for found in (
        S * torch.ones(6),
        torch.ones(4, 1) * S,
        S / torch.full((4, 1), 2.0),
        S * torch.ones(3, 1, 6),
    ):
        assert isinstance(found, SparseTensor)
