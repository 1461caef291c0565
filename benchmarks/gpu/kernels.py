"""Operations on one matrix, each said by torch in the layouts it has for it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

import scorch
from benchmarks.gpu.cases import OURS, Case, Prepare
from benchmarks.gpu.check import CHUNK, TOLERANCES, probes, sketch_of, times
from benchmarks.gpu.matrices import Matrix
from benchmarks.gpu.timing import Call

MOST_PRODUCTS = 1_500_000_000  # of sparse times sparse; beyond, the result alone fills gigabytes
NAMES = {torch.float32: "float32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _product(make: Callable[[], Any], X: torch.Tensor) -> Prepare:
    def prepare() -> Call:
        A = make()
        return Call(lambda: A @ X)

    return prepare


# sparse times dense ----------------------------------------------------------------------------------


def spmv(A: Matrix) -> Iterator[Case]:
    m, n = A.shape
    x = A.random("x", n)
    contestants = {OURS: _product(A.scorch, x)}
    contestants |= {name: _product(make, x) for name, make in A.torch_layouts(with_csc=True).items()}

    def reference() -> torch.Tensor:
        return times(A.rows, A.indices.long(), A.values, x[:, None], m).ravel()

    yield Case("spmv", "S @ x", A.name, contestants, reference, bytes=8 * A.nnz + 4 * (m + 1) + 4 * (m + n))


def _spmm(A: Matrix, k: int, dtype: torch.dtype) -> Case:
    m, n = A.shape
    X = A.random(f"X{k}", n, k).to(dtype)
    contestants = {OURS: _product(lambda: A.scorch(dtype), X)}
    layouts = A.torch_layouts(dtype, with_csc=True)
    contestants |= {name: _product(make, X) for name, make in layouts.items()}

    def reference() -> torch.Tensor:
        return times(A.rows, A.indices.long(), A.values.to(dtype), X, m)

    size = dtype.itemsize
    moved = (4 + size) * A.nnz + 4 * (m + 1) + size * k * (m + n)
    label = f"S @ X, {k} columns, {NAMES[dtype]}"
    return Case(f"spmm{k}", label, A.name, contestants, reference, bytes=moved, tolerance=TOLERANCES[dtype])


def spmm32(A: Matrix) -> Iterator[Case]:
    yield _spmm(A, 32, torch.float32)


def spmm128(A: Matrix) -> Iterator[Case]:
    for dtype in NAMES:
        yield _spmm(A, 128, dtype)


def sddmm64(A: Matrix) -> Iterator[Case]:
    """S * (P @ Q.T) at the places of S, whose values are 1: torch's function reads only its pattern."""
    k = 64
    m, n = A.shape
    P, Q = A.random("P", m, k), A.random("Q", n, k)
    by_columns = Q.T.contiguous()
    ones = torch.ones_like(A.values)

    def ours(equation: str, right: torch.Tensor) -> Prepare:
        def prepare() -> Call:
            S = scorch.sparse_csr_tensor(A.indptr, A.indices, ones, A.shape)
            return Call(lambda: scorch.einsum(equation, S, P, right))

        return prepare

    def sampled(index: torch.dtype, right: torch.Tensor) -> Prepare:
        def prepare() -> Call:
            S = torch.sparse_csr_tensor(A.indptr.to(index), A.indices.to(index), ones, A.shape)
            return Call(lambda: torch.sparse.sampled_addmm(S, P, right, beta=0.0))

        return prepare

    def reference() -> torch.Tensor:
        values = torch.empty(A.nnz, dtype=torch.float64, device=A.device)
        step = CHUNK // k
        for at in range(0, A.nnz, step):
            part = slice(at, at + step)
            values[part] = (P[A.rows[part]].double() * Q[A.indices[part].long()].double()).sum(1)
        return sketch_of(A, values)

    contestants = {
        OURS: ours("ij,ik,jk->ij", Q),
        "torch CSR int32": sampled(torch.int32, by_columns),
        "torch CSR int64": sampled(torch.int64, by_columns),
        "torch CSR int32, Q by rows": sampled(torch.int32, Q.T),
    }
    moved = 12 * A.nnz + 4 * (m + 1) + 4 * k * (m + n)
    yield Case("sddmm64", "S * (P @ Q.T), 64", A.name, contestants, reference, is_sketch=True, bytes=moved)


# entry by entry --------------------------------------------------------------------------------------


