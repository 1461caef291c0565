"""What all calls of sharded tensors share: whose gradients are parts, which options stay, what is refused."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch

import scorch
import scorch.distributed as sd
from distributed.test_sharded import close
from processes import in_processes
from scorch.errors import (
    CallError,
    CommunicationError,
    OperandError,
    ScorchWarning,
    ShapeError,
    UnsupportedError,
)


def random_matrix(rows: int = 12, columns: int = 12, seed: int = 0) -> torch.Tensor:
    """A matrix with zeros, the same in all processes."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.rand(rows, columns, generator=generator, dtype=torch.float64) + 0.1
    return torch.where(torch.rand(rows, columns, generator=generator) < 0.3, dense, 0.0)


def shard(dense: torch.Tensor, **options: Any) -> Any:
    return sd.shard(scorch.from_torch(dense, format="csr"), **options)


def operand(columns: int = 2) -> torch.Tensor:
    return torch.linspace(-1, 2, 12 * columns, dtype=torch.float64).reshape(12, columns)


def check_gradients_of_numbers(rank: int) -> None:
    """A weight's gradient is this process's part by any call; that of a norm of the entries is whole."""
    D, X = random_matrix(), operand()
    A = shard(D)
    x = A.columns_of(X)
    wanted = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    ((D * wanted.exp()) @ X).sin().sum().backward()
    for product in (
        lambda w: (A * w.exp()) @ x,
        lambda w: (A / (1 / w.exp())) @ x,
        lambda w: sd.einsum("ij,jk,->ik", A, x, w.exp()),
    ):
        w = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        sd.sum_processes(product(w).sin().sum(), A.group).backward()
        sd.sum_gradients([w])
        close(w.grad, wanted.grad)
    dense = D.clone().requires_grad_()
    ((dense / dense.norm()) @ X).sin().sum().backward()
    for scaled in (lambda A: A / A.norm(), lambda A: sd.einsum("ij,->ij", A, 1 / A.norm())):
        A = shard(D).requires_grad_()
        sd.sum_processes((scaled(A) @ x).sin().sum(), A.group).backward()
        close(A.grad.gather().to_dense(), torch.where(D != 0, dense.grad, 0.0))
    with pytest.raises(UnsupportedError, match="spread"):
        A * (A.norm() * w)
    sd.sum_processes(((A * (sd.spread(A.norm(), A.group) * w)) @ x).sum(), A.group).backward()


def check_factors_of_sums(rank: int) -> None:
    """A sum over a sharded index that stands beside entries is refused, as each process has a part of it."""
    D, b = random_matrix(), operand(1)[:, 0]
    A = shard(D)
    own = A.columns_of(b)
    for value in (
        "sum(i, sum(j, A[i,j])) * sum(j, b[j])",
        "sum(j, b[j]) * sum(i, sum(j, A[i,j]))",
        "sum(i, sum(j, A[i,j])) / sum(j, b[j])",
        "sum(j, b[j] * sum(i, sum(j, A[i,j])))",
        "sum(i, sum(j, A[i,j] * sum(j, b[j])))",
    ):
        with pytest.raises(UnsupportedError, match="not supported for sharded"):
            sd.evaluate(f"y[] = {value}", A=A, b=own)
    close(sd.evaluate("y[] = sum(i, sum(j, A[i,j])) * sum(k, c[k])", A=A, c=b), D.sum() * b.sum())


def check_nested_counters(rank: int) -> None:
    A = shard(random_matrix())
    x = A.columns_of(operand())
    with sd.count_bytes() as outer:
        with sd.count_bytes() as inner:
            A @ x
        A @ x
    assert outer.received == 2 * inner.received > 0


