"""What connects sparse tensors, their values and autograd."""

from __future__ import annotations

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
