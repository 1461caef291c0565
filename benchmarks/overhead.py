"""What a call costs apart from the work: warm calls of small kernels, cold kernels, kernels found on disk.

    python -m benchmarks.overhead [--json]

Contestants are interleaved and the median over many rounds is taken; torch is at the best of its layouts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import torch

import scorch
from scorch.runtime import toolchain

warnings.filterwarnings("ignore", message="Sparse")

ROUNDS, CALLS = 31, 300


def interleaved(contestants: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median time of one call of each, in microseconds."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for call in contestants.values():
        for _ in range(CALLS):
            call()
    for _ in range(ROUNDS):
        for name, call in contestants.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def best_of(calls: list[Callable[[], object]]) -> Callable[[], object]:
    """The fastest of several ways to say the same, with the threads now set, without those that raise."""
    able = []
    for call in calls:
        try:
            call()
        except RuntimeError:
            continue
        able.append(call)
    medians = interleaved({str(number): call for number, call in enumerate(able)})
    return able[int(min(medians, key=lambda name: medians[name]))]


def warm_calls(size: int = 64, density: float = 0.1) -> list[dict[str, object]]:
    """Warm calls on a ``size`` x ``size`` matrix, beside torch's own."""
    torch.manual_seed(0)
    dense = torch.randn(size, size) * (torch.rand(size, size) < density)
    S = scorch.from_torch(dense, format="csr")
    csr, coo = dense.to_sparse_csr(), dense.to_sparse_coo().coalesce()
    narrow = torch.sparse_csr_tensor(
        csr.crow_indices().int(), csr.col_indices().int(), csr.values(), size=csr.shape
    )
    x, v = torch.randn(size, size), torch.randn(size)
    cases: list[tuple[str, Callable[[], object], list[Callable[[], object]]]] = [
        (
            "SpMV  csr @ vector",
            lambda: scorch.einsum("ij,j->i", S, v),
            [lambda: csr @ v, lambda: narrow @ v, lambda: coo @ v],
        ),
        (
            "SpMM  csr @ dense",
            lambda: scorch.einsum("ij,jk->ik", S, x),
            [lambda: csr @ x, lambda: narrow @ x, lambda: coo @ x],
        ),
        (
            "SDDMM sampled product",
            lambda: scorch.einsum("ij,ik,kj->ij", S, x, x),
            [lambda: torch.sparse.sampled_addmm(csr, x, x, beta=0.0)],
        ),
        (
            "add   csr + csr",
            lambda: scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=S, B=S),
            [lambda: csr + csr, lambda: narrow + narrow, lambda: coo + coo],
        ),
        (
            "SpMSpM csr @ csr",
            lambda: scorch.einsum("ij,jk->ik", S, S),
            [lambda: csr @ csr, lambda: torch.sparse.mm(coo, coo)],
        ),
    ]
    rows: list[dict[str, object]] = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, ours, theirs in cases:
            found = interleaved({"scorch": ours, "torch": best_of(theirs)})
            ratio = found["torch"] / found["scorch"]
            rows.append({"case": name, "threads": threads, **found, "ratio": ratio})
    return rows


COLD = """
import sys, time, torch, scorch
S = scorch.from_torch(torch.eye(8), format="csr")
x = torch.ones(8, 4)
start = time.perf_counter()
scorch.einsum("ij,jk->ik", S, x)  # also finds and probes the compiler
first = time.perf_counter() - start
times = []
for equation in ("ij,ij->ij", "ij,ij->i", "ij,kj->ik", "ij,ij,ij->j"):
    operands = [S] * (equation.count(",") + 1)
    start = time.perf_counter()
    scorch.einsum(equation, *operands)
    times.append(time.perf_counter() - start)
print(first, *times)
"""


def cold_kernels(rounds: int = 5) -> list[dict[str, object]]:
    """The first call of new kernels in a new process: with an empty cache, then with a full one."""
    rows: list[dict[str, object]] = []
    found: dict[str, list[list[float]]] = {"compiled": [], "found on disk": []}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "SCORCH_CACHE_DIR": cache}
            for name in found:
                output = subprocess.run(
                    [sys.executable, "-W", "ignore", "-c", COLD],
                    env=environment,
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                found[name].append([float(word) * 1e3 for word in output.split()])
    for name, runs in found.items():
        first = statistics.median(run[0] for run in runs)
        later = statistics.median(value for run in runs for value in run[1:])
        rows.append({"kernel": name, "first call ms": first, "each further kernel ms": later})
    return rows


def machine() -> str:
    found = toolchain.describe()
    return f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {found['version']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    arguments = parser.parse_args()
    warm, cold = warm_calls(), cold_kernels()
    if arguments.json:
        print(json.dumps({"machine": machine(), "warm": warm, "cold": cold}, indent=2))
        return
    print(machine())
    print("\nWarm calls, 64 x 64, density 0.1, microseconds (ratio above 1: Scorch is faster)\n")
    print(f"{'case':<24}{'threads':>8}{'scorch':>10}{'torch':>10}{'ratio':>8}")
    for row in warm:
        print(
            f"{row['case']:<24}{row['threads']:>8}{row['scorch']:>10.1f}{row['torch']:>10.1f}{row['ratio']:>8.2f}"
        )
    print("\nCold kernels: the whole first call, in a new process, milliseconds\n")
    print(f"{'kernel':<16}{'first call':>12}{'each further kernel':>22}")
    for row in cold:
        print(f"{row['kernel']:<16}{row['first call ms']:>12.1f}{row['each further kernel ms']:>22.1f}")


if __name__ == "__main__":
    main()
