"""Sharded tensors compute what one process does, of any pattern, cuts and format, gradients included."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import scorch
import scorch.distributed as sd
from distributed.sharded_cases import Case, draw
from processes import in_processes


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.detach(), wanted.detach(), rtol=1e-9, atol=1e-11)


def check_products(case: Case) -> None:
    A, D = case.A, case.dense
    close(A @ case.columns(case.X), case.rows(D @ case.X))
    close(A @ case.columns(case.X)[:, 0], case.rows(D @ case.X[:, 0]))
    close(A.T @ case.rows(case.Q), case.columns(D.T @ case.Q))
    close(case.rows(case.Q).t() @ A, case.columns(D.T @ case.Q).t())


def check_elementwise_and_sums(case: Case) -> None:
    A, D = case.A, case.dense
    close(A.gather().to_dense(), D)
    close((A * 2 - A / 4 + torch.sin(A)).gather().to_dense(), D * 2 - D / 4 + torch.sin(D))
    close(A.sum(), D.sum())
    close(A.sum(0), case.columns(D.sum(0)))
    close(A.sum(1), case.rows(D.sum(1)))
    close(A.norm(), D.norm())
    close(A.norm(1), D.abs().sum())
    flipped = torch.flip(D, [0])
    other = sd.shard(scorch.from_torch(flipped, format="csr"), rows=A.cuts, columns=A.columns.cuts)
    check_two(A, other, D, flipped)
    if D.shape[0] == D.shape[1]:
        check_two(A, A.T, D, D.T)
        check_two(A.T, other, D.T, flipped)


def check_two(A: Any, B: Any, one: torch.Tensor, other: torch.Tensor) -> None:
    """Entries at the same coordinates meet, wherever they are: sums have no entry on two ranks."""
    close((A * B).gather().to_dense(), one * other)
    close(torch.relu(A + B).gather().to_dense(), torch.relu(one + other))
    close(sd.evaluate("y[] = A[i,j] * B[i,j]", A=A, B=B), (one * other).sum())


def check_statements(case: Case) -> None:
    A, D, X, Q = case.A, case.dense, case.X, case.Q
    x, q = case.columns(X), case.rows(Q)
    scores = sd.einsum("ij,ik,jk->ij", A, q, x)
    close(scores.gather().to_dense(), D * (Q @ X.t()))
    close(sd.einsum("ij,ik,jk->", A, q, x), (D * (Q @ X.t())).sum())
    close(sd.einsum("ij,j->ij", A, x[:, 0]).gather().to_dense(), D * X[:, 0])
    close(sd.einsum("ij,jk->ijk", A, x).gather().to_dense(), D[:, :, None] * X)
    close(sd.evaluate("Y[k,i] = 3 * A[i,j] * x[j,k]", A=A, x=x), case.rows(3 * D @ X).t())
    close(
        sd.evaluate("y[j] = A[i,j] * q[i,k] * w[k]", A=A, q=q, w=Q.new_ones(Q.shape[1])),
        case.columns(D.t() @ Q.sum(1)),
    )
    if str(A.format).startswith("bsr"):
        return  # whose blocks store zeros
    stored = D != 0
    low = torch.where(stored, D, -torch.inf)
    wanted = torch.where(stored, torch.softmax(low, 1) if D.numel() else D, 0.0)
    close(A.softmax(1).gather().to_dense(), wanted)
    wanted = torch.where(stored, torch.softmax(low, 0) if D.numel() else D, 0.0)
    close(A.softmax(0).gather().to_dense(), wanted)


def check_gradients(case: Case) -> None:
    A = case.A.to_format("csr").requires_grad_()
    if "bsr" in str(case.A.format) or not case.dense.numel():
        return  # blocks store zeros
    x, q = case.columns(case.X).clone().requires_grad_(), case.rows(case.Q).clone().requires_grad_()
    D = case.dense.clone().requires_grad_()
    X, Q = case.X.clone().requires_grad_(), case.Q.clone().requires_grad_()
    found = torch.tanh(sd.einsum("ij,ik,jk->ij", A, q, x).softmax(1) @ x) ** 2
    found = sd.sum_processes(found.sum() + (A @ x).sin().sum(), A.group)
    scores = torch.where(case.dense != 0, D * (Q @ X.t()), -torch.inf)
    weights = torch.where(case.dense != 0, torch.softmax(scores, 1), 0.0) if D.numel() else D
    wanted = (torch.tanh(weights @ X) ** 2).sum() + (D @ X).sin().sum()
    close(found, wanted)
    ours = torch.autograd.grad(found, [x, q], create_graph=True)
    theirs = torch.autograd.grad(wanted, [X, Q], create_graph=True)
    close(ours[0], case.columns(theirs[0]))
    close(ours[1], case.rows(theirs[1]))
    second = sd.sum_processes((ours[0] ** 2).sum() + (ours[1] ** 2).sum(), A.group)
    second_wanted = (theirs[0] ** 2).sum() + (theirs[1] ** 2).sum()
    close(second, second_wanted)
    second.backward()
    second_wanted.backward()
    close(x.grad, case.columns(X.grad))
    close(A.grad.gather().to_dense(), torch.where(case.dense != 0, D.grad, 0.0))


def check_sparse_products(case: Case) -> None:
    A, D = case.A, case.dense
    if A.has_split_rows or D.shape[0] != D.shape[1]:
        return
    close((A @ A).gather().to_dense(), D @ D)


def check_tensors_of_three_dimensions(case: Case) -> None:
    D = case.dense[:, :, None] * torch.linspace(1, 2, 4, dtype=torch.float64)
    D = torch.where(D.abs() > 0.3, D, 0.0)
    T = sd.shard(scorch.from_torch(D, format="coo"), rows=case.A.cuts, columns=case.A.columns.cuts)
    C = torch.linspace(-1, 1, 4 * case.X.shape[1], dtype=torch.float64).reshape(4, -1).requires_grad_()
    x = case.columns(case.X).clone().requires_grad_()
    found = sd.einsum("ijk,jr,kr->ir", T, x, C)
    X, whole = case.X.clone().requires_grad_(), C.detach().clone().requires_grad_()
    wanted = torch.einsum("ijk,jr,kr->ir", D, X, whole)
    close(found, case.rows(wanted))
    found.pow(2).sum().backward()
    wanted.pow(2).sum().backward()
    close(x.grad, case.columns(X.grad))
    sd.sum_gradients([C])
    close(C.grad, whole.grad)
    close(sd.einsum("ijk,ir,jr->kr", T, case.rows(case.Q), x), torch.einsum("ijk,ir,jr->kr", D, case.Q, X))


CHECKS = [
    check_products,
    check_elementwise_and_sums,
    check_statements,
    check_gradients,
    check_sparse_products,
    check_tensors_of_three_dimensions,
]


def check_all(rank: int, first: int, count: int, again: bool = False) -> list[torch.Tensor]:
    """Run all checks on some draws; return results, of which the bits are the same at each run."""
    bits = []
    for seed in range(first, first + count):
        for check in () if again else CHECKS:
            case = draw(seed, dist.get_world_size())
            try:
                check(case)
            except Exception as error:
                raise AssertionError(
                    f"{check.__name__}, seed {seed}, process {rank}: {error!r}\n{case.A!r}"
                ) from error
        case = draw(seed, dist.get_world_size())
        bits.append(case.A.T @ case.rows(case.Q))
    return bits


@pytest.mark.parametrize(
    "world", [pytest.param(2, marks=pytest.mark.long), 3, pytest.param(4, marks=pytest.mark.long)]
)
def test_sharded_tensors_are_those_of_one_process(world, cases, seed, tmp_path):
    work = functools.partial(check_all, first=seed + 1000 * world, count=max(2, cases // 4))
    once = in_processes(work, make_folder(tmp_path, "once"), world)
    if world == 2:
        again = in_processes(functools.partial(work, again=True), make_folder(tmp_path, "again"), world)
        for one, other in zip(once, again, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def make_folder(place: Path, name: str) -> Path:
    (place / name).mkdir()
    return place / name


def count_and_compare(rank: int) -> None:
    """What moves is what the plan says, and nothing but that."""
    for seed in range(6):
        case = draw(seed, dist.get_world_size())
        A, x = case.A, case.columns(case.X)
        with sd.count_bytes() as traffic:
            A @ x
        each = x.shape[1] * x.element_size()
        plans = [A.columns.route.incoming, len(A.rows.route.picks)]
        assert traffic.received == sum(plans) * each


def test_bytes_that_move_are_those_of_the_plan(tmp_path):
    in_processes(count_and_compare, tmp_path, 3)


def test_arguments_that_are_not_sharded_or_no_tensors() -> None:
    S = scorch.eye(3, format="csr")
    A = sd.shard(S)
    OperandError = scorch.errors.OperandError
    calls: list[tuple[Any, str]] = [
        (
            lambda: sd.partition(S),
            "expected a sharded tensor, .* shard it first",
        ),
        (lambda: sd.shard(torch.eye(3)), "create one with scorch.from_torch"),
        (lambda: sd.shard(A), "it is sharded already"),
        (lambda: sd.shard(S, 2), "mesh must be a device mesh, .* but got 2"),
        (lambda: A.rows_of([[1.0]]), "must be a tensor, but got a list; create one with torch.tensor"),
        (lambda: A @ torch.eye(3).to_sparse(), "must be dense, but got layout torch.sparse_coo"),
        (lambda: sd.sum_gradients(torch.nn.Linear(2, 2)), r"pass module\.parameters\(\)"),
        (lambda: sd.mean(3.0), "rows must be a tensor, but got a float"),
    ]
    for call, message in calls:
        with pytest.raises(OperandError, match=message):
            call()
