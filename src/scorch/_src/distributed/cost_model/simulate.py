"""What ranks would have and move, counted from a sparsity pattern or expected from degrees."""

from __future__ import annotations

import math

import torch

from scorch._src.dataclass import dataclass
from scorch._src.distributed.cost_model.formulas import Load

Tensor = torch.Tensor


@dataclass(frozen=True)
class Halos:
    """The halos: one number of rows for each rank, and the largest block between two."""

    fetched: Tensor  # by each rank
    sent: Tensor
    peers: Tensor  # that each rank fetches from
    block: int

    @property
    def most(self) -> int:
        return int(torch.maximum(self.fetched, self.sent).max())


@dataclass(frozen=True)
class Simulation:
    """What every rank would have, with entries at their rows' owners or shared by groups of ranks."""

    shape: tuple[int, int]
    own_rows: Tensor
    own_columns: Tensor
    entries: Tensor
    columns: Halos
    rows: Halos

    @property
    def received(self) -> Tensor:
        """The rows that each rank receives for a product: those fetched, and sums of its own rows."""
        return self.columns.fetched + self.rows.sent

    @property
    def load(self) -> Load:
        """The input of the cost model."""
        return Load(
            processes=len(self.own_rows),
            rows=self.shape[0],
            columns=self.shape[1],
            entries=int(self.entries.sum()),
            own_rows=int(self.own_rows.max()),
            own_columns=int(self.own_columns.max()),
            own_entries=int(self.entries.max()),
            fetched=self.columns.most,
            folded=self.rows.most,
            peers=int(self.columns.peers.max()) + int(self.rows.peers.max()),
            block=max(self.columns.block, self.rows.block),
            moved=int(self.received.sum()),
        )


def simulate(
    crd: tuple[Tensor, Tensor], row_owners: Tensor, column_owners: Tensor, processes: int, replicas: int = 1
) -> Simulation:
    """Count what ranks have and move, given the entries and the owner of each row and column."""
    rows, columns = crd
    owners = row_owners[rows]
    if replicas > 1:
        owners = owners // replicas * replicas + column_owners[columns] % replicas
    return Simulation(
        shape=(len(row_owners), len(column_owners)),
        own_rows=torch.bincount(row_owners, minlength=processes),
        own_columns=torch.bincount(column_owners, minlength=processes),
        entries=torch.bincount(owners, minlength=processes),
        columns=_halos(owners, columns, column_owners, processes),
        rows=_halos(owners, rows, row_owners, processes),
    )


def _halos(users: Tensor, ids: Tensor, owners: Tensor, processes: int) -> Halos:
    is_foreign = users != owners[ids]
    keys = torch.unique(users[is_foreign] * len(owners) + ids[is_foreign])
    users, sources = keys // max(len(owners), 1), owners[keys % max(len(owners), 1)]
    pairs, counts = torch.unique(users * processes + sources, return_counts=True)
    return Halos(
        fetched=torch.bincount(users, minlength=processes),
        sent=torch.bincount(sources, minlength=processes),
        peers=torch.bincount(pairs // processes, minlength=processes),
        block=int(counts.max()) if len(counts) else 0,
    )


def expect(row_degrees: Tensor, column_degrees: Tensor, processes: int, replicas: int = 1) -> Load:
    """Return what ranks would have and move on average if rows were in random order, from degrees only.

    A column of ``k`` entries is needed by ``(P-1) (1 - (1-1/P)^k)`` ranks besides its owner.
    """
    groups = processes // replicas
    fetched = _expected_users(column_degrees, groups)
    folded = _expected_users(row_degrees, replicas)
    per_process = math.ceil(fetched / processes)
    peers = min(processes - 1, per_process)
    return Load(
        processes=processes,
        rows=len(row_degrees),
        columns=len(column_degrees),
        entries=int(row_degrees.sum()),
        own_rows=-(-len(row_degrees) // processes),
        own_columns=-(-len(column_degrees) // processes),
        own_entries=-(-int(row_degrees.sum()) // processes),
        fetched=per_process,
        folded=math.ceil(folded / processes),
        peers=peers if replicas == 1 else min(groups - 1, per_process) + replicas - 1,
        block=math.ceil(per_process / max(peers, 1)),
        moved=round(fetched + folded),
    )


def _expected_users(degrees: Tensor, parts: int) -> float:
    """Return how many (part, row) pairs there are besides those of owners, if entries fall at random."""
    if parts == 1:
        return 0.0
    is_missed = torch.pow(1 - 1 / parts, degrees.to(torch.float64))
    return float((parts - 1) * (1 - is_missed).sum())
