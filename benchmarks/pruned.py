"""Linear layers with pruned weights: dense against sparse, by batch and sparsity.

    python -m benchmarks.pruned [--json] [--threads 2] [--seconds 0.5] [--data DIR] [--width 4096]

A layer of ``--width`` with its smallest weights gone, and, where DIR has a folder ``dlmc``, weights of pruned
networks of the Deep Learning Matrix Collection with generated values; without DIR only the first. Dense is
the faster of ``F.linear(x, W)`` and ``(W @ x.T).T``. The contestants take turns; the shortest and the median
time of each are kept, and results are compared before they are timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import scorch
from benchmarks.overhead import machine

BATCHES = (1, 8, 32, 64)
SPARSITIES = (0.8, 0.9, 0.95, 0.98)


def layers(width: int, folder: Path | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and weights, zeros included."""
    torch.manual_seed(0)
    weight = torch.randn(width, width) / width**0.5
    order = weight.abs().reshape(-1).sort().values
    for sparsity in SPARSITIES:
        least = order[min(int(sparsity * order.numel()), order.numel() - 1)]
        yield f"width {width}, {sparsity:.0%} magnitude", torch.where(weight.abs() >= least, weight, 0.0)
    for file in sorted((folder / "dlmc").glob("*.npz")) if folder is not None else []:
        if "embedding" in file.name:
            continue
        arrays = np.load(file)
        rows, columns = (int(size) for size in arrays["shape"])
        index = torch.from_numpy(arrays["indices"].astype(np.int64))
        lengths = torch.from_numpy(np.diff(arrays["indptr"]).astype(np.int64))
        dense = torch.zeros(rows, columns)
        dense[torch.arange(rows).repeat_interleave(lengths), index] = (
            torch.randn(index.numel()) / columns**0.5
        )
        yield f"dlmc {file.stem}", dense


def interleaved(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, tuple[float, float]]:
    """The shortest and the median time of each call, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds * len(calls)
    while len(times[next(iter(calls))]) < 3 or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: (min(found), statistics.median(found)) for name, found in times.items()}


def measure(name: str, dense: torch.Tensor, batch: int, seconds: float) -> dict[str, Any]:
    """One layer at one batch."""
    S = scorch.from_torch(dense, format="csr")
    x = torch.randn(batch, dense.shape[1])
    torch.testing.assert_close(F.linear(x, S), F.linear(x, dense), rtol=1e-3, atol=1e-3)
    found = interleaved(
        {
            "linear": lambda: F.linear(x, dense),
            "turned": lambda: (dense @ x.T).T,
            "sparse": lambda: F.linear(x, S),
        },
        seconds,
    )
    best = min(found["linear"], found["turned"])
    return {
        "layer": name,
        "shape": list(dense.shape),
        "density": S.density,
        "batch": batch,
        "dense_ms": best[0],
        "sparse_ms": found["sparse"][0],
        "dense_median_ms": best[1],
        "sparse_median_ms": found["sparse"][1],
        "faster": best[0] / found["sparse"][0],
    }


def table(results: list[dict[str, Any]]) -> str:
    """One row a layer: for each batch how many times as fast, and the milliseconds of both."""
    batches = sorted({row["batch"] for row in results})
    lines = ["| layer | density | " + " | ".join(f"batch {size}" for size in batches) + " |"]
    lines.append("|---|---|" + "---|" * len(batches))
    for name in dict.fromkeys(row["layer"] for row in results):
        own = {row["batch"]: row for row in results if row["layer"] == name}
        cells = [
            f"{own[size]['faster']:.1f} x ({own[size]['dense_ms']:.3g} / {own[size]['sparse_ms']:.3g})"
            for size in batches
        ]
        lines.append(f"| {name} | {own[batches[0]]['density']:.1%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="all numbers, for other programs")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="for each contestant")
    parser.add_argument("--data", type=Path, help="a folder that has dlmc/*.npz")
    parser.add_argument("--width", type=int, default=4096)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    with torch.no_grad():
        results = [
            measure(name, dense, batch, options.seconds)
            for name, dense in layers(options.width, options.data)
            for batch in BATCHES
        ]
    if options.json:
        facts = {"machine": machine(), "threads": options.threads, "torch": torch.__version__}
        print(json.dumps({**facts, "results": results}, indent=1))
        return
    print(f"{machine()}, {options.threads} threads: dense / sparse in ms, and how many times as fast\n")
    print(table(results))
    losses = [row for row in results if row["faster"] < 1]
    print(f"\nsparse is slower in {len(losses)} of {len(results)} cases")


if __name__ == "__main__":
    main()
