"""Gradients of reductions equal those of dense torch where zeros are stored, tie or fill whole lines."""

from __future__ import annotations

import math

import pytest
import torch

import scorch
from scorch._src.storage.storage import Storage

ROWS = [[1.0, -2, 0, 0], [0, 0, 0, 0], [-1, -1, -3, -1], [2, 2, 2, 2], [0, -4, 0, 5]]
GIVEN = torch.tensor(ROWS, dtype=torch.float64)
STORED = (GIVEN != 0) | torch.tensor([[1, 0, 1, 0]] * 5, dtype=torch.bool)
CALLS = {
    "mean": lambda t: t.mean(1),
    "mean of all, kept": lambda t: t.mean(keepdim=True, dim=None),
    "nansum": lambda t: torch.nansum(t, 0, dtype=torch.float64),
    "amax": lambda t: t.amax(1),
    "amin of columns": lambda t: torch.amin(t, 0, True),
    "amax of all": lambda t: t.amax(),
    "max": lambda t: t.max(),
    "max by name": lambda t: t.max(dim=1).values,
    "min with places": lambda t: torch.min(t, 0, True)[0],
    "var": lambda t: t.var(1),
    "var without freedom": lambda t: t.var(1, correction=5),
    "var of all": lambda t: t.var(False),
    "std": lambda t: t.std(1),
    "std of columns": lambda t: torch.std(t, 0, unbiased=False, keepdim=True),
    "std without freedom": lambda t: t.std(1, correction=4),
    "var_mean": lambda t: torch.cat(torch.var_mean(t, 1)),
    "std_mean": lambda t: torch.stack(torch.std_mean(t, (0, 1), correction=0)),
    "logsumexp": lambda t: t.logsumexp(1),
    "logsumexp of both": lambda t: torch.special.logsumexp(t, (0, 1)),
    "norm": lambda t: t.norm(dim=1),
    "norm of both": lambda t: torch.norm(t, "fro", (0, 1)),
    **{
        f"{order}-norm": lambda t, order=order: torch.linalg.vector_norm(t, order, 1)
        for order in (0, 0.5, 1, 3, math.inf, -math.inf, -1)
    },
}


def with_zeros(form: str) -> scorch.SparseTensor:
    """A tensor with zeros among its stored values."""
    places = scorch.from_torch(STORED.to(torch.float64), format=form)
    values = scorch.from_torch(torch.where(STORED, GIVEN, 0) + 10 * STORED, format=form).storage.values
    return scorch.SparseTensor(Storage(places.storage.pattern, torch.where(values == 0, 0, values - 10)))


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
def test_gradient(name, form):
    S, D = with_zeros(form).requires_grad_(), GIVEN.clone().requires_grad_()
    found, wanted = CALLS[name](S), CALLS[name](D)
    found = found.to_dense() if isinstance(found, scorch.SparseTensor) else found
    torch.testing.assert_close(found, wanted, equal_nan=True)
    weights = torch.linspace(1, 2, wanted.numel(), dtype=torch.float64).reshape(wanted.shape)
    found.backward(weights)
    wanted.backward(weights)
    gradient = torch.zeros_like(GIVEN) if D.grad is None else D.grad
    torch.testing.assert_close(S.grad.to_dense()[STORED], gradient[STORED], equal_nan=True)


@pytest.mark.parametrize("name", ["amax", "var", "std", "norm", "logsumexp", "3-norm"])
def test_functions_of_torch_func(name):
    S = with_zeros("csc")
    pattern, values = S.storage.pattern, S.storage.values

    def loss(given: torch.Tensor) -> torch.Tensor:
        return CALLS[name](scorch.SparseTensor(Storage(pattern, given))).square().sum()

    inner = torch.func.grad(loss)(values)
    S.requires_grad_()
    CALLS[name](S).square().sum().backward()
    torch.testing.assert_close(inner, S.grad.storage.values)


def test_groups_are_kept_with_the_pattern():
    S = with_zeros("csr")
    S.amax(1), S.std(1), S.argmin(-1), S.amax(1, masked=True)
    assert list(S.storage.pattern.groups) == [(1,)]
