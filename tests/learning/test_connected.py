"""No gradient is lost without a word: what is computed of a tensor that is learned is connected to it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import scorch
from scorch import SparseTensor
from scorch._src.ops.reduction.masked import OPERATIONS, PER_ENTRY
from scorch._src.tensor import registry
from scorch._src.torch_internals import OpOverload, OpOverloadPacket

FORMATS = ["csr", "csc", "coo", "dcsr", "bsr(2,2)"]
DENSE = torch.tensor(
    [[2.0, 0, -1, 0, 3, 0], [0, 0, 0, 0, 0, 0], [1.5, 4, 0, 0, 0.5, -2], [0, 0, 3, 3, 0, 0]],
    dtype=torch.float64,
)


def learned(form: str) -> SparseTensor:
    return scorch.from_torch(DENSE, format=form).requires_grad_()


# over stored entries ---------------------------------------------------------------------------------


def truth_of(name: str, line: torch.Tensor) -> torch.Tensor:
    """One line of stored entries reduced by torch."""
    function = {"norm": torch.linalg.vector_norm}.get(name, getattr(torch, name, None))
    found = function(line, dim=0)
    return found if isinstance(found, torch.Tensor) else found.values


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", sorted({*OPERATIONS, *PER_ENTRY} - {"argmax", "argmin"}))
def test_masked_reductions(name, dim, form):
    S = learned(form)
    if form.startswith("bsr") and "softmax" in name:
        pytest.skip("torch.sparse.softmax takes the zeros of blocks as entries")
    found = getattr(S, name)(dim=dim, masked=True)
    found = found.values if isinstance(found, tuple) else found
    found = found.to_dense() if isinstance(found, SparseTensor) else found
    D = DENSE.clone().requires_grad_()
    total, wanted = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for number in range(DENSE.shape[1 - dim]):
        line = D.select(1 - dim, number)
        stored = line.detach() != 0
        if not stored.any() or (name in ("var", "std") and stored.sum() < 2):
            continue
        result = found.select(1 - dim, number)[stored] if name in PER_ENTRY else found[number]
        expected = truth_of(name, line[stored])
        torch.testing.assert_close(result, expected)
        total, wanted = (
            total + (number + 1) * result.square().sum(),
            wanted + (number + 1) * expected.square().sum(),
        )
    total.backward()
    wanted.backward()
    assert S.grad.storage.pattern is S.storage.pattern
    torch.testing.assert_close(S.grad.to_dense(), D.grad)


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "prod", "logsumexp", "norm"])
def test_reductions_with_a_sparse_mask(name):
    S = learned("csr")
    mask = scorch.from_torch(torch.tensor([[1, 1, 0, 0, 1, 0]] * 4) > 0, format="csr")
    D = DENSE.clone().requires_grad_()
    order = (2,) if name == "norm" else ()
    found = getattr(scorch.masked, name)(S, *order, 1, mask=mask)
    expected = getattr(torch.masked, name)(D, *order, 1, mask=mask.to_dense())
    torch.testing.assert_close(found, expected)
    rows = torch.tensor([0, 2])
    found[rows].square().sum().backward()
    expected[rows].square().sum().backward()
    torch.testing.assert_close(S.grad.to_dense(), torch.where(DENSE != 0, D.grad, 0))


# other forms -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:sparse_compressed_to_sparse_bsr executing on the CPU:UserWarning")
@pytest.mark.parametrize("form", FORMATS)
def test_layouts_of_torch(form):
    S = learned(form)
    S.to_torch().to_dense().pow(3).sum().backward()
    torch.testing.assert_close(S.grad.to_dense(), 3 * DENSE.square())


def test_products_of_layouts_of_torch():
    S, x = learned("csr"), torch.arange(12.0, dtype=torch.float64).reshape(6, 2)
    (S.to_torch() @ x).square().sum().backward()
    D = DENSE.clone().requires_grad_()
    (D @ x).square().sum().backward()
    torch.testing.assert_close(S.grad.to_dense(), torch.where(DENSE != 0, D.grad, 0))


@pytest.mark.parametrize("form", FORMATS)
def test_setdiag(form):
    S = learned(form)
    given = torch.tensor([5.0, 6, 7], dtype=torch.float64, requires_grad=True)
    found = S.setdiag(given)
    expected = DENSE.clone()
    expected.diagonal()[:3] = given.detach()
    torch.testing.assert_close(found.detach().to_dense(), expected)
    found.pow(2).sum().backward()
    wanted = 2 * DENSE
    wanted.diagonal()[:3] = 0
    torch.testing.assert_close(S.grad.to_dense(), wanted)
    torch.testing.assert_close(given.grad, 2 * given.detach())


# all of them -----------------------------------------------------------------------------------------

POSITIVE = torch.tensor([[2.0, 0, 1, 0], [0, 3, 0, 0], [0.5, 0, 2, 1], [0, 1, 0, 4]], dtype=torch.float64)
ROW, PLACES = torch.rand(4, dtype=torch.float64), torch.tensor([0, 2, 1, 3])
GIVEN: list[tuple[Any, ...]] = [
    (), (1,), (0.5,), (2,), ("S",), ("S", "S"), (PLACES,), (ROW,), (1, PLACES), ((1, 1),), (0, 1), ("S", 2),
    (0.5, 1), ("fro",), (2, 1), ([0, 1],),
]  # fmt: skip


def results(function: Any, tensor: torch.Tensor, given: tuple[Any, ...]) -> list[torch.Tensor] | None:
    """What is computed, None if torch refuses; of lists of tensors too, as ``cat`` takes them."""
    args = [tensor if isinstance(value, str) and value == "S" else value for value in given]
    for first in (tensor, [tensor, tensor]):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = function(first, *args)
        except Exception:
            continue
        parts = found if isinstance(found, tuple | list) else [found]
        return [part for part in parts if isinstance(part, torch.Tensor)]
    return None


def is_connected(function: Any, given: tuple[Any, ...]) -> bool:
    truth = results(function, POSITIVE.clone().requires_grad_(), given)
    if truth is None or not any(part.requires_grad for part in truth):
        return True
    found = results(function, scorch.from_torch(POSITIVE, format="csr").requires_grad_(), given)
    if found is None or len(truth) != len(found):
        return True
    return all(b.requires_grad or not a.requires_grad for a, b in zip(truth, found, strict=True))


def name_of(function: Any) -> str:
    name = getattr(function, "__name__", str(function))
    return f"{getattr(function, '__self__', '')}" if name == "__get__" else name


KNOWN = [
    function
    for function, entry in registry.TABLE.items()
    if not isinstance(function, (OpOverload, OpOverloadPacket)) and (entry.run or entry.run_differentiable)
]
DATA = {torch.Tensor.data.__get__}  # what is there to have no gradient


def test_functions_that_have_handlers():
    torch.manual_seed(0)
    known = [function for function in KNOWN if function not in DATA and function is not None]
    lost = [(name_of(f), given) for f in known for given in GIVEN if not is_connected(f, given)]
    assert not lost


# what leaves torch, what is asked for, and what has other values
DETACHED = {"to_scipy", "to_networkx", "detach", "_repr_html_", "with_values"}


@pytest.mark.parametrize("form", ["csr", "coo"])
def test_methods_of_sparse_tensors(form):
    methods = [
        name
        for name, value in vars(SparseTensor).items()
        if callable(value) and not name.startswith("_") and name not in DETACHED
    ]
    lost = []
    for name in methods:
        for given in [*GIVEN, ("csc",), ("dense",), ((2, 2),)]:
            for named in ({}, {"masked": True}):
                S = scorch.from_torch(POSITIVE, format=form).requires_grad_()
                try:
                    args = [S if isinstance(value, str) and value == "S" else value for value in given]
                    found = getattr(S, name)(*args, **named)
                except Exception:
                    continue
                parts = found if isinstance(found, tuple | list) else [found]
                tensors = [
                    part for part in parts if isinstance(part, torch.Tensor) and part.is_floating_point()
                ]
                if any(not part.requires_grad for part in tensors):
                    lost.append((name, given, named))
    assert not lost
