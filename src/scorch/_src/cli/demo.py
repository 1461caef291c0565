"""``python -m scorch demo``: run a few expressions, checked against dense and timed beside torch.sparse.

Each expression runs on a large problem, whose dense tensors would not fit, and on a smaller copy.
There results are compared with dense torch in float64; on the large problem with torch.sparse.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from dataclasses import asdict
from typing import Any

import torch

from scorch._src.backends import cache
from scorch._src.backends.base import host_threads
from scorch._src.cli.demo_cases import Call, Case, Problem, make_cases, power_law
from scorch._src.dataclass import dataclass
from scorch._src.explain.explain_statement import explain
from scorch._src.formats import Format
from scorch._src.tensor.create.construct import from_torch
from scorch._src.tensor.sparse_tensor import SparseTensor
from scorch._src.units import format_seconds

TOLERANCE = 1e-4  # of the largest value: the rounding of float32
SECONDS_PER_EXPRESSION = 0.3  # for the timing of all implementations together
MIN_RUNS, MAX_RUNS = 3, 11
_LINE = "{:24}{:27}{:>9}{:>15}{:>11}{:>7} {:>6}".format


@dataclass(frozen=True)
class Row:
    """The measurements of one expression; times in seconds, None where an implementation cannot take part.

    ``error``: the largest difference from ``truth`` (``dense`` or ``torch.sparse``) relative to the largest
    value, None without a truth.
    """

    text: str
    formats: str
    result: str
    first: float
    warm: float
    torch_sparse: float | None
    layout: str
    dense: float | None
    truth: str
    error: float | None

    @property
    def agrees(self) -> bool:
        return self.error is None or self.error <= TOLERANCE

    @property
    def ratio(self) -> float | None:
        """The best other time relative to Scorch's."""
        others = [seconds for seconds in (self.torch_sparse, self.dense) if seconds is not None]
        return min(others) / self.warm if others else None


LARGE_PROBLEM = Problem(20_000, 2_000, 400_000, fits_dense=False)
MEDIUM_PROBLEM = Problem(1_000, 150, 20_000, fits_dense=True)
SMALL_LARGE_PROBLEM = Problem(1_000, 100, 5_000, fits_dense=False)
SMALL_PROBLEM = Problem(200, 30, 1_000, fits_dense=True)


def main(small: bool = False, as_json: bool = False) -> int:
    """Print the demonstration; return 1 if any result disagrees."""
    problems = (SMALL_LARGE_PROBLEM, SMALL_PROBLEM) if small else (LARGE_PROBLEM, MEDIUM_PROBLEM)
    tables: list[list[Row]] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Ss]parse")  # torch's own layouts are "in beta"
        for problem in problems:
            if not as_json:
                _print_heading(problem)
            tables.append([])
            for case in make_cases(problem):
                tables[-1].append(measure(case, problem))
                if not as_json:
                    _print_row(tables[-1][-1], problem)
        if as_json:
            _print_json(problems, tables)
        else:
            _print_ending(problems[0])
    wrong = [row.text for rows in tables for row in rows if not row.agrees]
    for text in wrong:
        print(f"{text} disagrees with the reference: please report this", file=sys.stderr)
    return 1 if wrong else 0


def measure(case: Case, problem: Problem) -> Row:
    """Run every implementation, check the result, then time them in turns."""
    first, result = _time_call(case.scorch)
    torch_calls: dict[str, Call] = {}
    answer: torch.Tensor | None = None
    for layout, call in case.torch_sparse.items():
        try:
            answer = call()
            torch_calls[layout] = call
        except (RuntimeError, NotImplementedError, TypeError):  # a layout without this operation
            continue
    truth, error = "", None
    if problem.fits_dense:
        truth, error = "dense", _relative_error(result, case.dense(torch.float64)())
    elif answer is not None:
        truth, error = "torch.sparse", _relative_error(result, answer)
    calls = {"scorch": case.scorch, **torch_calls}
    if problem.fits_dense:
        calls["dense"] = case.dense(torch.float32)
    seconds = _time_in_turns(calls)
    layout = min(torch_calls, key=lambda name: seconds[name], default="")
    return Row(
        text=case.text,
        formats=", ".join(str(_format(operand)) for operand in case.operands),
        result=str(_format(result)),
        first=first,
        warm=seconds["scorch"],
        torch_sparse=seconds[layout] if layout else None,
        layout=layout,
        dense=seconds.get("dense"),
        truth=truth,
        error=error,
    )


