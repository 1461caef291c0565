"""``python -m scorch plan``: what training a graph over many processes would move, hold and take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scorch._src.dataclass import dataclass
from scorch._src.devices import HOST
from scorch._src.distributed.cost_model.formulas import (
    RUNNABLE,
    Cost,
    Load,
    Network,
    Width,
    as_network,
    costs_of,
)
from scorch._src.distributed.cost_model.simulate import expect, simulate
from scorch._src.distributed.cuts import as_cuts, cut_by_work, cut_evenly, owners_in
from scorch._src.io.files import load
from scorch._src.storage.coordinates import numbered_entries
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.units import format_bytes, format_seconds, format_table
from scorch.errors import ArgumentError, MissingFileError, ShapeError

Tensor = torch.Tensor
MOST_REPLICAS = 8
WIRES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class StepCost:
    """A training step by an algorithm, on the busiest rank: each product forward and backward."""

    name: str
    bytes: int
    total: int
    once: int
    messages: int
    memory: int
    exchange: float
    compute: float
    seconds: float
    runs: bool  # here; others are to compare with
    fits: bool


@dataclass(frozen=True)
class GraphPlan:
    """The costs of a step by each algorithm, and which of them is expected to be the fastest."""

    graph: str
    workers: int
    network: Network
    features: tuple[int, ...]
    cuts: str
    rows: int
    entries: int
    busiest_rows: int
    busiest_entries: int
    steps: tuple[StepCost, ...]

    @property
    def best(self) -> StepCost:
        runnable = [step for step in self.steps if step.runs]
        fitting = [step for step in runnable if step.fits]
        return min(fitting, key=lambda step: step.seconds) if fitting else min(runnable, key=_memory_of)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "best": self.best.name}

    def __str__(self) -> str:
        widths = ", ".join(map(str, self.features))
        head = [
            f"{self.graph}: {self.rows:,} rows, {self.entries:,} nonzeros; {self.workers:,} ranks over "
            f"{self.network.name}, rows cut by {self.cuts}",
            f"busiest rank: {self.busiest_rows:,} rows, {self.busiest_entries:,} nonzeros",
            f"a step: products with {widths} columns, forward and backward",
            "",
        ]
        names = "algorithm", "", "received", "by all", "messages", "memory", "exchange", "compute", "step"
        rows = [self._row(step) for step in self.steps]
        return "\n".join([*head, *format_table([names, *rows], 2)])

    def _row(self, step: StepCost) -> tuple[str, ...]:
        note = "fastest" if step is self.best else "" if step.fits else "too large"
        if not step.runs:
            note = "for comparison"
        numbers = format_bytes(step.bytes), format_bytes(step.total), f"{step.messages:,}"
        times = map(format_seconds, (step.exchange, step.compute, step.seconds))
        return step.name, note, *numbers, format_bytes(step.memory), *times


def _memory_of(step: StepCost) -> int:
    return step.memory


def plan_graph(
    path: str,
    *,
    workers: int,
    network: Any = "10GbE",
    features: Sequence[int] = (128,),
    cuts: str = "work",
    partition: str | None = None,
    wire: str | None = None,
    memory: float | None = None,
) -> GraphPlan:
    """Predict the bytes, memory and time of a training step from a sparsity pattern, or from degrees.

    ``path``: a matrix, or a vector of degrees. ``cuts``: "work" or "even" shards of rows in the given order,
    "random" for the expectation over random orders, or a file of cuts; ``partition``: a file that has
    the worker of each row.
    """
    if workers < 1:
        raise ArgumentError(f"--workers must be a positive integer, but got {workers}")
    tensor = _read(path)
    loads = dict(_loads(tensor, workers, features, cuts, partition))
    one, link = loads[1], as_network(network)
    replicated = [(replicas, other) for replicas, other in loads.items() if replicas > 1]
    size = tensor.dtype.itemsize if tensor.dtype.is_floating_point else 4
    widths = [Width(width, size, size if wire is None else min(size, WIRES[wire])) for width in features]
    products = [costs_of(one, width, link, replicated) for width in widths]
    steps = tuple(_step_of(costs, memory) for costs in zip(*products, strict=True))
    kind = "degrees, in random order" if tensor.dim() == 1 or cuts == "random" else partition or cuts
    return GraphPlan(
        Path(path).name,
        workers,
        link,
        tuple(features),
        kind,
        one.rows,
        one.entries,
        one.own_rows,
        one.own_entries,
        steps,
    )


def _step_of(costs: Sequence[Cost], memory: float | None) -> StepCost:
    """Add up the products of a step, each of which is there once forward and once backward."""
    most = max(cost.memory for cost in costs)
    exchange, compute = 2 * sum(cost.exchange for cost in costs), 2 * sum(cost.compute for cost in costs)
    return StepCost(
        name=costs[0].name,
        bytes=2 * sum(cost.bytes for cost in costs),
        total=2 * sum(cost.total for cost in costs),
        once=costs[0].once,
        messages=2 * sum(cost.messages for cost in costs),
        memory=most,
        exchange=exchange,
        compute=compute,
        seconds=exchange + compute,
        runs=costs[0].algorithm in RUNNABLE,
        fits=memory is None or most <= memory,
    )


def _loads(
    tensor: Tensor, workers: int, features: Sequence[int], cuts: str, partition: str | None
) -> Iterator[tuple[int, Load]]:
    replicas = [c for c in range(1, MOST_REPLICAS + 1) if workers % c == 0 and (c == 1 or workers > 1)]
    if tensor.dim() == 1:
        degrees = tensor.to(torch.float64)
        yield from ((c, expect(degrees, degrees, workers, c)) for c in replicas)
        return
    assert isinstance(tensor, SparseTensor)
    crd, _ = numbered_entries(tensor.storage.pattern)
    rows, columns = (column.to(torch.int64) for column in crd)
    degrees = torch.bincount(rows, minlength=tensor.shape[0])
    if cuts == "random":
        others = torch.bincount(columns, minlength=tensor.shape[1])
        yield from ((c, expect(degrees, others, workers, c)) for c in replicas)
        return
    row_owners = _row_owners(degrees, workers, features, cuts, partition)
    column_owners = row_owners
    if tensor.shape[0] != tensor.shape[1]:
        column_owners = owners_in(
            torch.arange(tensor.shape[1], device=HOST), cut_evenly(tensor.shape[1], workers)
        )
    for c in replicas:
        yield c, simulate((rows, columns), row_owners, column_owners, workers, c).load


def _row_owners(
    degrees: Tensor, workers: int, features: Sequence[int], cuts: str, partition: str | None
) -> Tensor:
    numbers = torch.arange(len(degrees), device=degrees.device)
    if partition is not None:
        owners = _read_numbers(partition)
        if len(owners) != len(degrees) or (
            len(owners) and not 0 <= int(owners.min()) <= owners.max() < workers
        ):
            raise ShapeError(
                f"{partition} must have a rank from 0 to {workers - 1} for each of {len(degrees):,} rows"
            )
        return owners
    if cuts == "even":
        return owners_in(numbers, cut_evenly(len(degrees), workers))
    if cuts == "work":
        return owners_in(numbers, cut_by_work(degrees, workers))
    return owners_in(numbers, as_cuts(cuts, _read_numbers(cuts), len(degrees), workers))


def _read(path: str) -> Tensor:
    """Read a matrix, or a vector of degrees."""
    if Path(path).suffix in (".npy", ".txt"):
        return _read_numbers(path)
    found = load(path)
    if isinstance(found, torch.Tensor) and found.dim() == 1 and not isinstance(found, SparseTensor):
        return found
    if not isinstance(found, SparseTensor) or found.dim() != 2:
        raise ShapeError(f"expected a sparse matrix or a vector of degrees in {path}")
    return found


def _read_numbers(path: str) -> Tensor:
    """Read integers: from an array (.npy), or of a text with one in each line, as partitioners write."""
    try:
        array = np.load(path) if path.endswith(".npy") else np.loadtxt(path, dtype=np.int64, ndmin=1)
    except OSError as error:
        raise MissingFileError(f"cannot read {path}: {error}") from error
    return torch.from_numpy(np.asarray(array).astype(np.int64).reshape(-1))


def show_plan(options: Any) -> int:
    """Run the command."""
    try:
        features = [int(width) for width in options.features.split(",")]
    except ValueError:
        raise ArgumentError(
            f"--features must be integers, as in 128,64, but got {options.features!r}"
        ) from None
    plan = plan_graph(
        options.graph,
        workers=options.workers,
        network=options.network,
        features=features,
        cuts=options.cuts,
        partition=options.partition,
        wire=options.wire,
        memory=options.memory * 1e9 if options.memory else None,
    )
    print(json.dumps(plan.to_dict(), indent=2) if options.json else plan)
    return 0
