"""A training step of a graph network on a sharded graph: bytes that move, time, and the loss of one process.

    python -m benchmarks.distributed [--data DIR] [--graph arxiv] [--processes 1,2,4] [--methods given,label]
    python -m benchmarks.distributed [--data DIR] --accuracy 30 --processes 1,4

Each number of processes is started anew, by gloo on this machine, and shares its cores. Bytes are counted,
not modelled; all-gather is what the same step would move if every process got all rows and gave back all
gradients. A table is printed, ``--json FILE`` keeps the numbers.

``--accuracy EPOCHS`` trains that long instead, in one process without any sharding and in several, and
prints losses and accuracies of both.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import scorch
import scorch.distributed as sd
from benchmarks.graph_data import Data, load
from benchmarks.overhead import machine

WIDTHS = (128, 64)  # of the features and of the layer in between
STEPS = 5


class Network(torch.nn.Module):
    """Two graph convolutions."""

    def __init__(self, widths: tuple[int, ...], normalize: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            scorch.nn.GCNConv(a, b, normalize=normalize) for a, b in itertools.pairwise(widths)
        )

    def forward(self, x: torch.Tensor, graph: Any) -> torch.Tensor:
        first, *rest = self.layers
        x = first(x, graph)
        for layer in rest:
            x = layer(x.relu(), graph)
        return x


def step(model: Network, graph: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Forward and backward, with gradients of the features and of all weights, as one process has them."""
    model.zero_grad()
    loss = sd.mean(F.cross_entropy(model(x, graph), y, reduction="none"))
    loss.backward()
    sd.sum_gradients(model.parameters())
    return loss.detach()


def sharded_graph(data: Data, method: str) -> tuple[Any, float]:
    """The graph, sharded and partitioned; and the seconds that took."""
    start = time.perf_counter()
    graph = sd.shard(data.matrix())
    if method != "given":
        graph = sd.partition(graph, method, features=[*WIDTHS, data.classes])
    graph = sd.normalize(graph, 1.0)
    return graph, time.perf_counter() - start


def join(rank: int, world: int, folder: str) -> int:
    """Join the other processes; return how many threads this one has."""
    threads = max(1, (os.cpu_count() or 1) // world)
    torch.set_num_threads(threads)
    store = dist.FileStore(str(Path(folder) / "store"), world)
    minutes = datetime.timedelta(minutes=10)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=minutes)
    return threads


def leave(rank: int, folder: str, found: dict[str, Any]) -> None:
    """Write down what was found, and wait for the others."""
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def measure(rank: int, world: int, folder: str, directory: Path | None, name: str, method: str) -> None:
    """Join the others, train some steps, and write down what was counted."""
    threads = join(rank, world, folder)
    data = load(name, directory)
    graph, seconds = sharded_graph(data, method)
    torch.manual_seed(0)
    model = Network((data.x.shape[1], WIDTHS[1], data.classes))
    x, y = graph.rows_of(data.x).clone().requires_grad_(), graph.rows_of(data.y)
    loss = step(model, graph, x, y)  # compiles
    times = []
    with sd.count_bytes() as traffic:
        for _ in range(STEPS):
            dist.barrier()
            start = time.perf_counter()
            step(model, graph, x, y)
            times.append(time.perf_counter() - start)
    found = {
        "received": traffic.received // STEPS,
        "rows": graph.rows.own,
        "halo": len(graph.columns.ghosts),
        "seconds": statistics.median(times),
        "planned": seconds,
        "loss": float(loss),
        "threads": threads,
    }
    leave(rank, folder, found)


# accuracy --------------------------------------------------------------------------------------------


def inputs(data: Data) -> tuple[torch.Tensor, torch.Tensor]:
    """The features of nodes, and the nodes to train with.

    ogbn-arxiv's own features are not in the file: the classes of half of the nodes for training, which are
    left out of the loss, are put beside those that are drawn.
    """
    known, wanted = data.train[::2], data.train[1::2]
    classes = torch.zeros(data.nodes, data.classes)
    classes[known, data.y[known]] = 1
    return torch.cat([data.x, classes], 1), wanted


