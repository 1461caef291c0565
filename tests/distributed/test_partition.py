"""Partitions and other cuts: the same matrix in another order, or with other owners."""

from __future__ import annotations

import importlib.util
import random

import pytest
import torch
import torch.distributed as dist

import scorch
import scorch.distributed as sd
from distributed.sharded_cases import draw
from distributed.test_algorithms import LiveBytes
from distributed.training import Training, features, graph, whole
from processes import in_processes
from scorch._src.distributed.partition import labels
from scorch.errors import ArgumentError, ShapeError


def grid(side: int) -> torch.Tensor:
    """The graph of a square grid, its vertices in no order."""
    place = torch.arange(side * side).reshape(side, side)
    ends = torch.cat(
        [
            torch.stack([place[1:], place[:-1]]).flatten(1),
            torch.stack([place[:, 1:], place[:, :-1]]).flatten(1),
        ],
        1,
    )
    name = torch.randperm(side * side, generator=torch.Generator().manual_seed(0))
    dense = torch.eye(side * side, dtype=torch.float64)
    dense[name[ends[0]], name[ends[1]]] = dense[name[ends[1]], name[ends[0]]] = 1
    return dense * torch.rand(side * side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def ghosts_of(A: sd.RowSharded) -> int:
    return int(sd.sum_processes(torch.tensor(len(A.columns.ghosts)), A.group))


def check_permuted(A: sd.RowSharded, dense: torch.Tensor, x: torch.Tensor) -> None:
    """The product, picked by ``order``, and all entries are those of the matrix as it was."""
    torch.testing.assert_close(A @ A.columns_of(x), A.rows_of(dense @ x))
    order = torch.cat([part for part in gather(A.order)])
    torch.testing.assert_close(A.gather().to_dense(), dense[order][:, order])
    assert torch.equal(order.sort().values, torch.arange(len(dense)))


def gather(own: torch.Tensor) -> list[torch.Tensor]:
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def held_by(S: sd.RowSharded, method: str) -> int:
    with LiveBytes() as live:
        sd.partition(S, method)
    return live.most


def partition_a_grid(rank: int) -> list[torch.Tensor]:
    labels.SMALL = 10  # so that the grid is coarsened
    world = dist.get_world_size()
    dense = grid(20)
    x = torch.rand(len(dense), 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    S = sd.shard(scorch.from_torch(dense, format="csr"))
    # Where one process finds the order, the others hold no more than where none needs the whole pattern.
    hashed, ordered = held_by(S, "hash"), held_by(S, "rcm")
    assert rank == 0 or ordered <= 1.3 * hashed
    halo, orders = {"given": ghosts_of(S)}, []
    for method in ("label", "rcm", "hash"):
        A = sd.partition(S, method)
        check_permuted(A, dense, x)
        halo[method] = ghosts_of(A)
        orders.append(A.order)
        work = (A.local.nnz + A.rows.own) / (S.count_entries() + len(dense)) * world
        assert method == "hash" or work < 1.1, (method, work)
    assert halo["label"] < 0.3 * halo["given"], halo
    assert halo["rcm"] < 0.5 * halo["given"], halo
    given = sd.partition(S, torch.arange(len(dense)) % (2 * world), parts=2 * world)
    check_permuted(given, dense, x)
    assert torch.equal(given.order % (2 * world) // 2, torch.full_like(given.order, rank))
    twice = sd.partition(sd.partition(S, "hash"), "label", features=[8, 4])
    check_permuted(twice, dense, x)
    if importlib.util.find_spec("pymetis") is None:
        with pytest.raises(ArgumentError, match="needs the package pymetis"):
            sd.partition(S, "metis")
    else:
        A = sd.partition(S, "metis")
        check_permuted(A, dense, x)
        assert ghosts_of(A) < 0.3 * halo["given"]
    with pytest.raises(ArgumentError, match=r"one of label, metis"):
        sd.partition(S, "best")
    with pytest.raises(ArgumentError, match="multiple"):
        sd.partition(S, parts=world + 1)
    with pytest.raises(ShapeError, match="the same cuts"):
        sd.partition(sd.shard(scorch.from_torch(dense[:30], format="csr")))
    return orders


def partition_graphs_of_any_shape(rank: int) -> None:
    """Without edges, of many components, unsymmetric, with split rows and processes that have nothing."""
    for seed in (2, 3, 5, 10, 12):
        case = draw(seed, dist.get_world_size())
        assert case.dense.shape[0] == case.dense.shape[1]
        for method in ("label", "rcm", "hash"):
            check_permuted(sd.partition(case.A, method), case.dense, case.X)


def all_partitions(rank: int) -> list[torch.Tensor]:
    partition_graphs_of_any_shape(rank)
    return partition_a_grid(rank)


@pytest.mark.long
def test_partitions_permute_rows_and_columns_and_leave_little_to_exchange(tmp_path):
    in_processes(all_partitions, tmp_path, 4)


def move_and_compare(rank: int) -> None:
    world = dist.get_world_size()
    for seed in (0, 17, 27):
        case = draw(seed, world)
        rng = random.Random(seed)
        rows = len(case.dense)
        cuts = torch.tensor([0, *sorted(rng.choices(range(rows + 1), k=world - 1)), rows])
        A, (q,) = sd.repartition(case.A, cuts, along=[case.rows(case.Q)])
        assert not A.has_split_rows and torch.equal(A.cuts, cuts)
        wanted = sd.shard(case.A.gather(), rows=cuts, columns=A.columns.cuts)
        assert torch.equal(A.local.to_dense(), wanted.local.to_dense())
        assert A.local.nnz == wanted.local.nnz and str(A.format) == str(case.A.format)
        assert torch.equal(q, case.Q[cuts[rank] : cuts[rank + 1]])
        plain = sd.repartition(case.A.T)
        assert not plain.has_split_rows and torch.equal(plain.gather().to_dense(), case.dense.T)
        back = sd.repartition(plain.T)
        assert torch.equal(back.gather().to_dense(), case.dense)
        torch.testing.assert_close((case.A.T @ case.A).gather().to_dense(), case.dense.T @ case.dense)
        torch.testing.assert_close((case.A @ case.A.T).gather().to_dense(), case.dense @ case.dense.T)
        split = sd.repartition(back, split=1)
        wanted = sd.shard(back.gather(), rows=back.cuts, columns=back.columns.cuts, split=1)
        assert torch.equal(split.local.to_dense(), wanted.local.to_dense())
        owners = torch.tensor(rng.choices(range(world), k=rows))
        moved, (q,) = sd.repartition(case.A, owners=owners, along=[case.rows(case.Q)])
        assert bool((owners[moved.order] == rank).all())
        assert torch.equal(q, case.Q[moved.order])
        torch.testing.assert_close(moved @ moved.columns_of(case.X), moved.rows_of(case.dense @ case.X))


def train_and_move(rank: int) -> None:
    """Training goes on after a move as if nothing had moved."""

    def start() -> Training:
        A = sd.shard(scorch.from_torch(graph(), format="csr"), rows=[0, 4, 20, 30])
        return Training(A, A.rows_of(features()), torch.eye(3, dtype=torch.float64))

    moved, stayed = start(), start()
    for moves in ({}, {"rows": [0, 25, 25, 30]}, {"owners": torch.arange(30) % 3}):
        if moves:
            moved.A, (moved.X,) = sd.repartition(moved.A, **moves, along=[moved.X], optimizer=moved.optimizer)
            assert moved.A.local.is_leaf and isinstance(moved.A.local, torch.nn.Parameter)
        moved.step()
        stayed.step()
    for one, other in zip(whole(moved), whole(stayed), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    A = stayed.A
    stayed.optimizer.zero_grad()
    there = sd.repartition(A, [0, 1, 2, 30])  # without an optimizer gradients travel back
    (there.local.values() ** 2).sum().backward()
    torch.testing.assert_close(A.grad.local.values(), 2 * A.local.values().detach())


def move_all(rank: int) -> None:
    move_and_compare(rank)
    train_and_move(rank)


@pytest.mark.long
def test_repartition_is_shard_with_other_cuts(tmp_path):
    in_processes(move_all, tmp_path, 3)
