"""How long a call takes that is the first of its process, where its kernel is on disk.

    python -m benchmarks.first_calls [--rounds N] [--only TEXT] [--json]

Every call is made in processes of its own, forked from one that has imported torch and Scorch and called
nothing. The first of them fills a new folder of kernels and is not counted; of the others the median is
printed, with what torch imported on the way, and how many calls take more than 50 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings

LIMIT_MS = 50
SLOW_MODULES = ("sympy", "torch._dynamo", "torch.distributed.tensor")
CALLS = """
A @ x; A @ X; A @ A; X @ A; A + A; A - A; A * A; A * X; A * 2; A / 2; A + X; -A; A ** 2; A > 0; A == A
A.sum(); A.sum(1); A.mean(); A.max(); A.amax(1); A.norm(); torch.relu(A); torch.sin(A); A.exp(); A.abs()
torch.softmax(A, 1); A.T; A.T @ x; A[3]; A[3, 4]; A[1:9]; A[:, 2]; A.diagonal(); A.tril(); torch.cat([A, A])
torch.stack([A, A]); A.reshape(32, 128); A.flatten(); A.split(16); A.topk(3); A.sort(); A.flip(0)
A.roll(1, 0); A.mul_(2); A.add_(A); A.zero_(); A[1] = 0; A.to_dense(); A.to_format("csc"); A.to_format("coo")
A.to_sparse_csr(); A.double(); A.clone(); repr(A); scorch.from_torch(d, format="csr")
torch.mm(A, X); torch.addmm(X, A, X); F.linear(X, A); torch.einsum("ij,jk->ik", A, X)
scorch.einsum("ij,j->i", A, x); scorch.einsum("ij,ik,jk->ij", A, X, X)
scorch.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=A); scorch.nn.SparseLinear(64, 64)(X)
(L @ X).sum().backward(); (L * 2).sum().backward(); torch.relu(L).sum().backward(); L.mean().backward()
torch.autograd.grad((L @ X).sum(), L)
"""
SETUP = """
torch.manual_seed(0)
d = torch.rand(64, 64) * (torch.rand(64, 64) < 0.1)
A, L = scorch.from_torch(d, format="csr"), scorch.from_torch(d, format="csr").requires_grad_()
x, X = torch.rand(64), torch.rand(64, 64)
"""


def time_in_child(call: str) -> tuple[float, list[str]]:
    """Make ``call`` in a forked process; return its milliseconds, and what slow modules it imported."""
    import torch
    import torch.nn.functional as F

    import scorch

    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        names = {"torch": torch, "scorch": scorch, "F": F}
        exec(SETUP, names)
        program, before = compile(call, "call", "exec"), set(sys.modules)
        start = time.perf_counter()
        exec(program, names)
        taken = (time.perf_counter() - start) * 1e3
        loaded = [name for name in SLOW_MODULES if name in sys.modules and name not in before]
        os.write(writer, json.dumps([taken, loaded]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"the process of {call} ended without a result")
    taken, loaded = json.loads(text)
    return taken, loaded


def first_calls(rounds: int = 5, only: str = "") -> list[dict[str, object]]:
    """Measure all calls whose text contains ``only``, the slowest first."""
    calls = [call.strip() for line in CALLS.strip().splitlines() for call in line.split("; ")]
    rows: list[dict[str, object]] = []
    for call in calls:
        if only in call:
            time_in_child(call)
            found = [time_in_child(call) for _ in range(rounds)]
            times = [taken for taken, _ in found]
            median = statistics.median(times)
            rows.append({"call": call, "median": median, "least": min(times), "imports": found[-1][1]})
    return sorted(rows, key=lambda row: -float(str(row["median"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="processes for each call")
    parser.add_argument("--only", default="", help="calls whose text contains this")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SCORCH_CACHE_DIR"] = folder
        warnings.simplefilter("ignore")
        rows = first_calls(options.rounds, options.only)
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'first call of a process, ms':<58}{'median':>8}{'least':>8}  imports")
    for row in rows:
        print(f"{row['call']:<58}{row['median']:>8.1f}{row['least']:>8.1f}  {' '.join(row['imports'])}")  # type: ignore[arg-type]
    over = sum(float(str(row["median"])) > LIMIT_MS for row in rows)
    print(f"{over} of {len(rows)} take more than {LIMIT_MS} ms")


if __name__ == "__main__":
    main()