def check_orders(rank: int, folder: str) -> None:
    """Rows and columns that were partitioned keep their own order through moves, transposes and files."""
    D, X = random_matrix(), operand()
    P = sd.partition(shard(D), "hash")
    moved = sd.repartition(P, rows=[0, 4, 12], columns=[0, 7, 12])
    sd.save({"P": P, "moved": moved}, f"{folder}/orders")
    loaded = sd.load(f"{folder}/orders")
    recut = sd.load(f"{folder}/orders", cuts=[0, 2, 12], columns=[0, 6, 12])
    tall = random_matrix(12, 9)
    tensors = [(P, D), (moved, D), (sd.repartition(moved, [0, 5, 12]), D)]
    tensors += [(found, D) for found in (*loaded.values(), *recut.values())]
    tensors.append((sd.repartition(shard(tall), owners=torch.arange(12) % 2), tall))
    for A, dense in tensors:
        for B, wanted in ((A, dense), (A.T, dense.t())):
            columns = X[: wanted.shape[1]]
            close(B @ B.columns_of(columns), B.rows_of(wanted @ columns))
    close((P @ P).columns_of(X), P.columns_of(X))
    other = shard(D, rows=P.cuts)
    for call in (lambda: P + other, lambda: P @ other, lambda: sd.einsum("ij,ij->ij", P, other)):
        with pytest.raises(ShapeError, match="different orders"):
            call()
    same = sd.repartition(shard(D), owners=torch.arange(12) * 2 // 12)  # nothing is renumbered
    assert same.rows.order is None and torch.equal(same.order, torch.arange(same.rows.begin, same.rows.end))


def check_options(rank: int, folder: str) -> None:
    """What is made of a tensor, or loaded, has its options and a plan that tells them."""
    D, X = random_matrix(), operand()
    options: list[dict[str, Any]] = [
        {"algorithm": "1.5d", "replicas": 2},
        {"algorithm": "rounds", "wire": torch.float32},
        {"algorithm": "features"},
        {"split": 2},
    ]
    for given in options:
        A, B = shard(D, **given), shard(random_matrix(seed=3), **given)
        sd.save({"A": A}, f"{folder}/options")
        kept = [A + B, sd.load(f"{folder}/options")["A"], A.T.T, sd.partition(A, "hash")]
        if "split" in given:
            kept.pop()
        for made in [*kept, sd.repartition(A), A @ B, sd.repartition(A, [0, 5, 12])]:
            assert made.wire == given.get("wire") and str(made.plan)
            same = made.algorithm, made.replicas, made.has_split_rows == A.has_split_rows
            assert same == (A.algorithm, A.replicas, True) or all(made is not one for one in kept)
        for made in kept[:2]:
            wanted = D + random_matrix(seed=3) if made is kept[0] else D
            torch.testing.assert_close(
                made @ made.columns_of(X), made.rows_of(wanted @ X), rtol=1e-5, atol=1e-5
            )


def check_norms(rank: int) -> None:
    """Norms are torch's, with its gradients at zeros and at largest entries; others are refused."""
    D = random_matrix()
    D[0, :3], D[7, 1:3] = 3.0, -3.0
    for dense, p in ((D, 2), (D, 3), (D, 0.5), (D, float("inf")), (D * 0, 2)):
        A = (shard(D) * (1 if dense is D else 0)).detach().requires_grad_()
        wanted = dense.clone().requires_grad_()
        found = A.norm(p)
        close(found, wanted.norm(p))
        assert torch.equal(torch.linalg.vector_norm(A, ord=p), found)
        found.backward()
        wanted.norm(p).backward()
        close(A.grad.gather().to_dense(), torch.where(D != 0, wanted.grad, 0.0).nan_to_num())
    close(torch.linalg.norm(A), torch.linalg.norm(D * 0))
    for order in (1, 2, float("inf"), "nuc"):
        with pytest.raises(UnsupportedError, match="is a matrix norm"):
            torch.linalg.norm(A, order)


def check_gathered_gradients(rank: int) -> None:
    """Gathered entries carry gradients, twice; so do normalised ones with a row that sums up to zero."""
    D = random_matrix()
    A, wanted = shard(D).requires_grad_(), D.clone().requires_grad_()
    (ours,) = torch.autograd.grad((A.gather().to_dense() ** 3).sum(), A.local, create_graph=True)
    (theirs,) = torch.autograd.grad((wanted**3).sum(), wanted, create_graph=True)
    (A.with_local(ours).gather().to_dense() ** 2).sum().backward()
    (theirs**2).sum().backward()
    close(A.grad.gather().to_dense(), wanted.grad)
    A.grad = None
    assert A.local.grad is None
    zero = torch.tensor([[0, 1.0, -1], [1, 0, 0], [0, 1, 0]])
    A = shard(zero).requires_grad_()
    (sd.normalize(A) @ A.columns_of(torch.ones(3, 1))).sum().backward()
    assert A.grad.local.values().isfinite().all()


def check_kept_matrices(rank: int) -> None:
    """What layers keep of a matrix is made anew after its entries change, even in one process alone."""
    D, X = random_matrix(), operand()
    torch.manual_seed(0)
    layer = scorch.nn.GCNConv(2, 2).double()
    for algorithm in ("halo", "features"):
        A, other = (shard(dense, algorithm=algorithm) for dense in (D, D**3))
        x = A.columns_of(X)
        layer(x, A), A @ x, A.T @ x
        if rank == 1:
            with torch.no_grad():
                A.local.values().pow_(3)
        changed = shard(A.gather().to_dense(), rows=A.cuts, algorithm=algorithm)
        close(layer(x, A), layer(x, changed))
        close(A @ x, changed @ x)
        A.local = other.local
        close(layer(x, A), layer(x, other))
        close(A.T @ x, other.T @ x)


def check_budgets(rank: int) -> None:
    """The budget is for all kinds of exchanges, and for all exchanges of a call together."""
    A = shard(random_matrix(), split=1)
    x = A.columns_of(operand())
    routes = A.columns.route, A.rows.route
    most = [route.most * 2 * 8 for route in routes]
    assert all(most)
    F = shard(random_matrix(), algorithm="features")
    for budget, call in (
        (1, A.gather),
        (1, A.sum),
        (1, A.norm),
        (1, lambda: sd.sum_processes(x, A.group)),
        (sum(most) - 1, lambda: A @ x),
        (2 * 12 * 2 * 8, lambda: F @ x),
    ):
        with scorch.settings(exchange_budget=budget), pytest.raises(CommunicationError, match="would move"):
            call()
    with scorch.settings(exchange_budget=sum(most)):
        A @ x
        A @ x  # which is another call
    check_budget_of_gradients(A, x, sum(most))


def check_budget_of_gradients(A: Any, x: torch.Tensor, most: int) -> None:
    """The gradients of a call are one call in each backward pass, whatever else is in it."""
    x = x.clone().requires_grad_()
    y = A @ x
    loss = (y + A @ x).sum()
    with scorch.settings(exchange_budget=most):
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    with scorch.settings(exchange_budget=most - 1), pytest.raises(CommunicationError, match="would move"):
        loss.backward()
    (twice,) = torch.autograd.grad((A @ x).square().sum(), x, create_graph=True)
    with scorch.settings(exchange_budget=2 * most - 1), pytest.raises(CommunicationError, match="would move"):
        twice.sum().backward()  # the product, forward and backward


def check_dtypes(rank: int) -> None:
    """Products follow autocast, and reductions refuse the dtypes that they refuse on one process."""
    D, X = random_matrix().float(), operand().float()
    A = shard(D)
    x, product = A.columns_of(X), A.rows_of(D @ X)
    torch.manual_seed(0)
    layer = scorch.nn.GCNConv(2, 2)
    wanted = layer(x, A)
    A = shard(D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for algorithm in ("halo", "features"):
            found = sd.with_algorithm(A, algorithm) @ x.bfloat16()
            assert found.dtype == torch.bfloat16
            torch.testing.assert_close(found.float(), product, rtol=0.05, atol=0.05)
        assert layer(x, A).dtype == torch.bfloat16
    assert torch.equal(layer(x, A), wanted)  # with the matrix that the layer cached under autocast
    counts = A.map_local(lambda local: (local * 10).to(torch.int64))
    for call in (counts.mean, counts.norm, lambda: counts.norm(float("inf")), lambda: counts.mean(1)):
        with pytest.raises(CallError, match="loating point or complex"):
            call()
    for dim in (0, 1):
        with pytest.raises(OperandError, match="floating-point"):
            counts.softmax(dim)


def check_copies(rank: int) -> None:
    """A copy has the options of the tensor; a deep copy has entries of its own."""
    A = shard(random_matrix(), algorithm="rounds", wire=torch.float32)
    for other, shares in ((copy.copy(A), True), (copy.deepcopy(A), False)):
        assert (other.algorithm, other.wire) == ("rounds", torch.float32)
        assert (other.local.values().data_ptr() == A.local.values().data_ptr()) == shares
    with pytest.raises(UnsupportedError, match=r"A\.with_local\(torch\.nn\.Parameter"):
        torch.nn.Parameter(A)
    trained = A.with_local(torch.nn.Parameter(A.local))
    trained.sum().backward()
    assert trained.local.grad.nnz == A.local.nnz


CHECKS = [
    check_gradients_of_numbers,
    check_factors_of_sums,
    check_nested_counters,
    check_norms,
    check_gathered_gradients,
    check_kept_matrices,
    check_budgets,
    check_dtypes,
    check_copies,
]


def check_all(rank: int, folder: str) -> None:
    for check in CHECKS:
        check(rank)
    check_orders(rank, folder)
    check_options(rank, folder)


def test_calls_keep_their_conventions(tmp_path):
    in_processes(functools.partial(check_all, folder=str(tmp_path)), tmp_path, 2)


def test_shard_rows_of_a_dense_tensor_are_refused() -> None:
    with pytest.raises(OperandError, match="shard_rows expected a SparseTensor, but got a Tensor"):
        sd.shard_rows(torch.eye(3))


def test_a_forgotten_init_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    S = scorch.eye(3, format="csr")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(ScorchWarning, match=r"torchrun started 2 processes; call .*init\(\)") as seen:
        sd.shard(S)
    assert seen[0].filename == __file__
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert sd.shard(S).shape == (3, 3)


def test_init_without_torchrun_names_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="RANK expected") as failed:
        sd.init()
    said = "\n".join([str(failed.value), *getattr(failed.value, "__notes__", [])])
    assert "torchrun --nproc-per-node 2" in said
