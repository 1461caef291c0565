"""What a user met: writes through views of views, masks of dense tensors, sums in whole numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import scorch
from scorch.errors import CallError, DensityError
from torch_has import needs_linear_cross_entropy

FORMATS = ["csr", "coo", "csc", "dcsr"]


@pytest.mark.parametrize("forms", [(a, b) for a in ("sd", "od") for b in ("sd", "od")])
@pytest.mark.parametrize("equation", ["ij,ik->jk", "ij,ik->kj"])
def test_turns_side_by_side_do_not_share_positions_of_a_merge(forms: tuple[str, str], equation: str) -> None:
    torch.manual_seed(0)
    a, b = [(torch.randint(1, 4, (9, 9)) * (torch.rand(9, 9) < 0.5)).double() for _ in "ab"]
    A, B = scorch.from_torch(a, format=forms[0]), scorch.from_torch(b, format=forms[1])
    found = scorch.einsum(equation, A, B)
    assert torch.equal(found.to_dense(), torch.einsum(equation, a, b))


@pytest.mark.parametrize("form", FORMATS)
def test_a_view_of_a_view_writes_to_both(form: str) -> None:
    for view in (lambda x: x[0:2], lambda x: x.T, lambda x: x[:, 0:2], lambda x: x[0:3][0:2]):
        dense = torch.eye(3)
        S = scorch.from_torch(dense, format=form)
        V, W = view(S), view(dense)
        V[0] = 7.0
        W[0] = 7.0
        V[..., 1].mul_(2)
        W[..., 1].mul_(2)
        assert torch.equal(V.to_dense(), W) and torch.equal(S.to_dense(), dense)


@pytest.mark.parametrize("form", FORMATS)
def test_results_that_are_views_of_something_hidden_can_be_written_to(form: str) -> None:
    S = scorch.from_torch(torch.eye(3), format=form)
    K = torch.kron(S, torch.ones(1, 1))
    K[:, 1] = 7
    assert K.to_dense()[:, 1].tolist() == [7, 7, 7]
    R = S.rot90()
    R[0] = 5
    assert R.to_dense()[0].tolist() == [5, 5, 5] and torch.equal(S.to_dense(), torch.eye(3))


def test_a_view_sees_the_tensor_before_it_is_written_to() -> None:
    D = torch.tensor([[1.0, 0, 2], [0, 3, 0]])
    S = scorch.from_torch(D, format="csr")
    row, same = S[0], D[0]
    S[0, 0] = D[0, 0] = 100.0
    row.mul_(2)
    same.mul_(2)
    assert torch.equal(S.to_dense(), D) and torch.equal(row.to_dense(), same)
    part, also = S[0:1], D[0:1]
    S.zero_()
    D.zero_()
    part += 1
    also += 1
    assert torch.equal(S.to_dense(), D)


@pytest.mark.parametrize("form", [*FORMATS, "sd", "bsr(2,2)"])
def test_sums_in_whole_numbers_convert_what_they_add(form: str) -> None:
    D = torch.tensor([[1.6, 0, 1.6, 0.7], [0, -1.7, 0, 0]])
    S = scorch.from_torch(D, format=form)
    for dim in (0, 1, (0, 1)):
        assert torch.equal(S.sum(dim, dtype=torch.int64), D.sum(dim, dtype=torch.int64))
    assert torch.equal(S.sum(dtype=torch.int16), D.sum(dtype=torch.int16))


def test_classes_that_are_not_there() -> None:
    for wrong in (9, -2):
        with pytest.raises(CallError, match="one_hot"):
            F.one_hot(scorch.from_torch(torch.tensor([0, wrong, 1]), format="s"), 4)
    found = F.one_hot(scorch.from_torch(torch.tensor([0, 3, 1]), format="s"), 4)
    assert torch.equal(found.to_dense(), F.one_hot(torch.tensor([0, 3, 1]), 4))


@pytest.mark.parametrize("form", FORMATS)
def test_dense_tensors_take_sparse_masks(form: str) -> None:
    D = torch.randn(6, 8)
    M = scorch.from_torch(D > 0, format=form)
    assert torch.equal(D[M], D[D > 0])
    wanted = D.clone()
    wanted[D > 0] = 3.0
    D[M] = 3.0
    assert torch.equal(D, wanted)


@pytest.mark.parametrize(
    "workers", [0, pytest.param(1, marks=pytest.mark.cpu("processes that fork cannot use a GPU"))]
)
def test_data_loaders(workers: int) -> None:
    S = scorch.from_torch(torch.eye(6), format="csr")
    batches = [
        batch.to_dense() for (batch,) in DataLoader(TensorDataset(S), batch_size=2, num_workers=workers)
    ]
    assert torch.equal(torch.cat(batches), torch.eye(6))


def test_running_sums_are_refused_before_they_fill_memory() -> None:
    A = scorch.rand(200_000, 200_000, density=5e-8, format="csr")
    with scorch.settings(dense_budget=10**9), pytest.raises(DensityError):
        A.cumsum(1)


@needs_linear_cross_entropy
@pytest.mark.parametrize("form", ["s", "o"])
def test_dense_scores_with_sparse_targets_and_weights(form: str) -> None:
    torch.manual_seed(0)
    scores, target, weight = torch.randn(4, 3).double(), torch.tensor([0, 2, 1, 2]), torch.rand(3).double()
    T, W = scorch.from_torch(target, format=form), scorch.from_torch(weight, format=form)
    for reduction in ("none", "mean", "sum"):
        found = F.nll_loss(scores, T, W, reduction=reduction)
        found = found.to_dense() if isinstance(found, scorch.SparseTensor) else found
        torch.testing.assert_close(found, F.nll_loss(scores, target, weight, reduction=reduction))
    X, L = torch.randn(4, 5).double(), torch.randn(3, 5).double()
    sparse = scorch.from_torch(X, format="csr"), scorch.from_torch(L, format="csr")
    torch.testing.assert_close(
        F.linear_cross_entropy(*sparse, T), F.linear_cross_entropy(X, L, target), check_stride=False
    )


def test_dropout_that_changes_zeros_draws_for_every_element() -> None:
    D = torch.eye(6).double()
    S = scorch.from_torch(D, format="csr")
    torch.manual_seed(3)
    found = F.alpha_dropout(S, 0.5, training=True)
    torch.manual_seed(3)
    assert torch.equal(found, F.alpha_dropout(D, 0.5, training=True))
    assert torch.equal(F.alpha_dropout(S, 0.5, training=False).to_dense(), D)


def test_arguments_by_name() -> None:
    D = torch.eye(3).double()
    S = scorch.from_torch(D, format="csr")
    assert torch.equal(torch.cat([S, S], axis=1).to_dense(), torch.cat([D, D], 1))
    assert torch.equal(torch.concatenate(tensors=[S, S], dim=1).to_dense(), torch.cat([D, D], 1))
    assert torch.equal(torch.sum(input=S, dim=1), D.sum(1)) and torch.equal(S.sum(axis=0), D.sum(0))
    assert torch.equal(torch.relu(input=S).to_dense(), D) and torch.equal(torch.t(input=S).to_dense(), D)


@pytest.mark.parametrize("shape", [(0, 4), (5, 0, 3), (0, 0, 3)])
def test_rows_of_tensors_that_have_none(shape: tuple[int, ...]) -> None:
    S = scorch.from_torch(torch.zeros(shape), format="csr")
    if shape[0]:  # torch looks at places only where there is something
        assert S[torch.tensor([9])].shape == torch.zeros(shape)[torch.tensor([9])].shape
    else:
        with pytest.raises(IndexError):
            S[torch.tensor([9])]
    nothing = torch.zeros(0, dtype=torch.int64)
    assert S[nothing].shape == torch.zeros(shape)[nothing].shape


def test_results_with_gradients_are_not_written_to_out() -> None:
    S = scorch.from_torch(torch.eye(3), format="csr").requires_grad_()
    with pytest.raises(RuntimeError, match=r"out=.*automatic differentiation"):
        torch.linalg.matrix_power(S, 2, out=torch.zeros(3, 3))
