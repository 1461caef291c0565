"""What a call costs apart from the work: warm calls of small kernels, cold kernels, kernels found on disk.

    python -m benchmarks.overhead [--json] [--warm] [--cold] [--loaded]

Contestants are interleaved and the median over many rounds is taken; torch is at the best of its layouts.
"""

from __future__ import annotations

import argparse
import functools
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
from typing import Any

import scipy.sparse
import torch

import scorch
from scorch._src.backends.cpu import toolchain

warnings.filterwarnings("ignore", message="Sparse")

ROUNDS, CALLS = 31, 300
ROUGHLY = 3, 20  # the same with --quick


def interleaved(contestants: dict[str, Callable[[], object]], calls: int = 0) -> dict[str, float]:
    """The median time of one call of each, in microseconds."""
    calls = calls or CALLS
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for call in contestants.values():
        for _ in range(calls):
            call()
    for _ in range(ROUNDS):
        for name, call in contestants.items():
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times[name].append((time.perf_counter() - start) / calls * 1e6)
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


def training_step(
    matrix: torch.Tensor, x: torch.Tensor, multiply: Callable[..., torch.Tensor] = torch.matmul
) -> Callable[[], object]:
    """The gradients of two sparse layers."""
    layers = [matrix.detach().clone().requires_grad_() for _ in range(2)]

    def step() -> object:
        first, second = layers
        loss = multiply(second, torch.relu(multiply(first, x))).square().mean()
        return torch.autograd.grad(loss, layers)

    return step


Calls = list[Callable[[], object]]


def warm_cases(size: int, density: float) -> list[tuple[str, Callable[[], object], Calls, Calls]]:
    """Calls of Scorch, the same of torch in all of its layouts, and of SciPy where it has them."""
    torch.manual_seed(0)
    dense = torch.randn(size, size) * (torch.rand(size, size) < density)
    S = scorch.from_torch(dense, format="csr")
    csr, coo = dense.to_sparse_csr(), dense.to_sparse_coo().coalesce()
    narrow = torch.sparse_csr_tensor(
        csr.crow_indices().int(), csr.col_indices().int(), csr.values(), size=csr.shape
    )
    x, v, row = torch.randn(size, size), torch.randn(size), size // 2
    P, y, w = scipy.sparse.csr_array(dense.numpy()), x.numpy(), v.numpy()
    products: Calls = [lambda: csr @ x, lambda: narrow @ x, lambda: coo @ x]
    by_vector: Calls = [lambda: csr @ v, lambda: narrow @ v, lambda: coo @ v]
    sums: Calls = [lambda: csr + csr, lambda: narrow + narrow, lambda: coo + coo]
    by_two: Calls = [lambda: csr * 2, lambda: coo * 2]
    by_dense: Calls = [lambda: csr * x, lambda: coo * x]
    squares: Calls = [lambda: csr * csr, lambda: coo * coo]
    chains: Calls = [lambda: csr @ csr, lambda: torch.sparse.mm(coo, coo)]
    sampled: Calls = [lambda: torch.sparse.sampled_addmm(csr, x, x, beta=0.0)]
    relus: Calls = [lambda: torch.relu(csr), lambda: torch.relu(coo)]
    layers = [training_step(csr, x), training_step(coo, x, torch.sparse.mm)]
    add = "C[i,j] = A[i,j] + B[i,j]"
    return [
        ("einsum ij,j->i", lambda: scorch.einsum("ij,j->i", S, v), by_vector, [lambda: P @ w]),
        ("einsum ij,jk->ik", lambda: scorch.einsum("ij,jk->ik", S, x), products, [lambda: P @ y]),
        ("einsum ij,ik,kj->ij", lambda: scorch.einsum("ij,ik,kj->ij", S, x, x), sampled, []),
        ("einsum csr @ csr", lambda: scorch.einsum("ij,jk->ik", S, S), chains, [lambda: P @ P]),
        ("evaluate A + B", lambda: scorch.evaluate(add, A=S, B=S), sums, [lambda: P + P]),
        ("S @ vector", lambda: S @ v, by_vector, [lambda: P @ w]),
        ("S @ dense", lambda: S @ x, products, [lambda: P @ y]),
        ("S @ S", lambda: S @ S, chains, [lambda: P @ P]),
        ("S + S", lambda: S + S, sums, [lambda: P + P]),
        ("S * S", lambda: S * S, squares, [lambda: P * P]),
        ("S * 2", lambda: S * 2, by_two, [lambda: P * 2]),
        ("S * dense", lambda: S * x, by_dense, [lambda: P * y]),
        ("relu(S)", lambda: torch.relu(S), relus, [lambda: P.maximum(0)]),
        ("S.sum(1)", lambda: S.sum(1), [lambda: coo.sum(1).to_dense()], [lambda: P.sum(1)]),
        ("S[i]", lambda: S[row], [lambda: csr[row], lambda: coo[row]], [lambda: P[[row]]]),
        ("train two layers", training_step(S, x), layers, []),
    ]


