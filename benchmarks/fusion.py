"""What ``scorch.compile`` gives: the same functions call by call and with their calls joined.

python -m benchmarks.fusion [--json FILE] [--threads N] [--seconds 2] [--only attention] [--processor]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F

import scorch
from benchmarks.overhead import machine
from benchmarks.threads import power_law

warnings.filterwarnings("ignore", message="Sparse")

TOLERANCE = 1e-4
FEWEST = 5  # turns of every contestant


@dataclass(frozen=True)
class Case:
    """A function, what it is called with, and how others compute the same."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    others: dict[str, Callable[[], Any]]
    learned: tuple[int, ...] = ()  # arguments that require gradients


@dataclass(frozen=True)
class Measured:
    """The median and quartiles of one contestant, in milliseconds."""

    case: str
    contestant: str
    median: float
    low: float
    high: float
    turns: int


# functions -------------------------------------------------------------------------------------------


def attend(M: Any, Q: Any, K: Any, V: Any) -> Any:
    scores = torch.sparse.sampled_addmm(M, Q, K.T, beta=0.0) * Q.shape[1] ** -0.5
    return torch.sparse.softmax(scores, 1) @ V


def gat(M: Any, source: Any, target: Any, H: Any) -> Any:
    scores = F.leaky_relu(M * target[:, None] + M * source[None, :], 0.2)
    return F.elu(torch.sparse.softmax(scores, 1) @ H)


def gcn(A: Any, d: Any, X: Any, b: Any) -> Any:
    return torch.relu((A * d[:, None] * d[None, :]) @ X + b)


def chain(A: Any, B: Any) -> Any:
    return torch.relu((A * 1.5 + B) * A).sqrt() / 3


def functions_of(A: Any) -> Any:
    return torch.tanh(torch.expm1(torch.relu(A) * 0.5)).square()


# cases -----------------------------------------------------------------------------------------------


def window_attention(tokens: int = 4096, window: int = 256, width: int = 64) -> Case:
    place = torch.arange(tokens)
    mask = (place[:, None] - place[None, :]).abs() <= window // 2
    M = scorch.from_torch(mask.float(), format="csr")
    Q, K, V = (torch.randn(tokens, width) for _ in range(3))
    others = {"dense torch": lambda: F.scaled_dot_product_attention(Q, K, V, mask)}
    return Case(f"attention, {tokens:,} tokens, window {window}", attend, (M, Q, K, V), others, (1, 2, 3))


def graph(nodes: int, edges: int) -> scorch.SparseTensor:
    """A graph with the size and heavy tail of ogbn-arxiv, symmetric with loops as GCN takes it."""
    A = power_law(nodes, edges)
    loops = scorch.eye(nodes, format="csr")
    found = (A + A.T + loops).to_format("csr")
    assert isinstance(found, scorch.SparseTensor)
    return _ones(found)


def _ones(A: scorch.SparseTensor) -> scorch.SparseTensor:
    found = A.clone()
    found.values().fill_(1.0)
    return found


def layers(nodes: int = 169_343, edges: int = 1_166_243, width: int = 128) -> list[Case]:
    A = graph(nodes, edges)
    X, b = torch.randn(nodes, width), torch.randn(width)
    degree = A.sum(1).clamp(min=1.0)
    d = (degree.to_dense() if isinstance(degree, scorch.SparseTensor) else degree).rsqrt()
    source, target = torch.randn(nodes), torch.randn(nodes)
    csr = A.to_torch()
    row = torch.repeat_interleave(torch.arange(nodes), csr.crow_indices().diff())
    column = csr.col_indices()

    def by_torch() -> torch.Tensor:
        values = csr.values() * d[row] * d[column]
        normal = torch.sparse_csr_tensor(csr.crow_indices(), column, values, csr.shape)
        return torch.relu(normal @ X + b)

    size = f"{nodes:,} nodes, {A.nnz:,} edges, {width} features"
    return [
        Case(f"GCN layer, {size}", gcn, (A, d, X, b), {"torch.sparse": by_torch}, (2, 3)),
        Case(f"GAT layer, {size}", gat, (A, source, target, X), {}, (1, 2, 3)),
    ]