def softmax(A: Matrix) -> Iterator[Case]:
    """Softmax over the stored entries of each row."""
    m = A.shape[0]

    def softened(make: Callable[[], Any]) -> Prepare:
        def prepare() -> Call:
            S = make()
            return Call(lambda: torch.sparse.softmax(S, 1))

        return prepare

    def scattered(values: torch.Tensor) -> torch.Tensor:
        most = torch.full((m,), -torch.inf, dtype=values.dtype, device=A.device)
        most.scatter_reduce_(0, A.rows, values, "amax")
        powers = (values - most[A.rows]).exp()
        sums = torch.zeros(m, dtype=values.dtype, device=A.device).index_add_(0, A.rows, powers)
        return powers / sums[A.rows]

    def with_scatters() -> Call:
        places = torch.stack([A.rows, A.indices.long()])
        return Call(lambda: torch.sparse_coo_tensor(places, scattered(A.values), A.shape, is_coalesced=True))

    def reference() -> torch.Tensor:
        return sketch_of(A, scattered(A.values.double()))

    contestants = {
        OURS: softened(A.scorch),
        "torch COO": softened(A.coo),
        "torch scatters": with_scatters,
    }
    moved = 8 * A.nnz + 4 * (m + 1)
    yield Case("softmax", "row softmax", A.name, contestants, reference, is_sketch=True, bytes=moved)


def _merge(section: str, label: str, A: Matrix, B: Matrix, combine: Callable[..., Any]) -> Case:
    def merged(left: Callable[[], Any], right: Callable[[], Any]) -> Prepare:
        def prepare() -> Call:
            first, second = left(), right()
            if getattr(first, "layout", None) is torch.sparse_coo:  # whose sums are only joined otherwise
                return Call(lambda: combine(first, second).coalesce())
            return Call(lambda: combine(first, second))

        return prepare

    def on_one_pattern() -> Call:
        first = A.scorch()
        second = first * 1.0
        return Call(lambda: combine(first, second))

    def reference() -> torch.Tensor:
        if section == "add":
            return sketch_of(A) + sketch_of(B)
        at = torch.searchsorted(B.keys, A.keys).clamp(max=B.nnz - 1)
        met = B.keys[at] == A.keys
        return sketch_of(A, torch.where(met, A.values.double() * B.values[at].double(), 0.0))

    layouts, others = A.torch_layouts(with_csc=True), B.torch_layouts(with_csc=True)
    contestants: dict[str, Prepare] = {OURS: on_one_pattern if A is B else merged(A.scorch, B.scorch)}
    contestants |= {name: merged(layouts[name], others[name]) for name in layouts}
    if section == "mul" and math.prod(A.shape) % 2**32 == 0:  # which ends the process: torch divides by it
        contestants = {name: made for name, made in contestants.items() if name == OURS}
    kept = A.nnz
    if A is not B and section == "add":
        kept = int(torch.cat([A.keys, B.keys]).unique().numel())
    elif A is not B:
        kept = int(torch.isin(A.keys, B.keys).sum())
    moved = 8 * (A.nnz + B.nnz + kept) + 12 * (A.shape[0] + 1)
    return Case(section, label, A.name, contestants, reference, is_sketch=True, bytes=moved)


def add(A: Matrix) -> Iterator[Case]:
    yield _merge("add", "A + B, one pattern", A, A, operator.add)
    yield _merge("add", "A + B, other pattern", A, A.shifted(), operator.add)


def mul(A: Matrix) -> Iterator[Case]:
    yield _merge("mul", "A * B, one pattern", A, A, operator.mul)
    yield _merge("mul", "A * B, other pattern", A, A.shifted(), operator.mul)


# other patterns --------------------------------------------------------------------------------------


def spgemm(A: Matrix) -> Iterator[Case]:
    """A @ A, or A @ A.T where A is not square."""
    if A.products > MOST_PRODUCTS:
        return
    m, n = A.shape
    B = A if m == n else A.transposed()

    def ours() -> Call:
        left, right = A.scorch(), B.scorch()
        return Call(lambda: scorch.einsum("ij,jk->ik", left, right, format="csr"))

    def product(layout: str) -> Prepare:
        def prepare() -> Call:
            left, right = A.torch_layouts()[layout](), B.torch_layouts()[layout]()
            return Call(lambda: torch.sparse.mm(left, right))

        return prepare

    def reference() -> torch.Tensor:
        inner = times(B.rows, B.indices.long(), B.values, probes(B.shape[1], B.device), B.shape[0])
        return times(A.rows, A.indices.long(), A.values, inner, m)

    contestants: dict[str, Prepare] = {OURS: ours}
    contestants |= {name: product(name) for name in A.torch_layouts()}
    label = "A @ A, sparse" if m == n else "A @ A.T, sparse"
    yield Case("spgemm", label, A.name, contestants, reference, is_sketch=True, bytes=8 * (A.nnz + B.nnz))


