"""How calls scale with threads, and how near they come to what memory allows, on generated tensors.

    python -m benchmarks.threads [--threads 1,16] [--matrices "uneven rows,tensor"] [--only sum] [--json]
    python -m benchmarks.threads --busy 16      under the load of 16 busy loops

The bound of a call is the time of PyTorch's copy of as many bytes as the call has to read and write at
least: its operands and its result, once. A gain is the time with the fewest threads over that with the most;
that of the copy shows how far memory scales at such a size. Medians of calls in a row, in microseconds.
Under load, the fewest and the most threads take turns, and what counts is the time with the most over that
with the fewest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

import scorch
from benchmarks.overhead import machine
from benchmarks.vectors import matrices

warnings.filterwarnings("ignore", message="Sparse")

SECONDS = 0.05  # of calls in a row
FAULTED = 5  # calls whose page faults are counted
TURNS = 5  # of each number of threads under load
Call = Callable[[], object]
Row = dict[str, Any]


class Case(NamedTuple):
    matrix: str
    name: str
    call: Call
    operands: tuple[object, ...]


def power_law(rows: int, entries: int) -> scorch.SparseTensor:
    """A square csr matrix whose columns have a heavy tail, as graphs do."""
    generator = torch.Generator().manual_seed(0)
    at_row = torch.randint(0, rows, (entries,), generator=generator)
    at_column = (torch.rand(entries, generator=generator, dtype=torch.float64) ** 3 * rows).long()
    values = torch.randn(entries, generator=generator)
    found = scorch.sparse_coo_tensor(torch.stack([at_row, at_column]), values, (rows, rows), format="csr")
    assert isinstance(found, scorch.SparseTensor)
    return found


def median(call: Call) -> float:
    """The median time of calls in a row, in microseconds."""
    call()
    start = time.perf_counter()
    call()
    count = max(5, min(60, int(SECONDS / max(time.perf_counter() - start, 1e-7))))
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def matrix_cases(name: str, A: torch.Tensor) -> Iterator[Case]:
    """Calls on one matrix, and what each has to read."""
    S, rows, columns = scorch.from_torch(A), *A.shape
    x, y, X = torch.randn(columns), torch.randn(rows), torch.randn(columns, 32)
    U, V = torch.randn(rows, 32), torch.randn(columns, 32)
    half = torch.randperm(rows)[: rows // 2]
    B, E = _shifted(A), S * 2
    shuffled = torch.randperm(S.nnz)
    at, values = A.to_sparse_coo().indices()[:, shuffled], A.values()[shuffled]
    picked = S[half]
    yield Case(name, "S @ x", lambda: S @ x, (S, x))
    yield Case(name, "S.T @ x", lambda: S.T @ y, (S, y))
    yield Case(name, "S @ X, 32 columns", lambda: S @ X, (S, X))
    yield Case(name, "sampled product, 32", lambda: scorch.einsum("ij,ik,jk->ij", S, U, V), (S, U, V))
    yield Case(name, "S.sum(0)", lambda: S.sum(0), (S,))
    yield Case(name, "S.sum(1)", lambda: S.sum(1), (S,))
    for dim in (0, 1):
        yield from reduction_cases(name, S, dim)
    yield Case(name, "S.median()", lambda: S.median(), (S.values(),))
    yield Case(name, "S.quantile(0.9)", lambda: S.quantile(0.9), (S.values(),))
    yield Case(name, "S.argmax()", lambda: S.argmax(), (S.values(),))
    yield Case(name, "S * 2", lambda: S * 2, (S.values(),))
    yield Case(name, "softmax(1)", lambda: torch.sparse.softmax(S, 1), (S,))
    yield Case(name, "A + shifted", lambda: S + B, (S, B))
    yield Case(name, "A + equal pattern", lambda: S + E, (S, E))
    yield Case(name, "A * shifted", lambda: S * B, (S, B))
    yield Case(name, "A * equal pattern", lambda: S * E, (S, E))
    yield Case(name, "CSR to CSC", lambda: _fresh(A).to_format("csc"), (S,))
    yield Case(name, "arrays to CSR", lambda: _fresh(A), (S,))
    yield Case(name, "any order to CSR", lambda: _from_entries(at, values, A.shape), (at, values))
    yield Case(name, "S[half of the rows]", lambda: S[half], (picked, half))
    chosen = torch.randperm(columns)[: columns // 2]
    yield Case(name, "half of the columns", lambda: torch.index_select(S, 1, chosen), (S, S))
    yield Case(name, "cat of rows", lambda: torch.cat([S, B], 0), (S, B))
    yield Case(name, "cat of columns", lambda: torch.cat([S, B], 1), (S, B))
    if S.nnz < 500_000 and rows == columns:
        yield Case(name, "A @ A", lambda: scorch.einsum("ij,jk->ik", S, S, format="csr"), (S, S))


def reduction_cases(name: str, S: scorch.SparseTensor, dim: int) -> Iterator[Case]:
    """Reductions along a dimension that are more than sums."""
    yield Case(name, f"S.any({dim})", lambda: S.any(dim), (S.values(),))
    yield Case(name, f"S.count_nonzero({dim})", lambda: torch.count_nonzero(S, dim), (S.values(),))
    yield Case(name, f"norm({dim})", lambda: torch.linalg.vector_norm(S, dim=dim), (S,))
    yield Case(name, f"S.nansum({dim})", lambda: S.nansum(dim), (S,))
    yield Case(name, f"S.amax({dim})", lambda: S.amax(dim), (S,))
    yield Case(name, f"S.argmax({dim})", lambda: S.argmax(dim), (S,))


def _shifted(A: torch.Tensor) -> scorch.SparseTensor:
    coo = A.to_sparse_coo().coalesce()
    rows, columns = coo.indices()
    at = torch.stack([(rows + 1) % A.shape[0], columns])
    return _from_entries(at, coo.values(), A.shape)


def _fresh(A: torch.Tensor) -> scorch.SparseTensor:
    """A new tensor of the same arrays, which remembers no other format."""
    return scorch.sparse_csr_tensor(A.crow_indices(), A.col_indices(), A.values(), tuple(A.shape))


def _from_entries(at: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> scorch.SparseTensor:
    found = scorch.sparse_coo_tensor(at, values, tuple(shape), format="csr")
    assert isinstance(found, scorch.SparseTensor)
    return found


def tensor_cases(entries: int = 1_000_000) -> Iterator[Case]:
    """Calls on a tensor with three modes."""
    shape, generator = (5_000, 400, 300), torch.Generator().manual_seed(0)
    at = torch.stack([torch.randint(0, size, (entries,), generator=generator) for size in shape])
    T = scorch.sparse_coo_tensor(at, torch.randn(entries), shape, format="csf")
    v = torch.randn(shape[2])
    A, B, C = (torch.randn(size, 32) for size in shape)
    name = "tensor"
    yield Case(name, "TTV", lambda: scorch.einsum("ijk,k->ij", T, v), (T, v))
    yield Case(name, "TTM, 32 columns", lambda: scorch.einsum("ijk,kr->ijr", T, C), (T, C))
    yield Case(name, "MTTKRP", lambda: scorch.einsum("ijk,jr,kr->ir", T, B, C, format="dense"), (T, B, C))
    yield Case(
        name, "MTTKRP, last mode", lambda: scorch.einsum("ijk,ir,jr->kr", T, A, B, format="dense"), (T, A, B)
    )


def bytes_of(operand: object) -> int:
    """The bytes of a tensor's arrays."""
    if isinstance(operand, scorch.SparseTensor):
        arrays = [*operand.storage.pattern.arrays, operand.values()]
        return sum(array.numel() * array.element_size() for array in arrays if array is not None)
    assert isinstance(operand, torch.Tensor)
    return operand.numel() * operand.element_size()


