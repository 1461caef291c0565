"""Products by any algorithm are those of one process, and move, hold and refuse what their plan says."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import scorch
import scorch.distributed as sd
from distributed.sharded_cases import Case, draw
from distributed.test_sharded import check_gradients, check_products, close
from processes import in_processes
from scorch._src.distributed import products
from scorch._src.events import LISTENERS

ALGORITHMS = ("halo", "rounds", "features", "1.5d")


def use(case: Case, algorithm: str) -> Case:
    """The case by an algorithm; all halos are exchanged while own entries are multiplied."""
    products.OVERLAP_BYTES = 0
    world = dist.get_world_size()
    replicas = (world if world == 3 else 2) if algorithm == "1.5d" else None
    case.A = sd.with_algorithm(case.A, algorithm, replicas=replicas)
    return case


def check_algorithms(rank: int, first: int, count: int) -> list[torch.Tensor]:
    """Compare all algorithms with one process; return bits, which are the same at each run."""
    bits = []
    for seed in range(first, first + count):
        for algorithm in ALGORITHMS:
            case = use(draw(seed, dist.get_world_size()), algorithm)
            try:
                check_products(case)
                check_gradients(case)
                bits.append(case.A @ case.columns(case.X))
            except Exception as error:
                raise AssertionError(f"{algorithm}, seed {seed}, process {rank}: {error!r}") from error
    check_complex()
    return bits


def check_complex() -> None:
    """Gradients of complex numbers are those of one process."""
    for algorithm in ("halo", "rounds"):
        case = use(draw(4, dist.get_world_size(), torch.complex128), algorithm)
        A = case.A.to_format("csr").requires_grad_()
        x, X = case.columns(case.X).clone().requires_grad_(), case.X.clone().requires_grad_()
        D = case.dense.clone().requires_grad_()
        sd.sum_processes(((A @ x) ** 2).abs().sum(), A.group).backward()
        ((D @ X) ** 2).abs().sum().backward()
        close(x.grad, case.columns(X.grad))
        close(A.grad.gather().to_dense(), torch.where(case.dense != 0, D.grad, 0.0))


def graph(nodes: int = 240) -> Any:
    """A square matrix of random entries, and its rows' operand, the same in all processes."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.rand(nodes, nodes, generator=generator)
    dense = torch.where(dense < 0.03, dense + 0.1, 0.0)
    return scorch.from_torch(dense, format="csr"), torch.rand(nodes, 256, generator=generator)


