"""``A.plan``: the communication, memory and time of a product with a sharded tensor, and the alternatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from scorch._src.dataclass import dataclass
from scorch._src.distributed.communication.collectives import rank_in, size_of
from scorch._src.distributed.communication.halo import HaloPlan
from scorch._src.distributed.cost_model.formulas import (
    Cost,
    Load,
    Network,
    Width,
    as_network,
    choose,
    costs_of,
    halo_cost,
)
from scorch._src.units import format_bytes, format_seconds
from scorch.errors import counted

FEATURES = 128
NETWORK = "10GbE"
DEFAULT_NETWORK = as_network(NETWORK)


@dataclass(frozen=True)
class Share:
    """What one rank has: rows and entries, rows that it fetches and sends, and from how many others."""

    process: int
    rows: int
    entries: int
    halo: int
    sent: int
    split: int
    peers: int


@dataclass(frozen=True)
class Plan:
    """The predicted cost of a product of a sharded matrix with ``features`` columns over a network.

    ``share`` describes this rank, ``load`` the busiest rank. ``chosen`` is the cost of the current algorithm
    and ``runner_up`` that of the fastest other one. Print it for a summary.

    Example:

        >>> import torch, scorch, scorch.distributed as sd
        >>> A = sd.shard(scorch.from_torch(torch.eye(3), format="csr"))  # one process
        >>> A.plan.bytes
        0
    """

    share: Share
    load: Load
    algorithm: str
    replicas: int
    dtype: torch.dtype
    wire: torch.dtype | None
    replicated: tuple[tuple[int, Load], ...] = ()
    features: int = FEATURES
    network: Network = DEFAULT_NETWORK
    memory: int | None = None

    def at(self, *, features: int | None = None, network: Any = None, memory: int | None = None) -> Plan:
        """Return the plan for other widths, another network or a memory limit.

        Args:
            features: the number of columns of the dense operand.
            network: a name such as ``"10GbE"``, or latency and bandwidth.
            memory: the memory of a rank in bytes.
        """
        return dataclasses.replace(
            self,
            features=self.features if features is None else features,
            network=self.network if network is None else as_network(network),
            memory=self.memory if memory is None else memory,
        )

    @property
    def width(self) -> Width:
        wire = (
            self.dtype if self.wire is None else min(self.wire, self.dtype, key=lambda dtype: dtype.itemsize)
        )
        return Width(self.features, self.dtype.itemsize, wire.itemsize)

    @property
    def costs(self) -> list[Cost]:
        """The costs of the algorithms whose loads are known."""
        if self.replicas == 1:
            return costs_of(self.load, self.width, self.network, self.replicated)
        own = halo_cost(self.load, self.width, self.network, self.replicas)
        others = [cost for cost in costs_of(self.load, self.width, self.network) if _ignores_owners(cost)]
        return [own, *others]

    @property
    def chosen(self) -> Cost:
        """The cost of a product by the current algorithm."""
        wanted = self.algorithm, self.replicas
        return next(cost for cost in self.costs if (cost.algorithm, cost.replicas) == wanted)

    @property
    def runner_up(self) -> Cost:
        """The cost of the fastest other algorithm; rounds only save memory, and count if it is short."""
        others = [cost for cost in self.costs if cost != self.chosen]
        if self.memory is None:
            others = [cost for cost in others if cost.algorithm != "rounds"]
        return choose(others, self.memory)

    @property
    def bytes(self) -> int:
        """The bytes that this rank receives for one product."""
        if self.algorithm == "features":
            return self.chosen.bytes
        return (self.share.halo + self.share.split) * self.width.sent_row

    @property
    def seconds(self) -> float:
        """The predicted time of one product in seconds."""
        return self.chosen.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain values, for example for JSON."""
        return {
            "share": dataclasses.asdict(self.share),
            "load": dataclasses.asdict(self.load),
            "features": self.features,
            "network": self.network.name,
            "bytes": self.bytes,
            "chosen": describe_cost(self.chosen),
            "runner_up": describe_cost(self.runner_up),
        }

    def __str__(self) -> str:
        load, share, chosen = self.load, self.share, self.chosen
        lines = [
            f"rank {share.process} of {load.processes}: {share.rows:,} of {load.rows:,} rows, "
            f"{share.entries:,} of {load.entries:,} entries",
            f"halo: {counted(share.halo, 'row')} from {counted(share.peers, 'rank')}, "
            f"{counted(share.sent, 'row')} sent" + (f", {share.split:,} split rows" if share.split else ""),
            f"a product with {counted(self.features, 'column')} over {self.network.name}:",
            f"  {describe_in_words(chosen)} (chosen)",
            f"  {describe_in_words(self.runner_up)} (runner-up)",
        ]
        return "\n".join(lines)


def _ignores_owners(cost: Cost) -> bool:
    return cost.algorithm in ("features", "all-gather", "2-D")


def describe_in_words(cost: Cost) -> str:
    """Return a sentence with the bytes, messages, memory and time of a product."""
    return (
        f"{cost.name}: {format_bytes(cost.bytes)} to the busiest rank in "
        f"{counted(cost.messages, 'message')}, memory {format_bytes(cost.memory)} of which buffers "
        f"{format_bytes(cost.buffers)}, {format_seconds(cost.seconds)} = exchange "
        f"{format_seconds(cost.exchange)} + product {format_seconds(cost.compute)}"
    )


def describe_cost(cost: Cost) -> Mapping[str, Any]:
    """Return the numbers of a cost as plain values."""
    return {"name": cost.name, **dataclasses.asdict(cost), "seconds": cost.seconds}


def share_of(local_entries: int, rows: HaloPlan, columns: HaloPlan) -> Share:
    """Return what this rank has of a tensor."""
    return Share(
        process=rank_in(rows.group),
        rows=rows.own,
        entries=local_entries,
        halo=columns.route.incoming,
        sent=len(columns.route.picks),
        split=len(rows.route.picks),
        peers=columns.route.peers,
    )


def load_of(local_entries: int, spread: tuple[int, int] | None, rows: HaloPlan, columns: HaloPlan) -> Load:
    """Return what all ranks have of a tensor, as far as this one knows without communication.

    ``spread``: the entries of all and the most of one; if it is unknown, all have as many as this one.
    """
    parts = size_of(rows.group)
    entries, most = spread or (local_entries * parts, local_entries)
    return Load(
        processes=parts,
        rows=rows.extent,
        columns=columns.extent,
        entries=entries,
        own_rows=int(rows.cuts.diff().max()),
        own_columns=int(columns.cuts.diff().max()),
        own_entries=most,
        fetched=columns.route.most,
        folded=rows.route.most,
        peers=columns.route.most_peers + rows.route.most_peers,
        block=max(columns.route.block, rows.route.block),
        moved=columns.route.total + rows.route.total,
    )
