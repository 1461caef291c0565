"""What calls cost the host: warm calls in a tight loop, and the first result of a new expression."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import scorch
from benchmarks.gpu.cases import OURS, Measured, first_line
from benchmarks.gpu.matrices import MADE, TINY, Matrix
from benchmarks.gpu.timing import Device
from benchmarks.kernels.timing import Timing

CALLS = 100  # fewer than a device can have waiting
ROUNDS = 15


def host(device: Device, seconds: float, tiny: bool) -> Iterator[Measured]:
    """Measure the host's time of warm calls; only after all calls of a round is the device waited for."""
    A = (TINY if tiny else MADE)[0].make(device.name)
    for label, (run, in_torch) in _warm_calls(A).items():
        makers = {OURS: A.scorch, **A.torch_layouts()}
        found = Measured("host", label, A.name)
        calls: dict[str, Callable[[], Any]] = {}
        for name, make in makers.items():
            try:
                calls[name] = functools.partial(run if name == OURS else in_torch, make())
                calls[name]()
            except Exception as problem:
                found.failed[name] = first_line(problem)
                calls.pop(name, None)
        samples: dict[str, list[float]] = {name: [] for name in calls}
        end = time.perf_counter() + seconds / 8
        for number in range(ROUNDS):
            for name, call in calls.items():
                samples[name].append(_loop(call, device))
            if number >= 3 and time.perf_counter() > end:
                break
        found.times = {name: Timing.of(some) for name, some in samples.items()}
        yield found


def _warm_calls(A: Matrix) -> dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]:
    """What is called on a matrix, and what torch has for it."""
    m, n = A.shape
    x, X, D = A.random("x", n), A.random("X", n, 32), A.random("D", m, n)
    P, Q, by_columns = A.random("P", m, 32), A.random("Q", n, 32), A.random("Q", n, 32).T.contiguous()
    calls: dict[str, tuple[Callable[[Any], Any], ...]] = {
        "S @ x": (lambda S: S @ x,),
        "S @ X, 32 columns": (lambda S: S @ X,),
        "S * (P @ Q.T), 32 columns": (
            lambda S: scorch.einsum("ij,ik,jk->ij", S, P, Q),
            lambda S: torch.sparse.sampled_addmm(S, P, by_columns, beta=0.0),
        ),
        "S * dense": (lambda S: S * D,),
        "row softmax": (lambda S: torch.sparse.softmax(S, 1),),
        "S.sum(1)": (lambda S: S.sum(1), lambda S: torch.sparse.sum(S, 1)),
        "relu(S)": (torch.relu,),
        "S + S": (lambda S: S + S,),
    }
    return {label: (known[0], known[-1]) for label, known in calls.items()}


def _loop(call: Callable[[], Any], device: Device) -> float:
    call()
    device.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    spent = (time.perf_counter() - start) / CALLS
    device.synchronize()
    return spent


# first results ---------------------------------------------------------------------------------------

COALESCING = "coalescing"
EMPTY = "empty cache"
FIRST = """
import json, os, sys, time
begin = time.perf_counter()
import torch
torch_s = time.perf_counter() - begin
begin = time.perf_counter()
import scorch
scorch_s = time.perf_counter() - begin
device, chosen = sys.argv[1], sys.argv[2:]
def wait():
    if device.startswith("cuda"):
        torch.cuda.synchronize()
begin = time.perf_counter()
torch.manual_seed(0)
dense = torch.rand(200, 200, device=device) * (torch.rand(200, 200, device=device) < 0.05)
given = dense.to_sparse_csr()
S = scorch.sparse_csr_tensor(given.crow_indices(), given.col_indices(), given.values(), (200, 200))
X, x = torch.rand(200, 32, device=device), torch.rand(200, device=device)
places, values = torch.randint(200, (2, 20_000), device=device), torch.rand(20_000, device=device)
wait()
busy = {}  # CPU time of all threads, and how much of it the system took
found = {"import torch": torch_s, "import scorch": scorch_s, "tensors": time.perf_counter() - begin}
cases = {
    "first: S @ x": lambda: S @ x,
    "S @ X": lambda: S @ X,
    "SDDMM": lambda: scorch.einsum("ij,ik,jk->ij", S, X, X),
    "softmax": lambda: torch.sparse.softmax(S, 1),
    "new expression": lambda: scorch.evaluate("y[i] = sum(j, exp(S[i,j]) * x[j]) / (1 + x[i])", S=S, x=x),
    "S + S.T": lambda: S + S.T,
    "S @ S": lambda: scorch.einsum("ij,jk->ik", S, S, format="csr"),
    "coalescing": lambda: scorch.sparse_coo_tensor(places, values, (200, 200)),
}
for name in chosen or cases:
    call, system, both, begin = cases[name], os.times().system, time.process_time(), time.perf_counter()
    try:
        call()
        wait()
        found[name] = time.perf_counter() - begin
        busy[name] = time.process_time() - both, os.times().system - system
    except Exception as problem:
        found[name] = f"{type(problem).__name__}: {str(problem)[:150]}"
print(json.dumps([found, busy]))
"""


def first_results(
    device: str, cache: str, names: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Seconds until each expression's first result, in a process of its own; and the CPU time.

    ``names``: which expressions, if not all. CPU time is that of all threads, and how much of it the
    system took. NVRTC 12.9 and later keep what they compile in a cache of the driver, which is switched off:
    only the first of several rounds would have an empty one.
    """
    given = {"SCORCH_CACHE_DIR": cache, "CUDA_CACHE_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST, device, *names],
        env={**os.environ, **given, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    found, busy = json.loads(done.stdout.splitlines()[-1])
    return found, busy


def compile_times(device: Device, seconds: float, tiny: bool) -> Iterator[Measured]:
    """Measure first results with an empty cache of kernels, and in a second process with a full one.

    With an empty cache, the CPU time is shown too, most of it NVRTC's. Coalescing is measured
    twice: behind other calls, and as the first call of a process.
    """
    rounds: dict[str, dict[str, list[float]]] = {}
    failed: dict[str, str] = {}
    end = time.perf_counter() + seconds
    for number in range(1 if tiny else 3):
        for names in ([], [COALESCING]):
            with tempfile.TemporaryDirectory() as cache:
                for way in (EMPTY, "full cache"):
                    try:
                        found, busy = first_results(device.name, cache, names)
                    except Exception as problem:
                        failed[way] = first_line(problem)
                        continue
                    _take(rounds, failed, way, names, found, busy)
        if number and time.perf_counter() > end:
            break
    for name, ways in rounds.items():
        medians = {way: Timing(statistics.median(some), 0.0, len(some)) for way, some in ways.items()}
        yield Measured("compile", name, "200 x 200", medians)
    if failed:
        yield Measured("compile", "what failed", "200 x 200", failed=failed)


def _take(
    rounds: dict[str, dict[str, list[float]]],
    failed: dict[str, str],
    way: str,
    names: Sequence[str],
    found: dict[str, Any],
    busy: dict[str, list[float]],
) -> None:
    """Add what was found in a process to that of earlier rounds; of ``names`` only, if there are some."""
    for name, spent in found.items():
        if names and name not in names:
            continue
        label = f"first: {name}" if names else name
        if isinstance(spent, str):
            failed[f"{label}, {way}"] = spent
            continue
        ways = rounds.setdefault(label, {})
        ways.setdefault(way, []).append(spent)
        if name in busy and way == EMPTY:
            both, system = busy[name]
            ways.setdefault("CPU time", []).append(both)
            ways.setdefault("of it the system", []).append(system)
