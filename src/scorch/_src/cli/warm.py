"""``python -m scorch cache --warm``: the usual kernels compiled ahead, on all cores, so that no call waits.

A kernel is known by its text, which depends on the expression, the names in it, formats, dtypes and the
schedule, but hardly on sizes: the usual expressions are planned, without any tensors, for a few magnitudes
of sizes, and what comes out is compiled once for each text. Names are those that ``einsum`` and the operators
give; an expression with names of its own is compiled when it is first met.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scorch._src.backends.base import backend_for
from scorch._src.backends.cpu import invoke, jit, launch, openmp
from scorch._src.backends.cpu.routines import (
    attention_blocks,
    concat,
    join_matrices,
    pick_rows,
    row_pointers,
    sort,
    transpose,
)
from scorch._src.backends.cpu.routines import parse_table as tables
from scorch._src.backends.cpu.routines.attention_source import source as attention_source
from scorch._src.compiler.plan import Operand
from scorch._src.compiler.schedule.cost import estimated_counts
from scorch._src.compiler.steps import split
from scorch._src.engine.execute import copy_step
from scorch._src.engine.schedules import Problem, new_contraction, new_schedule
from scorch._src.formats import Format, as_format, dense_format
from scorch._src.loops.types import FLOAT32, FLOAT64, INT32, INT64, Type
from scorch._src.notation.indexing import parse
from scorch._src.notation.parse_einsum import parse_einsum

ROUTINES = (transpose, tables, sort, pick_rows, row_pointers, concat, join_matrices, attention_blocks)
SIZES = ((500, 5), (3_000, 7), (20_000, 7), (20_000, 3))  # of square matrices: rows, and entries in each
WIDTH = 32  # of dense factors
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
    """How many of the usual kernels there are, how many were compiled now, and in what time."""

    kernels: int
    compiled: int
    seconds: float


def warm(progress: jit.Progress | None = None) -> Warmed:
    """Have the usual kernels on disk; ``progress`` is told how many of them are there."""
    begin = time.perf_counter()
    sources = list(usual_sources())
    made = jit.build(sources, progress)
    return Warmed(len(sources), made, time.perf_counter() - begin)


def print_progress(done: int, total: int) -> None:
    """A line that counts, on terminals only."""
    if sys.stderr.isatty():
        ending = "\n" if done == total else ""
        print(f"\r{done} of {total} usual kernels are compiled", end=ending, file=sys.stderr, flush=True)


def usual_sources() -> Iterable[str]:
    """The texts of the usual kernels, each once, and of the functions that call kernels."""
    kernels = (source for problem in usual_problems() for source in _sources_of(problem))
    routines = [module.SOURCE for module in ROUTINES]
    routines += [attention_source(element) for element in ("float", "double")]
    return dict.fromkeys([*invoke.SOURCES, *openmp.SOURCES, *launch.SOURCES, *routines, *kernels])


def usual_problems() -> Iterator[Problem]:
    """The usual steps over operands of usual formats, dtypes and sizes."""
    for form, element, index, size in itertools.product(FORMATS, (FLOAT32, FLOAT64), (INT32, INT64), SIZES):
        rows, per_row = size
        sparse = _Maker(as_format(form, 2), element, index, rows * per_row)
        for equation, kinds in PRODUCTS:
            yield from _product(equation, kinds, rows, sparse)
        for text in ELEMENTWISE:
            (step,) = split(parse(text).assign)
            operands = {name: sparse(name, (rows, rows)) for name in "AB"}
            yield Problem(step, operands, dict.fromkeys("ij", rows))
        yield from _copies(sparse, rows)


@dataclass(frozen=True)
class _Maker:
    """Makes sparse operands alike but for name and shape."""

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


def _product(equation: str, kinds: str, rows: int, sparse: _Maker) -> Iterator[Problem]:
    """An equation in which k, beside a dense operand, is the width of that."""
    terms = equation.partition("->")[0].split(",")
    sizes = {"i": rows, "j": rows, "k": WIDTH if "d" in kinds else rows}
    shapes = [tuple(sizes[index] for index in term) for term in terms]
    parsed = parse_einsum(equation, shapes)
    operands = {}
    for read, shape, kind in zip(parsed.operands, shapes, kinds, strict=True):
        name = read.access.tensor
        operands[name] = sparse(name, shape) if kind == "s" else _dense(name, shape, sparse.element)
    (step,) = split(parsed.statement)
    whole = Problem(step, operands, parsed.sizes)
    if len(new_contraction(whole)) > 1:  # a product of two steps: not one of the usual kernels
        return
    yield whole
    if kinds == "sd":
        yield Problem(step, operands, parsed.sizes, dense_format(len(step.target.indices)))


def _copies(sparse: _Maker, rows: int) -> Iterator[Problem]:
    """To the other formats, to dense and from dense, and from entries in any order."""
    step = copy_step(2)
    sizes = dict.fromkeys("ij", rows)
    operand = {"A": sparse("A", (rows, rows))}
    for form in (*FORMATS, "dense"):
        wanted = as_format(form, 2)
        if wanted != sparse.format:
            yield Problem(step, operand, sizes, wanted)
    full = {"A": _dense("A", (rows, rows), sparse.element)}
    yield Problem(step, full, sizes, sparse.format, skip_zeros=True)
    if sparse.format == as_format("coo", 2):
        for form in FORMATS:
            yield Problem(step, operand, sizes, as_format(form, 2), unsorted=True)


def _sources_of(problem: Problem) -> Iterator[str]:
    """The text of a kernel, and those of the copies of operands that its schedule asks for.

    A pattern is converted with the numbers of its entries for values, which are int64.
    """
    backend = backend_for()
    schedule = new_schedule(problem, backend)
    yield schedule.source
    for conversion in schedule.planned.conversions:
        source = problem.operands.get(conversion.tensor)
        if source is not None and source.is_sparse:
            step = copy_step(len(source.shape))
            numbered = Operand("A", source.format, INT64, source.index, source.shape, source.counts)
            sizes = dict(zip(step.target.indices, source.shape, strict=True))
            yield new_schedule(Problem(step, {"A": numbered}, sizes, conversion.format), backend).source
