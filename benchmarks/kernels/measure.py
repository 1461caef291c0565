"""Check every contestant of a case, then let those that are right take turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from benchmarks.kernels.cases import OURS, Case
from benchmarks.kernels.check import difference
from benchmarks.kernels.data import Matrix, Tensor
from benchmarks.kernels.layouts import Skip
from benchmarks.kernels.results import Measured, Results
from benchmarks.kernels.timing import Call, interleaved

MOST_SECONDS = 30.0  # a contestant whose first call takes longer is not called again


def able(case: Case, matrix: str, results: Results) -> dict[str, Call]:
    """The calls of the contestants that take part and are right; the others are written down."""
    reference = case.reference()
    calls: dict[str, Call] = {}
    for name, prepare in case.contestants.items():
        try:
            call = prepare()
            start = time.perf_counter()
            found = call()
            elapsed = time.perf_counter() - start
        except Skip as reason:
            if str(reason):
                results.skip(case.label, name, str(reason))
            continue
        except (RuntimeError, NotImplementedError, MemoryError) as error:
            if name == OURS:
                results.wrong.append(f"{case.label}, {matrix}: {name} raised: {_first_line(error)}")
            else:
                results.skip(case.label, name, "raises: " + _first_line(error))
            continue
        problem = difference(found, reference)
        if problem is not None:
            results.wrong.append(f"{case.label}, {matrix}: {name} is {problem}")
        elif elapsed > MOST_SECONDS:
            results.skip(case.label, name, f"a call takes more than {MOST_SECONDS:.0f} s")
        else:
            calls[name] = call
    return calls


def _first_line(error: BaseException) -> str:
    line = (str(error) or type(error).__name__).splitlines()[0]
    return line if len(line) <= 110 else line[:107] + "..."


@contextlib.contextmanager
def _on_threads(count: int) -> Iterator[None]:
    """Set torch's number of threads, which other libraries that use OpenMP may have changed."""
    torch.set_num_threads(count)
    yield


def measure(
    case: Case, data: Matrix | Tensor, threads: Sequence[int], seconds: float, results: Results
) -> None:
    """Add the times of a case at each number of threads to the results."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(max(threads))
        calls = able(case, data.name, results)
        if not calls:
            return
        for count in threads:
            torch.set_num_threads(count)
            times = interleaved(calls, seconds, dict.fromkeys(calls, partial(_on_threads, count)))
            extras = tuple(name for name in calls if name in case.extras)
            results.measured.append(
                Measured(
                    case.kernel, case.label, data.name, data.group, data.shape, data.nnz, count, times, extras
                )
            )
    finally:
        torch.set_num_threads(before)
