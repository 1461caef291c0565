"""A function of torch is added from outside of Scorch in one place, and everything else follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import scorch
from scorch._src.tensor.registry import TABLE, implements

CALLS: list[str] = []


def area(y: Any, *, dx: float = 1, dim: int = -1) -> Any:
    """``torch.trapezoid`` in one sum over what is stored, instead of a sum of two slices."""
    CALLS.append("area")
    ends = y.select(dim, 0) + y.select(dim, -1)
    return dx * (y.sum(dim) - ends / 2)


@pytest.fixture
def added() -> Iterator[None]:
    assert torch.trapezoid not in TABLE, "take another function for this test"
    implements(torch.trapezoid, differentiable=True)(area)
    CALLS.clear()
    yield
    del TABLE[torch.trapezoid]


def operands(form: str) -> tuple[scorch.SparseTensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    dense *= torch.rand(4, 6, generator=generator) < 0.6
    return scorch.from_torch(dense, format=form), dense


def to_dense(found: Any) -> torch.Tensor:
    return found.to_dense() if isinstance(found, scorch.SparseTensor) else found


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr(2,2)"])
def test_it_is_called_instead_of_torchs(form: str) -> None:
    S, dense = operands(form)
    torch.testing.assert_close(to_dense(torch.trapezoid(S)), torch.trapezoid(dense))
    torch.testing.assert_close(to_dense(torch.trapezoid(S, dx=3, dim=0)), torch.trapezoid(dense, dx=3, dim=0))
    assert CALLS == ["area"] * 2


@pytest.mark.usefixtures("added")
def test_it_has_gradients() -> None:
    S, dense = operands("csr")
    S.requires_grad_()
    dense.requires_grad_()
    to_dense(torch.trapezoid(S * S)).sum().backward()
    torch.trapezoid(dense * dense).sum().backward()
    assert CALLS == ["area"] and S.grad is not None and dense.grad is not None
    torch.testing.assert_close(S.grad.to_dense(), dense.grad)  # zero where nothing is stored


@pytest.mark.usefixtures("added")
def test_graphs_contain_it() -> None:
    def function(S: Any, x: torch.Tensor) -> Any:
        return torch.trapezoid(S * 2) @ x

    S, dense = operands("csr")
    x = torch.ones(4, 2, dtype=torch.float64)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(to_dense(compiled(S, x)), function(dense, x))
    assert CALLS


@pytest.mark.usefixtures("added")
def test_a_function_has_one_handler() -> None:
    with pytest.raises(AssertionError, match="has two handlers"):
        implements(torch.trapezoid)(lambda *args: None)
