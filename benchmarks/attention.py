"""Sparse attention against dense: windows with global tokens, causal windows and BigBird, 8 heads of 64.

    python -m benchmarks.attention [--lengths 1024 4096 16384] [--threads 2] [--seconds 20] [--json]

Dense contestants: ``F.scaled_dot_product_attention`` without a mask, with a mask of bools, with
``is_causal``; only the masked one gives the same numbers, and is compared first. ``flex`` is torch's
FlexAttention, compiled, if it runs here. Contestants take turns; medians. Memory is the peak of a process of
its own that makes one forward and one backward pass, less what it had before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels.timing import interleaved
from benchmarks.overhead import machine
from scorch._src.nn import masks

HEADS, FEATURES = 8, 64
DENSE_MASK = 1 << 28  # pairs up to which a dense mask of bools is made
Call = Callable[[], object]


def mask_named(name: str, n: int) -> Any:
    match name:
        case "window 256 + 16 global":  # 256 tokens on either side
            return masks.window(n, 256) | masks.global_tokens(n, 16)
        case "window 128 + 16 global":
            return masks.window(n, 128) | masks.global_tokens(n, 16)
        case "causal window 256":
            return masks.window(n, (255, 0))
        case "bigbird":
            return masks.bigbird(n, block=64, num_global=64, num_random=3, num_sliding=1)
    raise ValueError(name)


MASKS = ("window 256 + 16 global", "window 128 + 16 global", "causal window 256", "bigbird")


def inputs(n: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, HEADS, n, FEATURES, generator=generator) for _ in range(4)]


def contestants(name: str, n: int, mask: Any, with_flex: bool) -> dict[str, Callable[..., torch.Tensor]]:
    attention = F.scaled_dot_product_attention
    found: dict[str, Callable[..., torch.Tensor]] = {"scorch": lambda q, k, v: attention(q, k, v, mask)}
    found["dense"] = attention
    if n * n <= DENSE_MASK:
        dense = mask.to_dense()
        found["dense, mask"] = lambda q, k, v: attention(q, k, v, dense)
    if "causal" in name:
        found["dense, is_causal"] = lambda q, k, v: attention(q, k, v, is_causal=True)
    if with_flex:
        found["flex"] = flex(mask, n)
    return found


def flex(mask: Any, n: int) -> Callable[..., torch.Tensor]:
    """FlexAttention with the same mask, whose blocks it finds itself."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    dense = mask.to_dense()
    blocks = create_block_mask(lambda b, h, q, k: dense[q, k], None, None, n, n, device="cpu")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=blocks)


def passes(run: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> dict[str, Call]:
    """A forward pass alone, and one with its backward pass."""
    *qkv, gradient = given
    trained = [tensor.clone().requires_grad_() for tensor in qkv]

    def forward() -> object:
        with torch.no_grad():
            return run(*qkv)

    def both() -> object:
        return torch.autograd.grad(run(*trained), trained, gradient)

    return {"forward": forward, "both": both}


def measure(name: str, n: int, seconds: float, with_flex: bool) -> list[dict[str, Any]]:
    mask = mask_named(name, n)
    given = inputs(n)
    runs = contestants(name, n, mask, with_flex)
    if "dense, mask" in runs:
        difference = (runs["scorch"](*given[:3]) - runs["dense, mask"](*given[:3])).abs().max()
        assert difference < 1e-4, difference
    calls: dict[str, dict[str, Call]] = {"forward": {}, "both": {}}
    reasons = {}
    for contestant, run in runs.items():
        for kind, call in passes(run, given).items():
            try:
                if contestant == "flex":
                    call()
                calls[kind][contestant] = call
            except Exception as error:  # what this machine cannot do is a result too
                reasons[f"{contestant}, {kind}"] = str(error).strip().splitlines()[0][:120]
    rows = []
    for kind, some in calls.items():
        times = interleaved(some, seconds)
        rows.append(
            {
                "mask": name,
                "length": n,
                "kept": mask.nnz / n**2,
                "pass": kind,
                "milliseconds": {one: timing.median * 1e3 for one, timing in times.items()},
                "skipped": reasons,
            }
        )
    return rows


def memory(name: str, n: int, contestant: str) -> float | None:
    """MiB that one forward and backward pass adds to a process of its own; None if it fails."""
    arguments = ["--peak", name, str(n), contestant]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.attention", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return float(done.stdout) if done.returncode == 0 else None


def peak(name: str, n: int, contestant: str) -> None:
    """Print what ``memory`` asks for; the first, small call is not part of it."""
    small, mask = mask_named(name, 512), mask_named(name, n)
    passes(contestants(name, 512, small, False)[contestant], inputs(512))["both"]()
    given = inputs(n)
    call = passes(contestants(name, n, mask, False)[contestant], given)["both"]
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    call()
    print((status("VmHWM") - before) / 1024)


def status(name: str) -> int:
    """What Linux says of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        own = row["milliseconds"]["scorch"]
        others = ", ".join(
            f"{name} {time:.1f} ({time / own:.2f})"
            for name, time in row["milliseconds"].items()
            if name != "scorch"
        )
        used = row.get("mebibytes")
        text = f"{row['mask']:<24}{row['length']:>7}{row['kept']:>7.1%} {row['pass']:<8}"
        print(f"{text} scorch {own:.1f} ms; {others}" + (f"; MiB {used}" if used else ""), flush=True)
        for what, why in row["skipped"].items():
            print(f"    {what}: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--masks", nargs="+", default=list(MASKS), choices=MASKS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=20.0, help="for each mask, length and pass")
    parser.add_argument(
        "--flex", action="store_true", help="with FlexAttention, which torch.compile must make"
    )
    parser.add_argument("--memory", action="store_true", help="with the peak of memory of the longest")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.peak:
        peak(arguments.peak[0], int(arguments.peak[1]), arguments.peak[2])
        return
    rows: list[dict[str, Any]] = []
    if not arguments.json:
        print(f"{machine()}, {arguments.threads} threads; milliseconds (times that of scorch)")
    for name in arguments.masks:
        for n in arguments.lengths:
            found = measure(name, n, arguments.seconds, arguments.flex)
            if arguments.memory:
                for contestant in found[1]["milliseconds"]:
                    found[1].setdefault("mebibytes", {})[contestant] = memory(name, n, contestant)
            rows += found
            if not arguments.json:
                show(found)
    if arguments.json:
        print(json.dumps({"machine": machine(), "threads": arguments.threads, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
