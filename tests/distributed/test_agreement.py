"""Calls that one rank makes otherwise than the others raise errors on all ranks, which stay in step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import scorch
import scorch.distributed as sd
from distributed.test_conventions import operand, random_matrix, shard
from distributed.test_sharded import close
from processes import in_processes
from scorch.errors import CommunicationError, ScorchError

Call = Callable[[bool], Any]  # given whether this rank is the odd one


def different_calls() -> dict[str, Call]:
    """Calls of which both forms are right, by what all ranks say of the odd one."""
    D = random_matrix()
    A, S = shard(D), scorch.from_torch(D, format="csr")
    A32, B = A.to(torch.float32), shard(random_matrix(seed=3), rows=A.cuts)
    x = A.columns_of(operand(3))
    narrow = x[:, :2].contiguous()
    for known in (x, narrow):  # kinds that all ranks have exchanged before
        A @ known, A.T @ known, B @ known
    A32 @ x.float()

    def with_gradient(X: torch.Tensor, is_odd: bool) -> torch.Tensor:
        return X.clone().requires_grad_(is_odd)

    def within_budget(is_odd: bool) -> Any:
        with scorch.settings(exchange_budget=10 if is_odd else None):
            return A @ x

    calls: dict[str, Call] = {
        "rows of shape (3,)": lambda is_odd: A @ (x if is_odd else narrow),
        "partial sums of shape (3,)": lambda is_odd: A.T @ (x if is_odd else narrow),
        "dtype torch.float32": lambda is_odd: A32 @ x.float() if is_odd else A @ x,
        "for plan ": lambda is_odd: (B if is_odd else A) @ x,
        "x requires gradients": lambda is_odd: A @ with_gradient(x, is_odd),
        "exchange_budget=10": within_budget,
        "a tensor of shape (3,)": lambda is_odd: sd.sum_processes(torch.ones(2 + is_odd), A.group),
        "a tensor of shape () and dtype torch.float64": lambda is_odd: sd.mean(x if is_odd else x.float()),
        "split=3": lambda is_odd: sd.shard(S, split=3 if is_odd else False),
        "columns=[0, 6, 12]": lambda is_odd: sd.shard(S, rows=[0, 6, 12], columns=[0, 5 + is_odd, 12]),
        "wire=torch.bfloat16": lambda is_odd: sd.shard(S, wire=torch.bfloat16 if is_odd else None),
        "algorithm='rounds'": lambda is_odd: sd.with_algorithm(A, "rounds" if is_odd else "halo"),
        "memory=9": lambda is_odd: sd.with_algorithm(A, "auto", memory=9 if is_odd else None),
        "rows=None": lambda is_odd: (
            sd.repartition(A, owners=A.rows_of(torch.arange(12) % 2))
            if is_odd
            else sd.repartition(A, rows=[0, 5, 12])
        ),
        "along=[((3,)": lambda is_odd: sd.repartition(A, [0, 5, 12], along=[x] if is_odd else None),
        "imbalance=0.5": lambda is_odd: sd.partition(A, imbalance=0.5 if is_odd else 0.03),
    }
    for algorithm, words in (("rounds", "rows of shape (3,)"), ("features", "features of shape (4,)")):
        C = sd.with_algorithm(A, algorithm)
        calls[f"{words} for {algorithm}"] = lambda is_odd, C=C: C @ (x if is_odd else narrow)
        calls[f"A requires gradients for {algorithm}"] = lambda is_odd, C=C: (
            C.with_local(C.local.clone().requires_grad_(is_odd)) @ x
        )
    return calls


def wrong_calls() -> dict[str, Call]:
    """Calls that are wrong on the odd rank, by their errors: the others quote these instead of waiting."""
    D = random_matrix()
    A, S = shard(D), scorch.from_torch(D, format="csr")
    x = A.columns_of(operand(3))
    F, R = (sd.with_algorithm(A, algorithm) for algorithm in ("features", "rounds"))
    U = shard(D, rows=[0, 5, 12])
    y = U.rows_of(operand(3))
    E = sd.to_dtensor(y, U)
    return {
        "ShapeError: x has 5 rows": lambda is_odd: A @ (x[:5] if is_odd else x),
        "ShapeError: x has 4 rows": lambda is_odd: F @ (x[:4] if is_odd else x),
        "ShapeError: x has 3 rows": lambda is_odd: R @ (x[:3] if is_odd else x),
        "CallError: matmul: expected both": lambda is_odd: A @ (x.float() if is_odd else x),
        "OperandError: x must be": lambda is_odd: A @ (3 if is_odd else x),
        "ShapeError: operand1 has 5 rows": lambda is_odd: sd.einsum("ij,jk->ik", A, x[:5] if is_odd else x),
        "ShapeError: rows has 6 rows": lambda is_odd: sd.to_dtensor(y[is_odd:], U),
        "OperandError: x is a DTensor": lambda is_odd: A @ (E if is_odd else x),
        "ArgumentError: features must": lambda is_odd: sd.partition(A, features=5 if is_odd else ()),
        "ArgumentError: imbalance must": lambda is_odd: sd.partition(A, imbalance=-1 if is_odd else 0.03),
        "ArgumentError: rows must be int": lambda is_odd: sd.repartition(A, [0, 5.5 if is_odd else 5, 12]),
        "ArgumentError: method must be int": lambda is_odd: sd.partition(A, None if is_odd else "label"),
        "OperandError: shard expected": lambda is_odd: sd.shard(D if is_odd else S),
        "ArgumentError: format must be sparse": lambda is_odd: sd.shard(S, format="dd" if is_odd else None),
        "ArgumentError: algorithm must": lambda is_odd: sd.shard(S, algorithm="x" if is_odd else "halo"),
        "ArgumentError: replicas must": lambda is_odd: sd.with_algorithm(A, "1.5d", replicas=2 + is_odd),
        "OperandError: shard_rows expected": lambda is_odd: sd.shard_rows(D if is_odd else S),
        "ShapeError: rows must increase": lambda is_odd: sd.repartition(A, [0, 5, 12 - is_odd]),
        "ArgumentError: owners must be": lambda is_odd: sd.repartition(A, owners=[2 * is_odd] * 12),
        "ShapeError: method must have": lambda is_odd: sd.partition(A, [0] * (12 - is_odd)),
    }


def refused(call: Call, is_odd: bool) -> ScorchError:
    with pytest.raises(ScorchError) as error:
        call(is_odd)
    return error.value


def check_refusals(rank: int) -> None:
    is_odd = rank == 1
    for words, call in different_calls().items():
        error = refused(call, is_odd)
        odd = str(error).partition(", but rank 0 has")[0]
        assert isinstance(error, CommunicationError) and "rank 1 has" in odd, str(error)
        assert words.partition(" for ")[0] in odd, str(error)
    for words, call in wrong_calls().items():
        error = refused(call, is_odd)
        shown = f"{type(error).__name__}: {error}" if is_odd else str(error).partition("rank 1 raised ")[2]
        assert shown.startswith(words), str(error)
    D = random_matrix()
    A = shard(D)
    close(A @ A.columns_of(operand()), A.rows_of(D @ operand()))  # ranks are in step
    check_missing_gradients(rank)
    check_first_use(rank)


def check_missing_gradients(rank: int) -> None:
    """A weight without a gradient on one rank gets those of the others; one without any gets none."""
    weights = [torch.ones(2, requires_grad=True) for _ in range(3)]
    (weights[0].sum() + (weights[1] * 3).sum() * rank if rank else weights[0].sum()).backward()
    sd.sum_gradients(weights)
    assert [None if w.grad is None else w.grad.tolist() for w in weights] == [[2, 2], [3, 3], None]


def check_first_use(rank: int) -> None:
    """Where comparing would wait for a queue, kinds are compared at first use, and always for debugging."""
    from scorch._src.distributed.communication import route

    compares_always, route.compares_always = route.compares_always, lambda group, device: False
    A = shard(random_matrix())
    x = A.columns_of(operand(3))
    narrow = x[:, :2].contiguous()
    with pytest.raises(CommunicationError, match="rank 1 has rows of shape"):
        A @ (x if rank else narrow)
    A @ x, A @ narrow
    dist.set_debug_level(dist.DebugLevel.INFO)
    try:
        with pytest.raises(CommunicationError, match="rank 1 has rows of shape"):
            A @ (x if rank else narrow)
    finally:
        dist.set_debug_level(dist.DebugLevel.OFF)
        route.compares_always = compares_always


def test_calls_that_differ_between_ranks_raise_errors_on_all(tmp_path):
    in_processes(check_refusals, tmp_path, 2)