def copy_of(moved: int) -> Call:
    """A copy that reads and writes ``moved`` bytes together."""
    source = torch.ones(max(1, moved // 8))
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def measure(case: Case, counts: list[int]) -> Row:
    moved = sum(map(bytes_of, (*case.operands, case.call())))
    copy, times, copies = copy_of(moved), [], []
    for count in counts:
        torch.set_num_threads(count)
        times.append(median(case.call))
        copies.append(median(copy))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(FAULTED):
        case.call()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {
        "matrix": case.matrix,
        "call": case.name,
        "bytes": moved,
        "microseconds": dict(zip(counts, times, strict=True)),
        "gain": times[0] / times[-1],
        "copy": copies[-1],
        "gain of the copy": copies[0] / copies[-1],
        "page faults": faults / FAULTED,
    }


def measure_busy(case: Case, counts: list[int]) -> Row:
    """Measure calls with the fewest and with the most threads in turns, which meet the same load."""
    times: dict[int, list[float]] = {count: [] for count in (min(counts), max(counts))}
    for _ in range(TURNS):
        for count, found in times.items():
            torch.set_num_threads(count)
            found.append(median(case.call))
    medians = {count: statistics.median(found) for count, found in times.items()}
    ratio = medians[max(counts)] / medians[min(counts)]
    return {"matrix": case.matrix, "call": case.name, "microseconds": medians, "ratio": ratio}


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.5 if loops else 0)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def print_row(row: Row) -> None:
    if "ratio" in row:
        numbers = (*row["microseconds"].values(), row["ratio"])
        print(f"{row['matrix']:16}{row['call']:22}" + "".join(f"{n:>10.2f}" for n in numbers), flush=True)
        return

    numbers = (row["bytes"] / 1e6, *row["microseconds"].values(), row["gain"], row["copy"])
    numbers += (row["gain of the copy"], row["page faults"])
    print(
        f"{row['matrix']:16}{row['call']:22}" + "".join(f"{number:>10.1f}" for number in numbers), flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}", metavar="N,N")
    parser.add_argument("--matrices", default="short rows,uneven rows,finite elements", metavar="NAME,NAME")
    parser.add_argument("--only", default="", metavar="TEXT", help="only calls whose name contains this")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="with so many busy loops beside")
    options = parser.parse_args()
    counts, rows, names = [int(n) for n in options.threads.split(",")], [], options.matrices.split(",")
    cases = (case for name, A in matrices().items() if name in names for case in matrix_cases(name, A))
    if not options.json:
        print(f"{machine()}: medians in us{f', {options.busy} busy loops' if options.busy else ''}\n")
        quiet = ("MB", *counts, "gain", "copy", "its gain", "faults")
        columns = (min(counts), max(counts), "ratio") if options.busy else quiet
        print(" " * 38 + "".join(f"{column:>10}" for column in columns))
    with busy_loops(options.busy):
        for case in (*cases, *(tensor_cases() if "tensor" in names else ())):
            if options.only not in case.name:
                continue
            row = (measure_busy if options.busy else measure)(case, counts)
            rows.append(row)
            if not options.json:
                print_row(row)
    if options.json:
        print(json.dumps({"machine": machine(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
