"""Gradients of any einsum over any formats equal the dense ones at the stored places, twice over.

The dense truth is a function of tensors that are multiplied by a mask of the pattern: its gradients are zero
where nothing is stored, in every order of derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scorch
from properties.drawing import Drawn, formats, sizes_for, tensors, to_dense
from scorch import Format, SparseTensor
from scorch._src.storage.storage import Storage
from validity import check_storage

DTYPES = [torch.float64, torch.float64, torch.complex128]


@dataclass
class Case:
    equation: str
    operands: list[Drawn]
    learned: list[bool]
    requested: Format | None

    def __repr__(self) -> str:
        return "\n".join([f"{self.equation} -> {self.requested!r} {self.learned}", *map(repr, self.operands)])


@st.composite
def cases(draw) -> Case:
    letters = "ijkl"[: draw(st.integers(1, 4))]
    sizes = sizes_for(draw, letters)
    terms = []
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.integers(0, min(3, len(letters) + 1)))
        terms.append("".join(draw(st.sampled_from(letters)) for _ in range(length)))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations([i for i in used if draw(st.booleans())])))
    dtype = draw(st.sampled_from(DTYPES))
    operands = [draw(tensors(tuple(sizes[i] for i in term), dtype)) for term in terms]
    learned = [draw(st.integers(0, 3)) > 0 for _ in terms]
    requested = draw(st.none() | formats(len(output)))
    return Case(f"{','.join(terms)}->{output}", operands, learned, requested)


def mask_of(tensor: torch.Tensor) -> torch.Tensor:
    """Where a tensor stores something."""
    if not isinstance(tensor, SparseTensor):
        return torch.ones(tensor.shape, dtype=torch.bool)
    pattern = tensor.storage.pattern
    return SparseTensor(Storage(pattern, torch.ones(pattern.size))).to_dense() != 0


def weights(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(-2, 3, tuple(tensor.shape), generator=generator).to(tensor.dtype)
    return made * (1 - 2j) if made.is_complex() else made


def check_gradient(found: torch.Tensor | None, wanted: torch.Tensor | None, operand: torch.Tensor) -> None:
    if wanted is None or found is None:
        assert found is None or not bool(to_dense(found).any()), "there is no such gradient"
        assert wanted is None or not bool(wanted.any()), "the gradient is missing"
        return
    if isinstance(operand, SparseTensor):
        assert isinstance(found, SparseTensor) and found.storage.pattern is operand.storage.pattern
        check_storage(found)
    assert found.dtype == operand.dtype and found.shape == operand.shape
    torch.testing.assert_close(to_dense(found), wanted)


@settings(max_examples=max(1, settings.default.max_examples // 4))
@given(case=cases())
def test_gradients_of_einsum(case):
    ours = [
        drawn.given.detach().clone().requires_grad_(is_learned)
        for drawn, is_learned in zip(case.operands, case.learned, strict=True)
    ]
    truth = [
        drawn.dense.clone().requires_grad_(is_learned)
        for drawn, is_learned in zip(case.operands, case.learned, strict=True)
    ]
    masks = [mask_of(drawn.given) for drawn in case.operands]
    found = scorch.einsum(case.equation, *ours, format=case.requested)
    masked = [dense * mask for dense, mask in zip(truth, masks, strict=True)]
    wanted = torch.einsum(case.equation, *masked)
    torch.testing.assert_close(to_dense(found.detach()), wanted.detach())
    assert found.requires_grad == any(case.learned)
    leaves = [tensor for tensor in ours if tensor.requires_grad]
    dense = [tensor for tensor in truth if tensor.requires_grad]
    if not leaves:
        return
    G = weights(wanted, 1)
    if not any(isinstance(tensor, SparseTensor) for tensor in ours):
        G = G * mask_of(found)  # a dense result stored sparsely keeps its nonzeros only
    first = torch.autograd.grad(found, leaves, G, create_graph=True, allow_unused=True)
    wanted_first = torch.autograd.grad(wanted, dense, G, create_graph=True, allow_unused=True)
    for gradient, right, leaf in zip(first, wanted_first, leaves, strict=True):
        check_gradient(gradient, right, leaf)
    check_second(first, wanted_first, leaves, dense)


def check_second(
    first: tuple[torch.Tensor | None, ...],
    wanted: tuple[torch.Tensor | None, ...],
    leaves: list[torch.Tensor],
    dense: list[torch.Tensor],
) -> None:
    """The gradients of a number that depends on all gradients; no gradient is one of zeros."""
    total, right = _total(first), _total(wanted)
    none = (None,) * len(leaves)
    is_learned = isinstance(total, torch.Tensor) and total.requires_grad
    second = torch.autograd.grad(total, leaves, allow_unused=True) if is_learned else none
    is_learned = isinstance(right, torch.Tensor) and right.requires_grad
    truth = torch.autograd.grad(right, dense, allow_unused=True) if is_learned else none
    for gradient, expected, leaf in zip(second, truth, leaves, strict=True):
        check_gradient(gradient, expected, leaf)


def _total(gradients: tuple[torch.Tensor | None, ...]) -> torch.Tensor | float:
    """A number that depends on all gradients."""
    total: torch.Tensor | float = 0.0
    for number, gradient in enumerate(gradients):
        if gradient is not None and gradient.requires_grad:
            product = (gradient * weights(gradient, number + 2)).sum()
            total = total + (product.real if product.is_complex() else product)
    return total


# expressions -----------------------------------------------------------------------------------------

SHAPES = {"A": (4, 5), "B": (5, 3), "C": (4, 5), "T": (4, 5, 3), "Q": (4, 4), "x": (5,), "y": (4,), "a": ()}
EXPRESSIONS = {
    "R[i,k] = A[i,j] * B[j,k]": lambda A, B: A @ B,
    "R[i,j] = A[i,j] + C[i,j]": lambda A, C: A + C,
    "R[i,j] = A[i,j] - 2 * C[i,j] * A[i,j]": lambda A, C: A - 2 * C * A,
    "R[i,j] = A[i,j] / (3 + square(C[i,j]))": lambda A, C: A / (3 + C.square()),
    "R[i,j] = A[i,j] * x[j] * y[i]": lambda A, x, y: A * x * y[:, None],
    "R[i] = tanh(A[i,j] * x[j])": lambda A, x: torch.tanh(A @ x),
    "R[i] = sum(j, exp(A[i,j]))": lambda A: A.exp().sum(1),
    "R[i,j] = relu(A[i,j]) + sigmoid(x[j]) * C[i,j]": lambda A, x, C: A.relu() + x.sigmoid() * C,
    "R[i] = max(j, A[i,j] * x[j])": lambda A, x: (A * x).amax(1),
    "R[j] = min(i, A[i,j] + C[i,j])": lambda A, C: (A + C).amin(0),
    "R[i] = prod(j, A[i,j] + 2 * x[j])": lambda A, x: (A + 2 * x).prod(1),
    "R[i,j] = maximum(A[i,j], C[i,j])": lambda A, C: torch.maximum(A, C),
    "R[i,j] = minimum(A[i,j], 0.5 * x[j])": lambda A, x: torch.minimum(A, 0.5 * x),
    "R[i,j] = where(C[i,j] > 0, A[i,j], x[j] * A[i,j])": lambda C, A, x: torch.where(C > 0, A, x * A),
    "R[i,j] = A[i,j] / sum(j, abs(A[i,j]) + 1)": lambda A: A / (A.abs() + 1).sum(1, keepdim=True),
    "R = A[i,j] * C[i,j]": lambda A, C: (A * C).sum(),
    "R[i] = Q[i,i] * y[i]": lambda Q, y: Q.diagonal() * y,
    "R = Q[i,j] * Q[j,i]": lambda Q: (Q * Q.T).sum(),
    "R[i,j] = sum(k, A[i,k] * B[k,l] * B[j,l])": lambda A, B: A @ B @ B.T,
    "R[i,l] = T[i,j,k] * B[j,k] * A[i,l]": lambda T, B, A: torch.einsum("ijk,jk,il->il", T, B, A),
    "R[i] = log1p(sum(j, square(A[i,j]))) + sqrt(sum(j, 1 + square(C[i,j])))": lambda A, C: (
        torch.log1p(A.square().sum(1)) + torch.sqrt((1 + C.square()).sum(1))
    ),
    "R[i,j] = a * sin(A[i,j]) - expm1(C[i,j]) * cos(x[j])": lambda a, A, C, x: (
        a * A.sin() - torch.expm1(C) * x.cos()
    ),
    "R[i] = sum(j, y[i] + A[i,j])": lambda y, A: (y[:, None] + A).sum(1),
    "R[i,j] = -A[i,j] * log(2 + abs(x[j]))": lambda A, x: -A * torch.log(2 + x.abs()),
}


@st.composite
def expressions(draw) -> tuple[str, dict[str, torch.Tensor], int]:
    text = draw(st.sampled_from(sorted(EXPRESSIONS)))
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name in EXPRESSIONS[text].__code__.co_varnames:
        shape = SHAPES[name]
        dense = torch.randn(shape, generator=generator, dtype=torch.float64)
        form = draw(formats(len(shape))) if shape else Format("dense", dims=0)
        if not form.is_dense:
            dense = dense * (torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.4, 1.0])))
        tensors[name] = dense if form.is_dense else scorch.from_torch(dense, form)
    return text, tensors, seed


@settings(max_examples=max(1, settings.default.max_examples // 4))
@given(case=expressions())
def test_gradients_of_expressions(case):
    text, tensors, seed = case
    ours = {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}
    truth = {name: to_dense(tensor).detach().clone().requires_grad_() for name, tensor in tensors.items()}
    masked = {name: dense * mask_of(tensors[name]) for name, dense in truth.items()}
    found, wanted = scorch.evaluate(text, **ours), EXPRESSIONS[text](**masked)
    torch.testing.assert_close(to_dense(found.detach()), wanted.detach())
    G = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    first = torch.autograd.grad(found, list(ours.values()), G, create_graph=True, allow_unused=True)
    right = torch.autograd.grad(wanted, list(truth.values()), G, create_graph=True, allow_unused=True)
    for gradient, expected, leaf in zip(first, right, ours.values(), strict=True):
        check_gradient(gradient, expected, leaf)
    check_second(first, right, list(ours.values()), list(truth.values()))


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("zeros", range(5))
@pytest.mark.parametrize("form", ["s", "d"])
def test_products_with_zeros_have_second_derivatives(zeros, form):
    dense = torch.tensor([2.0, -1.0, 0.5, 3.0, -2.0], dtype=torch.float64)
    dense[:zeros] = 0
    coordinates = torch.arange(5)[None]
    given = scorch.sparse_coo_tensor(coordinates, dense, (5,)) if form == "s" else dense
    ours, truth = given.clone().requires_grad_(), dense.clone().requires_grad_()
    found, wanted = scorch.evaluate("R = prod(i, 2 * x[i])", x=ours), (2 * truth).prod()
    first = torch.autograd.grad(found, [ours], create_graph=True)
    right = torch.autograd.grad(wanted, [truth], create_graph=True)
    check_gradient(first[0], right[0], ours)
    check_second(first, right, [ours], [truth])
    twice = torch.func.hessian(lambda x: scorch.evaluate("R = prod(i, 2 * x[i])", x=x))(dense)
    torch.testing.assert_close(twice, torch.func.hessian(lambda x: (2 * x).prod())(dense))
