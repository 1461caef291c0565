"""A small training whose sparse parameter and dense rows are sharded."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import scorch.distributed as sd


def graph(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    dense = torch.rand(30, 30, generator=generator, dtype=dtype)
    return torch.where(torch.rand(30, 30, generator=generator) < 0.2, dense, 0.0)


def features() -> torch.Tensor:
    return torch.rand(30, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Training:
    """A sharded parameter, dense rows and a weight, trained by Adam; two steps make some state of it."""

    def __init__(self, A: sd.RowSharded, X: torch.Tensor, W: torch.Tensor, state: Any = None) -> None:
        A.local = torch.nn.Parameter(A.local.detach())
        self.A, self.X, self.W = A, torch.nn.Parameter(X), torch.nn.Parameter(W)
        self.optimizer = torch.optim.Adam([A.local, self.X, self.W], lr=0.1)
        if state is not None:
            self.optimizer.load_state_dict(state)

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = sd.sum_processes(
            (self.A @ (self.X @ sd.spread(self.W, self.A.group))).square().sum(), self.A.group
        )
        loss.backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        X = sd.dense_rows(self.X, self.A)
        optimizer = sd.optimizer_state(self.optimizer, self.A, X)
        return {
            "A": self.A,
            "X": X,
            "W": self.W,
            "optimizer": optimizer,
            "epoch": 2,
            "nested": {"name": "graph"},
        }


def whole(training: Training) -> list[torch.Tensor]:
    """All numbers, in the order of before it was partitioned."""
    A = training.A
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (A.order, training.X.detach()))
    order, X = (torch.cat(parts) for parts in zip(*found, strict=True))
    dense = torch.zeros(30, 30, dtype=torch.float64)
    dense[order[:, None], order[None]] = A.gather().to_dense().detach()
    rows = torch.empty_like(X)
    rows[order] = X
    return [dense, rows, training.W.detach().clone()]
