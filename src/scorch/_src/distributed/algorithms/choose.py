"""By which algorithm products with a sharded tensor are computed, and where its entries are for that."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.distributed.collectives import (
    agree,
    exchange_counts,
    exchange_rows,
    gather_numbers,
    rank_in,
    size_of,
)
from scorch._src.distributed.cost_model.formulas import Load, choose
from scorch._src.distributed.cost_model.plan import FEATURES, NETWORK
from scorch._src.distributed.cuts import block_owners, owners_in
from scorch._src.distributed.entries import move_entries
from scorch._src.distributed.row_sharded import RowSharded
from scorch.errors import ArgumentError, UnsupportedError

Tensor = torch.Tensor
ALGORITHMS = {
    "halo": "rows that are needed are fetched from their owners at once",
    "rounds": "they are fetched from one process after the other, and again for gradients, to save memory",
    "features": "every process has all entries and computes some columns of the result",
    "1.5d": "groups of processes share the entries of their rows by columns, and add up what they find",
    "auto": "the one of these that the cost model expects to be the fastest",
}
MOST_REPLICAS = 8  # that "auto" considers


def with_algorithm(
    tensor: RowSharded,
    algorithm: str,
    *,
    replicas: int | None = None,
    features: int = FEATURES,
    network: Any = NETWORK,
    memory: int | None = None,
) -> RowSharded:
    """Return a sharded tensor whose products are computed by another algorithm.

    - "halo": rows that are needed are fetched from their owners at once, while own ones are multiplied
    - "rounds": they are fetched from one process after the other, and again for gradients, which holds
      two blocks of rows in place of the halo
    - "features": every process has all entries and computes some columns of the result
    - "1.5d": ``replicas`` processes share the entries of their rows by columns, and add up what they find
    - "auto": the fastest of these for products with ``features`` columns over a ``network`` (a name such as
      "10GbE", or latency and bandwidth) that fits into the ``memory`` of a process, in bytes

    All processes call it alike: entries may move.
    """
    if algorithm not in ALGORITHMS:
        raise ArgumentError(f"algorithm is {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    if replicas is not None and algorithm != "1.5d":
        raise ArgumentError(f"replicas is for algorithm='1.5d', not {algorithm!r}")
    if tensor.ndim != 2 and algorithm != "halo":
        raise UnsupportedError(f"algorithm={algorithm!r} is for matrices; others exchange their halo")
    agree(tensor.group, "with_algorithm", (algorithm, replicas, features), _describe)
    if algorithm == "auto":
        algorithm, replicas = _fastest(tensor, features, network, memory)
    if algorithm == "1.5d":
        return _replicated(tensor, replicas)
    moved = _to_row_owners(tensor) if tensor.replicas > 1 else tensor.with_local(tensor.local)
    moved.algorithm, moved.replicas = algorithm, 1
    moved.replicated = tensor.replicated
    return moved


def _describe(chosen: tuple[str, int | None, int]) -> str:
    algorithm, replicas, features = chosen
    return f"algorithm={algorithm!r}, replicas={replicas} and features={features}"


def _fastest(tensor: RowSharded, features: int, network: Any, memory: int | None) -> tuple[str, int | None]:
    if tensor.replicas == 1 and not tensor.has_split_rows:
        tensor.replicated = tuple((c, _replicated_load(tensor, c)) for c in _divisors(size_of(tensor.group)))
    plan = tensor.plan.at(features=features, network=network, memory=memory)
    best = choose(plan.costs, memory)
    return best.algorithm, best.replicas if best.algorithm == "1.5d" else None


def _divisors(processes: int) -> list[int]:
    return [c for c in range(2, min(processes, MOST_REPLICAS) + 1) if processes % c == 0]


def _replicated(tensor: RowSharded, replicas: int | None) -> RowSharded:
    """Return a tensor whose entries are shared by groups of processes: by rows, and by columns in a group."""
    parts = size_of(tensor.group)
    if replicas is None or isinstance(replicas, bool) or replicas < 1 or parts % replicas:
        raise ArgumentError(
            f"replicas is {replicas!r}; algorithm='1.5d' needs a divisor of the {parts} processes, such as "
            f"{max([1, *_divisors(parts)])}"
        )
    (rows, columns, *_), _ = tensor.entries()
    owners = block_owners(rows, columns, tensor.rows.cuts, tensor.columns.cuts, replicas)
    result = move_entries(tensor, owners)
    result.algorithm, result.replicas = ("1.5d", replicas) if replicas > 1 else ("halo", 1)
    return result


def _to_row_owners(tensor: RowSharded) -> RowSharded:
    (rows, *_), _ = tensor.entries()
    return move_entries(tensor, owners_in(rows, tensor.rows.cuts))


def _replicated_load(tensor: RowSharded, replicas: int) -> Load:
    """Count what processes would fetch if groups of them shared entries; rows are folded at most."""
    group, rank = tensor.group, rank_in(tensor.group)
    (rows, columns, *_), _ = tensor.entries()
    owners = block_owners(rows, columns, tensor.rows.cuts, tensor.columns.cuts, replicas)
    keys = torch.unique(owners * tensor.columns.extent + columns)
    sent = torch.bincount(keys // tensor.columns.extent, minlength=size_of(group)).tolist()
    received = exchange_counts(sent, group, keys)
    found = keys.new_empty(sum(received))
    if group is not None:
        exchange_rows(found, keys, received, sent, group)
    used = torch.unique(found % tensor.columns.extent)
    sources = owners_in(used, tensor.columns.cuts)
    halo = torch.bincount(sources[sources != rank], minlength=size_of(group))
    entries = torch.bincount(owners, minlength=size_of(group)).tolist()
    every = [sum(column) for column in zip(*gather_numbers(entries, group, keys), strict=True)]
    numbers = gather_numbers([int(halo.sum()), int((halo > 0).sum()), int(halo.max())], group, keys)
    halos, peers, blocks = zip(*numbers, strict=True)
    own = tensor.rows.cuts.diff()
    folded = (replicas - 1) * int(own.max())
    return Load(
        processes=size_of(group),
        rows=tensor.shape[0],
        columns=tensor.shape[1],
        entries=sum(every),
        own_rows=int(own.max()),
        own_columns=int(tensor.columns.cuts.diff().max()),
        own_entries=max(every),
        fetched=max(halos),
        folded=folded,
        peers=max(peers) + replicas - 1,
        block=max(blocks),
        moved=sum(halos) + (replicas - 1) * tensor.shape[0],
    )
