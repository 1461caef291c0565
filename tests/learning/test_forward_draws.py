"""Forward derivatives of every call are those of dense tensors: ``torch.func.jvp`` and dual numbers.

A direction is stored where the tensor is, or at other places. ``torch.func.jvp`` counts all of it,
``make_dual`` what lies at the places of the tensor.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import jvp
from torch.utils._pytree import tree_leaves

import scorch
from ops import calls_of_torch
from scorch import SparseTensor
from scorch.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore")

DTYPE = torch.float64
FAMILIES = ("ELEMENTWISE", "WITH_DENSE", "REDUCTIONS", "SHAPES", "INDEXING")
CALLS = {
    f"{family} {name}": call for family in FAMILIES for name, call in getattr(calls_of_torch, family).items()
}
CALLS |= {
    "SHAPES div": lambda x: torch.div(x, x * x + 1),
    "SHAPES where": lambda x: torch.where(x > 0.5, x, 2 * x),
    "SHAPES sorted": lambda x: torch.sort(x, dim=0).values,
    "SHAPES kron of itself": lambda x: torch.kron(x[:2], x[:, :2]),
}
FORMATS = ["csr", "csc", "coo", "dcsr"]


@pytest.fixture(autouse=True)
def _doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense operands of the calls in the dtype of the tensor."""
    for name in ("ROW", "COLUMN", "WEIGHT", "OTHER"):
        monkeypatch.setattr(calls_of_torch, name, getattr(calls_of_torch, name).to(DTYPE))
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    yield
    torch.set_default_dtype(before)


def drawn(seed: int) -> tuple[SparseTensor, SparseTensor]:
    """A tensor without ties, and a direction on its pattern."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    D = torch.randn(4, 6, dtype=DTYPE, generator=generator)
    D = D * (torch.rand(4, 6, generator=generator) < rng.choice([0.2, 0.5, 0.9]))
    form = rng.choice(FORMATS)
    change = torch.randn(4, 6, dtype=DTYPE, generator=generator) * (D != 0)
    return scorch.from_torch(D, format=form), scorch.from_torch(change, format=rng.choice(FORMATS))


def numbers(result: Any) -> list[torch.Tensor]:
    leaves = [
        leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    return [leaf.to_dense() if isinstance(leaf, SparseTensor) else leaf for leaf in leaves]


def attempt(function: Callable[..., Any], *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*args)
        except Exception as error:
            return error


def same(name: str, found: Any, wanted: Any) -> None:
    about = f"{name}: wanted {wanted!r}, found {found!r}"
    if isinstance(wanted, Exception):
        assert isinstance(found, Exception), about
        return
    assert not isinstance(found, Exception), about
    for one, other in zip(numbers(found), numbers(wanted), strict=True):
        known = ~other.isnan()  # a slope that is infinite times a direction of zero
        torch.testing.assert_close(one[known], other[known], msg=about)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CALLS)
def test_jvp_of_a_sparse_argument(name: str, cases: int) -> None:
    for seed in range(max(1, cases // 200)):
        S, change = drawn(seed)
        _, elsewhere = drawn(seed + 1)
        for step in (change, elsewhere):
            found = attempt(jvp, CALLS[name], (S,), (step,))
            same(name, found, attempt(jvp, CALLS[name], (S.to_dense(),), (step.to_dense(),)))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [name for name in CALLS if not name.endswith("in place")])
def test_jvp_over_values(name: str, cases: int) -> None:
    for seed in range(max(1, cases // 200)):
        S, _ = drawn(seed)
        S = S.to_format("csr")
        rows, columns = S.to_format("coo").indices()
        arrays, values = (S.crow_indices(), S.col_indices()), S.values().clone()

        def sparse(v: torch.Tensor, arrays: Any = arrays) -> Any:
            return numbers(CALLS[name](scorch.sparse_csr_tensor(*arrays, v, (4, 6))))

        def dense(v: torch.Tensor, rows: Any = rows, columns: Any = columns) -> Any:
            return numbers(CALLS[name](torch.zeros(4, 6).index_put((rows, columns), v)))

        step = (values.cos(),)
        same(
            name,
            attempt(jvp, sparse, (values,), step),
            attempt(jvp, dense, (values,), step),
        )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CALLS)
def test_dual_numbers(name: str, cases: int) -> None:
    """All that autograd differentiates; what writes to a tensor with a tangent is refused."""

    def tangents(x: torch.Tensor, change: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            found = CALLS[name](forward_ad.make_dual(x, change))
            parts = [
                leaf
                for leaf in tree_leaves(found)
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            ]
            pairs = [forward_ad.unpack_dual(part) for part in parts]
            zero = torch.zeros((), dtype=DTYPE)
            return [(pair.primal, zero if pair.tangent is None else pair.tangent) for pair in pairs]

    for seed in range(max(1, cases // 200)):
        S, change = drawn(seed)
        found = attempt(tangents, S, change)
        if name == "ELEMENTWISE in place":
            assert isinstance(found, UnsupportedError) and "mul_" in str(found)
            continue
        same(name, found, attempt(tangents, S.to_dense(), change.to_dense()))


def test_the_second_order_of_a_direction_is_not_lost() -> None:
    """A gradient of zeros may be stored nowhere; it is connected all the same."""
    S, _ = drawn(3)
    S = S.clone().requires_grad_()
    chosen = S.masked_select(S.detach() != 0)
    seed = torch.zeros(chosen.shape, dtype=DTYPE, requires_grad=True)
    (gradient,) = torch.autograd.grad(chosen, S, seed, create_graph=True)
    (again,) = torch.autograd.grad(gradient.to_dense().sum(), seed)
    torch.testing.assert_close(again, torch.ones_like(seed))