def _time_in_turns(calls: dict[str, Call]) -> dict[str, float]:
    """Return the median time of each call; calls take turns, to share disturbances."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    for turn in range(MAX_RUNS):
        for name, call in calls.items():
            times[name].append(_time_call(call)[0])
        if turn + 1 >= MIN_RUNS and time.perf_counter() - begin > SECONDS_PER_EXPRESSION:
            break
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _time_call(call: Call) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def _relative_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the largest difference relative to the largest value, without dense copies of sparse tensors."""
    scale = max(1e-30, _max_abs(truth))
    if isinstance(result, SparseTensor) and truth.layout != torch.strided:
        own, other = result.to_format("coo"), _coalesce(truth.to_sparse_coo())
        assert isinstance(own, SparseTensor)
        if torch.equal(own.indices(), other.indices()):
            return _max_abs(own.values().double() - other.values().double()) / scale
        plain = torch.sparse_coo_tensor(own.indices(), own.values(), truth.shape)
        return _max_abs(plain.double() - other.double()) / scale
    return _max_abs(result.to_dense().double() - truth.to_dense().double()) / scale


def _coalesce(matrix: torch.Tensor) -> torch.Tensor:
    """Sort the entries of ``matrix``: torch takes unsorted columns of a product for sorted ones."""
    return torch.sparse_coo_tensor(matrix._indices(), matrix._values(), matrix.shape).coalesce()


def _max_abs(tensor: torch.Tensor) -> float:
    values = tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor
    values = values.values() if values.layout not in (torch.strided, torch.sparse_coo) else values
    return float(values.abs().max()) if values.numel() else 0.0


def _format(tensor: Any) -> Format | str:
    return tensor.format if isinstance(tensor, SparseTensor) else "dense"


def _print_heading(problem: Problem) -> None:
    fits = "a smaller problem, with dense tensors too" if problem.fits_dense else "without dense tensors"
    print(
        f"\nMatrices {problem.n:,} x {problem.n:,}, a tensor {problem.m:,} x {problem.m:,} x {problem.m:,}, "
        f"about {problem.entries:,} nonzeros each:\n{fits}\n"
    )
    last = "dense" if problem.fits_dense else "first call"
    print(_LINE("expression", "formats", "scorch", "torch.sparse", last, "ratio", "agree"), flush=True)


def _print_row(row: Row, problem: Problem) -> None:
    sparse = f"{format_seconds(row.torch_sparse)} {row.layout}" if row.torch_sparse is not None else "cannot"
    last = format_seconds(row.dense if problem.fits_dense else row.first)
    ratio = "-" if row.ratio is None else f"{row.ratio:.1f}x" if row.ratio < 99 else f"{row.ratio:.0f}x"
    agrees = "-" if row.error is None else "yes" if row.agrees else "NO"
    formats = f"{row.formats} -> {row.result}"
    text = row.text.partition(" = ")[2] or row.text
    print(_LINE(text, formats, format_seconds(row.warm), sparse, last, ratio, agrees), flush=True)


def _print_ending(problem: Problem) -> None:
    stored, threads = cache.statistics(), host_threads()
    print(
        f"""
Times are medians of interleaved runs with {threads} threads. first call: with compilation, unless the kernel
is in the disk cache. torch.sparse: its fastest layout. ratio: the best other time divided by Scorch's;
above 1, Scorch is faster. agree: with dense PyTorch in float64, or with torch.sparse where dense is
too large; where neither works (-), only the smaller problem is checked.

{stored.entries} kernels ({stored.bytes:,} bytes) are cached in {stored.directory}
"""
    )
    A, B = (from_torch(power_law((problem.n,) * 2, problem.entries, seed), format="csr") for seed in (0, 1))
    print('scorch.explain("ij,jk->ik", A, B), without the source:\n')
    print(explain("ij,jk->ik", A, B).report(source=False))
    print("\nTo compile the common kernels ahead of time: python -m scorch cache --warm")


def _print_json(problems: tuple[Problem, ...], tables: list[list[Row]]) -> None:
    report = {
        "threads": host_threads(),
        "problems": [
            {**asdict(problem), "rows": [{**asdict(row), "agrees": row.agrees} for row in rows]}
            for problem, rows in zip(problems, tables, strict=True)
        ],
        "cache": str(cache.directory()),
    }
    print(json.dumps(report, indent=2))
