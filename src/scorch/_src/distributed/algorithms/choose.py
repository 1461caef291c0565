"""Choose the algorithm of products with a sharded tensor, and move its entries for it."""

from __future__ import annotations

from typing import Any

import torch

from scorch._src.distributed.communication.agreement import agree, validating
from scorch._src.distributed.communication.collectives import (
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
from scorch._src.name_hints import suggests_keywords
from scorch.errors import ArgumentError, UnsupportedError, is_integer

Tensor = torch.Tensor
ALGORITHMS = {
    "halo": "rows that are needed are fetched from their owners at once",
    "rounds": "they are fetched from one rank after the other, and again for gradients, to save memory",
    "features": "every rank has all entries and computes some columns of the result",
    "1.5d": "groups of ranks share the entries of their rows by columns, and sum their results",
    "auto": "the one of these that the cost model expects to be the fastest",
}
MOST_REPLICAS = 8  # that "auto" considers


@suggests_keywords
def with_algorithm(
    tensor: RowSharded,
    algorithm: str,
    *,
    replicas: int | None = None,
    features: int = FEATURES,
    network: Any = NETWORK,
    memory: int | None = None,
) -> RowSharded:
    """Return a sharded tensor whose products use another communication algorithm.

    All ranks must make the same call: entries may move.

    Args:
        tensor: a sharded matrix.
        algorithm: ``"halo"`` fetches the halo in one exchange while own rows are multiplied; ``"rounds"``
            fetches from one rank after the other, and again for gradients, which needs memory for two blocks
            of rows instead of the halo; ``"features"`` gives every rank all entries to compute some columns
            of the result; ``"1.5d"`` shares the entries of rows among ``replicas`` ranks by columns and adds
            up the results; ``"auto"`` is the fastest of these by the cost model.
        replicas: the number of replicas for ``"1.5d"``, a divisor of the number of ranks.
        features: the number of columns of the dense operand, for ``"auto"``.
        network: the network, for ``"auto"``: a name such as ``"10GbE"``, or latency and bandwidth.
        memory: the memory of a rank in bytes that ``"auto"`` may use.

    Returns:
        A ``RowSharded`` matrix.

    Raises:
        ArgumentError: the algorithm is unknown, or ``replicas`` does not divide the number of ranks.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.eye(3), format="csr"))
        >>> sd.with_algorithm(A, "rounds").algorithm
        'rounds'
    """
    facts = algorithm, replicas, features, str(network), memory
    with validating(tensor.group, "with_algorithm"):
        check_algorithm(algorithm)
        if tensor.ndim != 2 and algorithm != "halo":
            raise UnsupportedError(
                f"algorithm={algorithm!r} requires a matrix; other tensors exchange their halo"
            )
        _check_replicas(replicas, algorithm, size_of(tensor.group))
    agree(tensor.group, "with_algorithm", facts, _describe)
    if algorithm == "auto":
        algorithm, replicas = _fastest(tensor, features, network, memory)
    if algorithm == "1.5d":
        return _replicated(tensor, replicas or 1)
    moved = _to_row_owners(tensor) if tensor.replicas > 1 else tensor.with_local(tensor.local)
    moved.algorithm, moved.replicas = algorithm, 1
    moved.replicated = tensor.replicated
    return moved


def check_algorithm(algorithm: str) -> None:
    """Refuse an unknown algorithm."""
    if algorithm not in ALGORITHMS:
        raise ArgumentError(f"algorithm must be one of {', '.join(ALGORITHMS)}, but got {algorithm!r}")


def _check_replicas(replicas: int | None, algorithm: str, parts: int) -> None:
    if algorithm != "1.5d":
        if replicas is not None:
            raise ArgumentError(f"replicas requires algorithm='1.5d', but got {algorithm!r}")
    elif not is_integer(replicas, 1) or parts % replicas:
        raise ArgumentError(
            f"replicas must be a divisor of the number of ranks, {parts}, such as "
            f"{max([1, *_divisors(parts)])}, but got {replicas!r}"
        )


def _describe(chosen: tuple[str, int | None, int, str, int | None]) -> str:
    algorithm, replicas, features, network, memory = chosen
    return (
        f"algorithm={algorithm!r}, replicas={replicas}, features={features}, network={network} and "
        f"memory={memory}"
    )


def _fastest(tensor: RowSharded, features: int, network: Any, memory: int | None) -> tuple[str, int | None]:
    if tensor.replicas == 1 and not tensor.has_split_rows:
        tensor.replicated = tuple((c, _replicated_load(tensor, c)) for c in _divisors(size_of(tensor.group)))
    plan = tensor.plan.at(features=features, network=network, memory=memory)
    best = choose(plan.costs, memory)
    return best.algorithm, best.replicas if best.algorithm == "1.5d" else None


def _divisors(ranks: int) -> list[int]:
    return [c for c in range(2, min(ranks, MOST_REPLICAS) + 1) if ranks % c == 0]


def _replicated(tensor: RowSharded, replicas: int) -> RowSharded:
    """Return a tensor whose entries are distributed over groups of ranks by rows, then by columns."""
    (rows, columns, *_), _ = tensor.entries()
    owners = block_owners(rows, columns, tensor.rows.cuts, tensor.columns.cuts, replicas)
    result = move_entries(tensor, owners)
    result.algorithm, result.replicas = ("1.5d", replicas) if replicas > 1 else ("halo", 1)
    return result


def _to_row_owners(tensor: RowSharded) -> RowSharded:
    (rows, *_), _ = tensor.entries()
    return move_entries(tensor, owners_in(rows, tensor.rows.cuts))


def _replicated_load(tensor: RowSharded, replicas: int) -> Load:
    """Count what ranks would fetch if groups of them shared entries; rows are folded at most."""
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