class LiveBytes(TorchDispatchMode):
    """The most bytes that were alive at once of what calls of torch made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor) and type(tensor) is torch.Tensor:
                storage = tensor.untyped_storage()
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {key: pair for key, pair in self.alive.items() if not pair[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return result


def check_memory(rank: int) -> None:
    """Rounds hold the result, a block that is received and one that is sent, also for gradients."""
    S, X = graph()
    A = sd.shard(S, algorithm="rounds")
    x = A.columns_of(X).clone().requires_grad_()
    A @ x  # so that blocks and kernels are there
    row, block = 4 * X.shape[1], A.columns.route.block
    own = 2 * A.rows.own + A.columns.own  # the result, what a block adds to it, and the operand
    small = 80 * A.local.nnz  # values of blocks and numbers of rows
    with LiveBytes() as live:
        y = A @ x
    assert live.most <= (own + 2 * block) * row + small
    sd.einsum("ij,ik,jk->ij", A, x, x)
    with LiveBytes() as live:
        sd.einsum("ij,ik,jk->ij", A, x, x)
    assert live.most <= (own + 2 * block) * row + small
    with LiveBytes() as live:
        y.backward(torch.ones_like(y))
    assert live.most <= (own + A.columns.own + 2 * block) * row + small
    halo = sd.with_algorithm(A, "halo")
    halo @ x
    with LiveBytes() as at_once:
        halo @ x
    assert at_once.most > (own + 2 * block) * row + small  # more than rounds may hold


def check_planned_memory(rank: int) -> None:
    """Products, gradients, SDDMM and softmax hold what the plan names, and the own rows of more operands."""
    S, X = graph()
    for algorithm in ("halo", "rounds"):
        hold_what_is_planned(sd.shard(S, algorithm=algorithm), X)


def hold_what_is_planned(A: Any, X: torch.Tensor) -> None:
    x, q = A.columns_of(X).clone().requires_grad_(), A.rows_of(X).clone().requires_grad_()
    own = max(A.rows.own, A.columns.own) * 4 * X.shape[1]
    small = 80 * A.local.nnz  # values and coordinates
    plan = A.plan.at(features=X.shape[1]).chosen.memory
    entries = A.detach().requires_grad_()
    halos = 2 if A.algorithm == "halo" else 1  # of two products
    calls = {
        "product": (lambda: A @ x, plan),  # with its operand and its result
        "transposed product": (lambda: A.T @ q, plan + 2 * own),
        "product and gradients": (lambda: (A @ x).sum().backward(), plan + 2 * own),
        "sampled product": (lambda: sd.einsum("ij,ik,jk->ij", A, q, x), plan + own),
        "softmax of rows": (lambda: A.softmax(1), 0),
        "softmax of columns": (lambda: A.softmax(0), small),
        "attention and gradients": (
            lambda: (sd.einsum("ij,ik,jk->ij", entries, q, x).softmax(1) @ x).sum().backward(),
            halos * plan + 4 * own + small,
        ),
    }
    for name, (call, allowed) in calls.items():
        call()  # so that plans and kernels are there
        with LiveBytes() as live:
            call()
        assert live.most <= allowed + small, (A.algorithm, name, live.most, allowed + small)


def check_bytes(rank: int) -> None:
    """Products move what the plan says; half of it in bfloat16, whose error is that of rounding once."""
    S, X = graph()
    world, exact = dist.get_world_size(), S.to_dense() @ X
    for algorithm in ALGORITHMS:
        replicas = 2 if algorithm == "1.5d" else None
        A = sd.shard(S, algorithm=algorithm, replicas=replicas)
        narrow = sd.shard(S, algorithm=algorithm, replicas=replicas, wire=torch.bfloat16)
        x = A.columns_of(X)
        A @ x, narrow @ x
        with sd.count_bytes() as traffic:
            A @ x
        with sd.count_bytes() as half:
            y = narrow @ x
        plan = A.plan.at(features=X.shape[1])
        total = sd.sum_processes(torch.tensor(float(traffic.received)), A.group)
        assert int(total) == plan.chosen.total
        assert traffic.received <= plan.chosen.bytes
        assert algorithm == "features" or traffic.received == plan.bytes
        assert 2 * half.received == traffic.received > 0
        # Each number is rounded once on its way, and once more where sums are sent.
        bound = 2 * 2.0**-8 * (S.to_dense().abs() @ X.abs())
        assert bool(((y - A.rows_of(exact)).abs() <= A.rows_of(bound) + 1e-5).all())
    check_budget(S, X, world)


def check_budget(S: Any, X: torch.Tensor, world: int) -> None:
    """Beyond the budget all processes raise, and nothing has moved."""
    for algorithm in ALGORITHMS:
        A = sd.shard(S, algorithm=algorithm, replicas=2 if algorithm == "1.5d" else None)
        x = A.columns_of(X)
        A @ x
        with scorch.settings(exchange_budget=100), sd.count_bytes() as traffic:
            with pytest.raises(sd.CommunicationError, match="exchange_budget=100"):
                A @ x
            assert traffic.received == traffic.sent == 0
        A @ x  # all go on together


def check_choices(rank: int) -> None:
    """The cost model chooses by network and memory, and all processes choose alike."""
    S, X = graph()
    A = sd.shard(S, algorithm="auto")
    chosen = A.plan.chosen
    assert all(chosen.seconds <= cost.seconds for cost in A.plan.costs if cost.algorithm in ALGORITHMS)
    torch.testing.assert_close(A @ A.columns_of(X), A.rows_of(S.to_dense() @ X))
    assert "1.5d, 2 replicas" in [cost.name for cost in A.plan.costs]
    tight = sd.with_algorithm(A, "auto", memory=1)
    least = min(cost.memory for cost in A.plan.costs if cost.algorithm in ALGORITHMS)
    assert tight.plan.chosen.memory == least
    words = str(tight.plan)
    assert "(chosen)" in words and "(runner-up)" in words and "of 4" in words
    explained = scorch.explain("ij,jk->ik", sd.with_algorithm(A, "halo"), A.columns_of(X))
    assert "halo exchange" in explained.exchanges[0] and explained.plan.features == X.shape[1]
    assert "(runner-up)" in str(explained) and "on this rank" in str(explained)
    check_explained_function(sd.with_algorithm(A, "halo"), A.columns_of(X))
    back = sd.with_algorithm(sd.with_algorithm(A, "1.5d", replicas=4), "halo")
    assert not back.has_split_rows
    with pytest.raises(scorch.errors.ArgumentError, match="divisor of the number of ranks, 4"):
        sd.with_algorithm(A, "1.5d", replicas=3)


def check_explained_function(A: Any, x: torch.Tensor) -> None:
    """The exchanges of a function are reported as they were counted, and its products with their plans."""
    with sd.count_bytes() as traffic:
        sd.mean((A @ x).sum(1))
    report = scorch.explain(lambda x: sd.mean((A @ x).sum(1)), runs=1)(x)
    moves = [found for found in report.exchanges if found.kind == "exchange"]
    assert len(moves) == traffic.exchanges == 2
    assert sum(found.bytes for found in moves) == traffic.received > 0
    assert all(found.predicted > 0 for found in moves) and "from 3 ranks" in moves[0].statement
    (planned,) = (found for found in report.exchanges if found.kind == "product")
    assert planned.statement.startswith("halo: ") and planned.runner_up
    assert planned.bytes == A.plan.at(features=x.shape[1]).bytes
    other = sd.shard(A.gather(), rows=A.cuts)
    for call in (lambda x: A @ other, lambda x: sd.einsum("ij,ik,jk->ij", A, x, x)):
        found = scorch.explain(call, runs=1)(x).exchanges
        (chosen,) = (one for one in found if one.kind == "product")
        moved = sum(one.bytes for one in found if one.kind == "exchange")
        assert chosen.runner_up and 0.5 * moved < chosen.bytes <= 1.5 * moved
    words = str(report)
    assert "2 exchanges of" in words and "runner-up" in words and "contextlib" not in words


def check_overlap(rank: int) -> None:
    """Own entries are multiplied between the beginning of an exchange and its end, gradients too."""
    S, X = graph()
    A, happened = sd.shard(S), []
    x = A.columns_of(X).clone().requires_grad_()
    y = A @ x  # so that plans and kernels are there
    y.sum().backward()
    exchange = dist.all_to_all_single

    def watched(out: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if out.dtype == torch.uint8:  # rows; numbers are compared before
            happened.append("begin")
        return exchange(out, *args, **kwargs)

    def listen(event: Any) -> None:
        happened.append("end" if event.kind == "exchange" else event.kind)

    dist.all_to_all_single = watched
    LISTENERS.append(listen)
    try:
        y = A @ x
        forward, happened[:] = list(happened), []
        y.sum().backward()
    finally:
        LISTENERS.remove(listen)
        dist.all_to_all_single = exchange
    for calls in (forward, happened):
        assert calls.count("begin") == calls.count("end") == 1
        assert "kernel" in calls[calls.index("begin") : calls.index("end")], calls


def check_empty_process(rank: int) -> None:
    """A process without rows takes part in the exchange of several operands."""
    S, X = graph()
    A = sd.shard(S, rows=[0, 0, 100, 200, 240])
    x = A.columns_of(X)
    found = sd.einsum("ij,jk,j->ik", A, x, x[:, 0])
    torch.testing.assert_close(found, A.rows_of(S.to_dense() @ (X * X[:, :1])))


def check_all(rank: int) -> None:
    products.OVERLAP_BYTES = 0
    for check in (
        check_memory,
        check_planned_memory,
        check_bytes,
        check_choices,
        check_overlap,
        check_empty_process,
    ):
        check(rank)


@pytest.mark.long
def test_algorithms_move_and_hold_what_their_plan_says(tmp_path):
    in_processes(check_all, tmp_path, 4)


@pytest.mark.parametrize("world", [3, pytest.param(4, marks=pytest.mark.long)])
def test_every_algorithm_computes_what_one_process_does(world, cases, seed, tmp_path):
    work = functools.partial(check_algorithms, first=seed + 77 * world, count=max(2, cases // 4))
    in_processes(work, tmp_path, world)
