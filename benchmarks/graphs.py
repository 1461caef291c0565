"""Graph networks beside PyG's: one training step and one inference, on Cora, PubMed and ogbn-arxiv.

    python -m benchmarks.graphs [--data DIR] [--json] [--threads N] [--seconds S] [--graphs cora,pubmed,arxiv]
                                [--networks "GCN,SAGE max"]

Networks of two layers with the same weights. PyG is shown at the best of its ways to hold a graph: an
``edge_index``, its sorted ``EdgeIndex``, a torch.sparse CSR matrix; its GCN keeps the normalised graph
(``cached=True``). Results are compared before they are timed; contestants take turns. Each row is shown, on
the error stream, as soon as it is measured; the table follows when all are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.graph_data import SIZES, Data, load
from benchmarks.overhead import machine
from scorch import nn

warnings.filterwarnings("ignore")

NETWORKS = ("GCN", "SAGE mean", "SAGE max", "GAT")
ROUNDS = 5  # at least, of those that do not fit into the seconds
Clock = Callable[[], float]


class Network(torch.nn.Module):
    """Two layers of ``library`` (scorch.nn or torch_geometric.nn) with a ReLU (GAT: an ELU) between them."""

    def __init__(self, library: Any, kind: str, data: Data) -> None:
        super().__init__()
        features, classes = data.x.shape[1], data.classes
        hidden = 16 if data.name in ("cora", "pubmed", "tiny") else 128
        if kind == "GAT":
            width = hidden // 2 if hidden == 16 else hidden // 8
            self.first = library.GATConv(features, width, heads=8)
            self.second = library.GATConv(8 * width, classes, heads=1, concat=False)
        elif kind == "GCN":
            self.first = library.GCNConv(features, hidden, cached=True)
            self.second = library.GCNConv(hidden, classes, cached=True)
        else:
            aggregation = kind.split()[1]
            self.first = library.SAGEConv(features, hidden, aggr=aggregation)
            self.second = library.SAGEConv(hidden, classes, aggr=aggregation)
        self.activation = F.elu if kind == "GAT" else F.relu

    def forward(self, x: Any, graph: Any) -> torch.Tensor:
        found: torch.Tensor = self.second(self.activation(self.first(x, graph)), graph)
        return found


Contestant = tuple[Network, Any, Any]  # a network, its features and its graph


def contestants(kind: str, data: Data) -> dict[str, Callable[[], Contestant]]:
    """Those of Scorch first; PyG's only where it is installed."""
    torch.manual_seed(0)
    weights = Network(nn, kind, data).state_dict()

    def network(library: Any) -> Network:
        made = Network(library, kind, data)
        made.load_state_dict(weights)
        return made

    matrix = data.matrix()
    found: dict[str, Callable[[], Contestant]] = {
        "Scorch": lambda: (network(nn), data.x, matrix),
        "Scorch, edge_index": lambda: (network(nn), data.x, data.edge_index),
    }
    if data.words is not None and kind != "SAGE max":
        found["Scorch, sparse x"] = lambda: (network(nn), data.words, matrix)
    try:
        import torch_geometric.nn as pyg
        from torch_geometric import EdgeIndex
    except ImportError:
        return found
    sizes = (data.nodes, data.nodes)
    order = torch.argsort(data.edge_index[1], stable=True)
    edges = data.edge_index[:, order]

    def edge_index() -> Any:
        made: Any = EdgeIndex(edges, sparse_size=sizes, sort_order="col", is_undirected=True)
        return made.fill_cache_()

    csr = matrix.to_torch()
    found["PyG, edge_index"] = lambda: (network(pyg), data.x, edges)
    found["PyG, EdgeIndex"] = lambda: (network(pyg), data.x, edge_index())
    found["PyG, torch.sparse"] = lambda: (network(pyg), data.x, csr)
    return found


def training_step(data: Data, contestant: Contestant) -> Callable[[], object]:
    network, x, graph = contestant
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)

    def step() -> object:
        network.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(network(x, graph)[data.train], data.y[data.train])
        loss.backward()
        optimizer.step()
        return loss

    return step


def inference(contestant: Contestant) -> Callable[[], object]:
    network, x, graph = contestant

    def infer() -> object:
        with torch.no_grad():
            return network.eval()(x, graph)

    return infer