def chains(entries: int = 1_000_000) -> list[Case]:
    A = power_law(100_000, entries)
    A.values().abs_().add_(0.1)  # near zero the slope of sqrt makes anything of a rounding
    B = scorch.SparseTensor(type(A.storage)(A.storage.pattern, torch.rand(A.nnz)))
    return [
        Case(f"5 arithmetic functions, {A.nnz:,} entries", chain, (A, B), {}, (0, 1)),
        Case(f"5 functions, two of them exponentials, {A.nnz:,} entries", functions_of, (A,), {}, (0,)),
    ]


def all_cases() -> list[Case]:
    return [window_attention(), *layers(), *chains()]


# measuring -------------------------------------------------------------------------------------------


def contestants(case: Case) -> dict[str, Callable[[], Any]]:
    """Forward call by call and joined, others, and both with gradients."""
    compiled = scorch.compile(case.function)
    found = {
        "call by call": lambda: case.function(*case.arguments),
        "compiled": lambda: compiled(*case.arguments),
        **case.others,
    }
    if case.learned:
        arguments = list(case.arguments)
        for place in case.learned:
            arguments[place] = arguments[place].detach().clone().requires_grad_()
        wanted = [arguments[place] for place in case.learned]

        def step(function: Callable[..., Any]) -> Any:
            result = function(*arguments)
            values = result.values() if isinstance(result, scorch.SparseTensor) else result
            return torch.autograd.grad(values.sum(), wanted)

        found["with gradients, call by call"] = lambda: step(case.function)
        found["with gradients, compiled"] = lambda: step(compiled)
    return found


def difference(a: Any, b: Any) -> float:
    """How far two results are apart, of the largest value."""
    if isinstance(a, tuple):
        return max(difference(x, y) for x, y in zip(a, b, strict=True))
    x, y = (t.values() if isinstance(t, scorch.SparseTensor) else t for t in (a, b))
    return float((x - y).abs().max() / x.abs().max().clamp(min=1e-30))


def measure(case: Case, seconds: float, clock: Callable[[], float] = time.perf_counter) -> list[Measured]:
    calls = contestants(case)
    first: dict[bool, Any] = {}
    for name, call in calls.items():  # the answer is checked before it is timed
        kind = name.startswith("with gradients")
        found = call()
        apart = difference(first.setdefault(kind, found), found)
        if not apart < TOLERANCE:
            raise AssertionError(f"{case.name}, {name}: wrong by {apart:.1e}")
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(times[next(iter(times))]) < FEWEST:
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append((clock() - start) * 1e3)
    rows = []
    for name, found in times.items():
        low, middle, high = statistics.quantiles(found, n=4)
        rows.append(Measured(case.name, name, middle, low, high, len(found)))
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", help="a file for the numbers")
    parser.add_argument("--threads", type=int, default=0, help="all if it is 0")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each contestant")
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument(
        "--processor", action="store_true", help="count processor time, for machines that others use too"
    )
    given = parser.parse_args(arguments)
    clock = time.process_time if given.processor else time.perf_counter
    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    print(f"{machine()}, {torch.get_num_threads()} threads; milliseconds, medians and quartiles\n")
    rows: list[Measured] = []
    for case in all_cases():
        if given.only not in case.name:
            continue
        measured = measure(case, given.seconds, clock)
        rows += measured
        print(case.name)
        for row in measured:
            kind = row.contestant.startswith("with gradients")
            base = next(r for r in measured if r.contestant.startswith("with gradients") == kind)
            print(
                f"  {row.contestant:<30} {row.median:>9.2f}  ({row.low:.2f} to {row.high:.2f})"
                f"  {base.median / row.median:>6.2f}x",
                flush=True,
            )
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"machine": machine(), "rows": [asdict(row) for row in rows]}, file, indent=1)


if __name__ == "__main__":
    main()
