"""Zeros of a dense tensor that is learned have gradients too where it becomes a part of a sparse one."""

from __future__ import annotations

import pytest
import torch

import scorch

SPARSE = torch.tensor([[0.0, 1, 0, 4], [2, 0, 0, 0], [0, 0, 5, 0], [0, 3, 0, 0]], dtype=torch.float64)
ROW = torch.tensor([0.0, 3, 0, 1], dtype=torch.float64)
MATRIX = ROW[None]
NUMBER = torch.tensor(0.0, dtype=torch.float64)
DIAGONAL = torch.eye(4, dtype=torch.bool)
PLACES = torch.arange(4)


def assigned(x, key, value):
    x = x.clone()
    x[key] = value
    return x


def written(x, name, value):
    x = x.clone()
    getattr(x[0], name)(value)
    return x


CALLS = {
    "cat": (lambda x, d: torch.cat([x, d]), MATRIX),
    "cat of an expression": (lambda x, d: torch.cat([x, torch.diag_embed(d * 2)]), ROW),
    "cat with integers": (lambda x, d: torch.cat([x.long(), d]), MATRIX),
    "vstack": (lambda x, d: torch.vstack([x, d]), MATRIX),
    "column_stack": (lambda x, d: torch.column_stack([x, d]), ROW),
    "dstack": (lambda x, d: torch.dstack([x, x, d.expand(4, 4)]), MATRIX),
    "stack": (lambda x, d: torch.stack([x[0], x[1], d]), ROW),
    "block_diag": (lambda x, d: torch.block_diag(x, d), MATRIX),
    "row": (lambda x, d: assigned(x, 0, d), ROW),
    "rows": (lambda x, d: assigned(x, slice(0, 1), d), MATRIX),
    "column": (lambda x, d: assigned(x, (slice(None), 1), d), ROW),
    "element": (lambda x, d: assigned(x, (0, 0), d), NUMBER),
    "add_ to a view": (lambda x, d: written(x, "add_", d), ROW),
    "copy_ to a view": (lambda x, d: written(x, "copy_", d), ROW),
    "fill_ of a view": (lambda x, d: written(x, "fill_", d), NUMBER),
    "copy_": (lambda x, d: torch.zeros_like(x).copy_(d.expand(4, 4)), MATRIX),
    "index_put": (lambda x, d: x.index_put((PLACES, PLACES), d), ROW),
    "index_put to add": (lambda x, d: x.index_put((PLACES, PLACES), d, accumulate=True), ROW),
    "index_add": (lambda x, d: x.index_add(0, PLACES[2:3], d), MATRIX),
    "index_copy": (lambda x, d: x.index_copy(0, PLACES[2:3], d), MATRIX),
    "index_fill": (lambda x, d: x.index_fill(0, PLACES[1:2], d), NUMBER),
    "scatter": (lambda x, d: x.scatter(0, PLACES[None], d), MATRIX),
    "scatter_add": (lambda x, d: x.scatter_add(0, PLACES[None], d), MATRIX),
    "select_scatter": (lambda x, d: x.select_scatter(d, 0, 1), ROW),
    "slice_scatter": (lambda x, d: x.slice_scatter(d, 0, 1, 2), MATRIX),
    "diagonal_scatter": (lambda x, d: x.diagonal_scatter(d), ROW),
    "masked_scatter": (lambda x, d: x.masked_scatter(DIAGONAL, d), ROW),
    "masked_fill": (lambda x, d: x.masked_fill(DIAGONAL, d), NUMBER),
    "put": (lambda x, d: x.put(PLACES * 3, d), ROW),
    "where": (lambda x, d: torch.where(DIAGONAL, d, x), ROW),
    "mul": (lambda x, d: x * d, ROW),
    "kron": (lambda x, d: torch.kron(x, d), MATRIX),
}


@pytest.mark.parametrize("learned", [False, True], ids=["", "learned"])
@pytest.mark.parametrize("form", ["csr", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("name", CALLS)
def test_zeros_have_gradients(name, form, learned):
    call, part = CALLS[name]
    gradients = []
    for x in (scorch.from_torch(SPARSE, format=form), SPARSE.clone()):
        given = part.clone().requires_grad_()
        result = call(x.requires_grad_(learned), given)
        weights = torch.arange(1.0, result.numel() + 1, dtype=torch.float64).reshape(result.shape)
        (result * weights).sum().backward()
        gradients.append(given.grad.to_dense())
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ["cat", "block_diag", "vstack"])
def test_zeros_have_gradients_in_torch_func(name):
    call, part = CALLS[name]
    S = scorch.from_torch(SPARSE, format="csr")
    weights = torch.arange(1.0, call(SPARSE, part).numel() + 1, dtype=torch.float64)
    found, wanted = (
        torch.func.grad(lambda d, x=x: (call(x, d).reshape(-1) * weights).sum())(part) for x in (S, SPARSE)
    )
    torch.testing.assert_close(found, wanted)
