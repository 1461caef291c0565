"""Parts by METIS, if the package pymetis is installed."""

from __future__ import annotations

import importlib
import importlib.util

import torch

from scorch._src.devices import HOST
from scorch._src.distributed.partition.level import Level
from scorch.errors import ArgumentError

Tensor = torch.Tensor


def check_metis() -> None:
    """Raise if pymetis is not installed."""
    if importlib.util.find_spec("pymetis") is None:
        raise ArgumentError(
            "method='metis' needs the package pymetis, which is not installed: pip install pymetis, or use "
            "method='label', which needs no other package and no rank with the whole sparsity pattern"
        )


def divide_by_metis(level: Level, count: int) -> Tensor:
    """Return the part of each vertex of a graph that is on one rank."""
    if count == 1 or not level.count:
        return torch.zeros_like(level.ids)
    pymetis = importlib.import_module("pymetis")
    begins = torch.zeros(level.count + 1, dtype=torch.int64, device=HOST)
    begins[1:] = torch.bincount(level.rows, minlength=level.count).cumsum(0).to(HOST)
    adjacency = pymetis.CSRAdjacency(begins.numpy(), level.columns.to(HOST).numpy())
    _, parts = pymetis.part_graph(count, adjacency=adjacency, vweights=level.sizes.tolist())
    return torch.as_tensor(parts, dtype=torch.int64, device=level.rows.device)