def warm_calls(size: int = 64, density: float = 0.1) -> list[dict[str, object]]:
    """Warm calls on a ``size`` x ``size`` matrix, beside torch's own and SciPy's."""
    rows: list[dict[str, object]] = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, ours, theirs, scipys in warm_cases(size, density):
            contestants = {"scorch": ours, "torch": best_of(theirs)}
            found = interleaved(contestants | ({"scipy": scipys[0]} if scipys else {}))
            ratio = found["torch"] / found["scorch"]
            rows.append({"case": name, "threads": threads, **found, "ratio": ratio})
    return rows


def layer_calls(size: int = 32, batch: int = 8) -> list[dict[str, object]]:
    """A sparse layer with 10% of its weights stored, compared with the dense one, with gradients."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(batch, size)
    dense = torch.randn(size, size) * (torch.rand(size, size) < 0.1)
    W, full = scorch.from_torch(dense, format="csr").requires_grad_(), dense.clone().requires_grad_()
    X = x.T.contiguous()
    rows = [("W @ X", interleaved({"scorch": lambda: W @ X, "dense": lambda: full @ X}))]
    makers = {
        "scorch": lambda: scorch.nn.SparseLinear(size, size, density=0.1),
        "dense": lambda: torch.nn.Linear(size, size),
    }
    layers = {name: make() for name, make in makers.items()}
    forward = {name: functools.partial(layer, x) for name, layer in layers.items()}
    rows.append(("forward of a layer", interleaved(forward)))
    for optimizer in (torch.optim.SGD, torch.optim.Adam):
        steps = {name: layer_step(make(), x, optimizer) for name, make in makers.items()}
        rows.append((f"step of {optimizer.__name__}", interleaved(steps)))
    return [{"case": name, **found, "ratio": found["scorch"] / found["dense"]} for name, found in rows]


def layer_step(layer: torch.nn.Module, x: torch.Tensor, optimizer: Any) -> Callable[[], object]:
    """Forward, backward and one step of an optimizer."""
    updates = optimizer(layer.parameters(), lr=1e-4)

    def step() -> None:
        updates.zero_grad()
        layer(x).square().mean().backward()
        updates.step()

    return step


def loaded_calls() -> list[dict[str, object]]:
    """Calls with two threads and with one while other processes keep every core busy, in microseconds."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    torch.set_num_threads(2)
    rows: list[dict[str, object]] = []
    try:
        for size, density in ((32, 0.1), (300, 0.05), (2000, 0.01)):
            torch.manual_seed(0)
            dense = torch.randn(size, size) * (torch.rand(size, size) < density)
            S, csr, x = scorch.from_torch(dense, format="csr"), dense.to_sparse_csr(), torch.randn(size, 32)

            def alone(S: scorch.SparseTensor = S, x: torch.Tensor = x) -> object:
                with scorch.settings(threads=1):
                    return scorch.einsum("ij,jk->ik", S, x)

            def shared(S: scorch.SparseTensor = S, x: torch.Tensor = x) -> object:
                with scorch.settings(threads=2):
                    return scorch.einsum("ij,jk->ik", S, x)

            def theirs(csr: torch.Tensor = csr, x: torch.Tensor = x) -> object:
                return csr @ x

            found = interleaved({"one": alone, "two": shared, "torch": theirs}, calls=50)
            rows.append({"case": f"SpMM {size} x {size}", **found, "ratio": found["two"] / found["one"]})
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return rows


COLD = """
import json, sys, time, torch, scorch
torch.manual_seed(0)
dense = torch.rand(200, 200) * (torch.rand(200, 200) < 0.05)
A = scorch.from_torch(dense.to_sparse_csr())
X, x = torch.rand(200, 32), torch.rand(200)
T, P = None, torch.rand(20, 16)
if "FIRST" not in sys.argv:  # this takes a kernel
    T = scorch.from_torch(torch.rand(20, 20, 20) * (torch.rand(20, 20, 20) < 0.1), format="csf")
cases = {
    "SpMM": lambda: scorch.einsum("ij,jk->ik", A, X),
    "SpMV": lambda: scorch.einsum("ij,j->i", A, x),
    "SDDMM": lambda: scorch.einsum("ij,ik,jk->ij", A, X, X),
    "SpMSpM": lambda: scorch.einsum("ij,jk->ik", A, A),
    "csr + csr": lambda: scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=A),
    "csr to csc": lambda: A.to_format("csc"),
    "row sums": lambda: scorch.einsum("ij->i", A),
    "MTTKRP": lambda: scorch.einsum("ikl,kj,lj->ij", T, P, P),
}
names = [sys.argv[2]] if "FIRST" in sys.argv else list(cases)
found = {}
for name in names:
    start = time.perf_counter(), time.process_time()
    cases[name]()
    found[name] = [(time.perf_counter() - start[0]) * 1e3, (time.process_time() - start[1]) * 1e3]
print(json.dumps(found))
"""