def transpose(A: Matrix) -> Iterator[Case]:
    """CSR to CSC; the pattern is a new one at every call, so that nothing remembered answers."""

    def converted(fresh: Callable[[], Any], convert: Callable[[Any], Any]) -> Prepare:
        return lambda: Call(convert, fresh)

    contestants = {OURS: converted(A.scorch, lambda S: S.to_format("csc"))}
    for index in (torch.int32, torch.int64):
        name = f"torch CSR {str(index).removeprefix('torch.')}"
        contestants[name] = converted(lambda index=index: A.csr(index), lambda S: S.to_sparse_csc())
    moved = 16 * A.nnz + 4 * sum(A.shape)
    yield Case(
        "transpose",
        "CSR to CSC",
        A.name,
        contestants,
        lambda: sketch_of(A),
        is_sketch=True,
        bytes=moved,
    )


def coalesce(A: Matrix) -> Iterator[Case]:
    """Entries in any order, one in four twice, sorted and summed."""
    twice = torch.arange(0, A.nnz, 4, device=A.device)
    taken = torch.cat([torch.arange(A.nnz, device=A.device), twice])
    taken = taken[torch.argsort(A.random("order", len(taken)))]
    places, values = torch.stack([A.rows, A.indices.long()])[:, taken], A.values[taken]
    weights = torch.ones(A.nnz, dtype=torch.float64, device=A.device)
    weights[twice] = 2.0

    def in_torch(given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.sparse_coo_tensor(*given, A.shape).coalesce()

    def ours(given: tuple[torch.Tensor, torch.Tensor]) -> Any:
        return scorch.sparse_coo_tensor(*given, A.shape).coalesce()

    def fresh() -> tuple[torch.Tensor, torch.Tensor]:
        return places.clone(), values

    contestants: dict[str, Prepare] = {
        OURS: lambda: Call(ours, fresh),
        "torch COO": lambda: Call(in_torch, fresh),
    }
    yield Case(
        "coalesce",
        "COO, repeats summed",
        A.name,
        contestants,
        lambda: sketch_of(A, A.values.double() * weights),
        is_sketch=True,
        bytes=20.0 * len(taken) + 20.0 * A.nnz,
    )


def rows(A: Matrix) -> Iterator[Case]:
    """Rows in any order: a batch of neighbors, and half of all rows."""
    order = torch.argsort(A.random("rows", A.shape[0]))
    for label, count in (
        ("S[rows], 1024 rows", min(1024, len(order))),
        ("S[rows], half of them", len(order) // 2),
    ):
        yield _picked(A, label, order[:count])


def _picked(A: Matrix, label: str, picked: torch.Tensor) -> Case:
    def selected(make: Callable[[], Any]) -> Prepare:
        def prepare() -> Call:
            S = make()
            return Call(lambda: S.index_select(0, picked))

        return prepare

    def by_gathers() -> Call:
        """Copy rows as programs without a function for it do."""
        pos, count = A.indptr.long(), len(picked)

        def run() -> torch.Tensor:
            begin, lengths = pos[picked], (pos[1:] - pos[:-1])[picked]
            new = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
            shift = torch.repeat_interleave(begin - new[:-1], lengths)
            source = torch.arange(len(shift), device=A.device) + shift
            return torch.sparse_csr_tensor(
                new, A.indices[source].long(), A.values[source], (count, A.shape[1])
            )

        return Call(run)

    contestants: dict[str, Prepare] = {OURS: selected(A.scorch), "torch gathers": by_gathers}
    contestants |= {name: selected(make) for name, make in A.torch_layouts().items()}
    entries = int((A.indptr[picked + 1] - A.indptr[picked]).sum())
    moved = 16 * entries + 20 * len(picked)
    return Case("rows", label, A.name, contestants, lambda: sketch_of(A)[picked], is_sketch=True, bytes=moved)


SECTIONS: dict[str, Callable[[Matrix], Iterator[Case]]] = {
    "spmv": spmv,
    "spmm32": spmm32,
    "spmm128": spmm128,
    "sddmm64": sddmm64,
    "softmax": softmax,
    "add": add,
    "mul": mul,
    "spgemm": spgemm,
    "transpose": transpose,
    "coalesce": coalesce,
    "rows": rows,
}
