"""Products of sparse matrices with a vector and with 32 columns, beside torch's CSR (MKL, where it has it).

    python -m benchmarks.vectors [--threads 1,4,16] [--seconds 0.05] [--json]

Generated matrices of 13,000 to 5 million entries: rows that are tiny, short, middling, long, and uneven. Each
contestant is called some times in a row, as in a solver, in turns; the best median of three turns counts.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
import warnings

import numpy as np
import torch

import scorch
from benchmarks.overhead import machine

warnings.filterwarnings("ignore", message="Sparse")

TURNS = 3
Row = dict[str, float | int | str]


def matrices() -> dict[str, torch.Tensor]:
    """CSR matrices with int32 indices by name."""
    draw = np.random.default_rng(0)
    uneven = np.minimum((draw.pareto(1.2, 40_000) + 1) * 9 / 4, 10_000).astype(np.int64)
    return {
        "tiny rows": _matrix(draw, 8_081, draw.poisson(1.6, 8_081)),
        "short rows": _matrix(draw, 11_000, draw.poisson(4, 11_000)),
        "linear program": _matrix(draw, 20_000, draw.poisson(36, 4_000)),
        "pruned 80%": _matrix(draw, 1_024, draw.binomial(1_024, 0.2, 1_024)),
        "uneven rows": _matrix(draw, 40_000, uneven),
        "finite elements": _matrix(draw, 48_000, np.full(48_000, 24)),
        "large": _matrix(draw, 200_000, draw.poisson(25, 200_000)),
    }


def _matrix(draw: np.random.Generator, columns: int, lengths: np.ndarray) -> torch.Tensor:
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.unique(rows * columns + draw.integers(0, columns, len(rows)))
    counts = np.bincount(places // columns, minlength=len(lengths))
    pointers = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    indices = torch.from_numpy((places % columns).astype(np.int32))
    return torch.sparse_csr_tensor(pointers, indices, torch.randn(len(places)), (len(lengths), columns))


def median(matrix: torch.Tensor, x: torch.Tensor, seconds: float) -> float:
    """The median of products in a row, in microseconds."""
    matrix @ x
    start = time.perf_counter()
    matrix @ x
    count = max(5, min(60, int(seconds / max(time.perf_counter() - start, 1e-7))))
    times = []
    for _ in range(count):
        start = time.perf_counter()
        matrix @ x
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def measure(name: str, A: torch.Tensor, threads: int, seconds: float) -> list[Row]:
    torch.set_num_threads(threads)
    S, found = scorch.from_torch(A), []
    for what, shape, dtype in (
        ("S @ x, float32", (A.shape[1],), torch.float32),
        ("S @ x, float64", (A.shape[1],), torch.float64),
        ("S @ X, 32 columns", (A.shape[1], 32), torch.float32),
    ):
        x, contestants = torch.randn(shape, dtype=dtype), (S.to(dtype), A.to(dtype))
        expected = (A.double() @ x.double()).to(dtype)
        torch.testing.assert_close(contestants[0] @ x, expected, rtol=1e-3, atol=1e-3)
        turns = [[median(matrix, x, seconds) for matrix in contestants] for _ in range(TURNS)]
        row: Row = {"matrix": name, "entries": A.values().numel(), "threads": threads, "what": what}
        found.append(row | dict(zip(("scorch", "torch"), map(min, *turns), strict=True)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}", metavar="N,N")
    parser.add_argument("--seconds", type=float, default=0.05, help="for a turn of a contestant")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = [
        row
        for threads in map(int, options.threads.split(","))
        for name, A in matrices().items()
        for row in measure(name, A, threads, options.seconds)
    ]
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{machine()}: medians in us\n")
    print("| | matrix | entries | threads | Scorch | torch | |\n|---|---|---|---|---|---|---|")
    for row in rows:
        ratio = float(row["torch"]) / float(row["scorch"])
        numbers = f"{row['threads']} | {row['scorch']:.1f} | {row['torch']:.1f} | x {ratio:.2f}"
        print(f"| {row['what']} | {row['matrix']} | {row['entries']:,} | {numbers} |")
    print("\nGeometric means:")
    for what in dict.fromkeys((row["what"], row["threads"]) for row in rows):
        ratios = [float(r["torch"]) / float(r["scorch"]) for r in rows if (r["what"], r["threads"]) == what]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"{what[0]}, {what[1]} threads: {mean:.2f}, worst {min(ratios):.2f}")


if __name__ == "__main__":
    main()