PLANNING = (
    """
import json, time, torch
"""
    + COLD.split("names =")[0]
    + """
from scorch._src.engine import schedules
spent = {}
def timed(make):
    def spy(problem, **options):
        start = time.perf_counter()
        made = make(problem, **options)
        spent[name] = spent.get(name, 0.0) + (time.perf_counter() - start) * 1e3
        return made
    return spy
schedules.new_schedule = timed(schedules.new_schedule)
schedules.new_contraction = timed(schedules.new_contraction)
for name in cases:
    spent[name] = 0.0
    cases[name]()
print(json.dumps(spent))
"""
)


def _run(script: str, cache: str, *arguments: str) -> dict[str, object]:
    output = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        env={**os.environ, "SCORCH_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: dict[str, object] = json.loads(output)
    return found


def cold_kernels(rounds: int = 5) -> list[dict[str, object]]:
    """The first call of each kernel in a new process, in milliseconds.

    ``cold``: none is on disk; ``planning`` is the part that chooses and prints the loops. ``disk``: all are.
    ``first``: the very first call of a process, with all on disk.
    """
    seen: dict[str, dict[str, list[float]]] = {}

    def note(what: str, found: dict[str, object]) -> None:
        for name, value in found.items():
            wall = value[0] if isinstance(value, list) else value
            assert isinstance(wall, float)
            seen.setdefault(name, {}).setdefault(what, []).append(wall)

    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            note("cold", _run(COLD, cache))
            note("disk", _run(COLD, cache))
            for name in ("SpMM", "SpMSpM"):
                note("first", _run(COLD, cache, "FIRST", name))
        with tempfile.TemporaryDirectory() as cache:
            note("planning", _run(PLANNING, cache))
    return [
        {"kernel": name, **{what: statistics.median(times) for what, times in found.items()}}
        for name, found in seen.items()
    ]


def machine() -> str:
    compiler = toolchain.describe()["compiler version"]
    return f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, {compiler}"


def main() -> None:
    global ROUNDS, CALLS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--warm", action="store_true", help="warm calls only")
    parser.add_argument("--quick", action="store_true", help="few calls of each: rough numbers in seconds")
    parser.add_argument("--cold", action="store_true", help="first calls only")
    parser.add_argument("--loaded", action="store_true", help="only calls while all cores are busy")
    arguments = parser.parse_args()
    if arguments.quick:
        ROUNDS, CALLS = ROUGHLY
    every = not (arguments.warm or arguments.cold or arguments.loaded)
    warm = warm_calls() if arguments.warm or every else []
    layers = layer_calls() if arguments.warm or every else []
    cold = cold_kernels() if arguments.cold or every else []
    loaded = loaded_calls() if arguments.loaded or every else []
    if arguments.json:
        found = {"machine": machine(), "warm": warm, "layers": layers, "cold": cold, "loaded": loaded}
        print(json.dumps(found, indent=2))
        return
    print(machine())
    if warm:
        print_warm(warm)
        print_layers(layers)
    if cold:
        print_cold(cold)
    if loaded:
        print_loaded(loaded)


def print_loaded(loaded: list[dict[str, object]]) -> None:
    print("\nWarm calls while every core is busy with other work, microseconds\n")
    print(f"{'case':<20}{'one thread':>12}{'two':>10}{'two / one':>12}{'torch, two':>12}")
    for row in loaded:
        print(
            f"{row['case']:<20}{row['one']:>12.1f}{row['two']:>10.1f}{row['ratio']:>12.2f}{row['torch']:>12.1f}"
        )


def print_warm(warm: list[dict[str, object]]) -> None:
    print("\nWarm calls, 64 x 64, density 0.1, microseconds (ratio above 1: Scorch is faster than torch)\n")
    print(f"{'case':<24}{'threads':>8}{'scorch':>10}{'torch':>10}{'ratio':>8}{'scipy':>10}")
    for row in warm:
        times = f"{row['scorch']:>10.1f}{row['torch']:>10.1f}{row['ratio']:>8.2f}"
        scipys = f"{row['scipy']:>10.1f}" if "scipy" in row else f"{'-':>10}"
        print(f"{row['case']:<24}{row['threads']:>8}" + times + scipys)


def print_layers(layers: list[dict[str, object]]) -> None:
    print("\nA layer, 32 x 32, density 0.1, batch 8, with gradients, microseconds\n")
    print(f"{'case':<24}{'scorch':>10}{'dense':>10}{'scorch / dense':>16}")
    for row in layers:
        print(f"{row['case']:<24}{row['scorch']:>10.1f}{row['dense']:>10.1f}{row['ratio']:>16.2f}")


def print_cold(cold: list[dict[str, object]]) -> None:
    print("\nThe first call of a kernel in a new process, milliseconds, medians\n")
    columns = ("cold", "planning", "disk", "first")
    print(f"{'kernel':<16}" + "".join(f"{column:>12}" for column in columns))
    for row in cold:
        cells = [f"{row[column]:>12.1f}" if column in row else f"{'-':>12}" for column in columns]
        print(f"{row['kernel']:<16}" + "".join(cells))
    medians = [statistics.median(float(str(row[what])) for row in cold) for what in columns[:3]]
    print(f"{'median':<16}" + "".join(f"{value:>12.1f}" for value in medians))


if __name__ == "__main__":
    main()
