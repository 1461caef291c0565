"""What calls cost the host: warm calls in a tight loop, and the first result of a new expression."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.gpu.cases import OURS, Measured, first_line
from benchmarks.gpu.matrices import MADE, TINY
from benchmarks.gpu.timing import Device
from benchmarks.kernels.timing import Timing

CALLS = 100  # fewer than a device can have waiting
ROUNDS = 15


def host(device: Device, seconds: float, tiny: bool) -> Iterator[Measured]:
    """Measure the host's time of a warm product; only after all calls of a round is the device waited for."""
    A = (TINY if tiny else MADE)[0].make(device.name)
    x, X = A.random("x", A.shape[1]), A.random("X", A.shape[1], 32)
    for label, right in (("S @ x", x), ("S @ X, 32 columns", X)):
        makers = {OURS: A.scorch, **A.torch_layouts()}
        found = Measured("host", label, A.name)
        calls: dict[str, Callable[[], Any]] = {}
        for name, make in makers.items():
            try:
                S = make()
                calls[name] = lambda S=S, right=right: S @ right
                calls[name]()
            except Exception as problem:
                found.failed[name] = first_line(problem)
                calls.pop(name, None)
        samples: dict[str, list[float]] = {name: [] for name in calls}
        end = time.perf_counter() + seconds / 2
        for number in range(ROUNDS):
            for name, call in calls.items():
                samples[name].append(_loop(call, device))
            if number >= 3 and time.perf_counter() > end:
                break
        found.times = {name: Timing.of(some) for name, some in samples.items()}
        yield found


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

FIRST = """
import json, sys, time
begin = time.perf_counter()
import torch
torch_s = time.perf_counter() - begin
begin = time.perf_counter()
import scorch
scorch_s = time.perf_counter() - begin
device = sys.argv[1]
def wait():
    if device.startswith("cuda"):
        torch.cuda.synchronize()
begin = time.perf_counter()
torch.manual_seed(0)
dense = torch.rand(200, 200, device=device) * (torch.rand(200, 200, device=device) < 0.05)
given = dense.to_sparse_csr()
S = scorch.sparse_csr_tensor(given.crow_indices(), given.col_indices(), given.values(), (200, 200))
X, x = torch.rand(200, 32, device=device), torch.rand(200, device=device)
wait()
found = {"import torch": torch_s, "import scorch": scorch_s, "tensors": time.perf_counter() - begin}
cases = {
    "first: S @ x": lambda: S @ x,
    "S @ X": lambda: S @ X,
    "SDDMM": lambda: scorch.einsum("ij,ik,jk->ij", S, X, X),
    "softmax": lambda: torch.sparse.softmax(S, 1),
    "new expression": lambda: scorch.evaluate("y[i] = sum(j, exp(S[i,j]) * x[j]) / (1 + x[i])", S=S, x=x),
    "S + S.T": lambda: S + S.T,
    "S @ S": lambda: scorch.einsum("ij,jk->ik", S, S, format="csr"),
}
for name, call in cases.items():
    begin = time.perf_counter()
    try:
        call()
        wait()
        found[name] = time.perf_counter() - begin
    except Exception as problem:
        found[name] = f"{type(problem).__name__}: {str(problem)[:150]}"
print(json.dumps(found))
"""


def first_results(device: str, cache: str) -> dict[str, Any]:
    """Seconds until each expression's first result, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST, device],
        env={**os.environ, "SCORCH_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compile_times(device: Device, seconds: float, tiny: bool) -> Iterator[Measured]:
    """Measure first results with an empty cache of kernels, and in a second process with a full one."""
    rounds: dict[str, dict[str, list[float]]] = {}
    failed: dict[str, str] = {}
    end = time.perf_counter() + seconds
    for number in range(1 if tiny else 3):
        with tempfile.TemporaryDirectory() as cache:
            for way in ("empty cache", "full cache"):
                try:
                    found = first_results(device.name, cache)
                except Exception as problem:
                    failed[way] = first_line(problem)
                    continue
                for name, spent in found.items():
                    if isinstance(spent, str):
                        failed[f"{name}, {way}"] = spent
                    else:
                        rounds.setdefault(name, {}).setdefault(way, []).append(spent)
        if number and time.perf_counter() > end:
            break
    for name, ways in rounds.items():
        medians = {way: Timing(statistics.median(some), 0.0, len(some)) for way, some in ways.items()}
        yield Measured("compile", name, "200 x 200", medians)
    if failed:
        yield Measured("compile", "what failed", "200 x 200", failed=failed)
