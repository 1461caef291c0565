"""Names of tensors on sharded tensors: each has a rule, or is refused by name with what to do instead."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import scorch
import scorch.distributed as sd
from scorch.errors import MissingAttributeError, OperandError, ScorchError, UnsupportedError

DENSE = torch.tensor([[0.0, 2.5, 0.0], [3.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
X = torch.ones(3, 1)


def sharded() -> sd.RowSharded:
    return sd.shard(scorch.from_torch(DENSE, format="csr"))


REFUSED = {
    "A[...]": lambda A: A[0],
    "iteration": lambda A: list(A),
    "to_dense is not supported": lambda A: A.to_dense(),
    "cumsum is not supported": lambda A: A.cumsum(0),
    "cat is not supported": lambda A: torch.cat([A, A]),
    "div is not supported for these": lambda A: 2 / A,
    "sub is not supported for these": lambda A: 2 - A,
    "mul is not supported for these": lambda A: X * A,
    "pow: ": lambda A: 2**A,
    "eq: it maps zero to True": lambda A: A == 0,
    "clamp: it maps zero to 1.0": lambda A: A.clamp(min=1),
    r"A = A.relu\(": lambda A: A.relu_(),
    "keepdim.*; for sharded tensors, call sum.a, dim=None.": lambda A: A.sum(1, keepdim=True),
    "before you shard it": lambda A: A.cpu(),
    "shard.S.to.device": lambda A: A.to("meta"),
    "count_entries": lambda A: A.nnz,
    r"numpy.asarray\(A\)": lambda A: np.asarray(A),
    r"softmax is not supported .*A\.softmax\(dim\)": lambda A: torch.softmax(A, 1),
    "^softmax: .*for sharded tensors, call softmax": lambda A: A.softmax(1, dtype=torch.float64),
    "loss_of_rows": lambda A: A.backward(),
}


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.whole
def test_names_without_a_rule_are_refused_by_name(words):
    with pytest.raises(UnsupportedError, match=words), sd.count_bytes() as traffic:
        REFUSED[words](sharded())
    assert traffic.exchanges == 0


def test_every_name_of_tensors_has_a_rule_or_a_refusal():
    A = sharded()
    for owner in (torch.Tensor, scorch.SparseTensor):
        for name in (name for name in dir(owner) if hasattr(owner, name)):
            if name.startswith("_"):
                continue
            try:
                member = getattr(A, name)
                if callable(member):
                    member()
            except (ScorchError, TypeError, RuntimeError):  # an argument is missing
                continue
            except AttributeError as error:
                raise AssertionError(f"{name} is not known: {error}") from error
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        A.colour  # noqa: B018
    assert not hasattr(A, "nnz") and issubclass(MissingAttributeError, AttributeError)


def test_elementwise_functions_and_comparisons_that_keep_zeros():
    A = sharded()
    calls = [
        lambda a: a > 0.5,
        lambda a: a == 3,
        lambda a: a.clamp(max=1),
        lambda a: a % 2,
        lambda a: a // 2,
        lambda a: a.relu(),
        lambda a: F.gelu(a),
        lambda a: F.leaky_relu(a, 0.1),
        lambda a: a.double(),
        lambda a: np.float64(2) * a,
        lambda a: copy.deepcopy(a),
        lambda a: a.mul(3).mT,
    ]
    for call in calls:
        torch.testing.assert_close(call(A).gather().to_dense(), call(DENSE))
    assert A.size() == DENSE.size() and A.size(1) == 3 and A.numel() == 9 and len(A) == 3
    assert A.to(torch.float32, copy=True).local is not A.local and A.to(torch.float64).dtype == torch.float64
    assert A.is_floating_point() and A.is_sparse and A.itemsize == 4
    torch.testing.assert_close(torch.einsum("ij,jk->ik", A, X), DENSE @ X)


def test_einsum_of_one_process_names_that_of_many():
    with pytest.raises(OperandError, match=r"scorch\.distributed\.einsum"):
        scorch.einsum("ij,jk->ik", sharded(), X)
