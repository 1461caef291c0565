"""Warm calls of this source tree beside those of another one, such as an older commit.

    git archive --prefix=before/ COMMIT src | tar x -C DIR
    python -m benchmarks.compare DIR/before/src [--rounds 41] [--core 1]

Each tree has a process of its own, both on one core and with one thread. They take turns, call by call, in
random order, so that a processor which changes its speed does so for both; a ratio is the median over pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import scorch

HERE = Path(__file__).resolve().parent.parent
CALLS_PER_TURN, SLOW_CALLS_PER_TURN = 50, 10


def cases(size: int = 64, density: float = 0.1) -> dict[str, Callable[[], object]]:
    """Calls on small matrices, by public names alone: other versions have them too."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dense = torch.randn(size, size) * (torch.rand(size, size) < density)
    S = scorch.from_torch(dense, format="csr")
    T = scorch.from_torch(dense.T.contiguous(), format="csr")
    x, v = torch.randn(size, size), torch.randn(size)
    layers = [S.detach().clone().requires_grad_() for _ in range(2)]
    optimizer = torch.optim.Adam(layers, lr=1e-3)

    def loss() -> torch.Tensor:
        return (layers[1] @ torch.relu(layers[0] @ x)).square().mean()

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return {
        "einsum csr @ vector": lambda: scorch.einsum("ij,j->i", S, v),
        "einsum csr @ dense": lambda: scorch.einsum("ij,jk->ik", S, x),
        "einsum sampled product": lambda: scorch.einsum("ij,ik,kj->ij", S, x, x),
        "einsum csr @ csr": lambda: scorch.einsum("ij,jk->ik", S, S),
        "evaluate csr + csr": lambda: scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=S, B=S),
        "csr @ dense": lambda: S @ x,
        "csr @ csr": lambda: S @ T,
        "csr + csr": lambda: S + T,
        "csr - csr": lambda: S - T,
        "csr * csr": lambda: S * T,
        "csr * dense": lambda: S * x,
        "csr + dense": lambda: S + x,
        "csr * 2": lambda: S * 2,
        "csr / 2": lambda: S / 2,
        "-csr": lambda: -S,
        "abs": lambda: S.abs(),
        "relu": lambda: torch.relu(S),
        "sin": lambda: torch.sin(S),
        "sum(1)": lambda: S.sum(1),
        "sum()": lambda: S.sum(),
        "softmax(1)": lambda: torch.softmax(S, 1),
        "transpose": lambda: S.T,
        "gradients of two layers": lambda: torch.autograd.grad(loss(), layers),
        "step of Adam, two layers": step,
    }


def serve() -> None:
    """Run the calls that are named on standard input, and print what each took, in microseconds."""
    calls = cases()
    for call in calls.values():
        for _ in range(CALLS_PER_TURN):
            call()
    print(json.dumps(list(calls)), flush=True)
    for line in sys.stdin:
        name, count = json.loads(line)
        call = calls[name]
        call()
        start = time.perf_counter()
        for _ in range(count):
            call()
        print((time.perf_counter() - start) / count * 1e6, flush=True)


class Contestant:
    """A process that runs the calls with one source tree."""

    def __init__(self, source: Path, core: int, cache: str) -> None:
        paths = [str(source), str(HERE), os.environ.get("PYTHONPATH", "")]
        variables = {"PYTHONPATH": os.pathsep.join(paths), "SCORCH_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.compare", "--serve"]
        self.process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self.process.pid, {core})
        self.names: list[str] = json.loads(self._read())

    def _read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a contestant ended with status {self.process.wait()}")
        return line

    def time(self, name: str, count: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, count]) + "\n")
        self.process.stdin.flush()
        return float(self._read())

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def compare(
    before: Path, after: Path, rounds: int, core: int, cache: str | None = None
) -> list[tuple[str, float, float, float]]:
    """The medians of each call before and after, in microseconds, and the median ratio."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        contestants = [Contestant(source, core, cache or folder) for source in (before, after)]
        names = [name for name in contestants[1].names if name in contestants[0].names]
        times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
        for _ in range(rounds):
            for name in names:
                count = SLOW_CALLS_PER_TURN if "layers" in name else CALLS_PER_TURN
                for number in random.sample((0, 1), 2):
                    times[name][number].append(contestants[number].time(name, count))
        for contestant in contestants:
            contestant.end()
        for name, (old, new) in times.items():
            ratio = statistics.median(a / b for a, b in zip(old, new, strict=True))
            rows.append((name, statistics.median(old), statistics.median(new), ratio))
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?", type=Path, help="the src folder of the other tree")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--core", type=int, default=0, help="the core that both run on")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        return serve()
    if options.before is None or not (options.before / "scorch" / "__init__.py").is_file():
        parser.error("name the src folder of another tree, with scorch in it")
    rows = compare(options.before.resolve(), HERE / "src", options.rounds, options.core)
    print(f"{'call':26} {'before us':>10} {'now us':>10} {'ratio':>7}")
    for name, before, after, ratio in rows:
        print(f"{name:26} {before:10.1f} {after:10.1f} {ratio:7.2f}")


if __name__ == "__main__":
    main()
