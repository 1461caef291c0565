"""What a product with a sharded matrix costs by each algorithm: bytes, memory and time.

Per rank, with ``P`` ranks, ``d`` columns of ``w`` bytes, latency ``a`` and ``b`` seconds a byte; ``n``
rows, ``h`` rows fetched or sent by the busiest rank from or to ``q`` others, ``z`` entries:

- halo, rounds: ``a q + b w d h``, and packing the rows; memory of rounds is that of two blocks, not of ``h``
- features: ``2 a (P-1) + 2 b w d n/P``; memory of all entries
- 1.5-D with ``c`` replicas: ``b w d (h/c + (c-1) n/P)``, where ``h`` is the halo of ``P/c`` parts
- all-gather: ``a (P-1) + b w d n (P-1)/P``, and 2-D without regard to the pattern
  ``2 a sqrt(P) + 2 b w d n/sqrt(P)``, to compare with; nothing here runs them
- the product itself: ``z d w`` bytes at the speed at which rows are gathered
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from scorch._src.dataclass import dataclass
from scorch.errors import ArgumentError

GATHER_SPEED = 20e9  # bytes a second at which a rank reads rows in any order
INDEX_BYTES = 4
RUNNABLE = ("halo", "rounds", "features", "1.5d")


@dataclass(frozen=True)
class Network:
    """What connects ranks: latency in seconds per message, and bandwidth in bytes per second."""

    name: str
    latency: float
    bandwidth: float


NETWORKS = {
    network.name.lower(): network
    for network in (
        Network("1GbE", 100e-6, 0.11e9),
        Network("10GbE", 50e-6, 1.1e9),
        Network("25GbE", 30e-6, 2.75e9),
        Network("100GbE", 20e-6, 11e9),
        Network("100Gb", 3e-6, 11e9),
        Network("200Gb", 3e-6, 22e9),
        Network("400Gb", 3e-6, 44e9),
    )
}
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "MB/s": 1e6, "GB/s": 1e9}


def as_network(given: str | Network | Sequence[float]) -> Network:
    """Return a network by its name, by a string such as ``50us,1.1GB/s``, or by latency and bandwidth.

    >>> as_network("50us,1.1GB/s").bandwidth
    1100000000.0
    """
    if isinstance(given, Network):
        return given
    if isinstance(given, str):
        found = NETWORKS.get(given.lower())
        if found is not None:
            return found
        match = re.fullmatch(r"([\d.e+-]+)\s*(us|ms|s)\s*,\s*([\d.e+-]+)\s*([MG]B/s)", given)
        if match:
            latency, bandwidth = (float(match[n]) * _UNITS[match[n + 1]] for n in (1, 3))
            return as_network((latency, bandwidth))
    elif len(given) == 2 and min(given) >= 0 and given[1] > 0:
        return Network(f"{given[0] * 1e6:g}us,{given[1] / 1e9:g}GB/s", float(given[0]), float(given[1]))
    names = ", ".join(network.name for network in NETWORKS.values())
    raise ArgumentError(
        f"network must be one of {names}, or latency and bandwidth as in '50us,1.1GB/s', but got {given!r}"
    )


@dataclass(frozen=True)
class Load:
    """What ranks have and move; ``own``, ``fetched``, ``folded``, ``peers`` and ``block`` of the busiest.

    ``fetched`` rows of the operand come from others or go to them, ``folded`` rows of the result do, in
    blocks of at most ``block`` rows; ``moved`` are the rows that all ranks receive together.
    """

    processes: int
    rows: int
    columns: int
    entries: int
    own_rows: int
    own_columns: int
    own_entries: int
    fetched: int
    folded: int
    peers: int
    block: int
    moved: int


@dataclass(frozen=True)
class Width:
    """The columns of an operand, and the bytes of a number in memory and on the wire."""

    features: int
    bytes: int = 4
    wire: int = 4

    @property
    def row(self) -> int:
        return self.features * self.bytes

    @property
    def sent_row(self) -> int:
        return self.features * self.wire


@dataclass(frozen=True)
class Cost:
    """One product by an algorithm, on the busiest rank: bytes received, memory with buffers, seconds.

    ``total`` are the bytes that all ranks receive together, ``once`` those that move before the first
    product.
    """

    algorithm: str
    replicas: int
    bytes: int
    total: int
    once: int
    messages: int
    memory: int
    buffers: int
    exchange: float
    compute: float

    @property
    def seconds(self) -> float:
        return self.exchange + self.compute

    @property
    def name(self) -> str:
        return f"{self.algorithm}, {self.replicas} replicas" if self.replicas > 1 else self.algorithm


def halo_cost(load: Load, width: Width, network: Network, replicas: int = 1) -> Cost:
    """Return the cost of fetching all rows at once, and of folding rows that are split."""
    moved = load.fetched + load.folded
    buffers = moved * width.sent_row + load.folded * width.row
    rows = load.own_columns + load.fetched + load.own_rows + load.folded
    return _cost(
        "1.5d" if replicas > 1 else "halo",
        load,
        width,
        network,
        replicas=replicas,
        bytes=moved * width.sent_row,
        total=load.moved * width.sent_row,
        messages=load.peers,
        buffers=buffers,
        rows=rows,
        packed=moved,
    )


def rounds_cost(load: Load, width: Width, network: Network) -> Cost:
    """Return the cost of fetching from one rank after the other: two blocks are in memory at a time."""
    return _cost(
        "rounds",
        load,
        width,
        network,
        bytes=(load.fetched + load.folded) * width.sent_row,
        total=load.moved * width.sent_row,
        messages=load.peers,
        buffers=2 * load.block * max(width.row, width.sent_row),
        rows=load.own_columns + load.own_rows,
        packed=load.fetched + load.folded,
    )


def features_cost(load: Load, width: Width, network: Network) -> Cost:
    """Return the cost of transposing rows to features and back, with all entries on every rank."""
    others = load.processes - 1
    features = -(-width.features // load.processes)
    each = features * width.wire
    received = (load.columns - load.own_columns) + others * load.own_rows
    sent = others * load.own_columns + (load.rows - load.own_rows)
    rows = -(-(load.rows + load.columns) * features * width.bytes // max(width.row, 1))
    return _cost(
        "features",
        load,
        width,
        network,
        bytes=max(received, sent) * each,
        total=others * (load.rows + load.columns) * each,
        messages=2 * others,
        buffers=(load.own_columns + load.own_rows) * features * load.processes * width.wire,
        rows=load.own_columns + load.own_rows + rows,
        packed=load.own_columns + load.own_rows,
        entries=load.entries,
        once=others * load.entries * (16 + width.bytes),
        work=load.entries * features * width.bytes,
    )


def gather_cost(load: Load, width: Width, network: Network) -> Cost:
    """Return the cost of an all-gather of the operand, for comparison."""
    others = load.processes - 1
    received = load.columns - load.columns // load.processes
    return _cost(
        "all-gather",
        load,
        width,
        network,
        bytes=received * width.sent_row,
        total=others * load.columns * width.sent_row,
        messages=others,
        buffers=0,
        rows=load.columns + load.own_rows,
        packed=0,
    )


def grid_cost(load: Load, width: Width, network: Network) -> Cost:
    """Return the cost of a 2-D grid of ranks that ignores the sparsity pattern, for comparison."""
    side = math.sqrt(load.processes)
    received = math.ceil(2 * load.columns / side)
    return _cost(
        "2-D",
        load,
        width,
        network,
        bytes=received * width.sent_row,
        total=received * width.sent_row * load.processes,
        messages=math.ceil(2 * side),
        buffers=0,
        rows=math.ceil((load.columns + load.rows) / side),
        packed=0,
    )


def _cost(
    algorithm: str,
    load: Load,
    width: Width,
    network: Network,
    *,
    bytes: int,
    total: int,
    messages: int,
    buffers: int,
    rows: int,
    packed: int,
    replicas: int = 1,
    entries: int | None = None,
    once: int = 0,
    work: int | None = None,
) -> Cost:
    entries = load.own_entries if entries is None else entries
    work = load.own_entries * width.row if work is None else work
    return Cost(
        algorithm=algorithm,
        replicas=replicas,
        bytes=bytes,
        total=total,
        once=once,
        messages=messages,
        memory=entries * (INDEX_BYTES + width.bytes) + rows * width.row + buffers,
        buffers=buffers,
        exchange=messages * network.latency + bytes / network.bandwidth + packed * width.row / GATHER_SPEED,
        compute=work / GATHER_SPEED,
    )


def costs_of(
    load: Load, width: Width, network: Network, replicated: Iterable[tuple[int, Load]] = ()
) -> list[Cost]:
    """Return the costs of all algorithms; ``replicated`` are the loads of 1.5-D by the number of replicas."""
    one_d = [cost(load, width, network) for cost in (halo_cost, rounds_cost, features_cost)]
    more = [halo_cost(other, width, network, replicas) for replicas, other in replicated]
    return [*one_d, *more, gather_cost(load, width, network), grid_cost(load, width, network)]


def choose(costs: Iterable[Cost], memory: int | None = None) -> Cost:
    """Return the fastest algorithm that fits into the memory of a rank, else the smallest one."""
    runnable = [cost for cost in costs if cost.algorithm in RUNNABLE]
    fitting = [cost for cost in runnable if memory is None or cost.memory <= memory]
    if fitting:
        return min(fitting, key=lambda cost: (cost.seconds, cost.name == "rounds"))
    return min(runnable, key=lambda cost: cost.memory)
