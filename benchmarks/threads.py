"""How kernels scale with threads, on a generated power-law matrix.

python -m benchmarks.threads [--rows 200000] [--entries 4000000] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable

import torch

import scorch
from benchmarks.overhead import machine

warnings.filterwarnings("ignore", message="Sparse")

ROUNDS = 7


def power_law(rows: int, entries: int) -> scorch.SparseTensor:
    """A square csr matrix whose columns have a heavy tail, as graphs do."""
    generator = torch.Generator().manual_seed(0)
    at_row = torch.randint(0, rows, (entries,), generator=generator)
    at_column = (torch.rand(entries, generator=generator, dtype=torch.float64) ** 3 * rows).long()
    values = torch.randn(entries, generator=generator)
    found = scorch.sparse_coo_tensor(torch.stack([at_row, at_column]), values, (rows, rows), format="csr")
    assert isinstance(found, scorch.SparseTensor)
    return found


def milliseconds(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--entries", type=int, default=4_000_000)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    arguments = parser.parse_args()
    A = power_law(arguments.rows, arguments.entries)
    small = power_law(arguments.rows // 10, arguments.entries // 20)
    x, v = torch.randn(arguments.rows, 32), torch.randn(arguments.rows)
    csr = A.to_torch()
    cases: list[tuple[str, Callable[[], object]]] = [
        ("SpMV", lambda: scorch.einsum("ij,j->i", A, v)),
        ("SpMV torch", lambda: csr @ v),
        ("SpMM k=32", lambda: scorch.einsum("ij,jk->ik", A, x)),
        ("SpMM k=32 torch", lambda: csr @ x),
        ("SDDMM k=32", lambda: scorch.einsum("ij,ik,jk->ij", A, x, x)),
        ("add", lambda: scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=A)),
        ("SpMSpM", lambda: scorch.einsum("ij,jk->ik", small, small)),
    ]
    counts = [n for n in (1, 2, 4, 8, 16, 32) if n <= (os.cpu_count() or 1)]
    rows: dict[str, dict[int, float]] = {}
    if not arguments.json:
        print(machine())
        print(f"{A.nnz:,} entries in {arguments.rows:,} rows; milliseconds\n")
        print(f"{'case':<20}" + "".join(f"{count:>10}" for count in counts))
    for name, call in cases:
        row = rows[name] = {}
        for count in counts:
            torch.set_num_threads(count)
            row[count] = milliseconds(call)
        if not arguments.json:
            print(f"{name:<20}" + "".join(f"{value:>10.2f}" for value in row.values()), flush=True)
    if arguments.json:
        print(json.dumps({"machine": machine(), "entries": A.nnz, "milliseconds": rows}, indent=2))


if __name__ == "__main__":
    main()
