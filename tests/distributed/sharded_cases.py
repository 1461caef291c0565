"""Random sharded tensors, and what one process computes of the same numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

import scorch
import scorch.distributed as sd


@dataclass
class Case:
    """A sharded matrix, the dense one, and this process's rows of dense operands."""

    A: Any
    dense: torch.Tensor
    X: torch.Tensor  # one row for each column of A
    Q: torch.Tensor  # one row for each row of A
    rng: random.Random

    def rows(self, whole: torch.Tensor) -> torch.Tensor:
        return self.A.rows_of(whole)

    def columns(self, whole: torch.Tensor) -> torch.Tensor:
        return self.A.columns_of(whole)


def draw(seed: int, world: int, dtype: torch.dtype = torch.float64) -> Case:
    """A matrix of any pattern with any cuts; the same in all processes."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    rows = rng.choice([0, 1, 3, 7, 12, 17])
    columns = rows if rng.random() < 0.6 else rng.choice([1, 2, 5, 11])
    dense = torch.rand(rows, columns, generator=generator, dtype=dtype) - 0.5
    kind = rng.choice(["random", "hub", "diagonal blocks", "empty", "full"])
    keep = torch.rand(rows, columns, generator=generator) < rng.choice([0.1, 0.3])
    if kind == "hub" and rows:
        keep[rng.randrange(rows)] = True
    if kind == "full":
        keep[:] = True
    if kind == "empty":
        keep[:] = False
    cuts = _cuts(rng, rows, world)
    other = cuts if rows == columns else _cuts(rng, columns, world)
    if kind == "diagonal blocks":  # no halo
        row_part = torch.searchsorted(cuts, torch.arange(rows), right=True)
        column_part = torch.searchsorted(other, torch.arange(columns), right=True)
        keep &= row_part[:, None] == column_part[None]
    dense = torch.where(keep, dense, 0.0)
    form = rng.choice(["csr", "csc", "coo", "bsr(2,2)"]) if rows * columns else "csr"
    S = scorch.from_torch(dense, format=form)
    given = None if rng.random() < 0.3 else cuts
    split = rng.choice([False, False, True, 2])
    columns_given = None if given is None or rows == columns else other
    A = sd.shard(S, rows=given, columns=columns_given, split=split)
    width = rng.choice([1, 3])
    X = torch.rand(columns, width, generator=generator, dtype=dtype)
    Q = torch.rand(rows, width, generator=generator, dtype=dtype)
    return Case(A, dense, X, Q, rng)


def _cuts(rng: random.Random, rows: int, world: int) -> torch.Tensor:
    """Cuts at random, of which some processes may have nothing."""
    return torch.tensor([0, *sorted(rng.choices(range(rows + 1), k=world - 1)), rows])