def checked(kind: str, data: Data) -> tuple[dict[str, Contestant], dict[str, str]]:
    """The contestants with the results and gradients of the first, and what is wrong with the others."""
    able: dict[str, Contestant] = {}
    failed: dict[str, str] = {}
    reference: list[torch.Tensor] | None = None
    for name, make in contestants(kind, data).items():
        try:
            network, x, graph = made = make()
            out = network(x, graph)
            F.cross_entropy(out[data.train], data.y[data.train]).backward()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
            continue
        found = [
            out.detach(),
            *(weight.grad.clone() for weight in network.parameters() if weight.grad is not None),
        ]
        reference = reference or found
        apart = max(
            float((a - b).abs().max() / b.abs().max().clamp(min=1e-6))
            for a, b in zip(found, reference, strict=True)
        )
        if apart < 1e-3:
            able[name] = made
        else:
            failed[name] = f"differs from the first by {apart:.1e}"
    return able, failed


def interleaved(
    calls: dict[str, Callable[[], object]],
    seconds: float,
    clock: Clock = time.perf_counter,
    least: int = ROUNDS,
) -> dict[str, float]:
    """The median time of each in milliseconds; all together take about as many ``seconds``."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < least or time.perf_counter() < end:
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append((clock() - start) * 1e3)
        rounds += 1
    return {name: statistics.median(found) for name, found in times.items()}


def measure(
    kind: str, data: Data, seconds: float, clock: Clock, least: int = ROUNDS
) -> Iterator[dict[str, Any]]:
    """Rows of the table, one after the other as they are measured."""
    able, failed = checked(kind, data)
    for what in ("training step", "inference"):
        make = (lambda one: training_step(data, one)) if what == "training step" else inference
        times = interleaved({name: make(one) for name, one in able.items()}, seconds, clock, least)
        yield {"graph": data.name, "network": kind, "what": what, "times": times, "failed": failed}


def shown(row: dict[str, Any]) -> str:
    """A row as one line."""
    times = ", ".join(f"{name} {time:.2f}" for name, time in row["times"].items())
    return f"{row['graph']}, {row['network']}, {row['what']}: {times}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Milliseconds, and how many times faster the best of Scorch (on dense x) is than the best of PyG."""
    names = list(dict.fromkeys(name for row in rows for name in [*row["times"], *row["failed"]]))
    lines = ["| graph | network | | " + " | ".join(names) + " | ratio |", "|---" * (len(names) + 4) + "|"]
    for row in rows:
        times = row["times"]
        ours = [time for name, time in times.items() if name.startswith("Scorch") and "sparse x" not in name]
        theirs = [time for name, time in times.items() if name.startswith("PyG")]
        ratio = f"{min(theirs) / min(ours):.2f}" if theirs else "-"
        cells = [f"{times[name]:.2f}" if name in times else "-" for name in names]
        lines.append(f"| {row['graph']} | {row['network']} | {row['what']} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="real graphs; without it, made up ones of their sizes"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument(
        "--processor-time", action="store_true", help="of all threads, for machines busy with other work"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row of the table")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least, however long they take")
    parser.add_argument("--graphs", default="cora,pubmed,arxiv", help=f"some of {', '.join(SIZES)}")
    parser.add_argument("--networks", default=",".join(NETWORKS), help=f"some of {', '.join(NETWORKS)}")
    options = parser.parse_args(arguments)
    for given, known in ((options.graphs, tuple(SIZES)), (options.networks, NETWORKS)):
        unknown = [name for name in given.split(",") if name not in known]
        if unknown:
            parser.error(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.processor_time else time.perf_counter
    what = "processor time" if options.processor_time else "medians"
    rows, made_up = [], []
    for name in options.graphs.split(","):
        data = load(name, options.data)
        made_up += [name] if data.is_made_up else []
        for kind in options.networks.split(","):
            for row in measure(kind, data, options.seconds, clock, options.rounds):
                print(shown(row), file=sys.stderr, flush=True)
                rows.append(row)
    if options.json:
        print(
            json.dumps(
                {"machine": machine(), "threads": options.threads, "made up": made_up, "rows": rows}, indent=2
            )
        )
        return 0
    print(f"{machine()}; {options.threads} threads; milliseconds, {what}\n")
    if made_up:
        print(f"made up, not real: {', '.join(made_up)}\n")
    print(table(rows))
    for text in dict.fromkeys(
        f"{row['network']}, {name}: {why}" for row in rows for name, why in row["failed"].items()
    ):
        print(f"- left out: {text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
