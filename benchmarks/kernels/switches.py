"""What each optimisation gives: the same kernel with all of them, without one at a time, and with none."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

import scorch
from benchmarks.kernels.cases import OURS, Case
from benchmarks.kernels.check import difference
from benchmarks.kernels.data import Matrix, Tensor
from benchmarks.kernels.results import Measured, Results
from benchmarks.kernels.timing import Call, Context, Timing, interleaved
from scorch.settings import OPTIMIZATIONS

ALL_ON = "all on"
NAMES = [*OPTIMIZATIONS, "all"]


def without(name: str) -> Context:
    return lambda: scorch.settings(without=name)


def measure_switches(
    case: Case, data: Matrix | Tensor, threads: Sequence[int], seconds: float, results: Results
) -> None:
    """Add the times of Scorch's kernel with each optimisation switched off in turn."""
    reference = case.reference()
    before = torch.get_num_threads()
    try:
        for count in threads:
            torch.set_num_threads(count)
            calls: dict[str, Call] = {ALL_ON: case.contestants[OURS]()}
            around: dict[str, Context] = {}
            for name in NAMES:
                # A tensor keeps converted copies of itself, so all share one; settings choose the kernel.
                calls[f"without {name}"] = calls[ALL_ON]
                around[f"without {name}"] = without(name)
            for name in list(calls):
                problem = _problem(calls[name], around.get(name), reference)
                if problem is not None:
                    results.wrong.append(f"{case.label}, {data.name}, {name}: {problem}")
                    del calls[name]
            times: dict[str, Timing] = interleaved(calls, seconds, around)
            results.measured.append(
                Measured(case.kernel, case.label, data.name, data.group, data.shape, data.nnz, count, times)
            )
    finally:
        torch.set_num_threads(before)


def _problem(call: Call, context: Context | None, reference: object) -> str | None:
    try:
        if context is None:
            found = call()
        else:
            with context(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = call()
    except (RuntimeError, ValueError, MemoryError) as error:
        return f"raised {str(error).splitlines()[0]}"
    return difference(found, reference)  # type: ignore[arg-type]
