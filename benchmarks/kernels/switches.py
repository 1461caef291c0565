"""What each optimisation gives: the same kernel with all of them, without one at a time, and with none.

Calls with something switched off look their kernel up the long way, which costs a small kernel more than it
runs. So the time to compare with is not that of a plain call but that without an optimisation which has
nothing to do there (``idle``): the same kernel, called the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch

import scorch
from benchmarks.kernels.cases import OURS, Case
from benchmarks.kernels.check import Reference, difference
from benchmarks.kernels.data import Matrix, Tensor, generator_for, matrix_from_coordinates
from benchmarks.kernels.layouts import Layouts
from benchmarks.kernels.results import Measured, Results
from benchmarks.kernels.timing import Call, Context, interleaved
from scorch.settings import OPTIMIZATIONS

ALL_ON = "all on"
NAMES = [*OPTIMIZATIONS, "all"]
BLOCKS = "SpMM k=128, blocks 8 x 8"
FULL = "SpMM k=128, 90 % full"
BLOCK = 8


def idle(label: str) -> str:
    """An optimisation that has nothing to do in a kernel."""
    return "dense" if label.startswith("CS") else "buckets"  # which conversions count into


def without(name: str) -> Context:
    return lambda: scorch.settings(disable=name)


def extra_cases(matrix: Matrix) -> Iterator[Case]:
    """Products that only some optimisations are for: block-sparse operands, and ones that are nearly full."""
    random = generator_for(matrix.name + "blocks")
    m, n = (-(-size // BLOCK) * BLOCK for size in matrix.shape)
    many = max(1, matrix.nnz // BLOCK**2)
    places = np.unique(random.integers(0, (m // BLOCK) * (n // BLOCK), many))
    inner = np.arange(BLOCK)
    shape = (len(places), BLOCK, BLOCK)
    rows = np.broadcast_to((places // (n // BLOCK) * BLOCK)[:, None, None] + inner[:, None], shape)
    columns = np.broadcast_to((places % (n // BLOCK) * BLOCK)[:, None, None] + inner, shape)
    blocks = matrix_from_coordinates(matrix.name, "", (m, n), rows.ravel(), columns.ravel(), None)
    yield _product(BLOCKS, blocks, f"bsr({BLOCK},{BLOCK})")
    m, n = (min(size, 1024) for size in matrix.shape)
    keys = np.flatnonzero(random.random(m * n) < 0.9)
    yield _product(FULL, matrix_from_coordinates(matrix.name, "", (m, n), keys // n, keys % n, None), "csr")


def _product(label: str, matrix: Matrix, form: str) -> Case:
    A = Layouts(matrix)
    B = torch.from_numpy(generator_for(label).standard_normal((matrix.shape[1], 128)).astype(np.float32))
    S = A.scorch.to_format(form)

    def reference() -> Reference:
        found: np.ndarray = (A.csr64.double() @ B.double()).numpy()
        return found

    return Case("spmm", label, reference, {OURS: lambda: lambda: scorch.einsum("ij,jk->ik", S, B)})


def measure_switches(
    case: Case, data: Matrix | Tensor, threads: Sequence[int], seconds: float, results: Results
) -> None:
    """Add the times of Scorch's kernel with each optimisation switched off in turn."""
    reference = case.reference()
    call = case.contestants[OURS]()
    around: dict[str, Context] = {f"without {name}": without(name) for name in NAMES}
    calls: dict[str, Call] = {ALL_ON: call, **dict.fromkeys(around, call)}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(max(threads))
        for name in list(calls):
            problem = _problem(call, around.get(name), reference)
            if problem is not None:
                results.wrong.append(f"{case.label}, {data.name}, {name}: {problem}")
                del calls[name]
        for count in threads:
            torch.set_num_threads(count)
            times = interleaved(calls, seconds, around)
            results.measured.append(
                Measured(case.kernel, case.label, data.name, data.group, data.shape, data.nnz, count, times)
            )
    finally:
        torch.set_num_threads(before)


def _problem(call: Call, context: Context | None, reference: Reference) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if context is None:
                return difference(call(), reference)
            with context():
                return difference(call(), reference)
    except (RuntimeError, ValueError, MemoryError) as error:
        return f"raised {str(error).splitlines()[0]}"