def train(
    rank: int, world: int, folder: str, directory: Path | None, name: str, method: str, epochs: int
) -> None:
    """Train as one process does without any sharding, or as several do; write losses and accuracy."""
    join(rank, world, folder)
    data = load(name, directory)
    x, wanted = inputs(data)
    masks = torch.zeros(2, data.nodes, dtype=torch.bool)
    masks[0, wanted], masks[1, data.test] = True, True
    graph: Any = data.matrix()
    y, (is_wanted, is_test) = data.y, masks
    if world > 1:
        graph = sd.shard(graph)
        if method != "given":
            graph = sd.partition(graph, method, features=[x.shape[1], WIDTHS[1], data.classes])
        x, y, is_wanted, is_test = (graph.rows_of(rows) for rows in (x, data.y, *masks))
    torch.manual_seed(0)
    model = Network((x.shape[1], WIDTHS[1], data.classes), normalize=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    start = time.perf_counter()
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = sd.mean(F.cross_entropy(model(x, graph)[is_wanted], y[is_wanted], reduction="none"))
        loss.backward()
        sd.sum_gradients(model.parameters())
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - start
    with torch.no_grad():
        is_right = (model(x, graph).argmax(1) == y).float()
    found = {
        "first": losses[0],
        "last": losses[-1],
        "trained": float(sd.mean(is_right[is_wanted])),
        "accuracy": float(sd.mean(is_right[is_test])),
        "seconds": seconds,
    }
    leave(rank, folder, found)


def show_accuracy(
    worlds: Iterable[int], methods: list[str], data: Data, directory: Path | None, epochs: int
) -> list[dict[str, Any]]:
    """Print a table of losses and accuracies after training."""
    print_titles(["processes", "partition", "first loss", "last loss", "accuracy, training", "test", "s"])
    found = []
    for world in worlds:
        for method in methods if world > 1 else ["not sharded"]:
            row = in_processes(train, world, directory, data.name, method, epochs)[0]
            found.append({"processes": world, "method": method, "epochs": epochs, **row})
            print(
                f"| {world} | {method} | {row['first']:.6f} | {row['last']:.6f} | {row['trained']:.4f} | "
                f"{row['accuracy']:.4f} | {row['seconds']:.1f} |",
                flush=True,
            )
    return found


def gathered_bytes(nodes: int, widths: tuple[int, ...], world: int) -> int:
    """What all-gather would move in a step: features of each product, and gradients of each, of all rows."""
    return 2 * sum(widths) * nodes * 4 * (world - 1)


def in_processes(work: Any, world: int, *arguments: Any) -> list[dict[str, Any]]:
    """What ``work`` found in each of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (world, folder, *arguments), nprocs=world, start_method="spawn")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(world)]


def run(world: int, directory: Path | None, name: str, method: str) -> dict[str, Any]:
    parts = in_processes(measure, world, directory, name, method)
    data = load(name, directory)
    # The first product is of the narrower side of the first layer, the second of the classes.
    widths = (min(data.x.shape[1], WIDTHS[1]), min(WIDTHS[1], data.classes))
    moved = sum(part["received"] for part in parts)
    whole = gathered_bytes(data.nodes, widths, world)
    return {
        "processes": world,
        "method": method,
        "threads": parts[0]["threads"],
        "rows": [min(part["rows"] for part in parts), max(part["rows"] for part in parts)],
        "halo": max(part["halo"] for part in parts),
        "megabytes": moved / 1e6,
        "of all-gather": moved / whole if whole else None,
        "step_ms": max(part["seconds"] for part in parts) * 1e3,
        "plan_s": max(part["planned"] for part in parts),
        "loss": parts[0]["loss"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, metavar="DIR", help="has ogbn_arxiv/ogbn_arxiv.npz")
    parser.add_argument("--graph", default="arxiv", help="cora, citeseer, pubmed, arxiv or tiny")
    parser.add_argument("--processes", default="1,2,4", help="how many processes, one run for each")
    parser.add_argument("--methods", default="given,label", help="given, or methods of sd.partition")
    parser.add_argument("--accuracy", type=int, metavar="EPOCHS", help="train, and compare with one process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file")
    arguments = parser.parse_args()
    data = load(arguments.graph, arguments.data)
    edges = data.edge_index.shape[1]
    print(f"{machine()}; {arguments.graph} ({data.source}): {data.nodes:,} nodes, {edges:,} edges")
    worlds, methods = map(int, arguments.processes.split(",")), arguments.methods.split(",")
    if arguments.accuracy:
        found = show_accuracy(worlds, methods, data, arguments.data, arguments.accuracy)
    else:
        found = show_steps(worlds, methods, arguments.graph, arguments.data)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def show_steps(
    worlds: Iterable[int], methods: list[str], name: str, directory: Path | None
) -> list[dict[str, Any]]:
    """Print a table of training steps, with bytes and times."""
    titles = [
        "processes",
        "rows",
        "partition",
        "halo",
        "MB a step",
        "of all-gather",
        "ms a step",
        "s to plan",
        "loss",
    ]
    print_titles(titles)
    found = []
    for world in worlds:
        for method in methods if world > 1 else ["given"]:
            row = run(world, directory, name, method)
            found.append(row)
            share = "" if row["of all-gather"] is None else f"{row['of all-gather']:.3f}"
            low, high = row["rows"]
            print(
                f"| {world} x {row['threads']} threads | {low:,} to {high:,} | {method} | {row['halo']:,} | "
                f"{row['megabytes']:.1f} | {share} | {row['step_ms']:.1f} | {row['plan_s']:.1f} | "
                f"{row['loss']:.6f} |",
                flush=True,
            )
    return found


def print_titles(titles: list[str]) -> None:
    print(f"\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}", flush=True)


if __name__ == "__main__":
    main()
