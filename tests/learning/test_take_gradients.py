"""``torch.autograd.grad`` and ``backward(inputs=)`` compute checkpoints again as ``backward()`` does."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import scorch

TAKES_NAMES = "dict" in (torch.autograd.grad.__doc__ or "")  # not before torch 2.13
ROWS = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, -1.0], [0.0, 5.0, 4.0]], dtype=torch.float64)


def _by_backward(result, leaf):
    result.backward()
    return leaf.grad


def _by_inputs(result, leaf):
    torch.autograd.backward([result], inputs={"leaf": leaf} if TAKES_NAMES else [leaf])
    return leaf.grad


def _by_sparse_result(result, leaf):
    (result * scorch.ones(1, format="coo", dtype=torch.float64)).backward(torch.ones(1), inputs=leaf)
    return leaf.grad


WAYS = {
    "backward": _by_backward,
    "inputs": _by_inputs,
    "sparse": _by_sparse_result,
    "grad": lambda result, leaf: torch.autograd.grad(result, leaf)[0],
}
if TAKES_NAMES:
    WAYS["by name"] = lambda result, leaf: torch.autograd.grad(result, {"leaf": leaf})["leaf"]


@pytest.mark.whole
@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_of_several_formats_is_computed_again_as_before(way):
    def function(left, right):
        return ((left * 2 + right) @ left).relu() * right

    leaf = scorch.from_torch(ROWS, format="csr").requires_grad_()
    other = scorch.from_torch(ROWS.T, format="csc").requires_grad_()
    found = WAYS[way](checkpoint(function, leaf, other, use_reentrant=False).sum(), leaf)
    dense = ROWS.clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(dense, ROWS.T).sum(), dense)
    torch.testing.assert_close(found.to_dense(), expected * (ROWS != 0))


def test_gradients_are_added_to_the_weights_of_layers():
    layer = scorch.nn.SparseLinear(4, 3, density=0.5)
    weight, x = layer.weight, torch.ones(2, 4)
    layer(x).sum().backward(inputs=[weight])
    assert (weight.grad.values() == 2).all() and layer.bias.grad is None
    (unused,) = torch.autograd.grad(layer.bias.sum(), weight, materialize_grads=True)
    assert unused.shape == (3, 4) and not unused.any()


def test_outputs_must_fit_their_gradients():
    leaf = scorch.from_torch(ROWS, format="csr").requires_grad_()
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        (leaf * 2).backward()
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        torch.autograd.grad(leaf * 2, leaf, torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad((leaf * 2).sum(), scorch.eye(3, format="csr").requires_grad_())
