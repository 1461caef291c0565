"""Two processes that learn together: ``DistributedDataParallel`` on layers with sparse weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import scorch
from processes import in_two_processes
from scorch.errors import CallError, UnsupportedError
from scorch.nn import Linear, SparseEmbeddingBag, SparseLinear

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch was built without gloo"
)


class Values(torch.nn.Module):
    """A sparse parameter of one's own: its values are the parameter, its places buffers."""

    def __init__(self) -> None:
        super().__init__()
        S = scorch.rand(6, 5, density=0.5, format="csr", dtype=torch.float64)
        self.values = torch.nn.Parameter(S.values())
        self.register_buffer("crow", S.crow_indices())
        self.register_buffer("col", S.col_indices())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (scorch.sparse_csr_tensor(self.crow, self.col, self.values, (6, 5)) @ x.t()).t()


def make() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        SparseLinear(8, 5, 0.5, dtype=torch.float64),
        torch.nn.Tanh(),
        Values(),
        SparseLinear(6, 3, 0.4, bias=False),
    ).double()


def batches() -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(5, 12, 8, dtype=torch.float64, generator=source)
    return x, torch.randn(5, 12, 3, dtype=torch.float64, generator=source)


def train(net: Any, part: slice) -> list[torch.Tensor]:
    """The parameters after a few steps on a part of each batch."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.1)
    for x, y in zip(*batches(), strict=True):
        optimizer.zero_grad()
        (net(x[part]) - y[part]).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


def train_together(rank: int) -> list[torch.Tensor]:
    net = make()
    if rank:  # what the first process has is sent to the second
        for parameter in net.parameters():
            parameter.data.zero_()
    return train(DistributedDataParallel(net), slice(rank * 6, rank * 6 + 6))


def refuse(rank: int) -> list[str]:
    torch.manual_seed(rank)
    net = DistributedDataParallel(SparseLinear(8, 5, 0.5))
    said = []
    try:
        net(torch.ones(2, 8))
    except CallError as error:
        said.append(str(error))
    try:
        dist.all_reduce(scorch.rand(4, 4, density=0.5, format="csr"))
    except UnsupportedError as error:
        said.append(str(error))
    return said


def test_two_processes_learn_what_one_learns_of_the_joined_batch(tmp_path: Path) -> None:
    first, second = in_two_processes(train_together, tmp_path)
    alone = train(make(), slice(None))
    for one, other, expected in zip(first, second, alone, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, expected)


def test_other_places_and_sparse_tensors_that_cannot_be_sent_are_refused(tmp_path: Path) -> None:
    first, second = in_two_processes(refuse, tmp_path)
    assert len(first) == 1 and "S.values()" in first[0]
    assert len(second) == 2 and "the sparsity pattern differs from rank 0" in second[0]
    assert "S.values()" in second[1]


def test_layers_can_be_sent_to_processes() -> None:
    for layer in (SparseLinear(8, 5, 0.5), Linear(8, 5, sparse_grad=True), SparseEmbeddingBag(8, 5)):
        assert isinstance(layer.share_memory(), torch.nn.Module)
