"""Exchanges of sharded products over a slow network, which are hidden behind the product of own entries.

    python -m benchmarks.distributed_overlap [--data DIR] [--graph arxiv] [--processes 4] [--network 1GbE]

Processes are on one machine; an exchange of rows is over when it would be over that network at the earliest,
and needs no processor until then. Products and their gradients that go on meanwhile are timed beside those
that wait, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.distributed import STEPS, WIDTHS, in_processes, join, leave, print_titles, sharded_graph
from benchmarks.graph_data import load
from benchmarks.overhead import machine
from scorch._src.distributed import products


class Late:
    """An exchange that is over at a time, at the earliest."""

    def __init__(self, work: Any, end: float) -> None:
        self.work, self.end = work, end

    def wait(self) -> None:
        self.work.wait()
        time.sleep(max(0.0, self.end - time.perf_counter()))


@contextlib.contextmanager
def slowed(network: Any) -> Iterator[None]:
    """Let exchanges of rows take as long as over a network, which needs no processor meanwhile."""
    exchange: Any = dist.all_to_all_single

    def exchange_slowly(out: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        seconds = (
            network.latency * (dist.get_world_size() - 1) + max(len(out), len(given)) / network.bandwidth
        )
        end = time.perf_counter() + seconds
        return Late(exchange(out, given, *args, **{**kwargs, "async_op": True}), end)

    dist.all_to_all_single = exchange_slowly
    try:
        yield
    finally:
        dist.all_to_all_single = exchange


def overlap(
    rank: int, world: int, folder: str, directory: Path | None, name: str, method: str, network: str
) -> None:
    """Time products and their gradients that go on during exchanges, and those that wait, in turns."""
    join(rank, world, folder)
    graph, _ = sharded_graph(load(name, directory), method)
    x = torch.rand(graph.rows.own, WIDTHS[0], requires_grad=True)
    times: dict[str, list[float]] = {"hidden": [], "waiting": []}
    with slowed(graph.plan.at(network=network).network):
        for count in range(STEPS + 1):
            for kind, least in (("hidden", 0), ("waiting", 1 << 60)):
                products.OVERLAP_BYTES = least
                dist.barrier()
                start = time.perf_counter()
                (graph @ x).sum().backward()
                if count:  # the first compiles
                    times[kind].append(time.perf_counter() - start)
    cost = graph.plan.at(features=WIDTHS[0], network=network).chosen
    medians = {kind: statistics.median(each) for kind, each in times.items()}
    leave(rank, folder, {**medians, "exchange": 2 * cost.exchange})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, metavar="DIR", help="has ogbn_arxiv/ogbn_arxiv.npz")
    parser.add_argument("--graph", default="arxiv", help="cora, citeseer, pubmed, arxiv or tiny")
    parser.add_argument("--processes", default="4", help="how many processes, one run for each")
    parser.add_argument("--methods", default="given,label", help="given, or methods of sd.partition")
    parser.add_argument("--network", default="1GbE", help="how long exchanges take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file")
    arguments = parser.parse_args()
    print(f"{machine()}; {arguments.graph}, a product with {WIDTHS[0]} columns and its gradient")
    print_titles(
        ["processes", "partition", "network", "ms of exchanges", "ms, waiting", "ms, multiplying meanwhile"]
    )
    found = []
    for world in map(int, arguments.processes.split(",")):
        for method in arguments.methods.split(","):
            details = arguments.data, arguments.graph, method, arguments.network
            parts = in_processes(overlap, world, *details)
            row = {kind: 1e3 * max(part[kind] for part in parts) for kind in parts[0]}
            found.append({"processes": world, "method": method, "network": arguments.network, **row})
            numbers = f"{row['exchange']:.1f} | {row['waiting']:.1f} | {row['hidden']:.1f}"
            print(f"| {world} | {method} | {arguments.network} | {numbers} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
