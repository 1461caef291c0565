"""Sharded tensors follow the device of their mesh: what they compute there is what the CPU does."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import scorch
import scorch.distributed as sd
from distributed.test_algorithms import graph
from processes import in_processes

ACCELERATOR = torch.accelerator.current_accelerator(check_available=True)


def compare(rank: int, folder: str, device: torch.device, mesh: Any = None) -> None:
    """Shard, load, partition, multiply and differentiate on a device."""
    S, X = graph(60)
    given = None if mesh is not None else device
    A = sd.shard(S, mesh, device=given)
    loaded = sd.load_rows(f"{folder}/S.safetensors", mesh, device=given)
    for B in (A, loaded, sd.partition(A, "label"), sd.with_algorithm(A, "rounds"), sd.repartition(A.T).T):
        assert B.device.type == B.columns.ghosts.device.type == device.type
        check_numbers(B, S, X)
    x = sd.dense_rows(A.rows_of(X), A)
    sd.save({"A": A, "x": x, "step": torch.tensor(3.0)}, f"{folder}/checkpoint")
    state = sd.load(f"{folder}/checkpoint", mesh, device=given)
    assert state["A"].device.type == state["x"].device.type == device.type
    assert state["step"].device.type == "cpu"
    torch.testing.assert_close(state["A"].gather().to_dense().cpu(), S.to_dense())


def check_numbers(B: Any, S: Any, X: torch.Tensor) -> None:
    D = S.to_dense()
    x = B.columns_of(X).clone().requires_grad_()
    y = B @ x
    torch.testing.assert_close(y, B.rows_of(D @ X))
    sd.sum_processes(y.square().sum(), B.group).backward()
    torch.testing.assert_close(x.grad, B.columns_of(2 * D.T @ (D @ X)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(B.sum(1), B.rows_of(D.sum(1)))
    torch.testing.assert_close(B.norm().cpu(), D.norm())
    weights = torch.where(D != 0, torch.softmax(torch.where(D != 0, D, -torch.inf), 1), 0.0)
    torch.testing.assert_close(B.softmax(1) @ x, B.rows_of(weights @ X))
    scores = sd.einsum("ij,ik,jk->ij", B, x.detach(), x.detach())
    torch.testing.assert_close(scores.sum().cpu(), (D * (X @ X.T)).sum(), rtol=1e-4, atol=1e-4)


def compare_with_mesh(rank: int, folder: str) -> None:
    compare(rank, folder, torch.device("cpu"), init_device_mesh("cpu", (dist.get_world_size(),)))


def test_sharded_tensors_are_on_the_device_of_their_mesh(tmp_path):
    scorch.save(tmp_path / "S.safetensors", graph(60)[0])
    in_processes(functools.partial(compare_with_mesh, folder=str(tmp_path)), tmp_path, 2)


@pytest.mark.skipif(ACCELERATOR is None, reason="no accelerator")
def test_gloo_exchanges_arrays_of_an_accelerator_through_the_host(tmp_path):
    scorch.save(tmp_path / "S.safetensors", graph(60)[0])
    in_processes(functools.partial(compare, folder=str(tmp_path), device=ACCELERATOR), tmp_path, 2)


@pytest.mark.skipif(ACCELERATOR is None, reason="no accelerator")
def test_one_process_with_the_backend_of_an_accelerator(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")  # as torchrun says
    scorch.save(tmp_path / "S.safetensors", graph(60)[0])
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(dist.Backend.NCCL, store=store, rank=0, world_size=1)
    try:
        mesh = sd.init()
        assert mesh.device_type == ACCELERATOR.type
        compare(0, str(tmp_path), ACCELERATOR, mesh)
        assert sd.shard(graph(60)[0]).device.type == ACCELERATOR.type  # by the group alone
    finally:
        dist.destroy_process_group()


def test_init_takes_the_cpu_where_torch_knows_an_accelerator_that_is_not_there(tmp_path, monkeypatch):
    def current(check_available: bool = False) -> torch.device | None:
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("cpu:gloo", store=store, rank=0, world_size=1)
    try:
        monkeypatch.setattr(dist, "get_backend", lambda group=None: "undefined")  # as for several devices
        assert sd.init().device_type == "cpu"
    finally:
        monkeypatch.undo()
        dist.destroy_process_group()
