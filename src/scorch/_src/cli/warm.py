"""``python -m scorch cache --warm``: compile the usual kernels ahead, on all cores, so that no call waits.

A kernel is identified by its source, which depends on the expression, the names in it, formats, dtypes and
the schedule, but hardly on sizes: the usual expressions are planned, without any tensors, for a few
magnitudes of sizes, and each source that results is compiled once. Names are those of ``einsum`` and the
operators; an expression with other names is compiled on its first call.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from scorch._src.backends.base import backend_for
from scorch._src.backends.cpu import invoke, jit, launch, parallel
from scorch._src.backends.cpu.routines import (
    coalesce,
    concat,
    join_matrices,
    pick_rows,
    row_pointers,
    sort,
    take,
    transpose,
    transpose_rows,
)
from scorch._src.backends.cpu.routines import parse_table as tables
from scorch._src.backends.cpu.routines.attention import blocks, source
from scorch._src.compiler.plan import Operand
from scorch._src.compiler.schedule.cost import estimated_counts
from scorch._src.compiler.steps import split
from scorch._src.dataclass import dataclass
from scorch._src.engine.execute import copy_step
from scorch._src.engine.schedules import Problem, new_contraction, new_schedule
from scorch._src.formats import Format, as_format, dense_format
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, INT64, Type
from scorch._src.notation.indexing import parse
from scorch._src.notation.parse_einsum import parse_einsum

INTRINSICS = (transpose, tables, sort, row_pointers, concat, join_matrices, blocks)
ROWS_AND_ENTRIES_PER_ROW = ((500, 5), (3_000, 7), (20_000, 7), (20_000, 3))  # of square matrices
DENSE_COLUMNS = 32
FORMATS = ("csr", "csc", "coo")

# A letter for each operand: s sparse, d dense. The result is as inferred, or dense as torch's ``@`` asks.
PRODUCTS = (
    ("ij,j->i", "sd"),
    ("ji,j->i", "sd"),
    ("ij,jk->ik", "sd"),
    ("ji,jk->ik", "sd"),
    ("ij,jk->ik", "ss"),
    ("ij,ik,jk->ij", "sdd"),
    ("ij,ik,kj->ij", "sdd"),
)
ELEMENTWISE = ("C[i,j] = A[i,j] + B[i,j]", "C[i,j] = A[i,j] * B[i,j]")


@dataclass(frozen=True)
class Warmed:
    """The number of usual kernels, how many were compiled now, and the seconds that took."""

    kernels: int
    compiled: int
    seconds: float


def warm(progress: jit.Progress | None = None) -> Warmed:
    """Compile the usual kernels to disk; call ``progress`` with how many of them are there."""
    begin = time.perf_counter()
    sources = list(usual_sources())
    compiled = jit.build(sources, progress)
    return Warmed(len(sources), compiled, time.perf_counter() - begin)


def print_progress(done: int, total: int) -> None:
    """Print a line that counts, on terminals only."""
    if sys.stderr.isatty():
        ending = "\n" if done == total else ""
        print(f"\r{done} of {total} common kernels compiled", end=ending, file=sys.stderr, flush=True)


def usual_sources() -> Iterable[str]:
    """Return the sources of the usual kernels, each once, and of the functions that call kernels."""
    kernels = (source for problem in usual_problems() for source in _generate_sources(problem))
    routines = [launch.NOTHING, *(module.SOURCE for module in INTRINSICS)]
    routines += [source.source(element) for element in ("float", "double")]
    for dtype, how in itertools.product((torch.float32, torch.float64), take.TOTALS | take.PLACES):
        routines.append(take.source_of_runs(dtype, how))
    for index, (number, size) in itertools.product((torch.int32, torch.int64), (("float", 4), ("double", 8))):
        routines.append(pick_rows.source_for(index.itemsize, size))
        routines.append(take.source_for(size))
        routines.append(transpose_rows.source_for(index.itemsize, size, 4))
        routines.append(coalesce.source_for(torch.int64, index, number))
    runtime = [*invoke.SOURCES, *parallel.SOURCES, *launch.SOURCES]
    return dict.fromkeys([*runtime, *routines, *kernels])


def usual_problems() -> Iterator[Problem]:
    """Yield the usual steps over operands of usual formats, dtypes and sizes."""
    for form, element, index, size in itertools.product(
        FORMATS, (FLOAT32, FLOAT64), (INT32, INT64), ROWS_AND_ENTRIES_PER_ROW
    ):
        rows, per_row = size
        sparse = _OperandMaker(as_format(form, 2), element, index, rows * per_row)
        for equation, kinds in PRODUCTS:
            yield from _product(equation, kinds, rows, sparse)
        for text in ELEMENTWISE:
            (step,) = split(parse(text).assign)
            operands = {name: sparse(name, (rows, rows)) for name in "AB"}
            yield Problem(step, operands, dict.fromkeys("ij", rows))
        yield from _conversions(sparse, rows)


@dataclass(frozen=True)
class _OperandMaker:
    """Make sparse operands alike but for name and shape."""

    format: Format
    element: Type
    index: Type
    nnz: int

    def __call__(self, name: str, shape: tuple[int, ...]) -> Operand:
        counts = estimated_counts(self.format, shape, self.nnz)
        return Operand(name, self.format, self.element, self.index, shape, counts)


def _dense(name: str, shape: tuple[int, ...], element: Type) -> Operand:
    form = dense_format(len(shape))
    counts = tuple(itertools.accumulate(shape, lambda a, b: a * b))
    return Operand(name, form, element, INT32, shape, counts)


def _product(equation: str, kinds: str, rows: int, sparse: _OperandMaker) -> Iterator[Problem]:
    """Yield an equation whose k, beside a dense operand, is the width of that."""
    terms = equation.partition("->")[0].split(",")
    sizes = {"i": rows, "j": rows, "k": DENSE_COLUMNS if "d" in kinds else rows}
    shapes = [tuple(sizes[index] for index in term) for term in terms]
    parsed = parse_einsum(equation, shapes)
    operands = {}
    for read, shape, kind in zip(parsed.operands, shapes, kinds, strict=True):
        name = read.access.tensor
        operands[name] = sparse(name, shape) if kind == "s" else _dense(name, shape, sparse.element)
    (step,) = split(parsed.statement)
    problem = Problem(step, operands, parsed.sizes)
    if len(new_contraction(problem)) > 1:  # a product of two steps is no usual kernel
        return
    yield problem
    if kinds == "sd":
        yield Problem(step, operands, parsed.sizes, dense_format(len(step.target.indices)))


def _conversions(sparse: _OperandMaker, rows: int) -> Iterator[Problem]:
    """Yield copies to the other formats, to dense and from dense, and from unsorted entries."""
    operand, dense = sparse("A", (rows, rows)), _dense("A", (rows, rows), sparse.element)
    forms = [as_format(form, 2) for form in FORMATS]
    yield from (_copy(operand, form) for form in (*forms, as_format("dense", 2)) if form != sparse.format)
    yield _copy(dense, sparse.format, skip_zeros=True)
    if sparse.format == as_format("coo", 2):
        yield from (_copy(operand, form, unsorted=True) for form in forms)


def _copy(operand: Operand, form: Format, **options: bool) -> Problem:
    step = copy_step(len(operand.shape))
    sizes = dict(zip(step.target.indices, operand.shape, strict=True))
    return Problem(step, {"A": operand}, sizes, form, **options)


def _generate_sources(problem: Problem) -> Iterator[str]:
    """Generate the source of a kernel, and those of the conversions of operands that its schedule needs.

    A pattern is converted with the numbers of its entries for values, which are int64.
    """
    backend = backend_for()
    schedule = new_schedule(problem, backend)
    yield schedule.source
    for conversion in schedule.planned.conversions:
        source = problem.operands.get(conversion.tensor)
        if source is not None and source.is_sparse:
            numbered = replace(source, name="A", element=INT64)
            yield new_schedule(_copy(numbered, conversion.format), backend).source
