"""What calls without gradients leave in caches serves calls with gradients, and the reverse."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import scorch
from ops.calls_of_torch import ELEMENTWISE, INDEXING, REDUCTIONS, SHAPES, WITH_DENSE, Call
from scorch import SparseTensor

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning"),
    pytest.mark.filterwarnings("ignore:The use of `x.T`:UserWarning"),
]

GENERATOR = torch.Generator().manual_seed(0)
FEATURES, OTHERS = torch.randn(6, 3, generator=GENERATOR), torch.randn(4, 4, generator=GENERATOR)
PRODUCTS: dict[str, Call] = {
    "a matrix": lambda x: x @ FEATURES,
    "a vector": lambda x: x @ FEATURES[:, 0],
    "transposed": lambda x: x.T @ OTHERS,
    "by itself": lambda x: x @ x.T,
    "itself by it": lambda x: x.T @ x,
    "converted": lambda x: x.to_format("csc") @ FEATURES,
    "blocks": lambda x: x.to_format("bsr(2,2)") @ FEATURES,
    "an input": lambda x: F.linear(FEATURES.T, x),
    "a weight": lambda x: F.linear(x, FEATURES.T),
    "addmm": lambda x: torch.addmm(OTHERS[:, :3], x, FEATURES),
    "sampled": lambda x: x * (OTHERS[:, :3] @ FEATURES.T),
    "largest products": lambda x: torch.sparse.mm(x, FEATURES, "amax"),
    "mean products": lambda x: torch.sparse.mm(x, FEATURES, "mean"),
    "softmax": lambda x: torch.sparse.softmax(x, 1),
    "einsum, twice": lambda x: scorch.einsum("ij,ij->i", x, x),
    "einsum, both ways": lambda x: scorch.einsum("ij,kj,kl->il", x, x, OTHERS),
    "evaluate": lambda x: scorch.evaluate("y[i] = sum(j, A[i,j] * A[i,j] * b[j])", A=x, b=FEATURES[:, 0]),
    "solve": lambda x: torch.linalg.solve(x @ x.T + 9 * torch.eye(4), OTHERS),
    "norms of rows": lambda x: torch.linalg.vector_norm(x, dim=1),
    "compiled": scorch.compile(lambda x: (2 * x).relu() @ FEATURES + 1),
    "compiled sum": scorch.compile(lambda x: (x * x + x).sum(0)),
}
FAMILIES: dict[str, dict[str, Call]] = {
    "elementwise": ELEMENTWISE,
    "with dense": WITH_DENSE,
    "reductions": REDUCTIONS,
    "shapes": SHAPES,
    "indexing": INDEXING,
    "products": PRODUCTS,
}
MODES: dict[str, Callable[[], Any]] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "gradients": torch.enable_grad,
}


def matrix(form: str) -> SparseTensor:
    generator = torch.Generator().manual_seed(5)
    values = torch.randn(4, 6, generator=generator)
    return scorch.from_torch(values * (torch.rand(4, 6, generator=generator) < 0.5), format=form)


def tensors_of(found: Any) -> list[torch.Tensor]:
    parts = found if isinstance(found, tuple | list) else [found]
    return [part for part in parts if isinstance(part, torch.Tensor)]


def dense_of(found: torch.Tensor) -> torch.Tensor:
    return found.detach().to_dense() if isinstance(found, SparseTensor) else found.detach()


def learn(call: Call, S: SparseTensor) -> list[torch.Tensor]:
    """The results of a call and the gradient of ``S``, or the error's message."""
    leaf = S.detach().requires_grad_()  # which has the pattern of S, and with that what is cached
    try:
        found = tensors_of(call(leaf))
        learned = [part for part in found if part.requires_grad and part.grad_fn is not None]
        total = sum((dense_part(part) ** 2).sum() for part in learned)
        if isinstance(total, torch.Tensor):
            total.backward()
    except RuntimeError as error:
        if "nference" in str(error):
            raise
        return []
    gradient = [] if leaf.grad is None else [dense_of(leaf.grad)]
    return [*map(dense_of, found), *gradient]


def dense_part(part: torch.Tensor) -> torch.Tensor:
    return part.to_dense() if isinstance(part, SparseTensor) else part


def run(call: Call, S: SparseTensor) -> list[torch.Tensor]:
    try:
        return tensors_of(call(S))
    except RuntimeError as error:
        if "nference" in str(error):
            raise
        return []


def inference_tensors() -> list[torch.Tensor]:
    """What is alive, and was created in inference mode."""
    gc.collect()
    gc.unfreeze()  # what conftest keeps out of the collector's sight
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and one.is_inference()]
    gc.freeze()
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("form", ["csr", "coo", "csc", "dcsr", "bsr(2,2)"])
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_with_gradients_after_others(family: str, form: str, mode: str) -> None:
    scorch.clear_plans()
    S = matrix(form)
    for name, call in FAMILIES[family].items():
        for _ in range(2):
            with MODES[mode]():
                run(call, S)
        for found, wanted in zip(learn(call, S), learn(call, matrix(form)), strict=True):
            torch.testing.assert_close(
                found, wanted, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
            )
        with torch.inference_mode():
            after = run(call, S)
            for found, wanted in zip(after, run(call, matrix(form)), strict=True):
                assert torch.equal(dense_of(found).nan_to_num(), dense_of(wanted).nan_to_num()), name


@pytest.mark.whole
@pytest.mark.parametrize("form", ["csr", "coo"])
def test_no_cache_has_tensors_of_inference_mode(form: str) -> None:
    scorch.clear_plans()
    S = matrix(form)
    before = inference_tensors()
    for family in FAMILIES.values():
        for call in family.values():
            with torch.inference_mode():
                run(call, S)
                run(call, S)
    left = [one for one in inference_tensors() if not any(one is other for other in before)]
    assert left == []


@pytest.mark.parametrize("form", ["csr", "coo", "csc"])
@pytest.mark.parametrize("name", [*SHAPES, *INDEXING])
def test_views_of_inference_mode_are_those_of_torch(name: str, form: str) -> None:
    call = (SHAPES | INDEXING)[name]
    S = matrix(form)
    D = S.to_dense()
    with torch.inference_mode():
        wanted = tensors_of(call(D))
        found = tensors_of(call(S))
    for part, truth in zip(found, wanted, strict=True):
        if not truth.is_inference() and isinstance(part, SparseTensor):
            assert not part.is_inference() and not part.values().is_inference()
