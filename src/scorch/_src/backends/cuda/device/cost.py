"""What kernels take of a CUDA device, and how long they should take: for ``explain``.

A call is predicted to take its launches, and the time in which the device moves its bytes. Blocks run in
waves, as many at once as registers and shared memory leave room for; the last wave takes as long as a full
one, however few blocks are left for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from scorch._src.backends import base
from scorch._src.backends.cuda.device import driver
from scorch._src.backends.cuda.device.kernel import LAUNCHES, CudaKernel, Launch, Launches
from scorch._src.events import emits

LAUNCH_SECONDS = 4e-6
ATTAINED = 0.85  # of what clock and width of the memory give: a copy on an H200

Function = TypeVar("Function", bound=Callable[..., Any])


def describe_cost(
    kernel: CudaKernel, launches: Sequence[Launch], call: base.Call
) -> tuple[str, float | None]:
    """Say what the launches of a call take; and the seconds, where the device and the bytes are known."""
    functions = _functions(kernel, launches, call.device)
    waves = _waves(functions, launches, call.device)
    size = f"{call.size:,} bytes at {'least' if call.exact else 'most'}"
    said = [describe_grids(launches), _describe_functions(functions, launches, call.device.index or 0), size]
    time, seconds = _predict(len(launches), waves, call)
    return "; ".join(filter(None, [*said, time])), seconds


def _predict(launches: int, waves: float, call: base.Call) -> tuple[str, float | None]:
    """Say how long a call should take, and return the seconds; nothing where the device is unknown."""
    bandwidth = ATTAINED * driver.bandwidth(call.device.index or 0) if call.device.type == "cuda" else 0.0
    if not bandwidth or not launches:
        return "", None
    seconds = LAUNCH_SECONDS * launches
    launching = "one launch" if launches == 1 else f"{launches} launches"
    if not call.exact:
        return f"at least {seconds * 1e6:.3g} us: {launching}", None
    fullness = waves / math.ceil(waves) if waves else 1.0
    seconds += call.size / (bandwidth * fullness)
    moving = f"{call.size / 1e6:,.3g} MB at {bandwidth / 1e12:.2g} TB/s"
    turns = f" in {waves:.2g} waves of blocks" if waves else ""
    return f"about {seconds * 1e6:,.3g} us: {moving}{turns}, and {launching}", seconds


def describe_grids(launches: Sequence[Launch]) -> str:
    """Say how many blocks of how many threads run."""
    grids = [f"{launch.blocks:,} x {launch.threads}" for launch in launches]
    return f"blocks x threads {', then '.join(grids)}" if grids else ""


def _functions(kernel: CudaKernel, launches: Sequence[Launch], device: torch.device) -> list[Any]:
    """Return the functions as a device has them, compiled if need be; none without a device."""
    if device.type != "cuda" or not kernel.is_ready():
        return []
    with torch.cuda.device(device):
        return [kernel.function(launch.name, torch.cuda.current_device()) for launch in launches]


def _describe_functions(functions: Sequence[Any], launches: Sequence[Launch], device: int) -> str:
    """Say the most of registers, shared memory and local memory that one of the functions takes."""
    if not functions:
        return ""
    found = [driver.function_facts(function, device) for function in functions]
    registers = max(facts.registers for facts in found)
    shared = max(facts.shared + launch.shared for facts, launch in zip(found, launches, strict=True))
    local = max(facts.local for facts in found)
    spilled = f"{local:,} bytes of local memory" if local else "no local memory"
    return f"{registers} registers and {spilled} a thread, {shared:,} bytes of shared memory a block"


def _waves(functions: Sequence[Any], launches: Sequence[Launch], device: torch.device) -> float:
    """Return in how many waves the blocks of the largest launch run; 0 if that is not known."""
    if not functions:
        return 0.0
    number, launch = max(enumerate(launches), key=lambda item: item[1].blocks)
    at_once = driver.blocks_at_once(functions[number], launch.threads, launch.shared, device.index or 0)
    return launch.blocks / at_once if at_once else 0.0


# what has run -----------------------------------------------------------------------------------------


class Record(Launches):
    """What was launched, or why a kernel was not; in words as a string."""

    def __str__(self) -> str:
        return _describe(self)


@contextmanager
def recorded() -> Iterator[Record]:
    """Record what is launched inside, and why a kernel was not."""
    record = Record()
    LAUNCHES.append(record)
    try:
        yield record
    finally:
        LAUNCHES.remove(record)


def tells(what: str) -> Callable[[Function], Function]:
    """Emit an event named ``what`` on every call, with the kernels that ran, or why there was none."""
    return emits(what, watch=recorded)


def _describe(record: Launches) -> str:
    if not record.launched:
        return f"by torch's operations{f': {record.why_not}' if record.why_not else ''}"
    said = []
    for kernel, launch, number in record.launched:
        device = torch.device("cpu" if number is None else f"cuda:{number}")
        taken = _describe_functions(_functions(kernel, [launch], device), [launch], device.index or 0)
        said.append(f"{launch.name} ({describe_grids([launch])}{f'; {taken}' if taken else ''})")
    return f"by CUDA kernels: {', '.join(said)}"
