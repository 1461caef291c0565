"""What connects sparse tensors, their values and autograd."""

from __future__ import annotations

import pytest
import torch

import scorch
from scorch._src.tensor.autograd import values_at


def test_entries_of_other_places_in_a_format_that_could_share_them_are_not_taken_for_the_same() -> None:
    A = scorch.from_torch(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), "csr")
    B = scorch.from_torch(torch.tensor([[0.0, 3.0], [4.0, 0.0]]), "coo")
    assert values_at(B, A.storage.pattern).tolist() == [0.0, 0.0]
    assert values_at(A.to_format("coo"), A.storage.pattern).tolist() == [1.0, 2.0]
    S = A.clone().requires_grad_()
    (S * 1).backward(B + scorch.from_torch(torch.eye(2), "coo"))
    assert S.grad is not None and S.grad.to_dense().tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
def test_gradients_that_something_else_holds_are_sparse() -> None:
    """torch copies such a gradient; the copy was dense, and a large one did not fit into memory."""

    def new_leaf() -> scorch.SparseTensor:
        return scorch.eye(100_000, format="csr").requires_grad_()

    x, held = torch.ones(100_000, 1), []
    hooked, given, kept, repeated = [new_leaf() for _ in range(4)]
    hooked.register_hook(held.append)
    for _ in range(2):
        (hooked @ x).sum().backward()
    given.backward(gradient := given.detach() * 2)
    torch.autograd.backward((kept**2).sum(), create_graph=True, inputs=[kept])
    torch.utils.checkpoint.checkpoint(torch.mv, repeated, x[:, 0], use_reentrant=False).sum().backward()
    for leaf, expected in ((hooked, 2), (given, 2), (kept, 2), (repeated, 1)):
        assert isinstance(leaf.grad, scorch.SparseTensor) and bool((leaf.grad.values() == expected).all())
    assert held[0] is not hooked.grad and given.grad is not gradient and kept.grad.requires_grad
    kept.grad = None  # it refers to what created it
