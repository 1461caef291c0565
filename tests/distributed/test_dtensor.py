"""DTensors at the border of sharded tensors, and sparse tensors inside of DTensors."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

import scorch
import scorch.distributed as sd
from distributed.test_algorithms import graph
from processes import in_processes


def check_border(rank: int) -> None:
    """Uneven rows become a DTensor of even ones and come back, with their gradients."""
    S, X = graph(23)
    A = sd.shard(S, rows=[0, 2, 2, 23] if dist.get_world_size() == 3 else None)
    x = A.rows_of(X).clone().requires_grad_()
    D = sd.to_dtensor(x, A)
    assert D.shape == X.shape and torch.equal(D.full_tensor(), X)
    weights = torch.rand(X.shape, generator=torch.Generator().manual_seed(5))
    y = sd.from_dtensor(torch.sin(D), A)
    torch.testing.assert_close(y, A.rows_of(X.sin()))
    (y * A.rows_of(weights)).sum().backward()
    torch.testing.assert_close(x.grad, A.rows_of(weights * X.cos()))
    with pytest.raises(scorch.errors.ArgumentError, match="redistribute"):
        sd.from_dtensor(D.redistribute(placements=[Replicate()]), A)
    with pytest.raises(scorch.errors.OperandError, match="expected a DTensor"):
        sd.from_dtensor(x, A)
    whole = sd.shard(S, rows=[0] + [23] * dist.get_world_size())  # of which one rank has all rows
    for call in (whole.rows_of, whole.__matmul__, lambda D: sd.to_dtensor(D, whole)):
        with pytest.raises(scorch.errors.OperandError, match="is a DTensor"):
            call(D)


def check_inside(rank: int) -> None:
    """A sparse local tensor keeps sparse gradients, and what would make it dense is refused by name."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    S, X = graph(24)
    own = S.to_dense()[rank * 24 // world : (rank + 1) * 24 // world]
    local = scorch.from_torch(own, format="csr").requires_grad_()
    D = DTensor.from_local(local, mesh, [Shard(0)])
    assert isinstance((D * 2).to_local(), scorch.SparseTensor)
    (D @ DTensor.from_local(X, mesh, [Replicate()])).to_local().sum().backward()
    assert isinstance(local.grad, scorch.SparseTensor) and local.grad.nnz == local.nnz
    wanted = torch.where(own != 0, X.sum(1), 0.0)
    torch.testing.assert_close(local.grad.to_dense(), wanted)
    refused = [
        (lambda: D.full_tensor(), "full_tensor"),
        (lambda: D.redistribute(mesh, [Replicate()]), "redistribute"),
        (lambda: D @ D, "products of two sparse"),
        (lambda: torch.nn.Parameter(D), r"DTensor\.from_local\(weight"),
        (lambda: torch.softmax(D, 1), "softmax would make the sparse tensor"),
        (lambda: torch.nn.functional.softmax(D * 2, 1), "softmax would make the sparse tensor"),
        (lambda: torch.exp(D), "exp would make the sparse tensor"),
        (lambda: D + 1, "add would make the sparse tensor"),
        (lambda: D + DTensor.from_local(own, mesh, [Shard(0)]), "add would make the sparse tensor"),
        (lambda: torch.sigmoid(D), "sigmoid would make the sparse tensor"),
        (lambda: D.cos(), "cos would make the sparse tensor"),
    ]
    for call, words in refused:
        with pytest.raises(scorch.errors.UnsupportedError, match=words):
            call()
    weight = torch.nn.Parameter(D.detach().to_local())  # what the refusal says
    E = DTensor.from_local(weight, mesh, [Shard(0)])
    (E @ DTensor.from_local(X, mesh, [Replicate()])).to_local().sum().backward()
    assert isinstance(weight.grad, scorch.SparseTensor) and weight.grad.nnz == local.nnz
    torch.testing.assert_close(weight.grad.to_dense(), wanted)
    local = D.detach().to_local()
    for dense in (torch.softmax(local, 1), torch.exp(local), local + 1):  # asked for by name
        assert dense.shape == own.shape
    assert isinstance(torch.tanh(D).to_local(), scorch.SparseTensor)


def check_fsdp(rank: int) -> None:
    """FSDP2 adds up the parts of gradients that processes find, set up as the guide says."""
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        return
    S, X = graph(23)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    A = sd.shard(S, mesh)
    torch.manual_seed(0)
    one = scorch.nn.GCNConv(256, 3)
    sharded = fully_shard(copy.deepcopy(one), mesh=mesh)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)
    sd.mean(sharded(A.rows_of(X), A).square().sum(1)).backward()
    one(X, S).square().sum(1).mean().backward()
    for ours, wanted in zip(sharded.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), wanted.grad)


def check_all(rank: int) -> None:
    check_border(rank)
    check_inside(rank)
    check_fsdp(rank)


def test_dtensors_at_the_border_and_around_sparse_tensors(tmp_path):
    in_processes(check_all, tmp_path, 3)
