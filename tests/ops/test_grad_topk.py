"""``grad_topk``: the largest entries of a dense gradient outside of a pattern, without the dense gradient."""

from __future__ import annotations

import importlib
import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import scorch
from properties.drawing import sizes_for, tensors
from scorch import SparseTensor, errors
from scorch._src.storage.storage import Storage

module = importlib.import_module("scorch._src.nn.grad_topk")


def stored(tensor: SparseTensor) -> torch.Tensor:
    pattern = tensor.storage.pattern
    return SparseTensor(Storage(pattern, torch.ones(pattern.size))).to_dense() != 0


def largest(gradient: torch.Tensor, mask: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """By sorting the whole dense gradient."""
    sizes = gradient.abs().reshape(-1).masked_fill(mask.reshape(-1), -1.0)
    order = torch.sort(sizes, descending=True, stable=True).indices[: min(k, int((~mask).sum()))]
    places = torch.unravel_index(order, gradient.shape)
    return torch.stack(places), gradient.reshape(-1)[order]


def matrix(*shape: int, density: float = 0.2, seed: int = 0, format: str = "csr") -> SparseTensor:
    torch.manual_seed(seed)
    dense = torch.randn(*shape, dtype=torch.float64) * (torch.rand(*shape) < density)
    return scorch.from_torch(dense, format=format).requires_grad_()


@st.composite
def cases(draw):
    letters = "ijkl"[: draw(st.integers(1, 4))]
    sizes = sizes_for(draw, letters)
    terms = []
    for number in range(draw(st.integers(1, 3))):
        length = draw(st.integers(0 if number else 1, min(3, len(letters) + 1)))
        terms.append("".join(draw(st.sampled_from(letters)) for _ in range(length)))
    used = sorted(set("".join(terms)))
    output = "".join(draw(st.permutations([i for i in used if draw(st.booleans())])))
    drawn = [draw(tensors(tuple(sizes[i] for i in term), torch.float64)) for term in terms]
    return f"{','.join(terms)}->{output}", drawn, draw(st.integers(0, 6)), draw(st.sampled_from([1, 3, 1000]))


@settings(max_examples=max(3, settings.default.max_examples // 16))
@given(cases())
def test_any_einsum(case) -> None:
    equation, drawn, k, tile = case
    operands = [one.given for one in drawn]
    first = operands[0]
    if not isinstance(first, SparseTensor) or 1 in first.shape:  # those are squeezed: another use
        return
    first = first.detach().requires_grad_()
    truth = [one.dense for one in drawn]
    truth[0] = truth[0].clone().requires_grad_()
    expected = torch.einsum(equation, *truth)
    torch.manual_seed(0)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (expected * weights).sum().backward()
    with mock.patch.object(module, "TILE_ELEMENTS", tile), scorch.grad_topk(first, k) as grown:
        (scorch.einsum(equation, first, *operands[1:], format="dense") * weights).sum().backward()
    gradient = torch.zeros_like(truth[0]) if truth[0].grad is None else truth[0].grad
    _, values = largest(gradient, stored(first), k)
    assert grown.values.shape == values.shape
    torch.testing.assert_close(grown.values.abs(), values.abs())
    rounded = gradient[tuple(grown.indices)]
    torch.testing.assert_close(rounded, grown.values)
    assert not bool(stored(first)[tuple(grown.indices)].any())
    assert len(set(map(tuple, grown.indices.T.tolist()))) == values.numel()


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr(2,2)"])
@pytest.mark.parametrize("tile", [1, 30, 10**6])
def test_linear(format: str, tile: int) -> None:
    W = matrix(8, 12, format=format)
    D = W.detach().to_dense().requires_grad_()
    x = torch.randn(5, 12, dtype=torch.float64)
    F.linear(x, D).tanh().sum().backward()
    with mock.patch.object(module, "TILE_ELEMENTS", tile), scorch.grad_topk(W, k=7) as grown:
        F.linear(x, W).tanh().sum().backward()
    indices, values = largest(D.grad, stored(W), 7)
    torch.testing.assert_close(grown.indices, indices)
    torch.testing.assert_close(grown.values, values)


def test_functions_of_the_tensor_inside_an_expression() -> None:
    W = matrix(6, 7)
    D = W.detach().to_dense().requires_grad_()
    x = torch.randn(7, dtype=torch.float64)
    (torch.sin(D) @ x).square().sum().backward()
    with scorch.grad_topk(W, k=9) as grown:
        scorch.evaluate("y[i] = sin(W[i,j]) * x[j]", W=W, x=x).square().sum().backward()
    indices, values = largest(D.grad, stored(W), 9)
    torch.testing.assert_close(grown.indices, indices)
    torch.testing.assert_close(grown.values, values)


def test_several_uses_and_several_backward_passes_are_summed() -> None:
    W = matrix(6, 6)
    D = W.detach().to_dense().requires_grad_()
    x = torch.randn(4, 6, dtype=torch.float64)
    F.linear(F.linear(x, D).relu(), D).sum().backward()
    F.linear(3 * x, D).square().sum().backward()
    with scorch.grad_topk(W, k=8) as grown:
        F.linear(F.linear(x, W).relu(), W).sum().backward()
        F.linear(3 * x, W).square().sum().backward()
    indices, values = largest(D.grad, stored(W), 8)
    torch.testing.assert_close(grown.indices, indices)
    torch.testing.assert_close(grown.values, values)


def test_the_block_may_hold_the_backward_pass_only() -> None:
    W = matrix(5, 5)
    loss = F.linear(torch.ones(3, 5, dtype=torch.float64), W).sum()
    with scorch.grad_topk(W, k=2) as grown:
        loss.backward()
    assert grown.values.tolist() == [3.0, 3.0]


def test_equal_gradients_come_in_the_order_of_their_places() -> None:
    W = scorch.from_torch(torch.eye(4), format="csr").requires_grad_()
    with mock.patch.object(module, "TILE_ELEMENTS", 4), scorch.grad_topk(W, k=5) as grown:
        F.linear(torch.ones(4), W).sum().backward()
    assert grown.indices.T.tolist() == [[0, 1], [0, 2], [0, 3], [1, 0], [1, 2]]


def test_there_are_fewer_places_than_asked_for() -> None:
    W = scorch.from_torch(torch.eye(3), format="csr").requires_grad_()
    with scorch.grad_topk(W, k=100) as grown:
        F.linear(torch.randn(2, 3), W).sum().backward()
    assert grown.indices.shape == (2, 6)


def test_other_tensors_with_the_same_pattern_are_not_counted() -> None:
    W = matrix(5, 5)
    V = W.detach().clone().requires_grad_()
    x = torch.randn(2, 5, dtype=torch.float64)
    with scorch.grad_topk(W, k=3) as grown:
        (F.linear(x, V).square().sum() * 100 + F.linear(x, W).sum()).backward()
    D = W.detach().to_dense().requires_grad_()
    F.linear(x, D).sum().backward()
    torch.testing.assert_close(grown.values, largest(D.grad, stored(W), 3)[1])


def test_no_dense_matrix_is_made() -> None:
    n = 15_000  # a dense gradient would have 2.25e8 places
    W = scorch.eye(n, format="csr").requires_grad_()
    x = torch.zeros(1, n)
    x[0, 7] = 5.0
    scale = torch.zeros(n)
    scale[3] = 2.0
    sizes = []
    original = torch.zeros

    def zeros(*args, **kwargs):
        made = original(*args, **kwargs)
        sizes.append(made.numel())
        return made

    with mock.patch.object(torch, "zeros", zeros), scorch.grad_topk(W, k=2) as grown:
        (F.linear(x, W) * scale).sum().backward()
    assert grown.indices[:, 0].tolist() == [3, 7] and grown.values[0] == 10.0
    assert max(sizes) <= module.TILE_ELEMENTS < math.prod(W.shape)


def test_the_weight_of_a_layer() -> None:
    torch.manual_seed(0)
    layer = scorch.nn.SparseLinear(9, 6, sparsity=0.8, dtype=torch.float64)
    D = layer.weight.detach().to_dense().requires_grad_()
    x = torch.randn(4, 9, dtype=torch.float64)
    F.linear(x, D, layer.bias.detach()).square().sum().backward()
    with scorch.grad_topk(layer.weight, k=5) as grown:
        layer(x).square().sum().backward()
    indices, values = largest(D.grad, stored(layer.weight.detach()), 5)
    torch.testing.assert_close(grown.indices, indices)
    torch.testing.assert_close(grown.values, values)


def test_nothing_to_look_at_is_an_error() -> None:
    with pytest.raises(errors.CallError, match="no backward"), scorch.grad_topk(matrix(5, 5), k=1):
        pass


def test_other_uses_are_refused() -> None:
    W = matrix(5, 5)
    x = torch.randn(5, dtype=torch.float64)
    for use in (lambda: W.T @ x, lambda: (W * 2) @ x, lambda: W.sum() + (W @ x)):
        with pytest.raises(errors.UnsupportedError, match="grad_topk"), scorch.grad_topk(W, k=1):
            use().sum().backward()
    with scorch.grad_topk(W, k=1):  # and the refused ones have left nothing behind
        (W @ x).sum().backward()


def test_sparse_results_are_refused() -> None:
    W = scorch.rand(20, 30, density=0.1, format="csr", requires_grad=True)
    with pytest.raises(errors.UnsupportedError, match="for a sparse"), scorch.grad_topk(W, k=5):
        ((W + W) @ torch.randn(30, 7)).square().sum().backward()


def test_a_step_inside_the_block_is_refused() -> None:
    W, V = matrix(5, 5), torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([V], lr=0.1)
    with pytest.raises(errors.InPlaceError, match="step"), scorch.grad_topk(W, k=1):
        scorch.einsum("ij,jk->", W, V).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: scorch.grad_topk(torch.ones(2, 2, requires_grad=True), 1), errors.OperandError),
        (lambda: scorch.grad_topk(scorch.eye(2, format="csr"), 1), errors.OperandError),
        (lambda: scorch.grad_topk(matrix(2, 2), -1), errors.ArgumentError),
        (lambda: scorch.grad_topk(matrix(2, 2), 1.5), errors.ArgumentError),
    ],
)
def test_wrong_arguments(make, error) -> None:
    with pytest.raises(error):
        make()
