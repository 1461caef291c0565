"""Gradients of any einsum over any formats equal the dense ones at the stored places, twice over.

The dense truth is a function of tensors that are multiplied by a mask of the pattern: its gradients are zero
where nothing is stored, in every order of derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

import scorch
from properties.drawing import Drawn, formats, sizes_for, tensors, to_dense
from scorch import Format, SparseTensor
from scorch.tensor.storage import Storage
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
    total = _total(first)
    if not isinstance(total, torch.Tensor) or not total.requires_grad:
        return
    second = torch.autograd.grad(total, leaves, allow_unused=True)
    wanted_second = torch.autograd.grad(_total(wanted_first), dense, allow_unused=True)
    for gradient, right, leaf in zip(second, wanted_second, leaves, strict=True):
        check_gradient(gradient, right, leaf)


def _total(gradients: tuple[torch.Tensor | None, ...]) -> torch.Tensor | float:
    """A number that depends on all gradients."""
    total: torch.Tensor | float = 0.0
    for number, gradient in enumerate(gradients):
        if gradient is not None and gradient.requires_grad:
            product = (gradient * weights(gradient, number + 2)).sum()
            total = total + (product.real if product.is_complex() else product)
    return total
