"""Checkpoints of sharded tensors, which other processes read with other cuts."""

from __future__ import annotations

import functools
import os
import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import scorch
import scorch.distributed as sd
from distributed.sharded_cases import draw
from distributed.test_sharded import close
from distributed.training import Training, features, graph, whole
from processes import in_processes
from scorch._src.distributed.checkpoint import runs
from scorch.errors import CommunicationError, FileError, MissingFileError, ShapeError, UnsupportedError

SEEDS = (0, 2, 5, 27)


def cube() -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.where(
        torch.rand(6, 5, 4, generator=generator) < 0.3, torch.rand(6, 5, 4, generator=generator), 0
    )


def save_all(rank: int, folder: str) -> Any:
    runs.MOST_ELEMENTS = 7  # so that arrays are written in pieces
    for seed in SEEDS:
        case = draw(seed, dist.get_world_size())
        rows = sd.dense_rows(case.rows(case.Q), case.A)
        sd.save({"A": case.A, "rows": rows, "Q": case.Q, "dense": case.dense}, f"{folder}/case{seed}")
        if not case.A.has_split_rows:
            dcp.save({"A": case.A}, checkpoint_id=f"{folder}/dcp{seed}")
        else:
            with pytest.raises(UnsupportedError, match="repartition"):
                case.A.state_dict()
    sd.save({"cube": sd.shard(scorch.from_torch(cube(), format="coo"))}, f"{folder}/cube")
    A = sd.partition(sd.shard(scorch.from_torch(graph(), format="csr")), "hash")
    training = Training(A, A.rows_of(features()), torch.eye(3, dtype=torch.float64))
    for _ in range(2):
        training.step()
    replicated = sd.shard(scorch.from_torch(graph(), format="csr"), algorithm="1.5d", replicas=4)
    sd.save({"A": replicated}, f"{folder}/replicated")
    sd.save({"old": torch.zeros(1)}, f"{folder}/training")  # which the next replaces
    sd.save(training.state(), f"{folder}/training")
    with pytest.raises(CommunicationError, match="rank 1 has"):
        sd.save({"A": A, f"B{rank}": torch.zeros(1)}, f"{folder}/differing")
    training.step()
    return whole(training)


def load_all(rank: int, folder: str) -> Any:
    world = dist.get_world_size()
    for seed in SEEDS:
        state = sd.load(f"{folder}/case{seed}")
        dense, Q, rng = state["dense"], state["Q"], random.Random(seed)
        cuts = torch.tensor([0, *sorted(rng.choices(range(len(dense) + 1), k=world - 1)), len(dense)])
        for loaded in (state, sd.load(f"{folder}/case{seed}", cuts=rng.choice([cuts, {"A": cuts}]))):
            A = loaded["A"]
            assert torch.equal(A.gather().to_dense(), dense) and A.dtype == dense.dtype
            assert torch.equal(loaded["rows"], A.rows_of(Q))
        assert torch.equal(A.cuts, cuts)
        if os.path.exists(f"{folder}/dcp{seed}") and "bsr" not in str(
            A.format
        ):  # whose blocks depend on cuts
            zeros = A.map_local(lambda local: local * 0)
            dcp.load({"A": zeros}, checkpoint_id=f"{folder}/dcp{seed}")
            assert torch.equal(zeros.local.to_dense(), A.local.to_dense())
    loaded = sd.load(f"{folder}/cube", format="coo")["cube"]
    assert torch.equal(loaded.gather().to_dense(), cube())
    replicated = sd.load(f"{folder}/replicated")["A"]
    assert (replicated.algorithm, replicated.replicas) == ("1.5d", 3)  # of 4 on four ranks
    X = features()
    close(replicated @ replicated.columns_of(X), replicated.rows_of(graph() @ X))
    state = sd.load(f"{folder}/training", cuts=[0, 4, 30, 30])
    assert state["epoch"] == 2 and state["nested"] == {"name": "graph"}
    training = Training(state["A"], state["X"], state["W"], state["optimizer"])
    training.step()
    refuse(rank, folder)
    return whole(training)


def refuse(rank: int, folder: str) -> None:
    A = sd.shard(scorch.from_torch(graph(), format="csr"))
    with pytest.raises(MissingFileError, match="no such checkpoint"):
        sd.load(f"{folder}/missing")
    with pytest.raises(FileError, match="not written by"):
        sd.load(f"{folder}/dcp5")
    with pytest.raises(ShapeError, match="cuts must end with the number of rows"):
        sd.load(f"{folder}/training", cuts=[0, 1, 2, 3])
    with pytest.raises(CommunicationError, match=r"rank 1 has the checkpoint .* with cuts=\[0, 4, 30, 30\]"):
        sd.load(f"{folder}/training", cuts=[0, 3 + rank, 30, 30])
    state = A.state_dict()
    if rank == 1:
        state["crd1"].rows.flip(0)
        state["crd1"].rows[0] += 1
    with pytest.raises(CommunicationError, match="the columns of rank 1"):
        A.load_state_dict(state)
    with pytest.raises(CheckpointException, match="cannot be pickled"):
        dcp.save({"nested": {"A": A}}, checkpoint_id=f"{folder}/nested")


def test_checkpoints_are_loaded_by_other_processes_with_other_cuts(tmp_path):
    for name in ("saved", "loaded"):
        (tmp_path / name).mkdir()
    wanted = in_processes(functools.partial(save_all, folder=str(tmp_path)), tmp_path / "saved", 4)
    found = in_processes(functools.partial(load_all, folder=str(tmp_path)), tmp_path / "loaded", 3)
    for one in [*wanted, *found]:
        for got, expected in zip(one, wanted[0], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_one_process_saves_and_loads_without_a_group(tmp_path):
    A = sd.shard(scorch.from_torch(graph(), format="csc"))
    sd.save({"A": A, "x": torch.arange(3)}, tmp_path / "one")
    state = sd.load(tmp_path / "one")
    assert torch.equal(state["A"].gather().to_dense(), graph()) and str(state["A"].format) == "csc"
    assert torch.equal(state["x"], torch.arange(3))
    (tmp_path / "one").rename(tmp_path / "one.old")  # as a process leaves it that ends while it is replaced
    assert torch.equal(sd.load(tmp_path / "one")["x"], torch.arange(3))
