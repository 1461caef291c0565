"""Count the Python frames of warm calls: how many functions of Python run between a call and its kernel.

    python benchmarks/frames.py [--names | --json]

Every row is called until nothing is compiled, planned or measured any more, and counted then; ``--names``
lists them. What a loop on threads costs is measured for some seconds on a machine that is busy at first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

import scorch

WARM_CALLS = 5
MOST_WAITS = 15  # of a second
BOUNDS = {  # what the redesign asks for
    "csr @ dense": 9,
    "csr @ csr": 15,
    "A + C": 12,
    "A.sum(1)": 10,
    "A * dense": 12,
    "W @ X with gradient": 35,
    "its backward": 50,
}


def count_frames(call: Callable[[], Any]) -> list[str]:
    """The functions of Python that run in one call, in order."""
    found: list[str] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is not call.__code__:  # type: ignore[attr-defined]
            found.append(f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}")

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def settled_frames(name: str, call: Callable[[], Any]) -> list[str]:
    """The functions of a call that has been made often enough; seconds later if there are more than asked."""
    found = count_frames(call)
    for _ in range(MOST_WAITS):
        if sum(frame.startswith("scorch.") for frame in found) <= BOUNDS[name]:
            break
        time.sleep(1)
        call()
        found = count_frames(call)
    return found


def rows() -> dict[str, list[str]]:
    torch.manual_seed(0)
    dense = torch.rand(200, 200) * (torch.rand(200, 200) < 0.05)
    A, B = scorch.from_torch(dense, format="csr"), scorch.from_torch(dense.T.contiguous(), format="csr")
    X = torch.rand(200, 16)
    D = torch.rand(200, 200)
    W = scorch.from_torch(dense, format="csr").requires_grad_()
    calls: dict[str, Callable[[], Any]] = {
        "csr @ dense": lambda: A @ X,
        "csr @ csr": lambda: A @ B,
        "A + C": lambda: A + B,
        "A.sum(1)": lambda: A.sum(1),
        "A * dense": lambda: A * D,
        "W @ X with gradient": lambda: W @ X,
    }
    found: dict[str, list[str]] = {}
    for name, call in calls.items():
        for _ in range(WARM_CALLS):
            call()
        found[name] = settled_frames(name, call)
    for _ in range(WARM_CALLS):
        (W @ X).sum().backward()
    loss = (W @ X).sum()
    found["its backward"] = count_frames(lambda: loss.backward())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--names", action="store_true", help="list the functions of every call")
    parser.add_argument("--json", action="store_true", help="print the counts of our own frames as JSON")
    options = parser.parse_args()
    found = rows()
    ours = {name: sum(frame.startswith("scorch.") for frame in frames) for name, frames in found.items()}
    if options.json:
        print(json.dumps(ours))
        return
    print(f"{'call':<22}{'frames':>8}{'ours':>8}{'asked':>8}")
    for name, frames in found.items():
        print(f"{name:<22}{len(frames):>8}{ours[name]:>8}{BOUNDS[name]:>8}")
        if options.names:
            print("".join(f"    {frame}\n" for frame in frames))


if __name__ == "__main__":
    main()
